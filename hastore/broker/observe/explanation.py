"""Why puts were decided as they were: a master's decision log as JSON, ``hastore.explain/1``.

Times are milliseconds of this node's present wall clock, computed from trio's.  ``slaves`` is what
the master knew of its slaves when the first put of an entry was decided; it cannot know what a
slave had received but not reported.

In a replica group ``acks`` counts nodes: those ``needed`` are the members and the proposed ones; of
them, without the master, some ``got`` the message and the others ``missed`` it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

import trio

from hastore.concurrency.tcp import describe
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.concurrency.decision_log import Decision, DecisionLog
    from hastore.ha.ha_service import GroupStanding, Standing

_TEXT_MAX: Final = 300
SCHEMA: Final = "hastore.explain/1"


class SlaveThen(TypedDict):
    """A slave when the first put of an entry was decided."""

    address: str
    sent_offset: int
    ack_offset: int
    last_report_age_s: float


class DepartedSlave(TypedDict):
    """The slave that had left last."""

    address: str
    reason: str
    at_ms: int


class NodeThen(TypedDict):
    """A node of a replica group when the first put of an entry was decided."""

    node_id: int
    address: str | None
    since_ms: int | None
    ack_offset: int | None
    sent_offset: int | None
    last_report_age_s: float | None
    why_not: str | None


class NeededAcks(TypedDict):
    """The acks that a put of a replica group needed, and those that it had."""

    in_sync_replicas: str | int
    min_in_sync_replicas: int
    members: list[int]
    needed: list[int]
    got: list[int]
    missed: list[NodeThen]
    not_needed: list[NodeThen]


class ExplainedPuts(TypedDict):
    """Puts with one outcome and one cause."""

    status: str
    count: int
    first_ms: int
    last_ms: int
    topic: str
    queue_id: int
    first_offset: int | None
    last_offset: int | None
    reason: str | None
    slave: str | None
    waited_max_s: float | None
    waited_min_s: float | None
    slave_lag_max: int | None
    acks: NeededAcks | None
    slaves: list[SlaveThen] | None
    departed: DepartedSlave | None


class Explanation(TypedDict):
    """A master's answer; a reader checks it with ``read_shape``."""

    name: str
    role: str
    address: str | None
    ha_address: str | None
    now_ms: int | None
    slave_timeout_ms: int
    put_counts: dict[str, int]
    slave_unavailable_because: str | None
    weak: list[ExplainedPuts]
    acknowledged: list[ExplainedPuts]


def explain(
    status: NodeStatus, decisions: DecisionLog, last: int, *, slave_timeout_ms: int
) -> dict[str, Any]:
    """Return a master's last decisions, oldest first: all not PUT_OK, and a sample of others."""
    now = trio.current_time()
    now_ms = status.wall_time_ms
    assert now_ms is not None, "a node's own status has its time"

    def wall_ms(time: float) -> int:
        return now_ms - round((now - time) * 1000)

    def newest(entries: Iterable[Decision]) -> list[dict[str, Any]]:
        rows = [_row(decision, wall_ms) for decision in entries]
        return rows[-last:] if last else []

    return {
        "schema": SCHEMA,
        "name": status.name,
        "role": status.role,
        "address": status.address,
        "ha_address": status.ha_address,
        "now_ms": now_ms,
        "slave_timeout_ms": slave_timeout_ms,
        "put_counts": status.put_counts,
        "slave_unavailable_because": status.slave_unavailable_because,
        "weak": newest(decisions.weak),
        "acknowledged": newest(decisions.ok),
        "stages": status.stages,
    }


def _row(decision: Decision, wall_ms: Callable[[float], int]) -> dict[str, Any]:
    waited_s, last = decision.waited_s, decision.last_result
    first_ms, last_ms = wall_ms(decision.first_time), wall_ms(decision.last_time)
    if last is not None and decision.status is PutMessageStatus.SLAVE_NOT_AVAILABLE:
        last_ms = max(first_ms, last.store_timestamp_ms)
    reason = decision.reason
    row: dict[str, Any] = {
        "status": decision.status.value,
        "count": decision.count,
        "first_ms": first_ms,
        "last_ms": last_ms,
        "topic": decision.topic,
        "queue_id": decision.queue_id,
        "first_offset": decision.first_offset,
        "last_offset": None if last is None else last.next_offset,
        "reason": None if reason is None else reason[:_TEXT_MAX],
        "slave": None if decision.slave is None else describe(decision.slave),
        "waited_max_s": None if waited_s is None else waited_s[0],
        "waited_min_s": None if waited_s is None else waited_s[1],
    }
    standing: Standing | None = decision.context
    if standing is not None:
        departure = standing.departure
        row["slave_lag_max"] = standing.behind_max
        if standing.group is not None:
            row["acks"] = _acks(standing.group, decision, wall_ms)
        row["slaves"] = [
            {
                "address": describe(slave.address),
                "sent_offset": slave.sent_offset,
                "ack_offset": slave.ack_offset,
                "last_report_age_s": slave.last_report_age_s,
            }
            for slave in standing.slaves
        ]
        row["departed"] = (
            None
            if departure is None
            else {
                "address": describe(departure.address),
                "reason": departure.reason,
                "at_ms": wall_ms(departure.time),
            }
        )
    return row


def _acks(
    group: GroupStanding, decision: Decision, wall_ms: Callable[[float], int]
) -> dict[str, Any]:
    """Return the acks that the first put of an entry needed, and those that it had.

    ``got`` and ``missed`` are of the needed nodes but the master, which always has the message.
    """
    end = decision.first_offset
    got: list[int] = []
    missed: list[dict[str, Any]] = []
    absent: list[dict[str, Any]] = []
    for awaited in group.nodes:
        node = awaited.node
        row = {
            "node_id": node.node_id,
            "address": None if awaited.address is None else describe(awaited.address),
            "since_ms": None if node.since is None else wall_ms(node.since),
            "ack_offset": node.ack_offset,
            "sent_offset": awaited.sent_offset,
            "last_report_age_s": awaited.last_report_age_s,
            "why_not": None if node.why_not is None else node.why_not[:_TEXT_MAX],
        }
        if node.node_id not in group.needed:
            absent.append(row)
        elif end is not None and node.ack_offset is not None and node.ack_offset >= end:
            got.append(node.node_id)
        else:
            missed.append(row)
    return {
        "in_sync_replicas": group.in_sync_replicas,
        "min_in_sync_replicas": group.min_in_sync_replicas,
        "members": sorted(group.members),
        "needed": sorted(group.needed),
        "got": got,
        "missed": missed,
        "not_needed": absent,
    }
