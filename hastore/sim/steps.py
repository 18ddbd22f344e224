"""Checks a run after each step, and finds tasks that never wait.

A step is a pass of trio's loop: every task that could run has run once.  The clock stands still
while any task can run, so a run whose tasks never wait would never end.  Loops that never await,
and those that no cancellation reaches, cannot be stopped here.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.network import WINDOW_SIZE
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable

# Most runs have some 200, but if each receive returns a single byte, a window takes as many steps.
STEPS_AT_ONCE_MAX: Final = 4 * WINDOW_SIZE


@final
@attrs.define(eq=False)
class Steps(trio.abc.Instrument):
    """Calls ``check`` after each step, and ``broken`` if it raises or time stands still."""

    check: Callable[[], None]
    broken: Callable[[ViolationError], None]
    now: float = 0.0
    _at_once: int = 0
    _is_over: bool = False

    def end(self) -> None:
        """Stop checking: the nodes are about to be removed."""
        self._is_over = True

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
        """Check the run: trio calls this between two passes of its loop."""
        now = trio.current_time()
        self._at_once = self._at_once + 1 if now == self.now else 0
        self.now = now
        if self._at_once == STEPS_AT_ONCE_MAX:
            detail = f"{STEPS_AT_ONCE_MAX} steps without progress of time: a task never waits"
            self.broken(ViolationError("livelock", detail))
        if self._is_over:
            return
        try:
            self.check()
        except Exception as error:  # noqa: BLE001 - trio would remove the instrument and go on
            self.broken(broken_off(error))


def broken_off(error: Exception) -> ViolationError:
    """Return the violation for an error that ended a run."""
    cause = first_cause(error)
    if isinstance(cause, ViolationError):
        return cause
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" in {frames[-1].name}, {Path(frames[-1].filename).name}" if frames else ""
    text = f"{type(cause).__name__}: {cause}".removesuffix(": ")
    violation = ViolationError("crash", f"{text}{place}")
    violation.__cause__ = cause
    return violation


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside groups and trio's internal errors."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
            error = error.__cause__
        else:
            return error
