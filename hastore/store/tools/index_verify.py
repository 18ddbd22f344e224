"""Verifies the index against the log, and each file's own structure, in one pass over both.

    log     record with keys a b    record with key c    record without keys    …
    index   entry a | entry b       entry c              …

Entries are in the order of the log, so both are read once, side by side.  Each entry must lead to
the previous one of its slot, and at a file's end each slot to its newest entry: then no chain has a
loop, and every entry can be found.  A file of another size than the configured one is read with the
numbers of slots and entries that it turns out to have.  An entry that is out of order is set aside:
waiting for its record would make all entries after it dangle, too.  Memory: one file's slots.
"""

from __future__ import annotations

import contextlib
import itertools
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, final

from hastore.store.index.found_layout import find_layout
from hastore.store.index.layout import (
    ENTRY,
    ENTRY_SIZE,
    FILE_NAME_DIGITS,
    HEADER_SIZE,
    IndexEntry,
    IndexHeader,
    IndexLayout,
    key_hash,
    topic_hash,
    unpack_header,
    unpack_mark,
)
from hastore.store.index.service import INDEX_DIR
from hastore.store.index.slots import IndexSlots, read_slots
from hastore.store.tools.log_finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.record.derived_record import DerivedRecord
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.derived_findings import DerivedFindings

_ENTRIES_A_READ: Final = 10_000
_OUT_OF_ORDER_MAX: Final = 10_000  # entries kept aside: some MB
_TIME_DIFF_MAX: Final = 2**31 - 1
_TOPICS_MAX: Final = 10_000


class _Found(NamedTuple):
    """An entry, with its number and its file's name and begin time."""

    name: str
    number: int
    begin_ms: int
    entry: IndexEntry


class _Missing(NamedTuple):
    """Consecutive records whose keys are missing."""

    physic_offset: int
    next_offset: int
    records: int
    topic: str
    key: str


@final
class IndexVerification:
    """One verification; call ``see`` for each record, in the log's order, then ``end``."""

    def __init__(
        self, disk: Disk, data_dir: str, layout: IndexLayout, findings: DerivedFindings
    ) -> None:
        self._disk = disk
        self._path = f"{data_dir}/{INDEX_DIR}"
        self._layout = layout
        self._findings = findings
        self._layouts: dict[str, IndexLayout] = {}  # of files of another size, by name
        self._topic_hashes: dict[str, int] = {}
        self._missing: _Missing | None = None
        self._has_begun = False  # any record's keys were found
        self.file_count = 0
        self.key_count = 0
        self.behind = 0  # records of an open store whose keys are not indexed yet
        names = []
        for entry in disk.list_dir(self._path):
            if (
                entry.is_dir
                or len(entry.name) != FILE_NAME_DIGITS
                or not (entry.name.isascii() and entry.name.isdecimal())
            ):
                continue
            self.file_count += 1
            if entry.size == layout.file_size or (entry.size and self._find_layout(entry.name)):
                names.append(entry.name)
            elif entry.size:
                detail = f"{entry.name} has {entry.size} bytes, not the {layout.file_size} of"
                detail += f" {layout.slot_count} slots and {layout.entry_count} entries, and no"
                detail += " other numbers fit its header: not read"
                self._add(Severity.WARNING, "index-header", 0, detail)
        self.is_there = bool(names)
        self._out_of_order: list[_Found] = []
        self._entries = self._in_order(self._read_files(names))
        self._head = next(self._entries, None)

    # -- records ---------------------------------------------------------------------------------

    def see(self, physic_offset: int, check: RecordCheck, record: DerivedRecord) -> None:
        """Check one record's keys."""
        while self._head is not None and self._head.entry.physic_offset < physic_offset:
            self._see_dangling(self._head)
            self._head = next(self._entries, None)
        hashes: list[int] = []
        while self._head is not None and self._head.entry.physic_offset == physic_offset:
            hashes.append(self._head.entry.key_hash)
            self._see_time(self._head, check)
            self._head = next(self._entries, None)
        if not record.keys and not hashes:
            return
        hash_of_topic = self._topic_hashes.get(record.topic)
        if hash_of_topic is None:
            if len(self._topic_hashes) >= _TOPICS_MAX:
                self._topic_hashes.clear()
            hash_of_topic = self._topic_hashes[record.topic] = topic_hash(record.topic)
        expected = [key_hash(hash_of_topic, key) for key in record.keys]
        if hashes != expected:
            self._see_difference(physic_offset, check, record, expected, hashes)
            if not hashes:
                return
        self.key_count += len(expected)
        self._add_missing()
        self._has_begun = True

    def _see_difference(
        self,
        physic_offset: int,
        check: RecordCheck,
        record: DerivedRecord,
        expected: list[int],
        hashes: list[int],
    ) -> None:
        missing = [
            key for key, wanted in zip(record.keys, expected, strict=True) if wanted not in hashes
        ]
        if not hashes:
            self._record_missing(physic_offset, physic_offset + check.size, record)
        elif missing:
            detail = f"its key {missing[0]!r} is not in the index, other keys are"
            self._add_record(Severity.DAMAGE, "index-missing", physic_offset, check, record, detail)
        if set(hashes) - set(expected):
            detail = f"the index has keys that the record lacks: {len(hashes)} entries"
            self._add_record(
                Severity.DAMAGE, "index-dangling", physic_offset, check, record, detail
            )
        elif len(hashes) > len(expected):
            detail = f"its {len(expected)} keys have {len(hashes)} entries"
            self._add_record(
                Severity.WARNING, "index-doubled", physic_offset, check, record, detail
            )

    def _see_time(self, found: _Found, check: RecordCheck) -> None:
        """Compare the time, except of entry 1, which counts from the end of the file before."""
        seconds = (check.store_timestamp_ms - found.begin_ms) // 1000 if found.begin_ms > 0 else 0
        seconds = min(max(seconds, 0), _TIME_DIFF_MAX)
        if found.number > 1 and found.entry.time_diff_s != seconds:
            detail = f"entry {found.number} of {found.name} says {found.entry.time_diff_s} s"
            self._add(
                Severity.DAMAGE,
                "index-time",
                found.entry.physic_offset,
                f"{detail} after the file's begin, its record {seconds} s",
            )

    def _see_dangling(self, found: _Found) -> None:
        offset = found.entry.physic_offset
        if not self._findings.is_excused(offset):
            detail = (
                f"entry {found.number} of {found.name} points at {offset}, not at a keyed record"
            )
            self._add(Severity.DAMAGE, "index-dangling", offset, detail)

    # -- missing ---------------------------------------------------------------------------------

    def _record_missing(self, physic_offset: int, next_offset: int, record: DerivedRecord) -> None:
        before = self._missing
        if before is None:
            self._missing = _Missing(physic_offset, next_offset, 1, record.topic, record.keys[0])
        else:
            self._missing = before._replace(next_offset=next_offset, records=before.records + 1)

    def _add_missing(self) -> None:
        missing, self._missing = self._missing, None
        if missing is None:
            return
        detail = f"{missing.records} records have no key in the index"
        self._findings.add(
            Finding(
                severity=Severity.DAMAGE if self._has_begun else Severity.WARNING,
                kind="index-missing",
                physic_offset=missing.physic_offset,
                next_offset=missing.next_offset,
                detail=detail if self._has_begun else f"{detail}, which begins after them",
                topic=missing.topic,
                key=missing.key,
            )
        )

    def end(self, end_offset: int) -> None:
        """Check entries after the log's end, and records after the index's."""
        head = () if self._head is None else (self._head,)
        # The entries out of order come last: reading the others may add to them.
        for found in itertools.chain(head, self._entries, self._out_of_order):
            is_cut_at_start = self._findings.is_open and found.entry.physic_offset >= end_offset
            if not is_cut_at_start:
                self._see_dangling(found)
        if self._findings.is_open and self._missing is not None:
            self.behind = self._missing.records
        else:
            self._add_missing()

    # -- files -----------------------------------------------------------------------------------

    def _find_layout(self, name: str) -> bool:
        """Find the layout of a file of another size; return whether the file can be read."""
        path = f"{self._path}/{name}"
        with contextlib.closing(self._disk.open_file(path, writable=False)) as disk_file:
            data = disk_file.pread(HEADER_SIZE, 0)
            if len(data) < HEADER_SIZE:
                return False
            header = unpack_header(data)
            layout = find_layout(disk_file, header)
        if layout is not None:
            self._layouts[name] = layout
        return layout is not None

    def _in_order(self, entries: Iterator[_Found]) -> Iterator[_Found]:
        """Yield the entries in the log's order, and set aside those with a wrong offset.

        That is one below the entry before it, one above both entries that follow, or one between
        two entries of one record.  At most ``_OUT_OF_ORDER_MAX`` are set aside, so that memory
        stays bounded; further ones are yielded where they are.
        """
        last, following = -1, list(itertools.islice(entries, 2))
        while following:
            found = following.pop(0)
            following += itertools.islice(entries, 1)
            offset = found.entry.physic_offset
            after = [at for each in following if last <= (at := each.entry.physic_offset) < offset]
            is_too_far = len(after) == len(following) > 0 or last in after
            if (offset < last or is_too_far) and len(self._out_of_order) < _OUT_OF_ORDER_MAX:
                self._out_of_order.append(found)
            else:
                last = offset
                yield found

    def _read_files(self, names: list[str]) -> Iterator[_Found]:
        """Yield all entries, checking each file's own structure on the way."""
        for name in names:
            path = f"{self._path}/{name}"
            with contextlib.closing(self._disk.open_file(path, writable=False)) as disk_file:
                header = unpack_header(disk_file.pread(HEADER_SIZE, 0))
                layout = self._layouts.get(name, self._layout)
                if layout.holds(header):
                    yield from self._read_file(disk_file, name, header, layout)
                else:
                    detail = f"{name} has an impossible header: {tuple(header)}"
                    self._add(Severity.DAMAGE, "index-header", 0, detail)

    def _read_file(
        self, disk_file: DiskFile, name: str, header: IndexHeader, layout: IndexLayout
    ) -> Iterator[_Found]:
        slot_count = layout.slot_count
        slots = IndexSlots(slot_count)
        heads = slots.numbers
        offsets = [header.begin_physic_offset, header.end_physic_offset]
        number = 1
        while number < header.index_count:
            count = min(_ENTRIES_A_READ, header.index_count - number)
            position = layout.entry_position(number)
            data = disk_file.pread(count * ENTRY_SIZE, position).ljust(count * ENTRY_SIZE, b"\0")
            for fields in ENTRY.iter_unpack(data):
                entry = IndexEntry._make(fields)
                slot = entry.key_hash % slot_count
                if entry.previous != heads[slot]:
                    detail = f"entry {number} of {name} leads to {entry.previous}"
                    detail += f" instead of {heads[slot]}"
                    self._add(Severity.DAMAGE, "index-chain", entry.physic_offset, detail)
                heads[slot] = number
                offsets[0 if number == 1 else 1] = entry.physic_offset
                if number == 1:
                    offsets[1] = entry.physic_offset
                yield _Found(name, number, header.begin_timestamp_ms, entry)
                number += 1
        if offsets != [header.begin_physic_offset, header.end_physic_offset]:
            detail = f"{name} says it has records {header.begin_physic_offset} to"
            detail += f" {header.end_physic_offset}, but has {offsets[0]} to {offsets[1]}"
            self._add(Severity.DAMAGE, "index-header", offsets[0], detail)
        self._check_slots(disk_file, name, header, layout, slots)

    def _check_slots(
        self,
        disk_file: DiskFile,
        name: str,
        header: IndexHeader,
        layout: IndexLayout,
        slots: IndexSlots,
    ) -> None:
        """Compare the slots; those of a growing file may be ahead of its header."""
        mark = unpack_mark(disk_file.pread(ENTRY_SIZE, layout.mark_position))
        limit = header.index_count if mark is not None or self._findings.is_open else 2**31
        covered = empty = 0
        for start, numbers in read_slots(disk_file, layout.slot_count):
            empty += _count_used(slots.numbers[covered:start])
            covered = start + len(numbers)
            ours = slots.numbers[start:covered]
            if numbers.tobytes() == ours.tobytes():
                continue
            for at, (found, expected) in enumerate(zip(numbers, ours, strict=True)):
                if found != expected and found < limit:
                    detail = f"slot {start + at} of {name} leads to {found}, not to {expected}"
                    self._add(Severity.DAMAGE, "index-chain", header.begin_physic_offset, detail)
        empty += _count_used(slots.numbers[covered:])
        if empty:
            detail = f"{empty} slots of {name} are empty although they have entries"
            self._add(Severity.DAMAGE, "index-chain", header.begin_physic_offset, detail)
        used = slots.count_used()
        if used != header.used_slots:
            detail = f"{name} says that {header.used_slots} slots are in use, {used} are"
            self._add(Severity.WARNING, "index-header", header.begin_physic_offset, detail)

    # -- findings --------------------------------------------------------------------------------

    def _add(self, severity: Severity, kind: str, physic_offset: int, detail: str) -> None:
        self._findings.add(
            Finding(
                severity=severity,
                kind=kind,
                physic_offset=physic_offset,
                next_offset=physic_offset,
                detail=detail,
            )
        )

    def _add_record(  # noqa: PLR0917 - Finding's own order
        self,
        severity: Severity,
        kind: str,
        physic_offset: int,
        check: RecordCheck,
        record: DerivedRecord,
        detail: str,
    ) -> None:
        self._findings.add(
            Finding(
                severity=severity,
                kind=kind,
                physic_offset=physic_offset,
                next_offset=physic_offset + check.size,
                detail=detail,
                topic=record.topic,
                queue_id=check.queue_id,
                queue_offset=check.queue_offset,
                key=record.keys[0] if record.keys else None,
            )
        )


def _count_used(numbers: memoryview) -> int:
    return len(numbers) - array("i", numbers.tobytes()).count(0)
