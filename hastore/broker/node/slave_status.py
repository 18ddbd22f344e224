"""The status of a slave and of its link.

The HA protocol does not send the end of the master's log, only the bytes up to it.  So a slave
knows of its own lag the announced bytes that it does not have yet and, while bytes come in, the age
of the newest record.  That age times the rate at which bytes come is an estimate of the lag.  The
least recent age, up to ``CLOCK_LEAD_MAX_S``, counts as the difference of the two clocks.

An old record alone is no lag: the first after a reconnect may be an idle master's last.  A frame
that is not a full batch (``FrameSizes``) held all that the master had; the bytes after it are
younger than the frame, so they are younger than this link.  The master knows the lag exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.broker.node.node import unverified_log
from hastore.broker.observe.node_status import MasterLink
from hastore.concurrency.tcp import describe
from hastore.config import NO_MASTER
from hastore.errors import CutRefusedError
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.status import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from hastore.broker.node.node import RunningNode
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.concurrency.recent_least import RecentLeast
    from hastore.ha.ha_client import HAClient
    from hastore.store.recovery.log_cut import Cuts

ACK_LEVELS: Final = {
    FlushDiskType.ASYNC_FLUSH: "received",
    FlushDiskType.SYNC_FLUSH: "flushed",
}
CLOCK_LEAD_MAX_S: Final = 2.0  # a constantly greater age is a lag, or a wrong clock
_NOISE_S: Final = 0.02  # clocks tick in milliseconds, and the dispatch takes some of them


def slave_status(
    node: RunningNode, client: HAClient, record_ages: RecentLeast, cuts: Cuts
) -> NodeStatus:
    """Return a snapshot of a slave.

    ``record_ages`` are the ages of records when they were dispatched.
    """
    now, received = trio.current_time(), client.received
    status = node.common_status(BrokerRole.SLAVE, client.state.value)
    assert status.wall_time_ms is not None
    status = attrs.evolve(
        status,
        master_link=_link(node, client, record_ages, status.wall_time_ms),
        ack_level=ACK_LEVELS[node.config.store.flush_disk_type],
        written_bytes_per_s=received.flow_monitor.bytes_per_s(now),
        messages_per_s=node.reput_message_service.dispatched.per_s(now),
        stages={
            "append": received.append_times.to_dict(),
            "flush": node.flush_manager.pass_times.to_dict(),
        },
    )
    return _with_epochs(status, client, cuts)


def _with_epochs(status: NodeStatus, client: HAClient, cuts: Cuts) -> NodeStatus:
    """Return the status with what only a node of a replica group has."""
    framing = client.framing
    if not isinstance(framing, AutoswitchFraming):
        return status
    assert status.master_link is not None
    refused = cuts.refused
    if refused is None and isinstance(client.error, CutRefusedError):
        refused = client.error
    entries = framing.history.entries
    newest = entries[-1] if entries else None
    return attrs.evolve(
        status,
        epoch=None if newest is None else newest.epoch,
        epoch_start_offset=None if newest is None else newest.start_offset,
        end_epoch=framing.history.end_epoch(status.max_offset),
        seen_epoch=framing.identity.current.seen_epoch,
        last_cut=None if cuts.last is None else cuts.last.to_json(),
        cuts=cuts.count,
        cut_bytes=cuts.size,
        cut_refused_because=None if refused is None else str(refused),
        master_link=attrs.evolve(status.master_link, masters_epoch=framing.masters_epoch),
        unverified=unverified_log(framing.identity),
    )


def _link(
    node: RunningNode, client: HAClient, record_ages: RecentLeast, wall_time_ms: int
) -> MasterLink:
    now = trio.current_time()
    link, received = client.link, client.received
    rate = received.flow_monitor.bytes_per_s(now)
    reput = node.reput_message_service
    newest_ms = reput.dispatched_timestamp_ms if reput.fault is None else 0
    age_s = (wall_time_ms - newest_ms) / 1000 if newest_ms else None
    announced = None
    if received.master_offset is not None:
        announced = max(received.master_offset - node.max_offset, 0)
    lag_bytes, lag_s = announced, None
    if announced == 0 and not rate:
        lag_s = 0.0  # nothing comes, and a master sends what it has at once
    elif announced is not None and age_s is not None:
        # As old as the newest record was when log bytes last came, by the master's clock.
        lead_s = min(record_ages.least(now) or 0.0, CLOCK_LEAD_MAX_S)
        lag_s = age_s - (now - received.last_news_time) - lead_s
        if rate:  # the bytes that are not dispatched yet are newer
            lag_s -= (node.max_offset - reput.committed_offset) / rate
        if link.frame_sizes.reached_end:
            lag_s = min(lag_s, received.last_news_time - link.connected_time)
        lag_s = max(lag_s, 0.0)
        if lag_s > _NOISE_S:
            lag_bytes = max(announced, round(rate * lag_s))
    return MasterLink(
        address="-" if client.config.master == NO_MASTER else describe(client.config.master),
        state=client.state.value,
        reason=client.reason,
        hint=client.error.hint if client.error is not None else None,
        reported_offset=link.reported_offset,
        master_offset=received.master_offset,
        last_read_age_s=now - link.last_read_time if received.connections else None,
        rate_bytes_per_s=rate,
        received_bytes=received.flow_monitor.total_bytes,
        connections=received.connections,
        local_address=None if link.local_address is None else describe(link.local_address),
        lag_bytes=lag_bytes,
        lag_is_estimate=lag_bytes != announced,
        lag_s=lag_s,
        newest_record_age_s=None if age_s is None else max(age_s, 0.0),
        silent_max_s=client.config.ha.ha_housekeeping_interval_ms / 1000,
    )
