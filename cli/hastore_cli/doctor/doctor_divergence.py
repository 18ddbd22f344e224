"""The doctor's look at the logs themselves: opened where they are, compared with one of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hastore.errors import HastoreError
from hastore.quantities import format_count, format_size
from hastore_cli.doctor.doctor_logs import DirectoryLog, NodeLog, compare
from hastore_cli.doctor.doctor_rules import Diagnosis, Result
from hastore_cli.log.log_options import open_log
from hastore_cli.node.node_client import connect_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_cli.doctor.doctor_facts import Facts
    from hastore_cli.doctor.doctor_logs import LogSource

CHECK = "same log"


async def compare_logs(nodes: Sequence[Facts], *, is_full: bool) -> list[Diagnosis]:
    """Compare each log with the master's, or, without a master, with the longest one."""
    findings: list[Diagnosis] = []
    async with contextlib.AsyncExitStack() as stack:
        logs: dict[str, LogSource] = {}
        for facts in nodes:
            try:
                log = await _open(facts, stack)
            except HastoreError as error:
                findings.append(
                    Diagnosis(facts.name, CHECK, Result.UNKNOWN, str(error), error.hint)
                )
                continue
            if log is not None:
                logs[facts.name] = log
        masters = [facts.name for facts in nodes if facts.is_master and facts.name in logs]
        base = masters[0] if masters else max(logs, key=lambda name: logs[name].end, default=None)
        findings += [
            await _compare(base, name, logs, is_full=is_full)
            for name in logs
            if base is not None and name != base
        ]
        if len(logs) == 1 and not findings:
            (name,) = logs
            what = "nothing to compare it with"
            next_step = f"name a master and its slaves: hastore doctor {name} SLAVE..."
            findings.append(Diagnosis(name, CHECK, Result.UNKNOWN, what, next_step))
    return findings


async def _open(facts: Facts, stack: contextlib.AsyncExitStack) -> LogSource | None:
    if facts.status is not None and facts.address is not None:
        node = await stack.enter_async_context(connect_node(facts.address))
        return NodeLog(node.admin, facts.status.min_offset, facts.status.max_offset)
    if facts.directory is not None:
        return DirectoryLog(*open_log(facts.directory))
    return None


async def _compare(base: str, name: str, logs: dict[str, LogSource], *, is_full: bool) -> Diagnosis:
    one, other = logs[base], logs[name]
    try:
        found = await compare(one, other, is_full=is_full)
        if other.end > one.end and isinstance(one, NodeLog):
            await one.renew_end()  # it may have grown since it was asked: other was asked later
    except HastoreError as error:
        what = f"with {base}: not compared: {error}"
        return Diagnosis(name, CHECK, Result.UNKNOWN, what, "try it again")
    if found.first_difference is not None:
        what = f"not the log of {base}: other bytes at {format_count(found.first_difference)}"
        next_step = "hastore log diff DIR1 DIR2 names the message; a slave of another log needs an"
        return Diagnosis(name, CHECK, Result.BAD, what, f"{next_step} empty directory")
    if other.end > one.end and base != name:
        ahead = format_size(other.end - one.end)
        what = f"{ahead} longer than the log of {base}, and alike before that"
        next_step = "a slave must not be ahead: which log is right? hastore log diff DIR1 DIR2"
        return Diagnosis(name, CHECK, Result.BAD, what, next_step)
    if found.begin >= found.end:
        if one.end == one.begin or other.end == other.begin:
            return Diagnosis(name, CHECK, Result.OK, f"nothing to compare with {base} yet")
        what = f"no byte is in this log and in that of {base}"
        return Diagnosis(name, CHECK, Result.BAD, what, "give the slave an empty directory")
    size = format_size(found.compared)
    whole = found.compared == found.end - found.begin
    how = "all" if whole else f"{size}: the end, the start and samples"
    what = f"as {base} up to {format_count(found.end)} ({how})"
    return Diagnosis(name, CHECK, Result.OK, what)
