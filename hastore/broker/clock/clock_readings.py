"""What the clocks of peers said last: one reading of each machine, a few machines.

A peer's clock is read from a request or an answer on the client port, whose extension field
``wallTimeMs`` has its wall time (``docs/formats.md``).  A RocketMQ node has no such field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.clock.clock_verdict import ClockReading
from hastore.concurrency.peers import one_spelling
from hastore.quantities import is_loopback, read_digits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.env.interface import WallClock

WALL_TIME: Final = "wallTimeMs"
_MACHINES_MAX: Final = 16
_ONE_WAY_MS: Final = 1_000.0  # how long a request takes to be read, at most, as a rule
_TIME_MAX_MS: Final = 2**53


@final
@attrs.define(eq=False)
class ClockReadings:
    """The newest reading of each machine."""

    wall_clock: WallClock
    _by_host: dict[str, ClockReading] = attrs.field(factory=dict, init=False)

    def fields(self) -> dict[str, str]:
        """Return the extension field that shows our clock to a peer."""
        return {WALL_TIME: str(self.wall_clock.now_ms())}

    def hear(
        self,
        who: str,
        host: str,
        fields: Mapping[str, object],
        *,
        own_host: str | None,
        asked_at_ms: float | None = None,
    ) -> None:
        """Take the reading that a peer's fields have, if they have one.

        ``host``: the peer's address on the connection, not a name, so that a machine has one vote.
        ``asked_at_ms``: our boot clock when we asked; None if the peer asked.  ``own_host``: our
        address on the connection; the same as ``host`` if the peer runs on this machine.
        """
        wall_ms = _time_of(fields.get(WALL_TIME))
        if wall_ms is None:
            return
        now_ms = self.wall_clock.boot_s() * 1000
        error_ms = _ONE_WAY_MS if asked_at_ms is None else max(now_ms - asked_at_ms, 0.0) / 2
        host = one_spelling(host)
        self._by_host.pop(host, None)
        while len(self._by_host) >= _MACHINES_MAX:
            del self._by_host[next(iter(self._by_host))]  # the oldest
        self._by_host[host] = ClockReading(
            who=who,
            host=host,
            offset_ms=wall_ms + error_ms - now_ms,
            error_ms=error_ms,
            boot_ms=now_ms,
            is_own_machine=is_loopback(host)
            or (own_host is not None and one_spelling(own_host) == host),
        )

    def __call__(self) -> tuple[ClockReading, ...]:
        """Return the readings; old ones too."""
        return tuple(self._by_host.values())


def _time_of(value: object) -> int | None:
    """Return the milliseconds since 1970 in a peer's field; None if it is not a time."""
    wall_ms = read_digits(value) if isinstance(value, str) else None
    return wall_ms if wall_ms is not None and wall_ms < _TIME_MAX_MS else None
