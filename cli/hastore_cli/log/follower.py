"""Follows a log that is being written: its last messages, then each new one as it comes.

::

    file … | record | record | record | record | 0000000…
               └ find_start: some record before the end   └ next_offset: read repeatedly

Only reads, and does not disturb a node that writes.  An incomplete record is read again until it is
complete; ``stalled`` says why it is not.  It is damage, and skipped, if a second read returns the
same bytes and something was written after them: a record that its consume queue names, or a later
file.  The first record, too, is one that its consume queue names, or a file's first: what merely
looks like a record may have been planted in a body (``queue.confirmed_records``).
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    MAGIC_POSITION,
    MESSAGE_PATTERN,
    claimed_size,
)
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordKind, check_record, is_only_begun
from hastore.store.tools.log_directory import find_log, is_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.message import StoredMessage
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.log_directory import LogDirectory, LogFile

_CHUNK_SIZE: Final = 1024 * 1024
_WINDOW_SIZE: Final = 256 * 1024
_ZERO_RUN_SIZE: Final = 64 * 1024


@final
class LogFollower:
    """Reads the log in ``path`` from ``next_offset`` on, repeatedly.

    Calls ``on_skip(from_offset, to_offset, why)`` for an unreadable range.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        on_skip: Callable[[int, int, str], None],
    ) -> None:
        self._disk = disk
        self._path = path
        self._on_skip = on_skip
        self._file: LogFile | None = None
        self._disk_file: DiskFile | None = None
        self.next_offset = 0
        # Why the bytes at next_offset are not a record yet; None if there are none.
        self.stalled: str | None = None

    def close(self) -> None:
        """Close the open file."""
        if self._disk_file is not None:
            self._disk_file.close()
        self._file = self._disk_file = None

    # -- the last messages -----------------------------------------------------------------------

    def last(self, count: int, fits: Callable[[RecordCheck], bool]) -> list[StoredMessage]:
        """Return the last ``count`` messages that match, and advance to the log's end.

        Goes back in ever larger steps, if needed to the log's beginning.
        """
        log = find_log(self._disk, self._path)
        window = _WINDOW_SIZE
        on_skip = self._on_skip
        skipped: list[tuple[int, int, str]] = []  # reported once, however often they are read
        self._on_skip = lambda *what: skipped.append(what)
        try:
            while True:
                start, is_first = find_start(self._disk, log, window)
                self.next_offset = start
                skipped.clear()
                found = deque(self.new_messages(fits), maxlen=count)
                if is_first or len(found) >= count:
                    break
                window *= 8
        finally:
            self._on_skip = on_skip
        for what in skipped:
            on_skip(*what)
        return list(found)

    # -- new ones --------------------------------------------------------------------------------

    def new_messages(self, fits: Callable[[RecordCheck], bool]) -> Iterator[StoredMessage]:
        """Yield the matching messages that became readable since the last call."""
        self.stalled = None
        while self._open_file():
            assert self._file is not None
            assert self._disk_file is not None
            base, file_size = self._file.physic_offset, self._file.size
            data, start = b"", self.next_offset
            is_fresh = False
            while (position := self.next_offset - base) < file_size:
                offset = self.next_offset
                at = offset - start
                check = check_record(data, at, file_size - position, offset)
                if check.kind is RecordKind.MESSAGE:
                    if fits(check):
                        yield decode(data, at)
                    self.next_offset += check.size
                    is_fresh = False
                    continue
                if not is_fresh:  # usually only the chunk ended here
                    data, start, is_fresh = self._read(position), offset, True
                    continue
                if check.kind is RecordKind.BLANK:
                    self.next_offset = base + file_size
                    break
                if check.kind is RecordKind.EMPTY:
                    return
                if not self._is_damage(data, position, check):
                    self.stalled = f"{check.kind.value}: {check.detail}"
                    return
                self._skip_damage(check)
                is_fresh = False

    def _open_file(self) -> bool:
        """Open the file that holds ``next_offset``; return False if there is none yet."""
        held = self._file
        if held is not None and held.physic_offset <= self.next_offset < held.next_offset:
            return True
        self.close()
        files = find_log(self._disk, self._path).files
        found = next((file for file in files if file.next_offset > self.next_offset), None)
        if found is None or not found.size:
            return False
        if found.physic_offset > self.next_offset:
            self._on_skip(self.next_offset, found.physic_offset, "no file holds them any more")
            self.next_offset = found.physic_offset
        self._file = found
        self._disk_file = self._disk.open_file(found.path, writable=False)
        return True

    def _read(self, position: int) -> bytes:
        """Read a chunk, or the whole record at ``position`` if that is larger."""
        assert self._disk_file is not None
        assert self._file is not None
        left = self._file.size - position
        data = self._disk_file.pread(min(_CHUNK_SIZE, left), position)
        size = claimed_size(data)
        if len(data) < size <= left and MESSAGE_PATTERN.match(data, MAGIC_POSITION):
            data = self._disk_file.pread(size, position)
        return data

    def _is_damage(self, data: bytes, position: int, check: RecordCheck) -> bool:
        """Whether the bytes here can no longer become a record."""
        if self._read(position) != data:
            return False
        assert self._file is not None
        # The end of a record whose lengths agree is known.
        end = position + check.size
        if check.size and end < self._file.size and any(self._read(end)[:BLANK_SIZE_MIN]):
            return True
        if self._resume_at() is not None:
            return True
        files = find_log(self._disk, self._path).files
        later = [file for file in files if file.physic_offset > self.next_offset]
        return any(is_written(self._disk, file) for file in later)

    def _resume_at(self) -> int | None:
        """Return the next confirmed place after damage at ``next_offset``."""
        assert self._file is not None
        root = find_log(self._disk, self._path).root
        base, end = self._file.physic_offset, self._file.next_offset
        assert self._disk_file is not None
        read = partial(_pread_at, self._disk_file, base)
        is_written_from = partial(_is_written_from, self._disk_file, base)
        if is_only_begun(self.next_offset, end, read, is_written_from):
            return None
        found = ConfirmedRecords(self._disk, root).resume_after(self.next_offset, end, read)
        return found if found is not None and any(read(found, BLANK_SIZE_MIN)) else None

    def _skip_damage(self, check: RecordCheck) -> None:
        """Skip damage: to its own end, the next confirmed record, or the next file."""
        assert self._file is not None
        offset = self.next_offset
        if check.size:
            self.next_offset += check.size
        else:
            self.next_offset = self._resume_at() or self._file.next_offset
        self._on_skip(offset, self.next_offset, f"{check.kind.value}: {check.detail}")


# -- where to begin ------------------------------------------------------------------------------


def find_start(disk: Disk, log: LogDirectory, window: int) -> tuple[int, bool]:
    """Return the offset of a record some ``window`` bytes before the log's end.

    And whether it is the log's beginning.
    """
    written = [file for file in log.files if is_written(disk, file)]
    if not written:
        return log.min_offset, True
    for file in reversed(written):
        with contextlib.closing(disk.open_file(file.path, writable=False)) as disk_file:
            end = _written_size(disk_file, file)
            if end > window:
                base = file.physic_offset
                found = ConfirmedRecords(disk, log.root).first_from(
                    base + end - window,
                    base + end,
                    partial(_pread_at, disk_file, base),
                )
                return base if found is None else found, False
        window -= end
    return written[0].physic_offset, True


def _pread_at(disk_file: DiskFile, base: int, physic_offset: int, size: int) -> bytes:
    position = physic_offset - base
    return disk_file.pread(min(size, disk_file.size - position), position)


def _is_written_from(disk_file: DiskFile, base: int, physic_offset: int) -> bool:
    """Whether any byte but zeros follows in a file."""
    position, size = physic_offset - base, disk_file.size
    while position < size and (position := disk_file.next_data(position)) < size:
        # next_data counts a partly read page as data: read up to a page's end.
        step = min(_ZERO_RUN_SIZE - position % _ZERO_RUN_SIZE, size - position)
        if any(disk_file.pread(step, position)):
            return True
        position += step
    return False


def _written_size(disk_file: DiskFile, file: LogFile) -> int:
    """Estimate how far a file is written, by halving: a long run of zeros counts as its end.

    A body of zeros may make the result too low, which only costs a longer walk.
    """
    low, high = 0, file.size
    while high - low > _ZERO_RUN_SIZE:
        middle = (low + high) // 2
        if any(disk_file.pread(min(_ZERO_RUN_SIZE, file.size - middle), middle)):
            low = middle
        else:
            high = middle
    return high
