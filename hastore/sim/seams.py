"""The one place that touches trio's private names: scheduling by seed, in virtual time.

Hook (not official, which is why pyproject pins trio's minor version): with
``_ALLOW_DETERMINISTIC_SCHEDULING`` trio sorts each batch of tasks by their age and shuffles it with
its own generator ``_r``, which is seeded here.  pytest-trio and hypothesis use the same hook.

What else breaks a replay: threads, the wall clock, iterating over sets of objects.  The first two
``guards`` refuses; against the third ``dict`` is used as an ordered set.

The clock is coarse: what is due within the same millisecond happens at its end, in one pass of the
loop, in an order that the seed decides.  trio's own mock clock needs a second pass for each jump.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import trio
from trio._core import _run as _trio_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
assert hasattr(_trio_run, _FLAG), "trio has changed: deterministic scheduling is not where it was"
assert isinstance(getattr(_trio_run, "_r", None), random.Random), "trio has changed: no generator"

_TICKS_A_SECOND: Final = 1_000
_IDLE_PASSES_MAX: Final = 10_000


@final
@attrs.define(eq=False)
class SimClock(trio.abc.Clock):
    """Virtual time, which jumps to the tick of the next deadline when no task can run."""

    now: float = 0.0
    idle_passes: int = 0

    def start_clock(self) -> None:
        """Begin at 0."""

    def current_time(self) -> float:
        """Give the time since the beginning."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump: trio asks this where no task can run, and would sleep for what this gives."""
        if deadline == math.inf:  # as when trio's own tasks end
            self.idle_passes += 1
            assert self.idle_passes < _IDLE_PASSES_MAX, "all tasks wait, and none for a time"
            return 0.0
        tick = math.ceil(deadline * _TICKS_A_SECOND) / _TICKS_A_SECOND
        self.now = max(self.now, deadline, tick)
        return 0.0


def run_by_seed(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` in virtual time, its tasks scheduled by ``seed``; time jumps when all wait."""
    generator: random.Random = _trio_run._r  # noqa: SLF001 - see the module's docstring
    before = generator.getstate(), getattr(_trio_run, _FLAG)
    setattr(_trio_run, _FLAG, True)
    generator.seed(seed)
    try:
        return trio.run(main, clock=SimClock())
    finally:
        generator.setstate(before[0])
        setattr(_trio_run, _FLAG, before[1])
