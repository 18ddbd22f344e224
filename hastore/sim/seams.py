"""Schedules trio's tasks by seed, in virtual time: the only place that uses trio's private names.

With ``_ALLOW_DETERMINISTIC_SCHEDULING`` trio sorts each batch of tasks by their age and shuffles it
with its own generator ``_r``, which is seeded here.  The hook is not official; pytest-trio and
hypothesis use it too.  Another minor version of trio may schedule in another order, so that a seed
is another run: the lock files, and so the tests, have ``TRIO_MINOR``, and the commands say so where
trio is another one.  This module can be imported where trio's private names are gone: a run needs
them, and is refused.

Threads, the wall clock and iteration over sets of objects would break a replay, too.  ``guards``
forbids the first two; instead of sets of objects the simulator uses ``dict``.

The clock is coarse: everything due within the same millisecond happens at its end, in one pass of
the loop, in an order that the seed decides.  trio's own mock clock needs a second pass per jump.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import attrs
import trio

from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

TRIO_MINOR: Final = "0.35"  # the seeds of the tests and of reports are runs with it

# None where this trio has none: ``_generator`` says so before any use.
_trio_run: Any = None
with contextlib.suppress(ImportError):
    _trio_run = importlib.import_module("trio._core._run")
_reschedule: Final[Any] = getattr(getattr(_trio_run, "Runner", None), "reschedule", None)
_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_TICKS_A_SECOND: Final = 1_000
_IDLE_PASSES_MAX: Final = 10_000


@final
@attrs.define(eq=False)
class SimClock(trio.abc.Clock):
    """Virtual time in seconds, which jumps to the next deadline's tick when no task can run."""

    now: float = 0.0
    idle_passes: int = 0

    def start_clock(self) -> None:
        """Begin at 0."""

    def current_time(self) -> float:
        """Return the seconds since the beginning."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to ``deadline`` and return 0: trio calls this before it would sleep that long."""
        if deadline == math.inf:  # as when trio's own tasks end
            self.idle_passes += 1
            assert self.idle_passes < _IDLE_PASSES_MAX, "all tasks wait, and none for a time"
            return 0.0
        tick = math.ceil(deadline * _TICKS_A_SECOND) / _TICKS_A_SECOND
        self.now = max(self.now, deadline, tick)
        return 0.0


@final
@attrs.define(eq=False)
class Freeze:
    """Suspends tasks, as SIGSTOP does those of a process; time goes on.

    A task that is woken meanwhile (an arrival, a deadline, a cancellation) runs after ``end``.
    """

    belongs: Callable[[trio.lowlevel.Task], bool]
    _tasks: list[trio.lowlevel.Task] = attrs.field(factory=list)

    def begin(self) -> None:
        """Suspend the tasks from their next step on."""
        runq = _trio_run.GLOBAL_RUN_CONTEXT.runner.runq
        awake = list(runq)
        runq.clear()
        for task in awake:
            (self._tasks if self.belongs(task) else runq).append(task)
        _freezes.append(self)
        _trio_run.Runner.reschedule = _reschedule_or_hold

    def end(self) -> None:
        """Let the tasks run again."""
        _freezes.remove(self)
        if not _freezes:
            _trio_run.Runner.reschedule = _reschedule
        _trio_run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._tasks)
        self._tasks.clear()

    def takes(self, task: trio.lowlevel.Task) -> bool:
        """Whether a task that was woken is suspended; if so, keep it."""
        if self.belongs(task):
            self._tasks.append(task)
            return True
        return False


_freezes: list[Freeze] = []


def _reschedule_or_hold(runner: Any, task: trio.lowlevel.Task, *next_send: Any) -> None:
    _reschedule(runner, task, *next_send)
    if any(freeze.takes(task) for freeze in _freezes):
        taken = runner.runq.pop()
        assert taken is task, "a task that was woken is the last in the queue"


def _generator() -> random.Random:
    """Return what trio shuffles tasks with.  Raises ConfigError."""
    generator = getattr(_trio_run, "_r", None)
    has_runner = _reschedule is not None and hasattr(_trio_run, "GLOBAL_RUN_CONTEXT")
    if not (isinstance(generator, random.Random) and hasattr(_trio_run, _FLAG) and has_runner):
        raise ConfigError(
            f"trio {trio.__version__} cannot schedule by a seed: its hook for that is gone",
            hint=f"pip install 'trio=={TRIO_MINOR}.*' where the simulator runs",
        )
    return generator


def trio_note() -> str | None:
    """Return what a person who compares runs must know of this trio; None if it is TRIO_MINOR's.

    Raises ConfigError if this trio has no deterministic scheduling.
    """
    _generator()
    version = trio.__version__
    if version.split(".")[:2] == TRIO_MINOR.split("."):
        return None
    return (
        f"trio is {version}: a seed may be another run than with trio {TRIO_MINOR}, which the tests"
        " and recorded seeds have"
    )


def run_by_seed(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` in virtual time, its tasks scheduled by ``seed``; return its result.

    Raises ConfigError if this trio has no deterministic scheduling.
    """
    generator = _generator()
    before = generator.getstate(), getattr(_trio_run, _FLAG)
    setattr(_trio_run, _FLAG, True)
    generator.seed(seed)
    try:
        return trio.run(main, clock=SimClock())
    finally:
        _freezes.clear()
        _trio_run.Runner.reschedule = _reschedule
        generator.setstate(before[0])
        setattr(_trio_run, _FLAG, before[1])
