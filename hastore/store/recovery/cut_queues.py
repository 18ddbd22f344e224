"""Takes the units of cut records out of closed consume queues, and zeroes them on disk.

::

    | unit … unit | blank | unit of a cut record … │ zeros      file 1, file 2 …
                  └─ end: from here on zeroed ─────┘            └── removed ───┘

First each queue's new end is found, before anything is changed; then the queues are cut there.  The
ends are kept in between (``CutIntent``), because a unit that is half zeroed when the process is
killed looks like that of an earlier record.

Blanks that would end a queue are zeroed, too.  Nothing else is changed, so what else is wrong with
a queue is found, and repaired, by the next opening.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from hastore.store.log.mapped_file_queue import file_name, is_file_name
from hastore.store.queue.consume_queue import QUEUE_FILES_CHECKED
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import BLANK_SIZE, UNIT, UNIT_SIZE, file_size_of
from hastore.store.recovery.tail_scan import nonzero_chunks
from hastore.store.recovery.trim import zero

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.directory import QueueFiles

_CHUNK_SIZE: Final = 50_000 * UNIT_SIZE


def find_queue_ends(
    disk: Disk, data_dir: str, file_size: int, physic_offset: int
) -> dict[str, int]:
    """Return where each queue ends without the records that end after ``physic_offset``.

    By ``TOPIC/QUEUE_ID``, as a position in the queue's bytes, 0 if nothing is left; only of queues
    that have such records.  ``file_size`` is the configured size of a queue's files.
    """
    root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
    found = find_queues(disk, root, file_size_of(file_size))
    ends = {}
    for queue in found.queues:
        name = f"{queue.topic}/{queue.queue_id}"
        end = _find_end(disk, f"{root}/{name}", queue, found.file_size, physic_offset)
        if end is not None:
            ends[name] = end
    return ends


def cut_queues(disk: Disk, data_dir: str, ends: Mapping[str, int]) -> None:
    """Cut the queues, durably, where ``find_queue_ends`` said; blocks.

    Raises DiskError; then repeat it.
    """
    for name, end in ends.items():
        _cut_queue(disk, f"{data_dir}/{CONSUME_QUEUE_DIR}/{name}", end)


def _cut_queue(disk: Disk, path: str, end: int) -> None:
    for entry in reversed([entry for entry in disk.list_dir(path) if is_file_name(entry.name)]):
        start = int(entry.name)
        if start >= end:
            disk.remove(f"{path}/{entry.name}")
            continue
        with _opened(disk, path, start, entry.size) as disk_file:
            disk_file.forget()  # zeros that a failed sync left in the page cache only
            chunks = nonzero_chunks(disk_file, min(end - start, entry.size))
            parts = [(at, at + len(data.rstrip(b"\0"))) for at, data in chunks]
            for at, stop in reversed(parts):
                zero(disk_file, at, stop)
            disk_file.sync()
        return


# -- where a queue ends --------------------------------------------------------------------------


class _Scan(NamedTuple):
    """The position after the last unit to keep, 0 for none; whether others are to be cut."""

    kept: int
    is_cut: bool


def _find_end(
    disk: Disk, path: str, queue: QueueFiles, file_size: int, physic_offset: int
) -> int | None:
    """Return the queue's new end; None if no unit is to be cut."""
    end, is_cut = 0, False
    for count, file in enumerate(reversed(queue.files), 1):
        with _opened(disk, path, file.start, file_size) as disk_file:
            scan = _scan(disk_file, file_size, physic_offset)
        is_cut = is_cut or scan.is_cut
        if scan.is_cut or not end:
            end = file.start + scan.kept if scan.kept else 0
        if end and count >= QUEUE_FILES_CHECKED:
            break
    return end if is_cut else None


def _opened(disk: Disk, path: str, start: int, size: int) -> contextlib.closing[DiskFile]:
    return contextlib.closing(disk.open_sparse_file(f"{path}/{file_name(start)}", size))


def _scan(disk_file: DiskFile, file_size: int, physic_offset: int) -> _Scan:
    kept = position = 0
    while (position := disk_file.next_data(position)) < file_size:
        position -= position % UNIT_SIZE
        data = disk_file.pread(min(_CHUNK_SIZE, file_size - position), position)
        for offset, size, _ in UNIT.iter_unpack(data):
            position += UNIT_SIZE
            if size <= 0 or offset < 0 or (size == BLANK_SIZE and not offset):
                continue  # torn, or a blank
            if offset + size > physic_offset:
                return _Scan(kept, is_cut=True)
            kept = position
    return _Scan(kept, is_cut=False)
