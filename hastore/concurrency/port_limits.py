"""How many connections a port takes, and which one is evicted when one more comes.

A newcomer above ``per_address_max`` competes with the connections of its address, one above
``connections_max`` with all.  Of those the oldest that has not identified itself is evicted, so
that silent peers keep nobody out.  Where all have, a port that offers them too evicts the one that
has been idle for the longest, then the one that has been slow to take its answer for the longest;
any other port refuses the newcomer.

Pure: the ports count, close and log.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Generic, TypeVar, final

import attrs

from hastore.concurrency.peers import peer_key

if TYPE_CHECKING:
    from collections.abc import Iterable

C = TypeVar("C")


class Activity(enum.IntEnum):
    """What a connection is doing; the least is evicted first."""

    UNIDENTIFIED = 0  # no request and no report yet
    IDLE = 1  # between requests
    BUSY = 2  # being answered


@final
@attrs.frozen
class Occupant(Generic[C]):
    """A connection that may be evicted."""

    connection: C
    host: str
    activity: Activity = Activity.UNIDENTIFIED
    since: float = 0.0  # the trio time at which that activity began


@final
@attrs.frozen
class Crowd:
    """The connections that leave no room for a newcomer."""

    count: int
    key: str | None  # the peer that they are all of (``peer_key``); None: all of the port

    def evict(self, occupants: Iterable[Occupant[C]]) -> C | None:
        """Return which of ``occupants``, the oldest first, to close; None: refuse the newcomer."""
        identified = []
        for occupant in occupants:
            if self.key is None or peer_key(occupant.host) == self.key:
                if occupant.activity is Activity.UNIDENTIFIED:
                    return occupant.connection
                identified.append(occupant)
        if not identified:
            return None
        return min(identified, key=lambda each: (each.activity, each.since)).connection


@final
@attrs.frozen
class PortLimits:
    """At most ``connections_max`` connections, and of one address ``per_address_max``."""

    connections_max: int
    per_address_max: int

    def crowd(self, host: str, *, count: int, of_address: int) -> Crowd | None:
        """Return who leaves no room for one more from ``host``; None where there is room.

        ``count`` connections are there, ``of_address`` of them of the host's address.
        """
        if of_address >= self.per_address_max:
            return Crowd(of_address, peer_key(host))
        return Crowd(count, None) if count >= self.connections_max else None
