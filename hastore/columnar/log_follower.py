"""How far a log that is being written may be read, at a cost that does not grow with the log.

    file | file | file     | file  (zeros)      walked: only the file that holds the end, and of it
                  ^known ^end                   only what comes after the last walk

A log is read up to its confirm offset; without a checkpoint, up to the last intact record.
Invariant: every returned offset is where a record begins, or where a file ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import attrs

from hastore.columnar.log_position import confirmed_offset, walk_blocks
from hastore.store.record.layout import SIZE_AND_OFFSET
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_directory import find_log, is_written, read_at

if TYPE_CHECKING:
    from hastore.columnar.record_block import RecordBlock
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory

_GOOD_MAX: Final = 100
_HEAD_SIZE: Final = SIZE_AND_OFFSET.size  # a record up to its own offset, which is included


class _Mark(NamedTuple):
    """The head of a record that was read; if it changes, the log was replaced or cut."""

    physic_offset: int
    head: bytes


@final
@attrs.define(eq=False)
class StoreFollower:
    """Follows one store; remembers how far it has walked, and keeps no file open."""

    disk: Disk
    store: str
    _known: int | None = None  # a boundary; everything below it has been walked
    _mark: _Mark | None = None  # the record that ends there
    _zeros_at: int | None = None  # a walk found only zeros from here on
    _limit: int | None = None  # the newest confirm offset that was read
    _good: set[int] = attrs.field(factory=set)  # offsets known to be boundaries

    def end(self) -> int:
        """Return how far the log may be read now.  Raises NotAStoreError, DiskError."""
        log = find_log(self.disk, self.store)
        limit = confirmed_offset(self.disk, self.store)
        # While the checkpoint cannot be read, the last known limit holds.
        self._limit = limit = self._limit if limit is None else limit
        self._forget_what_changed(log)
        at = self._nearest(log, limit)
        end = at
        for block, end in walk_blocks(self.disk, log, at, empty_at=self._zeros_at):
            at = self._jump(end, limit, at) if block is None else self._take(block, limit) or at
            # Below a limit everything is read.  Without one, an intact record may follow a damaged
            # one in the next chunk: two records of 3 MB do not fit in one.
            if limit is not None and at != end:
                break
        else:
            self._zeros_at = end
        return at

    def _take(self, block: RecordBlock, limit: int | None) -> int | None:
        """Return how far a block may be read, None for not at all; remember its last record."""
        count = block.count
        if limit is not None:
            count = int((block.ends + block.physic_offset).searchsorted(limit, side="right"))
        else:
            count = _intact_count(block)
        if not count:
            return None
        start = int(block.starts[count - 1])
        head = block.data[start : start + _HEAD_SIZE]
        self._mark = _Mark(block.physic_offset + start, head)
        self._known = block.physic_offset + int(block.ends[count - 1])
        return self._known

    def _jump(self, end: int, limit: int | None, at: int) -> int:
        """Return where reading resumes after damage, a filler or a file's end; ``at`` at the limit.

        ``end`` is where that would be.
        """
        if limit is not None and end > limit:
            return at
        self._known = end
        return end

    def _nearest(self, log: LogDirectory, limit: int | None) -> int:
        """Return the last boundary that is known without a walk: a file's start, or ``_known``."""
        places = [file.physic_offset for file in log.files[:1]]
        places += [
            file.physic_offset
            for file in reversed(log.files)
            if (limit is None or file.physic_offset <= limit) and is_written(self.disk, file)
        ][:1]
        if self._known is not None and (limit is None or self._known <= limit):
            places.append(self._known)
        return max(places, default=0)

    def _forget_what_changed(self, log: LogDirectory) -> None:
        """Forget everything if the last walked record has changed."""
        mark = self._mark
        if self._known is None or mark is None:
            return
        if read_at(self.disk, log, mark.physic_offset, _HEAD_SIZE) != mark.head:
            self._known = self._mark = self._zeros_at = None
            self._good.clear()

    def end_after(self, begin: int, size_max: int | None = None) -> int:
        """Return the end of a batch that begins at ``begin``, where a record begins.

        That is ``end()``, but at least ``begin``; with ``size_max`` the batch has at most that many
        bytes, but at least one record.  Raises NotAStoreError, DiskError.
        """
        end = self._batch_end(begin, size_max)
        if len(self._good) >= _GOOD_MAX:
            self._good.clear()
        self._good.add(end)
        return end

    def _batch_end(self, begin: int, size_max: int | None) -> int:
        end = self.end()
        if size_max is None or end <= begin + size_max:
            return max(begin, end)
        log = find_log(self.disk, self.store)
        cut = begin + size_max
        file = log.file_at(cut)
        at = begin if file is None else max(begin, file.physic_offset)
        for block, boundary in walk_blocks(self.disk, log, at):
            if boundary >= cut or boundary >= end:
                return min(_cut(block, boundary, begin, at, cut), end)
            at = boundary
        return min(max(at, begin), end)

    def fault_at(self, offset: int) -> str | None:
        """Return why reading cannot go on at ``offset``; None if it can.

        An offset that an earlier reader got may no longer be a boundary: the log was replaced, or
        its tail was cut.  Raises NotAStoreError, DiskError.
        """
        log = find_log(self.disk, self.store)
        self._forget_what_changed(log)
        if offset in self._good or offset == self._known:
            return None
        if not self._is_boundary(log, offset):
            return _why(self.disk, log, offset)
        self._good.add(offset)
        return None

    def _is_boundary(self, log: LogDirectory, offset: int) -> bool:
        if offset == 0 and not log.files:
            return True
        if any(offset in {file.physic_offset, file.next_offset} for file in log.files):
            return True
        file = log.file_at(offset)
        if file is None:
            return False
        for block, end in walk_blocks(self.disk, log, file.physic_offset):
            if end >= offset:
                if end == offset:
                    return True
                if block is None:
                    return False
                return bool((block.ends + block.physic_offset == offset).any())
        return False


def _why(disk: Disk, log: LogDirectory, offset: int) -> str:
    end = log.min_offset
    written = [file for file in log.files if is_written(disk, file)]
    if written:
        begin = end = written[-1].physic_offset
        for _, boundary in walk_blocks(disk, log, begin):
            end = boundary
    if end < offset:
        return f"the log ends at {end}, before offset {offset}, up to which it was read"
    return f"no record begins at offset {offset}, up to which it was read"


def _cut(block: RecordBlock | None, end: int, begin: int, at: int, cut: int) -> int:
    """Return the last boundary up to ``cut``, but at least the first one after ``begin``."""
    if end <= cut:
        return end
    ends: list[int] = [] if block is None else (block.ends + block.physic_offset).tolist()
    fits = [boundary for boundary in (at, *ends) if begin < boundary <= cut]
    after: Any = [boundary for boundary in (*ends, end) if boundary > begin]
    return fits[-1] if fits else int(after[0])


def _intact_count(block: RecordBlock) -> int:
    """Count records up to the last intact one: a half-written record is not read yet."""
    data = memoryview(block.data)
    for count in range(block.count, 0, -1):
        start = int(block.starts[count - 1])
        check = check_record(data, start, len(data) - start, block.physic_offset + start)
        # Topic and properties are written last, and not every log has a checksum of them.  Whole
        # ones never end in a zero byte.
        is_whole = not (check.properties or check.topic).endswith(b"\0")
        if is_whole and check.kind is RecordKind.MESSAGE:
            return count
    return 0
