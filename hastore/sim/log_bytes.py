"""The bytes of a node's log as its disk has them, on the platter or in the page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.sim.cluster import DATA_DIR

if TYPE_CHECKING:
    from hastore.sim.disk import SimDisk


def log_range(
    disk: SimDisk, start: int, end: int, mapped_file_size: int, *, durable: bool
) -> bytes:
    """Return the bytes [start, end) of a log from the platter or the page cache, or fewer."""
    read = disk.durable_range if durable else disk.cached_range
    parts = []
    while start < end:
        base = start - start % mapped_file_size
        size = min(end, base + mapped_file_size) - start
        part = read(f"{DATA_DIR}/commitlog/{base:020d}", start - base, size)
        parts.append(part)
        if len(part) < size:
            break
        start += size
    return b"".join(parts)
