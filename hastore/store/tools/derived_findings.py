"""Findings about consume queues and index: a limited number is kept, and all are counted.

Kinds, in addition to those of the log itself (``log_finding``):

    unit-missing    a record without a unit in its consume queue
    unit-wrong      a unit of another offset, size or tags code than its record's
    unit-dangling   a unit without a record
    queue-files     a file of a queue that cannot be used
    index-missing   records without (some of) their keys in the index
    index-dangling  an entry that is no key of a record
    index-doubled   a record whose keys are there more than once (RocketMQ does so after a restart)
    index-chain     an entry or slot that does not lead to the previous entry
    index-time      an entry with another time than its record's
    index-header    a header that does not match its entries
"""

from __future__ import annotations

import bisect
from typing import Final, final

from hastore.store.tools.log_finding import Findings

_UNREADABLE_MAX: Final = 100_000


@final
class DerivedFindings(Findings):
    """Collects findings; ``min_offset`` is the log's, ``is_open``: it was not closed cleanly."""

    def __init__(self, *, min_offset: int, is_open: bool) -> None:
        super().__init__()
        self.min_offset = min_offset
        self.is_open = is_open
        self._unreadable: list[tuple[int, int]] = []

    def record_unreadable(self, physic_offset: int, next_offset: int) -> None:
        """Record damage of the log: units and entries that point there are no findings."""
        if len(self._unreadable) < _UNREADABLE_MAX:
            self._unreadable.append((physic_offset, next_offset))

    def is_excused(self, physic_offset: int) -> bool:
        """Whether an offset is below the log, or in unreadable bytes."""
        if physic_offset < self.min_offset:
            return True
        at = bisect.bisect_right(self._unreadable, (physic_offset, 2**63)) - 1
        return at >= 0 and physic_offset < self._unreadable[at][1]
