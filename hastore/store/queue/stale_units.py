"""Finds the units at a queue's end that name no record of the queue, or with other tags.

::

    good  good  stale  good  good  stale  stale │ max_offset
                  │                  └──────┴──── trailing: to be cut
                  └ has good units after it: becomes a blank

RocketMQ's slaves leave such units when they cut their logs back, and never repair one: where a unit
is there already, the unit of a new record is dropped.  So after a cut the log is dispatched again.

A start must be fast where there are many queues, so only the last units of each are checked, fewer
the more queues there are; where one is stale, more units before it are.  Units below the log's
begin stay, and so do blanks.

A unit may also name a record that is damaged, or that the disk cannot read.  Such a unit is
evidence for a repair, so it stays: a unit is stale only where the log is intact around the place
that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from hastore.errors import DiskError
from hastore.store.queue.unit import UNIT_SIZE
from hastore.store.queue.unit_check import MULTI_DISPATCH_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

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

    Everything from ``intact_from`` on is known to be intact.  For a file before it, ``intact_end``
    returns the offset of its first damage, or of its end; the file is named by its first offset.
    """

    def __init__(
        self,
        check: UnitCheck,
        *,
        file_size: int,
        min_offset: int,
        intact_from: int,
        intact_end: Callable[[int], int],
    ) -> None:
        self._check = check
        self._file_size = file_size
        self._min_offset = min_offset
        self._intact_from = intact_from
        self._intact_end = intact_end

    def find(self, queues: list[ConsumeQueue], queue_file_size: int) -> list[StaleUnit]:
        """Return the stale units, each queue's from its end on.  Raises DiskError."""
        count = max(1, min(UNITS_CHECKED_MAX, CHECKS_MAX // max(len(queues), 1)))
        found: list[StaleUnit] = []
        for queue in queues:
            if not queue.topic.startswith(MULTI_DISPATCH_PREFIX):
                found += self._of_queue(queue, queue_file_size // UNIT_SIZE, count)
        intact_ends: dict[int, int] = {}  # of files, by their first offsets
        return [one for one in found if self._is_sure(one.unit.physic_offset, intact_ends)]

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
                elif self._may_name_record(unit, topic, queue.queue_id, number):
                    left -= 1
                else:
                    found.append(StaleUnit(queue, number, unit))
                    left = count
            left, end = max(left, 0), begin
        return found

    def _may_name_record(self, unit: Unit, topic: bytes, queue_id: int, number: int) -> bool:
        try:
            check = self._check
            is_named = check.names_record(unit, topic, queue_id, number)
            return is_named and check.has_tags_code(unit, topic)
        except DiskError as error:
            if not error.is_unreadable:
                raise
            return True

    def _is_sure(self, place: int, intact_ends: dict[int, int]) -> bool:
        """Whether the log is intact around a place: before the first damage of its file."""
        if place >= self._intact_from:
            return True
        file_from_offset = place - place % self._file_size
        if file_from_offset not in intact_ends:
            intact_ends[file_from_offset] = self._intact_end(file_from_offset)
        return place < intact_ends[file_from_offset]
