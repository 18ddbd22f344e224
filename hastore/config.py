"""Configuration as frozen values, with RocketMQ's defaults and names (PEP 8, unit last).

Values only: ``hastore_cli.settings.config_file`` reads files, environment and flags.  Every bound
that a reader might look for is here.  Sources of the defaults: RocketMQ 4.9.8
``MessageStoreConfig`` and ``BrokerConfig``.
"""

from __future__ import annotations

import itertools
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
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def _positive(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        msg = f"{attribute.name} must be above 0, not {value}"
        raise ConfigError(msg)


def _not_negative(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        msg = f"{attribute.name} must not be negative, but is {value}"
        raise ConfigError(msg)


def _file_size(_instance: object, _attribute: object, value: int | None) -> None:
    if value is not None and not MAPPED_FILE_SIZE_MIN <= value <= MAPPED_FILE_SIZE_MAX:
        msg = f"mapped_file_size must be 4 KiB to 2 GiB - 4 KiB, not {value} bytes"
        raise ConfigError(msg)


@attrs.frozen(kw_only=True)
class StoreConfig:
    """The store of one node.

    ``mapped_file_size`` None means: as the files that are there; of a new slave its master's, where
    that can be asked; or 1 GiB.
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
    # ASYNC_FLUSH: a pass syncs a file with at least this many whole dirty pages of 4 KiB, and all
    # of it every thorough interval.  Not timed: an append wakes the service.
    flush_least_pages: int = attrs.field(default=4, validator=_not_negative)
    flush_thorough_interval_ms: int = attrs.field(default=10_000, validator=_positive)
    flush_commit_log_timed: bool = True
    # TransientStorePool: appends go to a buffer, are committed to the file, then flushed.
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = attrs.field(default=5, validator=_positive)
    commit_interval_ms: int = attrs.field(default=200, validator=_positive)
    commit_least_pages: int = attrs.field(default=4, validator=_not_negative)
    commit_thorough_interval_ms: int = attrs.field(default=200, validator=_positive)
    # Consume queues and index.
    mapped_file_size_consume_queue: int = attrs.field(default=6_000_000, validator=_positive)
    flush_consume_queue_interval_ms: int = attrs.field(default=1_000, validator=_positive)
    flush_consume_queue_least_pages: int = attrs.field(default=2, validator=_not_negative)
    flush_consume_queue_thorough_interval_ms: int = attrs.field(default=60_000, validator=_positive)
    message_index_enable: bool = True
    max_hash_slot_num: int = attrs.field(default=5_000_000, validator=_positive)
    max_index_num: int = attrs.field(default=20_000_000, validator=_positive)
    # Consumers see what is appended, not only what is confirmed (RocketMQ 4.9's visibility).
    read_uncommitted: bool = False
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    # Expiry.  Ratios are per cent of the file system.
    file_reserved_time_h: int = attrs.field(default=72, validator=_positive)
    delete_when: str = "04"  # hours of the local day, separated by ;
    delete_file_batch_max: int = attrs.field(default=10, validator=_positive)
    delete_files_interval_ms: int = attrs.field(default=100, validator=_not_negative)
    clean_resource_interval_ms: int = attrs.field(default=10_000, validator=_positive)
    clean_file_forcibly_enable: bool = True
    # An archive's directory: what is not in it stays, at every level of the disk.
    delete_only_archived: str | None = None
    disk_max_used_space_ratio: int = attrs.field(default=75, validator=_positive)
    disk_space_clean_forcibly_ratio: int = attrs.field(default=85, validator=_positive)
    disk_space_warning_level_ratio: int = attrs.field(default=90, validator=_positive)
    destroy_mapped_file_interval_forcibly_ms: int = attrs.field(
        default=120_000, validator=_positive
    )
    # Warm-up of the next file: each page is touched before it is needed, and locked where allowed.
    warm_mapped_file_enable: bool = False
    flush_least_pages_when_warm_mapped_file: int = attrs.field(default=4_096, validator=_positive)

    def __attrs_post_init__(self) -> None:
        """Check what no single field can."""
        if self.transient_store_pool_enable and self.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            msg = (
                "transient_store_pool_enable needs ASYNC_FLUSH: what waits in a write buffer is"
                " neither on disk nor in the file"
            )
            raise ConfigError(msg, hint="give up the pool, or set flush_disk_type to ASYNC_FLUSH")
        self._check_disk_ratios()

    def _check_disk_ratios(self) -> None:
        """Each level of a disk is reached before the next; two may be the same."""
        names = (
            "disk_max_used_space_ratio",
            "disk_space_clean_forcibly_ratio",
            "disk_space_warning_level_ratio",
        )
        for name, next_name in itertools.pairwise(names):
            ratio, next_ratio = getattr(self, name), getattr(self, next_name)
            if ratio > next_ratio:
                msg = f"{name} {ratio} must not be above {next_name} {next_ratio}"
                hint = "from low to high: disk_max (75 %), disk_forced (85 %), disk_full (90 %)"
                raise ConfigError(msg, hint=hint)


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
    ha_connections_per_address_max: int = attrs.field(default=32, validator=_positive)
    # Slaves report where they stand as soon as they are connected (RocketMQ's within 5 s).
    ha_first_report_timeout_ms: int = attrs.field(default=10_000, validator=_positive)
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
    connections_per_address_max: int = attrs.field(default=500, validator=_positive)
    # Requests of one connection that wait for an answer; beyond it the connection is not read.
    in_flight_max: int = attrs.field(default=4_096, validator=_positive)
    # Bytes of incomplete requests of all connections together; beyond it the largest of the peer
    # that holds most is closed.
    buffered_size_max: int = attrs.field(default=256 * MIB, validator=_positive)
    # Without a whole request or a reply taken for this long, a connection is closed.
    idle_timeout_ms: int = attrs.field(default=120_000, validator=_positive)
    # A request's header must be whole so soon after its first byte.
    header_timeout_ms: int = attrs.field(default=10_000, validator=_positive)
    # Answers that one client has not taken (beyond it it is not read), and all clients together
    # (beyond it who has taken nothing for 5 s is closed, or has not taken a MiB a second).
    output_size_max: int = attrs.field(default=MIB, validator=_positive)
    output_size_total_max: int = attrs.field(default=256 * MIB, validator=_positive)
    default_topic_queue_nums: int = attrs.field(default=8, validator=_positive)
    auto_create_topic_enable: bool = True
    # Pulls: what one reply carries at most, and how long one without messages may wait.
    pull_count_max: int = attrs.field(default=1_024, validator=_positive)
    pull_size_max: int = attrs.field(default=4 * MIB, validator=_positive)
    long_polling_enable: bool = True
    suspend_timeout_max_ms: int = attrs.field(default=60_000, validator=_positive)
    # Consumers: gone without a heartbeat for this long; offsets are written this often.
    consumer_timeout_ms: int = attrs.field(default=120_000, validator=_positive)
    flush_consumer_offset_interval_ms: int = attrs.field(default=5_000, validator=_positive)


@attrs.frozen(kw_only=True)
class MasterConfig:
    """A master: ``role`` is ASYNC_MASTER or SYNC_MASTER.

    ``listen`` is the client port, ``ha_listen`` the HA port (port 0: any free one; None for
    ``listen``: no client port at all, for embedding), ``metrics_listen`` that of metrics and health
    over HTTP (None: none).
    """

    store: StoreConfig
    role: BrokerRole = BrokerRole.SYNC_MASTER
    name: str = "hastore-a"
    cluster: str = "DefaultCluster"
    listen: tuple[str, int] | None = ("127.0.0.1", 10911)
    ha_listen: tuple[str, int] = ("127.0.0.1", 10912)
    metrics_listen: tuple[str, int] | None = None
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

    ``listen`` is the port that answers ``hastore status`` (port 0: any free one; None: none),
    ``metrics_listen`` that of metrics and health over HTTP.
    """

    store: StoreConfig
    master: tuple[str, int]
    name: str = "hastore-a"
    cluster: str = "DefaultCluster"
    slave_from: SlaveStart = SlaveStart.EARLIEST
    listen: tuple[str, int] | None = ("127.0.0.1", 0)
    metrics_listen: tuple[str, int] | None = None
    ha: HAConfig = attrs.field(factory=HAConfig)
    remoting: RemotingConfig = attrs.field(factory=RemotingConfig)

    def __attrs_post_init__(self) -> None:
        """A slave has no write buffers: it acknowledges what is in its files."""
        if self.store.transient_store_pool_enable:
            msg = "transient_store_pool_enable is for masters: a slave reports what it has stored"
            raise ConfigError(msg, hint="leave it out of this slave's configuration")
