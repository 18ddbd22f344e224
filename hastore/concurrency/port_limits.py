"""How many connections a port accepts, and which one is evicted for a newcomer.

A newcomer above ``per_address_max`` competes with the connections of its address, one above
``connections_max`` with all.  The oldest unidentified peer among them is evicted, so that silent
peers keep nobody out.  If there is none, a port that also offers identified ones evicts the one
that has been idle longest, else the one that has been busy longest; any other port refuses the
newcomer.

A port may have ``RESERVED_MAX`` connections above both limits for those who operate the node: a
newcomer gets one on trust, and keeps it only by a proof within ``PROOF_S``.

Pure: the ports count, close and log.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import attrs

from hastore.concurrency.peers import peer_key

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED_MAX: Final = 16  # connections above the limits of a port
PROOF_S: Final = 2.0  # in which one of them must prove that it may be there

C = TypeVar("C")


class Activity(enum.IntEnum):
    """A connection's activity; the least is evicted first."""

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
    since: float = 0.0  # when that activity began; trio's time


@final
@attrs.frozen
class Crowd:
    """The connections that leave no room for a newcomer."""

    count: int
    key: str | None  # their ``peer_key``; None: all connections of the port

    def evict(self, occupants: Iterable[Occupant[C]]) -> C | None:
        """Return which of ``occupants``, oldest first, to close; None: refuse the newcomer."""
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
    """At most ``connections_max`` connections, and ``per_address_max`` of one address."""

    connections_max: int
    per_address_max: int

    def crowd(self, host: str, *, count: int, of_address: int) -> Crowd | None:
        """Return the connections that leave no room for one from ``host``; None if there is room.

        ``count`` connections exist, ``of_address`` of them from the host's address.
        """
        if of_address >= self.per_address_max:
            return Crowd(of_address, peer_key(host))
        return Crowd(count, None) if count >= self.connections_max else None


def evict_unproven(occupants: Iterable[Occupant[C]]) -> C | None:
    """Return which reserved connection to close for a newcomer; None if there is none.

    ``occupants`` are those without a proof, the oldest first.  The oldest of the address that has
    most of them is evicted, so that one address cannot keep another out.
    """
    unproven = list(occupants)
    counts = Counter(peer_key(occupant.host) for occupant in unproven)
    if not unproven:
        return None
    return max(unproven, key=lambda each: counts[peer_key(each.host)]).connection
