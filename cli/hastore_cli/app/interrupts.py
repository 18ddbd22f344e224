"""Ctrl-C and SIGTERM for commands that print or commit something before they end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@final
@attrs.define(eq=False)
class Interruption:
    """The first signal cancels ``scope`` at once, and ``grace_scope`` after ``grace_s`` seconds."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    grace_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    grace_s: float = 0.0
    signal: int | None = None  # its number, once there was one

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number; None without a signal."""
        return None if self.signal is None else 128 + self.signal

    def interrupt(self, signum: int) -> None:
        """Handle a signal; a second one ends the process at once."""
        if self.signal is not None:
            sys.stderr.flush()
            os._exit(128 + signum)
        self.signal = signum
        self.scope.cancel()
        self.grace_scope.deadline = trio.current_time() + self.grace_s


@asynccontextmanager
async def interruptible() -> AsyncIterator[Interruption]:
    """Handle SIGINT and SIGTERM during the block."""
    interruption = Interruption()

    async def watch(signals: AsyncIterator[int]) -> None:
        async for signum in signals:
            interruption.interrupt(signum)

    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            yield interruption
            nursery.cancel_scope.cancel()
