"""Says which records behind damage are records: those that a unit of their consume queue names.

::

    | record | ??????  planted  planted  | record | record |
             └ damage, in a body         └ its unit names this offset and size: reading resumes

A producer chooses the bytes of a body and can know at which offset they will lie.  So where damage
hides the end of a record, a magic, a stored offset and checksums prove nothing: a body may hold
them all.  A walk is sure of a position where

- a file begins, because no record crosses a file's end;
- a record or a filler ends whose own start is sure, and whose lengths agree;
- a record begins whose unit (of its own topic, queue id and queue offset) names that offset and
  size: dispatch writes units from a sure walk only;
- a damaged record ends by its unit, if the unit names the offset where the damage begins.

Everything else behind damage is *unconfirmed*.  ``log_walker`` passes it over and counts it; a
repair with a replica lets the replica's bytes confirm more (``repair.source``).

Units stand in the log's order, so a queue is searched by halving, and one whose units all lie
before the damage costs a few reads.  Where they do not, or where a file cannot be read, fewer
records are confirmed.  One damage never confirms more.  Two can: if the unit of the damaged record
is damaged, too, so that its size ends inside the body, reading resumes there; and a damaged unit
may name a planted record of its own queue and queue offset.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

from hastore.errors import DiskError
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import BLANK_SIZE, UNIT, UNIT_SIZE
from hastore.store.record.layout import HEAD_READ_SIZE, RECORD_SIZE_MIN, claimed_size
from hastore.store.record.record_check import INTACT_KINDS, RecordKind, check_record, claims_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.directory import QueueFiles
    from hastore.store.record.record_check import RecordCheck

    ReadLog = Callable[[int, int], bytes]  # physical offset, size: the bytes, fewer at a file's end

_WINDOW_SIZE_MIN: Final = 4 * 1024 * 1024  # of the log, whose units are read at once
_WINDOW_SIZE_MAX: Final = 64 * 1024 * 1024
_CHUNK_SIZE: Final = 200 * UNIT_SIZE  # where there are many queues, most have no more
_OFFSET_MAX: Final = 2**63 - 1
# The lengths agree and the record names its offset; its checksums do not decide where it is.
_NAMED_KINDS: Final = frozenset(
    {RecordKind.MESSAGE, RecordKind.BAD_BODY_CRC, RecordKind.BAD_PROP_CRC}
)


class Confirmation(Protocol):
    """Whatever can confirm records behind damage."""

    def resume_after(self, physic_offset: int, file_end: int, read: ReadLog) -> int | None:
        """Return where reading resumes after damage; None if nothing up to ``file_end`` is sure.

        A record or a filler began at ``physic_offset``.  Raises DiskError.
        """


class _Named(NamedTuple):
    """A unit, and which one it is."""

    physic_offset: int
    size: int
    queue: int  # index into ``_queues``
    queue_offset: int


@final
class ConfirmedRecords:
    """The records that the consume queues of one store confirm.

    ``data_dir`` None: a log without a store around it, which confirms nothing.  Units are read when
    they are needed and kept, so make another one to see those of a node that goes on writing.
    """

    def __init__(self, disk: Disk, data_dir: str | None) -> None:
        self._disk = disk
        self._root = None if data_dir is None else f"{data_dir}/{CONSUME_QUEUE_DIR}"
        self._file_size = 0  # of the queues' files
        self._window: tuple[int, int, list[_Named]] = (0, 0, [])  # begin, end, units
        self._known: dict[int, _Known] = {}  # by index into ``_queues``
        # What was loaded last: no queue names a record from _named_to up to its begin, nor one from
        # its end up to _named_from.
        self._named_to, self._named_from = 0, _OFFSET_MAX

    def resume_after(self, physic_offset: int, file_end: int, read: ReadLog) -> int | None:
        """Return where reading resumes after damage; None if nothing up to ``file_end`` is sure."""
        end: int | None = physic_offset  # of the damaged records up to here, by their units
        for unit in self._units(physic_offset, file_end):
            if end is not None and end < unit.physic_offset:
                if end > physic_offset and _is_intact_at(end, file_end, read):
                    return end  # a record without a unit, such as half a transaction
                end = None
            if unit.physic_offset > physic_offset and self._is_confirmed(unit, read):
                return unit.physic_offset
            if unit.physic_offset == end:
                end += unit.size
        return end if end is not None and physic_offset < end <= file_end else None

    def first_from(self, physic_offset: int, file_end: int, read: ReadLog) -> int | None:
        """Return the first confirmed record that begins in ``[physic_offset, file_end)``."""
        for unit in self._units(physic_offset, file_end):
            if self._is_confirmed(unit, read):
                return unit.physic_offset
        return None

    def last_before(self, physic_offset: int, file_start: int, read: ReadLog) -> int:
        """Return the last confirmed record that begins up to an offset, else the file's start."""
        size, end = _WINDOW_SIZE_MIN, physic_offset + 1
        while end > file_start:
            begin = max(end - size, file_start)
            for unit in reversed(self._load(begin, end)):
                if self._is_confirmed(unit, read):
                    return unit.physic_offset
            size, end = min(2 * size, _WINDOW_SIZE_MAX), min(begin, self._named_to)
        return file_start

    def names(self, physic_offset: int, check: RecordCheck) -> bool:
        """Whether the unit of a record names its offset and its size."""
        topic = check.topic.decode(errors="surrogateescape")
        queue = self._by_name.get((topic, check.queue_id))
        if queue is None or check.queue_offset < 0:
            return False
        place = check.queue_offset * UNIT_SIZE
        for file in queue.files:
            if file.start <= place < file.start + self._file_size:
                unit = self._pread(queue, file.start, place - file.start, UNIT_SIZE)
                return len(unit) == UNIT_SIZE and UNIT.unpack(unit)[:2] == (
                    physic_offset, check.size
                )  # fmt: skip
        return False

    def _is_confirmed(self, unit: _Named, read: ReadLog) -> bool:
        """Whether the record that a unit names is there, and of the unit's own queue."""
        if claimed_size(read(unit.physic_offset, HEAD_READ_SIZE)) != unit.size:
            return False  # without reading all that a damaged unit may claim
        data = read(unit.physic_offset, unit.size)
        check = check_record(data, 0, unit.size, unit.physic_offset)
        queue = self._queues[unit.queue]
        return (
            check.kind in _NAMED_KINDS
            and check.size == unit.size
            and check.topic == queue.topic.encode(errors="surrogateescape")
            and (check.queue_id, check.queue_offset) == (queue.queue_id, unit.queue_offset)
        )

    # -- units -----------------------------------------------------------------------------------

    @functools.cached_property
    def _queues(self) -> tuple[QueueFiles, ...]:
        if self._root is None:
            return ()
        found = find_queues(self._disk, self._root, None)
        self._file_size = found.file_size
        return tuple(queue for queue in found.queues if queue.files)

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, int], QueueFiles]:
        return {(queue.topic, queue.queue_id): queue for queue in self._queues}

    def _units(self, begin: int, end: int) -> Iterator[_Named]:
        """Yield the units of records that begin in ``[begin, end)``, in the log's order."""
        size = _WINDOW_SIZE_MIN
        while begin < end:
            low, high, units = self._window
            if not low <= begin < high:
                units = self._load(begin, begin + size)
                low, high = begin, self._named_from
                self._window = (low, high, units)
                size = min(2 * size, _WINDOW_SIZE_MAX)
            for unit in units:
                if begin <= unit.physic_offset < end:
                    yield unit
            begin = high

    def _load(self, begin: int, end: int) -> list[_Named]:
        """Read the units of records in ``[begin, end)``, and learn how far none lie around it.

        A queue's file is opened only if what was read before leaves open whether it has any.
        """
        found: list[_Named] = []
        self._named_to, self._named_from = 0, _OFFSET_MAX
        for index, queue in enumerate(self._queues):
            known = self._known.get(index)
            if known is None or not known.excludes(begin, end):
                with _UnitReader(self._disk, self._root, queue, self._file_size) as reader:
                    known = _read_window(reader, index, begin, end, found)
                self._known[index] = known
            self._named_to = max(self._named_to, known.named_to(begin))
            self._named_from = min(self._named_from, known.named_from(end))
        found.sort()
        return found

    def _pread(self, queue: QueueFiles, start: int, position: int, size: int) -> bytes:
        """Read bytes of a queue's file; none if the disk cannot."""
        path = f"{self._root}/{queue.topic}/{queue.queue_id}/{file_name(start)}"
        try:
            with contextlib.closing(self._disk.open_file(path, writable=False)) as disk_file:
                return disk_file.pread(size, position)
        except DiskError:
            return b""


def _is_intact_at(physic_offset: int, file_end: int, read: ReadLog) -> bool:
    available = file_end - physic_offset
    size = claimed_size(head := read(physic_offset, HEAD_READ_SIZE))
    if HEAD_READ_SIZE < size <= available and claims_fit(head):
        head = read(physic_offset, size)
    return check_record(head, 0, available, physic_offset).kind in INTACT_KINDS


# -- one queue -----------------------------------------------------------------------------------


class _Known(NamedTuple):
    """What reading the units of ``[begin, end)`` said about a queue beside them.

    It names no record of ``[before, begin)``, and none of ``[end, after)``.
    """

    before: int
    begin: int
    end: int
    after: int

    def excludes(self, begin: int, end: int) -> bool:
        """Whether the queue is known to name no record of ``[begin, end)``."""
        return (self.before <= begin and end <= self.begin) or (
            self.end <= begin and end <= self.after
        )

    def named_to(self, begin: int) -> int:
        """Return an offset from which up to ``begin`` it names no record."""
        return self.before if begin <= self.begin else min(self.end, begin)

    def named_from(self, end: int) -> int:
        """Return an offset up to which from ``end`` it names no record."""
        return self.after if end >= self.end else max(self.begin, end)


@final
class _UnitReader:
    """Reads a queue's units in chunks, each once; closes its files at the end of a ``with``."""

    def __init__(self, disk: Disk, root: str | None, queue: QueueFiles, file_size: int) -> None:
        self._disk = disk
        self._path = f"{root}/{queue.topic}/{queue.queue_id}"
        self._file_size = file_size
        self._open: dict[int, DiskFile | None] = {}  # by a file's index; None if it cannot be
        self._chunks: dict[tuple[int, int], _Chunk] = {}
        self.files = queue.files
        self.chunk_count = -(-file_size // _CHUNK_SIZE)  # of a file

    def __enter__(self) -> _UnitReader:
        return self

    def __exit__(self, *_: object) -> None:
        for disk_file in self._open.values():
            if disk_file is not None:
                disk_file.close()

    def chunk(self, file: int, number: int) -> _Chunk:
        """Return one chunk of a file."""
        found = self._chunks.get((file, number))
        if found is None:
            start, position = self.files[file].start, number * _CHUNK_SIZE
            data = self._read(file, position, min(_CHUNK_SIZE, self._file_size - position))
            found = self._chunks[file, number] = _chunk((start + position) // UNIT_SIZE, data)
        return found

    def _read(self, file: int, position: int, size: int) -> bytes | None:
        """Read bytes of a file; None if the disk cannot."""
        try:
            if file not in self._open:
                self._open[file] = None
                self._open[file] = self._disk.open_file(
                    f"{self._path}/{file_name(self.files[file].start)}", writable=False
                )
            disk_file = self._open[file]
            return None if disk_file is None else disk_file.pread(size, position)
        except DiskError:
            return None


class _Chunk(NamedTuple):
    """Units that follow each other in a queue."""

    named: list[tuple[int, int, int]]  # physic_offset, size, queue_offset
    is_last: bool  # its second half is zeros, so nothing is written after it

    @property
    def middle(self) -> int | None:
        """What the middle one of its units names; one damaged unit says nothing of the others."""
        if not self.named:
            return None
        return sorted(self.named)[len(self.named) // 2][0]


def _chunk(queue_offset: int, data: bytes | None) -> _Chunk:
    if data is None:
        return _Chunk([], is_last=False)
    data = data[: len(data) - len(data) % UNIT_SIZE]
    named = [
        (physic_offset, size, number)
        for number, (physic_offset, size, _) in enumerate(UNIT.iter_unpack(data), queue_offset)
        if physic_offset >= 0 and RECORD_SIZE_MIN <= size < BLANK_SIZE
    ]
    return _Chunk(named, is_last=not any(data[len(data) // 2 :]))


def _read_window(
    reader: _UnitReader, index: int, begin: int, end: int, found: list[_Named]
) -> _Known:
    """Add the units of one queue that name records in ``[begin, end)``."""
    # The middle units tell where to begin: with the last ones whose middle lies before ``begin``.
    file = _bisect(lambda number: reader.chunk(number, 0).middle, 0, len(reader.files), begin)
    file = _last_named(lambda number: reader.chunk(number, 0), file - 1)
    number = _last_named(
        functools.partial(reader.chunk, file), _first_chunk(reader, file, begin) - 1
    )
    before = 0 if file == number == 0 else begin  # nothing is known of what lies before
    after = _OFFSET_MAX
    while file < len(reader.files):
        chunk = reader.chunk(file, number)
        behind = 0
        for physic_offset, size, queue_offset in chunk.named:
            if physic_offset < begin:
                before = physic_offset + 1 if before == begin else max(before, physic_offset + 1)
            elif physic_offset < end:
                found.append(_Named(physic_offset, size, index, queue_offset))
            else:
                behind += 1
                after = min(after, physic_offset)
        if behind > len(chunk.named) // 2:
            break
        number += 1
        if chunk.is_last or number == reader.chunk_count:
            file, number = file + 1, 0
    return _Known(before, begin, end, after)


def _last_named(chunk: Callable[[int], _Chunk], index: int) -> int:
    """Return the last index up to ``index`` whose chunk names a record, else 0."""
    return next((at for at in range(index, -1, -1) if chunk(at).named), 0)


def _first_chunk(reader: _UnitReader, file: int, begin: int) -> int:
    """Return the first chunk of a file whose middle unit names ``begin`` or more, or the end."""

    def middle(number: int) -> int | None:
        chunk = reader.chunk(file, number)
        return _OFFSET_MAX if chunk.is_last and not chunk.named else chunk.middle

    low, high = 0, 1  # most queues are short
    while (
        high < reader.chunk_count
        and not reader.chunk(file, high - 1).is_last
        and not _reaches(middle, low, high - 1, begin)
    ):
        low, high = high, 2 * high
    return _bisect(middle, low, min(high, reader.chunk_count), begin)


def _bisect(value: Callable[[int], int | None], low: int, high: int, wanted: int) -> int:
    """Return the first index of ``[low, high)`` with at least the wanted value, else ``high``."""
    while low < high:
        middle = (low + high) // 2
        if _reaches(value, low, middle, wanted):
            high = middle
        else:
            low = middle + 1
    return low


def _reaches(value: Callable[[int], int | None], low: int, index: int, wanted: int) -> bool:
    """Whether the value at an index is at least the wanted one.

    Where there is none, because of blanks or an unreadable place, the last one before it counts.
    """
    for at in range(index, low - 1, -1):
        found = value(at)
        if found is not None:
            return found >= wanted
    return False
