"""Values for tests of decisions: a group of three nodes, as its coordinator and a node know it."""

from collections.abc import Mapping

import attrs

from hastore.cluster.decide import Clock, Knowledge, OwnNode
from hastore.cluster.group_records import (
    GroupConfig,
    GroupState,
    GroupView,
    Incarnation,
    Leader,
    Registration,
)
from hastore.cluster.group_records import Member as Published
from hastore.store.node_identity import Unverified

NOW = 100.0
STATE_REVISION = 40


def incarnation(node_id: int, start: int = 1) -> Incarnation:
    """Return a start of a node on its only directory."""
    return Incarnation(node_id, f"uuid-{node_id}", start)


FILLED = Unverified(begin=100, end=200, why="log repair filled it")
ONE, TWO, THREE = (incarnation(node_id) for node_id in (1, 2, 3))


def state(
    epoch: int = 5,
    master: Incarnation | None = ONE,
    members: tuple[Incarnation, ...] = (ONE, TWO, THREE),
    confirm_offset: int = 0,
) -> GroupState:
    """Return what the group has agreed on: node 1 is the master of epoch 5, all are members."""
    return GroupState(epoch=epoch, master=master, members=members, confirm_offset=confirm_offset)


def leader(holder: Incarnation = ONE, epoch: int = 5) -> Leader:
    """Return the leader key of a node."""
    return Leader(holder=holder, epoch=epoch, ha_address=f"10.0.0.{holder.node_id}:10912",
                  client_address=None)  # fmt: skip


def published(
    node: Incarnation, *, election: int | None = None, end: int = 1_000, last_epoch: int = 5,
    kept_since: int = 1, priority: int = 0, unverified: Unverified | None = None,
    can_store: bool = True, has_room: bool = False, link: str | None = None,
) -> Published:  # fmt: skip
    """Return what a node says of itself."""
    return Published(
        node=node,
        kept_since=kept_since,
        role="slave",
        last_epoch=last_epoch,
        end=end,
        ha_address=f"10.0.0.{node.node_id}:10912",
        priority=priority,
        election=election,
        unverified=unverified,
        can_store=can_store,
        has_room=has_room,
        link=link,
    )


def view(
    agreed: GroupState | None,
    holder: Leader | None,
    members: tuple[Published, ...] = (),
    config: GroupConfig | None = None,
) -> GroupView:
    """Return a group as the coordinator has it."""
    return GroupView(
        cluster_id=1,
        revision=50,
        state=agreed,
        state_revision=0 if agreed is None else STATE_REVISION,
        leader=holder,
        leader_revision=0 if holder is None else 45,
        leader_lease=None if holder is None else 7,
        config=config or GroupConfig(),
        members={each.node.node_id: each for each in members},
        registrations={
            each.node.node_id: Registration(uuid=each.node.uuid, start=each.node.start)
            for each in members
        },
    )


def own(node: Incarnation, **changes: object) -> OwnNode:
    """Return a node that has all of epoch 5."""
    known = OwnNode(node=node, kept_since=1, seen_epoch=5, last_epoch=5, end=1_000)
    return attrs.evolve(known, **changes)


def known(
    node: OwnNode,
    seen: GroupView | None,
    *,
    is_reachable: bool = True,
    initial_ids: frozenset[int] | None = None,
    restored: str | None = None,
    **times: float | None,
) -> Knowledge:
    """Return what a node knows; a master's lease lasts for another 5 s."""
    clock: Mapping[str, float | None] = {
        "may_stand_from": NOW - 50,
        "deadline": None if node.master_of is None else NOW + 5,
    } | times
    return Knowledge(
        own=node,
        clock=Clock(now=NOW, **clock),  # type: ignore[arg-type]
        view=seen,
        is_reachable=is_reachable,
        initial_ids=initial_ids,
        restored=restored,
    )
