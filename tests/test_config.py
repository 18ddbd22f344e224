"""Configurations refuse values out of range, and values that contradict each other."""

import itertools

import attrs
import pytest

from hastore.config import (
    HA_FRAME_BODY_SIZE_MAX,
    MAPPED_FILE_SIZE_MAX,
    MAPPED_FILE_SIZE_MIN,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
)
from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType

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
        with pytest.raises(ConfigError, match=f"mapped_file_size must be .*, not {size} bytes"):
            StoreConfig(data_dir="/d", mapped_file_size=size)


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
            f"would never fit a slave's read buffer; at most {HA_FRAME_BODY_SIZE_MAX}",
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
