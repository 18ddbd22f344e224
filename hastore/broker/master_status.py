"""What a master says of itself and its slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastore.broker.node_status import NodeStatus, RefusalRow, SlaveRow
from hastore.concurrency.tcp import describe
from hastore.errors import DiskError
from hastore.status import HAConnectionState

if TYPE_CHECKING:
    from hastore.broker.master import Master
    from hastore.env.interface import Env


def master_status(master: Master, *, state: str, uptime_s: float) -> NodeStatus:
    """Take a snapshot."""
    now = trio.current_time()
    log = master.commit_log
    ha_service = master.ha_service
    slaves = []
    for connection in ha_service.connections.values():
        progress = connection.progress
        ack_offset = progress.ack_offset
        if progress.state is HAConnectionState.REFUSED:
            continue  # it is among the refused, and its link is being closed
        slaves.append(
            SlaveRow(
                address=describe(connection.address),
                state=progress.state.value,
                sent_offset=progress.next_transfer_from_where,
                ack_offset=ack_offset,
                lag_bytes=None if ack_offset is None else log.max_offset - ack_offset,
                connected_s=now - connection.connected_time,
                last_report_age_s=now - connection.last_read_time,
                rate_bytes_per_s=connection.flow_monitor.bytes_per_s(now),
                sent_bytes=connection.flow_monitor.total_bytes,
            )
        )
    refused = tuple(
        RefusalRow(
            address=describe(refusal.address),
            reason=refusal.reason,
            hint=refusal.hint,
            reported_offset=refusal.reported_offset,
            age_s=now - refusal.time,
        )
        for refusal in ha_service.refusals
    )
    return NodeStatus(
        name=master.config.name,
        cluster=master.config.cluster,
        role=master.config.role.value,
        state=state,
        address=None if master.address is None else describe(master.address),
        ha_address=describe(master.ha_address),
        data_dir=master.config.store.data_dir,
        process_id=master.env.process_id,
        uptime_s=uptime_s,
        mapped_file_size=log.file_size,
        mapped_files=len(log.mapped_file_queue.files),
        flush_disk_type=master.config.store.flush_disk_type.value,
        min_offset=log.min_offset,
        max_offset=log.max_offset,
        flushed_offset=log.flushed_offset,
        disk_free_bytes=disk_free_bytes(master.env, master.config.store.data_dir),
        push2_slave_max_offset=ha_service.ack_table.push2_slave_max_offset,
        slaves=tuple(slaves),
        refused=refused,
        slave_unavailable_because=ha_service.unavailable_because(log.max_offset),
        put_counts={status.value: count for status, count in master.put_message.counts.items()},
        waiting_for_slave=len(ha_service.group_transfer_service),
        dispatch_behind_bytes=master.reput_message_service.behind,
        dispatch_fault=master.reput_message_service.fault,
    )


def disk_free_bytes(env: Env, path: str) -> int | None:
    """Say what is free on the store's file system; None where that cannot be known."""
    try:
        return env.disk.free_bytes(path)
    except DiskError:
        return None
