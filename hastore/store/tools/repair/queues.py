"""Takes the units of lost messages out of the consume queues, so that no consumer gets filler.

::

    | unit | unit of a lost record | unit |     becomes  | unit | blank (0, 0x7FFFFFFF, 0) | unit |
    | unit | unit of a lost record | zeros      becomes  | unit | zeros                           |

RocketMQ itself writes blanks before a queue's first unit, and its readers skip them.  At a queue's
end they would do harm: RocketMQ takes offset plus size of the last unit, 2 GiB, for the end of the
dispatched log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import BLANK, BLANK_SIZE, UNIT, UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.recovery.trim import Range


def blank_units(disk: Disk, data_dir: str, lost: Sequence[Range]) -> int:
    """Take out the units of all records that begin in ``lost``; return their number.

    Durable when it returns.  Raises DiskError; call it again to continue.
    """
    root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
    found = find_queues(disk, root, UNIT_SIZE)
    count = 0
    for queue in found.queues:
        path = f"{root}/{queue.topic}/{queue.queue_id}"
        is_last = True
        for file in reversed(queue.files):
            disk_file = disk.open_sparse_file(f"{path}/{file.start:020d}", found.file_size)
            try:
                hits, holds_units = _blank_file(disk_file, lost, is_last=is_last)
                first_offset, first_size, _ = UNIT.unpack(disk_file.pread(UNIT_SIZE, 0))
            finally:
                disk_file.close()
            count += hits
            is_last = is_last and not holds_units
            if 0 < first_size < BLANK_SIZE and first_offset < lost[0].start:
                break  # units stand in the log's order
    return count


def _blank_file(disk_file: DiskFile, lost: Sequence[Range], *, is_last: bool) -> tuple[int, bool]:
    """Take units out of one file; return their number, and whether others are left in it.

    ``is_last``: no later file has a unit.
    """
    first, last = lost[0].start, lost[-1].stop
    units = disk_file.pread(disk_file.size - disk_file.size % UNIT_SIZE, 0).rstrip(b"\0")
    whole = units.ljust(-(-len(units) // UNIT_SIZE) * UNIT_SIZE, b"\0")
    hits, keeps = [], -1
    for index, (physic_offset, size, _) in enumerate(UNIT.iter_unpack(whole)):
        if first <= physic_offset < last and _is_in(physic_offset, lost) and 0 < size < BLANK_SIZE:
            hits.append(index)
        elif 0 < size < BLANK_SIZE:
            keeps = index
    for index in hits:
        is_end = is_last and index > keeps
        disk_file.pwrite(bytes(UNIT_SIZE) if is_end else BLANK, index * UNIT_SIZE)
    if hits:
        disk_file.sync()
    return len(hits), keeps >= 0


def _is_in(physic_offset: int, lost: Sequence[Range]) -> bool:
    return any(part.start <= physic_offset < part.stop for part in lost)
