"""The files of consume queues, and which of them are open or dirty.

    consumequeue/TOPIC/QUEUE_ID/%020d    units (``unit``); the name is the first byte's position

Files are sparse and never mapped: a store has thousands of queues, most with a few units.  The
``OPEN_FILES_MAX`` files used last are open; a file that is closed meanwhile stays dirty.

Invariant: a file returned by ``dirty_files`` stays open until ``mark_flushed``, so that another
thread can sync it meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from hastore.env.interface import PAGE_SIZE
from hastore.errors import FlushFailedError
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.unit import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.env.interface import Disk, DiskFile

OPEN_FILES_MAX: Final = 256
FLUSH_FILES_MAX: Final = 128  # that one call of dirty_files returns


@final
class ConsumeQueueFile:
    """One file of one queue; ``start`` is the position of its first byte in the queue.

    The bytes from ``dirty_from`` to ``dirty_to`` may not be on the disk; ``flushing_from`` is the
    ``dirty_from`` of the flush under way, None without one.  ``is_made``: the file
    was there before, so it must be there when it is opened.
    """

    __slots__ = (
        "closing",
        "dirty_from",
        "dirty_to",
        "disk_file",
        "flushing_from",
        "is_made",
        "is_removed",
        "start",
    )

    def __init__(self, start: int, *, is_made: bool = False) -> None:
        self.start = start
        self.is_made = is_made
        self.disk_file: DiskFile | None = None
        self.dirty_from = 0
        self.dirty_to = 0
        self.flushing_from: int | None = None
        self.is_removed = False
        self.closing: DiskFile | None = None  # to be closed once the file is removed


@final
class ConsumeQueueFiles:
    """Opens, reads, writes and removes the files of all queues; ``file_size`` is in whole units.

    Every method raises DiskError.
    """

    def __init__(self, disk: Disk, file_size: int) -> None:
        assert file_size % UNIT_SIZE == 0
        self.disk = disk
        self.file_size = file_size
        self.new_dirs: dict[str, int] = {}  # directories, and how many new files each got
        self.opened = 0  # how often a file was opened
        self._open: OrderedDict[ConsumeQueueFile, None] = OrderedDict()
        self._dirty: dict[ConsumeQueueFile, str] = {}
        self._flushing: dict[DiskFile, ConsumeQueueFile] = {}
        self._failure: FlushFailedError | None = None

    # -- bytes -----------------------------------------------------------------------------------

    def open(self, path: str, file: ConsumeQueueFile) -> DiskFile:
        """Return the open file ``path``/``start``, making it if there is none."""
        disk_file = file.disk_file
        if disk_file is not None:
            self._open.move_to_end(file)
            return disk_file
        if len(self._open) >= OPEN_FILES_MAX:
            self._close_oldest()
        self.opened += 1
        file.disk_file = disk_file = self.disk.open_sparse_file(
            f"{path}/{file_name(file.start)}", self.file_size, creates=not file.is_made
        )
        file.is_made = True
        self._open[file] = None
        return disk_file

    def _close_oldest(self) -> None:
        for file in self._open:
            if file.flushing_from is None:
                self._close(file)
                return

    def _close(self, file: ConsumeQueueFile) -> None:
        self._open.pop(file, None)
        if file.disk_file is not None:
            file.disk_file.close()
            file.disk_file = None

    def write(
        self, path: str, file: ConsumeQueueFile, data: bytes | memoryview, position: int
    ) -> None:
        """Write to a file and mark it dirty, even after an error."""
        disk_file = self.open(path, file)
        self.mark_dirty(path, file, position, position + len(data))
        disk_file.pwrite(data, position)

    def mark_dirty(self, path: str, file: ConsumeQueueFile, begin: int, end: int) -> None:
        """Record that a range of a file may not be on the disk."""
        if file not in self._dirty:
            self._dirty[file] = path
            file.dirty_from, file.dirty_to = begin, end
            return
        file.dirty_from = min(file.dirty_from, begin)
        file.dirty_to = max(file.dirty_to, end)

    def remove(self, path: str, file: ConsumeQueueFile) -> None:
        """Remove a file for good, without a flush."""
        file.is_removed = True
        self._dirty.pop(file, None)
        if file.flushing_from is None:
            self._close(file)
        self.disk.remove(f"{path}/{file_name(file.start)}")

    def detach(self, file: ConsumeQueueFile) -> DiskFile | None:
        """Take out a file that is to be removed; return what to close afterwards, if anything.

        If a flush of it is under way, ``mark_flushed`` closes it.
        """
        file.is_removed = True
        self._dirty.pop(file, None)
        self._open.pop(file, None)
        return file.disk_file if file.flushing_from is None else None

    def attach(self, path: str, file: ConsumeQueueFile) -> None:
        """Take back a file that could not be removed and was not closed."""
        file.is_removed = False
        if file.disk_file is not None:
            self._open[file] = None
        if file.flushing_from is not None or file.dirty_from < file.dirty_to:
            self._dirty[file] = path

    def abandon(self, path: str, files: Iterable[ConsumeQueueFile]) -> None:
        """Close the files of a queue's directory that is about to be removed, without a flush."""
        for file in files:
            disk_file = self.detach(file)
            if disk_file is not None:
                disk_file.close()
                file.disk_file = None
        self.new_dirs.pop(path, None)

    def record_new_dir(self, path: str) -> None:
        """Record that a directory has a new entry and must be synced."""
        self.new_dirs[path] = self.new_dirs.get(path, 0) + 1

    # -- to the disk -----------------------------------------------------------------------------

    def dirty_files(self, least_pages: int) -> list[DiskFile]:
        """Return at most FLUSH_FILES_MAX open files to sync; later calls return the others.

        They come in the order in which they became dirty.  ``least_pages``: only files with this
        many dirty pages, and full ones.
        """
        if self._failure is not None:
            raise self._failure
        found: list[DiskFile] = []
        for file, path in list(self._dirty.items()):
            if len(found) == FLUSH_FILES_MAX:
                break
            begin, end = file.dirty_from, file.dirty_to
            if file.flushing_from is not None:  # an earlier flush failed or was cancelled
                begin = min(begin, file.flushing_from)
            elif begin == end:
                continue
            pages = end // PAGE_SIZE - begin // PAGE_SIZE
            if end < self.file_size and pages < least_pages:
                continue
            disk_file = self.open(path, file)
            file.flushing_from = begin
            file.dirty_from = end
            self._flushing[disk_file] = file
            found.append(disk_file)
        return found

    def mark_flushed(self, disk_files: Iterable[DiskFile]) -> None:
        """Record that what these files held when ``dirty_files`` returned them is on the disk."""
        for disk_file in disk_files:
            file = self._flushing.pop(disk_file, None)
            if file is None:
                continue
            file.flushing_from = None
            path = self._dirty.pop(file, None)
            if file.is_removed:
                self._close(file)
            elif path is not None and file.dirty_from < file.dirty_to:
                self._dirty[file] = path  # written meanwhile: after those still waiting

    def ensure_flushed(self, path: str, file: ConsumeQueueFile) -> None:
        """Sync a file now if it is dirty; blocks.

        A failure is final: a second sync would succeed although the bytes are not on the disk.
        """
        if self._failure is not None:
            raise self._failure
        if file not in self._dirty:
            return
        try:
            self.open(path, file).sync()
        except FlushFailedError as error:
            self._failure = error
            raise
        file.dirty_from = file.dirty_to
        if file.flushing_from is None:
            del self._dirty[file]

    @property
    def is_flushed(self) -> bool:
        """Whether everything written is on the disk."""
        return not self._dirty

    def close(self) -> None:
        """Close all files without syncing."""
        for file in list(self._open):
            self._close(file)
        self._flushing.clear()
