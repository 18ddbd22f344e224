"""The end of an open log: the file being written, and the step from one file to the next.

::

    file 0                          file 1                       (prepared)
    record record … BLANK filler ── record record … │
                                            position ┘

The part of appending that masters and slaves share; ``CommitLog`` adds the rest.  With a transient
store pool appended bytes are in a buffer, where nobody reads them, until they are committed:

    ───────── flushed_offset ───────── readable_offset ───────── max_offset
       on disk                in the file              in a buffer

Invariants: flushed_offset ≤ readable_offset ≤ max_offset; ``max_offset`` is the start of the file
being written plus ``position``; without such a file ``position`` is the file size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.errors import DiskError, StoreClosedError
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.store.record.message_codec import encode_blank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.store.log.mapped_file import MappedFile
    from hastore.store.log.mapped_file_queue import MappedFileQueue
    from hastore.store.log.transient_store_pool import TransientStorePool
    from hastore.store.recovery.log_loader import LoadedLog, LoadReport
    from hastore.store.store_lock import StoreLock

# Bytes of pages made at once (few, because a sync writes them all), and how many are left then.
PAGES_SIZE: Final = 64 * 1024
PAGES_LEFT: Final = 16 * 1024
# Larger records are written: through the map 256 KiB take 500 us, because most of the pages are not
# there, and 120 us with pwrite.  One of this size fits what is left.
SIZE_THROUGH_MAP: Final = 12 * 1024
# Bytes of one pwrite.  For more the kernel takes pages of 2 MiB, and a virtual machine may need
# fresh ones from its host: a pwrite of 4 MiB then takes 9 ms, and four of 1 MiB take 0.8 ms.
WRITE_SIZE_MAX: Final = 1024 * 1024


class LogTail:
    """Where bytes are appended, read back and flushed.

    ``max_offset`` is the end of what was appended, ``flushed_offset`` of what is on disk.  ``path``
    is the store's directory.
    """

    __slots__ = (
        "_committed_offset",
        "_file",
        "_has_buffer",
        "_is_buffered",
        "_lock",
        "_makes_pages",
        "_pages_end",
        "_position",
        "_prepare_at",
        "_record_end_max",
        "_view",
        "_want_file_at",
        "file_size",
        "flushed_offset",
        "load_report",
        "mapped_file_queue",
        "max_offset",
        "on_file_end",
        "path",
    )

    def __init__(self, path: str, lock: StoreLock, loaded: LoadedLog) -> None:
        self.path = path
        self.load_report: LoadReport = loaded.report
        self.mapped_file_queue: MappedFileQueue = loaded.queue
        self.file_size: int = loaded.queue.file_size
        self.max_offset: int = loaded.queue.max_offset
        self.flushed_offset: int = loaded.queue.flushed_offset
        # Called after the last byte of a file was written, at which its date is from.
        self.on_file_end: Callable[[], object] = lambda: None
        self._is_buffered = False
        self._has_buffer = False  # the last file; none if the pool is used up
        self._makes_pages = True  # for appends through the map
        self._committed_offset = 0
        self._lock: StoreLock | None = lock
        self._file: MappedFile | None = None
        self._view = memoryview(b"")
        self._position: int = self.file_size
        self._record_end_max = self.file_size - BLANK_SIZE_MIN
        # Positions: from where the next file is to be asked for (beyond the file: not again), from
        # where ``_prepare`` is due (<= _want_file_at), and up to where pages were made.
        self._want_file_at: int = 0
        self._prepare_at: int = 0
        self._pages_end: int = 0
        if loaded.queue.files:
            self._write_to(loaded.queue.files[-1])

    @property
    def has_files(self) -> bool:
        """Whether there is a file, or the start of the first one is known."""
        queue = self.mapped_file_queue
        return (
            bool(queue.files) or queue.prepared is not None or queue.first_file_offset is not None
        )

    def choose_file_size(self, file_size: int) -> None:
        """Set the size of all files to come; only for a log without files."""
        assert not self.has_files
        self.mapped_file_queue.file_size = self.file_size = self._position = file_size
        self._record_end_max = file_size - BLANK_SIZE_MIN

    @property
    def min_offset(self) -> int:
        """Where the oldest file starts."""
        return self.mapped_file_queue.min_offset

    @property
    def readable_offset(self) -> int:
        """End of the committed bytes, which readers, slaves and dispatch may see.

        Without a transient store pool that is ``max_offset``.
        """
        return self._committed_offset if self._is_buffered else self.max_offset

    # -- writing ---------------------------------------------------------------------------------

    def _write(self, data: bytes | memoryview) -> None:
        """Write records, or parts of some, to the log's end; the file has room for them.

        Not through the map: a large memcpy stores its first bytes last, so a kill in the middle of
        it would leave a hole with intact records after it, which is damage and not a torn tail.
        Raises DiskError, and then leaves the log unchanged.
        """
        assert self._file is not None
        size = len(data)
        position = self._position
        if self._has_buffer:
            self._view[position : position + size] = data
        else:
            self._write_at(position, (data,))
        self._position = self._file.wrote_position = end = position + size
        self.max_offset += size
        if end >= self._want_file_at:
            self._want_next_file()

    def _write_at(self, position: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write parts to the file in order, so that a kill leaves a prefix.

        If that fails, zero what may be there and raise DiskError.
        """
        disk_file = self._file.disk_file  # type: ignore[union-attr] # there is room
        end = position
        try:
            for part in parts:
                size = len(part)
                if size <= WRITE_SIZE_MAX:
                    disk_file.pwrite(part, end)
                else:
                    whole = memoryview(part)
                    for begin in range(0, size, WRITE_SIZE_MAX):
                        disk_file.pwrite(whole[begin : begin + WRITE_SIZE_MAX], end + begin)
                end += size
        except DiskError:
            size = sum(map(len, parts))
            self._view[position : position + size] = bytes(size)
            raise

    def _roll(self) -> bool:
        """End the last file with a BLANK and go to the next; return false if that is not ready."""
        if self._lock is None:
            raise StoreClosedError(f"the store in {self.path} is closed")
        mapped_file = self._file
        if mapped_file is not None and self._position < self.file_size:
            remaining = self.file_size - self._position
            blank_end = self._position + BLANK_SIZE_MIN
            self._view[self._position : blank_end] = encode_blank(remaining)
            if self._has_buffer:  # it may hold bytes of an earlier file
                self._view[blank_end:] = bytes(remaining - BLANK_SIZE_MIN)
            self._position = mapped_file.wrote_position = self.file_size
            self.max_offset += remaining
            self.on_file_end()
        prepared = self.mapped_file_queue.take_prepared()
        if prepared is None:
            self.mapped_file_queue.want_file()
            return False
        self._write_to(prepared)
        return True

    def _write_to(self, mapped_file: MappedFile) -> None:
        """Append to this file from now on."""
        self._file = mapped_file
        self._has_buffer = mapped_file.write_buffer is not None
        self._view = mapped_file.append_view
        self._position = mapped_file.wrote_position
        self._want_file_at = (self.file_size + 1) // 2
        self._prepare_at = self._pages_end = 0

    def _want_next_file(self) -> None:
        """Ask for the next file, once a file."""
        self._want_file_at = self.file_size + 1
        self.mapped_file_queue.want_file()

    def _prepare(self, *, for_map: bool) -> None:
        """Ask for the next file if that is due, and ``for_map`` make the next pages for the map.

        At a fault on a page that was never written the kernel also reads ahead, zeroing far more
        than it needs: 1.2 to 2 us for each KiB that is appended, and 0.4 if the page is there.
        """
        mapped_file, position = self._file, self._position
        if mapped_file is None:
            return
        if position >= self._want_file_at:
            self._want_next_file()
        if not for_map:
            return  # ``_prepare_at`` stays, so that the next append calls this again
        self._prepare_at = self._want_file_at
        through_map = self._makes_pages and not self._has_buffer
        if through_map and self._pages_end < self.file_size:
            start = max(position, self._pages_end)
            end = start - start % PAGES_SIZE + PAGES_SIZE
            if end - position < PAGES_LEFT:  # after a large record
                end += PAGES_SIZE
            end = min(end, self.file_size)
            mapped_file.disk_file.make_pages(start, end - start)
            self._pages_end = end
            self._prepare_at = min(self._want_file_at, end - PAGES_LEFT)

    # -- committing: from the write buffers to the files -----------------------------------------

    def begin_buffering(self, pool: TransientStorePool) -> None:
        """Append to buffers of ``pool`` from now on; they must be committed.

        Called once, before the first append.
        """
        self._committed_offset = self.max_offset
        self._is_buffered = True
        self.mapped_file_queue.begin_buffering(pool)
        if self._file is not None and self._position < self.file_size:
            self._has_buffer = self._file.write_buffer is not None
            self._view = self._file.append_view

    def commit_targets(self, least_pages: int = 0) -> list[tuple[MappedFile, int]]:
        """Return the files to commit, oldest first, each with the position to commit up to."""
        return self.mapped_file_queue.commit_targets(least_pages)

    def mark_committed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Record that each of ``commit_targets`` was committed."""
        self.mapped_file_queue.mark_committed(targets)
        self._committed_offset = self.mapped_file_queue.committed_offset

    # -- reading and flushing --------------------------------------------------------------------

    def read(self, physic_offset: int, size: int) -> bytes:
        """Return up to ``size`` committed bytes of one file; may wait for the disk.

        Empty if the log has nothing at that offset.
        """
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(physic_offset)
        if mapped_file is None:
            return b""
        position = physic_offset - mapped_file.file_from_offset
        size = min(size, mapped_file.committed_position - position)
        if size <= 0:
            return b""
        with mapped_file.held():
            return mapped_file.disk_file.pread(size, position)

    def read_now(self, physic_offset: int, buffer: memoryview) -> int:
        """Read committed bytes into ``buffer`` as far as they are in the page cache.

        Return how many, 0 if none or unknown.
        """
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(physic_offset)
        if mapped_file is None:
            return 0
        position = physic_offset - mapped_file.file_from_offset
        size = max(mapped_file.committed_position - position, 0)
        return mapped_file.disk_file.read_now(buffer[:size], position) if size else 0

    def flush_targets(self, least_pages: int = 0) -> list[tuple[MappedFile, int]]:
        """Return the files to sync, each with the position that will then be flushed."""
        return self.mapped_file_queue.flush_targets(least_pages)

    def mark_flushed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Record that each of ``flush_targets`` was synced."""
        self.mapped_file_queue.mark_flushed(targets)
        self.flushed_offset = self.mapped_file_queue.flushed_offset

    def close(self, *, clean: bool) -> None:
        """Close the files and release the directory; idempotent.

        ``clean``: all is flushed; the empty next file and ``abort`` are removed.  Otherwise both
        stay, and the next open recovers the log as after a crash.
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
