"""How many messages came into a log, and how many a second of late.

::

    marks   │ t1, 0   │ t2, 40   │ t3, 95        a mark: when, and how many there were before
    count   ──────────────────────────► 130      what came since the oldest mark of the window

Counting is one addition; a mark is made now and then by who counts.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

import attrs

WINDOW_S: Final = 5.0
PERIOD_S: Final = 0.1
LEAST_S: Final = 1.0  # one message a millisecond ago is not a thousand a second


@final
@attrs.define(eq=False)
class MessageRate:
    """Messages since the start: add to ``count``, having called ``mark`` before; trio times."""

    count: int = attrs.field(default=0, init=False)
    _first_time: float | None = attrs.field(default=None, init=False)
    _marks: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)

    def mark(self, now: float) -> None:
        """Remember when there were so many; what comes within ``PERIOD_S`` counts as of then."""
        marks = self._marks
        if self._first_time is None:
            self._first_time = now
        if marks and now - marks[-1][0] < PERIOD_S:
            return
        while marks and marks[0][0] <= now - WINDOW_S:
            marks.popleft()
        marks.append((now, self.count))

    def per_s(self, now: float) -> float:
        """Messages a second, over the last seconds or since the first."""
        if self._first_time is None:
            return 0.0
        before = next((count for time, count in self._marks if time > now - WINDOW_S), self.count)
        return (self.count - before) / min(max(now - self._first_time, LEAST_S), WINDOW_S)
