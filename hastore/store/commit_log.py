"""The log: records end to end, in files of one size.

::

    file 0                          file 1
    record record … BLANK filler ── record record … │ max_offset
                                     flushed_offset ┘

Everything here is synchronous: in one trio thread an append without ``await`` is atomic, so there
is no put lock.  A master, which assigns offsets and times, uses ``append_message`` and
``append_batch``; a slave, which copies its master's bytes, uses ``append_data``.  With
``transientStorePoolEnable`` all goes to a file's write buffer, if it has one.  Else one message of
a few KiB is appended through the file's map; larger ones, batches, a slave's bytes, and with
SYNC_FLUSH all, are written (``LogTail._write`` says why).

Invariants: flushed_offset ≤ max_offset; both only grow; a queue offset advances only with its
record; store timestamps never fall along the log.
"""

from __future__ import annotations

import errno
import itertools
from typing import TYPE_CHECKING, Final, TypeAlias, final

from isal import isal_zlib

from hastore.errors import ConfigError, DiskFullError, FileSizeMismatchError
from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.native.in_use import extension
from hastore.status import AppendMessageStatus, FlushDiskType
from hastore.store.log.store_directory import COMMIT_LOG_DIR, check_is_store
from hastore.store.log_tail import SIZE_THROUGH_MAP, LogTail
from hastore.store.record.append_message_result import AppendMessageResult
from hastore.store.record.layout import TRANSACTION_PREPARED_TYPE
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.topic_queue_table import TopicQueueTable
from hastore.store.recovery.cut import complete_cut
from hastore.store.recovery.cut_survey import first_message_end
from hastore.store.recovery.log_loader import LoadedLog, LogLoader
from hastore.store.store_lock import StoreLock

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.message import Message
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.recovery.log_loader import FoundEnd
    from hastore.store.recovery.store_checkpoint import StoreCheckpoint

SCRATCH_SIZE: Final = 64 * 1024  # larger records are encoded in Python
# A larger body is written from where it is: for a copy the allocator may take fresh memory, whose
# page faults cost more than two calls.
JOINED_SIZE_MAX: Final = 64 * 1024

_PUT_OK: Final = AppendMessageStatus.PUT_OK
_END_OF_FILE: Final = AppendMessageStatus.END_OF_FILE
_SIZE_EXCEEDED: Final = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
_ILLEGAL: Final = AppendMessageStatus.MESSAGE_ILLEGAL
# What dispatch needs of a message: physic offset, size, topic, queue id, queue offset, store time,
# sysFlag, TAGS, UNIQ_KEY, KEYS.
FedRecord: TypeAlias = "tuple[int, int, str, int, int, int, int, str, str, str]"

_NO_PROPERTIES: Final[dict[str, str]] = {}
_crc32 = isal_zlib.crc32
_encode_record = None if extension is None else extension.encode_record
_join = b"".join
_new_tuple = tuple.__new__


@final
class CommitLog(LogTail):
    """An open commit log; ``open`` makes it, ``close`` ends it."""

    __slots__ = (
        "_encode_middle",
        "_encode_parts",
        "_encoder",
        "_has_prop_crc",
        "_max_message_size",
        "_millisecond_end_s",
        "_now_ms",
        "_now_s",
        "_plain_middle",
        "_record_size_max",
        "_scratch",
        "_store_host_bytes",
        "_store_timestamp_ms",
        "_table",
        "_topics",
        "append_wall_s",
        "correct_time",
        "feed",
    )

    @classmethod
    def open(
        cls,
        env: Env,
        config: StoreConfig,
        *,
        store_host: tuple[str, int],
        needs_queue_offsets: bool,
        lock: StoreLock | None = None,
        checkpoint: StoreCheckpoint | None = None,
        consume_queues: ConsumeQueueStore | None = None,
        on_end: Callable[[FoundEnd], None] | None = None,
    ) -> CommitLog:
        """Open a directory, making it if there is none, and recover it; blocks.

        ``needs_queue_offsets`` is true for a master.  A caller that already holds the directory's
        ``lock`` passes it after ``complete_cut``; it keeps it if this fails, else ``close``
        releases it.  ``checkpoint`` and ``consume_queues`` (recovered) limit how much of the log is
        read; afterwards the checkpoint's flushed offset is the log's end, and the queues are cut to
        the log.  ``on_end`` gets the end that was found before anything is changed.

        Raises StoreLockedError, NotAStoreError, FileSizeMismatchError, LogDamagedError, DiskError,
        and ConfigError if ``store_host`` is no IP address.
        """
        path = config.data_dir.rstrip("/") or "/"
        encoder = _make_encoder(config, store_host) if needs_queue_offsets else None
        table = None if encoder is None else TopicQueueTable(encoder.bare_properties)
        check_is_store(env.disk, path)
        env.disk.make_dirs(path)
        is_held_by_caller = lock is not None
        lock = lock or StoreLock.take(env.disk, path)
        try:
            if not is_held_by_caller:
                complete_cut(env, lock)
            last_exit_ok, write_abort = lock.last_exit_ok, lock.write_abort

            def before_change(found: FoundEnd) -> None:
                if on_end is not None:
                    on_end(found)
                write_abort(env.process_id)

            env.disk.make_dirs(f"{path}/{COMMIT_LOG_DIR}")
            loaded = LogLoader(
                env=env,
                data_dir=path,
                file_size_wanted=config.mapped_file_size,
                table=table,
                last_exit_ok=last_exit_ok,
                before_change=before_change,
                checkpoint=checkpoint,
                consume_queues=consume_queues,
            ).load()
        except BaseException:
            if not is_held_by_caller:
                lock.release(clean=False)
            raise
        log = cls(env, path, lock, loaded, encoder=encoder, table=table)
        if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            log.write_at_once()
        return log

    def __init__(
        self,
        env: Env,
        path: str,
        lock: StoreLock,
        loaded: LoadedLog,
        *,
        encoder: MessageEncoder | None,
        table: TopicQueueTable | None,
    ) -> None:
        super().__init__(path, lock, loaded)
        self._encoder = encoder
        self._table = table or TopicQueueTable()
        self._topics = self._table.topics
        self._now_s = env.wall_clock.now_s
        self._now_ms = env.wall_clock.now_ms
        self._millisecond_end_s = 0.0
        # Takes what ``append_message`` encodes in Python, if dispatch has set it.
        self.feed: deque[FedRecord] | None = None
        self.append_wall_s = 0.0  # the wall clock at the last append; may go back
        # Returns the wall time that a message may get for what the wall clock says (ms).
        self.correct_time: Callable[[int], int] | None = None
        self._store_timestamp_ms = loaded.store_timestamp_ms
        if encoder is not None:  # looked up once: append_message runs once a message
            self._encode_parts = encoder.encode_parts
            self._encode_middle = encoder.encode_middle
            self._has_prop_crc = encoder.prop_crc_size > 0
            self._max_message_size = encoder.max_message_size
            self._record_size_max = encoder.record_size_max
        # Where the extension encodes a record that is then written; None: in the map.
        self._scratch: memoryview | None = None
        self._plain_middle = b""
        self._store_host_bytes = b"" if encoder is None else encoder.store_host_bytes

    # -- a master's appends ----------------------------------------------------------------------

    def write_at_once(self) -> None:
        """Write each record by ``pwrite``, not through the map: for a log that is synced often.

        A sync makes the map's pages read-only again.  The next append to each is a page fault, in
        which the kernel marks all that it has read or zeroed around it as dirty, and the next sync
        writes that, too.
        """
        self._makes_pages = False
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of a queue's next message: its end; 0 without messages."""
        queues = self._topics.get(topic)
        return 0 if queues is None else queues.next_offsets.get(queue_id, 0)

    def next_queue_offsets(self, topic: str) -> dict[int, int]:
        """Return the queue offsets of the next messages of a topic's queues that have had any."""
        queues = self._topics.get(topic)
        return {} if queues is None else dict(queues.next_offsets)

    def append_message(  # noqa: C901, PLR0912, PLR0915 - few calls, one pass: it runs once a message
        self, message: Message
    ) -> AppendMessageResult:
        """Append one message.

        END_OF_FILE: the last file is closed by its BLANK (or there is no file) and the next is not
        ready; wait for AllocateMappedFileService and call again.  After any other status but PUT_OK
        nothing was appended, and nothing will be.  Raises DiskError if the record could not be
        written: then nothing was appended, except perhaps the BLANK that ends a file.
        """
        queues = self._topics.get(message.topic) or self._table.find(message.topic)
        if queues is None:
            return self._refuse(_ILLEGAL)
        body_size = len(message.body)
        if self._position >= self._prepare_at:
            self._prepare(for_map=body_size <= SIZE_THROUGH_MAP)
        self.append_wall_s = now_s = self._now_s()
        if now_s >= self._millisecond_end_s:
            self._renew_timestamp()
        store_ms = self._store_timestamp_ms
        queue_id = message.queue_id
        next_offsets = queues.next_offsets
        physic_offset = self.max_offset
        middle = self._plain_middle
        if (
            message.sys_flag
            or message.born_timestamp_ms is not None
            or message.born_host is not None
            or message.reconsume_times
            or message.prepared_transaction_offset
        ):
            if message.sys_flag & TRANSACTION_PREPARED_TYPE:  # a bit of ROLLBACK too
                next_offsets = {}  # neither has a unit in its queue
            special = self._encode_middle(message, store_ms)
            if not isinstance(special, bytes):
                return self._refuse(special)
            middle = special
        queue_offset = next_offsets.get(queue_id, 0)
        size = 0
        scratch = self._scratch
        if (
            _encode_record is not None
            and body_size <= self._max_message_size
            and (body_size <= SIZE_THROUGH_MAP or self._has_buffer)
        ):
            view, start, end_max = self._view, self._position, self._record_end_max
            size_max = self._record_size_max
            if scratch is not None:
                view, start, end_max = scratch, 0, min(end_max - start, SCRATCH_SIZE)
            elif not self._has_buffer:
                size_max = SIZE_THROUGH_MAP
            size = _encode_record(
                view, start, end_max, queues.topic_field, queues.magic, queue_id,
                message.flag, queue_offset, physic_offset, middle, message.body,
                message.properties, _crc32, self._has_prop_crc, size_max,
            )  # fmt: skip
            if scratch is not None and size:
                self._write_record((scratch[:size],))
        if not size:  # not in use, no room, too large, or a message that no record can hold
            parts = self._encode_parts(message, queues, queue_offset, physic_offset, middle)
            if not isinstance(parts, tuple):
                return self._refuse(parts)
            record = _join(parts) if body_size <= JOINED_SIZE_MAX else None
            size = sum(map(len, parts)) if record is None else len(record)
            if self._position + size > self._record_end_max:
                return self._append_to_next_file(message, size)
            if record is None:
                self._write_record(parts)
            elif scratch is None and (size <= SIZE_THROUGH_MAP or self._has_buffer):
                self._view[self._position : self._position + size] = record
            else:
                self._write_record((record,))
            if self.feed is not None:
                find = (message.properties or _NO_PROPERTIES).get
                self.feed.append((
                    physic_offset, size, message.topic, queue_id, queue_offset, store_ms,
                    message.sys_flag, f"{find(PROPERTY_TAGS, '')}",  # as in the record
                    f"{find(PROPERTY_UNIQ_KEY, '')}", f"{find(PROPERTY_KEYS, '')}",
                ))  # fmt: skip
        end = self._position + size
        self._position = self._file.wrote_position = end  # type: ignore[union-attr] # there is room
        self.max_offset = next_offset = physic_offset + size
        next_offsets[queue_id] = queue_offset + 1
        if not queue_offset:
            self._topics[message.topic] = queues
        host = self._store_host_bytes
        return _new_tuple(  # as AppendMessageResult(...), at half the cost
            AppendMessageResult,
            (_PUT_OK, physic_offset, next_offset, queue_offset, 1, store_ms, host, None),
        )

    def _write_record(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write one record; above RLIMIT_FSIZE through the map, since the file has its blocks."""
        if self._has_buffer:
            self._copy_record(parts)
            return
        try:
            self._write_at(self._position, parts)
        except DiskFullError as error:
            if getattr(error.__cause__, "errno", None) != errno.EFBIG:
                raise
            self._copy_record(parts)

    def _copy_record(self, parts: Sequence[bytes | memoryview]) -> None:
        """Copy one record to the map or the write buffer."""
        end = self._position
        for part in parts:
            self._view[end : end + len(part)] = part
            end += len(part)

    def _append_to_next_file(self, message: Message, size: int) -> AppendMessageResult:
        """Append a message to the next file; refuse one that is too large for any file."""
        if size > self._record_end_max:
            return self._refuse(_SIZE_EXCEEDED)
        return self.append_message(message) if self._roll() else self._refuse(_END_OF_FILE)

    def append_batch(self, messages: Sequence[Message]) -> AppendMessageResult:
        """Append messages of one topic and queue end to end in one file: all of them or none.

        They share one store timestamp and have consecutive queue offsets (MessageExtBatch).  The
        statuses are those of ``append_message``, for all of them together.
        """
        first = messages[0]
        queues = self._table.find(first.topic)
        if queues is None:
            return self._refuse(_ILLEGAL)
        physic_offset = self.max_offset
        queue_offset = queues.next_offsets.get(first.queue_id, 0)
        self.append_wall_s = now_s = self._now_s()
        if now_s >= self._millisecond_end_s:
            self._renew_timestamp()
        store_timestamp_ms = self._store_timestamp_ms
        records = self._master_encoder.encode_batch(
            messages, queues, queue_offset, physic_offset, store_timestamp_ms
        )
        if not isinstance(records, list):
            return self._refuse(records)
        data = b"".join(records)
        if self._position + len(data) > self._record_end_max:
            if len(data) > self._record_end_max:
                return self._refuse(_SIZE_EXCEEDED)
            return self.append_batch(messages) if self._roll() else self._refuse(_END_OF_FILE)
        self._write(data)
        queues.next_offsets[first.queue_id] = queue_offset + len(records)
        self._topics[first.topic] = queues
        sizes = [len(record) for record in records[:-1]]
        return AppendMessageResult(
            _PUT_OK,
            physic_offset,
            self.max_offset,
            queue_offset,
            len(records),
            store_timestamp_ms,
            self._store_host_bytes,
            tuple(itertools.accumulate(sizes, initial=physic_offset)),
        )

    def _renew_timestamp(self) -> None:
        """Advance the log's time to now, and encode the bytes that its plain messages share.

        After the clock is set back this is not called, and the log's time stands still, until the
        clock is corrected: see ``expect_correction``.
        """
        now_ms = self._now_ms()
        right_ms = now_ms if self.correct_time is None else self.correct_time(now_ms)
        store_timestamp_ms = max(right_ms, self._store_timestamp_ms)
        self._store_timestamp_ms = store_timestamp_ms
        # By the wall clock as it is, without the correction.
        self._millisecond_end_s = (store_timestamp_ms + 1 - (right_ms - now_ms)) / 1000
        self._plain_middle = self._master_encoder.plain_middle(store_timestamp_ms)

    def expect_correction(self) -> None:
        """Ask ``correct_time`` at the next append, whatever the wall clock says."""
        self._millisecond_end_s = 0.0

    def name_store_host(self, store_host: tuple[str, int]) -> None:
        """Give the records of a master another host from now on.  Raises ValueError for a name."""
        encoder = self._master_encoder
        encoder.name_store_host(store_host)
        self._store_host_bytes = encoder.store_host_bytes
        self._millisecond_end_s = 0.0  # the shared bytes of its plain messages have the host

    def wall_time_ms(self) -> int:
        """Return the wall time, corrected where other clocks contradict this machine's."""
        now_ms = self._now_ms()
        return now_ms if self.correct_time is None else self.correct_time(now_ms)

    @property
    def store_timestamp_ms(self) -> int:
        """Store timestamp of the last record that was loaded or that a master appended."""
        return self._store_timestamp_ms

    @property
    def _master_encoder(self) -> MessageEncoder:
        assert self._encoder is not None, "a slave's log is appended to by append_data"
        return self._encoder

    def _refuse(self, status: AppendMessageStatus) -> AppendMessageResult:
        end = self.max_offset
        return AppendMessageResult(
            status, end, end, 0, 0, self._store_timestamp_ms, self._store_host_bytes
        )

    # -- a slave's appends -----------------------------------------------------------------------

    def first_message_end(self, physic_offset: int) -> int | None:
        """Return the end of the first whole message from an offset on; None: there is none.

        Blocks.  Raises DiskError.
        """
        return first_message_end(self.mapped_file_queue.disk, self.path, physic_offset)

    def append_data(self, physic_offset: int, data: memoryview) -> bool:
        """Append bytes that a master sent; they may begin and end anywhere in a record.

        ``physic_offset`` is the log's end; an empty log begins where the first bytes begin, which
        must be a file's start.  Return False if the next file is not ready: wait for
        AllocateMappedFileService and call again.  Raises FileSizeMismatchError if the bytes do not
        fit files of this size.  In both cases nothing was written.
        """
        size = len(data)
        assert size > 0
        if self._position == self.file_size:
            if self._file is None:
                self._begin_at(physic_offset)
            assert physic_offset == self.max_offset
            if size > self.file_size:
                raise _too_large(self, physic_offset, size)
            if not self._roll():
                return False
        assert physic_offset == self.max_offset
        if self._position + size > self.file_size:
            raise _too_large(self, physic_offset, size)
        self._write(data)
        if self._position == self.file_size:
            self.on_file_end()
        return True

    def _begin_at(self, physic_offset: int) -> None:
        """Let an empty log start at ``physic_offset``."""
        queue = self.mapped_file_queue
        if self._lock is None or queue.first_file_offset == physic_offset:
            return
        if physic_offset % self.file_size:
            raise FileSizeMismatchError(
                f"this log's files have {self.file_size} bytes, but the master's files are of"
                f" another size: one of them starts at {physic_offset}",
                path=self.path,
                size_found=self.file_size,
                size_wanted=physic_offset,
                hint="ask the master for its file size: hastore status MASTER",
            )
        assert not queue.files, "an empty log begins once"
        queue.first_file_offset = physic_offset
        self.max_offset = self.flushed_offset = physic_offset


def _make_encoder(config: StoreConfig, store_host: tuple[str, int]) -> MessageEncoder:
    try:
        return MessageEncoder(
            store_host=store_host,
            max_message_size=config.max_message_size,
            append_prop_crc=config.append_prop_crc,
        )
    except ValueError as error:
        raise ConfigError(
            f"the address in every record must be an IP address: {error}",
            hint="listen on an address, not on a name",
        ) from error


def _too_large(log: LogTail, physic_offset: int, size: int) -> FileSizeMismatchError:
    file_end = physic_offset - physic_offset % log.file_size + log.file_size
    size_wanted = physic_offset + size - (file_end - log.file_size)
    return FileSizeMismatchError(
        f"this log's files have {log.file_size} bytes, but the master's are larger, at least"
        f" {size_wanted}: it sent offsets {physic_offset} to {physic_offset + size} as one"
        f" piece, across {file_end}",
        path=log.path,
        size_found=log.file_size,
        size_wanted=size_wanted,
        hint="start again with an empty directory and the master's --mapped-file-size",
    )
