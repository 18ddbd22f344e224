"""One read of a consume queue: which messages a consumer gets, and where the next read begins.

    units from the offset on ── code filter ── record ── tags filter ──► ranges (and records)

A read checks a limited number of units, and reads a limited number of records for their tags,
whatever the filter passes.  ``next_begin_offset`` is after the last unit checked, so nothing is
skipped but units that name no record of the queue: RocketMQ's client drops the rest of an answer
after bytes that are no record, so such a unit costs its own index only.  If a record has to be
read, it and the rest of the units read so far are one step (``cold_read``), which may run in a
thread; between two steps files may expire, and queues may be cut at their front.  Source of the
statuses: RocketMQ ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.message import PROPERTY_TAGS
from hastore.status import GetMessageStatus
from hastore.store.log.cold_read import ReadStep
from hastore.store.queue.unit_check import MULTI_DISPATCH_PREFIX
from hastore.store.record.message_codec import decode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.store.log.cold_read import ReadSteps
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.unit import Unit
    from hastore.store.queue.unit_check import UnitCheck
    from hastore.store.record.message_filter import TagFilter
    from hastore.store.record.record_check import RecordCheck

UNITS_MAX: Final = 16_000
RECORDS_READ_MAX: Final = 1_000  # some 20 ms where they are in memory
_UNITS_AT_ONCE: Final = 256


@final
@attrs.frozen(kw_only=True)
class GetMessageResult:
    """``ranges`` are the records' physic offsets and sizes, in the queue's order.

    ``records`` are their bytes if a filter had to read them; None if they can be sent straight from
    the files.  ``min_offset`` and ``max_offset`` are the queue's.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    ranges: tuple[tuple[int, int], ...] = ()
    records: tuple[bytes, ...] | None = None

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(size for _, size in self.ranges)


@final
@attrs.define(eq=False, kw_only=True)
class QueueRead:
    """A single read, done by ``steps``; ``read_record`` returns a record's bytes and its check."""

    queue: ConsumeQueue
    log_min_offset: Callable[[], int]
    read_record: Callable[[int], tuple[bytes, RecordCheck] | None]
    unit_check: UnitCheck
    max_count: int
    max_size: int
    message_filter: TagFilter | None
    _ranges: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _records: list[bytes] | None = attrs.field(default=None, init=False)
    _size: int = attrs.field(default=0, init=False)
    _records_read: int = attrs.field(default=0, init=False)
    _was_removing: bool = attrs.field(default=False, init=False)
    _position: int = attrs.field(default=0, init=False)  # of the next unit to check
    _is_wanting: bool = attrs.field(default=True, init=False)
    _min_offset: int = attrs.field(default=0, init=False)  # of the log
    _trusted_from: int = attrs.field(default=0, init=False)  # the queue's, at the last read of it
    _topic: bytes = attrs.field(default=b"", init=False)
    _has_other_topics: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Keep records only if the filter needs them."""
        self._topic = self.queue.topic.encode(errors="surrogateescape")
        self._has_other_topics = self.queue.topic.startswith(MULTI_DISPATCH_PREFIX)
        if self.message_filter is not None and not self.message_filter.passes_all:
            self._records = []

    def steps(self, offset: int) -> ReadSteps[GetMessageResult]:
        """Read from an offset that the queue has."""
        queue = self.queue
        at_once = _UNITS_AT_ONCE if self._records is not None else self.max_count
        self._position = offset
        while self._is_wanting and self._position - offset < UNITS_MAX:
            units = queue.units(self._position, min(at_once, _UNITS_AT_ONCE))
            if not units:
                break
            self._min_offset = self.log_min_offset()
            self._trusted_from = 0 if self._has_other_topics else queue.trusted_from
            first = self._select(units, reads=False)
            if first is not None:
                rest = units[first:]
                yield ReadStep(rest[0].physic_offset, partial(self._select, rest, reads=True))
        return self._result(offset)

    def _select(self, units: Sequence[Unit], *, reads: bool) -> int | None:
        """Select wanted units; without ``reads``, stop at the first whose record has to be read.

        Return its index, None at the end.
        """
        index = 0
        for index, unit in enumerate(units):
            if not self._has_room(unit):
                self._is_wanting = False
                break
            if unit.is_blank:
                pass
            elif unit.physic_offset < self._min_offset:
                self._was_removing = True
            elif self._records is None and self._position + index >= self._trusted_from:
                self._take(unit)
            elif self._records is None or self._has_code(unit):
                if not reads:
                    self._position += index
                    return index
                if self._records is None:
                    self._take_checked(unit, self._position + index)
                else:
                    self._take_matching(unit, self._position + index, self._records)
        else:
            index = len(units)
        self._position += index
        return None

    def _result(self, offset: int) -> GetMessageResult:
        queue, position = self.queue, self._position
        if self._ranges:
            status = GetMessageStatus.FOUND
        elif self._was_removing:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        elif position > offset:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
        else:
            status = GetMessageStatus.OFFSET_FOUND_NULL
            position = queue.min_offset if offset < queue.min_offset else queue.max_offset
        return GetMessageResult(
            status=status,
            next_begin_offset=position,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            ranges=tuple(self._ranges),
            records=tuple(self._records) if self._records else None,
        )

    def _has_room(self, unit: Unit) -> bool:
        ranges = self._ranges
        if len(ranges) == self.max_count or self._records_read == RECORDS_READ_MAX:
            return False
        return not ranges or self._size + unit.size <= self.max_size

    def _has_code(self, unit: Unit) -> bool:
        assert self.message_filter is not None
        return unit.is_extended or self.message_filter.matches_code(unit.tags_code)

    def _take(self, unit: Unit) -> None:
        self._ranges.append((unit.physic_offset, unit.size))
        self._size += unit.size

    def _take_checked(self, unit: Unit, queue_offset: int) -> None:
        """Take a unit that a start has found, if it names a record of the queue."""
        check = self.unit_check
        if check.names_record(unit, self._topic, self.queue.queue_id, queue_offset):
            self._take(unit)
            return
        self._records_read += 1  # so that many of them do not make a read long
        if unit.physic_offset < self.log_min_offset():  # its file expired just now
            self._was_removing = True

    def _take_matching(self, unit: Unit, queue_offset: int, records: list[bytes]) -> None:
        """Take a unit if its record's own tags are wanted: other tags may have the same code."""
        self._records_read += 1
        found = self.read_record(unit.physic_offset)
        if found is None:
            if unit.physic_offset < self.log_min_offset():  # its file expired just now
                self._was_removing = True
            return
        record, check = found
        place = self._topic, self.queue.queue_id, queue_offset
        is_named = self._has_other_topics or place == (
            check.topic, check.queue_id, check.queue_offset
        )  # fmt: skip
        if not is_named or check.size != unit.size:
            return
        tags = decode_properties(check.properties).get(PROPERTY_TAGS)
        assert self.message_filter is not None
        if self.message_filter.matches_tags(tags):
            records.append(record)
            self._take(unit)
