"""One read of a consume queue: which of its messages a consumer gets, and where it goes on.

    units from the offset on ── code filter ── record ── tags filter ──► ranges (and records)

A read is bounded in all it does, whatever the filter lets pass: by units looked at, and by records
read for their tags.  ``next_begin_offset`` is behind the last unit that was looked at, so nothing
is skipped.  Source of the statuses: RocketMQ ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.message import PROPERTY_TAGS
from hastore.status import GetMessageStatus
from hastore.store.get_message_result import GetMessageResult
from hastore.store.message_codec import decode_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.store.consume_queue import ConsumeQueue, Unit
    from hastore.store.message_filter import TagFilter
    from hastore.store.record_check import RecordCheck

UNITS_MAX: Final = 16_000
RECORDS_READ_MAX: Final = 1_000  # some 20 ms where they are in memory
_UNITS_AT_ONCE: Final = 256


@final
@attrs.define(eq=False, kw_only=True)
class QueueRead:
    """A read that is made once, by ``run``; ``read_record`` gives a record and what it holds."""

    queue: ConsumeQueue
    log_min_offset: int
    read_record: Callable[[int], tuple[bytes, RecordCheck] | None]
    max_count: int
    max_size: int
    message_filter: TagFilter | None
    _ranges: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _records: list[bytes] | None = attrs.field(default=None, init=False)
    _size: int = attrs.field(default=0, init=False)
    _records_read: int = attrs.field(default=0, init=False)
    _was_removing: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Read records only where a filter asks for them."""
        if self.message_filter is not None and not self.message_filter.passes_all:
            self._records = []

    def run(self, offset: int) -> GetMessageResult:
        """Read from an offset that the queue has."""
        queue = self.queue
        at_once = _UNITS_AT_ONCE if self._records is not None else self.max_count
        position = offset
        wanted = True
        while wanted and position - offset < UNITS_MAX:
            units = queue.units(position, min(at_once, _UNITS_AT_ONCE))
            if not units:
                break
            for unit in units:
                if not self._has_room(unit):
                    wanted = False
                    break
                position += 1
                self._take(unit)
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

    def _take(self, unit: Unit) -> None:
        if unit.is_blank:
            return
        if unit.physic_offset < self.log_min_offset:
            self._was_removing = True
            return
        if self._records is not None:
            record = self._matching(unit)
            if record is None:
                return
            self._records.append(record)
        self._ranges.append((unit.physic_offset, unit.size))
        self._size += unit.size

    def _matching(self, unit: Unit) -> bytes | None:
        message_filter = self.message_filter
        assert message_filter is not None
        if not message_filter.matches_code(unit.tags_code):
            return None
        self._records_read += 1
        found = self.read_record(unit.physic_offset)
        if found is None:
            return None
        record, check = found
        tags = decode_properties(check.properties).get(PROPERTY_TAGS)
        return record if message_filter.matches_tags(tags) else None
