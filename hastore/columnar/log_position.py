"""Places in a log that may be growing: where a record begins, how far it may be read.

| record | record | record | reco        what is confirmed ends at a record
                  ^ end_of(confirmed)    what is not known to be confirmed: at the last sound one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.record_block import RecordBlock, walk
from hastore.columnar.record_reader import RecordReader
from hastore.errors import ConfigError
from hastore.store.log_directory import find_log
from hastore.store.log_walker import LogWalker
from hastore.store.record_check import RecordKind
from hastore.store.store_checkpoint import StoreCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk
    from hastore.store.log_directory import LogDirectory, LogFile


def confirmed_offset(disk: Disk, store: str) -> int | None:
    """Give up to where hastore's checkpoint says that the log is confirmed; None without one.

    A node writes it once a second.  Raises DiskError.
    """
    log = find_log(disk, store)
    if log.root is None:
        return None
    checkpoint = StoreCheckpoint.open(disk, log.root)
    return (checkpoint.confirm_offset or None) if checkpoint.is_own else None


def min_offset(disk: Disk, store: str) -> int:
    """Give the first offset that is there.  Raises NotAStoreError, DiskError."""
    return find_log(disk, store).min_offset


def end_of(disk: Disk, store: str, start: int, *, size_max: int | None = None) -> int:
    """Give how far a reader that stands at ``start``, where a record begins, may read.

    That is where a record begins, or its file ends: behind what is confirmed nothing, and where no
    checkpoint tells, up to the last record that is sound.  With ``size_max`` at most so many bytes,
    but at least one record.  Damage with sound records behind it is passed over.  Raises DiskError.
    """
    log = find_log(disk, store)
    limit = confirmed_offset(disk, store)
    end = start
    for boundary in _boundaries(disk, log, start):
        if limit is not None and boundary > limit:
            break
        if size_max is not None and boundary - start > size_max and end > start:
            break
        end = boundary
        if size_max is not None and end - start >= size_max:
            break
    return end


def _boundaries(disk: Disk, log: LogDirectory, start: int) -> Iterator[int]:
    """Give the ends of records, one for each piece of a chunk, in order."""
    at = start
    for file in log.files:
        if file.next_offset <= at:
            continue
        at = max(at, file.physic_offset)
        with RecordReader(disk, file.path, file.size) as reader:
            while at < file.next_offset:
                data = reader.read(at - file.physic_offset)
                starts, walked = walk(data, 0, len(data))
                block = RecordBlock(data, starts, walked, at)
                if block.end:
                    for end in block.ends.tolist():
                        yield at + end
                    at += block.end
                    continue
                found = _behind(disk, log, file, at)
                if found is None:
                    return
                at = found
                yield at


def _behind(disk: Disk, log: LogDirectory, file: LogFile, at: int) -> int | None:
    """Give where reading goes on behind what is no record; None where nothing more is written."""
    is_damage = False
    for offset, check in LogWalker(disk, log, from_offset=at, at_record=True).walk():
        if offset >= file.next_offset:
            return file.next_offset
        if check.kind is RecordKind.BLANK:
            return file.next_offset
        if check.kind is RecordKind.MESSAGE and is_damage:
            return offset
        is_damage = True
    return None


def record_at(disk: Disk, store: str, wanted: int) -> int:
    """Give where the first record at ``wanted`` or behind it begins, or the log's end.

    Raises ConfigError where ``wanted`` lies before the log, DiskError.
    """
    log = find_log(disk, store)
    if wanted < log.min_offset:
        raise ConfigError(
            f"{store} begins at offset {log.min_offset}: {wanted} has expired",
            hint="start at earliest, or at a later offset",
        )
    for file in log.files:
        if file.physic_offset <= wanted < file.next_offset:
            at = file.physic_offset
            if at >= wanted:
                return at
            for boundary in _boundaries(disk, log, at):
                at = boundary
                if at >= wanted:
                    return at
            return at
    return end_of(disk, store, log.files[-1].physic_offset) if log.files else 0


def offset_at_time(disk: Disk, store: str, time_ms: int) -> int:
    """Give where the first record begins that was stored at a time (ms) or later, or the log's end.

    Raises NotAStoreError, DiskError.
    """
    log = find_log(disk, store)
    ranges = find_ranges(disk, store, Bounds(start_time_ms=time_ms))
    at = log.min_offset
    for log_range in ranges:
        at = log_range.start_offset
        with RecordReader(disk, log_range.path, log_range.file_size) as reader:
            while at < log_range.end_offset:
                data = reader.read(at - log_range.file_offset)
                starts, walked = walk(data, 0, len(data))
                block = RecordBlock(data, starts, walked, at)
                late = (block.head["store_ms"] >= time_ms).nonzero()[0]
                if late.size:
                    return at + int(block.starts[late[0]])
                if not block.end:
                    break
                at += block.end
    return end_of(disk, store, at)
