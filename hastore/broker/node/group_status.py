"""The status of a replica group, as its master knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.broker.observe.sync_state_status import GroupNodeRow, ProposalRow, SyncStateStatus
from hastore.concurrency.tcp import describe
from hastore.ha.node_standing import NodeRole, may_lose_because, standings
from hastore.status import BrokerRole

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus, SlaveRow
    from hastore.ha.group_ha_service import GroupHAService
    from hastore.ha.node_standing import NodeStanding
    from hastore.ha.sync_state_set import SyncStateSet


def with_group(status: NodeStatus, service: GroupHAService, now: float) -> NodeStatus:
    """Return a master's status with what it knows of its replica group; ``now`` is trio's."""
    group = service.sync_state_set
    end = status.max_offset
    confirm_offset = service.confirm_offset()
    confirm_lag = service.end_history.lag(confirm_offset, now, end)
    ids = group.rules.configured_ids
    sync_state = SyncStateStatus(
        epoch=group.entry.epoch,
        epoch_start_offset=group.entry.start_offset,
        epoch_age_s=now - group.began,
        members=tuple(sorted(group.accepted)),
        configured_ids=None if ids is None else tuple(sorted(ids)),
        has_coordinator=group.rules.has_coordinator,
        proposal=_proposal(group, now),
        in_sync_replicas=group.in_sync_replicas,
        min_in_sync_replicas=group.rules.min_in_sync_replicas,
        confirm_offset=confirm_offset,
        confirm_lag_bytes=max(end - confirm_offset, 0),
        confirm_lag_s=confirm_lag.seconds,
        confirm_lag_s_is_least=confirm_lag.is_least,
        may_lose_because=may_lose_because(group),
        nodes=tuple(_row(service, row, now, end) for row in standings(group)),
        copies=_copies(group, status),
    )
    return attrs.evolve(
        status,
        epoch=group.entry.epoch,
        epoch_start_offset=group.entry.start_offset,
        end_epoch=service.epochs.end_epoch(end),
        slave_unavailable_because=group.unavailable_because(),
        slave_lag_max=None,  # however far behind, a member counts
        acks_needed=_acks_needed(group) if status.role == BrokerRole.SYNC_MASTER.value else 0,
        slaves=tuple(_with_node(slave, sync_state) for slave in status.slaves),
        sync_state=sync_state,
    )


def _with_node(slave: SlaveRow, sync_state: SyncStateStatus) -> SlaveRow:
    """Return a connection's row with the node for which it counts; an older one counts for none."""
    for node in sync_state.nodes:
        if node.address == slave.address:
            return attrs.evolve(slave, node_id=node.node_id, node_role=node.role)
    return slave


def _proposal(group: SyncStateSet, now: float) -> ProposalRow | None:
    proposal = group.proposal
    if proposal is None:
        return None
    return ProposalRow(
        number=proposal.number,
        members=tuple(sorted(proposal.members)),
        joined=tuple(sorted(proposal.joined)),
        left=tuple(sorted(proposal.left)),
        why=str(proposal),
        age_s=now - group.proposed_at,
    )


def _copies(group: SyncStateSet, status: NodeStatus) -> int | None:
    """Return how many nodes have a message that is PUT_OK now; None while puts are refused."""
    if group.refused_because() is not None:
        return None
    if status.role != BrokerRole.SYNC_MASTER.value:
        return 1
    wanted = group.in_sync_replicas
    return len(group.accepted) if wanted == "all" else wanted


def _acks_needed(group: SyncStateSet) -> int:
    wanted = group.in_sync_replicas
    nodes = len(group.needed) if wanted == "all" else wanted
    return max(nodes, group.rules.min_in_sync_replicas) - 1


def _row(service: GroupHAService, row: NodeStanding, now: float, end: int) -> GroupNodeRow:
    link = service.link_of(row)
    is_master = row.role is NodeRole.MASTER
    lag = None
    if row.ack_offset is not None:
        lag = service.end_history.lag(row.ack_offset, now, end)
    return GroupNodeRow(
        node_id=row.node_id,
        role=row.role.value,
        address=None if link is None else describe(link.address),
        is_connected=row.is_connected,
        since_s=None if row.since is None else now - row.since,
        ack_offset=end if is_master else row.ack_offset,
        lag_bytes=None if row.ack_offset is None else max(end - row.ack_offset, 0),
        lag_s=None if lag is None or is_master else lag.seconds,
        lag_s_is_least=lag is not None and not is_master and lag.is_least,
        why_not=row.why_not,
    )
