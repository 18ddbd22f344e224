"""Configuration as frozen values, with RocketMQ's defaults and names (PEP 8, unit last).

A field declares everything about a setting: default, key, kind, help, flag (``hastore.setting``).
``hastore_cli.settings`` reads files, environment and flags.  Help texts and docs list the fields in
this order.  A field's kind says that its number is above 0; all other bounds are here.  Source of
the defaults: RocketMQ 4.9.8 ``MessageStoreConfig`` and ``BrokerConfig``.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import attrs

from hastore.errors import ConfigError, SettingsError
from hastore.quantities import (
    format_address,
    format_exact_duration,
    format_exact_size,
    is_loopback,
    read_digits,
)
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
from hastore.status import (
    BrokerRole,
    ClientCertificates,
    FlushDiskType,
    HAProtocol,
    OwnSignatures,
    SlaveStart,
    TlsMode,
    TlsVersion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

DEFAULT_MAPPED_FILE_SIZE: Final = GIB
MAPPED_FILE_SIZE_MIN: Final = 4 * KIB
MAPPED_FILE_SIZE_MAX: Final = 2 * GIB - 4 * KIB  # RocketMQ's positions in a file are Java ints
RESERVE_SIZE_MIN: Final = 32 * KIB  # of a group's node; a smaller one has no room for a change
READ_BUFFER_SIZE: Final = 4 * MIB  # HAClient's READ_MAX_BUFFER_SIZE
HA_FRAME_BODY_SIZE_MAX: Final = READ_BUFFER_SIZE - 12
HA_SPIN_US_MAX: Final = 100
NO_MASTER: Final = ("", 0)  # of a slave in a replica group that waits for its role
NODE_ID_MAX: Final = (1 << 63) - 1
ANY_NAME: Final = "*"  # in tls_allowed_names: every certificate that the CA has signed
REPLICA_GROUP: Final = re.compile(r"[a-zA-Z0-9._-]{1,127}")
_PREFIX: Final = re.compile(r"(/[a-zA-Z0-9._-]+)+")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not listened on
TTL_MS_MIN: Final = 3_000
PRIORITY_MAX: Final = 1_000
InSyncReplicas = Literal["all"] | int  # every member, or so many nodes with the master
# For TLS 1.2: authenticated encryption and fresh keys only, as all ciphers of TLS 1.3.
DEFAULT_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def _file_size(_instance: object, _attribute: object, value: int | None) -> None:
    if value is not None and not MAPPED_FILE_SIZE_MIN <= value <= MAPPED_FILE_SIZE_MAX:
        msg = f"{{0}} must be 4 KiB to 2 GiB - 4 KiB, not {format_exact_size(value)}"
        raise SettingsError(msg, "mapped_file_size")


@attrs.frozen(kw_only=True)
class StoreConfig:
    """The store of one node.

    ``mapped_file_size`` None means the size of the existing files; for a new slave its master's, if
    the master answers; otherwise 1 GiB.
    """

    data_dir: str = attrs.field(
        metadata=setting_metadata(
            "node.data",
            "Directory of the commit log; created if missing.",
            kind=Kind.PATH,
            flag="--data",
        )
    )
    # Put.
    mapped_file_size: int | None = size(
        None,
        "store.mapped_file_size",
        "Size of one log file. Default: that of the existing files, for a new slave its"
        " master's, else 1GiB.",
        flag="--mapped-file-size",
        old_key="file_size",
        validator=_file_size,
    )
    create_mapped_file_timeout_ms: int = duration(
        5_000, "store.create_timeout", "How long a put waits for the next file."
    )
    os_page_cache_busy_timeout_ms: int = duration(
        1_000,
        "store.busy_timeout",
        "Puts are refused (OS_PAGE_CACHE_BUSY) once an append has waited this long.",
    )
    max_message_size: int = size(4 * MIB, "store.message_max", "Largest message body.")
    append_prop_crc: bool = switch(
        True, "store.prop_crc", "Write a checksum over the whole record."
    )
    # While the next file is allocated; a put above either limit is answered OS_PAGE_CACHE_BUSY.
    pending_put_max: int = count(
        10_000, "store.pending_puts_max", "Puts that wait for the next file."
    )
    pending_put_size_max: int = size(
        32 * MIB, "store.pending_size_max", "Bytes of the puts that wait for the next file."
    )
    warm_mapped_file_enable: bool = switch(
        False, "store.warm_up", "Touch and lock each page of the next file before it is needed."
    )
    flush_least_pages_when_warm_mapped_file: int = count(
        4_096, "store.warm_up_flush_pages", "Pages of the warm-up between two syncs (SYNC_FLUSH)."
    )
    # Flush.  Few dirty pages wait for more, at most for the thorough interval.
    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH,
        "store.flush",
        "Whether a put waits for the disk (SYNC_FLUSH) or a timer flushes later.",
        kind=Kind.FLUSH,
        flag="--flush",
    )
    sync_flush_timeout_ms: int = duration(
        5_000, "store.flush_timeout", "How long a put waits for the disk."
    )
    flush_interval_ms: int = duration(500, "store.flush_interval", "Period of the flush timer.")
    flush_commit_log_timed: bool = switch(
        True,
        "store.flush_timed",
        "false: an append wakes the flush instead of waiting for the timer.",
    )
    flush_least_pages: int = setting(
        4,
        "store.flush_least_pages",
        "The timer skips a file with fewer dirty pages of 4 KiB.",
        kind=Kind.COUNT_OR_ZERO,
    )
    flush_thorough_interval_ms: int = duration(
        10_000, "store.flush_thorough_interval", "Period of flushes of all dirty pages."
    )
    transient_store_pool_enable: bool = switch(
        False,
        "store.transient_pool",
        "Append to a buffer first, and write it to the file in the background.",
    )
    transient_store_pool_size: int = count(5, "store.transient_pool_size", "Buffers of the pool.")
    commit_interval_ms: int = duration(
        200, "store.commit_interval", "Period of writes from the buffer to the file."
    )
    commit_least_pages: int = setting(
        4,
        "store.commit_least_pages",
        "The timer skips a buffer with fewer new pages.",
        kind=Kind.COUNT_OR_ZERO,
    )
    commit_thorough_interval_ms: int = duration(
        200, "store.commit_thorough_interval", "Period of writes of all new pages."
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
        "The timer skips a consume queue with fewer dirty pages.",
        kind=Kind.COUNT_OR_ZERO,
    )
    flush_consume_queue_thorough_interval_ms: int = duration(
        60_000,
        "store.queue_flush_thorough_interval",
        "Period of consume queue flushes of all dirty pages.",
    )
    message_index_enable: bool = switch(True, "store.index", "Keep an index of keys.")
    max_hash_slot_num: int = count(5_000_000, "store.index_slots", "Hash slots of one index file.")
    max_index_num: int = count(20_000_000, "store.index_entries", "Keys of one index file.")
    read_uncommitted: bool = switch(
        False,
        "store.read_uncommitted",
        "Consumers receive appended messages, not only confirmed ones (as in RocketMQ 4.9).",
    )
    message_delay_level: str = setting(
        DEFAULT_DELAY_LEVELS,
        "store.delay_levels",
        "The delays that a message's DELAY property selects, counted from 1.",
        kind=Kind.DELAY_LEVELS,
    )
    # Expiry.  Ratios are per cent of the file system.
    file_reserved_time_h: int = setting(
        72,
        "store.keep",
        "Log files are deleted this long after their last write.",
        kind=Kind.HOURS,
    )
    delete_when: str = setting(
        "04",
        "store.delete_when",
        "Hours of the local day at which expired files are deleted, such as 04 or 04;16.",
        kind=Kind.CLOCK_HOURS,
    )
    delete_file_batch_max: int = count(10, "store.delete_batch", "Files deleted in one round.")
    delete_files_interval_ms: int = setting(
        100,
        "store.delete_interval",
        "Pause between two deletions of a round.",
        kind=Kind.DURATION_OR_ZERO,
    )
    clean_resource_interval_ms: int = duration(
        10_000, "store.clean_interval", "Time between rounds of deletion."
    )
    clean_file_forcibly_enable: bool = switch(
        True, "store.clean_forcibly", "Above disk_forced, also delete files that have not expired."
    )
    delete_only_archived: str | None = setting(
        None,
        "store.delete_only_archived",
        "Never delete a file that is not in this archive (hastore pipeline run archive).",
        kind=Kind.PATH,
    )
    disk_max_used_space_ratio: int = setting(
        75,
        "store.disk_max",
        "File system usage above which expired files are deleted at any hour.",
        kind=Kind.PERCENT,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "store.disk_forced",
        "Usage above which the oldest files are deleted, expired or not.",
        kind=Kind.PERCENT,
    )
    disk_space_warning_level_ratio: int = setting(
        90,
        "store.disk_full",
        "Usage above which puts are refused.",
        kind=Kind.PERCENT,
    )
    reserve_size: int = size(
        2 * MIB,
        "store.reserve",
        "Room that a node of a replica group keeps, so that it can change its role on a full disk.",
    )
    destroy_mapped_file_interval_forcibly_ms: int = duration(
        120_000,
        "store.delete_held_after",
        "How long readers and slaves can keep an expired file from being deleted.",
    )

    def __attrs_post_init__(self) -> None:
        """Check the bounds between fields."""
        if self.transient_store_pool_enable and self.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            raise SettingsError(
                "{0} needs ASYNC_FLUSH: bytes in a write buffer are neither on disk nor in the"
                " file",
                "transient_store_pool_enable",
                "flush_disk_type",
                hint="turn the pool off, or set {1} to ASYNC_FLUSH",
            )
        self._check_disk_ratios()
        if self.reserve_size < RESERVE_SIZE_MIN:
            least, size = map(format_exact_size, (RESERVE_SIZE_MIN, self.reserve_size))
            msg = f"{{0}} must be {least} or more, which a change of roles needs, not {size}"
            raise SettingsError(msg, "reserve_size")

    def _check_disk_ratios(self) -> None:
        """Check that no level is above the next."""
        names = (
            "disk_max_used_space_ratio",
            "disk_space_clean_forcibly_ratio",
            "disk_space_warning_level_ratio",
        )
        for name, next_name in itertools.pairwise(names):
            ratio, next_ratio = getattr(self, name), getattr(self, next_name)
            if ratio > next_ratio:
                msg = f"{{0}} {ratio} must not be above {{1}} {next_ratio}"
                levels = (
                    (s.key, f.default) for s, f in settings_in(StoreConfig) if f.name in names
                )
                shown = ", ".join(f"{key} ({default} %)" for key, default in levels)
                raise SettingsError(msg, name, next_name, hint=f"from low to high: {shown}")


def _check_spin(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value <= HA_SPIN_US_MAX:
        msg = f"{{0}} must be between 0 and {HA_SPIN_US_MAX}, not {value}"
        raise SettingsError(msg, attribute.name)


def _check_in_sync_replicas(_instance: object, _attribute: object, value: object) -> None:
    if value != "all" and not (type(value) is int and value >= 1):
        msg = f'{{0}} must be "all" or a number above 0, not {value!r}'
        raise SettingsError(msg, "in_sync_replicas")


def _check_min_in_sync_replicas(_instance: object, _attribute: object, value: object) -> None:
    if value is not None and not (type(value) is int and value >= 1):
        raise SettingsError(f"{{0}} must be above 0, not {value!r}", "min_in_sync_replicas")


def split_allowed_name(entry: str) -> tuple[str, int | None]:
    """Return the name and the node id of an entry of ``tls_allowed_names``; None: it has no id.

    ``n2=2`` binds the certificates of the name n2 to node 2.  Raises ValueError.
    """
    name, separator, text = entry.rpartition("=")
    if not separator:
        return entry, None
    node_id = read_digits(text)
    if not name or name == ANY_NAME or node_id is None or not 1 <= node_id <= NODE_ID_MAX:
        raise ValueError(f"{entry!r} is not a name and the id of its node: write n2=2")
    return name, node_id


def _check_allowed_names(_instance: object, _attribute: object, value: tuple[str, ...]) -> None:
    try:
        for entry in value:
            split_allowed_name(entry)
    except ValueError as error:
        raise SettingsError(f"{{0}}: {error}", "tls_allowed_names") from None


def _check_trust(_instance: object, _attribute: object, value: object) -> None:
    pairs = value if isinstance(value, tuple) else (None,)
    for pair in pairs:
        match pair:
            case (str(host), int(offset)) if host and type(offset) is int and offset >= 0:
                continue
        msg = f"{{0}} must be pairs of an address and an offset, not {value!r}"
        raise SettingsError(msg, "trust")


@attrs.frozen(kw_only=True)
class HAConfig:
    """The HA protocol, both sides (milliseconds and bytes)."""

    protocol: HAProtocol = setting(
        HAProtocol.CLASSIC,
        "ha.protocol",
        "What masters and slaves speak; autoswitch (RocketMQ 5's controller mode) has epochs.",
        kind=Kind.PROTOCOL,
        flag="--ha-protocol",
    )
    slave_timeout_ms: int = duration(
        3_000,
        "ha.slave_timeout",
        "How long a put waits for a slave before it is answered FLUSH_SLAVE_TIMEOUT.",
        flag="--slave-timeout",
        node="master",
    )
    in_sync_replicas: InSyncReplicas = setting(
        "all",
        "ha.in_sync_replicas",
        "How many nodes of a replica group, its master included, must have a message before it is"
        " PUT_OK: all of the SyncStateSet, or a number (autoswitch).",
        kind=Kind.ALL_OR_COUNT,
        flag="--in-sync-replicas",
        node="master",
        validator=_check_in_sync_replicas,
    )
    min_in_sync_replicas: int | None = setting(
        None,
        "ha.min_in_sync_replicas",
        "With fewer nodes in the SyncStateSet puts are refused before they are written"
        " (autoswitch). Default: with a coordinator 2 in a group of three nodes or more, at most"
        " in_sync_replicas; otherwise 1.",
        kind=Kind.COUNT,
        flag="--min-in-sync-replicas",
        node="master",
        validator=_check_min_in_sync_replicas,
    )
    sync_state_timeout_ms: int = duration(
        5_000,
        "ha.sync_state_timeout",
        "A member that has not acknowledged what it was sent for this long leaves the SyncStateSet"
        " (autoswitch).",
        node="master",
    )
    ha_slave_fallbehind_max: int = size(
        256 * MIB,
        "ha.max_gap",
        "A slave that lags by this much does not count as available.",
        flag="--max-gap",
        node="master",
    )
    ha_transfer_batch_size: int = size(
        32 * KIB, "ha.batch", "Smallest batch sent to a slave.", node="master"
    )
    ha_transfer_batch_size_max: int = size(
        MIB, "ha.batch_max", "Largest batch, sent to a slave that lags.", node="master"
    )
    # A new RocketMQ slave reports 0: it gets the whole log, or, as in RocketMQ, the last file.
    ha_new_slave_from: SlaveStart = setting(
        SlaveStart.EARLIEST,
        "ha.new_slave_from",
        "Where a slave that reports 0 begins.",
        kind=Kind.START,
        node="master",
    )
    trust: tuple[tuple[str, int], ...] = setting(
        (),
        "ha.trust",
        "Serve classic slaves that were refused because this master does not know their logs, each"
        " once: address and offset as the refusal names them.",
        kind=Kind.PEERS,
        flag="--trust",
        node="master",
        validator=_check_trust,
    )
    ha_connections_max: int = count(64, "ha.connections_max", "Slave connections.", node="master")
    ha_connections_per_address_max: int = count(
        32, "ha.connections_per_address_max", "Those of one address.", node="master"
    )
    # Slaves report as soon as they are connected (RocketMQ's within 5 s).
    ha_first_report_timeout_ms: int = duration(
        10_000,
        "ha.first_report_timeout",
        "A connection without a report is closed after this time.",
        node="master",
    )
    ha_send_heartbeat_interval_ms: int = duration(5_000, "ha.heartbeat", "Interval of heartbeats.")
    ha_housekeeping_interval_ms: int = duration(
        20_000, "ha.housekeeping", "A silent link is closed after this time."
    )
    tls: bool = switch(
        False,
        "ha.tls",
        "Links of masters and slaves are encrypted, and both ends prove who they are, with [tls]"
        " cert, key and ca.",
        flag="--ha-tls",
    )
    tls_allowed_names: tuple[str, ...] = setting(
        (),
        "ha.tls_allowed_names",
        "Whose certificates may follow, by DNS name or address, or by the common name of one"
        " without DNS names; `*`: all that the CA has signed. `n2=2`: that name is node 2's, and no"
        " other node's (autoswitch).",
        kind=Kind.NAMES,
        flag="--ha-tls-allowed-names",
        node="master",
        validator=_check_allowed_names,
    )
    ha_spin_us: int = setting(
        0,
        "ha.spin_us",
        "How many µs a master whose puts wait, or a slave after a frame, polls its link before it"
        " sleeps, 0 to 100: shorter latency for more CPU. Not with TLS.",
        kind=Kind.COUNT_OR_ZERO,
        validator=_check_spin,
    )
    ha_connect_timeout_ms: int = duration(
        5_000, "ha.connect_timeout", "A connection attempt fails after this time.", node="slave"
    )
    ha_reconnect_backoff_min_ms: int = duration(
        100, "ha.reconnect_min", "First wait before a reconnect.", node="slave"
    )
    ha_reconnect_backoff_max_ms: int = duration(
        5_000, "ha.reconnect_max", "Longest wait before a reconnect.", node="slave"
    )

    @property
    def names_without_ids(self) -> tuple[str, ...]:
        """The names that may follow as any node; none where links have no TLS, or no node ids."""
        if not self.tls or self.protocol is HAProtocol.CLASSIC:
            return ()
        entries = map(split_allowed_name, self.tls_allowed_names)
        return tuple(name for name, node_id in entries if node_id is None)

    def __attrs_post_init__(self) -> None:
        """Check the bounds between fields."""
        least, most = self.ha_transfer_batch_size, self.ha_transfer_batch_size_max
        if most > HA_FRAME_BODY_SIZE_MAX:
            raise SettingsError(
                f"{{0}} must be 1 to {HA_FRAME_BODY_SIZE_MAX} bytes, which fit a slave's read"
                f" buffer, not {format_exact_size(most)}",
                "ha_transfer_batch_size_max",
            )
        if least > most:
            raise SettingsError(
                f"{{0}} must not exceed {{1}}: {format_exact_size(least)} is more than"
                f" {format_exact_size(most)}",
                "ha_transfer_batch_size",
                "ha_transfer_batch_size_max",
            )
        heartbeat, silence = self.ha_send_heartbeat_interval_ms, self.ha_housekeeping_interval_ms
        if heartbeat >= silence:
            raise SettingsError(
                f"{{0}} must be below {{1}}: {format_exact_duration(heartbeat)} is not below"
                f" {format_exact_duration(silence)}",
                "ha_send_heartbeat_interval_ms",
                "ha_housekeeping_interval_ms",
            )


@attrs.frozen(kw_only=True)
class RemotingConfig:
    """The client port (RocketMQ remoting)."""

    frame_size_max: int = size(16 * MIB, "remoting.frame_max", "Largest request.")
    connections_max: int = count(1_000, "remoting.connections_max", "Client connections.")
    connections_per_address_max: int = count(
        500, "remoting.connections_per_address_max", "Those of one address."
    )
    # Those that wait for an answer; above it the connection is not read.
    in_flight_max: int = count(4_096, "remoting.in_flight_max", "Requests of one connection.")
    buffered_size_max: int = size(
        256 * MIB,
        "remoting.buffered_max",
        "Bytes of unfinished requests of all connections; above it the largest of the address that"
        " holds most is closed.",
    )
    # Idle: no whole request came, and no answer was read.
    idle_timeout_ms: int = duration(120_000, "remoting.idle_timeout", "Idle clients are closed.")
    header_timeout_ms: int = duration(
        10_000,
        "remoting.header_timeout",
        "A request's header must be complete this soon after its first byte.",
    )
    output_size_max: int = size(
        MIB,
        "remoting.output_max",
        "Answers that a client has not read; above it, its requests are not read.",
    )
    output_size_total_max: int = size(
        256 * MIB,
        "remoting.output_total_max",
        "Answers that all clients have not read; above it, clients that read nothing for 5 s, or"
        " less than 1 MiB/s, are closed.",
    )
    default_topic_queue_nums: int = count(8, "remoting.queues", "Queues of a new topic.")
    auto_create_topic_enable: bool = switch(
        True, "remoting.auto_create_topic", "The first message of an unknown topic creates it."
    )
    # The quotas of one owner are a sixteenth of each table at most.
    groups_per_owner_max: int = count(
        512,
        "remoting.groups_per_owner_max",
        "New consumer groups of one access key, or without keys of one address, since the start.",
    )
    new_groups_per_minute_max: int = count(
        256, "remoting.new_groups_per_minute_max", "Those within a minute."
    )
    topics_max: int = count(
        16_384,
        "remoting.topics_max",
        "Topics that a node has; it makes no more. Its files and its master may have more.",
    )
    groups_max: int = count(8_192, "remoting.groups_max", "Consumer groups, likewise.")
    offset_keys_max: int = count(
        16_384, "remoting.offset_keys_max", "Pairs of topic and group with an offset, likewise."
    )
    offsets_max: int = count(262_144, "remoting.offsets_max", "Consumer offsets, likewise.")
    topics_per_owner_max: int = count(
        1_024,
        "remoting.topics_per_owner_max",
        "Topics that messages of one access key, or without keys of one address, have created.",
    )
    new_topics_per_minute_max: int = count(
        512, "remoting.new_topics_per_minute_max", "Those within a minute."
    )
    offset_keys_per_owner_max: int = count(
        1_024,
        "remoting.offset_keys_per_owner_max",
        "Pairs of topic and group with an offset that one access key, or without keys one address,"
        " has committed first.",
    )
    offsets_per_owner_max: int = count(
        16_384, "remoting.offsets_per_owner_max", "Offsets of theirs: one for each queue."
    )
    locks_per_owner_max: int = count(
        16_384,
        "remoting.locks_per_owner_max",
        "Locked queues of one access key, or without keys of one address.",
    )
    held_pulls_per_owner_max: int = count(
        4_096,
        "remoting.held_pulls_per_owner_max",
        "Its pulls that wait for messages; one more is answered at once.",
    )
    pushed_replies_per_owner_max: int = count(
        1_024,
        "remoting.pushed_replies_per_owner_max",
        "Replies of one access key, or without keys of one address, that wait for the requester's"
        " answer.",
    )
    pushed_replies_per_minute_max: int = count(
        120_000, "remoting.pushed_replies_per_minute_max", "Its replies within a minute."
    )
    pull_count_max: int = count(1_024, "remoting.pull_count_max", "Messages of one pull.")
    pull_size_max: int = size(4 * MIB, "remoting.pull_size_max", "Bytes of one pull.")
    long_polling_enable: bool = switch(
        True, "remoting.long_polling", "A pull that finds nothing waits for messages."
    )
    suspend_timeout_max_ms: int = duration(
        60_000, "remoting.suspend_max", "The longest that a pull waits for messages."
    )
    consumer_timeout_ms: int = duration(
        120_000,
        "remoting.consumer_timeout",
        "A consumer without a heartbeat for this long is removed.",
    )
    flush_consumer_offset_interval_ms: int = duration(
        5_000,
        "remoting.offset_interval",
        "Interval at which consumers' offsets are written to disk.",
    )


@attrs.frozen(kw_only=True)
class AccessConfig:
    """Who may ask the client port for what; no ``file``: everybody for everything."""

    file: str | None = setting(
        None,
        "access.file",
        "Access keys and their permissions: RocketMQ's plain_acl.yml, or the same in TOML. Without"
        " it everybody may do everything.",
        kind=Kind.FILE,
        flag="--access-file",
    )
    key_file: str | None = setting(
        None,
        "access.key_file",
        "This node's own access key, an admin's, for requests to other nodes' client ports."
        " Only its owner may read the file.",
        kind=Kind.FILE,
        flag="--access-key-file",
    )
    own_signatures: OwnSignatures = setting(
        OwnSignatures.PREFERRED,
        "access.own_signatures",
        "Role requests and hastore's own (1008, 28101 to 28106) need hastore's own signature"
        " (required). For a rolling upgrade RocketMQ's is also accepted for a promotion of this"
        " node and for a promise to its master (preferred).",
        kind=Kind.OWN_SIGNATURES,
        flag="--own-signatures",
    )
    stock_signatures: bool = setting(
        default=True,
        name="access.stock_signatures",
        help_text="Other requests of administrators may have RocketMQ's signature, which stock"
        " slaves and mqadmin make, and which can be recorded and sent again.",
        kind=Kind.BOOL,
    )


@attrs.frozen(kw_only=True)
class TlsConfig:
    """The node's certificate, whom it trusts, and what its client port takes.

    Without a certificate there is no TLS.
    """

    mode: TlsMode = setting(
        TlsMode.DISABLED,
        "tls.mode",
        "What the client port takes: plain bytes (disabled), TLS (enforcing), or either"
        " (permissive, which protects nobody, for the time in which clients change over).",
        kind=Kind.TLS_MODE,
        flag="--tls",
    )
    cert_file: str | None = setting(
        None,
        "tls.cert",
        "This node's certificate (PEM), followed by those between it and the CA.",
        kind=Kind.FILE,
        flag="--tls-cert",
    )
    key_file: str | None = setting(
        None,
        "tls.key",
        "The key of that certificate (PEM). Only its owner may read the file.",
        kind=Kind.FILE,
        flag="--tls-key",
    )
    key_password_file: str | None = setting(
        None,
        "tls.key_password_file",
        "A file with the password of an encrypted key, which only its owner may read.",
        kind=Kind.FILE,
    )
    ca_file: str | None = setting(
        None,
        "tls.ca",
        "Certificates (PEM) by which clients' and other nodes' must be signed. Default: the"
        " system's, for other nodes.",
        kind=Kind.FILE,
        flag="--tls-ca",
    )
    client_ca_file: str | None = setting(
        None,
        "tls.client_ca",
        "Certificates (PEM) by which clients' may be signed, too, but not those of nodes: who has"
        " one of these cannot follow. Default: [tls] ca signs both.",
        kind=Kind.FILE,
        flag="--tls-client-ca",
    )
    crl_file: str | None = setting(
        None,
        "tls.crl",
        "Lists of withdrawn certificates (CRL, PEM) of every CA in ca and client_ca. A new version"
        " ends the connections of certificates that it names.",
        kind=Kind.FILE,
        flag="--tls-crl",
    )
    min_version: TlsVersion = setting(
        TlsVersion.V1_2,
        "tls.min_version",
        "The oldest version of TLS that is spoken.",
        kind=Kind.TLS_VERSION,
        flag="--tls-min-version",
    )
    ciphers: str = setting(
        DEFAULT_CIPHERS,
        "tls.ciphers",
        "Ciphers of TLS 1.2, as OpenSSL lists them. TLS 1.3 has its own.",
        kind=Kind.TEXT,
        flag="--tls-ciphers",
    )
    client_certificates: ClientCertificates = setting(
        ClientCertificates.NONE,
        "tls.client_certificates",
        "Whether clients must show a certificate (required), may (asked), or are not asked.",
        kind=Kind.CLIENT_CERTIFICATES,
        flag="--tls-client-certificates",
    )
    server_name: str | None = setting(
        None,
        "tls.server_name",
        "The name that other nodes' certificates must have. Default: the host that is connected"
        " to.",
        kind=Kind.TEXT,
        flag="--tls-server-name",
    )

    def __attrs_post_init__(self) -> None:
        """Refuse half of a pair, and a mode that lacks its files."""
        if (self.cert_file is None) is not (self.key_file is None):
            msg = "a certificate and its key need each other"
            hint = "set both [tls] cert and [tls] key, or neither"
            raise SettingsError(msg, "cert_file", "key_file", hint=hint)
        if self.mode is not TlsMode.DISABLED and self.cert_file is None:
            msg = f"tls {self.mode.value} needs a certificate and its key"
            hint = "set [tls] cert and [tls] key (--tls-cert, --tls-key)"
            raise SettingsError(msg, "mode", hint=hint)
        signers = (self.ca_file, self.client_ca_file)
        if self.client_certificates is not ClientCertificates.NONE and signers == (None, None):
            msg = "client certificates are asked for, and nothing says who may sign them"
            raise SettingsError(msg, "client_certificates", hint="set [tls] ca (--tls-ca)")
        if self.crl_file is not None and self.ca_file is None:
            msg = "lists of withdrawn certificates are given without the CA that they are of"
            hint = "set [tls] ca, too, or leave [tls] crl out"
            raise SettingsError(msg, "crl_file", hint=hint)
        if self.key_password_file is not None and self.key_file is None:
            msg = "a key's password is given without the key"
            hint = "set [tls] key, too, or leave key_password_file out"
            raise SettingsError(msg, "key_password_file", hint=hint)


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Return the URLs of ``http://h1:2379,http://h2:2379``.  Raises ValueError."""
    endpoints = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    if not endpoints:
        raise ValueError(f"{text!r} names no endpoint: write http://127.0.0.1:2379")
    for endpoint in endpoints:
        _check_endpoint(endpoint)
    if len(set(endpoints)) < len(endpoints):
        raise ValueError(f"{text!r} names an endpoint twice")
    return endpoints


def _check_endpoint(endpoint: str) -> None:
    """Raise ValueError for what is no URL of a server's root."""
    example = "write http://127.0.0.1:2379"
    try:
        url = urlsplit(endpoint)
        has_host = bool(url.hostname) and url.port is not None
    except ValueError as error:
        raise ValueError(f"{endpoint!r} is not the URL of an etcd: {error}: {example}") from None
    if url.username is not None or url.password is not None:
        raise ValueError(
            f"{url.scheme}://...@{url.hostname}: a URL is no place for a password: set user and"
            " password_file"
        )
    if not has_host or url.scheme not in {"http", "https"} or url.path or url.query or url.fragment:
        raise ValueError(f"{endpoint!r} is not the URL of an etcd: {example}")


def _check_endpoints(_instance: object, _attribute: object, value: tuple[str, ...]) -> None:
    try:
        for endpoint in value:
            _check_endpoint(endpoint)
    except ValueError as error:
        raise SettingsError(f"{{0}}: {error}", "endpoints") from None


def _check_ttl(_instance: object, _attribute: object, value: int) -> None:
    if value < TTL_MS_MIN or value % 1_000:
        msg = f"{{0}} must be whole seconds, {TTL_MS_MIN // 1_000} or more, not {value} ms"
        hint = "a node that is silent for this long is no master any more"
        raise SettingsError(msg, "ttl_ms", hint=hint)


def _check_priority(_instance: object, _attribute: object, value: int) -> None:
    if not 0 <= value <= PRIORITY_MAX:
        raise SettingsError(f"{{0}} must be 0 to {PRIORITY_MAX}, not {value}", "priority")


def _check_prefix(_instance: object, _attribute: object, value: str) -> None:
    if not _PREFIX.fullmatch(value):
        raise SettingsError(f"{{0}} must be a path such as /hastore, not {value!r}", "prefix")


def _check_cluster_name(_instance: object, _attribute: object, value: str | None) -> None:
    if value is not None and not REPLICA_GROUP.fullmatch(value):
        msg = (
            f"a cluster's name in etcd's keys must be 1 to 127 of a-z A-Z 0-9 . _ -, not {value!r}"
        )
        raise SettingsError(msg, "cluster_name", hint="set [cluster] name")


@attrs.frozen(kw_only=True)
class CoordinatorConfig:
    """The etcd by which a replica group decides on its roles; no ``endpoints``: it has none."""

    endpoints: tuple[str, ...] = setting(
        (),
        "cluster.etcd",
        "URLs of the etcd servers that decide which node is master, separated by commas. Without"
        " them a person decides.",
        kind=Kind.URLS,
        flag="--etcd",
        node="node",
        old_key="endpoints",
        validator=_check_endpoints,
    )
    prefix: str = setting(
        "/hastore",
        "cluster.prefix",
        "The keys of all clusters begin with this path.",
        kind=Kind.TEXT,
        node="node",
        validator=_check_prefix,
    )
    cluster_name: str | None = setting(
        None,
        "cluster.name",
        "The cluster's name in etcd's keys. Default: [node] cluster.",
        kind=Kind.TEXT,
        node="node",
        validator=_check_cluster_name,
    )
    ttl_ms: int = duration(
        10_000,
        "cluster.ttl",
        "A master that etcd has not heard of for this long is replaced; whole seconds, 3s or more.",
        flag="--ttl",
        node="node",
        validator=_check_ttl,
    )
    priority: int = setting(
        0,
        "cluster.priority",
        "Of nodes with equal logs the one with the higher number becomes master, 0 to 1000.",
        kind=Kind.COUNT_OR_ZERO,
        flag="--priority",
        node="node",
        validator=_check_priority,
    )
    failsafe: bool = switch(
        True,
        "cluster.failsafe",
        "While etcd does not answer, the master goes on as long as all members of its set promise"
        " not to stand for election.",
        node="node",
    )
    hand_over_after_ms: int = duration(
        3_000,
        "cluster.hand_over_after",
        "A master that cannot store for this long asks a member that has room to take over.",
        node="node",
    )
    advertised_host: str | None = setting(
        None,
        "cluster.advertise",
        "The host at which other nodes and clients reach this one; etcd has it, and so have the"
        " ids of messages. Default: that of --listen and --ha-listen, which must not be 0.0.0.0 or"
        " [::] then. With an etcd on another machine none of the three may be a loopback address.",
        kind=Kind.TEXT,
        flag="--advertise",
        node="node",
    )
    ca_file: str | None = setting(
        None,
        "cluster.ca",
        "Certificates (PEM) that etcd's own must be signed by. Default: the system's.",
        kind=Kind.FILE,
        node="node",
    )
    cert_file: str | None = setting(
        None, "cluster.cert", "This node's certificate (PEM) for etcd.", kind=Kind.FILE, node="node"
    )
    key_file: str | None = setting(
        None,
        "cluster.key",
        "The key of that certificate (PEM). Only its owner may read the file.",
        kind=Kind.FILE,
        node="node",
    )
    user: str | None = setting(
        None, "cluster.user", "This node's user at etcd.", kind=Kind.TEXT, node="node"
    )
    password_file: str | None = setting(
        None,
        "cluster.password_file",
        "A file with that user's password, which only its owner may read.",
        kind=Kind.FILE,
        node="node",
    )

    def __attrs_post_init__(self) -> None:
        """Refuse half of a pair."""
        if (self.cert_file is None) is not (self.key_file is None):
            msg = "{0} and {1} need each other: a certificate has its key"
            hint = "set both [cluster] cert and [cluster] key, or neither"
            raise SettingsError(msg, "cert_file", "key_file", hint=hint)
        if (self.user is None) is not (self.password_file is None):
            msg = "{0} and {1} need each other: a user logs in by a password"
            hint = "set both [cluster] user and [cluster] password_file, or neither"
            raise SettingsError(msg, "user", "password_file", hint=hint)
        plain = next((each for each in self.endpoints if _is_readable_on_the_way(each)), None)
        if self.password_file is not None and plain is not None:
            raise ConfigError(
                f"the password in {self.password_file} would be sent to {plain} unencrypted: others"
                " on the way could read it",
                hint="use https:// there, with [cluster] ca; only a loopback address may be http://",
            )


def _check_node_id(_instance: object, _attribute: object, value: int | None) -> None:
    if value is not None and not 1 <= value <= NODE_ID_MAX:
        raise SettingsError(f"{{0}} must be 1 to {NODE_ID_MAX}, not {value}", "node_id")


def _check_group_ids(_instance: object, _attribute: object, value: object) -> None:
    if value is None:
        return
    ids = value if isinstance(value, tuple) else ()
    if not ids or any(type(each) is not int or not 1 <= each <= NODE_ID_MAX for each in ids):
        msg = f"{{0}} must be numbers from 1 to {NODE_ID_MAX}, not {value!r}"
        raise SettingsError(msg, "group_ids")
    if len(set(ids)) < len(ids):
        raise SettingsError(f"{{0}} names a node twice: {value!r}", "group_ids")


def _check_replica_group(_instance: object, _attribute: object, value: str | None) -> None:
    if value is not None and not REPLICA_GROUP.fullmatch(value):
        msg = f"{{0}} must be 1 to 127 of a-z A-Z 0-9 . _ -, not {value!r}"
        raise SettingsError(msg, "replica_group")


@attrs.frozen(kw_only=True)
class NodeConfig:
    """The settings that masters and slaves share; ``metrics_listen`` None: no metrics port."""

    store: StoreConfig
    name: str = setting(
        "hastore-a",
        "node.name",
        "Name in status; in routes, too, outside of a replica group.",
        kind=Kind.TEXT,
        flag="--name",
    )
    cluster: str = setting(
        "DefaultCluster",
        "node.cluster",
        "Cluster name in routes and status.",
        kind=Kind.TEXT,
        flag="--cluster",
    )
    node_id: int | None = setting(
        None,
        "node.id",
        "This node's number in its replica group, 1 or more.",
        kind=Kind.COUNT,
        flag="--node-id",
        validator=_check_node_id,
    )
    replica_group: str | None = setting(
        None,
        "node.group",
        "The replica group: the nodes that hold one log.",
        kind=Kind.TEXT,
        flag="--node-group",
        validator=_check_replica_group,
    )
    group_ids: tuple[int, ...] | None = setting(
        None,
        "node.group_ids",
        "The ids of all nodes of the replica group. Others never count, and without a coordinator"
        " only a majority of them may acknowledge.",
        kind=Kind.COUNTS,
        flag="--group-ids",
        node="master",
        validator=_check_group_ids,
    )
    metrics_listen: tuple[str, int] | None = setting(
        None,
        "metrics.listen",
        "Port for metrics and health over HTTP; a port alone listens on 127.0.0.1.",
        kind=Kind.LOCAL_ADDRESS,
        flag="--metrics",
    )
    metrics_tls: bool = switch(
        False,
        "metrics.tls",
        "Metrics and health over HTTPS, with [tls] cert; [tls] client_certificates holds for"
        " scrapers, too.",
        flag="--metrics-tls",
    )
    name_servers: tuple[tuple[str, int], ...] = setting(
        (),
        "route.name_servers",
        "RocketMQ name servers at which this node registers, separated by commas.",
        kind=Kind.ADDRESSES,
        flag="--name-server",
    )
    ha: HAConfig = attrs.field(factory=HAConfig)
    remoting: RemotingConfig = attrs.field(factory=RemotingConfig)
    access: AccessConfig = attrs.field(factory=AccessConfig)
    tls: TlsConfig = attrs.field(factory=TlsConfig)

    @property
    def has_tls(self) -> bool:
        """Whether any of its ports takes TLS, so that it needs the certificate of ``tls``."""
        return self.tls.mode is not TlsMode.DISABLED or self.ha.tls or self.metrics_tls

    def __attrs_post_init__(self) -> None:
        """Check the bounds between fields."""
        if self.ha.tls and (self.tls.cert_file is None or self.tls.ca_file is None):
            msg = "TLS on the HA port needs a certificate, its key and the CA's certificate"
            hint = "set [tls] cert, key and ca, or leave [ha] tls out"
            raise SettingsError(msg, "tls", hint=hint)
        if self.metrics_tls and self.tls.cert_file is None:
            msg = "metrics over HTTPS need a certificate and its key"
            hint = "set [tls] cert and key, or leave [metrics] tls out"
            raise SettingsError(msg, "metrics_tls", hint=hint)
        if (self.node_id is None) is not (self.replica_group is None):
            msg = "{0} and {1} need each other: a node has its id in a group"
            hint = "set both [node] id and [node] group, or neither"
            raise SettingsError(msg, "node_id", "replica_group", hint=hint)
        if self.ha.protocol is HAProtocol.AUTOSWITCH and self.node_id is None:
            msg = "the autoswitch protocol is for nodes of a replica group: this node is in none"
            raise SettingsError(msg, "protocol", hint="set [node] id and [node] group, too")
        if self.group_ids is not None and self.node_id not in self.group_ids:
            msg = f"{{0}} {', '.join(map(str, self.group_ids))} lacks this node: {self.node_id}"
            hint = "[node] group_ids names all nodes of the group, each one"
            raise SettingsError(msg, "group_ids", hint=hint)


@attrs.frozen(kw_only=True)
class MasterConfig(NodeConfig):
    """A master: ``role`` is ASYNC_MASTER or SYNC_MASTER.

    ``listen`` None means no client port, for a master embedded in a program.
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
    observer_listen: tuple[str, int] | None = setting(
        None,
        "listen.observer",
        "Port for classic slaves that read a replica group's log and never count (autoswitch).",
        kind=Kind.ADDRESS,
        flag="--observer-listen",
    )

    def __attrs_post_init__(self) -> None:
        """Refuse what a master cannot be."""
        super().__attrs_post_init__()
        if self.ha.tls and not self.ha.tls_allowed_names:
            msg = "TLS on the HA port needs the names of the certificates that may follow"
            hint = "set [ha] tls_allowed_names; * means all that [tls] ca has signed"
            raise SettingsError(msg, "tls", hint=hint)
        if self.observer_listen is not None and self.ha.protocol is not HAProtocol.AUTOSWITCH:
            msg = "only a replica group has observers: this master's slaves are classic anyway"
            hint = "leave {0} out, or set [ha] protocol to autoswitch"
            raise SettingsError(msg, "observer_listen", hint=hint)
        if self.role is BrokerRole.SLAVE:
            msg = "a master's role is ASYNC_MASTER or SYNC_MASTER, not SLAVE"
            raise ConfigError(msg, hint="to run a slave: hastore slave --master HOST:HA_PORT")
        ids, least = self.group_ids, self.ha.min_in_sync_replicas
        if ids is not None and least is not None and least > len(ids):
            msg = f"{{0}} is {least}, and the replica group has {len(ids)} nodes"
            hint = f"lower it to {len(ids)} at most, or add {{1}}"
            raise SettingsError(msg, "min_in_sync_replicas", "group_ids", hint=hint)


@attrs.frozen(kw_only=True)
class SlaveConfig(NodeConfig):
    """A slave of ``master`` (the master's HA address).

    ``listen`` None means no client port, which ``hastore status`` needs.
    """

    master: tuple[str, int] = attrs.field(
        metadata=setting_metadata(
            "ha.master", "The master's HA port.", kind=Kind.HA_ADDRESS, flag="--master"
        )
    )
    master_client: tuple[str, int] | None = setting(
        None,
        "ha.master_client",
        "The master's client port, from which topics, groups and offsets are copied. Default: one"
        " below its HA port.",
        kind=Kind.ADDRESS,
        flag="--master-client",
    )
    slave_from: SlaveStart = setting(
        SlaveStart.EARLIEST,
        "ha.from",
        "Where a slave without a log begins.",
        kind=Kind.START,
        flag="--from",
    )
    is_learner: bool = switch(
        False,
        "ha.learner",
        "Follow a replica group without counting: no put waits for this slave (autoswitch).",
        flag="--learner",
    )
    listen: tuple[str, int] | None = attrs.field(
        default=("127.0.0.1", 0), metadata=attrs.fields(MasterConfig).listen.metadata
    )

    def __attrs_post_init__(self) -> None:
        """Refuse write buffers: a slave acknowledges what is in its files."""
        super().__attrs_post_init__()
        if self.store.transient_store_pool_enable:
            msg = "{0} is for masters: a slave reports what it has stored"
            hint = "leave it out of this slave's configuration"
            raise SettingsError(msg, "transient_store_pool_enable", hint=hint)
        if self.is_learner and self.ha.protocol is HAProtocol.CLASSIC:
            msg = "only the autoswitch protocol has learners"
            hint = "set [ha] protocol to autoswitch, or leave {0} out"
            raise SettingsError(msg, "is_learner", hint=hint)


@attrs.frozen(kw_only=True)
class GroupNodeConfig(MasterConfig):
    """A node of a replica group, which is a master or a slave as its group decides.

    ``master`` is whom it follows until it gets another role; None: nobody yet.  ``coordinator``
    with endpoints: their etcd decides, and a master is not named.
    """

    ha: HAConfig = attrs.field(factory=lambda: HAConfig(protocol=HAProtocol.AUTOSWITCH))
    master: tuple[str, int] | None = attrs.field(
        default=None, metadata=attrs.fields(SlaveConfig).master.metadata
    )
    slave_from: SlaveStart = attrs.field(
        default=SlaveStart.EARLIEST, metadata=attrs.fields(SlaveConfig).slave_from.metadata
    )
    is_learner: bool = attrs.field(
        default=False, metadata=attrs.fields(SlaveConfig).is_learner.metadata
    )
    remote_roles: bool = switch(
        False,
        "node.remote_roles",
        "Take requests that change this node's role from other machines, too, not only from this"
        " one. Anybody who reaches the client port can send them.",
        flag="--remote-roles",
        node="node",
    )
    coordinator: CoordinatorConfig = attrs.field(factory=CoordinatorConfig)

    def __attrs_post_init__(self) -> None:
        """Refuse what only one of the two roles could be."""
        super().__attrs_post_init__()
        if self.ha.protocol is not HAProtocol.AUTOSWITCH:
            msg = "a node whose role its replica group decides speaks the autoswitch protocol"
            hint = "for the classic pair: hastore master, and hastore slave"
            raise SettingsError(msg, "protocol", hint=hint)
        if self.store.transient_store_pool_enable:
            msg = "{0} is for masters that never become slaves"
            hint = "leave it out of this node's configuration"
            raise SettingsError(msg, "transient_store_pool_enable", hint=hint)
        if self.coordinator.endpoints and self.master is not None:
            msg = "a node of a group with a coordinator is told by it who is master: name none"
            hint = "leave out [ha] master (--master), or [cluster] etcd (--etcd)"
            raise SettingsError(msg, "master", "endpoints", hint=hint)
        check_addresses(self.coordinator, listen=self.listen, ha_listen=self.ha_listen)
        if self.coordinator.endpoints and self.coordinator.cluster_name is None:
            _check_cluster_name(self, None, self.cluster)

    def as_slave(
        self, master: tuple[str, int], master_client: tuple[str, int] | None = None
    ) -> SlaveConfig:
        """Return the configuration of this node as a slave of ``master``.

        ``master_client`` is that master's client port, if known.
        """
        values = {
            field.name: getattr(self, field.name)
            for field in attrs.fields(SlaveConfig)
            if field.name not in {"master", "master_client"}
        }
        return SlaveConfig(**values, master=master, master_client=master_client)


def check_addresses(
    coordinator: CoordinatorConfig, *, listen: tuple[str, int] | None, ha_listen: tuple[str, int]
) -> None:
    """Raise ConfigError if other nodes could not reach this one at what it tells its coordinator.

    A loopback address is fine while the coordinator is on loopback, too: then all of the group is
    on one machine.  ``listen`` None means no client port.
    """
    endpoints, advertised = coordinator.endpoints, coordinator.advertised_host
    elsewhere = next((each for each in endpoints if not is_loopback(_host_of(each))), None)
    if advertised is not None and advertised in _WILDCARDS:
        raise ConfigError(
            f"[cluster] advertise (--advertise) is {advertised}, which is every address of this"
            " machine: other nodes need one that reaches it",
            hint="--advertise HOST, the name or address of this machine in its network",
        )
    if advertised is not None and elsewhere is not None and is_loopback(advertised):
        raise ConfigError(
            f"[cluster] advertise (--advertise) is {advertised}, and the coordinator {elsewhere} is"
            f" on another machine: nodes there would reach themselves at {advertised}",
            hint="--advertise HOST, the name or address of this machine in its network",
        )
    for address, name, flag in (
        (ha_listen, "ha", "--ha-listen"),
        (listen, "client", "--listen"),
    ):
        if address is None or not endpoints:
            continue
        if advertised is None and address[0] in _WILDCARDS:
            raise ConfigError(
                f"[listen] {name} ({flag}) is every address of this machine, and other nodes need"
                " one that reaches it",
                hint="--advertise HOST, the name or address of this machine in its network",
            )
        if elsewhere is not None and is_loopback(address[0]):
            example = format_address(("0.0.0.0", address[1]))  # noqa: S104 - an example
            raise ConfigError(
                f"[listen] {name} ({flag}) is {format_address(address)}, which only this machine"
                f" reaches, and the coordinator {elsewhere} is on another one",
                hint=f"{flag} {example} --advertise HOST, the name or address of this machine in"
                " its network",
            )


def _is_readable_on_the_way(endpoint: str) -> bool:
    """Return whether what is sent to an endpoint leaves this machine unencrypted."""
    return urlsplit(endpoint).scheme == "http" and not is_loopback(_host_of(endpoint))


def _host_of(endpoint: str) -> str:
    """Return the host of an endpoint's URL, which has one."""
    return urlsplit(endpoint).hostname or ""


PARTS: Final = {"store": StoreConfig, "ha": HAConfig, "remoting": RemotingConfig}


def parts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a node's configuration as keyword arguments for its class.

    ``values`` are by field name; no two parts share one.
    """
    return {
        part: config(**{f.name: values[f.name] for f in attrs.fields(config) if f.name in values})
        for part, config in PARTS.items()
    }
