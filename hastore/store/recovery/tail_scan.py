"""Finds where a log ends: walks the records of a file, and checks what comes after the last one.

::

    record | record | … | record | torn bytes | zeros …        the end is after the last record
    record | record | … | BLANK  filler ─────────────┤         the file's end

A log may end in the middle of a record: a slave's, where a frame was cut, and any log after a kill.
Then the rest of that record is zeros.  If only its texts are missing, no checksum may cover them;
``is_cut_off`` detects that.  After a power cut intact records may follow; see ``is_torn_inside``.

A walk reads big chunks with ``pread`` (never through a map: cold pages would stall every thread)
and goes from record to record.  Each must hold its own offset, so that a stale record from another
place is never accepted.  Read-only.

Python, not the disk, limits the walk of an old log, so for records that the consume queues already
have it checks only magic, offset and lengths, and ``__CRC32#`` over all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    BODY_POSITIONS,
    HEAD_READ_SIZE,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MAGIC_SIZE,
    MESSAGE_MAGICS,
    SIZE_AND_MAGIC,
    TRANSACTION_PREPARED_TYPE,
    head_struct,
)
from hastore.store.record.record_check import (
    RecordCheck,
    RecordKind,
    check_record,
    claims_fit,
    is_cut_off,
    is_torn_inside,
)
from hastore.store.record.record_search import RecordSearch
from hastore.store.recovery.record_walk import record_offset, walk_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import DiskFile
    from hastore.store.record.topic_queue_table import TopicQueueTable

CHUNK_SIZE: Final = 1024 * 1024
_ZEROS: Final = bytes(CHUNK_SIZE + MAGIC_SIZE - 1)
_STORE_MS: Final = {flags: head_struct("store_ms", host_flags=flags) for flags in BODY_POSITIONS}


@attrs.frozen(kw_only=True)
class WalkEnd:
    """Where the walk of a file stopped, and what is there; after a BLANK that is the file's end."""

    position: int
    check: RecordCheck


@final
@attrs.define(eq=False, kw_only=True)
class FileWalk:
    """Walks files in order, counts records, and collects queue offsets in the ``table``, if any.

    Records below ``dispatched_to`` that are not younger than ``settled_ms`` (None: of any age) are
    in the consume queues, so their queue offsets are not collected.  ``unsettled_from`` is where
    the younger records begin, at most a chunk too early; None if there are none.  From
    ``torn_from`` on (None: nowhere), a power cut may have left holes; ``border`` is the start of a
    record at most a chunk before that.
    """

    table: TopicQueueTable | None
    dispatched_to: int = 0
    settled_ms: int | None = None
    torn_from: int | None = None
    records: int = 0
    store_timestamp_ms: int = 0  # the latest of the last records of all files
    last_store_ms: int = 0  # of the last record
    unsettled_from: int | None = None
    border: int | None = None
    last_message_offset: int | None = None  # where the last whole record begins, if known
    # Called with the bytes that were walked, a chunk or a large record at a time.
    on_walked: Callable[[int], None] = attrs.field(default=lambda _size: None)
    _chunk_ms: int = attrs.field(default=0, init=False)

    def walk(
        self, disk_file: DiskFile, file_from_offset: int, *, check_crc: bool, position: int = 0
    ) -> WalkEnd:
        """Walk one file from the record at ``position`` to its BLANK, or to the first damage.

        Raises DiskError.
        """
        last_record = None
        torn_from = self.torn_from
        while True:
            if torn_from is not None and file_from_offset + position <= torn_from:
                self.border = file_from_offset + position
            data = disk_file.pread(CHUNK_SIZE, position)
            stopped, last = self._walk_chunk(data, position, file_from_offset, check_crc=check_crc)
            if last is not None:
                self.on_walked(stopped - position)
                position, last_record = stopped, last
                continue
            check = check_at(disk_file, position, file_from_offset, check_crc=check_crc)
            if check.kind is not RecordKind.MESSAGE:
                break
            may_have_holes = torn_from is not None and file_from_offset + position >= torn_from
            if may_have_holes and is_torn_inside(check, position):
                check = check._replace(kind=RecordKind.TORN, detail="its last bytes are zeros")
                break
            self._settle(file_from_offset + position, check.store_timestamp_ms)
            self._count(check)
            self.on_walked(check.size)
            last_record = position
            position += check.size
        if last_record is not None:
            self.last_message_offset = file_from_offset + last_record
            last_check = check_at(disk_file, last_record, file_from_offset, check_crc=False)
            if check.kind is RecordKind.EMPTY and is_cut_off(last_check):
                position, detail = last_record, "its last bytes are missing"
                check = last_check._replace(kind=RecordKind.TORN, detail=detail)
                self._uncount(check)
                self.last_message_offset = None
            else:
                self.last_store_ms = last_check.store_timestamp_ms
                self.store_timestamp_ms = max(self.store_timestamp_ms, self.last_store_ms)
        if check.kind is RecordKind.BLANK:
            position = disk_file.size
        return WalkEnd(position=position, check=check)

    def _walk_chunk(
        self, data: bytes, base: int, file_from_offset: int, *, check_crc: bool
    ) -> tuple[int, int | None]:
        """Walk the intact records that are whole in ``data``, which begins at ``base``.

        Return the position after them, and that of the last one.
        """
        physic_base = file_from_offset + base
        is_known = self.unsettled_from is None and physic_base + len(data) <= self.dispatched_to
        table = None if is_known else self.table
        torn_from = len(data) if self.torn_from is None else self.torn_from - physic_base
        at, last, count = walk_records(data, physic_base, table, torn_from, check_crc=check_crc)
        if count and self.settled_ms is not None and self.unsettled_from is None:
            is_young = self._settle(physic_base, _store_ms(data, last))
            if is_young and is_known and self.table is not None:
                return self._walk_chunk(data, base, file_from_offset, check_crc=check_crc)
        self.records += count
        return base + at, base + last if count else None

    def _settle(self, physic_offset: int, store_ms: int) -> bool:
        """Record where the young records begin; return whether they begin here.

        They also begin where time goes back, because then no time says which records are young.
        """
        if self.settled_ms is None or self.unsettled_from is not None:
            return False
        if store_ms > self.settled_ms or store_ms < self._chunk_ms:
            self.unsettled_from = physic_offset
            return True
        self._chunk_ms = store_ms
        return False

    def _uncount(self, check: RecordCheck) -> None:
        """Undo ``_count`` of the last record."""
        self.records -= 1
        if self.table is not None and not check.sys_flag & TRANSACTION_PREPARED_TYPE:
            self.table.forget(check.topic, check.queue_id, check.queue_offset)

    def _count(self, check: RecordCheck) -> None:
        self.records += 1
        if self.table is not None:
            record_offset(self.table, check)


def _store_ms(data: bytes, at: int) -> int:
    """Return the store time of the record that begins at ``at``."""
    reader = _STORE_MS[data[at + HOST_FLAGS_POSITION] & HOST_FLAGS]
    store_ms: int = reader.unpack_from(data, at)[0]
    return store_ms


def check_at(
    disk_file: DiskFile, position: int, file_from_offset: int, *, check_crc: bool
) -> RecordCheck:
    """Check what is at a position of a file, reading no more bytes than a record has."""
    available = disk_file.size - position
    if available < BLANK_SIZE_MIN:  # no room for a BLANK: nothing can follow
        return RecordCheck(RecordKind.BLANK, available)
    head = disk_file.pread(HEAD_READ_SIZE, position)
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    if magic not in MESSAGE_MAGICS or not HEAD_READ_SIZE <= size <= available:
        # A small record is wholly in the head; for anything else the head suffices.
        return check_record(head, 0, available, file_from_offset + position, check_crc=check_crc)
    if not claims_fit(head):
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"its lengths do not fit size {size}")
    data = disk_file.pread(size, position)
    return check_record(
        memoryview(data), 0, available, file_from_offset + position, check_crc=check_crc
    )


@attrs.frozen(kw_only=True)
class Rest:
    """What comes after the log's end: the next intact record, and the end of bytes not 0."""

    record: int | None
    nonzero_end: int
    store_timestamp_ms: int = 0  # of the record


def scan_rest(
    disk_file: DiskFile, file_from_offset: int, position: int, *, to_the_end: bool = False
) -> Rest:
    """Search for an intact record at or after ``position``, and for the last byte that is not 0.

    An intact record is whole, and its checksums and stored offset are right.  Positions are the
    file's.  Without ``to_the_end`` a record ends the search.  Linear in the bytes, whatever a
    producer wrote there (``record.record_search``).
    """
    nonzero_end = position
    found = None

    def read(at: int, size: int) -> bytes:
        return disk_file.pread(size, at)

    search = RecordSearch(read, file_from_offset, position, disk_file.size)
    for start, data in nonzero_chunks(disk_file, position):
        nonzero_end = start + len(data.rstrip(b"\0"))
        if found is not None:
            continue
        for record in search.heads(data, start):
            intact = search.check(record)
            if intact is not None and not intact.is_cut_off:
                check = check_at(disk_file, record, file_from_offset, check_crc=False)
                found = (record, check.store_timestamp_ms)
                break
        if found is not None and not to_the_end:
            break
    if found is None:
        return Rest(record=None, nonzero_end=nonzero_end)
    return Rest(record=found[0], nonzero_end=nonzero_end, store_timestamp_ms=found[1])


def nonzero_chunks(disk_file: DiskFile, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield each chunk from ``position`` on that has bytes other than 0, and where it begins.

    Chunks overlap by a few bytes, so that each magic is whole in one.
    """
    size = disk_file.size
    overlap = MAGIC_SIZE - 1
    begin = position
    while (position := disk_file.next_data(position)) < size:
        start = max(position - overlap, begin)
        # To a multiple of CHUNK_SIZE: a partly read page stays cached, and would count as data.
        end = min(position - position % CHUNK_SIZE + CHUNK_SIZE, size)
        data = disk_file.pread(end - start, start)
        assert len(data) > position - start, f"{disk_file.path} is shorter than {size}"
        if data != _ZEROS[: len(data)]:
            yield start, data
        position = start + len(data)
