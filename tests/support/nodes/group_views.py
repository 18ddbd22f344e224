"""A replica group as its coordinator has it: nodes 1, 2, 3, of which node 1 leads epoch 7."""

from __future__ import annotations

from typing import Any

import attrs

from hastore.cluster.group_records import (
    GroupState,
    GroupView,
    Incarnation,
    Keys,
    Leader,
    Member,
    Registration,
)

KEYS = Keys.of("/hastore", "orders", "g1")
END = 1_000


def node(node_id: int, start: int = 2) -> Incarnation:
    """Return a node on the directory that it always has."""
    return Incarnation(node_id, f"uuid-{node_id}", start)


def member(node_id: int, *, end: int = END, last_epoch: int = 7, **changes: Any) -> Member:
    """Return what a node that has all says of itself."""
    known = Member(
        node=node(node_id),
        kept_since=1,
        role="slave",
        last_epoch=last_epoch,
        end=end,
        ha_address=f"h{node_id}:1",
        link=None if node_id == 1 else f"l{node_id}:9",
    )
    return attrs.evolve(known, **changes)


def view_of(*members: Member, **changes: Any) -> GroupView:
    """Return a group that node 1 leads in epoch 7; the set is 1, 2, 3."""
    view = GroupView(
        cluster_id=5,
        revision=100,
        state=GroupState(epoch=7, master=node(1), members=(node(1), node(2), node(3))),
        state_revision=90,
        leader=Leader(holder=node(1), epoch=7, ha_address="h1:1", client_address=None),
        leader_revision=80,
        members={each.node.node_id: each for each in members or map(member, (1, 2, 3))},
        registrations={each: Registration(uuid=f"uuid-{each}", start=2) for each in (1, 2, 3)},
    )
    return attrs.evolve(view, **changes)


NO_LEADER: dict[str, Any] = {"leader": None, "leader_revision": 0}
OUTSIDE = GroupState(epoch=7, master=node(1), members=(node(1), node(2)))
