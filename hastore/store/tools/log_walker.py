"""A walk over a log, record after record, that goes on after damage.

    | record | record | ?????? | record | BLANK filler |   | record | record | 0000000... |
                      └ damage └ the walk goes on here     (next file)         └ the end

Invariant: each ``(physic_offset, check)`` begins where the one before it ended, from the first
file's start to ``end_offset``; for damage ``check.size`` reaches to where reading resumes.  Memory:
one chunk, or one record if that is larger.

After damage whose lengths agree (a wrong CRC) the walk goes on at the record's own end.  Else it
goes on at the next place that is confirmed (``queue.confirmed_records`` decides which is), at most
at the next file.  What looks like a record before that place may have been planted in a body: it
is part of the damage, and counted.  With ``unconfirmed`` such records are items of their own, of
kind UNCONFIRMED.  Zeros end the log only if nothing but zeros follows, in this file and in later
ones (for example the prepared file).  A record that has only begun, as at a slave's end, with
nothing after it ends the log, too, without a look at the consume queues.

An unfinished cut ends the log, too.

A log may be walked while it is written, so apparent damage is read a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    MAGIC_POSITION,
    MAGIC_SIZE,
    MESSAGE_PATTERN,
    claimed_size,
)
from hastore.store.record.record_check import (
    MEASURED_KINDS,
    RecordCheck,
    RecordKind,
    check_record,
    claims_fit,
    is_only_begun,
)
from hastore.store.record.record_search import RecordSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.confirmed_records import Confirmation
    from hastore.store.tools.log_directory import LogDirectory, LogFile

CHUNK_SIZE: Final = 1024 * 1024
UNCONFIRMED: Final = "behind damage, and no unit of a consume queue names it"
_ZEROS: Final = bytes(CHUNK_SIZE)
_OFFSET_MAX: Final = 2**63 - 1


@final
class LogWalker:
    """One walk over ``log``; ``end_offset`` is right once ``walk`` is exhausted.

    The walk begins at the file that holds ``from_offset``, or exactly there if ``at_record`` says
    that it is a record's start.  Without ``check_crc`` only lengths and offsets are checked;
    without ``scan_zeros`` zeros count as the log's end after a check of the next MiB and of the
    beginnings of later files.  ``confirmed`` says what is a record behind damage, None: the store's
    consume queues.  ``on_progress`` is called with the bytes of each read.
    """

    def __init__(
        self,
        disk: Disk,
        log: LogDirectory,
        *,
        from_offset: int = 0,
        at_record: bool = False,
        check_crc: bool = True,
        scan_zeros: bool = True,
        confirmed: Confirmation | None = None,
        unconfirmed: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._disk = disk
        self._begin_offset = from_offset if at_record else 0
        self._files = [file for file in log.files if file.next_offset > from_offset]
        self._check_crc = check_crc
        self._end_offset_max = _OFFSET_MAX if log.cut_at is None else log.cut_at
        self._scan_max = None if scan_zeros else CHUNK_SIZE
        self._confirmed = confirmed or ConfirmedRecords(disk, log.root)
        self._yields_unconfirmed = unconfirmed
        self._on_progress = on_progress
        # The end of the last good record or filler: the next record would be written here.
        self.end_offset = self._files[0].physic_offset if self._files else log.min_offset
        self._walked_to = self.end_offset
        self._reader: _FileReader | None = None

    def walk(self) -> Iterator[tuple[int, RecordCheck]]:
        """Yield all records, fillers and damage, end to end.  Raises DiskError."""
        for index, file in enumerate(self._files):
            gap = file.physic_offset - self._walked_to
            if gap > 0:
                yield self._walked_to, RecordCheck(RecordKind.MISSING, gap, "no file has them")
            self._walked_to = file.physic_offset
            with self._open(file) as reader:
                self._reader = reader
                if (yield from self._walk_file(reader, self._files[index + 1 :])):
                    return

    def read(self, physic_offset: int, size: int) -> bytes:
        """Read bytes of the item that was yielded last."""
        assert self._reader is not None
        return self._reader.read(physic_offset - self._reader.physic_offset, size)

    def _walk_file(
        self, reader: _FileReader, later_files: list[LogFile]
    ) -> Generator[tuple[int, RecordCheck], None, bool]:
        """Yield the items of one file; return whether the log ends in it."""
        base, file_size, check_crc = reader.physic_offset, reader.size, self._check_crc
        position = max(self._begin_offset - base, 0)
        reread_at = None  # the position that was read again before it is reported as damaged
        data, start = b"", 0
        limit = min(file_size, self._end_offset_max - base)
        while position < limit:
            offset = base + position
            check = check_record(
                data, position - start, file_size - position, offset, check_crc=check_crc
            )
            kind = check.kind
            if kind is RecordKind.MESSAGE:
                yield offset, check
                position += check.size
                self.end_offset = self._walked_to = base + position
                continue
            if reread_at != position:  # most often only the chunk ended here
                reread_at = position
                data, start = reader.read_record_chunk(position), position
                continue
            if kind is RecordKind.BLANK:
                if check_crc:
                    check = self._check_filler(reader, position, check)
                yield offset, check
                self.end_offset = self._walked_to = base + file_size
                return False
            if kind is RecordKind.EMPTY:
                if not self._is_written_after(reader, position, later_files):
                    return True
                data = reader.read_record_chunk(position)
                if not data.startswith(_ZEROS[:BLANK_SIZE_MIN]):
                    continue  # it was written just now
                check = check._replace(kind=RecordKind.HOLE, detail="zeros, not the log's end")
            if kind is RecordKind.TORN and claimed_size(data) <= file_size - position:
                # The file is large enough, but claims_fit refused the size.
                detail = "its lengths do not add up to its size"
                check = RecordCheck(RecordKind.BAD_LENGTHS, 0, detail)
            size, is_last = check.size, False
            if kind not in MEASURED_KINDS:
                size, is_last = self._measure_damage(reader, position, later_files)
                yield from self._damage_items(reader, position, size, check)
            else:
                yield offset, check
            position += size
            self._walked_to = base + position
            if is_last:
                return True
        return limit < file_size

    # -- after damage ----------------------------------------------------------------------------

    def _measure_damage(
        self, reader: _FileReader, position: int, later_files: list[LogFile]
    ) -> tuple[int, bool]:
        """Return the size of damage up to where reading resumes, and whether the log ends there."""
        base = reader.physic_offset
        end = base + reader.size

        def read(physic_offset: int, size: int) -> bytes:
            return reader.read(physic_offset - base, size)

        def is_written_from(physic_offset: int) -> bool:
            return self._is_written_after(reader, physic_offset - base, later_files)

        if is_only_begun(base + position, end, read, is_written_from):
            return reader.find_last_written(position) - position, True
        found = self._confirmed.resume_after(base + position, end, read)
        if found is not None and self._is_written_after(reader, found - base, later_files):
            return found - base - position, False
        if any(self._is_written(file) for file in later_files):
            return reader.size - position, False
        return reader.find_last_written(position) - position, True

    def _damage_items(
        self, reader: _FileReader, position: int, size: int, check: RecordCheck
    ) -> Iterator[tuple[int, RecordCheck]]:
        """Yield damage as one item, or with the unconfirmed records in it as items of their own."""
        base, end = reader.physic_offset, position + size
        if not self._yields_unconfirmed:
            count = sum(1 for _ in self._unconfirmed_in(reader, position + 1, end))
            inside = f"; {count} unconfirmed record{'s' * (count != 1)} in it" if count else ""
            detail = check.detail + inside
            yield base + position, check._replace(size=size, detail=detail, unconfirmed=count)
            return
        for start, record in self._unconfirmed_in(reader, position + 1, end):
            if position < start:
                yield base + position, check._replace(size=start - position)
            yield base + start, record._replace(kind=RecordKind.UNCONFIRMED, detail=UNCONFIRMED)
            position = start + record.size
        if position < end:
            yield base + position, check._replace(size=end - position)

    def _unconfirmed_in(
        self, reader: _FileReader, position: int, end: int
    ) -> Iterator[tuple[int, RecordCheck]]:
        """Yield what looks like intact records of ``[position, end)``; none overlaps another."""
        start = position
        search = RecordSearch(reader.read, reader.physic_offset, position, end)
        while (start := reader.next_data(start)) < end:
            # A magic may lie across two chunks; none begins in zeros.
            size = _to_chunk_end(start)
            for found in search.heads(reader.read(start, size + MAGIC_SIZE - 1), start):
                intact = search.check(found) if found >= position else None
                if intact is None:
                    continue
                data = reader.read(found, intact.size)
                check = check_record(data, 0, intact.size, reader.physic_offset + found)
                if check.kind is RecordKind.MESSAGE:  # the log may be written meanwhile
                    yield found, check
                    position = found + check.size
            start += size

    # -- zeros -----------------------------------------------------------------------------------

    def _check_filler(self, reader: _FileReader, position: int, check: RecordCheck) -> RecordCheck:
        """Report a filler with bytes other than 0: no reader uses them, but slaves copy them."""
        written = reader.find_written(position + BLANK_SIZE_MIN)
        if written is None:
            return check
        return check._replace(detail=f"its filler is not zero at {reader.physic_offset + written}")

    def _is_written_after(
        self, reader: _FileReader, position: int, later_files: list[LogFile]
    ) -> bool:
        """Whether anything but zeros follows, in this file or a later one."""
        return reader.find_written(position, self._scan_max) is not None or any(
            self._is_written(file) for file in later_files
        )

    def _is_written(self, file: LogFile) -> bool:
        with self._open(file) as reader:
            return reader.find_written(0, self._scan_max) is not None

    def _open(self, file: LogFile) -> _FileReader:
        return _FileReader(self._disk.open_file(file.path, writable=False), file, self._on_progress)


@final
class _FileReader:
    """One file of a log, read in chunks; closes it at the end of a ``with``."""

    def __init__(
        self, disk_file: DiskFile, file: LogFile, on_progress: Callable[[int], None] | None
    ) -> None:
        self._disk_file = disk_file
        self._on_progress = on_progress
        self.physic_offset = file.physic_offset
        self.size = file.size

    def __enter__(self) -> _FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk_file.close()

    def read(self, position: int, size: int) -> bytes:
        """Read ``size`` bytes, fewer at the file's end."""
        return self._disk_file.pread(min(size, self.size - position), position)

    def next_data(self, position: int) -> int:
        """Skip bytes that were allocated and never written; return the file's end if all were."""
        return self._disk_file.next_data(position) if position < self.size else self.size

    def read_record_chunk(self, position: int) -> bytes:
        """Read a chunk, or the whole record at ``position`` if that is larger."""
        data = self.read(position, CHUNK_SIZE)
        size = claimed_size(data)
        if (
            CHUNK_SIZE < size <= self.size - position
            and MESSAGE_PATTERN.match(data, MAGIC_POSITION)
            and claims_fit(data)
        ):
            data = self.read(position, size)
        if self._on_progress is not None:
            self._on_progress(len(data))
        return data

    def find_written(self, position: int, size_max: int | None = None) -> int | None:
        """Find the first byte that is not zero from ``position`` on, within ``size_max`` bytes."""
        end = self.size if size_max is None else min(self.size, position + size_max)
        while (position := self.next_data(position)) < end:
            data = self.read(position, min(_to_chunk_end(position), end - position))
            if data != _ZEROS[: len(data)]:
                return position + len(data) - len(data.lstrip(b"\0"))
            if not data:
                return None
            position += len(data)
        return None

    def find_last_written(self, position: int) -> int:
        """Return the position after the last byte that is not zero, or ``position`` itself."""
        end = position
        while (position := self.next_data(position)) < self.size:
            size = _to_chunk_end(position)
            written = self.read(position, size).rstrip(b"\0")
            if written:
                end = position + len(written)
            position += size
        return end


def _to_chunk_end(position: int) -> int:
    """Return a chunk's size that ends on a multiple of CHUNK_SIZE.

    ``next_data`` does not drop a partly read page, which would count as data.
    """
    return CHUNK_SIZE - position % CHUNK_SIZE
