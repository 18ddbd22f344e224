"""Asks the nodes of a group for what etcd has only as they last wrote it: role, log end, lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.errors import HastoreError, UnreachableError
from hastore.quantities import parse_address
from hastore_cli.node.address import fetch_status
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.group_records import GroupView

_ASK_TIME_MAX_S: Final = 2.0  # a node that is gone must not hold a command up


async def hear(
    view: GroupView,
    ids: Collection[int],
    group: str,
    *,
    failures: dict[int, HastoreError] | None = None,
) -> dict[int, NodeStatus]:
    """Return the status of each node of a group that answers, by id.

    To ``failures`` is added why each other node that has an address does not answer.

    The address in etcd may lead to another node by now, also to one of another group with the same
    id: its answer does not count.
    """
    found: dict[int, NodeStatus] = {}

    async def ask(node_id: int) -> None:
        member = view.members.get(node_id)
        if member is None or member.client_address is None:
            return
        error: HastoreError | None = None
        with trio.move_on_after(_ASK_TIME_MAX_S) as limit:
            try:
                status = await fetch_status(parse_address(member.client_address))
            except HastoreError as failure:
                error = failure
            else:
                if (status.replica_group, status.node_id) == (group, node_id):
                    found[node_id] = status
                    return
                error = _another(member.client_address, status)
        if limit.cancelled_caught:
            what = f"{member.client_address}: no answer within {_ASK_TIME_MAX_S:.0f} s"
            error = UnreachableError(what)
        if failures is not None and error is not None:
            failures[node_id] = error

    await gather(ask, sorted(ids))
    return found


def _another(address: str, status: NodeStatus) -> UnreachableError:
    """Return why the answer of another node does not count."""
    who = "a node of no replica group"
    if status.replica_group is not None:
        who = f"node {status.node_id} of replica group {status.replica_group}"
    return UnreachableError(f"{address}: {who} answers there")


def refreshed(view: GroupView, statuses: Mapping[int, NodeStatus]) -> GroupView:
    """Return a group with the epochs and ends that its nodes have said themselves."""
    members = dict(view.members)
    for node_id, status in statuses.items():
        member = members[node_id]
        epoch = member.last_epoch if status.epoch is None else status.epoch
        members[node_id] = attrs.evolve(
            member,
            end=status.max_offset,
            last_epoch=epoch,
            end_epoch=epoch if status.end_epoch is None else status.end_epoch,
        )
    return attrs.evolve(view, members=members)


def lags_in(view: GroupView, statuses: Mapping[int, NodeStatus]) -> dict[int, int]:
    """Return the bytes that nodes lack, by id, as the master's status has them."""
    leader = None if view.leader is None else statuses.get(view.leader.holder.node_id)
    if leader is None or leader.sync_state is None:
        return {}
    rows = leader.sync_state.nodes
    return {row.node_id: row.lag_bytes for row in rows if row.lag_bytes is not None}
