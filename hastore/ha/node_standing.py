"""What a master knows of each node of its group, at one instant: for ``status``."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from hastore.ha.sync_state_set import SyncStateSet


class NodeRole(enum.Enum):
    """What a node's acks count for."""

    MASTER = "master"
    MEMBER = "member"  # in the SyncStateSet: with "all" puts wait for it, and it may be elected
    PENDING = "pending"  # proposed as a member: awaited likewise, and may not be elected yet
    LEARNER = "learner"  # copies the log; no put waits for it
    OBSERVER = "observer"  # reads only, by its own wish


@attrs.frozen(kw_only=True)
class NodeStanding:
    """One node's acks and place; times are trio's."""

    node_id: int
    role: NodeRole
    connection_id: int | None  # of the link that counts; None: closed, or the master
    ack_offset: int | None  # exclusive, in bytes; None: no ack on its connection
    lag_bytes: int | None  # from its ack to the master's end; None without an ack
    # Since when its link is up, or closed; None: not known.  The master's: since the epoch began.
    since: float | None
    # Why it is not in the SyncStateSet, or is to leave it; None for a member that is to stay.
    why_not: str | None

    @property
    def is_connected(self) -> bool:
        """Whether its link is up; the master's has none, and counts as up."""
        return self.connection_id is not None or self.role is NodeRole.MASTER


def standings(of: SyncStateSet) -> list[NodeStanding]:
    """Return the master, the other nodes by id, and the observers by id."""
    end_offset = of.acks.end_offset

    def standing(
        node_id: int,
        role: NodeRole,
        *,
        since: float | None,
        ack_offset: int | None,
        connection_id: int | None = None,
        why_not: str | None = None,
    ) -> NodeStanding:
        lag_bytes = None if ack_offset is None else end_offset - ack_offset
        return NodeStanding(
            node_id=node_id,
            role=role,
            connection_id=connection_id,
            ack_offset=ack_offset,
            lag_bytes=lag_bytes,
            since=since,
            why_not=why_not,
        )

    rows = [standing(of.own_id, NodeRole.MASTER, since=of.began, ack_offset=end_offset)]
    for node_id in of.known_ids():
        role = NodeRole.PENDING if node_id in of.needed else NodeRole.LEARNER
        node = of.acks.get(node_id)
        rows.append(
            standing(
                node_id,
                NodeRole.MEMBER if node_id in of.accepted else role,
                since=None if node is None else node.since,
                ack_offset=None if node is None else node.ack_offset,
                connection_id=None if node is None else node.connection_id,
                why_not=of.why_not(node_id),
            )
        )
    rows += (
        standing(
            observer.node_id,
            NodeRole.OBSERVER,
            connection_id=observer.connection_id,
            since=observer.since,
            ack_offset=observer.ack_offset,
            why_not="it asked not to count",
        )
        for observer in sorted(of.acks.observers, key=lambda observer: observer.node_id)
    )
    return rows


def may_lose_because(of: SyncStateSet) -> str | None:
    """Return which failures may lose messages that were answered PUT_OK to puts that waited.

    None: only those of all members at once.
    """
    wanted = of.in_sync_replicas
    if wanted != "all":
        others = wanted - 1
        who = f"the master and {others} more node{'s' * (others > 1)}" if others else "the master"
        return f"in_sync_replicas = {wanted}: the failure of {who} may lose acknowledged messages"
    if not of.is_all_in_force:
        return "in_sync_replicas = all is not in force yet: members may lack acknowledged messages"
    if len(of.accepted) == 1:
        return f"node {of.own_id} alone has what was acknowledged: its failure may lose messages"
    return None
