"""Polling a link for some microseconds before the event loop sleeps: ``ha_spin_us``, by default 0.

A sleeping process is woken by an interrupt and the scheduler, which costs more than all that the
process then does for a small frame.  Bytes that arrive during a spin are received without that::

    turn of all tasks │ poll ≤ 20 µs │ turn of all tasks │ poll ≤ 20 µs │ …   ≤ ha_spin_us

Every poll follows a turn of all tasks, so none starves; each polling link holds them up for 20 µs
at most.  The number of polls is limited, too: in the simulator, where ``poll`` returns at once and
time stands still, a spin is a few turns without an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Poll

SLICE_S: Final = 20e-6


def always() -> bool:
    """Return True."""
    return True


@final
@attrs.define(eq=False)
class Spin:
    """Polls sockets; ``spin_us`` 0: never."""

    poll: Poll
    spin_us: int

    @property
    def is_on(self) -> bool:
        """Whether it polls at all."""
        return self.spin_us > 0

    async def receive(
        self,
        sock: trio.socket.SocketType,
        buffer: memoryview,
        is_worth_it: Callable[[], bool] = always,
    ) -> int | None:
        """Receive bytes that arrive in time, while ``is_worth_it``; return their number, or None.

        Returns 0 at the end of the stream.  Raises OSError if the link breaks.
        """
        now = trio.current_time()
        end = now + self.spin_us / 1e6
        for _ in range(self.spin_us):
            await trio.lowlevel.checkpoint()
            now = trio.current_time()
            if now >= end or not is_worth_it():
                break
            count = self.poll(sock, buffer, min(now + SLICE_S, end))
            if count is not None:
                return count
        return None
