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

Units stand in the log's order.  Where they do not, or where a file cannot be read, fewer records
are confirmed, never more.
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

    from hastore.env.interface import Disk
    from hastore.store.queue.directory import QueueFiles
    from hastore.store.record.record_check import RecordCheck

    ReadLog = Callable[[int, int], bytes]  # physical offset, size: the bytes, fewer at a file's end

_WINDOW_SIZE_MIN: Final = 4 * 1024 * 1024  # of the log, whose units are read at once
_WINDOW_SIZE_MAX: Final = 64 * 1024 * 1024
_CHUNK_SIZE: Final = 2_048 * UNIT_SIZE
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
            size, end = min(2 * size, _WINDOW_SIZE_MAX), begin
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
        found = find_queues(self._disk, self._root, UNIT_SIZE)
        self._file_size = found.file_size
        return found.queues

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, int], QueueFiles]:
        return {(queue.topic, queue.queue_id): queue for queue in self._queues}

    @functools.cached_property
    def _first_offsets(self) -> list[list[int | None]]:
        """What the first unit of each file of each queue names; None if it names no record."""
        return [
            [self._first_offset(queue, file.start) for file in queue.files]
            for queue in self._queues
        ]

    def _first_offset(self, queue: QueueFiles, start: int) -> int | None:
        unit = self._pread(queue, start, 0, UNIT_SIZE)
        return _offset_of(unit, 0) if len(unit) == UNIT_SIZE else None

    def _units(self, begin: int, end: int) -> Iterator[_Named]:
        """Yield the units of records that begin in ``[begin, end)``, in the log's order."""
        size = _WINDOW_SIZE_MIN
        while begin < end:
            low, high, units = self._window
            if not low <= begin < high:
                low, high = begin, begin + size
                units = self._load(low, high)
                self._window = (low, high, units)
                size = min(2 * size, _WINDOW_SIZE_MAX)
            for unit in units:
                if begin <= unit.physic_offset < end:
                    yield unit
            begin = high

    def _load(self, begin: int, end: int) -> list[_Named]:
        found: list[_Named] = []
        for index, queue in enumerate(self._queues):
            first_offsets = self._first_offsets[index]
            for number in reversed(range(len(queue.files))):
                first = first_offsets[number]
                if first is not None and first >= end:
                    continue
                found += self._read(index, queue.files[number].start, begin, end)
                if first is not None and first <= begin:
                    break  # earlier files name earlier records
        found.sort()
        return found

    def _read(self, index: int, start: int, begin: int, end: int) -> Iterator[_Named]:
        """Yield the units of one file that name records in ``[begin, end)``."""
        queue = self._queues[index]
        for position in range(0, self._file_size, _CHUNK_SIZE):
            size = min(_CHUNK_SIZE, self._file_size - position)
            data = self._pread(queue, start, position, size)
            data = data[: len(data) - len(data) % UNIT_SIZE]
            if not data or not any(data):
                return
            first, last = _offset_of(data, 0), _offset_of(data, len(data) - UNIT_SIZE)
            if first is not None and first >= end:
                return
            if last is not None and last < begin:
                continue
            queue_offset = (start + position) // UNIT_SIZE
            for number, (physic_offset, record_size, _) in enumerate(UNIT.iter_unpack(data)):
                if begin <= physic_offset < end and RECORD_SIZE_MIN <= record_size < BLANK_SIZE:
                    yield _Named(physic_offset, record_size, index, queue_offset + number)

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


def _offset_of(data: bytes, position: int) -> int | None:
    """Return the offset that a unit names; None of a blank, and where no unit was written."""
    physic_offset: int
    physic_offset, size, _ = UNIT.unpack_from(data, position)
    return physic_offset if 0 < size < BLANK_SIZE and physic_offset >= 0 else None
