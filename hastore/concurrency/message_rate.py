"""The number of messages since the start, and the rate of the last seconds.

::

    marks   │ t1, 0   │ t2, 40   │ t3, 95        a mark: a time, and the count before it
    count   ──────────────────────────► 130      minus the oldest mark in the window: the rate

Counting is one addition; the caller makes a mark now and then.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

import attrs

WINDOW_S: Final = 5.0
PERIOD_S: Final = 0.1
LEAST_S: Final = 1.0  # one message a millisecond ago is not a rate of a thousand per second


@final
@attrs.define(eq=False)
class MessageRate:
    """Messages since the start: call ``mark``, then add to ``count``.  Times are trio's."""

    count: int = attrs.field(default=0, init=False)
    _first_time: float | None = attrs.field(default=None, init=False)
    _marks: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)

    def mark(self, now: float) -> None:
        """Mark the count at ``now``, at most once per ``PERIOD_S``."""
        marks = self._marks
        if self._first_time is None:
            self._first_time = now
        if marks and now - marks[-1][0] < PERIOD_S:
            return
        while marks and marks[0][0] <= now - WINDOW_S:
            marks.popleft()
        marks.append((now, self.count))

    def per_s(self, now: float) -> float:
        """Return messages per second over ``WINDOW_S``, or since the first message."""
        if self._first_time is None:
            return 0.0
        before = next((count for time, count in self._marks if time > now - WINDOW_S), self.count)
        return (self.count - before) / min(max(now - self._first_time, LEAST_S), WINDOW_S)
