"""Configuration as frozen values, with RocketMQ's defaults and names (PEP 8, unit last).

A field says all there is to say of a setting: default, key, kind, help, flag (``hastore.setting``).
``hastore_cli.settings`` reads files, environment and flags.  Fields stand in the order in which
help texts and docs list them.  Numbers are above 0, as their kind says; every other bound is here.
Sources of the defaults: RocketMQ 4.9.8 ``MessageStoreConfig`` and ``BrokerConfig``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.errors import ConfigError
from hastore.setting import (
    Kind,
    count,
    duration,
    setting,
    setting_metadata,
    settings_in,
    size,
    switch,
)
from hastore.status import BrokerRole, FlushDiskType, SlaveStart

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

DEFAULT_MAPPED_FILE_SIZE: Final = GIB
MAPPED_FILE_SIZE_MIN: Final = 4 * KIB
MAPPED_FILE_SIZE_MAX: Final = 2 * GIB - 4 * KIB  # RocketMQ keeps positions in a Java int
READ_BUFFER_SIZE: Final = 4 * MIB  # HAClient's READ_MAX_BUFFER_SIZE
HA_FRAME_BODY_SIZE_MAX: Final = READ_BUFFER_SIZE - 12
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


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

    data_dir: str = attrs.field(
        metadata=setting_metadata(
            "node.data",
            "Directory of the commit log; made where there is none.",
            kind=Kind.PATH,
            flag="--data",
        )
    )
    # Put.
    mapped_file_size: int | None = size(
        None,
        "store.file_size",
        "Size of one log file; as the files there are; a new slave's is its master's; else 1GiB.",
        flag="--mapped-file-size",
        validator=_file_size,
    )
    create_mapped_file_timeout_ms: int = duration(
        5_000, "store.create_timeout", "Wait for the next file."
    )
    os_page_cache_busy_timeout_ms: int = duration(
        1_000,
        "store.busy_timeout",
        "Puts are refused (OS_PAGE_CACHE_BUSY) once an append has waited this long.",
    )
    max_message_size: int = size(4 * MIB, "store.message_max", "Largest body of a message.")
    append_prop_crc: bool = switch(True, "store.prop_crc", "A checksum over the whole record.")
    # While the next file is allocated; a put beyond either is answered OS_PAGE_CACHE_BUSY.
    pending_put_max: int = count(10_000, "store.pending_puts_max", "Puts that await a file.")
    pending_put_size_max: int = size(32 * MIB, "store.pending_size_max", "Their bytes together.")
    warm_mapped_file_enable: bool = switch(
        False, "store.warm_up", "Touch and lock each page of the next file before it is needed."
    )
    flush_least_pages_when_warm_mapped_file: int = count(
        4_096, "store.warm_up_flush_pages", "Pages of the warm-up between two syncs (SYNC_FLUSH)."
    )
    # Flush.  A few dirty pages wait for more, but no longer than the thorough interval.
    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH,
        "store.flush",
        "Whether a put waits for the disk (SYNC_FLUSH) or a timer flushes behind it.",
        kind=Kind.FLUSH,
        flag="--flush",
    )
    sync_flush_timeout_ms: int = duration(5_000, "store.flush_timeout", "Wait for the disk.")
    flush_interval_ms: int = duration(500, "store.flush_interval", "The timer's period.")
    flush_commit_log_timed: bool = switch(
        True,
        "store.flush_timed",
        "false: an append wakes the flush instead of waiting for the timer.",
    )
    flush_least_pages: int = setting(
        4,
        "store.flush_least_pages",
        "The timer leaves a file alone that has fewer dirty pages of 4 KiB.",
        kind=Kind.COUNT_OR_ZERO,
    )
    flush_thorough_interval_ms: int = duration(
        10_000, "store.flush_thorough_interval", "This often it flushes all there is."
    )
    transient_store_pool_enable: bool = switch(
        False,
        "store.transient_pool",
        "Appends go to a buffer first and are written to the file in the background.",
    )
    transient_store_pool_size: int = count(5, "store.transient_pool_size", "Buffers of the pool.")
    commit_interval_ms: int = duration(200, "store.commit_interval", "From the buffer to the file.")
    commit_least_pages: int = setting(
        4,
        "store.commit_least_pages",
        "A buffer with fewer new pages waits.",
        kind=Kind.COUNT_OR_ZERO,
    )
    commit_thorough_interval_ms: int = duration(
        200, "store.commit_thorough_interval", "This often all of it is written."
    )
    # Dispatch.
    mapped_file_size_consume_queue: int = size(
        6_000_000, "store.queue_file_size", "Size of one consume queue file; 20 bytes a message."
    )
    flush_consume_queue_interval_ms: int = duration(
        1_000, "store.queue_flush_interval", "Flush period of the consume queues."
    )
    flush_consume_queue_least_pages: int = setting(
        2,
        "store.queue_flush_least_pages",
        "A consume queue with fewer dirty pages waits.",
        kind=Kind.COUNT_OR_ZERO,
    )
    flush_consume_queue_thorough_interval_ms: int = duration(
        60_000, "store.queue_flush_thorough_interval", "This often all consume queues are flushed."
    )
    message_index_enable: bool = switch(True, "store.index", "Keep an index of keys.")
    max_hash_slot_num: int = count(5_000_000, "store.index_slots", "Hash slots of one index file.")
    max_index_num: int = count(20_000_000, "store.index_entries", "Keys that one index file holds.")
    read_uncommitted: bool = switch(
        False,
        "store.read_uncommitted",
        "Consumers see what is appended, not only what is confirmed (as RocketMQ 4.9).",
    )
    message_delay_level: str = setting(
        DEFAULT_DELAY_LEVELS,
        "store.delay_levels",
        "The delays that a message's DELAY property chooses from, 1 the first.",
        kind=Kind.DELAY_LEVELS,
    )
    # Expiry.  Ratios are per cent of the file system.
    file_reserved_time_h: int = setting(
        72,
        "store.keep",
        "Log files that were last written longer ago than this are deleted.",
        kind=Kind.HOURS,
    )
    delete_when: str = setting(
        "04",
        "store.delete_when",
        "Hours of the local day at which they are, such as 04 or 04;16.",
        kind=Kind.CLOCK_HOURS,
    )
    delete_file_batch_max: int = count(10, "store.delete_batch", "Files deleted in one round.")
    delete_files_interval_ms: int = setting(
        100, "store.delete_interval", "Pause between two of them.", kind=Kind.DURATION_OR_ZERO
    )
    clean_resource_interval_ms: int = duration(
        10_000, "store.clean_interval", "Time between rounds."
    )
    clean_file_forcibly_enable: bool = switch(
        True, "store.clean_forcibly", "Past disk_forced, delete files that are not yet expired."
    )
    delete_only_archived: str | None = setting(
        None,
        "store.delete_only_archived",
        "Keep a file until this archive (hastore pipeline run archive) has it, whatever else.",
        kind=Kind.PATH,
    )
    disk_max_used_space_ratio: int = setting(
        75,
        "store.disk_max",
        "A file system fuller than this: expired files go now, whatever the hour.",
        kind=Kind.PERCENT,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "store.disk_forced",
        "Fuller than this: the oldest files go, expired or not.",
        kind=Kind.PERCENT,
    )
    disk_space_warning_level_ratio: int = setting(
        90,
        "store.disk_full",
        "Fuller than this: puts are refused until it is below again.",
        kind=Kind.PERCENT,
    )
    destroy_mapped_file_interval_forcibly_ms: int = duration(
        120_000,
        "store.delete_held_after",
        "A reader or slave holds an expired file back no longer than this.",
    )

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
                levels = (
                    (s.key, f.default) for s, f in settings_in(StoreConfig) if f.name in names
                )
                shown = ", ".join(f"{key} ({default} %)" for key, default in levels)
                raise ConfigError(msg, hint=f"from low to high: {shown}")


@attrs.frozen(kw_only=True)
class HAConfig:
    """The classic HA protocol, both sides (milliseconds and bytes)."""

    slave_timeout_ms: int = duration(
        3_000,
        "ha.slave_timeout",
        "How long a put waits for a slave before it is answered FLUSH_SLAVE_TIMEOUT.",
        flag="--slave-timeout",
        node="master",
    )
    ha_slave_fallbehind_max: int = size(
        256 * MIB,
        "ha.max_gap",
        "A slave further behind does not count as available.",
        flag="--max-gap",
        node="master",
    )
    ha_transfer_batch_size: int = size(
        32 * KIB, "ha.batch", "Smallest batch of a stream.", node="master"
    )
    ha_transfer_batch_size_max: int = size(
        MIB, "ha.batch_max", "Largest batch, for a laggard.", node="master"
    )
    # 0 is what a new RocketMQ slave reports: it gets all there is, or RocketMQ's last file.
    ha_new_slave_from: SlaveStart = setting(
        SlaveStart.EARLIEST,
        "ha.new_slave_from",
        "What a report of 0 is given.",
        kind=Kind.START,
        node="master",
    )
    ha_connections_max: int = count(
        64, "ha.connections_max", "Slave connections at a time.", node="master"
    )
    ha_connections_per_address_max: int = count(
        32, "ha.connections_per_address_max", "Those of one address.", node="master"
    )
    # Slaves report as soon as they are connected (RocketMQ's within 5 s).
    ha_first_report_timeout_ms: int = duration(
        10_000,
        "ha.first_report_timeout",
        "Who connects and does not say where it stands is closed after this time.",
        node="master",
    )
    ha_send_heartbeat_interval_ms: int = duration(5_000, "ha.heartbeat", "Heartbeats.")
    ha_housekeeping_interval_ms: int = duration(
        20_000, "ha.housekeeping", "A silent link is closed after this time."
    )
    ha_connect_timeout_ms: int = duration(
        5_000, "ha.connect_timeout", "A connect is given up after this time.", node="slave"
    )
    ha_reconnect_backoff_min_ms: int = duration(
        100, "ha.reconnect_min", "First wait before a reconnect.", node="slave"
    )
    ha_reconnect_backoff_max_ms: int = duration(
        5_000, "ha.reconnect_max", "Longest wait before a reconnect.", node="slave"
    )

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

    frame_size_max: int = size(16 * MIB, "remoting.frame_max", "Largest request.")
    connections_max: int = count(1_000, "remoting.connections_max", "Client connections.")
    connections_per_address_max: int = count(
        500, "remoting.connections_per_address_max", "Those of one address."
    )
    # Those that wait for an answer; beyond it the connection is not read.
    in_flight_max: int = count(4_096, "remoting.in_flight_max", "Requests of one connection.")
    buffered_size_max: int = size(
        256 * MIB,
        "remoting.buffered_max",
        "Bytes of unfinished requests of all connections; beyond it the largest of the address that"
        " holds most is closed.",
    )
    # Idle: no whole request came, and no reply was taken.
    idle_timeout_ms: int = duration(120_000, "remoting.idle_timeout", "Idle clients are closed.")
    header_timeout_ms: int = duration(
        10_000,
        "remoting.header_timeout",
        "A request's header must be whole so soon after its first byte.",
    )
    output_size_max: int = size(
        MIB, "remoting.output_max", "Answers that a client has not taken; beyond it it is not read."
    )
    output_size_total_max: int = size(
        256 * MIB,
        "remoting.output_total_max",
        "Those of all clients; beyond it who takes nothing for 5 s, or less than 1 MiB a second, is"
        " closed.",
    )
    default_topic_queue_nums: int = count(8, "remoting.queues", "Queues of a new topic.")
    auto_create_topic_enable: bool = switch(
        True, "remoting.auto_create_topic", "The first message of an unknown topic makes it."
    )
    pull_count_max: int = count(1_024, "remoting.pull_count_max", "Messages of one pull.")
    pull_size_max: int = size(4 * MIB, "remoting.pull_size_max", "Bytes of one pull.")
    long_polling_enable: bool = switch(
        True, "remoting.long_polling", "A pull that finds nothing waits for messages."
    )
    suspend_timeout_max_ms: int = duration(60_000, "remoting.suspend_max", "It waits at most this.")
    consumer_timeout_ms: int = duration(
        120_000,
        "remoting.consumer_timeout",
        "A consumer without a heartbeat for this long has gone.",
    )
    flush_consumer_offset_interval_ms: int = duration(
        5_000, "remoting.offset_interval", "How often consumers' offsets are written down."
    )


@attrs.frozen(kw_only=True)
class NodeConfig:
    """What masters and slaves have in common.

    ``metrics_listen`` is the port of metrics and health over HTTP (None: none).
    """

    store: StoreConfig
    name: str = setting(
        "hastore-a",
        "node.name",
        "Broker name in routes and in status.",
        kind=Kind.TEXT,
        flag="--name",
    )
    cluster: str = setting(
        "DefaultCluster",
        "node.cluster",
        "Cluster name in routes and in status.",
        kind=Kind.TEXT,
        flag="--cluster",
    )
    metrics_listen: tuple[str, int] | None = setting(
        None,
        "metrics.listen",
        "Port for metrics and health over HTTP; a port alone listens on 127.0.0.1.",
        kind=Kind.LOCAL_ADDRESS,
        flag="--metrics",
    )
    ha: HAConfig = attrs.field(factory=HAConfig)
    remoting: RemotingConfig = attrs.field(factory=RemotingConfig)


@attrs.frozen(kw_only=True)
class MasterConfig(NodeConfig):
    """A master: ``role`` is ASYNC_MASTER or SYNC_MASTER.

    ``listen`` is the client port, ``ha_listen`` the HA port (port 0: any free one; None for
    ``listen``: no client port at all, for embedding).
    """

    role: BrokerRole = setting(
        BrokerRole.SYNC_MASTER,
        "node.role",
        "Whether producers wait for a slave (SYNC_MASTER) or not.",
        kind=Kind.ROLE,
        flag="--broker-role",
    )
    listen: tuple[str, int] | None = setting(
        ("127.0.0.1", 10911),
        "listen.client",
        "Port for producers, consumers and `hastore status`; port 0 is any free one.",
        kind=Kind.ADDRESS,
        flag="--listen",
    )
    ha_listen: tuple[str, int] = setting(
        ("127.0.0.1", 10912),
        "listen.ha",
        "Port for slaves; port 0 is any free one.",
        kind=Kind.ADDRESS,
        flag="--ha-listen",
    )

    def __attrs_post_init__(self) -> None:
        """A slave is not a master."""
        if self.role is BrokerRole.SLAVE:
            msg = "a master's role is ASYNC_MASTER or SYNC_MASTER, not SLAVE"
            raise ConfigError(msg, hint="to run a slave: hastore slave --master HOST:HA_PORT")


@attrs.frozen(kw_only=True)
class SlaveConfig(NodeConfig):
    """A slave of ``master`` (the master's HA address).

    ``listen`` is the port that answers ``hastore status`` (port 0: any free one; None: none).
    """

    master: tuple[str, int] = attrs.field(
        metadata=setting_metadata(
            "ha.master", "The master's HA port.", kind=Kind.HA_ADDRESS, flag="--master"
        )
    )
    slave_from: SlaveStart = setting(
        SlaveStart.EARLIEST,
        "ha.from",
        "Where a slave without a log begins.",
        kind=Kind.START,
        flag="--from",
    )
    listen: tuple[str, int] | None = attrs.field(
        default=("127.0.0.1", 0), metadata=attrs.fields(MasterConfig).listen.metadata
    )

    def __attrs_post_init__(self) -> None:
        """A slave has no write buffers: it acknowledges what is in its files."""
        if self.store.transient_store_pool_enable:
            msg = "transient_store_pool_enable is for masters: a slave reports what it has stored"
            raise ConfigError(msg, hint="leave it out of this slave's configuration")


PARTS: Final = {"store": StoreConfig, "ha": HAConfig, "remoting": RemotingConfig}


def parts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Build ``store``, ``ha`` and ``remoting`` from values by field name; no two parts share one.

    Shape: the keyword arguments of a MasterConfig or SlaveConfig that are its parts.
    """
    return {
        part: config(**{f.name: values[f.name] for f in attrs.fields(config) if f.name in values})
        for part, config in PARTS.items()
    }
