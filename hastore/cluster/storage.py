"""What a group does about members that cannot store: pure decisions.

::

    members/ID     can_store   nothing fails that the node writes
                   has_room    it could store for STEADY_AFTER_S, and has room for two more files

    a master that cannot store asks a member that has room to take over, at most once a minute,
        then every two minutes, every four, …; nobody asks it to come back
    a candidate that cannot store ranks last, and may still be the only one
    a new master's set leaves out members that cannot store while min_in_sync_replicas stay
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hastore.cluster.group_records import Incarnation, Member

PAUSE_MIN_S: Final = 60.0
PAUSE_MAX_S: Final = 3_600.0


@final
@attrs.define(eq=False)
class RequestPauses:
    """How often a master that cannot store asks for a successor."""

    may_ask_from: float = -math.inf  # on the clock of the calls
    _asked_at: float = -math.inf
    _pause_s: float = PAUSE_MIN_S

    def asked(self, now: float) -> None:
        """Record a request: the next one comes after a pause, which doubles."""
        self._asked_at = now
        self.may_ask_from = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def term_ended(self) -> None:
        """Begin with the shortest pause again: another node has taken over."""
        self.may_ask_from, self._pause_s = self._asked_at + PAUSE_MIN_S, PAUSE_MIN_S

    def could_store(self, able_for_s: float) -> None:
        """Begin with short pauses again, once the node could store for as long as a pause."""
        if able_for_s >= self._pause_s:
            self.may_ask_from, self._pause_s = -math.inf, PAUSE_MIN_S


def choose_successor(members: Iterable[Member]) -> Member | None:
    """Return who of the members that may take over has room and follows; None if nobody has.

    Of several the one with the longest log, then by priority and id.
    """
    able = [each for each in members if each.can_store and each.has_room and each.link is not None]
    return min(
        able,
        key=lambda each: (-each.last_epoch, -each.end, -each.priority, each.node.node_id),
        default=None,
    )


def begins_with(
    members: Collection[Incarnation], own_id: int, members_min: int, *, unable: Collection[int]
) -> tuple[Incarnation, ...]:
    """Return the set with which a master begins an epoch, by id.

    ``members`` are those that may be in it, the master included; ``members_min`` is its
    ``min_in_sync_replicas``.  ``unable`` are the ids of proven ones that cannot store; an unproven
    member stays, so that no single copy of a log acknowledges.
    """
    left_out = [each for each in members if each.node_id in unable and each.node_id != own_id]
    kept = [each for each in members if each not in left_out]
    missing = max(0, min(members_min, len(members)) - len(kept))
    back = sorted(left_out, key=lambda each: each.node_id)[:missing]
    return tuple(sorted((*kept, *back), key=lambda each: each.node_id))
