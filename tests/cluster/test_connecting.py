"""From a node's configuration to its coordinator: keys and password files."""

import attrs
import pytest

from hastore.cluster.connecting import keys_of, open_coordinator, read_password, role_service
from hastore.config import CoordinatorConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.sim.coordinator.etcd_model import EtcdModel
from tests.support.nodes.group_nodes import node_config

ETCD = CoordinatorConfig(endpoints=("http://127.0.0.1:2379",))


def test_the_password_is_the_first_line_of_a_file_that_only_its_owner_reads(tmp_path):
    """Without its line end; blanks belong to it."""
    path = tmp_path / "password"
    path.write_text(" secret word\nanother line\n")
    path.chmod(0o600)
    assert read_password(str(path)) == " secret word"
    path.chmod(0o400)
    assert read_password(str(path)) == " secret word"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_password_file_that_others_can_use_is_refused_with_its_mode(tmp_path, mode):
    """The next step is the command that mends it."""
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}: others may") as caught:
        read_password(str(path))
    assert caught.value.hint == f"chmod 600 {path}"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\nsecond line", b"\xff\n", b"x" * 5000])
def test_a_file_without_a_password_is_refused(tmp_path, content):
    """Empty, not text, or far too long."""
    path = tmp_path / "password"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"has no password|not UTF-8"):
        read_password(str(path))


async def test_missing_files_are_named_before_anything_is_asked(tmp_path):
    """The password's, and those of TLS."""
    gone = str(tmp_path / "gone")
    for change in (
        {"user": "n1", "password_file": gone},
        {"ca_file": gone},
        {"cert_file": gone, "key_file": gone},
    ):
        with pytest.raises(ConfigError, match=f"cannot read {gone}"):
            async with open_coordinator(attrs.evolve(ETCD, **change)):
                pass


async def test_a_role_service_has_the_settings_of_its_node(tmp_path):
    """Keys by cluster and group; the ids of a group that begins by itself."""
    coordinator = attrs.evolve(ETCD, prefix="/p/q", ttl_ms=4_000, priority=7, failsafe=False)
    config = node_config(tmp_path, 2, coordinator=coordinator)
    assert keys_of(config).state == "/p/q/DefaultCluster/g1/state"
    named = attrs.evolve(config, coordinator=attrs.evolve(coordinator, cluster_name="orders"))
    assert keys_of(named).leader == "/p/q/orders/g1/leader"
    roles = role_service(config, real_env(), EtcdModel.__new__(EtcdModel), version="9")
    settings = roles.config
    assert (settings.ttl_s, settings.priority, settings.acks) == (4, 7, "all")
    assert not settings.failsafe
    assert (settings.initial_ids, settings.version) == (frozenset({1, 2, 3}), "9")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoints": ("127.0.0.1:2379",)}, "is not the URL of an etcd"),
        ({"endpoints": ("http://h",)}, "is not the URL of an etcd"),
        ({"endpoints": ("http://h:2379/v3",)}, "is not the URL of an etcd"),
        ({"endpoints": ("http://h:99999",)}, "is not the URL of an etcd"),
        ({"endpoints": ("http://u:secret@h:2379",)}, "no place for a password"),
        ({"ttl_ms": 2_000}, "3 or more, not 2000 ms"),
        ({"ttl_ms": 3_500}, "whole seconds"),
        ({"priority": 1_001}, "0 to 1000"),
        ({"prefix": "hastore"}, "a path such as /hastore"),
        ({"prefix": "/hastore/"}, "a path such as /hastore"),
        ({"cluster_name": "a/b"}, "cluster's name"),
        ({"cert_file": "c"}, "cert and key need each other"),
        ({"user": "u"}, "user and password_file need each other"),
    ],
)
def test_an_unusable_coordinator_is_refused(changes, message):
    """By one sentence, without the password."""
    with pytest.raises(ConfigError, match=message) as caught:
        attrs.evolve(ETCD, **changes)
    assert "secret" not in str(caught.value)


def test_a_master_is_not_named_where_etcd_says_who_it_is(tmp_path):
    """Nor may the cluster's name be one that a key cannot have."""
    with pytest.raises(ConfigError, match="is told by it who is master"):
        node_config(tmp_path, 1, coordinator=ETCD, master=("127.0.0.1", 1))
    with pytest.raises(ConfigError, match="cluster's name"):
        node_config(tmp_path, 1, coordinator=ETCD, cluster="Our Cluster")
    assert node_config(tmp_path, 1, cluster="Our Cluster").cluster == "Our Cluster"
