"""The log: records one behind the other, in files of one size, appended through a map.

::

    file 0                          file 1
    record record … BLANK filler ── record record … │ max_offset
                                     flushed_offset ┘

Everything here is synchronous: in one trio thread an append without ``await`` is atomic, so there
is no put lock.  Two ways in: ``append_message`` and ``append_batch`` (a master, which assigns
offsets and times) and ``append_data`` (a slave, which copies its master's bytes).

Invariants: flushed_offset ≤ max_offset; both only grow; a queue offset advances only with its
record; the store timestamp never goes backwards along the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.errors import ConfigError, FileSizeMismatchError, StoreClosedError
from hastore.status import AppendMessageStatus
from hastore.store.append_message_result import AppendMessageResult
from hastore.store.log_loader import LoadedLog, LoadReport, LogLoader
from hastore.store.message_codec import (
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_TYPE_MASK,
    encode_blank,
)
from hastore.store.message_encoder import MessageEncoder
from hastore.store.record_check import BLANK_SIZE_MIN
from hastore.store.store_directory import COMMIT_LOG_DIR, check_is_store
from hastore.store.store_lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.message import Message
    from hastore.store.mapped_file import MappedFile
    from hastore.store.mapped_file_queue import MappedFileQueue

__all__ = ["AppendMessageResult", "CommitLog"]

_PUT_OK: Final = AppendMessageStatus.PUT_OK
_END_OF_FILE: Final = AppendMessageStatus.END_OF_FILE
_SIZE_EXCEEDED: Final = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
_ILLEGAL: Final = AppendMessageStatus.MESSAGE_ILLEGAL
_new_tuple = tuple.__new__


@final
class CommitLog:
    """An open commit log; ``open`` makes it, ``close`` ends it.

    ``max_offset`` is the end of what was appended, ``flushed_offset`` of what is on disk.
    ``path`` is the store's directory.
    """

    __slots__ = (
        "_encoder",
        "_file",
        "_lock",
        "_now_ms",
        "_position",
        "_prepare_at",
        "_store_timestamp_ms",
        "_table",
        "_view",
        "file_size",
        "flushed_offset",
        "load_report",
        "mapped_file_queue",
        "max_offset",
        "path",
    )

    @classmethod
    def open(
        cls,
        env: Env,
        config: StoreConfig,
        *,
        store_host: tuple[str, int],
        needs_queue_offsets: bool,
    ) -> CommitLog:
        """Open a directory, made where there is none; blocks.

        ``needs_queue_offsets`` is true for a master.  Raises StoreLockedError, NotAStoreError,
        FileSizeMismatchError, LogDamagedError, DiskError, and ConfigError where ``store_host`` is
        no IP address.
        """
        path = config.data_dir.rstrip("/") or "/"
        encoder = _make_encoder(config, store_host) if needs_queue_offsets else None
        check_is_store(env.disk, path)
        env.disk.make_dirs(path)
        lock = StoreLock.take(env.disk, path)
        try:
            env.disk.make_dirs(f"{path}/{COMMIT_LOG_DIR}")
            loaded = LogLoader(
                env=env,
                data_dir=path,
                file_size_wanted=config.mapped_file_size,
                needs_queue_offsets=needs_queue_offsets,
                last_exit_ok=lock.last_exit_ok,
                before_change=lambda: lock.write_abort(env.process_id),
            ).load()
        except BaseException:
            lock.release(clean=False)
            raise
        return cls(env, path, lock, encoder, loaded)

    def __init__(
        self,
        env: Env,
        path: str,
        lock: StoreLock,
        encoder: MessageEncoder | None,
        loaded: LoadedLog,
    ) -> None:
        self.path = path
        self.load_report: LoadReport = loaded.report
        self.mapped_file_queue: MappedFileQueue = loaded.queue
        self.file_size: int = loaded.queue.file_size
        self.max_offset: int = loaded.queue.max_offset
        self.flushed_offset: int = loaded.queue.flushed_offset
        self._lock: StoreLock | None = lock
        self._encoder = encoder
        self._table = loaded.table
        self._now_ms = env.wall_clock.now_ms
        self._store_timestamp_ms = loaded.store_timestamp_ms
        # The file being written.  Without one the position says "full".
        self._file: MappedFile | None = None
        self._view = memoryview(b"")
        self._position: int = self.file_size
        self._prepare_at: int = 0
        if loaded.queue.files:
            self._write_to(loaded.queue.files[-1])

    @property
    def min_offset(self) -> int:
        """Where the oldest file starts."""
        return self.mapped_file_queue.min_offset

    # -- a master's appends ----------------------------------------------------------------------

    def append_message(self, message: Message) -> AppendMessageResult:
        """Append one message.

        END_OF_FILE: the last file is closed by its BLANK (or there is no file) and the next is not
        ready; wait for AllocateMappedFileService and call again.  Every other status but PUT_OK is
        final for this message, and nothing was appended.
        """
        topic = message.topic
        queues = self._table.topics.get(topic) or self._table.find(topic)
        encoder = self._encoder
        assert encoder is not None, "a slave's log is appended to by append_data"
        if queues is None:
            return self._refuse(_ILLEGAL)
        sys_flag = message.sys_flag
        queue_id = message.queue_id
        next_offsets = queues.next_offsets
        is_indexed = not sys_flag & TRANSACTION_PREPARED_TYPE  # a bit of ROLLBACK too
        queue_offset = next_offsets.get(queue_id, 0) if is_indexed else 0
        store_timestamp_ms = self._now_ms()
        if store_timestamp_ms < self._store_timestamp_ms:  # noqa: PLR1730 - max() costs a call
            store_timestamp_ms = self._store_timestamp_ms
        physic_offset = self.max_offset
        record = encoder.encode(message, queues, queue_offset, physic_offset, store_timestamp_ms)
        if not isinstance(record, bytes):
            return self._refuse(record)
        size = len(record)
        position = self._position
        end = position + size
        if end + BLANK_SIZE_MIN > self.file_size:
            if size + BLANK_SIZE_MIN > self.file_size:
                return self._refuse(_SIZE_EXCEEDED)
            return self.append_message(message) if self._roll() else self._refuse(_END_OF_FILE)
        mapped_file = self._file
        assert mapped_file is not None
        self._view[position:end] = record
        next_offset = physic_offset + size
        self._position = mapped_file.wrote_position = end
        self.max_offset = next_offset
        self._store_timestamp_ms = store_timestamp_ms
        if is_indexed:
            next_offsets[queue_id] = queue_offset + 1
        if end >= self._prepare_at:
            self._want_next_file()
        return _new_tuple(
            AppendMessageResult,
            (
                _PUT_OK,
                physic_offset,
                next_offset,
                queue_offset,
                1,
                store_timestamp_ms,
                encoder.store_host_bytes,
                None,
            ),
        )

    def append_batch(self, messages: Sequence[Message]) -> AppendMessageResult:
        """Append messages of one topic and queue: one behind the other, all in one file, or none.

        They share one store timestamp and have consecutive queue offsets (MessageExtBatch).  The
        statuses are those of ``append_message``, for all of them together.
        """
        first = messages[0]
        encoder = self._encoder
        assert encoder is not None, "a slave's log is appended to by append_data"
        queues = self._table.find(first.topic)
        if queues is None:
            return self._refuse(_ILLEGAL)
        if sum(len(message.body) for message in messages) > encoder.max_message_size:
            return self._refuse(_SIZE_EXCEEDED)
        queue_id = first.queue_id
        first_queue_offset = queue_offset = queues.next_offsets.get(queue_id, 0)
        store_timestamp_ms = max(self._now_ms(), self._store_timestamp_ms)
        physic_offset = next_offset = self.max_offset
        records = []
        offsets = []
        for message in messages:
            assert message.topic == first.topic
            assert message.queue_id == queue_id
            if message.sys_flag & TRANSACTION_TYPE_MASK:
                return self._refuse(_ILLEGAL)
            record = encoder.encode(message, queues, queue_offset, next_offset, store_timestamp_ms)
            if not isinstance(record, bytes):
                return self._refuse(record)
            records.append(record)
            offsets.append(next_offset)
            queue_offset += 1
            next_offset += len(record)
        size = next_offset - physic_offset
        if size + BLANK_SIZE_MIN > self.file_size:
            return self._refuse(_SIZE_EXCEEDED)
        if self._position + size + BLANK_SIZE_MIN > self.file_size:
            return self.append_batch(messages) if self._roll() else self._refuse(_END_OF_FILE)
        self._write(b"".join(records))
        self._store_timestamp_ms = store_timestamp_ms
        queues.next_offsets[queue_id] = queue_offset
        return AppendMessageResult(
            _PUT_OK,
            physic_offset,
            next_offset,
            first_queue_offset,
            len(records),
            store_timestamp_ms,
            encoder.store_host_bytes,
            tuple(offsets),
        )

    # -- a slave's appends -----------------------------------------------------------------------

    def append_data(self, physic_offset: int, data: memoryview) -> bool:
        """Append bytes that a master sent; they may begin and end anywhere in a record.

        ``physic_offset`` is the log's end; an empty log begins wherever the first bytes say, which
        must be a file's start.  False: the next file is not ready, nothing was written; wait for
        AllocateMappedFileService and call again.  Raises FileSizeMismatchError where the bytes do
        not fit files of this size: nothing was written then either.
        """
        size = len(data)
        assert size > 0
        if self._position == self.file_size:
            if self._file is None:
                self._begin_at(physic_offset)
            assert physic_offset == self.max_offset
            if size > self.file_size:
                raise self._too_large(physic_offset, size)
            if not self._roll():
                return False
        assert physic_offset == self.max_offset
        if self._position + size > self.file_size:
            raise self._too_large(physic_offset, size)
        self._write(data)
        return True

    def _begin_at(self, physic_offset: int) -> None:
        """Let the first bytes say where an empty log starts."""
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
        assert queue.first_file_offset is None, "an empty log begins once"
        queue.first_file_offset = physic_offset
        self.max_offset = self.flushed_offset = physic_offset

    def _too_large(self, physic_offset: int, size: int) -> FileSizeMismatchError:
        file_end = physic_offset - physic_offset % self.file_size + self.file_size
        size_wanted = physic_offset + size - (file_end - self.file_size)
        return FileSizeMismatchError(
            f"this log's files have {self.file_size} bytes, but the master's are larger, at least"
            f" {size_wanted}: it sent offsets {physic_offset} to {physic_offset + size} as one"
            f" piece, across {file_end}",
            path=self.path,
            size_found=self.file_size,
            size_wanted=size_wanted,
            hint="start again with an empty directory and the master's --mapped-file-size",
        )

    # -- files -----------------------------------------------------------------------------------

    def _write(self, data: bytes | memoryview) -> None:
        """Copy to the log's end; there is room."""
        assert self._file is not None
        size = len(data)
        end = self._position + size
        self._view[self._position : end] = data
        self._position = self._file.wrote_position = end
        self.max_offset += size
        if end >= self._prepare_at:
            self._want_next_file()

    def _roll(self) -> bool:
        """Close the last file by a BLANK and go to the next; false where that is not ready."""
        if self._lock is None:
            raise StoreClosedError(f"the store in {self.path} is closed")
        mapped_file = self._file
        if mapped_file is not None and self._position < self.file_size:
            remaining = self.file_size - self._position
            self._view[self._position : self._position + BLANK_SIZE_MIN] = encode_blank(remaining)
            self._position = mapped_file.wrote_position = self.file_size
            self.max_offset += remaining
        prepared = self.mapped_file_queue.take_prepared()
        if prepared is None:
            self.mapped_file_queue.want_file()
            return False
        self._write_to(prepared)
        return True

    def _write_to(self, mapped_file: MappedFile) -> None:
        """Go on in this file."""
        self._file = mapped_file
        self._view = mapped_file.view
        self._position = mapped_file.wrote_position
        self._prepare_at = (self.file_size + 1) // 2

    def _want_next_file(self) -> None:
        """Ask for the next file, once a file."""
        self._prepare_at = self.file_size + 1
        self.mapped_file_queue.want_file()

    def _refuse(self, status: AppendMessageStatus) -> AppendMessageResult:
        end = self.max_offset
        host = b"" if self._encoder is None else self._encoder.store_host_bytes
        return AppendMessageResult(status, end, end, 0, 0, self._store_timestamp_ms, host)

    # -- reading and flushing --------------------------------------------------------------------

    def read(self, physic_offset: int, size: int) -> bytes:
        """Give up to ``size`` bytes, as far as they are written and in one file; may be cold.

        Empty where the log has nothing at that offset.
        """
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(physic_offset)
        if mapped_file is None:
            return b""
        position = physic_offset - mapped_file.file_from_offset
        size = min(size, mapped_file.wrote_position - position)
        return mapped_file.disk_file.pread(size, position) if size > 0 else b""

    def flush_targets(self) -> list[tuple[MappedFile, int]]:
        """Give the files to sync, and the position that each may claim to have flushed then."""
        return self.mapped_file_queue.flush_targets()

    def mark_flushed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Note that each of ``flush_targets`` was synced since."""
        self.mapped_file_queue.mark_flushed(targets)
        self.flushed_offset = self.mapped_file_queue.flushed_offset

    def close(self, *, clean: bool) -> None:
        """Close the files and give the directory up; idempotent.

        ``clean``: all is flushed; the empty next file and ``abort`` are removed.  Otherwise both
        stay, and the next open looks closer.
        """
        lock, self._lock = self._lock, None
        if lock is None:
            return
        assert not clean or self.flushed_offset == self.max_offset
        self._file = None
        self._view = memoryview(b"")
        self._position = self.file_size
        try:
            self.mapped_file_queue.close(remove_prepared=clean)
        except BaseException:
            clean = False
            raise
        finally:
            lock.release(clean=clean)


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
