"""A node's status in RocketMQ's terms: broker HA status (907) and runtime info (28).

Pure: a NodeStatus in, JSON values out.  The keys of 907 are ``HARuntimeInfo``'s (``mqadmin
haStatus`` prints them), with the whole NodeStatus beside them under ``hastore``; those of 28 are
RocketMQ's as far as hastore has such values, all text as in its ``KVTable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.broker.observe.broker_stats import DAY_S
from hastore.config import HAConfig
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.remoting_codes import PROTOCOL_VERSION

if TYPE_CHECKING:
    from hastore.broker.observe.broker_stats import BrokerStats, Item
    from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow

# RocketMQ calls a slave in sync while it is nearer to the end than haSlaveFallbehindMax.
_IN_SYNC_LAG_MAX: Final = HAConfig().ha_slave_fallbehind_max
_STORED: Final = tuple(status.value for status in PutMessageStatus if status.stored)


def ha_runtime_info(status: NodeStatus, now_ms: int) -> dict[str, Any]:
    """Return the body of the answer to 907."""
    connections = [_connection_info(row) for row in status.slaves]
    link = status.master_link
    info: dict[str, Any] = {
        "master": status.role != BrokerRole.SLAVE.value,
        "masterCommitLogMaxOffset": status.max_offset,
        "inSyncSlaveNums": sum(connection["inSync"] for connection in connections),
        "haConnectionInfo": connections,
        "haClientRuntimeInfo": _client_info(status, link, now_ms) if link else {},
    }
    if link is not None:
        info["masterCommitLogMaxOffset"] = link.master_offset or 0
    info["hastore"] = status.to_dict()
    return info


def _connection_info(row: SlaveRow) -> dict[str, Any]:
    lag_bytes = row.lag_bytes
    return {
        "addr": row.address,
        "slaveAckOffset": -1 if row.ack_offset is None else row.ack_offset,
        "diff": -1 if lag_bytes is None else lag_bytes,
        "inSync": _is_in_sync(row),
        "transferredByteInSecond": round(row.rate_bytes_per_s),
        "transferFromWhere": -1 if row.sent_offset is None else row.sent_offset,
    }


def _is_in_sync(row: SlaveRow) -> bool:
    """Return RocketMQ's answer; in a replica group the SyncStateSet has it."""
    if row.node_role is not None:
        return row.node_role == "member"
    return row.lag_bytes is not None and row.lag_bytes < _IN_SYNC_LAG_MAX


def _client_info(status: NodeStatus, link: MasterLink, now_ms: int) -> dict[str, Any]:
    age_s = link.last_read_age_s
    return {
        "masterAddr": link.address,
        "transferredByteInSecond": round(link.rate_bytes_per_s),
        "maxOffset": status.max_offset,
        "lastReadTimestamp": 0 if age_s is None else now_ms - round(age_s * 1000),
        "lastWriteTimestamp": 0,
        "masterFlushOffset": 0,
        "activated": link.state == "streaming",
    }


def runtime_info(
    status: NodeStatus, now_ms: int, stats: BrokerStats, *, now: float, earliest_store_ms: int
) -> dict[str, str]:
    """Return the table of the answer to 28; ``now`` is trio's time.

    4.9 and 5 spell the rate of messages that consumers get differently.  Days are UTC's.
    """
    puts, gets = stats.puts.tps_text(now), stats.gets.tps_text(now)
    day_s = now_ms / 1000 % DAY_S
    counts = status.put_counts
    stored = sum(counts.get(name, 0) for name in _STORED)
    boot_ms = now_ms - round(status.uptime_s * 1000)
    values: dict[str, Any] = {
        "brokerVersion": PROTOCOL_VERSION,
        "brokerVersionDesc": "hastore (RocketMQ 4.9.8 protocol)",
        "brokerName": status.replica_group or status.name,
        "clusterName": status.cluster,
        "brokerRole": status.role,
        "flushDiskType": status.flush_disk_type,
        "bootTimestamp": boot_ms,
        "startAcceptSendRequestTimeStamp": boot_ms,
        "runtime": _runtime_text(status.uptime_s),
        "commitLogMinOffset": status.min_offset,
        "commitLogMaxOffset": status.max_offset,
        "commitLogFlushedOffset": status.flushed_offset,
        "putMessageTimesTotal": stored,
        "putMessageFailedTimes": sum(counts.values()) - stored,
        "sendThreadPoolQueueSize": status.waiting_for_slave,
        "dispatchBehindBytes": status.dispatch_behind_bytes,
        "sendThreadPoolQueueHeadWaitTimeMills": 0,
        "pullThreadPoolQueueSize": 0,
        "pullThreadPoolQueueHeadWaitTimeMills": 0,
        "ackThreadPoolQueueSize": 0,
        "ackThreadPoolQueueHeadWaitTimeMills": 0,
        "pageCacheLockTimeMills": 0,
        "commitLogDiskRatio": status.disk_used_ratio or 0.0,
        "earliestMessageTimeStamp": earliest_store_ms,
        "brokerActive": "true",
        "putTps": puts,
        "getFoundTps": gets,
        "getTotalTps": gets,
        "getTransferedTps": gets,
        "getTransferredTps": gets,
    }
    for name, item in (("Put", stats.puts), ("Get", stats.gets)):
        values |= {
            f"msg{name}TotalYesterdayMorning": _before(item, day_s + DAY_S, now),
            f"msg{name}TotalTodayMorning": _before(item, day_s, now),
            f"msg{name}TotalTodayNow": item.messages.count,
        }
    return {key: str(value) for key, value in values.items()}


def _before(item: Item, seconds: float, now: float) -> int:
    """Return how many messages had come that long ago, to within an hour."""
    return item.messages.count - item.messages.within(seconds, now)


def _runtime_text(uptime_s: float) -> str:
    seconds = int(uptime_s)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
