"""Places in a log: its start, its confirm offset, the record at an offset or a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.record_reader import RecordReader
from hastore.errors import ConfigError
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.store.record.record_check import RecordKind
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.tools.log_directory import find_log, is_written
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.columnar.record_block import RecordBlock
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory, LogFile


def confirmed_offset(disk: Disk, store: str) -> int | None:
    """Return the confirm offset in hastore's checkpoint; None without one.

    A node writes it once a second.  It need not be the end of a record.  Raises DiskError.
    """
    log = find_log(disk, store)
    if log.root is None:
        return None
    checkpoint = StoreCheckpoint.open(disk, log.root)
    return (checkpoint.confirm_offset or None) if checkpoint.is_own else None


def min_offset(disk: Disk, store: str) -> int:
    """Return the log's first offset.  Raises NotAStoreError, DiskError."""
    return find_log(disk, store).min_offset


def walk_blocks(
    disk: Disk, log: LogDirectory, start: int, *, empty_at: int | None = None
) -> Iterator[tuple[RecordBlock | None, int]]:
    """Walk from ``start``, where a record begins, to the log's end.

    Yield records and where they end; or None and where reading resumes after damage, a filler or
    a file's end.  ``empty_at``: an earlier walk found only zeros from here on.  Raises DiskError.
    """
    at, confirmed = start, ConfirmedRecords(disk, log.root)
    for file in log.files:
        if file.next_offset <= at:
            continue
        at = max(at, file.physic_offset)
        with RecordReader(disk, file.path, file.size) as reader:
            while at < file.next_offset:
                block = reader.read_block(at - file.physic_offset, at, file.next_offset)
                if block.end:
                    at += block.end
                    yield block, at
                    continue
                if at == empty_at and not block.data[:BLANK_SIZE_MIN].strip(b"\0"):
                    return
                found = _next_readable(disk, log, file, at, confirmed)
                if found is None:
                    return
                at = found
                yield None, at


def _next_readable(
    disk: Disk, log: LogDirectory, file: LogFile, at: int, confirmed: ConfirmedRecords
) -> int | None:
    """Return where reading resumes after damage at ``at``; None if nothing more is written."""
    walker = LogWalker(disk, log, from_offset=at, at_record=True, confirmed=confirmed)
    for offset, check in walker.walk():
        if offset >= file.next_offset or check.kind is RecordKind.BLANK:
            return file.next_offset
        if check.kind is RecordKind.MESSAGE:
            return offset
    return None


def record_at(disk: Disk, store: str, wanted: int) -> int:
    """Return where the first record at or after ``wanted`` begins; the log's end counts as one.

    Raises ConfigError if ``wanted`` is outside the log, DiskError.
    """
    log = find_log(disk, store)
    if wanted < log.min_offset:
        raise ConfigError(
            f"{store} begins at offset {log.min_offset}: {wanted} has expired",
            hint="start at earliest, or at a later offset",
        )
    at = log.min_offset
    for file in log.files:
        if file.physic_offset <= wanted and is_written(disk, file):
            at = file.physic_offset
    if at >= wanted:
        return at
    for block, end in walk_blocks(disk, log, at):
        if end >= wanted and block is not None:
            ends = block.ends + block.physic_offset
            return int(ends[ends.searchsorted(wanted)])
        at = end
        if at >= wanted:
            return at
    raise ConfigError(
        f"{store} ends at offset {at}: there is no {wanted} yet",
        hint="start at latest, or at an earlier offset",
    )


def offset_at_time(disk: Disk, store: str, time_ms: int) -> int:
    """Return where the first record begins that was stored at or after a time (ms).

    Without one it is the log's end.  Raises NotAStoreError, DiskError.
    """
    log = find_log(disk, store)
    ranges = find_ranges(disk, store, Bounds(start_time_ms=time_ms))
    at = ranges[0].start_offset if ranges else log.min_offset
    for block, end in walk_blocks(disk, log, at):
        at = end
        if block is None:
            continue
        late = (block.head["store_ms"] >= time_ms).nonzero()[0]
        if late.size:
            return block.physic_offset + int(block.starts[late[0]])
    return at
