"""Delay signal handlers while Spark starts and stops.

A Python handler may run between any two instructions of the main thread, and most raise.  Ctrl-C
during a call to Java, or after a process has started but before a variable holds it, would leak a
process or a file.  So the handlers wait until the block ends; only the function ``act`` runs at
once (it ends the JVM, so that the pending call to Java fails).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    _Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class HeldSignals:
    """The delayed handlers, and the first signal received."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._before: dict[signal.Signals, _Handler] = {}
        self._received: tuple[signal.Signals, FrameType | None] | None = None

    def hold(self) -> None:
        """Set the handlers aside, also those set since the last call.

        A signal that is ignored, or left to the system, stays so.  Does nothing outside the main
        thread, which alone receives signals.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = self._before.setdefault(number, signal.getsignal(number))
            if before is not None:  # None: set by C code, so Python cannot restore it
                signal.signal(number, self._record if callable(before) else before)

    def release(self) -> None:
        """Restore the handlers, and call the one of the signal received.

        Raises what that handler raises, or else KeyboardInterrupt.
        """
        for number, before in reversed(self._before.items()):
            if before is not None:
                signal.signal(number, before)
        if self._received is not None:
            number, frame = self._received
            handler = self._before[number]
            assert callable(handler)
            handler(number, frame)
            raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = (signal.Signals(number), frame)
        self._act()


@contextlib.contextmanager
def held_signals(act: Callable[[], None]) -> Iterator[HeldSignals]:
    """Delay signal handlers until the block ends; call ``act`` as soon as a signal arrives."""
    held = HeldSignals(act)
    held.hold()
    try:
        yield held
    finally:
        held.release()
