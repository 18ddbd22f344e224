"""A bit of a log that was on the platter, and is another one now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.sim.cluster import DATA_DIR
from hastore.store.store_checkpoint import StoreCheckpoint

if TYPE_CHECKING:
    from random import Random

    from hastore.sim.disk import SimDisk

_FILES_BACK = 2  # a start looks at the last files only
_RECORD_SIZE_MAX = 4_096  # one that was flushed in part is no damage


def flip_durable_bit(disk: SimDisk, choices: Random) -> int | None:
    """Flip a bit below the durable checkpoint of a store that is closed; gives its log offset."""
    directory = f"{DATA_DIR}/commitlog"
    bases = [int(entry.name) for entry in disk.list_dir(directory)]
    end = StoreCheckpoint.open(disk, DATA_DIR).flushed_offset - _RECORD_SIZE_MAX
    if not bases or end <= bases[0]:
        return None
    size = len(disk.inodes[f"{directory}/{bases[0]:020d}"].cache)
    offset = choices.randrange(max(bases[0], end - _FILES_BACK * size), end)
    inode = disk.inodes.get(f"{directory}/{offset - offset % size:020d}")
    if inode is None:
        return None
    position, bit = offset % size, 1 << choices.randrange(8)
    inode.cache[position] ^= bit
    durable = bytearray(inode.durable)
    durable[position] ^= bit
    inode.durable = bytes(durable)
    if inode.clean is not None:
        inode.clean = inode.seen()
    return offset
