"""Configurations refuse values out of range, and values that contradict each other."""

import itertools

import attrs
import pytest

from hastore.config import (
    HA_FRAME_BODY_SIZE_MAX,
    MAPPED_FILE_SIZE_MAX,
    MAPPED_FILE_SIZE_MIN,
    NODE_ID_MAX,
    RESERVE_SIZE_MIN,
    CoordinatorConfig,
    GroupNodeConfig,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
)
from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType, HAProtocol

RATIOS = (
    "disk_max_used_space_ratio",
    "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio",
)
NOT_BELOW_0 = (
    "flush_least_pages",
    "commit_least_pages",
    "flush_consume_queue_least_pages",
    "delete_files_interval_ms",
    "ha_spin_us",
)


def numbers_of(config):
    """Return the names of a configuration's integer fields."""
    given = {"data_dir": "/d"} if config is StoreConfig else {}
    values = attrs.asdict(config(**given), recurse=False)
    return [name for name, value in values.items() if type(value) is int]


@pytest.mark.parametrize(
    ("config", "name"),
    [(kind, name) for kind in (StoreConfig, HAConfig, RemotingConfig) for name in numbers_of(kind)],
)
def test_numbers_below_their_minimum_are_refused(config, name):
    """Negative numbers are refused, and 0 where it has no meaning; the error names the field."""
    given = {"data_dir": "/d"} if config is StoreConfig else {}
    with pytest.raises(ConfigError, match=f"{name} must .* -1$"):
        config(**given, **{name: -1})
    if name in NOT_BELOW_0:
        config(**given, **{name: 0})
    else:
        with pytest.raises(ConfigError, match=f"{name} must be above 0, not 0"):
            config(**given, **{name: 0})


def test_files_are_4_kib_to_2_gib():
    """RocketMQ's positions are Java ints, and a file holds at least one page."""
    for size in (None, MAPPED_FILE_SIZE_MIN, MAPPED_FILE_SIZE_MAX):
        assert StoreConfig(data_dir="/d", mapped_file_size=size).mapped_file_size == size
    for size in (MAPPED_FILE_SIZE_MIN - 1, MAPPED_FILE_SIZE_MAX + 1):
        with pytest.raises(ConfigError, match=r"mapped_file_size must be .*, not "):
            StoreConfig(data_dir="/d", mapped_file_size=size)


def test_a_reserve_is_at_least_32_kib():
    """A smaller one would never be allocated, and the node never take over."""
    least = StoreConfig(data_dir="/d", reserve_size=RESERVE_SIZE_MIN)
    assert least.reserve_size == RESERVE_SIZE_MIN
    with pytest.raises(ConfigError, match=r"reserve_size must be 32KiB or more.*32767"):
        StoreConfig(data_dir="/d", reserve_size=RESERVE_SIZE_MIN - 1)


@pytest.mark.parametrize("ratios", list(itertools.product((60, 70, 80), repeat=3)))
def test_disk_levels_must_not_decrease(ratios):
    """First expired files are deleted, then any files, then puts are refused."""
    given = dict(zip(RATIOS, ratios, strict=True))
    if list(ratios) == sorted(ratios):
        assert attrs.asdict(StoreConfig(data_dir="/d", **given)).items() >= given.items()
    else:
        with pytest.raises(ConfigError, match="must not be above") as caught:
            StoreConfig(data_dir="/d", **given)
        assert "disk_max" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (RATIOS[0], 86, f"{RATIOS[0]} 86 must not be above {RATIOS[1]} 85"),
        (RATIOS[1], 74, f"{RATIOS[0]} 75 must not be above {RATIOS[1]} 74"),
        (RATIOS[1], 91, f"{RATIOS[1]} 91 must not be above {RATIOS[2]} 90"),
        (RATIOS[2], 84, f"{RATIOS[1]} 85 must not be above {RATIOS[2]} 84"),
    ],
)
def test_a_disk_level_is_checked_against_the_others_defaults(name, value, message):
    """A level beyond its neighbour is refused, and the error names both."""
    with pytest.raises(ConfigError, match=f"^{message}\n"):
        StoreConfig(data_dir="/d", **{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ha_transfer_batch_size_max": HA_FRAME_BODY_SIZE_MAX + 1},
            f"1 to {HA_FRAME_BODY_SIZE_MAX} bytes, which fit a slave's read buffer, not 4194293",
        ),
        (
            {"ha_transfer_batch_size": 1001, "ha_transfer_batch_size_max": 1000},
            "ha_transfer_batch_size must not exceed ha_transfer_batch_size_max",
        ),
        (
            {"ha_send_heartbeat_interval_ms": 20_000},
            "ha_send_heartbeat_interval_ms must be below ha_housekeeping_interval_ms",
        ),
    ],
)
def test_ha_settings_that_contradict_each_other_are_refused(changes, message):
    """A batch that fits no buffer, a first batch above the largest, a heartbeat too late."""
    with pytest.raises(ConfigError, match=message):
        HAConfig(**changes)


def test_ha_settings_at_their_limits_are_accepted():
    """A batch may fill the read buffer, and the first batch may be as large as the largest."""
    size = HA_FRAME_BODY_SIZE_MAX
    config = HAConfig(ha_transfer_batch_size=size, ha_transfer_batch_size_max=size)
    assert config.ha_transfer_batch_size == size
    assert HAConfig(ha_send_heartbeat_interval_ms=19_999).ha_send_heartbeat_interval_ms == 19_999


def test_a_configuration_must_fit_its_node():
    """A master's role is not SLAVE; write buffers are for masters with ASYNC_FLUSH."""
    pool = {"data_dir": "/d", "transient_store_pool_enable": True}
    with pytest.raises(ConfigError, match="not SLAVE") as caught:
        MasterConfig(store=StoreConfig(data_dir="/d"), role=BrokerRole.SLAVE)
    assert "hastore slave" in caught.value.hint
    with pytest.raises(ConfigError, match="needs ASYNC_FLUSH") as caught:
        StoreConfig(**pool, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert "ASYNC_FLUSH" in caught.value.hint
    with pytest.raises(ConfigError, match="is for masters"):
        SlaveConfig(store=StoreConfig(**pool), master=("127.0.0.1", 10_912))
    assert MasterConfig(store=StoreConfig(**pool)).store.transient_store_pool_enable


def node(kind, **fields):
    """Return the configuration of a node of either kind."""
    master = {"master": ("127.0.0.1", 10912)} if kind is SlaveConfig else {}
    return kind(store=StoreConfig(data_dir="/d"), **master, **fields)


@pytest.mark.parametrize("kind", [MasterConfig, SlaveConfig])
def test_a_node_has_its_id_in_a_replica_group(kind):
    """Neither says anything without the other."""
    assert node(kind).node_id is node(kind).replica_group is None
    both = node(kind, node_id=NODE_ID_MAX, replica_group="g.1_-A")
    assert (both.node_id, both.replica_group) == (NODE_ID_MAX, "g.1_-A")
    for fields in ({"node_id": 1}, {"replica_group": "g1"}):
        with pytest.raises(ConfigError, match="need each other") as caught:
            node(kind, **fields)
        assert caught.value.hint == "set both [node] id and [node] group, or neither"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node_id": 0}, "node_id must be 1 to 9223372036854775807, not 0"),
        ({"node_id": -1}, "node_id must be 1 to 9223372036854775807, not -1"),
        ({"node_id": NODE_ID_MAX + 1}, "node_id must be 1 to .*, not 9223372036854775808"),
        ({"replica_group": ""}, "replica_group must be 1 to 127 of .*, not ''"),
        ({"replica_group": "a/b"}, "replica_group must be .*, not 'a/b'"),
        ({"replica_group": "g" * 128}, "replica_group must be .*, not 'ggg"),
        ({"replica_group": "g1\n"}, r"replica_group must be .*, not 'g1\\n'"),
    ],
)
def test_an_illegal_id_or_replica_group_is_refused(fields, message):
    """An id is a positive i64 on the wire; a group's name is a part of paths and keys."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        node(MasterConfig, **{"node_id": 1, "replica_group": "g1", **fields})


def test_autoswitch_is_for_nodes_of_a_replica_group():
    """Only they have the id that the handshake carries."""
    ha = HAConfig(protocol=HAProtocol.AUTOSWITCH)
    assert node(SlaveConfig, ha=ha, node_id=2, replica_group="g1").ha.protocol is ha.protocol
    with pytest.raises(ConfigError, match="for nodes of a replica group") as caught:
        node(SlaveConfig, ha=ha)
    assert caught.value.hint == "set [node] id and [node] group, too"


def test_only_autoswitch_has_learners():
    """A classic slave always counts."""
    ha = HAConfig(protocol=HAProtocol.AUTOSWITCH)
    assert node(SlaveConfig, ha=ha, node_id=2, replica_group="g1", is_learner=True).is_learner
    with pytest.raises(ConfigError, match="only the autoswitch protocol has learners"):
        node(SlaveConfig, is_learner=True)


def group_master(ha=None, **fields):
    ha = HAConfig(protocol=HAProtocol.AUTOSWITCH, **(ha or {}))
    return node(MasterConfig, ha=ha, node_id=1, replica_group="g1", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_ids": (2, 3)}, "group_ids 2, 3 lacks this node: 1"),
        ({"group_ids": ()}, "group_ids must be numbers from 1"),
        ({"group_ids": (1, 0)}, "group_ids must be numbers from 1"),
        ({"group_ids": (1, 1)}, "group_ids names a node twice"),
        (
            {"group_ids": (1, 2), "ha": {"min_in_sync_replicas": 3}},
            "min_in_sync_replicas is 3, and the replica group has 2 nodes",
        ),
        ({"ha": {"in_sync_replicas": 0}}, 'in_sync_replicas must be "all" or a number above 0'),
        ({"ha": {"in_sync_replicas": "most"}}, 'in_sync_replicas must be "all" or a number'),
    ],
)
def test_a_group_that_cannot_work_is_refused(fields, message):
    """The ids must name this node once, and be enough for what puts wait for."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        group_master(**fields)


def test_a_master_of_a_replica_group():
    """All members by default; a number as RocketMQ has it."""
    assert group_master().ha.in_sync_replicas == "all"
    assert group_master({"in_sync_replicas": 2}, group_ids=(1, 2, 3)).ha.in_sync_replicas == 2


@pytest.mark.parametrize("trust", [None, ("10.0.0.7",), (("10.0.0.7", -1),), (("", 5),), ((7, 5),)])
def test_trust_is_pairs_of_an_address_and_an_offset(trust):
    """A program may set it, too."""
    with pytest.raises(ConfigError, match="trust must be pairs of an address and an offset"):
        HAConfig(trust=trust)


def _node_of_group(listen, ha_listen, etcd, advertised=None):
    port = 10911
    return node(
        GroupNodeConfig,
        node_id=1,
        replica_group="g1",
        listen=None if listen is None else (listen, port),
        ha_listen=(ha_listen, port + 1),
        coordinator=CoordinatorConfig(endpoints=etcd, advertised_host=advertised),
    )


HERE, NEAR_AND_FAR = ("http://127.0.0.1:2379",), ("http://localhost:2379", "http://10.0.0.9:2379")


@pytest.mark.parametrize(
    ("listen", "ha_listen", "etcd", "advertised", "message"),
    [
        ("10.0.0.7", "127.0.0.1", NEAR_AND_FAR, None, r"\[listen\] ha \(--ha-listen\) is 127"),
        ("127.0.0.2", "10.0.0.7", NEAR_AND_FAR, None, r"\[listen\] client \(--listen\) is 127"),
        ("10.0.0.7", "::1", NEAR_AND_FAR, "n1", r"\[listen\] ha \(--ha-listen\) is \[::1\]"),
        ("10.0.0.7", "::ffff:127.0.0.1", NEAR_AND_FAR, None, r"\[listen\] ha "),
        ("0.0.0.0", "0.0.0.0", NEAR_AND_FAR, "127.0.1.1", r"\[cluster\] advertise .* 127\.0\.1"),
        ("0.0.0.0", "0.0.0.0", NEAR_AND_FAR, "n1.localhost", r"\[cluster\] advertise "),
        ("0.0.0.0", "0.0.0.0", HERE, "0.0.0.0", r"\[cluster\] advertise .* every address"),
        ("0.0.0.0", "127.0.0.1", HERE, None, r"\[listen\] client \(--listen\) is every"),
    ],
)
def test_a_node_that_its_group_could_not_reach_is_refused(
    listen, ha_listen, etcd, advertised, message
):
    """By the setting's name: at a loopback address each other node would reach itself."""
    with pytest.raises(ConfigError, match=message) as caught:
        _node_of_group(listen, ha_listen, etcd, advertised)
    assert "--advertise HOST" in caught.value.hint


def test_a_group_on_one_machine_or_with_names_of_its_network_is_fine():
    """A port is not a name: only what the text itself says is known to be on loopback."""
    _node_of_group("127.0.0.1", "127.0.0.1", HERE)
    _node_of_group("127.0.0.1", "localhost", ("http://[::1]:2379",), "localhost")
    _node_of_group("n1", "10.0.0.7", NEAR_AND_FAR)
    _node_of_group(None, "0.0.0.0", NEAR_AND_FAR, "n1")
    _node_of_group("127.0.0.1", "127.0.0.1", ())
