"""What ``hastore cluster`` shows: lines for people, and JSON with stable keys.

Ends and lags are bytes.  A node that answers says itself where its log ends; of another one etcd
has what it wrote last, which is shown with its age.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.broker.observe.coordinator_status import NO_SPACE, NO_SPACE_HINT
from hastore.cluster.decide import why_not_proven
from hastore.cluster.loss import cut_json, cuts_by_epoch
from hastore.cluster.operations import after_alarm
from hastore.errors import UnreachableError
from hastore.ha.set_rules import nodes_text
from hastore.quantities import format_duration, format_size
from hastore_cli.app.terminal import columns, escaped, label_row, number, time_text
from hastore_cli.cluster import losses
from hastore_cli.cluster.heard import lags_in, refreshed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.by_hand import NodeFacts
    from hastore.cluster.group_records import GroupView, Keys, Member
    from hastore.cluster.loss import NodeCut
    from hastore.errors import HastoreError
    from hastore.store.tools.group_log import GroupLog
    from hastore_cli.cluster.asking import Asked

SCHEMA: Final = "hastore.cluster/1"
MEMBERS_SCHEMA: Final = "hastore.cluster-members/1"
HISTORY_SCHEMA: Final = "hastore.cluster-history/1"
NODES_SCHEMA: Final = "hastore.cluster-nodes/1"
CHANGE_SCHEMA: Final = "hastore.cluster-change/1"
_UNKNOWN: Final = "-"


@attrs.frozen(kw_only=True)
class NodeRow:
    """A node, up or not."""

    node_id: int
    is_up: bool
    in_set: bool
    role: str  # "master", "slave", "down"
    why_not: str | None  # why it may not become master; None: it may
    uuid: str | None = None
    start: int | None = None
    kept_since: int | None = None
    last_epoch: int | None = None
    end: int | None = None
    lag: int | None = None  # bytes that it lacks of the master's log, as the master says now
    # Seconds since role, epoch and end were so: 0 if the node answered just now, None if unknown,
    # as where its clock is ahead of this machine's.
    age_s: float | None = None
    link: str | None = None  # its end of the link to its master
    ha_address: str | None = None
    client_address: str | None = None
    has_answered: bool = False  # itself, just now
    no_answer_because: str | None = None  # None if it has answered, or was not asked
    priority: int | None = None
    election: int | None = None
    version: str | None = None
    can_store: bool | None = None  # None if it is down


@attrs.frozen(kw_only=True)
class Answers:
    """What is known besides the group's keys: nodes' own answers, and etcd's alarms."""

    now_ms: int  # this machine's wall clock
    statuses: Mapping[int, NodeStatus] = attrs.field(factory=dict)  # by id
    failures: Mapping[int, HastoreError] = attrs.field(factory=dict)  # of those without one
    etcd_alarms: frozenset[str] = frozenset()


def node_rows(view: GroupView, answers: Answers) -> list[NodeRow]:
    """Return all nodes that are registered, up or in the set, by id."""
    view = refreshed(view, answers.statuses)
    state = view.state
    in_set = frozenset[int]() if state is None else state.ids
    ids = sorted(view.members.keys() | view.registrations.keys() | in_set)
    return [_node_row(view, node_id, in_set, answers) for node_id in ids]


def _node_row(view: GroupView, node_id: int, in_set: frozenset[int], answers: Answers) -> NodeRow:
    member, known = view.members.get(node_id), view.registrations.get(node_id)
    if member is None:
        return NodeRow(
            node_id=node_id,
            is_up=False,
            in_set=node_id in in_set,
            role="down",
            why_not=f"node {node_id} is not up",
            uuid=None if known is None else known.uuid,
            start=None if known is None else known.start,
        )
    status, failure = answers.statuses.get(node_id), answers.failures.get(node_id)
    why_not: str | None = "the group has no state yet"
    if view.state is not None:
        why_not = why_not_proven(member, view.state)
    return NodeRow(
        node_id=node_id,
        is_up=True,
        in_set=node_id in in_set,
        role=member.role if status is None else _role_of(status),
        why_not=why_not,
        uuid=member.node.uuid,
        start=member.node.start,
        kept_since=member.kept_since,
        last_epoch=member.last_epoch,
        end=member.end,
        lag=lags_in(view, answers.statuses).get(node_id),
        age_s=_age_s(member, answers.now_ms) if status is None else 0.0,
        has_answered=status is not None,
        no_answer_because=None if failure is None else str(failure),
        link=member.link,
        ha_address=member.ha_address,
        client_address=member.client_address,
        priority=member.priority,
        election=member.election,
        version=member.version,
        can_store=member.can_store,
    )


def _role_of(status: NodeStatus) -> str:
    return "master" if status.master_link is None else "slave"


def _age_s(member: Member, now_ms: int) -> float | None:
    """Return how long ago a node wrote its record, by two wall clocks; None if unknown.

    None, too, for a time that is still to come by our clock.
    """
    age_ms = None if member.at_ms is None else now_ms - member.at_ms
    return None if age_ms is None or age_ms < 0 else age_ms / 1_000


# -- status --------------------------------------------------------------------------------------


def status_json(asked: Asked, view: GroupView, answers: Answers) -> dict[str, Any]:
    """Return the group as JSON."""
    state, leader, wish = view.state, view.leader, view.config.switchover
    return {
        "schema": SCHEMA,
        "cluster": asked.cluster,
        "group": asked.group,
        "keys": asked.keys.base,
        "revision": view.revision,
        "epoch": None if state is None else state.epoch,
        "master": None if state is None or state.master is None else state.master.node_id,
        "leader": None
        if leader is None
        else {
            "id": leader.holder.node_id,
            "start": leader.holder.start,
            "epoch": leader.epoch,
            "ha": leader.ha_address,
            "client": leader.client_address,
        },
        "sync_state_set": None if state is None else sorted(state.ids),
        "acks": None if state is None else state.acks,
        "paused": view.config.is_paused,
        "switchover": None if wish is None else attrs.asdict(wish),
        "alarm": view.config.alarm,
        "unproven_epoch": view.config.unproven_epoch,
        "confirm_offset": None if state is None else state.confirm_offset,
        "etcd_alarms": sorted(answers.etcd_alarms),
        "nodes": [_row_json(row) for row in node_rows(view, answers)],
        "damaged": dict(view.damaged),
    }


def _row_json(row: NodeRow) -> dict[str, Any]:
    values = attrs.asdict(row)
    values["id"] = values.pop("node_id")
    values["may_stand"] = row.why_not is None
    return dict(sorted(values.items(), key=lambda item: item[0] != "id"))


def status_lines(asked: Asked, view: GroupView, answers: Answers) -> Iterator[str]:
    """Yield the group as lines."""
    state, leader = view.state, view.leader
    parts = [f"group {asked.group} of {asked.cluster}"]
    if state is not None:
        parts.append(f"epoch {state.epoch}")
    parts.append("no master" if leader is None else f"master {leader.holder}")
    if state is not None:
        parts.append(f"SyncStateSet {', '.join(map(str, sorted(state.ids)))}")
        parts.append(f"in_sync_replicas {state.acks}")
    yield "  ".join(parts)
    facts = ("node", "role", "epoch", "end", "lag", "as of", "start", "link", "in set")
    head = (*facts, "may become master")
    yield from columns(head, [_cells(row) for row in node_rows(view, answers)])
    yield from _notes(asked.keys, view, answers)
    yield from _storage_notes(view)


def _cells(row: NodeRow) -> tuple[str, ...]:
    may = "yes" if row.why_not is None else f"no: {row.why_not}"
    if row.role == "master":
        may = "it is" if row.has_answered else "it is by its lease; no answer here"
    return (
        str(row.node_id),
        row.role,
        _number(row.last_epoch),
        _number(row.end),
        _UNKNOWN if row.lag is None or row.role == "master" else format_size(row.lag),
        _age_text(row),
        _number(row.start),
        row.link or _UNKNOWN,
        "yes" if row.in_set else "no",
        may,
    )


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else number(value)


def _age_text(row: NodeRow) -> str:
    if not row.is_up:
        return _UNKNOWN
    if row.has_answered:
        return "now"
    return "?" if row.age_s is None else f"{format_duration(row.age_s)} ago"


def _storage_notes(view: GroupView) -> Iterator[str]:
    """Yield which nodes say that they cannot store."""
    unable = frozenset(node_id for node_id, each in view.members.items() if not each.can_store)
    if unable:
        text = f"{nodes_text(unable)} cannot store: hastore check of that node says why"
        yield label_row("warning", text)


def _notes(keys: Keys, view: GroupView, answers: Answers) -> Iterator[str]:
    """Yield what is wrong, and what is under way."""
    config = view.config
    for alarm in sorted(answers.etcd_alarms):
        yield label_row("warning", f"etcd has the alarm {alarm}")
        if alarm == NO_SPACE:
            what = "it takes no writes: what is shown may be old, and nobody can be elected"
            yield label_row("warning", what)
            yield label_row("next", NO_SPACE_HINT)
    if config.alarm is not None:
        yield label_row("damage", f"alarm: {config.alarm}")
        yield label_row(
            "next", f"find out why; then: {after_alarm(keys, refreshed(view, answers.statuses))}"
        )
    if config.unproven_epoch is not None:
        yield label_row(
            "damage",
            f"epoch {config.unproven_epoch} began although no member was proven: acknowledged"
            " messages may be lost",
        )
        yield label_row("next", "hastore cluster history, then: hastore cluster clear-alarm")
    if keys.state in view.damaged:
        yield label_row("warning", "what the group had agreed on cannot be read")
        yield label_row("next", "restore etcd; or: hastore cluster init --force --dry-run")
    elif view.state is None:
        yield label_row("note", "the coordinator does not know the group: hastore cluster init")
    elif view.leader is None:
        yield label_row("warning", _no_master_text(view, answers))
    if config.is_paused:
        yield label_row("note", "elections are paused: hastore cluster resume")
    wish = config.switchover
    if wish is not None and view.state is not None and wish.from_epoch == view.state.epoch:
        yield label_row("note", f"a switchover to node {wish.to_id} is under way")
    yield from _node_notes(view, answers)
    for key, reason in view.damaged.items():
        yield label_row("damage", f"{escaped(key)}: {escaped(reason)}")
        if key in {keys.leader, keys.config}:
            yield label_row("next", f"nothing is decided before: etcdctl del {escaped(key)}")


def _node_notes(view: GroupView, answers: Answers) -> Iterator[str]:
    """Yield what is wrong with single nodes, as they say or do not say it."""
    leader = None if view.leader is None else view.leader.holder
    failures = answers.failures
    for node_id, error in sorted(failures.items()):
        yield label_row("warning", f"node {node_id} does not answer here: {escaped(str(error))}")
    hints = {error.hint for error in failures.values() if _is_refusal(error) and error.hint}
    yield from (label_row("next", escaped(hint)) for hint in sorted(hints))
    is_there = leader is not None and _is_refusal(failures.get(leader.node_id))
    if leader is not None and leader.node_id not in answers.statuses and not is_there:
        text = f"{leader} is master by its lease, and does not answer here: if it is dead, its"
        yield label_row(
            "warning", f"{text} lease ends within [cluster] ttl, and another is elected"
        )
    for node_id, status in sorted(answers.statuses.items()):
        if status.cut_refused_because is None:
            continue
        reason, link = status.cut_refused_because, status.master_link
        yield label_row("damage", f"CRITICAL: node {node_id}: {escaped(reason)}")
        if link is not None and link.hint is not None:
            yield label_row("next", escaped(link.hint))


def _is_refusal(error: HastoreError | None) -> bool:
    """Return whether a node is up and refused to answer: it needs an access key, or TLS."""
    return error is not None and not isinstance(error, UnreachableError)


def _no_master_text(view: GroupView, answers: Answers) -> str:
    assert view.state is not None
    able = [row.node_id for row in node_rows(view, answers) if row.why_not is None]
    if view.config.alarm is not None:
        return "no node is master, and the alarm stops elections"
    if able and NO_SPACE in answers.etcd_alarms:
        return f"no node is master, and etcd is full: {nodes_text(frozenset(able))} may stand"
    if able and not view.config.is_paused:
        return f"no node is master: {nodes_text(frozenset(able))} may stand, an election is due"
    if able:
        return (
            f"no node is master, and elections are paused: {nodes_text(frozenset(able))} may stand"
        )
    wanted = nodes_text(view.state.ids - view.members.keys() or view.state.ids)
    return (
        f"no node is master, and none that is up may become it: start {wanted};"
        " if it is lost: hastore cluster failover --to ID --accept-loss --dry-run"
    )


# -- members, history ----------------------------------------------------------------------------


def members_json(asked: Asked, view: GroupView, answers: Answers) -> dict[str, Any]:
    """Return the nodes as JSON."""
    return {
        "schema": MEMBERS_SCHEMA,
        "cluster": asked.cluster,
        "group": asked.group,
        "nodes": [_row_json(row) for row in node_rows(view, answers)],
    }


def members_lines(view: GroupView, answers: Answers) -> Iterable[str]:
    """Return the nodes as lines: where each is, and on which directory."""
    head = (
        "node",
        "role",
        "in set",
        "start",
        "clients",
        "slaves",
        "priority",
        "version",
        "directory",
    )
    rows: list[tuple[str, ...]] = [
        (
            str(row.node_id),
            row.role,
            "yes" if row.in_set else "no",
            _number(row.start),
            row.client_address or _UNKNOWN,
            row.ha_address or _UNKNOWN,
            _number(row.priority),
            escaped(row.version or _UNKNOWN),
            escaped(row.uuid or _UNKNOWN),
        )
        for row in node_rows(view, answers)
    ]
    return columns(head, rows)


def history_json(asked: Asked, view: GroupView, answers: losses.LogAnswers) -> dict[str, Any]:
    """Return the epochs as JSON, the oldest first."""
    return {
        "schema": HISTORY_SCHEMA,
        "cluster": asked.cluster,
        "group": asked.group,
        **losses.epochs_json(view.history, answers),
    }


def history_lines(view: GroupView, answers: losses.LogAnswers) -> Iterable[str]:
    """Return the epochs as lines, the oldest first."""
    cuts = answers.cuts
    by_epoch, others = cuts_by_epoch([each.epoch for each in view.history], cuts)
    rows: list[tuple[str, ...]] = [
        (
            str(each.epoch),
            _UNKNOWN if each.former_id is None else str(each.former_id),
            str(each.master_id),
            number(each.end),
            time_text(each.at_ms),
            escaped(each.why) + ("" if each.is_proven else ", no member was proven"),
            losses.lost_text(each.lost, by_epoch[each.epoch]),
        )
        for each in view.history
    ]
    head = ("epoch", "from", "to", "at offset", "time", "why", "lost, cut")
    yield from columns(head, rows)
    yield from _other_cuts(others)
    yield from losses.uncounted_cuts(cuts)


def _other_cuts(cuts: Iterable[NodeCut]) -> Iterator[str]:
    for each in cuts:
        yield label_row(
            "note",
            f"node {each.node_id} cut {losses.counts_text(each.cut.messages)} at"
            f" {number(each.cut.physic_offset)}: {escaped(each.cut.reason)}",
        )


def log_history_json(
    group: str | None, newest: GroupLog | None, answers: losses.LogAnswers
) -> dict[str, Any]:
    """Return the epochs of a group without a coordinator, as its newest log has them."""
    entries = () if newest is None else newest.epochs.entries
    by_epoch, others = cuts_by_epoch([each.epoch for each in entries], answers.cuts)
    unknown: dict[str, Any] = {"from": None, "to": None, "why": None, "at_ms": None, "lost": {}}
    return {
        "schema": HISTORY_SCHEMA,
        "cluster": None,
        "group": group,
        "epochs": [
            {"epoch": epoch, "offset": start, **unknown}
            | {"cuts": [cut_json(cut) for cut in by_epoch[epoch]]}
            for epoch, start in entries
        ],
        "other_cuts": [cut_json(cut) for cut in others],
        **losses.unknown_json(answers),
    }


def log_history_lines(newest: GroupLog, answers: losses.LogAnswers) -> Iterable[str]:
    """Return the same as lines."""
    cuts = answers.cuts
    by_epoch, others = cuts_by_epoch([each.epoch for each in newest.epochs.entries], cuts)
    rows: list[tuple[str, ...]] = [
        (str(epoch), number(start), losses.lost_text({}, by_epoch[epoch]))
        for epoch, start in newest.epochs.entries
    ]
    yield from columns(("epoch", "at offset", "cut"), rows)
    yield from _other_cuts(others)
    yield from losses.uncounted_cuts(cuts)


# -- nodes without a coordinator -----------------------------------------------------------------


def facts_json(nodes: Sequence[NodeFacts], silent: Sequence[str]) -> dict[str, Any]:
    """Return what nodes say of themselves as JSON; ``silent`` did not answer."""
    return {
        "schema": NODES_SCHEMA,
        "group": nodes[0].group if nodes else None,
        "nodes": [
            {
                "id": each.node_id,
                "address": f"{each.address[0]}:{each.address[1]}",
                "role": "master" if each.is_master else "slave",
                "last_epoch": each.last_epoch,
                "seen_epoch": each.seen_epoch,
                "end": each.end,
            }
            for each in nodes
        ],
        "silent": list(silent),
    }


def facts_lines(nodes: Sequence[NodeFacts]) -> Iterable[str]:
    """Return what nodes say of themselves as lines; the newest log first."""
    rows: list[tuple[str, ...]] = [
        (
            _number(each.node_id),
            "master" if each.is_master else "slave",
            str(each.last_epoch),
            str(each.seen_epoch),
            number(each.end),
            f"{each.address[0]}:{each.address[1]}",
        )
        for each in sorted(nodes, key=lambda each: each.rank)
    ]
    return columns(("node", "role", "epoch", "seen", "end", "address"), rows)
