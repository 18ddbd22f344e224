"""The status of a master and its slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.broker.node.group_status import with_group
from hastore.broker.observe.node_status import PutFailure, RefusalRow, SlaveRow
from hastore.concurrency.peers import one_spelling, peer_at
from hastore.concurrency.tcp import describe
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.ha_service import REFUSALS_KEPT_MAX
from hastore.ha.refused_slaves import RefusedBecause
from hastore.status import BrokerRole, HAConnectionState, PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.node.node import RunningNode
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.broker.puts.put_message import PutMessage
    from hastore.concurrency.decision_log import DecisionLog
    from hastore.ha.ha_connection import HAConnection
    from hastore.ha.ha_service import HAService

_WITHOUT_A_FILE: Final = frozenset(
    {PutMessageStatus.CREATE_MAPPED_FILE_FAILED, PutMessageStatus.OS_PAGE_CACHE_BUSY}
)
LATE_AFTER_S: Final = 1.0  # a slave whose ack has been due for longer has not caught up


def master_status(
    node: RunningNode,
    ha_service: HAService,
    puts: PutMessage,
    *,
    role: BrokerRole,
    ha_address: tuple[str, int],
    observer_address: tuple[str, int] | None,
    state: str,
) -> NodeStatus:
    """Return a snapshot of a master."""
    now = trio.current_time()
    log = node.commit_log
    observers = ha_service.observers if isinstance(ha_service, GroupHAService) else None
    status = node.common_status(role, state)
    assert status.wall_time_ms is not None
    status = attrs.evolve(
        status,
        ha_address=describe(ha_address),
        push2_slave_max_offset=ha_service.ack_table.push2_slave_max_offset,
        observer_address=None if observer_address is None else describe(observer_address),
        slaves=_slave_rows(ha_service, now, log.max_offset),
        observers=() if observers is None else _slave_rows(observers, now, log.max_offset),
        refused=tuple(_refusal_rows(ha_service, observers, now, status.wall_time_ms)),
        slave_unavailable_because=ha_service.unavailable_because(log.max_offset),
        put_counts={each.value: count for each, count in puts.decisions.counts.items()},
        put_batch_counts={each.value: count for each, count in puts.decisions.batch_counts.items()},
        waiting_for_slave=len(ha_service.group_transfer_service),
        acks_needed=int(role is BrokerRole.SYNC_MASTER),
        slave_lag_max=ha_service.config.ha_slave_fallbehind_max,
        slave_timeout_s=ha_service.config.slave_timeout_ms / 1000,
        puts_refused_because=puts.unavailable_because or _no_next_file(status),
        put_failure=_put_failure(puts.decisions, status, now),
        written_bytes_per_s=ha_service.end_history.bytes_per_s(now, log.max_offset),
        messages_per_s=puts.sampler.appended.per_s(now),
        stages={
            "append": puts.sampler.append_times.to_dict(),
            "flush": node.flush_manager.pass_times.to_dict(),
            "sent": ha_service.send_times.to_dict(),
            "acknowledged": ha_service.group_transfer_service.waits.to_dict(),
        },
    )
    if isinstance(ha_service, GroupHAService):
        return with_group(status, ha_service, now)
    return status


def _no_next_file(status: NodeStatus) -> str | None:
    """Return why no put can be appended; None if there is room, or a file may be under way."""
    if status.log_is_full and status.next_file_fault is not None:
        return f"the log's next file cannot be made: {status.next_file_fault}"
    return None


def _put_failure(decisions: DecisionLog, status: NodeStatus, now: float) -> PutFailure | None:
    failure = decisions.own_failure
    if failure is None:
        return None
    is_over = decisions.taken > failure.taken_before
    if failure.status in _WITHOUT_A_FILE:
        is_over = is_over or not status.log_is_full
    elif failure.status is PutMessageStatus.FLUSH_DISK_TIMEOUT:
        is_over = is_over or status.flushed_offset >= status.max_offset
    return PutFailure(
        status=failure.status.value,
        reason=failure.reason,
        count=failure.count,
        age_s=now - failure.time,
        is_over=is_over,
    )


def _slave_rows(ha_service: HAService, now: float, end: int) -> tuple[SlaveRow, ...]:
    return tuple(
        _slave_row(ha_service, connection, now, end)
        for connection in ha_service.connections.values()
        # Refused slaves are listed in ``refused``; their links are being closed.
        if connection.progress.state is not HAConnectionState.REFUSED
    )


def _slave_row(ha_service: HAService, connection: HAConnection, now: float, end: int) -> SlaveRow:
    progress = connection.progress
    ack_offset = progress.ack_offset
    lag = None if ack_offset is None else ha_service.end_history.lag(ack_offset, now, end)
    lag_bytes = None if ack_offset is None else max(end - ack_offset, 0)
    rate = connection.flow_monitor.bytes_per_s(now)
    gain = rate - ha_service.end_history.bytes_per_s(now, end)
    state = progress.state
    if lag is not None and lag.seconds > LATE_AFTER_S and state is HAConnectionState.STREAMING:
        state = HAConnectionState.CATCHING_UP  # it had caught up at its last report
    return SlaveRow(
        address=describe(connection.address),
        state=state.value,
        sent_offset=progress.next_transfer_from_where,
        ack_offset=ack_offset,
        lag_bytes=lag_bytes,
        connected_s=now - connection.connected_time,
        last_report_age_s=now - connection.last_read_time,
        rate_bytes_per_s=rate,
        sent_bytes=connection.flow_monitor.total_bytes,
        lag_s=None if lag is None else lag.seconds,
        lag_s_is_least=lag is not None and lag.is_least,
        eta_s=lag_bytes / gain if lag_bytes and gain > 0 else None,
        note=connection.note,
    )


def _refusal_rows(
    ha_service: HAService, observers: HAService | None, now: float, wall_time_ms: int
) -> Iterator[RefusalRow]:
    """Yield the peers refused since the start, after those refused earlier that stay so."""
    refused_slaves = ha_service.refused_slaves
    refusals = [*ha_service.refusals, *(() if observers is None else observers.refusals)]
    refusals.sort(key=lambda refusal: refusal.time)
    came = {(one_spelling(refusal.address[0]), refusal.reported_offset) for refusal in refusals}
    waiting = [row for row in refused_slaves.table if (row.address, row.offset) not in came]
    for row in waiting[-REFUSALS_KEPT_MAX:]:
        yield RefusalRow(
            address=row.address,
            reason=(
                f"a slave there reported {row.offset} when this master's log ended at"
                f" {row.master_end}: not the same log"
            )
            if row.because is RefusedBecause.AHEAD
            else (
                f"a slave there reported {row.offset}, and this master's log is its own from"
                f" {row.master_end} on: perhaps not the same log"
            ),
            hint=(
                "start that slave on an empty directory; if the logs are the same after all, start"
                f" this master once with --trust {peer_at(row.address, row.offset)}"
            ),
            reported_offset=row.offset,
            age_s=max(wall_time_ms - row.time_ms, 0) / 1000,
        )
    for refusal in refusals:
        yield RefusalRow(
            address=describe(refusal.address),
            reason=refusal.reason,
            hint=refusal.hint,
            reported_offset=refusal.reported_offset,
            age_s=now - refusal.time,
            is_id_taken=refusal.is_id_taken,
        )
