"""What one client has not taken yet of its answers, as it counts for all of them (OutputTotal).

::

    answer ─► begin ─► taken ─► taken ─► rest
              stalled_since: when it last took something, but no later than TAKING_RATE_MIN allows

Who takes a little now and then is as stalled as who takes nothing: an answer has a second for each
MiB, and STALLED_S.  Only then, and only where others need the room, it is closed.

Invariant: what is counted here is counted in ``total`` until ``close``, which takes it all out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

if TYPE_CHECKING:
    from hastore.broker.port.output_total import OutputTotal

TAKING_RATE_MIN: Final = 1024 * 1024  # bytes a second


@final
@attrs.define(eq=False)
class HeldOutput:
    """One connection's output; ``size`` of it all, ``reserved`` for a large answer."""

    total: OutputTotal
    size: int = attrs.field(default=0, init=False)
    reserved: int = attrs.field(default=0, init=False)
    stalled_since: float | None = attrs.field(default=None, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    _whole_at: float = attrs.field(default=0.0, init=False)

    def count(self, size: int) -> None:
        """Count bytes that are held more, or (negative) less."""
        self.size += size
        if not self.is_closed:
            self.total.count(size)

    # -- large answers ---------------------------------------------------------------------------

    def reserve_now(self, size: int) -> bool:
        """Reserve for a large answer, if nobody has to wait for that."""
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
        """Take the reservation back, but for ``left`` bytes."""
        size = max(self.reserved - left, 0)
        self.reserved -= size
        self.total.release(size)

    # -- being taken -----------------------------------------------------------------------------

    def begin(self, size: int) -> None:
        """So much is given to the peer now."""
        self.stalled_since = trio.current_time()
        self._whole_at = self.stalled_since + size / TAKING_RATE_MIN

    def taken(self, size: int) -> None:
        """The peer took so much of it."""
        self.count(-size)
        self.stalled_since = min(trio.current_time(), self._whole_at)

    def rest(self) -> None:
        """There is nothing to take."""
        self.stalled_since = None

    def close(self) -> None:
        """Give up what is not sent."""
        if not self.is_closed:
            self.total.count(-self.size)
            self.release()
            self.is_closed = True
            self.stalled_since = None
