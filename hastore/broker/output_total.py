"""What all clients together have not taken yet of their answers, and who goes when it is too much.

::

    reply ─► held by its connection ─► taken by the peer
                └── all of them: beyond size_max
                      who has taken nothing for STALLED_S is closed, the longest first,
                      and no large answer is made before there is room for it

A consumer that takes its answers is never closed for those that others leave lying.  Small answers
(to messages sent, mostly) are bounded by each connection's own ``output_size_max``.

Invariant: large answers that are made or being sent have at most ``size_max`` bytes together, or
there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

STALLED_S: Final = 5.0


class Holder(Protocol):
    """A connection that holds output."""

    @property
    def stalled_since(self) -> float | None:
        """When its peer last took something of what there is; None while it waits for us."""

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
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def count(self, size: int) -> None:
        """Count bytes that are held more, or (negative) less."""
        self.size += size
        if size > 0 and self.size > self.size_max:
            self._close_stalled()

    async def reserve(self, size: int) -> None:
        """Wait until a large answer of at most ``size`` may be made, and count it."""
        while self.large and self.large + size > self.size_max:
            self._close_stalled(size)
            if not self.large or self.large + size <= self.size_max:
                break
            since = [holder.stalled_since for holder in self.holders]
            first = min((time for time in since if time is not None), default=float("inf"))
            with trio.move_on_at(first + STALLED_S):
                await self._waiting.park()
        self.large += size

    def release(self, size: int) -> None:
        """Take a reservation back, or a part of it."""
        self.large -= size
        if self._waiting and self.large < self.size_max:
            self._waiting.unpark_all()

    def _close_stalled(self, wanted: int = 0) -> None:
        latest = trio.current_time() - STALLED_S
        stalled = [
            (since, holder)
            for holder in self.holders
            if (since := holder.stalled_since) is not None and since <= latest
        ]
        stalled.sort(key=lambda pair: pair[0])
        for _, holder in stalled:
            if max(self.size, self.large + wanted) <= self.size_max:
                return
            holder.close_stalled()
