"""Configuration as frozen values, with RocketMQ's defaults and names (PEP 8, unit last).

Values only: reading files, environment and flags is ``cli.config_file``'s.  Every bound that a
reader might look for is here.  Sources of the defaults: RocketMQ 4.9.8 ``MessageStoreConfig`` and
``BrokerConfig``.
"""

from __future__ import annotations

from typing import Final

import attrs

from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType, SlaveStart

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

DEFAULT_MAPPED_FILE_SIZE: Final = GIB
MAPPED_FILE_SIZE_MIN: Final = 4 * KIB
MAPPED_FILE_SIZE_MAX: Final = 2 * GIB - 4 * KIB  # RocketMQ keeps positions in a Java int
READ_BUFFER_SIZE: Final = 4 * MIB  # HAClient's READ_MAX_BUFFER_SIZE
HA_FRAME_BODY_SIZE_MAX: Final = READ_BUFFER_SIZE - 12


def _positive(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        msg = f"{attribute.name} must be above 0, not {value}"
        raise ConfigError(msg)


def _file_size(_instance: object, _attribute: object, value: int | None) -> None:
    if value is not None and not MAPPED_FILE_SIZE_MIN <= value <= MAPPED_FILE_SIZE_MAX:
        msg = f"mapped_file_size must be 4 KiB to 2 GiB - 4 KiB, not {value} bytes"
        raise ConfigError(msg)


@attrs.frozen(kw_only=True)
class StoreConfig:
    """The store of one node.

    ``mapped_file_size`` None means: as the files that are there, or 1 GiB for a new directory.
    """

    data_dir: str
    mapped_file_size: int | None = attrs.field(default=None, validator=_file_size)
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_ms: int = attrs.field(default=500, validator=_positive)
    sync_flush_timeout_ms: int = attrs.field(default=5_000, validator=_positive)
    create_mapped_file_timeout_ms: int = attrs.field(default=5_000, validator=_positive)
    os_page_cache_busy_timeout_ms: int = attrs.field(default=1_000, validator=_positive)
    max_message_size: int = attrs.field(default=4 * MIB, validator=_positive)
    append_prop_crc: bool = True
    # Puts that wait for the next file to be allocated; more are answered OS_PAGE_CACHE_BUSY.
    pending_put_max: int = attrs.field(default=10_000, validator=_positive)
    pending_put_size_max: int = attrs.field(default=32 * MIB, validator=_positive)


@attrs.frozen(kw_only=True)
class HAConfig:
    """The classic HA protocol, both sides (milliseconds and bytes)."""

    ha_send_heartbeat_interval_ms: int = attrs.field(default=5_000, validator=_positive)
    ha_housekeeping_interval_ms: int = attrs.field(default=20_000, validator=_positive)
    ha_connect_timeout_ms: int = attrs.field(default=5_000, validator=_positive)
    ha_transfer_batch_size: int = attrs.field(default=32 * KIB, validator=_positive)
    ha_transfer_batch_size_max: int = attrs.field(default=MIB, validator=_positive)
    ha_slave_fallbehind_max: int = attrs.field(default=256 * MIB, validator=_positive)
    slave_timeout_ms: int = attrs.field(default=3_000, validator=_positive)
    ha_connections_max: int = attrs.field(default=64, validator=_positive)
    ha_reconnect_backoff_min_ms: int = attrs.field(default=100, validator=_positive)
    ha_reconnect_backoff_max_ms: int = attrs.field(default=5_000, validator=_positive)
    # What a report of 0 (a new RocketMQ slave) is given: all there is, or RocketMQ's last file.
    ha_new_slave_from: SlaveStart = SlaveStart.EARLIEST

    def __attrs_post_init__(self) -> None:
        """Check what no single field can."""
        if self.ha_transfer_batch_size_max > HA_FRAME_BODY_SIZE_MAX:
            msg = (
                f"ha_transfer_batch_size_max {self.ha_transfer_batch_size_max} would never fit"
                f" a slave's read buffer; at most {HA_FRAME_BODY_SIZE_MAX}"
            )
            raise ConfigError(msg)
        if self.ha_transfer_batch_size > self.ha_transfer_batch_size_max:
            msg = "ha_transfer_batch_size must not exceed ha_transfer_batch_size_max"
            raise ConfigError(msg)
        if self.ha_send_heartbeat_interval_ms >= self.ha_housekeeping_interval_ms:
            msg = "ha_send_heartbeat_interval_ms must be below ha_housekeeping_interval_ms"
            raise ConfigError(msg)


@attrs.frozen(kw_only=True)
class RemotingConfig:
    """The client port (RocketMQ remoting)."""

    frame_size_max: int = attrs.field(default=16 * MIB, validator=_positive)
    connections_max: int = attrs.field(default=1_000, validator=_positive)
    # Requests of one connection that wait for an answer; beyond it the connection is not read.
    in_flight_max: int = attrs.field(default=4_096, validator=_positive)
    # Bytes of incomplete requests of all connections together; who grows beyond it is closed.
    buffered_size_max: int = attrs.field(default=256 * MIB, validator=_positive)
    # Without a whole request or a reply taken for this long, a connection is closed.
    idle_timeout_ms: int = attrs.field(default=120_000, validator=_positive)
    default_topic_queue_nums: int = attrs.field(default=8, validator=_positive)


@attrs.frozen(kw_only=True)
class MasterConfig:
    """A master: ``role`` is ASYNC_MASTER or SYNC_MASTER.

    ``listen`` is the client port, ``ha_listen`` the HA port (port 0: any free one; None for
    ``listen``: no client port at all, for embedding).
    """

    store: StoreConfig
    role: BrokerRole = BrokerRole.SYNC_MASTER
    name: str = "hastore-a"
    cluster: str = "DefaultCluster"
    listen: tuple[str, int] | None = ("127.0.0.1", 10911)
    ha_listen: tuple[str, int] = ("127.0.0.1", 10912)
    ha: HAConfig = attrs.field(factory=HAConfig)
    remoting: RemotingConfig = attrs.field(factory=RemotingConfig)

    def __attrs_post_init__(self) -> None:
        """A slave is not a master."""
        if self.role is BrokerRole.SLAVE:
            msg = "a master's role is ASYNC_MASTER or SYNC_MASTER, not SLAVE"
            raise ConfigError(msg, hint="to run a slave: hastore slave --master HOST:HA_PORT")


@attrs.frozen(kw_only=True)
class SlaveConfig:
    """A slave of ``master`` (the master's HA address).

    ``listen`` is the port that answers ``hastore status`` (port 0: any free one; None: none).
    """

    store: StoreConfig
    master: tuple[str, int]
    name: str = "hastore-a"
    cluster: str = "DefaultCluster"
    slave_from: SlaveStart = SlaveStart.EARLIEST
    listen: tuple[str, int] | None = ("127.0.0.1", 0)
    ha: HAConfig = attrs.field(factory=HAConfig)
    remoting: RemotingConfig = attrs.field(factory=RemotingConfig)
