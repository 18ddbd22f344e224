"""From a node's configuration to its coordinator: keys and password files."""

import ssl

import attrs
import pytest

from hastore.cluster import etcd_http
from hastore.cluster.connecting import CoordinatorFiles, keys_of, open_coordinator, role_service
from hastore.cluster.etcd_http import EtcdHttp
from hastore.concurrency.tcp import connect
from hastore.config import CoordinatorConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, CoordinatorRefusedError
from hastore.sim.coordinator.etcd_model import EtcdModel
from tests.cluster.scripted_http import answer, scripted_http
from tests.patience import WITHIN_S
from tests.support.certificates import DAY, make_authority, make_certificates
from tests.support.nodes.group_nodes import node_config

BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n"
ETCD = CoordinatorConfig(endpoints=("http://127.0.0.1:2379",))


HTTPS = attrs.evolve(ETCD, endpoints=("https://127.0.0.1:1",))


async def password_of(path):
    """Return what would be sent."""
    config = attrs.evolve(ETCD, user="n1", password_file=str(path))
    return (await CoordinatorFiles.open(config, real_env())).current.password


def write(path, content, mode=0o600):
    """Replace a file, as an operator does whose node watches it."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(mode)
    return new.rename(path)


async def test_the_password_is_the_first_line_of_a_file_that_only_its_owner_reads(tmp_path):
    """Without its line end; blanks belong to it."""
    path = write(tmp_path / "password", b" secret word\nanother line\n")
    assert await password_of(path) == " secret word"
    path.chmod(0o400)
    assert await password_of(path) == " secret word"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
async def test_a_password_file_that_others_can_use_is_refused_with_its_mode(tmp_path, mode):
    """The next step is the command that mends it."""
    path = write(tmp_path / "password", b"secret\n", mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}: others may") as caught:
        await password_of(path)
    assert caught.value.hint == f"chmod 600 {path}"
    assert "secret\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\nsecond line", b"\xff\n", b"x" * 5000])
async def test_a_file_without_a_password_is_refused(tmp_path, content):
    """Empty, not text, or far too long."""
    path = write(tmp_path / "password", content)
    with pytest.raises(ConfigError, match=r"has no password|not UTF-8|has 5000 bytes"):
        await password_of(path)


async def test_files_that_cannot_be_used_are_named_before_anything_is_asked(tmp_path):
    """Missing ones, those without a certificate, another's key, a password in a key."""
    gone = str(tmp_path / "gone")
    ours, others = (make_certificates(tmp_path / "tls", name) for name in ("ours", "others"))
    text = write(tmp_path / "text", b"no certificate")
    locked = make_authority(tmp_path / "locked", "locked").issue("n", password=b"p")
    for change, reason in (
        ({"user": "n1", "password_file": gone}, "gone"),
        ({"ca_file": gone}, "gone"),
        ({"cert_file": gone, "key_file": gone}, "gone"),
        ({"ca_file": str(text)}, "text has no certificate"),
        ({"cert_file": str(text), "key_file": str(ours.key)}, "text has no certificate"),
        ({"cert_file": str(ours.cert), "key_file": str(others.key)}, "is not that of"),
        ({"cert_file": str(locked.cert), "key_file": str(locked.key)}, "is encrypted"),
    ):
        with pytest.raises(ConfigError, match=reason):
            async with open_coordinator(attrs.evolve(HTTPS, **change)):
                pass


async def test_a_connection_that_was_begun_with_a_former_certificate_is_used_once(monkeypatch):
    """The certificate was replaced while it was being made."""
    former, new = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2))
    connections = []
    async with (
        scripted_http(lambda _path: answer(b"{}"), stays=True) as server,
        EtcdHttp.open(former) as http,
    ):

        async def connect_slowly(*args):
            sock = await connect(*args)
            connections.append(sock)
            if len(connections) == 1:
                http.use(new)
            return sock

        monkeypatch.setattr(etcd_http, "connect", connect_slowly)
        for made in (1, 2, 2):
            await http.text(server.endpoint, "/version", WITHIN_S)
            assert len(connections) == made
        assert connections[0].fileno() == -1


async def test_files_that_earlier_releases_took_are_taken(tmp_path):
    """An etcd that does not ask for certificates never saw them; ``status`` warns."""
    authority = make_authority(tmp_path / "tls", "test")
    expired = authority.issue("expired", valid=(-2 * DAY, -DAY))
    early = authority.issue("early", valid=(DAY, 2 * DAY))
    old_ca = make_authority(tmp_path / "tls", "old", valid=(-2 * DAY, -DAY)).ca
    pem = authority.ca.read_bytes()
    trusted = write(tmp_path / "trusted", pem.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"))
    large = write(tmp_path / "large", b"# a comment\n" * 120_000 + pem)
    warnings = []
    for change in (
        {"cert_file": str(expired.cert), "key_file": str(expired.key)},
        {"cert_file": str(early.cert), "key_file": str(early.key)},
        {"ca_file": str(old_ca)},
        {"ca_file": str(trusted)},
        {"ca_file": str(large)},
    ):
        files = await CoordinatorFiles.open(attrs.evolve(HTTPS, **change), real_env())
        assert files.current.context is not None
        warnings.append(files.status().warning)
    assert "has expired" in warnings[0]
    assert "valid only from" in warnings[1]
    assert warnings[2:] == [None, None, None]


async def test_an_etcd_with_cbc_ciphers_only_is_still_reached(tmp_path):
    """No setting of a node names the ciphers for etcd, so they are those of earlier releases."""
    ours = make_certificates(tmp_path / "tls", "ours")
    config = attrs.evolve(HTTPS, ca_file=str(ours.ca))
    context = (await CoordinatorFiles.open(config, real_env())).current.context
    ciphers = [each["name"] for each in context.get_ciphers()]
    assert "ECDHE-ECDSA-AES128-SHA256" in ciphers
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_files_of_http_endpoints_are_checked_for_their_modes_only(tmp_path):
    """No connection uses them, but a key that others can read is a secret lost."""
    text = write(tmp_path / "text", b"no certificate")
    key = write(tmp_path / "key", b"no key", 0o644)
    plain = attrs.evolve(HTTPS, endpoints=("http://127.0.0.1:2379",), ca_file=str(text))
    files = await CoordinatorFiles.open(plain, real_env())
    assert files.current.context is None
    exposed = attrs.evolve(plain, cert_file=str(text), key_file=str(key))
    with pytest.raises(ConfigError, match="has mode 0644: others may"):
        await CoordinatorFiles.open(exposed, real_env())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
@pytest.mark.parametrize("which", ["key", "cert with its key", "ca with its key"])
async def test_a_private_key_that_others_can_read_is_refused(tmp_path, which, mode):
    """With its path and mode, wherever the key stands; certificates may be read."""
    ours = make_certificates(tmp_path / "tls", "ours")
    ours.cert.chmod(0o644)
    ours.ca.chmod(0o644)
    config = attrs.evolve(
        HTTPS, ca_file=str(ours.ca), cert_file=str(ours.cert), key_file=str(ours.key)
    )
    async with open_coordinator(config):
        pass
    both = write(tmp_path / "both", ours.cert.read_bytes() + ours.key.read_bytes(), mode)
    if which == "key":
        ours.key.chmod(mode)
        path = ours.key
    else:
        path = both
        config = attrs.evolve(config, **{f"{which.partition(' ')[0]}_file": str(both)})
    with pytest.raises(ConfigError, match=f"{path} has mode {mode:04o}: others may") as caught:
        async with open_coordinator(config):
            pass
    assert caught.value.hint == f"chmod 600 {path}"


async def test_the_files_are_taken_when_they_change(tmp_path):
    """A version with a fault is named, and the one before it stays in force."""
    ours = make_certificates(tmp_path / "tls", "ours")
    password = write(tmp_path / "password", b"first\n")
    config = attrs.evolve(HTTPS, ca_file=str(ours.ca), user="n1", password_file=str(password))
    files, taken = await CoordinatorFiles.open(config, real_env()), []
    files.on_taken = taken.append
    write(password, b"second secret\n")
    for _ in range(2):  # it is left alone until it has kept its stamp for a look
        await files.look()
    assert [secrets.password for secrets in taken] == ["second secret"]
    assert taken[0].context is not None
    assert files.status().fault is None
    write(password, b"third\n", 0o644)
    assert not await files.reload()
    assert "mode 0644" in files.status().fault
    assert files.current is taken[0]
    assert "second secret" not in repr(files)


async def test_a_node_logs_in_by_a_password_that_was_replaced(tmp_path):
    """Also within the pause that follows a refused login."""
    asked = []

    def script(path):
        asked.append(path)
        return answer(b'{"error": "authentication failed", "code": 3}', BAD_REQUEST)

    password = write(tmp_path / "password", b"first\n")
    async with scripted_http(script) as server:
        config = CoordinatorConfig(
            endpoints=(server.endpoint,), user="n1", password_file=str(password)
        )
        files = await CoordinatorFiles.open(config, real_env())
        async with open_coordinator(config, files=files) as store:
            for _ in range(2):
                with pytest.raises(CoordinatorRefusedError):
                    await store.read("/")
            assert len(asked) == 1
            write(password, b"second\n")
            assert await files.reload()
            with pytest.raises(CoordinatorRefusedError):
                await store.read("/")
            assert len(asked) == 2
            assert store.config.password == "second"


@pytest.mark.parametrize("host", ["10.0.0.7", "etcd.example", "[2001:db8::7]"])
def test_a_password_is_not_sent_unencrypted_to_another_machine(host):
    """Refused with its path; by https, and on loopback, it may be sent."""
    known = ("https://10.0.0.1:2379", "http://127.0.0.1:2379", "http://[::1]:2379")
    user = {"user": "n1", "password_file": "/etc/hastore/etcd-password"}
    attrs.evolve(ETCD, endpoints=known, **user)
    attrs.evolve(ETCD, endpoints=(*known, f"http://{host}:2379"))
    with pytest.raises(ConfigError, match="/etc/hastore/etcd-password would be sent") as caught:
        attrs.evolve(ETCD, endpoints=(*known, f"http://{host}:2379"), **user)
    assert "https://" in caught.value.hint


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
        ({"cert_file": "c"}, "cert_file and key_file need each other"),
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
