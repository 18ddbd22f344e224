"""How far a log that is being written may be read, at a cost that does not grow with the log.

    file | file | file     | file  (zeros)      walked: only the file that holds the end, and of it
                  ^known ^end                   only what is behind what was walked before

What a node has confirmed is read, nothing above it; where no checkpoint tells, up to the last
record that is sound.  Invariant: what is given is where a record begins, or where a file ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import attrs

from hastore.columnar.log_position import confirmed_offset, is_written, walk_blocks
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from hastore.columnar.record_block import RecordBlock
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory, LogFile

_GOOD_MAX: Final = 100
_HEAD_SIZE: Final = 36  # of a record: up to and with its own offset


class _Mark(NamedTuple):
    """A record that was read: its bytes are looked at again, to see that the log is the same."""

    physic_offset: int
    head: bytes


@final
@attrs.define(eq=False)
class StoreFollower:
    """Follows one store; keeps what it has walked, no open file."""

    disk: Disk
    store: str
    _known: int | None = None  # a boundary; what is before it need not be walked
    _mark: _Mark | None = None  # the record that ends there
    _zeros_at: int | None = None  # looked at once: nothing is written behind
    _limit: int | None = None
    _good: set[int] = attrs.field(factory=set)  # given out, or found good

    def end(self) -> int:
        """Return how far the log may be read now.  Raises NotAStoreError, DiskError."""
        log = find_log(self.disk, self.store)
        limit = confirmed_offset(self.disk, self.store)
        # A checkpoint that cannot be read for a moment does not make everything readable.
        self._limit = limit = self._limit if limit is None else limit
        self._forget_what_changed(log)
        at = self._nearest(log, limit)
        end = at
        for block, end in walk_blocks(self.disk, log, at, empty_at=self._zeros_at):
            at = self._jump(end, limit, at) if block is None else self._take(block, limit) or at
            # Below a limit everything is read.  Without one something sound may come behind what
            # is not, in the next chunk: two records of 3 MB are not in one.
            if limit is not None and at != end:
                break
        else:
            self._zeros_at = end
        return at

    def _take(self, block: RecordBlock, limit: int | None) -> int | None:
        """Return how far a block of records may be read, None for not at all; note its last one."""
        count = block.count
        if limit is not None:
            count = int((block.ends + block.physic_offset).searchsorted(limit, side="right"))
        else:
            count = _sound_count(block)
        if not count:
            return None
        start = int(block.starts[count - 1])
        head = block.data[start : start + _HEAD_SIZE]
        self._mark = _Mark(block.physic_offset + start, head)
        self._known = block.physic_offset + int(block.ends[count - 1])
        return self._known

    def _jump(self, end: int, limit: int | None, at: int) -> int:
        """Return where reading goes on behind damage, a filler or a file's end, if that is read."""
        if limit is not None and end > limit:
            return at
        self._known = end
        return end

    def _nearest(self, log: LogDirectory, limit: int | None) -> int:
        """Return the last place that needs no walk to be known: a file's begin, or ``_known``."""
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
        """Trust nothing that was walked where the record that ended there is not what it was."""
        mark = self._mark
        if self._known is None or mark is None:
            return
        file = _file_at(log, mark.physic_offset)
        if file is None or self._head(file, mark.physic_offset) != mark.head:
            self._known = self._mark = self._zeros_at = None
            self._good.clear()

    def _head(self, file: LogFile, physic_offset: int) -> bytes:
        opened = self.disk.open_file(file.path, writable=False)
        try:
            return opened.pread(_HEAD_SIZE, physic_offset - file.physic_offset)
        finally:
            opened.close()

    def end_after(self, begin: int, size_max: int | None = None) -> int:
        """Return how far one batch reaches that begins at ``begin``, where a record begins.

        That is ``end``, or ``begin`` where that is larger.  With ``size_max`` at most so many
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
        file = _file_at(log, cut)
        at = begin if file is None else max(begin, file.physic_offset)
        for block, boundary in walk_blocks(self.disk, log, at):
            if boundary >= cut or boundary >= end:
                return min(_cut(block, boundary, begin, at, cut), end)
            at = boundary
        return min(max(at, begin), end)

    def fault_at(self, offset: int) -> str | None:
        """Say why no record can be read on from ``offset``; None where one can.

        An offset that was given out before, by a reader that has ended, may be no boundary any
        more: another log was put here, or the tail was cut.  Raises NotAStoreError, DiskError.
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
        file = _file_at(log, offset)
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


def _file_at(log: LogDirectory, offset: int) -> LogFile | None:
    for file in log.files:
        if file.physic_offset <= offset < file.next_offset:
            return file
    return None


def _cut(block: RecordBlock | None, end: int, begin: int, at: int, cut: int) -> int:
    """Give the last boundary up to ``cut``, but one behind ``begin`` at least."""
    if end <= cut:
        return end
    ends: list[int] = [] if block is None else (block.ends + block.physic_offset).tolist()
    fits = [boundary for boundary in (at, *ends) if begin < boundary <= cut]
    behind: Any = [boundary for boundary in (*ends, end) if boundary > begin]
    return fits[-1] if fits else int(behind[0])


def _sound_count(block: RecordBlock) -> int:
    """Count records up to the last one that is sound: what is half written is not read yet."""
    data = memoryview(block.data)
    for count in range(block.count, 0, -1):
        start = int(block.starts[count - 1])
        check = check_record(data, start, len(data) - start, block.physic_offset + start)
        # Properties and topic are written last and have no checksum in every log: they end in no
        # zero byte where they are whole.
        is_whole = not (check.properties or check.topic).endswith(b"\0")
        if is_whole and check.kind is RecordKind.MESSAGE:
            return count
    return 0
