"""A change of the SyncStateSet that is proposed, and where it is decided.

::

    SyncStateSet ──proposal──▶ coordinator ──▶ ACCEPTED   the set is the proposed one
                                           ──▶ VOIDED     it never will be
                                           ──▶ (nothing)  it may be, so both sets count

VOIDED means that the proposal cannot be applied any more.  Having read the old set is not enough:
the write may still be on its way.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, final

import attrs

from hastore.ha.set_rules import nodes_text

if TYPE_CHECKING:
    from hastore.concurrency.lease import Lease


class Answer(enum.Enum):
    """The coordinator's answer to a proposal."""

    ACCEPTED = "accepted"
    VOIDED = "voided"


@final
@attrs.frozen(kw_only=True)
class Proposal:
    """A set that a master wishes for; it always has the master in it."""

    number: int  # counts the proposals of an epoch, from 1
    members: frozenset[int]
    joined: frozenset[int]  # of ``members``: those that the accepted set lacks
    left: dict[int, str]  # members of the accepted set that leave, and why

    def __str__(self) -> str:
        parts = [f"{nodes_text(self.joined)} reached the confirm offset"] if self.joined else []
        parts += [f"node {node_id} {why}" for node_id, why in sorted(self.left.items())]
        return f"the set {{{', '.join(map(str, sorted(self.members)))}}}: {'; '.join(parts)}"


class Coordinator(Protocol):
    """Where a group agrees on its SyncStateSet, and who is master for how long."""

    @property
    def lease(self) -> Lease | None:
        """The lease without which the master decides nothing; None: it needs none."""

    def propose(self, proposal: Proposal, /) -> Answer | None:
        """Ask for a change; return the answer, or None if it comes later or not at all.

        A later one goes to ``SyncStateSet.answer``.  ACCEPTED promises that the set is durable.
        """


@final
class NoCoordinator:
    """The master decides on its set alone.

    For a set that need not outlive the process.  Where it must, the caller answers a proposal once
    its members are on disk.
    """

    lease: Lease | None = None

    def propose(self, _proposal: Proposal, /) -> Answer | None:
        """Accept it."""
        return Answer.ACCEPTED
