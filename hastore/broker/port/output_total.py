"""Answers that clients have not taken yet: how much, and which client is closed for them.

::

    answer ─► begin ─► taken ─► taken ─► rest         a connection's HeldOutput
                └── all of them: OutputTotal; beyond size_max
                      the connections that are stalled are closed, the longest stalled first,
                      and no large answer is made before there is room for it

A peer that takes a little now and then is as stalled as one that takes nothing: it has a second for
each MiB of an answer (TAKING_RATE_MIN), then STALLED_S, and is closed only where others need the
room.  A consumer that takes its answers is never closed for those that others leave.  Small answers
(to messages sent, mostly) are bounded by each connection's own ``output_size_max``.

Invariants: large answers that are made or being sent have at most ``size_max`` bytes together, or
there is only one; they are made in the order in which they were asked for.  What a HeldOutput
counts is counted in its ``total`` until ``close``, which takes it all out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Iterable

STALLED_S: Final = 5.0
TAKING_RATE_MIN: Final = 1024 * 1024  # bytes a second


class Holder(Protocol):
    """A connection that holds output."""

    @property
    def stalled_since(self) -> float | None:
        """When its peer last took some of its output; None if there is no output.

        It never falls while the peer takes its output.
        """

    def close_stalled(self) -> None:
        """Close it, and take its output out of the sums before returning."""


@final
@attrs.define(eq=False)
class OutputTotal:
    """The sums: ``size`` of everything, and of large answers (``reserve``)."""

    size_max: int
    holders: Iterable[Holder]
    size: int = attrs.field(default=0, init=False)
    large: int = attrs.field(default=0, init=False)
    # The first in the queue waits for ``_released``.
    _queue: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _released: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # When to search for stalled holders again (trio time): none can have stalled for STALLED_S
    # before, and with many clients a search costs as much as some replies.
    _next_search_time: float = attrs.field(default=0.0, init=False)

    def count(self, size: int) -> None:
        """Add bytes to the output, or (negative) remove them."""
        self.size += size
        if size > 0 and self.size > self.size_max:
            self._close_stalled()

    def reserve_now(self, size: int) -> bool:
        """Reserve for a large answer of at most ``size``; return False if that has to wait."""
        if self._queue.locked() or not self._has_room(size):
            return False
        self.large += size
        return True

    async def reserve(self, size: int) -> None:
        """Reserve for a large answer of at most ``size``; wait in turn until there is room."""
        async with self._queue:
            while not self._has_room(size):
                self._close_stalled(size)
                if not self._has_room(size):
                    with trio.move_on_at(self._next_search_time):
                        await self._released.wait_for_running()
            self.large += size

    def release(self, size: int) -> None:
        """Return a reservation, or a part of it."""
        self.large -= size
        if size and self._released.is_waiting:
            self._released.wakeup()

    def _has_room(self, size: int) -> bool:
        return not self.large or self.large + size <= self.size_max

    def _close_stalled(self, wanted: int = 0) -> None:
        now = trio.current_time()
        if now < self._next_search_time:
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
                self._next_search_time = since + STALLED_S
                return
            holder.close_stalled()
        self._next_search_time = now + STALLED_S


@final
@attrs.define(eq=False)
class HeldOutput:
    """One connection's output: ``size`` is that of all, ``reserved`` for a large answer."""

    total: OutputTotal
    size: int = attrs.field(default=0, init=False)  # bytes counted that the peer has not taken
    reserved: int = attrs.field(default=0, init=False)  # bytes, for the one large answer
    # When the peer last took bytes, at most ``_whole_at``; None while nothing is being sent.
    stalled_since: float | None = attrs.field(default=None, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    # When a peer that reads at TAKING_RATE_MIN has all of what is being sent.
    _whole_at: float = attrs.field(default=0.0, init=False)

    def count(self, size: int) -> None:
        """Add bytes to the output, or (negative) remove them."""
        self.size += size
        if not self.is_closed:
            self.total.count(size)

    # -- large answers ---------------------------------------------------------------------------

    def reserve_now(self, size: int) -> bool:
        """Reserve for a large answer; return False if that has to wait."""
        if not self.total.reserve_now(size):
            return False
        self.reserved = size
        return True

    async def reserve(self, size: int) -> None:
        """Reserve for a large answer, when there is room."""
        await self.total.reserve(size)
        if self.is_closed:
            self.total.release(size)
        else:
            self.reserved = size

    def release(self, left: int = 0) -> None:
        """Return the reservation except ``left`` bytes."""
        size = max(self.reserved - left, 0)
        self.reserved -= size
        self.total.release(size)

    # -- sending ---------------------------------------------------------------------------------

    def begin(self, size: int) -> None:
        """Start to send ``size`` bytes."""
        self.stalled_since = trio.current_time()
        self._whole_at = self.stalled_since + size / TAKING_RATE_MIN

    def taken(self, size: int) -> None:
        """Record that the peer took ``size`` bytes."""
        self.count(-size)
        self.stalled_since = min(trio.current_time(), self._whole_at)

    def rest(self) -> None:
        """Record that nothing is being sent."""
        self.stalled_since = None

    def close(self) -> None:
        """Drop all output from the sums."""
        if not self.is_closed:
            self.total.count(-self.size)
            self.release()
            self.is_closed = True
            self.stalled_since = None
