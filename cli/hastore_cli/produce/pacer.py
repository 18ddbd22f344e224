"""An even rate without a sleep per message.

Message *i* is due at start + i / rate.  Sending runs up to ``_AHEAD_S`` before that and then sleeps
until it is due, so that 100 000 messages a second cost 100 sleeps, not 100 000.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import trio

_AHEAD_S: Final = 0.01
_BEHIND_S: Final = 1.0  # after a longer stall the rate starts anew, without a burst to catch up


@final
@attrs.define(eq=False)
class Pacer:
    """Lets ``rate`` messages a second pass."""

    rate: float
    _start: float = attrs.field(factory=trio.current_time, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def wait_turn(self) -> None:
        """Return when the next message may be sent."""
        due = self._start + self._count / self.rate
        self._count += 1
        now = trio.current_time()
        if due - now > _AHEAD_S:
            await trio.sleep_until(due)
        elif now - due > _BEHIND_S:
            self._start += now - due
