"""The least of recent values, in constant space.

::

    time   ├── previous ──┼── current ──▶ now
           30 s             up to 30 s, then it becomes the previous one
"""

from __future__ import annotations

import math
from typing import Final, final

import attrs

PERIOD_S: Final = 30.0


@final
@attrs.define(eq=False)
class RecentLeast:
    """The least value of the last 30 to 60 seconds; times must not fall."""

    _began: float = attrs.field(default=-math.inf, init=False)
    _current: float = attrs.field(default=math.inf, init=False)
    _previous: float = attrs.field(default=math.inf, init=False)

    def record(self, value: float, now: float) -> None:
        """Add a value."""
        age_s = now - self._began
        if age_s >= PERIOD_S:
            self._previous = self._current if age_s < 2 * PERIOD_S else math.inf
            self._current = value
            self._began = now
        elif value < self._current:
            self._current = value

    def least(self, now: float) -> float | None:
        """Return the least value; None without recent ones."""
        age_s = now - self._began
        if age_s >= 2 * PERIOD_S:
            return None
        return self._current if age_s >= PERIOD_S else min(self._current, self._previous)
