"""When a node may stand for election, and campaign: what it has promised, and what has failed.

Times are seconds of the node's own clock that does not stop while the machine sleeps.

Invariant: ``stands_from`` and ``campaigns_from`` never fall.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from hastore.broker.request_target import PromiseWish
    from hastore.cluster.decide import Following

SIT_OUT_MAX_S: Final = 300.0  # after promotions that failed, one after the other


@final
@attrs.define(eq=False)
class Abstention:
    """Keeps a node from standing until its promises have run out, those of earlier starts, too.

    ``promise_ttl_s`` is the longest that such a promise may last: an earlier start may have had
    another ``ttl_s``.
    """

    started_at: float
    ttl_s: int
    promise_ttl_s: int
    # The time before which it does not campaign, because a promotion failed.
    campaigns_from: float = attrs.field(default=-math.inf, init=False)
    _until: float = attrs.field(default=-math.inf, init=False)
    _sat_out_s: float = attrs.field(default=0.0, init=False)  # after the last failed promotion

    @property
    def stands_from(self) -> float:
        """The time before which the node does not stand."""
        return max(self.earlier_until, self._until)

    @property
    def earlier_until(self) -> float:
        """The time at which the last promise of earlier starts has run out."""
        return self.started_at + max(self.ttl_s, self.promise_ttl_s)

    def promise(self, now: float, ttl_s: float) -> None:
        """Stand for nothing for ``ttl_s``: a master that asked relies on it."""
        self._until = max(self._until, now + ttl_s)

    def sit_out(self, now: float) -> None:
        """Let others win after a promotion that failed, longer each time: it may fail again."""
        self._sat_out_s = min(max(self.ttl_s, 2 * self._sat_out_s), SIT_OUT_MAX_S)
        self.campaigns_from = max(self.campaigns_from, now + self._sat_out_s)

    def served(self) -> None:
        """Forget the promotions that failed: one has not."""
        self._sat_out_s = 0.0


@final
@attrs.frozen(kw_only=True)
class Promiser:
    """What a node knows as a master asks it for a promise."""

    group: str
    ttl_s: int
    seen_epoch: int  # the latest that its directory has seen
    state_epoch: int | None  # the coordinator's newest, as far as known
    following: Following | None
    followed_id: int | None  # the id of that master
    is_candidate: bool  # it stands for election, or has won one


def why_not_promising(known: Promiser, wish: PromiseWish) -> str | None:
    """Return why a node must not promise a master not to stand; None if it may.

    A promise says that this node knows of no newer epoch, and begins none.
    """
    following = known.following
    if wish.group != known.group:
        return f"it is of replica group {known.group}"
    if wish.ttl_s > known.ttl_s:
        return f"its ttl is {known.ttl_s} s"
    if wish.master_id != known.followed_id:
        return f"it does not follow node {wish.master_id}"
    if known.state_epoch is not None and known.state_epoch > wish.epoch:
        return f"epoch {known.state_epoch} has begun"
    if known.is_candidate:
        return "it stands for election, or has won one"
    if following is None or following.epoch != wish.epoch or known.seen_epoch > wish.epoch:
        return f"it follows no master of epoch {wish.epoch}"
    return None
