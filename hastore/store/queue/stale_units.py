"""Finds the units at a queue's end that name no record of the queue.

::

    good  good  stale  good  good  stale  stale │ max_offset
                  │                  └──────┴──── trailing: to be cut
                  └ has good units after it: becomes a blank

RocketMQ's slaves leave such units when they cut their logs back, and never repair one: where a unit
is there already, the unit of a new record is dropped.  So after a cut the log is dispatched again.

A start must be fast where there are many queues, so only the last units of each are checked, fewer
the more queues there are; where one is stale, more units before it are.  Units below the log's
begin stay, and so do blanks.

A unit may also name a record that is damaged.  Such a unit is evidence for a repair, so it stays:
a unit is stale only where the log is intact around the place that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from hastore.store.queue.unit import UNIT_SIZE
from hastore.store.queue.unit_check import MULTI_DISPATCH_PREFIX
from hastore.store.record.layout import HEAD_READ_SIZE
from hastore.store.record.record_check import (
    INTACT_KINDS,
    RecordKind,
    check_record,
    check_without_body,
    texts_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.unit import Unit
    from hastore.store.queue.unit_check import UnitCheck

CHECKS_MAX: Final = 8_000  # of units that turn out to be good, in one start, and one a queue
UNITS_CHECKED_MAX: Final = 16  # of one queue, likewise


class StaleUnit(NamedTuple):
    """A stale unit of ``queue``."""

    queue: ConsumeQueue
    queue_offset: int
    unit: Unit


@final
class StaleSearch:
    """Searches the queues of one log, which begins at ``min_offset``.

    ``read`` returns up to so many bytes of one file at a physic offset, none outside the log.
    Everything from ``intact_from`` on is known to be intact.
    """

    def __init__(
        self,
        check: UnitCheck,
        read: Callable[[int, int], bytes],
        *,
        file_size: int,
        min_offset: int,
        intact_from: int,
    ) -> None:
        self._check = check
        self._read = read
        self._file_size = file_size
        self._min_offset = min_offset
        self._intact_from = intact_from

    def find(self, queues: list[ConsumeQueue], queue_file_size: int) -> list[StaleUnit]:
        """Return the stale units, each queue's from its end on.  Raises DiskError."""
        count = max(1, min(UNITS_CHECKED_MAX, CHECKS_MAX // max(len(queues), 1)))
        found: list[StaleUnit] = []
        for queue in queues:
            if not queue.topic.startswith(MULTI_DISPATCH_PREFIX):
                found += self._of_queue(queue, queue_file_size // UNIT_SIZE, count)
        doubtful: dict[int, set[int]] = {}  # places that units name, by file
        for _, _, unit in found:
            place = unit.physic_offset
            if place < self._intact_from:
                doubtful.setdefault(place - place % self._file_size, set()).add(place)
        damaged: set[int] = set()
        for file_from_offset, places in doubtful.items():
            damaged |= self._damaged(file_from_offset, places)
        return [one for one in found if one.unit.physic_offset not in damaged]

    def _of_queue(self, queue: ConsumeQueue, file_units: int, count: int) -> list[StaleUnit]:
        topic = queue.topic.encode(errors="surrogateescape")
        found: list[StaleUnit] = []
        end, left = queue.max_offset, count
        while left and end > queue.min_offset:
            begin = max(end - left, queue.min_offset, (end - 1) // file_units * file_units)
            for number, unit in reversed([*enumerate(queue.units(begin, end - begin), begin)]):
                if unit.is_blank:
                    left -= 1
                elif unit.physic_offset < self._min_offset:
                    return found
                elif self._check.names_record(unit, topic, queue.queue_id, number):
                    left -= 1
                else:
                    found.append(StaleUnit(queue, number, unit))
                    left = count
            left, end = max(left, 0), begin
        return found

    def _damaged(self, file_from_offset: int, places: Iterable[int]) -> set[int]:
        """Return the places of one file that may belong to a damaged record.

        All places after the first damage of the file, because no record is sure there.
        """
        remaining = sorted(places, reverse=True)
        at, file_end = file_from_offset, file_from_offset + self._file_size
        while remaining:
            size = self._intact_size(at, file_end)
            if not size:
                break
            at += size
            while remaining and remaining[-1] < at:
                remaining.pop()
        return set(remaining)

    def _intact_size(self, at: int, file_end: int) -> int:
        """Return the size of the record or filler at an offset; 0 if none is intact there."""
        head = self._read(at, HEAD_READ_SIZE)
        texts_at = texts_range(head)
        check = check_record(head, 0, file_end - at, at, check_crc=False)
        if texts_at is not None and check.kind is not RecordKind.BLANK:
            begin, end = texts_at
            check = check_without_body(head, self._read(at + begin, end - begin), at)
        return check.size if check.kind in INTACT_KINDS and at + check.size <= file_end else 0
