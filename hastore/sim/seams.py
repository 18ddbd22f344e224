"""The one place that touches trio's private names: scheduling by seed, in virtual time.

Hook (not official, which is why pyproject pins trio's minor version): with
``_ALLOW_DETERMINISTIC_SCHEDULING`` trio sorts each batch of tasks by their age and shuffles it with
its own generator ``_r``, which is seeded here.  pytest-trio and hypothesis use the same hook.

What else breaks a replay: threads, the wall clock, iterating over sets of objects.  The first two
``guards`` refuses; against the third ``dict`` is used as an ordered set.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, TypeVar

import trio
import trio.testing
from trio._core import _run as _trio_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
assert hasattr(_trio_run, _FLAG), "trio has changed: deterministic scheduling is not where it was"
assert isinstance(getattr(_trio_run, "_r", None), random.Random), "trio has changed: no generator"


def run_by_seed(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` in virtual time, its tasks scheduled by ``seed``; time jumps when all wait."""
    generator: random.Random = _trio_run._r  # noqa: SLF001 - see the module's docstring
    before = generator.getstate(), getattr(_trio_run, _FLAG)
    setattr(_trio_run, _FLAG, True)
    generator.seed(seed)
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        generator.setstate(before[0])
        setattr(_trio_run, _FLAG, before[1])
