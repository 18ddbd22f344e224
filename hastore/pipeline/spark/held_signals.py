"""Signals that wait while Spark starts and stops.

A Python handler runs between any two steps of the main thread, and most raise: Ctrl-C in the midst
of a call to Java, or between a process and the variable that is to name it, leaves something behind
that nobody knows of.  So the handlers wait for the end of the block; what is to happen at once (the
JVM is ended, so that the call to it fails) is another function's.
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
    """The handlers that wait, and the first signal that came."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._before: dict[signal.Signals, _Handler] = {}
        self._came: tuple[signal.Signals, FrameType | None] | None = None

    def hold(self) -> None:
        """Put the handlers aside; called again it does so with one that was set since.

        A signal that is ignored, or left to the system, stays so.  In another thread than the main
        one, to which signals do not come, this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = self._before.setdefault(number, signal.getsignal(number))
            if before is not None:  # not Python's to set again
                signal.signal(number, self._note if callable(before) else before)

    def release(self) -> None:
        """Set the handlers again, and call the one of the signal that came.

        Raises what that handler does, KeyboardInterrupt where it raises nothing.
        """
        for number, before in reversed(self._before.items()):
            if before is not None:
                signal.signal(number, before)
        if self._came is not None:
            number, frame = self._came
            handler = self._before[number]
            assert callable(handler)
            handler(number, frame)
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came is None:
            self._came = (signal.Signals(number), frame)
        self._act()


@contextlib.contextmanager
def held_signals(act: Callable[[], None]) -> Iterator[HeldSignals]:
    """Hold signals while the block runs; ``act`` is called as soon as one comes."""
    held = HeldSignals(act)
    held.hold()
    try:
        yield held
    finally:
        held.release()
