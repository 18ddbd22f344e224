"""What the master of a replica group knows of its group, as a part of its status.

::

    SyncStateStatus         the epoch, the SyncStateSet, what puts need, the confirm offset
    ├── ProposalRow         a change of the set that is not answered yet
    └── GroupNodeRow        each node that is configured, known or connected

Offsets and sizes are bytes, durations seconds; all of it at the instant of the status.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class GroupNodeRow:
    """One node, the master included."""

    node_id: int
    # "master", "member", "pending" (proposed, and awaited like a member), "learner", "observer".
    role: str
    address: str | None  # of its link; None: closed, or the master
    is_connected: bool
    # How long its link has been up, or closed; None: not seen in this epoch.
    since_s: float | None
    ack_offset: int | None  # None: no ack on its link
    lag_bytes: int | None  # from its ack to the master's end
    # How long ago the master's end passed its ack; ``is_least``: that, or longer.
    lag_s: float | None = None
    lag_s_is_least: bool = False
    # Why it is not in the set, or is to leave it; None for a member that is to stay.
    why_not: str | None = None

    @property
    def is_member(self) -> bool:
        """Whether it is in the accepted set."""
        return self.role in {"master", "member"}

    @property
    def is_awaited(self) -> bool:
        """Whether puts wait for its acks, with ``in_sync_replicas`` "all"."""
        return self.role in {"member", "pending"}


@attrs.frozen(kw_only=True)
class ProposalRow:
    """A change of the set; until it is answered, puts wait for the nodes of both sets."""

    number: int  # counts those of the epoch, from 1
    members: tuple[int, ...]
    joined: tuple[int, ...]
    left: tuple[int, ...]
    why: str  # a sentence: the set, who joins, who leaves and why
    age_s: float


@attrs.frozen(kw_only=True)
class SyncStateStatus:
    """The SyncStateSet of a master's epoch, and what depends on it."""

    epoch: int
    epoch_start_offset: int
    epoch_age_s: float
    members: tuple[int, ...]  # accepted
    configured_ids: tuple[int, ...] | None  # of the group; None: not known
    has_coordinator: bool
    proposal: ProposalRow | None
    in_sync_replicas: int | str  # nodes that need a put, the master included; or "all" members
    min_in_sync_replicas: int  # with fewer members puts are refused
    confirm_offset: int  # what is below is on all members
    confirm_lag_bytes: int  # from there to the master's end
    # How long ago the master's end passed the confirm offset; ``is_least``: that, or longer.
    confirm_lag_s: float
    confirm_lag_s_is_least: bool
    # Which failures may lose acknowledged messages; None: only those of all members at once.
    may_lose_because: str | None
    nodes: tuple[GroupNodeRow, ...]  # the master, the others by id, the observers
    # Nodes that have a message which is PUT_OK now, the master included; None while none can be.
    copies: int | None = None

    @property
    def mode(self) -> str:
        """Return "strict" if puts need more members than the master, else "available"."""
        return "strict" if self.min_in_sync_replicas > 1 else "available"

    @property
    def is_enough(self) -> bool:
        """Whether puts are taken, as far as the set's size goes."""
        return len(self.members) >= self.min_in_sync_replicas

    @property
    def copies_text(self) -> str:
        """Return how many copies an acknowledged message has, as a clause."""
        if self.copies is None:
            return "no message is acknowledged"
        return f"an acknowledged message has {self.copies} cop{'y' if self.copies == 1 else 'ies'}"
