"""Verifies consume queues against the log: each record has its unit, each unit its record.

    log     record (orders, 3, 17)  ···  record (orders, 3, 18)  ···
    queue   orders/3:  … | 16 | 17 | 18 | 19 …     units before the first record: expired ones
                              └ offset, size, tags code of the record

Records come in the log's order, and those of one queue have queue offsets that count up; so each
queue is read once, in order.  Memory: a few numbers a queue, and ``_CHUNKS_MAX`` pieces of files.
While a node runs, or after a kill, the last records may have no units yet; else units are missing.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import UNIT, UNIT_SIZE, Unit, file_size_of
from hastore.store.tools.log_finding import Finding, Severity
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hastore.env.interface import Disk
    from hastore.store.queue.directory import QueueFiles
    from hastore.store.record.derived_record import DerivedRecord
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.derived_findings import DerivedFindings
    from hastore.wire.config_tables import DeletedTopic

_CHUNK_UNITS: Final = 2_048
_CHUNKS_MAX: Final = 256  # 10 MB
_SUSPECTS_MAX: Final = 10_000


@final
class _Queue:
    """One queue's files, and how far its records have come."""

    __slots__ = ("files", "missing", "name", "next_offset", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, files: QueueFiles | None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.name = f"{topic}/{queue_id}"
        self.files = files
        self.next_offset: int | None = None  # after the last record that was seen
        self.missing: tuple[int, int, int, int] | None = None  # first: offset, record; end; count

    @property
    def begin(self) -> int:
        """The first queue offset in its files."""
        return self.files.files[0].start // UNIT_SIZE if self.files and self.files.files else 0


@final
class ConsumeQueueVerification:
    """One verification; call ``see`` for each record with a unit, in the log's order, then ``end``.

    ``findings`` gets what is wrong.
    """

    def __init__(
        self, disk: Disk, data_dir: str, file_size: int, findings: DerivedFindings
    ) -> None:
        self._disk = disk
        self._root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
        self._findings = findings
        wanted = file_size_of(file_size)
        found = find_queues(disk, self._root, wanted)
        self._file_size = found.file_size
        self._chunks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._suspects: dict[tuple[str, int, int], Finding] = {}
        self.is_there = disk.exists(self._root)
        self.queue_count = len(found.queues)
        self.unit_count = 0
        self.behind = 0  # records of an open store that have no unit yet
        self.deleted: Mapping[str, DeletedTopic] = {}  # topics whose earlier records have no units
        for files in found.queues:
            queue = _Queue(files.topic, files.queue_id, files)
            self._queues[files.topic, files.queue_id] = queue
            if files.unusable:
                detail = f"{queue.name}: {files.reason}; a start drops it and builds it again"
                self._add(queue, Severity.DAMAGE, "queue-files", 0, 0, None, detail)

    # -- records ---------------------------------------------------------------------------------

    def see(self, physic_offset: int, check: RecordCheck, record: DerivedRecord) -> None:
        """Check one record's unit."""
        if self._is_deleted(record.topic, physic_offset):
            return
        key = (record.topic, check.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(record.topic, check.queue_id, None)
        number = check.queue_offset
        unit = self._unit(queue, number)
        expected = queue.next_offset if queue.next_offset is not None else queue.begin
        if number > expected:
            self._check_between(queue, expected, number)
        if unit is None:
            self._record_missing(queue, number, physic_offset, physic_offset + check.size)
            queue.next_offset = max(expected, number + 1)
            return
        self.unit_count += 1
        if queue.missing is not None:
            self._add_missing(queue)
        wrong = self._what_is_wrong(unit, physic_offset, check, record)
        if wrong:
            self._see_wrong(queue, unit, physic_offset, check, wrong, is_again=number < expected)
        elif self._suspects:
            self._suspects.pop((*key, number), None)  # of a queue that began again
        queue.next_offset = max(expected, number + 1)

    def _is_deleted(self, topic: str, physic_offset: int) -> bool:
        deletion = self.deleted.get(topic)
        return deletion is not None and physic_offset < deletion.log_offset

    def _what_is_wrong(
        self, unit: Unit, physic_offset: int, check: RecordCheck, record: DerivedRecord
    ) -> str:
        if unit == (physic_offset, check.size, record.tags_code):
            return ""
        if unit.is_blank:
            return "is blank"
        if unit.physic_offset != physic_offset:
            return f"points at {unit.physic_offset}"
        if unit.size != check.size:
            return f"has the size {unit.size}, the record {check.size}"
        if unit.is_extended:
            return ""  # its tags code is in consumequeue_ext/
        return f"has the tags code {unit.tags_code}, the record {record.tags_code}"

    def _see_wrong(
        self,
        queue: _Queue,
        unit: Unit,
        physic_offset: int,
        check: RecordCheck,
        wrong: str,
        *,
        is_again: bool,
    ) -> None:
        number = check.queue_offset
        # With another table of delay levels the times differ.
        is_time = unit[:2] == (physic_offset, check.size) and queue.topic == SCHEDULE_TOPIC
        is_odd = is_time or (is_again and unit.physic_offset < physic_offset)
        finding = Finding(
            severity=Severity.WARNING if is_odd else Severity.DAMAGE,
            kind="unit-wrong",
            physic_offset=physic_offset,
            next_offset=physic_offset + check.size,
            detail=f"unit {number} of {queue.name} {wrong}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=number,
        )
        if (
            not is_odd
            and unit.physic_offset > physic_offset
            and (len(self._suspects) < _SUSPECTS_MAX)
        ):
            self._suspects[queue.topic, queue.queue_id, number] = finding
        else:
            self._findings.add(finding)

    # -- missing and dangling ----------------------------------------------------------------------

    def _record_missing(
        self, queue: _Queue, number: int, physic_offset: int, next_offset: int
    ) -> None:
        if queue.missing is None:
            queue.missing = (number, physic_offset, next_offset, 1)
        else:
            first, begin, _, count = queue.missing
            queue.missing = (first, begin, next_offset, count + 1)

    def _add_missing(self, queue: _Queue) -> None:
        assert queue.missing is not None
        number, physic_offset, next_offset, count = queue.missing
        queue.missing = None
        detail = f"{count} records of {queue.name} have no unit, from queue offset {number}"
        self._add(
            queue, Severity.DAMAGE, "unit-missing", physic_offset, next_offset, number, detail
        )

    def _check_between(self, queue: _Queue, begin: int, end: int) -> None:
        """Check units without a record in the log: they are blanks or of expired records."""
        for number, unit in self._units(queue, begin, end):
            if unit is not None and not unit.is_blank:
                self._see_dangling(queue, number, unit)

    def _see_dangling(self, queue: _Queue, number: int, unit: Unit) -> None:
        if self._findings.is_excused(unit.physic_offset):
            return
        if self._is_deleted(queue.topic, unit.physic_offset):
            return  # the next start drops it
        detail = f"unit {number} of {queue.name} points at {unit.physic_offset}, not at its record"
        self._add(
            queue,
            Severity.DAMAGE,
            "unit-dangling",
            unit.physic_offset,
            unit.physic_offset + unit.size,
            number,
            detail,
        )

    def end(self, end_offset: int) -> None:
        """Check the units after the last records; ``end_offset`` is the log's."""
        for finding in self._suspects.values():
            self._findings.add(finding)
        for queue in self._queues.values():
            if queue.missing is not None:
                if self._findings.is_open:
                    self.behind += queue.missing[3]
                else:
                    self._add_missing(queue)
            self._check_rest(queue, end_offset)

    def _check_rest(self, queue: _Queue, end_offset: int) -> None:
        begin = queue.next_offset if queue.next_offset is not None else queue.begin
        for number, unit in self._units(queue, begin, None):
            if unit is None:
                return
            if unit.is_blank:
                continue
            if unit.physic_offset >= end_offset and self._findings.is_open:
                continue  # written meanwhile, or cut at the next start
            self._see_dangling(queue, number, unit)

    # -- units -----------------------------------------------------------------------------------

    def _units(
        self, queue: _Queue, begin: int, end: int | None
    ) -> Iterator[tuple[int, Unit | None]]:
        files = queue.files.files if queue.files is not None else ()
        if not files:
            return
        last = (files[-1].start + self._file_size) // UNIT_SIZE
        for number in range(max(begin, queue.begin), last if end is None else min(end, last)):
            yield number, self._unit(queue, number)

    def _unit(self, queue: _Queue, number: int) -> Unit | None:
        """Return a unit; None if none was written."""
        chunk, at = divmod(number, _CHUNK_UNITS)
        data = self._chunks.get((queue.name, chunk))
        if data is None:
            data = self._read(queue, chunk)
            self._chunks[queue.name, chunk] = data
            if len(self._chunks) > _CHUNKS_MAX:
                self._chunks.popitem(last=False)
        else:
            self._chunks.move_to_end((queue.name, chunk))
        unit = Unit._make(UNIT.unpack_from(data, at * UNIT_SIZE))
        return unit if unit.size > 0 and unit.physic_offset >= 0 else None

    def _read(self, queue: _Queue, chunk: int) -> bytes:
        """Read a chunk's units; zeros if no file has them."""
        begin = chunk * _CHUNK_UNITS * UNIT_SIZE
        end = begin + _CHUNK_UNITS * UNIT_SIZE
        data = bytearray(end - begin)
        for file in queue.files.files if queue.files is not None else ():
            low, high = max(begin, file.start), min(end, file.start + self._file_size)
            if low < high:
                path = f"{self._root}/{queue.name}/{file_name(file.start)}"
                with contextlib.closing(self._disk.open_file(path, writable=False)) as disk_file:
                    found = disk_file.pread(high - low, low - file.start)
                data[low - begin : low - begin + len(found)] = found
        return bytes(data)

    def _add(  # noqa: PLR0917 - Finding's own order
        self,
        queue: _Queue,
        severity: Severity,
        kind: str,
        physic_offset: int,
        next_offset: int,
        queue_offset: int | None,
        detail: str,
    ) -> None:
        self._findings.add(
            Finding(
                severity=severity,
                kind=kind,
                physic_offset=physic_offset,
                next_offset=next_offset,
                detail=detail,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
            )
        )
