"""What all clients together have not taken yet of their answers, and who goes when it is too much.

::

    reply ─► held by its connection ─► taken by the peer
                └── all of them: beyond size_max
                      who has taken nothing for STALLED_S, or too little (HeldOutput), is closed,
                      the longest first, and no large answer is made before there is room for it

A consumer that takes its answers is never closed for those that others leave lying.  Small answers
(to messages sent, mostly) are bounded by each connection's own ``output_size_max``.

Invariant: large answers that are made or being sent have at most ``size_max`` bytes together, or
there is one; they are made in the order in which they were asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Iterable

STALLED_S: Final = 5.0


class Holder(Protocol):
    """A connection that holds output."""

    @property
    def stalled_since(self) -> float | None:
        """When its peer last took something of what there is; None while it waits for us.

        It never falls back while the peer takes what there is.
        """

    def close_stalled(self) -> None:
        """Close it: what it holds is taken out of the sums within, and it is stalled no more."""


@final
@attrs.define(eq=False)
class OutputTotal:
    """The sums: ``size`` of everything, and of large answers (``reserve``)."""

    size_max: int
    holders: Iterable[Holder]
    size: int = attrs.field(default=0, init=False)
    large: int = attrs.field(default=0, init=False)
    # Who is first in the queue waits for ``_released``.
    _queue: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _released: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # When to look for stalled holders again, in trio's time: none has been stalled for STALLED_S
    # before, and with many clients a look at all of them costs as much as some replies.
    _next_look_time: float = attrs.field(default=0.0, init=False)

    def count(self, size: int) -> None:
        """Count bytes that are held more, or (negative) less."""
        self.size += size
        if size > 0 and self.size > self.size_max:
            self._close_stalled()

    def reserve_now(self, size: int) -> bool:
        """Count a large answer of at most ``size``, if there is room and nobody waits for it."""
        if self._queue.locked() or not self._has_room(size):
            return False
        self.large += size
        return True

    async def reserve(self, size: int) -> None:
        """Wait until a large answer of at most ``size`` may be made, and count it."""
        async with self._queue:
            while not self._has_room(size):
                self._close_stalled(size)
                if not self._has_room(size):
                    with trio.move_on_at(self._next_look_time):
                        await self._released.wait_for_running()
            self.large += size

    def release(self, size: int) -> None:
        """Take a reservation back, or a part of it."""
        self.large -= size
        if size and self._released.is_waiting:
            self._released.wakeup()

    def _has_room(self, size: int) -> bool:
        return not self.large or self.large + size <= self.size_max

    def _close_stalled(self, wanted: int = 0) -> None:
        now = trio.current_time()
        if now < self._next_look_time:
            return
        stalled = [
            (since, holder)
            for holder in self.holders
            if (since := holder.stalled_since) is not None
        ]
        stalled.sort(key=lambda pair: pair[0])
        for since, holder in stalled:
            is_enough = max(self.size, self.large + wanted) <= self.size_max
            if is_enough or since + STALLED_S > now:
                self._next_look_time = since + STALLED_S
                return
            holder.close_stalled()
        self._next_look_time = now + STALLED_S
