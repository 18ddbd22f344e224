"""Which messages a repair loses, by the units that the consume queues have of them.

A damaged record cannot say itself which message it was.  Its unit can, if the record was dispatched
before: topic and queue are the unit's directory, and its index is the queue offset.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import BLANK_SIZE, UNIT, UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.recovery.trim import Range


@attrs.frozen(kw_only=True)
class LostMessages:
    """Messages of one queue that are lost: ``count`` from ``first`` to ``last``, both included."""

    topic: str
    queue_id: int
    first: int
    last: int
    count: int


def lost_messages(disk: Disk, data_dir: str, lost: Sequence[Range]) -> tuple[LostMessages, ...]:
    """Return the messages that begin in ``lost``, as far as units name them.  Raises DiskError."""
    if not lost:
        return ()
    root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
    messages = []
    for queue in find_queues(disk, root, None).queues:
        indexes: list[int] = []
        for file in queue.files:
            path = f"{root}/{queue.topic}/{queue.queue_id}/{file_name(file.start)}"
            with contextlib.closing(disk.open_file(path, writable=False)) as disk_file:
                hits, _ = units_in(disk_file, lost)
            indexes += [file.start // UNIT_SIZE + index for index in hits]
        if indexes:
            messages.append(
                LostMessages(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    first=indexes[0],
                    last=indexes[-1],
                    count=len(indexes),
                )
            )
    return tuple(messages)


def units_in(disk_file: DiskFile, lost: Sequence[Range]) -> tuple[list[int], int]:
    """Return the indexes of a file's units whose records begin in ``lost``; and the last other one.

    The last other one is -1 if the file has none.
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
    return hits, keeps


def _is_in(physic_offset: int, lost: Sequence[Range]) -> bool:
    return any(part.start <= physic_offset < part.stop for part in lost)
