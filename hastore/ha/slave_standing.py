"""How a master's slaves stand at one instant, kept beside a decision that was not PUT_OK.

Nothing here is guessed.  The HA protocol reports one offset a slave: what it has received, or, with
SYNC_FLUSH on its side, what it has forced to its disk; which of the two it is, the master does not
know.
"""

from __future__ import annotations

from typing import Final

import attrs

SLAVES_MAX: Final = 4  # the nearest ones


@attrs.frozen(kw_only=True)
class Departure:
    """The last slave that left: who, why, and when (trio's time)."""

    address: tuple[str, int]
    reason: str
    time: float


@attrs.frozen(kw_only=True)
class SlaveStanding:
    """One slave; ``sent_offset`` and ``ack_offset`` are the ends of what was sent and reported."""

    address: tuple[str, int]
    sent_offset: int  # >= ack_offset
    ack_offset: int
    last_report_age_s: float


@attrs.frozen(kw_only=True)
class Standing:
    """All slaves: the nearest few of those that have reported, and the last that left."""

    behind_max: int  # bytes: a slave that is so far behind does not count as available
    slaves: tuple[SlaveStanding, ...]  # by falling ack_offset, at most SLAVES_MAX
    departure: Departure | None
