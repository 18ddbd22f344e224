"""What a group does about members that cannot store: pure decisions.

::

    members/ID     can_store   nothing fails that the node writes
                   has_room    it could store for STEADY_AFTER_S, and has room for two more files

    a master that cannot store asks a member that has room to take over; if that member voids the
        request, the next one, until each was asked once.  Such a round begins at most once a minute
        in the whole group, then every two minutes, every four, …
    nobody asks a former master to come back
    a candidate that cannot store ranks last, and may still be the only one
    a new master's set leaves out members that cannot store while min_in_sync_replicas stay
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.cluster.group_records import RoomRequests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hastore.cluster.group_records import Incarnation, Member

PAUSE_MIN_S: Final = 60
PAUSE_MAX_S: Final = 3_600


@final
@attrs.define(eq=False)
class RoundStart:
    """When the group's last round of requests began, on this node's clock.

    That is when this node first saw it.  The wall clock of the node that wrote it counts only for a
    round that was there before this process.
    """

    began: float = -math.inf
    _round: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    _is_first: bool = attrs.field(default=True, init=False)

    def see(self, requests: RoomRequests | None, *, now: float, wall_ms: int) -> None:
        """Record what the coordinator has now."""
        seen = None if requests is None else (requests.epoch, requests.at_ms, requests.pause_s)
        if requests is not None and seen != self._round:
            age_s = max(0, wall_ms - requests.at_ms) / 1000 if self._is_first else 0.0
            self.began = now - age_s
        self._round, self._is_first = seen, False


@final
@attrs.frozen(kw_only=True)
class Rounds:
    """The rounds of requests, as a master that cannot store since ``unable_since`` sees them."""

    last: RoomRequests | None  # of the whole group
    began: float  # the last one, on the clock of ``unable_since``
    epoch: int  # this master's
    unable_since: float

    @property
    def over_at(self) -> float:
        """When the next round may begin."""
        return -math.inf if self.last is None else self.began + self.last.pause_s

    @property
    def may_ask_from(self) -> float:
        """When this master may ask: at once in a round of its own epoch, so that nobody took over.

        The next round has to wait, even if another node is master by then.
        """
        is_own = self.last is not None and self.last.epoch == self.epoch
        return -math.inf if is_own else self.over_at

    @property
    def _last_of_trouble(self) -> RoomRequests | None:
        """The last round; None if this master could store when the pause after it was over."""
        return None if self.unable_since >= self.over_at else self.last

    def choose_successor(self, members: Iterable[Member], now: float) -> Member | None:
        """Return whom to ask; None if nobody is left.

        A member that was asked, or that asked itself, since the trouble began comes after all the
        others, and not in the same round.
        """
        before, able = self._last_of_trouble, list(members)
        tried = frozenset[int]() if before is None else before.tried
        untried = choose_successor(each for each in able if each.node.node_id not in tried)
        if untried is not None or now < self.over_at:
            return untried
        return choose_successor(able)

    def asked(self, own_id: int, to_id: int, *, now: float, wall_ms: int) -> RoomRequests:
        """Return what the group is to remember of a request."""
        before = self._last_of_trouble
        tried = frozenset({own_id, to_id})
        if self.last is not None and now < self.over_at:
            return attrs.evolve(self.last, tried=self.last.tried | tried)
        pause_s = PAUSE_MIN_S
        if before is not None:
            pause_s = min(2 * before.pause_s, PAUSE_MAX_S)
            if to_id not in before.tried:
                tried |= before.tried
        return RoomRequests(epoch=self.epoch, at_ms=wall_ms, pause_s=pause_s, tried=tried)


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
