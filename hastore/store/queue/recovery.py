"""Finds the end of a consume queue when its store is opened, and drops what comes after it.

RocketMQ's rule: from the third-last file on, the first unit without a size or with a negative
offset ends the queue.  After it a power cut may have left a torn unit, or pages that reached the
disk before an earlier one.  They are zeroed, durably, so that they cannot become units again once
the queue grows up to them.

A torn unit may look valid.  If its record is in the log, the dispatch repairs it: a put of an index
that was checked here is compared with the existing unit.

After a clean stop only the last file is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.env.interface import PAGE_SIZE, SECTOR_SIZE
from hastore.store.queue.consume_queue import QUEUE_FILES_CHECKED
from hastore.store.queue.unit import BLANK, BLANK_SIZE, SIZE_POSITION, UNIT, UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import DiskFile
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.file import ConsumeQueueFiles

_FIRST_CHUNK_SIZE: Final = 200 * UNIT_SIZE  # where there are many queues, most have no more
_CHUNK_SIZE: Final = 50_000 * UNIT_SIZE
_PIECE_SIZE: Final = 65_536
_SHORT: Final = 256  # units; below it a loop is as quick


def recover(
    queue: ConsumeQueue,
    files: ConsumeQueueFiles,
    *,
    last_exit_ok: bool,
    before_drop: Callable[[], None],
) -> bool:
    """Let the queue end at its last valid unit; return whether anything after it was dropped.

    ``before_drop`` is called before whole files are dropped, which a crash does not explain.
    """
    first = max(len(queue.files) - (1 if last_exit_ok else QUEUE_FILES_CHECKED), 0)
    end, is_cut = 0, False
    for file in queue.files[first:]:
        disk_file = files.open(queue.path, file)
        if not last_exit_ok:
            disk_file.forget()  # drop bytes that a failed sync left in the page cache only
        size = _valid_size(disk_file, files.file_size, last_exit_ok=last_exit_ok)
        end = (file.start + size) // UNIT_SIZE
        if size < files.file_size:
            is_last = file is queue.files[-1]
            if not is_last:
                before_drop()
            is_cut = not is_last or (not last_exit_ok and _is_written(disk_file, size))
            break
    last = queue.last_unit_below(end, None)
    if is_cut or last is None or last[0] + 1 != end:
        # Blanks at the end are dropped too: their records are missing; the next one gets the index.
        is_cut = True
        queue.cut(last)
    else:
        queue.set_end(end, last[1].physic_offset + last[1].size)
    queue.trusted_from = queue.max_offset
    if queue.files:
        _find_front(queue, files)
        queue.repair_to = queue.max_offset
        queue.repair_from = queue.repair_to
        if not last_exit_ok:
            queue.record_new_names(is_first=True)  # they may have been made just before a crash
            checked = queue.files[-QUEUE_FILES_CHECKED:]
            queue.repair_from = checked[0].start // UNIT_SIZE
            for file in checked:
                files.mark_dirty(queue.path, file, 0, files.file_size)
    return is_cut


def _valid_size(disk_file: DiskFile, file_size: int, *, last_exit_ok: bool) -> int:
    """Return the number of bytes before the first invalid unit."""
    position, chunk_size = 0, _FIRST_CHUNK_SIZE
    while position < file_size:
        data = disk_file.pread(min(chunk_size, file_size - position), position)
        count = _first_invalid(data)
        if not last_exit_ok:
            torn = _first_torn(disk_file, data[: count * UNIT_SIZE], position)
            if torn is not None:
                return torn
        position += count * UNIT_SIZE
        if (count + 1) * UNIT_SIZE <= len(data) or not data:
            break
        if last_exit_ok:
            return _bisect_end(disk_file, position, file_size)
        chunk_size = _CHUNK_SIZE
    return position


def _first_torn(disk_file: DiskFile, data: bytes, position: int) -> int | None:
    """Return the position of a unit whose record begins before the end of the one before it.

    Only a unit across two sectors can be torn so: a power cut kept the new second sector and the
    old first one, so its offset lacks its high bytes.
    """
    before = disk_file.pread(UNIT_SIZE, position - UNIT_SIZE) if position else b""
    data = before + data
    position -= len(before)
    for border in range(
        -(-(position + UNIT_SIZE) // SECTOR_SIZE) * SECTOR_SIZE,
        position + len(data),
        SECTOR_SIZE,
    ):
        at = (border - position) // UNIT_SIZE * UNIT_SIZE
        last_offset, last_size, _ = UNIT.unpack_from(data, at - UNIT_SIZE)
        physic_offset, size, _ = UNIT.unpack_from(data, at)
        if BLANK_SIZE not in {size, last_size} and physic_offset < last_offset + last_size:
            return position + at
    return None


def _first_invalid(data: bytes) -> int:
    """Return the index of the first invalid unit, or the number of whole units."""
    count = len(data) // UNIT_SIZE
    if count > _SHORT:
        # All sizes at once: byte k of each, as one long number; a size of 0 leaves a 0 byte.
        columns = [data[SIZE_POSITION + k : count * UNIT_SIZE : UNIT_SIZE] for k in range(4)]
        any_bits = 0
        for column in columns:
            any_bits |= int.from_bytes(column, "big")
        end = any_bits.to_bytes(count, "big").find(0)
        end = count if end < 0 else end
        signs = (columns[0][:end], data[0 : end * UNIT_SIZE : UNIT_SIZE])
        if all(sign.isascii() for sign in signs):
            return end
    units = UNIT.iter_unpack(data[: count * UNIT_SIZE])
    for index, (physic_offset, size, _) in enumerate(units):
        if size <= 0 or physic_offset < 0:
            return index
    return count


def _bisect_end(disk_file: DiskFile, low: int, file_size: int) -> int:
    """Find the end of the units in a file that was closed cleanly, so that they have no gap."""
    low_unit, high_unit = low // UNIT_SIZE, file_size // UNIT_SIZE
    while low_unit < high_unit:
        middle = (low_unit + high_unit) // 2
        if _first_invalid(disk_file.pread(UNIT_SIZE, middle * UNIT_SIZE)):
            low_unit = middle + 1
        else:
            high_unit = middle
    return low_unit * UNIT_SIZE


def _is_written(disk_file: DiskFile, position: int) -> bool:
    """Whether any byte after ``position`` is not 0."""
    # The rest of this page first: it is data in any case, and mostly the file's last.
    size = PAGE_SIZE - position % PAGE_SIZE
    while position < disk_file.size:
        data = disk_file.pread(size, position)
        if not data or data.count(0) < len(data):
            return bool(data)
        position = disk_file.next_data(min(position + size, disk_file.size))
        size = _PIECE_SIZE - position % _PIECE_SIZE
    return False


def _find_front(queue: ConsumeQueue, files: ConsumeQueueFiles) -> None:
    """Let the queue begin after the blanks of its first file."""
    file = queue.files[0]
    disk_file = files.open(queue.path, file)
    position, size = 0, UNIT_SIZE
    while data := disk_file.pread(size, position):
        blanks = 0
        while data.startswith(BLANK, blanks):
            blanks += UNIT_SIZE
        position += blanks
        if blanks < len(data):
            break
        size = _FIRST_CHUNK_SIZE
    queue.min_offset = (file.start + position) // UNIT_SIZE
