"""The settings of the store and of the client port: ``[store]`` and ``[remoting]``.

Names are RocketMQ's where they are short enough; the help says what a value does, not what it is
called.  Rows stand in the order in which a message meets them: put, flush, dispatch, expiry.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hastore_cli.settings.kinds import Kind
from hastore_cli.settings.setting import part_setting

if TYPE_CHECKING:
    from hastore_cli.settings.setting import Setting


_store = partial(part_setting, "store")
_remoting = partial(part_setting, "remoting")

_PUT: Final = (
    _store(
        "file_size",
        Kind.SIZE,
        "mapped_file_size",
        "Size of one log file; as the files there are; a new slave's is its master's; else 1GiB.",
        flag="--mapped-file-size",
    ),
    _store(
        "create_timeout",
        Kind.DURATION,
        "create_mapped_file_timeout_ms",
        "Wait for the next file.",
    ),
    _store(
        "busy_timeout",
        Kind.DURATION,
        "os_page_cache_busy_timeout_ms",
        "Puts are refused (OS_PAGE_CACHE_BUSY) once an append has waited this long.",
    ),
    _store("message_max", Kind.SIZE, "max_message_size", "Largest body of a message."),
    _store("prop_crc", Kind.BOOL, "append_prop_crc", "A checksum over the whole record."),
    _store("pending_puts_max", Kind.COUNT, "pending_put_max", "Puts that await a file."),
    _store("pending_size_max", Kind.SIZE, "pending_put_size_max", "Their bytes together."),
    _store(
        "warm_up",
        Kind.BOOL,
        "warm_mapped_file_enable",
        "Touch and lock each page of the next file before it is needed.",
    ),
    _store(
        "warm_up_flush_pages",
        Kind.COUNT,
        "flush_least_pages_when_warm_mapped_file",
        "Pages of the warm-up between two syncs (SYNC_FLUSH).",
    ),
)
_FLUSH: Final = (
    _store(
        "flush",
        Kind.FLUSH,
        "flush_disk_type",
        "Whether a put waits for the disk (SYNC_FLUSH) or a timer flushes behind it.",
        flag="--flush",
    ),
    _store("flush_timeout", Kind.DURATION, "sync_flush_timeout_ms", "Wait for the disk."),
    _store("flush_interval", Kind.DURATION, "flush_interval_ms", "The timer's period."),
    _store(
        "flush_timed",
        Kind.BOOL,
        "flush_commit_log_timed",
        "false: an append wakes the flush instead of waiting for the timer.",
    ),
    _store(
        "flush_least_pages",
        Kind.COUNT_OR_ZERO,
        "flush_least_pages",
        "The timer leaves a file alone that has fewer dirty pages of 4 KiB.",
    ),
    _store(
        "flush_thorough_interval",
        Kind.DURATION,
        "flush_thorough_interval_ms",
        "This often it flushes all there is.",
    ),
    _store(
        "transient_pool",
        Kind.BOOL,
        "transient_store_pool_enable",
        "Appends go to a buffer first and are written to the file in the background.",
    ),
    _store("transient_pool_size", Kind.COUNT, "transient_store_pool_size", "Buffers of the pool."),
    _store("commit_interval", Kind.DURATION, "commit_interval_ms", "From the buffer to the file."),
    _store(
        "commit_least_pages",
        Kind.COUNT_OR_ZERO,
        "commit_least_pages",
        "A buffer with fewer new pages waits.",
    ),
    _store(
        "commit_thorough_interval",
        Kind.DURATION,
        "commit_thorough_interval_ms",
        "This often all of it is written.",
    ),
)
_DISPATCH: Final = (
    _store(
        "queue_file_size",
        Kind.SIZE,
        "mapped_file_size_consume_queue",
        "Size of one consume queue file; 20 bytes a message.",
    ),
    _store(
        "queue_flush_interval",
        Kind.DURATION,
        "flush_consume_queue_interval_ms",
        "Flush period of the consume queues.",
    ),
    _store(
        "queue_flush_least_pages",
        Kind.COUNT_OR_ZERO,
        "flush_consume_queue_least_pages",
        "A consume queue with fewer dirty pages waits.",
    ),
    _store(
        "queue_flush_thorough_interval",
        Kind.DURATION,
        "flush_consume_queue_thorough_interval_ms",
        "This often all consume queues are flushed.",
    ),
    _store("index", Kind.BOOL, "message_index_enable", "Keep an index of keys."),
    _store("index_slots", Kind.COUNT, "max_hash_slot_num", "Hash slots of one index file."),
    _store("index_entries", Kind.COUNT, "max_index_num", "Keys that one index file holds."),
    _store(
        "read_uncommitted",
        Kind.BOOL,
        "read_uncommitted",
        "Consumers see what is appended, not only what is confirmed (as RocketMQ 4.9).",
    ),
    _store(
        "delay_levels",
        Kind.DELAY_LEVELS,
        "message_delay_level",
        "The delays that a message's DELAY property chooses from, 1 the first.",
    ),
)
_EXPIRY: Final = (
    _store(
        "keep",
        Kind.HOURS,
        "file_reserved_time_h",
        "Log files that were last written longer ago than this are deleted.",
    ),
    _store(
        "delete_when",
        Kind.CLOCK_HOURS,
        "delete_when",
        "Hours of the local day at which they are, such as 04 or 04;16.",
    ),
    _store("delete_batch", Kind.COUNT, "delete_file_batch_max", "Files deleted in one round."),
    _store(
        "delete_interval",
        Kind.DURATION_OR_ZERO,
        "delete_files_interval_ms",
        "Pause between two of them.",
    ),
    _store("clean_interval", Kind.DURATION, "clean_resource_interval_ms", "Time between rounds."),
    _store(
        "clean_forcibly",
        Kind.BOOL,
        "clean_file_forcibly_enable",
        "Past disk_forced, delete files that are not yet expired.",
    ),
    _store(
        "delete_only_archived",
        Kind.PATH,
        "delete_only_archived",
        "Keep a file until this archive (hastore pipeline run archive) has it, whatever else.",
    ),
    _store(
        "disk_max",
        Kind.PERCENT,
        "disk_max_used_space_ratio",
        "A file system fuller than this: expired files go now, whatever the hour.",
    ),
    _store(
        "disk_forced",
        Kind.PERCENT,
        "disk_space_clean_forcibly_ratio",
        "Fuller than this: the oldest files go, expired or not.",
    ),
    _store(
        "disk_full",
        Kind.PERCENT,
        "disk_space_warning_level_ratio",
        "Fuller than this: puts are refused until it is below again.",
    ),
    _store(
        "delete_held_after",
        Kind.DURATION,
        "destroy_mapped_file_interval_forcibly_ms",
        "A reader or slave holds an expired file back no longer than this.",
    ),
)

STORE_SETTINGS: Final[tuple[Setting, ...]] = (*_PUT, *_FLUSH, *_DISPATCH, *_EXPIRY)

REMOTING_SETTINGS: Final[tuple[Setting, ...]] = (
    _remoting("frame_max", Kind.SIZE, "frame_size_max", "Largest request."),
    _remoting("connections_max", Kind.COUNT, "connections_max", "Client connections."),
    _remoting(
        "connections_per_address_max",
        Kind.COUNT,
        "connections_per_address_max",
        "Those of one address.",
    ),
    _remoting("in_flight_max", Kind.COUNT, "in_flight_max", "Requests of one connection."),
    _remoting(
        "buffered_max",
        Kind.SIZE,
        "buffered_size_max",
        "Bytes of unfinished requests of all connections; beyond it the largest of the address that"
        " holds most is closed.",
    ),
    _remoting("idle_timeout", Kind.DURATION, "idle_timeout_ms", "Idle clients are closed."),
    _remoting(
        "header_timeout",
        Kind.DURATION,
        "header_timeout_ms",
        "A request's header must be whole so soon after its first byte.",
    ),
    _remoting(
        "output_max",
        Kind.SIZE,
        "output_size_max",
        "Answers that a client has not taken; beyond it it is not read.",
    ),
    _remoting(
        "output_total_max",
        Kind.SIZE,
        "output_size_total_max",
        "Those of all clients; beyond it who takes nothing for 5 s, or less than 1 MiB a second, is"
        " closed.",
    ),
    _remoting("queues", Kind.COUNT, "default_topic_queue_nums", "Queues of a new topic."),
    _remoting(
        "auto_create_topic",
        Kind.BOOL,
        "auto_create_topic_enable",
        "The first message of an unknown topic makes it.",
    ),
    _remoting("pull_count_max", Kind.COUNT, "pull_count_max", "Messages of one pull."),
    _remoting("pull_size_max", Kind.SIZE, "pull_size_max", "Bytes of one pull."),
    _remoting(
        "long_polling",
        Kind.BOOL,
        "long_polling_enable",
        "A pull that finds nothing waits for messages.",
    ),
    _remoting("suspend_max", Kind.DURATION, "suspend_timeout_max_ms", "It waits at most this."),
    _remoting(
        "consumer_timeout",
        Kind.DURATION,
        "consumer_timeout_ms",
        "A consumer without a heartbeat for this long has gone.",
    ),
    _remoting(
        "offset_interval",
        Kind.DURATION,
        "flush_consumer_offset_interval_ms",
        "How often consumers' offsets are written down.",
    ),
)
