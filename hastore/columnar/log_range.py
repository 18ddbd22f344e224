"""Ranges of logs: which bytes one task reads.

A range begins where a record begins: at a file's start, or where a walk from there found one.  It
never begins where a search found a magic, since a body may hold one.  Each byte of the log is in
one range, and a record belongs to the range in which it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.columnar.record_block import RecordBlock, walk
from hastore.columnar.record_reader import RecordReader
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogFile

    Array = NDArray[Any]

_FIRST_SIZE: Final = 16 * 1024  # read of each file for its first record; a larger one is read whole
_PIECES_A_SHARE: Final = 16  # large files are cut into this many pieces a group, then joined


@attrs.frozen(kw_only=True)
class LogRange:
    """The records of one file that begin in ``[start_offset, end_offset)``.

    ``missing_before``: bytes right before ``start_offset`` that no file holds.  Records that begin
    before ``keep_from`` are read only to find where they end, and left out.
    """

    store: str  # as the user named it
    path: str  # the file
    segment: str
    file_offset: int
    file_size: int
    start_offset: int
    end_offset: int
    missing_before: int = 0
    keep_from: int = 0
    written: int  # bytes that hold records, as far as known

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end_offset - self.start_offset


@attrs.frozen(kw_only=True)
class Bounds:
    """The wanted part of a log: offsets are half-open, times are in ms and both included."""

    start_offset: int | None = None
    end_offset: int | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None


def find_ranges(disk: Disk, store: str, bounds: Bounds) -> list[LogRange]:
    """Return one range for each file of a store that may hold records within ``bounds``.

    Raises NotAStoreError, DiskError.
    """
    log = find_log(disk, store)
    kept = _in_time(disk, log.files, bounds)
    start = 0 if bounds.start_offset is None else bounds.start_offset
    ranges = []
    before = None
    for file in log.files:
        end = file.next_offset
        if bounds.end_offset is not None:
            end = min(end, bounds.end_offset)
        missing = 0 if before is None else max(file.physic_offset - before.next_offset, 0)
        before = file
        # A gap is reported with the file after it, even if nothing else of that file is wanted.
        is_gap_wanted = bool(missing) and start <= file.physic_offset - missing < end
        is_wanted = end > max(start, file.physic_offset) or is_gap_wanted
        if file not in kept or not is_wanted or not file.size:
            continue
        end = max(end, file.physic_offset)
        ranges.append(
            LogRange(
                store=store,
                path=file.path,
                segment=file.name,
                file_offset=file.physic_offset,
                file_size=file.size,
                start_offset=file.physic_offset,
                end_offset=end,
                keep_from=start,
                written=end - file.physic_offset,
                missing_before=missing if file.physic_offset > start else 0,
            )
        )
    return ranges


def _in_time(disk: Disk, files: Sequence[LogFile], bounds: Bounds) -> set[LogFile]:
    """Leave out files whose store times are all outside: they never fall along a log."""
    if bounds.start_time_ms is None and bounds.end_time_ms is None:
        return set(files)
    first_ms = [_first_time_ms(disk, file) for file in files]
    kept = set()
    for index, file in enumerate(files):
        own = first_ms[index]
        later = next((ms for ms in first_ms[index + 1 :] if ms is not None), None)
        is_before = (
            bounds.start_time_ms is not None and later is not None and later < bounds.start_time_ms
        )
        is_after = bounds.end_time_ms is not None and own is not None and own > bounds.end_time_ms
        if not is_before and not is_after:
            kept.add(file)
    return kept


def _first_time_ms(disk: Disk, file: LogFile) -> int | None:
    """Return the store time of a file's first record; None if it is not intact."""
    with RecordReader(disk, file.path, file.size) as reader:
        chunk = reader.read(0, _FIRST_SIZE)
    starts, end = walk(chunk, 0, 1)
    block = RecordBlock(chunk, starts, end, file.physic_offset)
    if not block.count or not block.is_in_place()[0] or not block.body_fits()[0]:
        return None
    return int(block.head["store_ms"][0])


def group_ranges(disk: Disk, ranges: Sequence[LogRange], group_count: int) -> list[list[LogRange]]:
    """Divide ranges, in order, among at most ``group_count`` groups of similar size.

    A file larger than a group's share is walked and split.  Raises DiskError.
    """
    total = sum(log_range.size for log_range in ranges)
    share = -(-total // group_count)
    pieces: list[LogRange] = []
    for log_range in ranges:
        if log_range.size > share:
            pieces += split_range(disk, log_range, max(share // _PIECES_A_SHARE, 1))
        else:
            pieces.append(log_range)
    if not pieces:
        return []
    # By written bytes, because the last file of a log is seldom full.
    total = sum(piece.written for piece in pieces)
    groups: list[list[LogRange]] = [[] for _ in range(group_count)]
    before = 0
    for piece in pieces:
        middle = before + piece.written // 2
        group = groups[min(middle * group_count // max(total, 1), group_count - 1)]
        if group and _goes_on(group[-1], piece):
            group[-1] = attrs.evolve(
                group[-1],
                end_offset=piece.end_offset,
                written=group[-1].written + piece.written,
            )
        else:
            group.append(piece)
        before += piece.written
    return [group for group in groups if group]


def _goes_on(before: LogRange, piece: LogRange) -> bool:
    """Whether a piece directly follows in the same file, so that both are one range."""
    return (before.store, before.path, before.end_offset, 0) == (
        piece.store, piece.path, piece.start_offset, piece.missing_before
    )  # fmt: skip


def split_range(disk: Disk, log_range: LogRange, piece_size: int) -> list[LogRange]:
    """Split a range where records begin, every ``piece_size`` bytes or soon after.

    The walk ends at the first damage; everything from there on belongs to the last piece, and the
    decoder reports it.  Raises DiskError.
    """
    at = wanted = log_range.start_offset
    base, end = log_range.file_offset, log_range.end_offset
    cuts = [at]
    with RecordReader(disk, log_range.path, log_range.file_size) as reader:
        while at < end:
            block = reader.read_block(at - base, at, end)
            if not block.end:
                break
            first = wanted + piece_size - at
            for index in _every(block.starts, first, piece_size):
                wanted = at + int(block.starts[index])
                cuts.append(wanted)
            at += block.end
    ends = [*cuts[1:], end]
    return [
        attrs.evolve(
            log_range,
            start_offset=start,
            end_offset=stop,
            written=min(stop, at) - start,
            missing_before=log_range.missing_before if index == 0 else 0,
        )
        for index, (start, stop) in enumerate(zip(cuts, ends, strict=True))
    ]


def _every(starts: Array, first: int, step: int) -> Iterator[int]:
    """Yield indexes of starts at least ``step`` apart, from ``first`` on."""
    index = int(starts.searchsorted(first))
    while index < len(starts):
        yield index
        index = int(starts.searchsorted(starts[index] + step))
