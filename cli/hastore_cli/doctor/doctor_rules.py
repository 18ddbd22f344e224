"""What the facts about nodes mean: one finding for each check, with the next step where one is due.

Pure.  What cannot be known from here is ``unknown``, never ``ok``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from hastore.quantities import format_duration, format_exact_size, format_size
from hastore_cli.node.node_file import how_to_start
from hastore_cli.status.late_slaves import Lateness, lateness, name_of, nobody_in_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow
    from hastore_cli.doctor.doctor_facts import Facts

_CLOCK_WARN_S: Final = 0.5
_CLOCK_BAD_S: Final = 5.0
_REFUSED_FOR_S: Final = 600.0
_BEHIND_WARN: Final = 16 << 20
_DISK_MARGIN: Final = 0.1


class Result(enum.Enum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


@attrs.frozen
class Diagnosis:
    """One check of one node."""

    node: str
    check: str
    result: Result
    what: str
    next_step: str | None = None


def judge(nodes: Sequence[Facts]) -> list[Diagnosis]:
    """Judge all nodes by themselves, then what is between them."""
    masters = (facts.status for facts in nodes if facts.is_master)
    master = next((status.ha_address for status in masters if status is not None), None)
    findings = [finding for facts in nodes for finding in _judge_node(facts, master)]
    findings += _clocks(nodes)
    findings += _pairs(nodes)
    return findings


def _judge_node(facts: Facts, master: str | None) -> Iterator[Diagnosis]:
    status = facts.status
    if status is None:
        yield from _silent(facts, master)
        return
    name = facts.name
    took = "" if facts.took_s is None else f" in {format_duration(facts.took_s)}"
    yield Diagnosis(name, "client port", Result.OK, f"answers{took}: {status.role} {status.name}")
    if status.master_link is None:
        yield _puts(name, status)
        yield _ha_port(facts, status)
        yield from _slaves(name, status)
    else:
        yield _link(name, status.master_link)
        yield _own_gap(name, status.master_link)
    yield _disk(name, status)
    yield _dispatch(name, status)
    yield from _refused(name, status)


def _silent(facts: Facts, master: str | None) -> Iterator[Diagnosis]:
    """``master``: the HA address of one that runs, so that nobody is sent to start a second."""
    error = facts.error
    assert error is not None
    hint = error.hint or "see whether the node runs, and its log"
    if facts.directory is not None and facts.running_pid is None:
        hint = how_to_start(facts.directory, facts.role_was, master)
        if not facts.is_store:
            hint = "no store is there either: name the --data directory of a node"
    yield Diagnosis(facts.name, "client port", Result.BAD, str(error), hint)
    if facts.running_pid is not None:
        what = f"process {facts.running_pid} runs, and does not answer"
        next_step = "if that is the node: is it stopped (SIGCONT), or waiting for a disk?"
        yield Diagnosis(facts.name, "process", Result.BAD, what, next_step)
    elif facts.is_store and facts.has_abort_file is not None and facts.directory is not None:
        if facts.has_abort_file:
            what = "it was not stopped cleanly: the next start checks the log's end"
            next_step = f"start it; or look first: hastore log verify {facts.directory}"
            yield Diagnosis(facts.name, "last stop", Result.WARN, what, next_step)
        else:
            yield Diagnosis(facts.name, "last stop", Result.OK, "clean")


# -- a master ------------------------------------------------------------------------------------


def _puts(name: str, status: NodeStatus) -> Diagnosis:
    if status.puts_refused_because is not None:
        what = f"puts are refused: {status.puts_refused_because}"
        next_step = "make room on its disk, or lower [store] keep; then it takes puts again"
        if status.state != "serving":
            next_step = "see its log, and start it again"
        return Diagnosis(name, "puts", Result.BAD, what, next_step)
    return Diagnosis(name, "puts", Result.OK, "taken")


def _ha_port(facts: Facts, status: NodeStatus) -> Diagnosis:
    check = "HA port"
    if not facts.ha_was_tried:
        what = f"{status.ha_address} is for its own machine only, so it was not tried from here"
        next_step = "hastore master --ha-listen HOST:PORT, an address that slaves can reach"
        return Diagnosis(facts.name, check, Result.WARN, what, next_step)
    if facts.ha_error is not None:
        next_step = "a firewall, or another network: slaves need this port, and it alone"
        return Diagnosis(facts.name, check, Result.BAD, facts.ha_error, next_step)
    return Diagnosis(facts.name, check, Result.OK, f"{status.ha_address} can be reached from here")


def _slaves(name: str, status: NodeStatus) -> Iterator[Diagnosis]:
    start_one = f"hastore slave --master {status.ha_address} --data DIR"
    if status.slave_unavailable_because is not None:
        needs = bool(status.acks_needed)
        result = Result.BAD if needs else Result.WARN
        effect = "puts are SLAVE_NOT_AVAILABLE" if needs else "nothing is replicated"
        what = f"{effect}: {status.slave_unavailable_because}"
        catch_up = "it catches up: hastore status -w; a gap that stays: its row here"
        yield Diagnosis(name, "slaves", result, what, catch_up if status.followers else start_one)
    elif (late := nobody_in_time(status)) is not None:
        next_step = "what is with the slave: its row here; what was decided: hastore explain"
        yield Diagnosis(name, "slaves", Result.BAD, late, next_step)
    elif status.followers:
        number = len(status.current_followers)
        yield Diagnosis(name, "slaves", Result.OK, f"{number} connected")
    if status.waiting_for_slave:
        what = f"{status.waiting_for_slave} puts wait for a slave"
        yield Diagnosis(name, "waiting", Result.OK, what)
    for slave in status.slaves:
        yield _gap(name, slave, status)
        if slave.note is not None:
            what = f"{name_of(slave)}: {slave.note}"
            next_step = "compare the two: hastore log diff MASTER_DIR SLAVE_DIR"
            yield Diagnosis(name, "start", Result.WARN, what, next_step)


def _gap(name: str, slave: SlaveRow, status: NodeStatus) -> Diagnosis:
    who = name_of(slave)
    if slave.lag_bytes is None:
        what = f"{who} has not reported where it is"
        next_step = "a peer that never does is no slave: see who it is"
        return Diagnosis(name, "gap", Result.UNKNOWN, what, next_step)
    least = "at least " if slave.lag_s_is_least else ""
    late = "" if slave.lag_s is None else f", {least}{format_duration(slave.lag_s)}"
    what = f"{who} is {format_size(slave.lag_bytes)} behind{late if slave.lag_bytes else ''}"
    if slave.eta_s is not None:
        what += f", caught up in about {format_duration(slave.eta_s)}"
    limit, how = status.slave_lag_max, lateness(slave, status)
    next_step = "hastore status -w: is the rate enough?"
    if limit is not None and slave.lag_bytes >= limit:
        what += f"; more than {format_size(limit)} do not count"
        return Diagnosis(name, "gap", Result.BAD, what, next_step)
    if how is not None:
        waits = format_duration(status.slave_timeout_s or 0.0)
        what += f"; a put waits {waits}"
        if how is Lateness.SILENT:
            what += f", and it has reported nothing for {format_duration(slave.last_report_age_s)}"
            next_step = "see whether it is stopped, cut off, or waits for its disk"
        result = Result.WARN if nobody_in_time(status) is None else Result.BAD
        return Diagnosis(name, "gap", result, what, next_step)
    if slave.lag_bytes >= _BEHIND_WARN:
        return Diagnosis(name, "gap", Result.WARN, what, next_step)
    return Diagnosis(name, "gap", Result.OK, what)


# -- a slave -------------------------------------------------------------------------------------


def _link(name: str, link: MasterLink) -> Diagnosis:
    check = "link"
    if link.state == "connecting" and link.local_address is not None:
        what = f"{link.address} is connected, and has not been heard yet"
        next_step = "look again: a RocketMQ master says its first word after a little more than 5 s"
        return Diagnosis(name, check, Result.BAD, what, next_step)
    if link.state != "streaming":
        why = f": {link.reason}" if link.reason else ""
        what = f"to {link.address} is {link.state}{why}"
        next_step = link.hint or "see whether its master runs, and whether the HA port is open"
        return Diagnosis(name, check, Result.BAD, what, next_step)
    if link.is_silent and link.last_read_age_s is not None:
        silent = format_duration(link.last_read_age_s)
        what = f"{link.address} has been silent for {silent}"
        return Diagnosis(
            name, check, Result.BAD, what, "see whether the master is stopped or cut off"
        )
    if link.reason is not None:  # it follows, and yet there is something to say
        return Diagnosis(name, check, Result.BAD, link.reason, link.hint)
    return Diagnosis(name, check, Result.OK, f"{link.address} is heard, and answered")


def _own_gap(name: str, link: MasterLink) -> Diagnosis:
    if link.lag_bytes is None:
        what = "how far it is behind is not known"
        return Diagnosis(name, "gap", Result.UNKNOWN, what, "ask its master: hastore status MASTER")
    about = "about " if link.lag_is_estimate else ""
    what = f"{about}{format_size(link.lag_bytes)} behind, as far as it knows"
    if link.lag_bytes >= _BEHIND_WARN:
        return Diagnosis(name, "gap", Result.WARN, what, "ask its master: hastore status MASTER -w")
    return Diagnosis(name, "gap", Result.OK, what)


# -- any node ------------------------------------------------------------------------------------


def _disk(name: str, status: NodeStatus) -> Diagnosis:
    used, full = status.disk_used_ratio, status.disk_full_ratio
    if used is None or status.disk_free_bytes is None:
        what = "how full it is cannot be read"
        return Diagnosis(name, "disk", Result.UNKNOWN, what, f"df {status.data_dir}")
    what = f"{used * 100:.0f} % full, {format_size(status.disk_free_bytes)} free"
    if full is not None and used >= full:
        what += f"; from {full * 100:.0f} % on puts are refused"
        return Diagnosis(name, "disk", Result.BAD, what, "make room, or lower [store] keep")
    if (full is not None and used >= full - _DISK_MARGIN) or (
        status.disk_free_bytes < 2 * status.mapped_file_size
    ):
        file_size = format_size(status.mapped_file_size)
        what += f"; the next log file needs {file_size}"
        return Diagnosis(name, "disk", Result.WARN, what, "make room, or lower [store] keep")
    return Diagnosis(name, "disk", Result.OK, what)


def _dispatch(name: str, status: NodeStatus) -> Diagnosis:
    behind = status.dispatch_behind_bytes
    if status.dispatch_fault is not None:
        what = f"consumers are {format_size(behind)} behind: {status.dispatch_fault}"
        next_step = f"hastore log verify {status.data_dir}"
        return Diagnosis(name, "consumers", Result.BAD, what, next_step)
    what = "see all that is confirmed" if not behind else f"are {format_size(behind)} behind"
    result = Result.WARN if behind >= _BEHIND_WARN else Result.OK
    look = "hastore status -w: does it shrink?" if result is Result.WARN else None
    return Diagnosis(name, "consumers", result, what, look)


def _refused(name: str, status: NodeStatus) -> Iterator[Diagnosis]:
    for refusal in status.refused[-3:]:
        if refusal.age_s <= _REFUSED_FOR_S:
            ago = format_duration(refusal.age_s)
            what = f"{refusal.address} {ago} ago: {refusal.reason}"
            yield Diagnosis(name, "refused", Result.WARN, what, refusal.hint)


# -- between nodes -------------------------------------------------------------------------------


def _clocks(nodes: Sequence[Facts]) -> Iterator[Diagnosis]:
    """Each clock against this machine's; two that differ from it alike agree with each other."""
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
                what = f"it is the node that {seen[who]} names, too"
                next_step = "name each node once; two nodes need two --data directories"
                yield Diagnosis(facts.name, "twice", Result.WARN, what, next_step)
            seen.setdefault(who, facts.name)
    masters = [facts for facts in nodes if facts.is_master]
    for facts in masters[1:]:
        what = f"{facts.name} and {masters[0].name} are both masters: puts to either are its own"
        next_step = "if they are to be one log, stop one and start it again as a slave"
        yield Diagnosis(facts.name, "roles", Result.WARN, what, next_step)
    for facts in nodes:
        status = facts.status
        if status is None or status.master_link is None:
            continue
        for master in masters:
            yield from _pair(master, facts, status)


def _pair(master: Facts, slave: Facts, status: NodeStatus) -> Iterator[Diagnosis]:
    own = master.status
    assert own is not None
    link = status.master_link
    assert link is not None
    if link.state == "streaming":
        if all(row.address != link.local_address for row in own.slaves):
            what = f"it follows {link.address}, and {master.name} does not know it"
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
        what = "its master waits for the disk, and it acknowledges what it has only received"
        next_step = "hastore slave --flush SYNC_FLUSH: then PUT_OK is on both disks"
        yield Diagnosis(slave.name, "flush", Result.WARN, what, next_step)
