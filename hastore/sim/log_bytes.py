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
    directory = f"{DATA_DIR}/commitlog"
    entries = disk.list_dir(directory)
    if not entries:
        return None
    end = StoreCheckpoint.open(disk, DATA_DIR).flushed_offset
    records = [
        range(offset, offset + check.size)
        for offset, check in LogWalker(disk, find_log(disk, DATA_DIR)).walk()
        if check.kind is RecordKind.MESSAGE
    ]
    if not records:
        return None
    size = max(len(disk.inodes[f"{directory}/{entry.name}"].cache) for entry in entries)
    base = records[-1].start - records[-1].start % size
    durable = [record for record in records if record.start >= base and record.stop <= end]
    if not durable:
        return None
    offset = choices.choice(choices.choice(durable))
    _flip(disk, f"{directory}/{file_name(base)}", offset - base, 1 << choices.randrange(8))
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
