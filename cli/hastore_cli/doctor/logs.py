"""Compares logs by checksums of their bytes, without copying them.

::

    master  ├──────────────────────────────────────────────────────┤
    slave         ├───────────────────────────────────────────┤
    samples       ├┤       ├┤       ├┤       ├┤       ├───────┤   the end, the start, and between

Logs of one master have equal bytes at equal offsets, and a log that has diverged differs from there
on: so the end of the common range says most.  A difference is narrowed down to its first byte.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

from hastore.broker.observe.node_status import NodeStatus
from hastore.errors import HastoreError
from hastore.quantities import format_count, format_size
from hastore.store.tools.log_diff import read_side
from hastore.store.tools.log_directory import read_file
from hastore_cli.doctor.rules import Diagnosis, Result
from hastore_cli.log.options import open_log
from hastore_cli.node.client import connect_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.client.admin import AdminClient
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory
    from hastore_cli.doctor.facts import Facts

STEP_SIZE: Final = 4 * 1024 * 1024  # the most that a node reads for one request
_TAIL_SIZE: Final = 1024 * 1024
_SAMPLE_SIZE: Final = 64 * 1024
_SAMPLES: Final = 14


class LogSource(Protocol):
    """A log that returns checksums of its bytes."""

    begin: int
    end: int

    async def crc32(self, begin: int, end: int) -> int:
        """Return the CRC32 of at most ``STEP_SIZE`` bytes.  Raises HastoreError."""


@final
@attrs.define(eq=False)
class NodeLog:
    """The log of a running node."""

    admin: AdminClient
    begin: int
    end: int

    async def crc32(self, begin: int, end: int) -> int:
        """Ask the node for the checksum."""
        return await self.admin.log_digest(begin, end)

    async def renew_end(self) -> None:
        """Update ``end`` to the node's current end."""
        status = (await self.admin.ha_status()).get("hastore")
        if isinstance(status, dict):
            self.end = max(self.end, NodeStatus.from_dict(status).max_offset)


@final
class DirectoryLog:
    """The log in a directory on which no node runs."""

    def __init__(self, disk: Disk, log: LogDirectory) -> None:
        side = read_side(disk, log)
        self.begin, self.end = side.min_offset, side.max_offset
        self._disk = disk
        self._log = log

    async def crc32(self, begin: int, end: int) -> int:
        """Compute the checksum from the files."""
        crc = 0
        for file in self._log.files:
            start, stop = max(begin, file.physic_offset), min(end, file.next_offset)
            if start >= stop:
                continue
            data = read_file(self._disk, file, start - file.physic_offset, stop - start)
            crc = zlib.crc32(data, crc)
        return crc


@attrs.frozen(kw_only=True)
class Comparison:
    """A result; ``first_difference`` None: no difference in the ``compared`` bytes."""

    begin: int
    end: int
    compared: int
    first_difference: int | None


async def compare(one: LogSource, other: LogSource, *, is_full: bool) -> Comparison:
    """Compare the range that both hold; an empty range is equal.  Raises HastoreError."""
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    compared = 0
    difference: int | None = None
    for start, stop in _ranges(begin, end, is_full=is_full):
        if await one.crc32(start, stop) != await other.crc32(start, stop):
            found = await _first_difference(one, other, start, stop)
            difference = found if difference is None else min(difference, found)
            if is_full:
                break
        compared += stop - start
    return Comparison(begin=begin, end=end, compared=compared, first_difference=difference)


def _ranges(begin: int, end: int, *, is_full: bool) -> Iterator[tuple[int, int]]:
    """Yield the ranges to compare: all in steps, or the end, the start and samples between."""
    if is_full or end - begin <= _TAIL_SIZE + _SAMPLE_SIZE * (_SAMPLES + 1):
        for start in range(begin, end, STEP_SIZE):
            yield start, min(start + STEP_SIZE, end)
        return
    yield end - _TAIL_SIZE, end
    between = end - _TAIL_SIZE - _SAMPLE_SIZE - begin
    for number in range(_SAMPLES):
        start = begin + between * number // _SAMPLES
        yield start, start + _SAMPLE_SIZE


async def _first_difference(one: LogSource, other: LogSource, begin: int, end: int) -> int:
    """Return the first differing byte of a range, by halving it."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if await one.crc32(begin, middle) != await other.crc32(begin, middle):
            end = middle
        else:
            begin = middle
    return begin


# -- the logs of nodes ---------------------------------------------------------------------------


CHECK = "same log"


async def compare_logs(nodes: Sequence[Facts], *, is_full: bool) -> list[Diagnosis]:
    """Compare each log with the master's or, without a master, with the longest one."""
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
            await one.renew_end()  # other was asked later: one may have grown meanwhile
    except HastoreError as error:
        what = f"with {base}: not compared: {error}"
        return Diagnosis(name, CHECK, Result.UNKNOWN, what, "try it again")
    if found.first_difference is not None:
        what = f"differs from the log of {base} at {format_count(found.first_difference)}"
        next_step = "hastore log diff DIR1 DIR2 names the message; to follow, a slave needs an"
        return Diagnosis(name, CHECK, Result.BAD, what, f"{next_step} empty directory")
    if other.end > one.end and base != name:
        ahead = format_size(other.end - one.end)
        what = f"{ahead} longer than the log of {base}, and equal up to its end"
        next_step = "a slave must not be ahead: which log is right? hastore log diff DIR1 DIR2"
        return Diagnosis(name, CHECK, Result.BAD, what, next_step)
    if found.begin >= found.end:
        if one.end == one.begin or other.end == other.begin:
            return Diagnosis(name, CHECK, Result.OK, f"nothing to compare with {base} yet")
        what = f"has no offset in common with the log of {base}"
        return Diagnosis(name, CHECK, Result.BAD, what, "start the slave on an empty directory")
    size = format_size(found.compared)
    whole = found.compared == found.end - found.begin
    how = "all" if whole else f"{size}: the end, the start and samples"
    what = f"equal to {base} up to {format_count(found.end)} ({how})"
    return Diagnosis(name, CHECK, Result.OK, what)
