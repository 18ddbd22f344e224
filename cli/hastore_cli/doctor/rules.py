"""From facts about nodes to diagnoses: one for each check, with its next step.

``hastore.broker.observe.findings`` has the rules for a node's own status; here are those that need
a view from outside, or of several nodes.

Pure.  What cannot be known from here is ``unknown``, never ``ok``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.observe.findings import Level, Limits, findings
from hastore.quantities import format_duration, format_exact_size
from hastore_cli.node.exposure import BIND_NAMES, NEXT_STEP, Listening, names_without_ids
from hastore_cli.node.file import how_to_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore_cli.doctor.facts import Facts

_CLOCK_WARN_S: Final = 0.5
_CLOCK_BAD_S: Final = 5.0


class Result(enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


_RESULTS: Final = {
    Level.OK: Result.OK,
    Level.NOTICE: Result.WARN,
    Level.UNKNOWN: Result.UNKNOWN,
    Level.WARNING: Result.WARN,
    Level.FAULT: Result.BAD,
    Level.CRITICAL: Result.BAD,
}


@attrs.frozen
class Diagnosis:
    """One check of one node."""

    node: str
    check: str
    result: Result
    what: str
    next_step: str | None = None


def diagnose(nodes: Sequence[Facts]) -> list[Diagnosis]:
    """Check each node, then the nodes against each other."""
    masters = (facts.status for facts in nodes if facts.is_master)
    master = next((status.ha_address for status in masters if status is not None), None)
    findings = [finding for facts in nodes for finding in _check_node(facts, master)]
    findings += _clocks(nodes)
    findings += _pairs(nodes)
    return findings


def _check_node(facts: Facts, master: str | None) -> Iterator[Diagnosis]:
    status = facts.status
    if status is None:
        yield from _silent(facts, master)
        return
    name = facts.name
    took = "" if facts.took_s is None else f" in {format_duration(facts.took_s)}"
    yield Diagnosis(name, "client port", Result.OK, f"answers{took}: {status.role} {status.name}")
    if status.master_link is None:
        yield _ha_port(facts, status)
    exposed = Listening.by_status(status).exposure()
    if exposed is not None:
        what = f"other machines may reach {exposed.ports}: {exposed.reason}"
        yield Diagnosis(name, "exposed ports", Result.WARN, what, NEXT_STEP)
    unbound = None if status.tls is None else names_without_ids(status.tls.ha_names_without_ids)
    if unbound is not None:
        yield Diagnosis(name, "node ids", Result.WARN, unbound, BIND_NAMES)
    for found in findings(status, Limits.of(status)):
        result = _RESULTS[found.level]
        next_step = None if result is Result.OK else found.hint
        yield Diagnosis(name, found.subject, result, found.sentence, next_step)


def _silent(facts: Facts, master: str | None) -> Iterator[Diagnosis]:
    """Yield the finding about a node that does not answer.

    ``master``: the HA address of a running master, so that no hint starts a second one.
    """
    error = facts.error
    assert error is not None
    hint = error.hint or "check whether the node runs, and read its log"
    if facts.directory is not None and facts.holder is None:
        hint = how_to_start(facts.directory, facts.role_was, master, facts.identity)
        if not facts.is_store:
            hint = "there is no store either: name the --data directory of a node"
    yield Diagnosis(facts.name, "client port", Result.BAD, str(error), hint)
    if facts.holder is not None:
        what = f"{facts.holder} runs, but does not answer"
        next_step = "if that is the node: is it stopped (SIGCONT), or waiting for a disk?"
        yield Diagnosis(facts.name, "process", Result.BAD, what, next_step)
    elif facts.is_store and facts.has_abort_file is not None and facts.directory is not None:
        if facts.has_abort_file:
            what = "not clean: the next start checks the log's end"
            next_step = f"start it, or check first: hastore log verify {facts.directory}"
            yield Diagnosis(facts.name, "last stop", Result.WARN, what, next_step)
        else:
            yield Diagnosis(facts.name, "last stop", Result.OK, "clean")


def _ha_port(facts: Facts, status: NodeStatus) -> Diagnosis:
    check = "HA port"
    if not facts.ha_was_tried:
        what = f"{status.ha_address} is only for its own machine, so it was not tried from here"
        next_step = "hastore master --ha-listen HOST:PORT, an address that slaves can reach"
        return Diagnosis(facts.name, check, Result.WARN, what, next_step)
    if facts.ha_error is not None:
        next_step = "check firewall and network: this is the only port that slaves need"
        return Diagnosis(facts.name, check, Result.BAD, facts.ha_error, next_step)
    return Diagnosis(facts.name, check, Result.OK, f"{status.ha_address} can be reached from here")


# -- between nodes -------------------------------------------------------------------------------


def _clocks(nodes: Sequence[Facts]) -> Iterator[Diagnosis]:
    """Compare the clocks with the first node's; of one node with this machine's."""
    known = [facts for facts in nodes if facts.clock_lead_s is not None]
    if not known:
        return
    first = known[0]
    for facts in known:
        if len(known) > 1 and facts is first:
            continue
        lead_s, error_s = facts.clock_lead_s or 0.0, facts.clock_error_s
        other = "this machine's"
        if len(known) > 1:
            lead_s -= first.clock_lead_s or 0.0
            error_s += first.clock_error_s
            other = f"that of {first.name}"
        apart_s = max(abs(lead_s) - error_s, 0.0)
        direction = "ahead of" if lead_s > 0 else "behind"
        what = f"{format_duration(abs(lead_s))} {direction} {other} (± {format_duration(error_s)})"
        result = Result.OK
        if apart_s >= _CLOCK_WARN_S:
            result = Result.BAD if apart_s >= _CLOCK_BAD_S else Result.WARN
        next_step = None if result is Result.OK else "run NTP: store times and lag in time need it"
        yield Diagnosis(facts.name, "clock", result, what, next_step)


def _pairs(nodes: Sequence[Facts]) -> Iterator[Diagnosis]:
    seen: dict[str, str] = {}
    for facts in nodes:
        if facts.status is not None:
            who = f"{facts.status.address} {facts.status.process_id}"
            if who in seen:
                what = f"this is the same node as {seen[who]}"
                next_step = "name each node once; two nodes need two --data directories"
                yield Diagnosis(facts.name, "twice", Result.WARN, what, next_step)
            seen.setdefault(who, facts.name)
    yield from _same_ids(nodes)
    masters = [facts for facts in nodes if facts.is_master]
    for facts in masters[1:]:
        if _group_of(facts) is not None or _group_of(masters[0]) is not None:
            continue
        what = f"{facts.name} and {masters[0].name} are both masters: their logs diverge"
        next_step = "if one should follow the other, stop it and start it again as a slave"
        yield Diagnosis(facts.name, "roles", Result.WARN, what, next_step)
    yield from _masters_of_a_group(masters)
    for facts in nodes:
        status = facts.status
        if status is None or status.master_link is None:
            continue
        for master in masters:
            yield from _pair(master, facts, status)


def _group_of(facts: Facts) -> str | None:
    return None if facts.status is None else facts.status.replica_group


def _same_ids(nodes: Sequence[Facts]) -> Iterator[Diagnosis]:
    """Find two processes that are the same node of a replica group."""
    seen: dict[tuple[str, int], Facts] = {}
    for facts in nodes:
        status = facts.status
        if status is None or status.node_id is None or status.replica_group is None:
            continue
        other = seen.setdefault((status.replica_group, status.node_id), facts)
        if other.status is not None and other.status.data_dir != status.data_dir:
            what = f"it is node {status.node_id} of {status.replica_group}, and so is {other.name}"
            if facts.identity is not None and other.identity is not None:
                is_copy = facts.identity.uuid == other.identity.uuid
                what += ": one directory is a copy of the other" if is_copy else ""
            next_step = "their acks count once: give one of them another --node-id, and an empty"
            yield Diagnosis(facts.name, "node id", Result.BAD, what, f"{next_step} directory")


def _masters_of_a_group(masters: Sequence[Facts]) -> Iterator[Diagnosis]:
    """Find masters of one replica group; that of the newest epoch is right."""
    newest: dict[str, Facts] = {}
    for facts in masters:
        group = _group_of(facts)
        if group is not None and _epoch(facts) > _epoch(newest.get(group)):
            newest[group] = facts
    for facts in masters:
        right = newest.get(_group_of(facts) or "")
        if right is None or right is facts:
            continue
        what = f"it is master of epoch {_epoch(facts)}, and {right.name} of epoch {_epoch(right)}"
        next_step = f"stop {facts.name}, and start it as a slave of {right.name}: what it alone has"
        next_step += " is cut, and kept in trimmed/"
        if _epoch(facts) == _epoch(right):
            next_step = "no epoch may have two masters: stop one; hastore log diff DIR1 DIR2"
        yield Diagnosis(facts.name, "roles", Result.BAD, what, next_step)


def _epoch(facts: Facts | None) -> int:
    status = None if facts is None else facts.status
    return -1 if status is None or status.epoch is None else status.epoch


def _pair_of_groups(
    master: Facts, own: NodeStatus, slave: Facts, status: NodeStatus, *, is_linked: bool
) -> Iterator[Diagnosis]:
    """Compare the groups and epochs of a slave and a master: a handshake names no group."""
    if own.replica_group is None or status.replica_group is None:
        return
    if own.replica_group == status.replica_group:
        if (status.seen_epoch or 0) > _epoch(master):
            what = f"it has heard of epoch {status.seen_epoch}, and {master.name} is the master of"
            next_step = (
                f"look for the newer master: hastore status of the nodes of {own.replica_group}"
            )
            what += f" epoch {_epoch(master)}"
            yield Diagnosis(slave.name, "roles", Result.BAD, what, next_step)
    elif is_linked:
        what = f"it is of group {status.replica_group}, and follows {master.name} of group"
        next_step = (
            f"start it with the --master of {status.replica_group}, or on an empty directory"
        )
        yield Diagnosis(
            slave.name, "replica group", Result.BAD, f"{what} {own.replica_group}", next_step
        )


def _pair(master: Facts, slave: Facts, status: NodeStatus) -> Iterator[Diagnosis]:
    own = master.status
    assert own is not None
    link = status.master_link
    assert link is not None
    is_linked = any(row.address == link.local_address for row in own.slaves)
    yield from _pair_of_groups(master, own, slave, status, is_linked=is_linked)
    if link.state == "streaming":
        if not is_linked:
            what = f"it follows {link.address}, but {master.name} does not know it"
            next_step = f"to follow {master.name}: hastore slave --master {own.ha_address}"
            yield Diagnosis(slave.name, "both ways", Result.WARN, what, next_step)
        else:
            yield Diagnosis(slave.name, "both ways", Result.OK, f"{master.name} knows it")
    if own.mapped_file_size != status.mapped_file_size and own.mapped_files and status.mapped_files:
        size = format_exact_size(own.mapped_file_size)
        what = f"its log files are of {format_exact_size(status.mapped_file_size)}, its master's of"
        what += f" {size}: it stops at the end of the first"
        next_step = f"hastore slave --mapped-file-size {size} and an empty --data directory"
        yield Diagnosis(slave.name, "file size", Result.BAD, what, next_step)
    if own.flush_disk_type == "SYNC_FLUSH" and status.ack_level == "received":
        what = "its master waits for the disk, but it acknowledges what it has only received"
        next_step = "hastore slave --flush SYNC_FLUSH: then PUT_OK is on both disks"
        yield Diagnosis(slave.name, "flush", Result.WARN, what, next_step)
