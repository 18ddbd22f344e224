"""The bytes of a node's log on its simulated disk: ranges, bit rot and damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.sim.cluster import DATA_DIR
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.record.record_check import RecordKind
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from random import Random

    from hastore.sim.disk import SimDisk

INTACT: Final = (RecordKind.MESSAGE, RecordKind.BLANK, RecordKind.EMPTY)


def log_range(
    disk: SimDisk, start: int, end: int, mapped_file_size: int, *, durable: bool
) -> bytes:
    """Return the bytes [start, end) of a log from the platter or the page cache, or fewer."""
    read = disk.durable_range if durable else disk.cached_range
    parts = []
    while start < end:
        base = start - start % mapped_file_size
        size = min(end, base + mapped_file_size) - start
        part = read(f"{DATA_DIR}/commitlog/{file_name(base)}", start - base, size)
        parts.append(part)
        if len(part) < size:
            break
        start += size
    return b"".join(parts)


def flip_durable_bit(disk: SimDisk, choices: Random) -> int | None:
    """Flip a bit in a record of a closed store; return its log offset, None without such a record.

    The record is in the last file that has any, which each start checks, and all of it is below the
    durable checkpoint.
    """
    records, end = _records(disk), flushed_offset(disk)
    if not records:
        return None
    base = records[-1].start - records[-1].start % _file_size(disk)
    return _flip_in(
        disk, [each for each in records if base <= each.start < each.stop <= end], choices
    )


def flip_bit_below_checkpoint(disk: SimDisk, choices: Random) -> int | None:
    """Flip a bit in any record of a closed store below its checkpoint; return its log offset.

    None without such a record.
    """
    end = flushed_offset(disk)
    return _flip_in(disk, [each for each in _records(disk) if each.stop <= end], choices)


def flip_bit_above_checkpoint(
    disk: SimDisk, choices: Random, below: int | None = None
) -> int | None:
    """Flip a bit in a record above the checkpoint of a closed store, before an intact one.

    Return its log offset, None without such a record.  ``below``: the record ends at or before
    this offset.
    """
    begin = flushed_offset(disk)
    found = [each for each in _records(disk)[:-1] if each.start >= begin]
    return _flip_in(disk, [e for e in found if below is None or e.stop <= below], choices)


def flushed_offset(disk: SimDisk) -> int:
    """Return the log offset below which the checkpoint of a closed store says all is on disk."""
    return StoreCheckpoint.open(disk, DATA_DIR).flushed_offset


def _records(disk: SimDisk) -> list[range]:
    if not disk.list_dir(f"{DATA_DIR}/commitlog"):
        return []
    return [
        range(offset, offset + check.size)
        for offset, check in LogWalker(disk, find_log(disk, DATA_DIR)).walk()
        if check.kind is RecordKind.MESSAGE
    ]


def _file_size(disk: SimDisk) -> int:
    directory = f"{DATA_DIR}/commitlog"
    return max(
        len(disk.inodes[f"{directory}/{entry.name}"].cache) for entry in disk.list_dir(directory)
    )


def _flip_in(disk: SimDisk, records: list[range], choices: Random) -> int | None:
    if not records:
        return None
    offset = choices.choice(choices.choice(records))
    base = offset - offset % _file_size(disk)
    path = f"{DATA_DIR}/commitlog/{file_name(base)}"
    _flip(disk, path, offset - base, 1 << choices.randrange(8))
    return offset


def _flip(disk: SimDisk, path: str, position: int, bit: int) -> None:
    inode = disk.inodes[path]
    inode.cache[position] ^= bit
    durable = bytearray(inode.durable)
    durable[position] ^= bit
    inode.durable = bytes(durable)
    if inode.clean is not None:
        inode.clean = inode.seen()


def first_damage(disk: SimDisk) -> int | None:
    """Return the offset of the first damaged record of a log, None if all are intact."""
    for offset, check in LogWalker(disk, find_log(disk, DATA_DIR)).walk():
        if check.kind not in INTACT:
            return offset
    return None
