"""A master's log and a replica's: the offsets that each holds, before any record is read.

    master    |=====|=====|=====|===-------|        held: files, up to the end of the last record
    replica         |=====|     |=-----|
              └ missing   └─────┘ └ missing: the replica is behind
                in the replica

A walk over the last written file finds the end.  Bytes written after it while the audit runs are
not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hastore.store.tools.log_diff import read_side
from hastore.store.tools.log_directory import find_log, read_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.env.interface import Disk
    from hastore.store.tools.log_diff import LogSide
    from hastore.store.tools.log_directory import LogDirectory

_CHUNK_SIZE: Final = 1024 * 1024


class OffsetSpan(NamedTuple):
    """Offsets ``[start, end)``."""

    start: int
    end: int


@attrs.frozen(kw_only=True)
class Side:
    """One log, and the offsets that its files have, up to its ``max_offset``."""

    store: str  # as the user named it
    log: LogSide
    held: tuple[OffsetSpan, ...]


@attrs.frozen(kw_only=True)
class Pair:
    """A master's log and a replica's."""

    master: Side
    replica: Side

    @property
    def common(self) -> OffsetSpan:
        """The range where both may have bytes; may be empty."""
        ours, theirs = self.master.log, self.replica.log
        start = max(ours.min_offset, theirs.min_offset)
        return OffsetSpan(start, max(start, min(ours.max_offset, theirs.max_offset)))

    @property
    def missing_in_replica(self) -> tuple[OffsetSpan, ...]:
        """The ranges that only the master's files have."""
        return subtract(self.master.held, self.replica.held)

    @property
    def missing_in_master(self) -> tuple[OffsetSpan, ...]:
        """The ranges that only the replica's files have."""
        return subtract(self.replica.held, self.master.held)

    @property
    def first_hole(self) -> int | None:
        """The first offset in the common range that only one of them has a file for."""
        common = self.common
        spans = (*self.missing_in_replica, *self.missing_in_master)
        return min((s.start for s in spans if common.start <= s.start < common.end), default=None)


def inspect_side(disk: Disk, store: str) -> Side:
    """Return what a log holds.  Raises NotAStoreError, DiskError."""
    log = find_log(disk, store)
    side = read_side(disk, log)
    return Side(store=store, log=side, held=_held(log, side))


def _held(log: LogDirectory, side: LogSide) -> tuple[OffsetSpan, ...]:
    spans = (
        OffsetSpan(file.physic_offset, min(file.next_offset, side.max_offset)) for file in log.files
    )
    return merged(span for span in spans if span.start < span.end)


def merged(spans: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    """Return the spans sorted, those that touch or overlap merged."""
    found: list[OffsetSpan] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = OffsetSpan(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


def subtract(left: Iterable[OffsetSpan], right: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    """Return the parts of ``left`` that are not in ``right``; both must be merged."""
    found: list[OffsetSpan] = []
    others = list(right)
    for span in left:
        start = span.start
        for other in others:
            if other.end <= start or other.start >= span.end:
                continue
            if other.start > start:
                found.append(OffsetSpan(start, other.start))
            start = max(start, other.end)
        if start < span.end:
            found.append(OffsetSpan(start, span.end))
    return tuple(found)


def first_unlike_byte(
    disk: Disk, left: LogDirectory, right: LogDirectory, start: int, end: int
) -> int | None:
    """Return the first offset in ``[start, end)`` where the bytes of two logs differ.

    None if they do not differ before one of them ends; see ``first_absent_byte``.

    Raises DiskError.
    """
    while start < end:
        size = min(_CHUNK_SIZE, end - start)
        ours, theirs = (read_at(disk, log, start, size) for log in (left, right))
        size = min(len(ours), len(theirs))
        if not size:
            return None
        if ours[:size] != theirs[:size]:
            pairs = enumerate(zip(ours, theirs, strict=False))
            return start + next(at for at, (a, b) in pairs if a != b)
        start += size
    return None


def first_absent_byte(log: LogDirectory, start: int, end: int) -> int | None:
    """Return the first offset in ``[start, end)`` that has no byte in the log (short file)."""
    for file in log.files:
        if file.physic_offset <= start < file.next_offset:
            start = file.next_offset
    return start if start < end else None
