"""The least of what was noted of late: for half a minute for certain, for one and a half at most.

::

    time   ├── previous ──┼── current ──▶ now
           30 s             up to 30 s, then it becomes the previous one

Room for two numbers, however many are noted.
"""

from __future__ import annotations

import math
from typing import Final, final

import attrs

PERIOD_S: Final = 30.0


@final
@attrs.define(eq=False)
class RecentLeast:
    """Takes values with their times, which never fall."""

    _began: float = attrs.field(default=-math.inf, init=False)
    _current: float = attrs.field(default=math.inf, init=False)
    _previous: float = attrs.field(default=math.inf, init=False)

    def note(self, value: float, now: float) -> None:
        """Note one value."""
        age_s = now - self._began
        if age_s >= PERIOD_S:
            self._previous = self._current if age_s < 2 * PERIOD_S else math.inf
            self._current = value
            self._began = now
        elif value < self._current:
            self._current = value

    def least(self, now: float) -> float | None:
        """Return the least one; None where none was noted of late."""
        age_s = now - self._began
        if age_s >= 2 * PERIOD_S:
            return None
        return self._current if age_s >= PERIOD_S else min(self._current, self._previous)
