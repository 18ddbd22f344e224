"""Whether a new link with a node's id takes the place of the link that the node has already.

A slave that connects again may have left behind a link whose end the master has not noticed.  Two
nodes may also have one id, by a copied directory or a mistyped number.  An ack must not count for a
node that it is not of, so the new link, the *claimant*, gets no answer to its handshake before this
is known of the former one, the *holder*::

    handshake, and another link of that node is up
       │  the holder is asked: a heartbeat, which a hastore slave answers with a report
       ▼
    FIRST ──── nothing in REPLACED_LINK_S, or it ends ────▶ the claimant takes its place
       │ it has reported: perhaps what was under way, or TCP sent again, after its slave left it
       │ it is asked again
       ▼
    SECOND ─── nothing in REPLACED_LINK_S, or it ends ────▶ the claimant takes its place
       │ it has reported again: it lives
       ▼
    the claimant is refused

A later claimant takes the place of an earlier one, also of one that has left: a slave may wait for
less time than a claim takes.  Without a claimant the holder is asked once more, and the claim is
forgotten if no other one comes meanwhile.  Times are trio's; no clock, no socket.

Invariant: a node has at most one claim.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLACED_LINK_S: Final = 1.0


class ClaimStep(enum.Enum):
    """How often the holder was asked."""

    FIRST = "first"
    SECOND = "second"


class Verdict(enum.Enum):
    """What becomes of a claim whose time is over."""

    ASK_AGAIN = "ask-again"
    TAKE_PLACE = "take-place"
    REFUSE = "refuse"
    FORGET = "forget"


@attrs.frozen(kw_only=True)
class Claim:
    """A claimant and a holder of one node id, by their connections."""

    node_id: int
    claimant_id: int | None  # None: it has left
    holder_id: int
    asked_at: float  # when the holder was asked last
    left_at: float = 0.0  # when the last claimant left, if there is none
    step: ClaimStep = ClaimStep.FIRST


@final
@attrs.define(eq=False)
class NodeClaims:
    """The claims of a master's epoch."""

    _claims: dict[int, Claim] = attrs.field(factory=dict, init=False)  # by node id

    def claim(self, node_id: int, *, claimant_id: int, holder_id: int, now: float) -> Claim | None:
        """Begin a claim, or take the place of an earlier claimant; return that one's claim.

        The holder is to be asked if there was none.
        """
        earlier = self._claims.get(node_id)
        if earlier is None:
            earlier = Claim(node_id=node_id, claimant_id=None, holder_id=holder_id, asked_at=now)
        assert earlier.holder_id == holder_id, f"{holder_id} after {earlier}"
        self._claims[node_id] = attrs.evolve(earlier, claimant_id=claimant_id)
        return None if earlier.claimant_id is None else earlier

    def withdraw(self, node_id: int) -> Claim | None:
        """Forget a node's claim, and return it."""
        return self._claims.pop(node_id, None)

    def ended(self, connection_id: int, now: float) -> Claim | None:
        """Take the end of a link; return the claim that it grants: its holder's was the link."""
        for node_id, claim in self._claims.items():
            if connection_id == claim.claimant_id:
                self._claims[node_id] = attrs.evolve(claim, claimant_id=None, left_at=now)
                return None
            if connection_id == claim.holder_id:
                del self._claims[node_id]
                return None if claim.claimant_id is None else claim
        return None

    def next_deadline(self) -> float | None:
        """Return when the next claim is due; None without any."""
        times = (claim.asked_at + REPLACED_LINK_S for claim in self._claims.values())
        return min(times, default=None)

    def due(self, now: float) -> Iterator[Claim]:
        """Yield the claims whose time is over; each is to be judged."""
        for claim in list(self._claims.values()):
            if claim.asked_at + REPLACED_LINK_S <= now:
                yield claim

    def judge(self, claim: Claim, *, reported_at: float, now: float) -> Verdict:
        """Decide about a claim that is due, by when the holder reported last."""
        if claim.claimant_id is None and claim.left_at >= claim.asked_at:
            again = attrs.evolve(claim, step=ClaimStep.FIRST, asked_at=now)
            self._claims[claim.node_id] = again
            return Verdict.ASK_AGAIN
        is_silent = reported_at < claim.asked_at  # virtual time may stand still until an answer
        if not is_silent and claim.step is ClaimStep.FIRST and claim.claimant_id is not None:
            self._claims[claim.node_id] = attrs.evolve(claim, step=ClaimStep.SECOND, asked_at=now)
            return Verdict.ASK_AGAIN
        del self._claims[claim.node_id]
        if claim.claimant_id is None:
            return Verdict.FORGET
        return Verdict.TAKE_PLACE if is_silent else Verdict.REFUSE
