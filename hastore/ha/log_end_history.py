"""When the master's log end passed which offset: turns a lag in bytes into one in seconds.

::

    time     start       t1           t2                    t3        now
    end      │───────────┼────────────┼─────────────────────┼─────────┤
             0          e1           e2                    e3        max_offset
                         └ the bytes from e1 to e2 were appended at t2, within PERIOD_S

Puts make the marks, at most one every ``PERIOD_S``.  If there are too many, neighbours are merged:
the older, the further apart, in proportion to their age.

Invariant: times and ends grow strictly from mark to mark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple, final

PERIOD_S: Final = 0.1
MARKS_MAX: Final = 512
_RATE_WINDOW_S: Final = 5.0


class LagTime(NamedTuple):
    """How long ago the end passed an offset."""

    seconds: float
    is_least: bool  # it may be longer ago: the end passed the offset before this node's start


@final
class LogEndHistory:
    """The marks of one master since its start."""

    def __init__(self, now: float, end: int) -> None:
        self._times = [now]
        self._ends = [end]

    def __len__(self) -> int:
        """Number of marks."""
        return len(self._times)

    def mark(self, now: float, before: int, end: int) -> None:
        """Record that an append at ``now`` moved the end from ``before`` to ``end``.

        The last mark gets the appends of its period, which made none.
        """
        times, ends = self._times, self._ends
        if now - times[-1] < PERIOD_S or end <= ends[-1]:
            return
        ends[-1] = max(ends[-1], before)
        times.append(now)
        ends.append(end)
        if len(times) > MARKS_MAX:
            self._thin()

    def _thin(self) -> None:
        """Merge marks that are closer to each other than a fraction of their age."""
        now = self._times[-1]
        part = 1 / 32
        while len(self._times) > MARKS_MAX * 7 // 8:
            times, ends = self._times[:1], self._ends[:1]
            for time, end in zip(self._times[1:], self._ends[1:], strict=True):
                if len(times) > 1 and time - times[-1] < (now - time) * part:
                    ends[-1] = end  # these bytes now count as a little older
                else:
                    times.append(time)
                    ends.append(end)
            self._times, self._ends = times, ends
            part *= 2

    def lag(self, offset: int, now: float, end: int) -> LagTime:
        """Return how long ago the end passed ``offset``; 0 if ``end``, the current one, has not."""
        if offset >= end:
            return LagTime(0.0, is_least=False)
        at = bisect_right(self._ends, offset)
        at = min(at, len(self._times) - 1)
        return LagTime(max(now - self._times[at], 0.0), is_least=at == 0)

    def bytes_per_s(self, now: float, end: int) -> float:
        """Return how fast the log has grown in the last seconds."""
        if self._times[-1] < now - _RATE_WINDOW_S:
            return 0.0  # appends without a mark were within a period of the last one
        at = max(bisect_left(self._times, now - _RATE_WINDOW_S) - 1, 0)
        window_s = min(now - self._times[0], _RATE_WINDOW_S)
        return (end - self._ends[at]) / window_s if window_s > 0 else 0.0
