"""The number of messages since the start, and how many came within the last seconds.

::

    marks   │ t1, 0   │ t2, 40   │ t3, 95        a mark: a time, and the count before it
    count   ──────────────────────────► 130      minus the oldest mark in the window

Counting is one addition; the caller makes a mark now and then.  A rate keeps marks for some
windows, each with its own distance between them: a longer window is known less precisely.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias, final

import attrs

WINDOW_S: Final = 5.0
PERIOD_S: Final = 0.1
LEAST_S: Final = 1.0  # one message a millisecond ago is not a rate of a thousand per second

# A window in seconds, and the least time between two of its marks.
Window: TypeAlias = "tuple[float, float]"
_LAST_SECONDS: Final[tuple[Window, ...]] = ((WINDOW_S, PERIOD_S),)


@final
@attrs.define(eq=False)
class MessageRate:
    """Messages since the start: call ``mark``, then add to ``count``.  Times are trio's."""

    windows: tuple[Window, ...] = _LAST_SECONDS  # the shortest first
    count: int = attrs.field(default=0, init=False)
    _first_time: float | None = attrs.field(default=None, init=False)
    _marks: tuple[deque[tuple[float, int]], ...] = attrs.field(init=False)  # of each window

    def __attrs_post_init__(self) -> None:
        """Make the windows."""
        self._marks = tuple(deque() for _ in self.windows)

    def mark(self, now: float) -> None:
        """Mark the count at ``now``, unless the last mark is too near."""
        if self._first_time is None:
            self._first_time = now
        for (window_s, period_s), marks in zip(self.windows, self._marks, strict=True):
            if marks and now - marks[-1][0] < period_s:
                return
            while marks and marks[0][0] <= now - window_s:
                marks.popleft()
            marks.append((now, self.count))

    def within(self, seconds: float, now: float) -> int:
        """Return how many came within the last ``seconds``, at most the longest window."""
        marks = next(
            marks
            for (window_s, _), marks in zip(self.windows, self._marks, strict=True)
            if window_s >= seconds
        )
        before = next((count for time, count in marks if time > now - seconds), self.count)
        return self.count - before

    def per_s(self, now: float, seconds: float = WINDOW_S) -> float:
        """Return messages per second over the last ``seconds``, or since the first message."""
        if self._first_time is None:
            return 0.0
        return self.within(seconds, now) / min(max(now - self._first_time, LEAST_S), seconds)
