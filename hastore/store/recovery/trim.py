"""Trims the end of a log: bytes cut off are copied, then zeroed; doubtful ones are rewritten.

::

    log  … record │ torn bytes, perhaps intact ones after them │ zeros
                  └──── copied to DIR/trimmed/, then zeroed ───┘

Order: the bytes are copied, durably; then zeroed from the back to the front; then synced.  So if
the process dies in between, the log is still torn at the same offset, and every byte is in at least
one place.  The checkpoint must be lowered before anything is zeroed.

Writing again: after an unclean stop the page cache may hold bytes that a failed sync did not write
to disk, in pages that the kernel considers clean, so that no later sync writes them either.  They
are read, dropped from the cache and written again; then their pages are dirty, and the next sync
writes them.  (On ext4, writing them without dropping the pages first does not help: the block of a
cached page stays marked as never written.)  Cached pages after the log's end are dropped too, for
the sake of later appends.  Zeros that an earlier start wrote are also written again: ``trimmed/``
says where.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from hastore.env.interface import PAGE_SIZE
from hastore.store.log.mapped_file_queue import FILE_NAME_SIZE, file_name
from hastore.store.log.store_directory import TRIMMED_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.stale_units import StaleUnit

TRIMMED_PIECE_SIZE_MAX: Final = 8 * 1024 * 1024
_CHUNK_SIZE: Final = 1024 * 1024
FORGET_SIZE: Final = 8 * 1024 * 1024  # the largest piece in which ext4 caches a file


@attrs.frozen
class Range:
    """Bytes ``[start, stop)`` of the log, all in one file."""

    start: int
    stop: int


@attrs.frozen(kw_only=True)
class TrimmedTail:
    """Bytes that were cut off after the last whole record, and where they are kept."""

    physic_offset: int
    size: int
    kind: str  # RecordKind of the first of them: torn, bad-body-crc, …
    topic: str | None  # of that record, if it could be read
    saved_paths: tuple[str, ...]
    # The first intact record among them: written after the last flush, following a hole.
    intact_offset: int | None = None


def pieces(
    ranges: Iterable[Range], read: Callable[[int, int], bytes]
) -> Iterator[tuple[int, bytes]]:
    """Read ranges in pieces; ``read`` returns bytes by offset and size, all in one file."""
    for part in ranges:
        for offset in range(part.start, part.stop, TRIMMED_PIECE_SIZE_MAX):
            yield offset, read(offset, min(TRIMMED_PIECE_SIZE_MAX, part.stop - offset))


def save(
    disk: Disk, directory: str, now_ms: int, copied: Iterable[tuple[int, bytes]]
) -> tuple[str, ...]:
    """Write each piece of the log, by offset, durably to a new file; return the paths."""
    disk.make_dirs(directory)
    paths = []
    for offset, data in copied:
        stem = f"{directory}/{file_name(offset)}"
        saved_ms = now_ms
        while disk.exists(f"{stem}-{saved_ms}"):  # from a start that was killed
            saved_ms += 1
        paths.append(f"{stem}-{saved_ms}")
        disk.write_file(paths[-1], data)
    return tuple(paths)


def save_units(disk: Disk, directory: str, now_ms: int, stale: Iterable[StaleUnit]) -> str:
    """Write units that are to be cut durably to a new file, as JSON; return its path."""
    rows = [
        {"topic": queue.topic, "queueId": queue.queue_id, "queueOffset": queue_offset}
        | unit._asdict()
        for queue, queue_offset, unit in stale
    ]
    disk.make_dirs(directory)
    while disk.exists(path := f"{directory}/units-{now_ms}.json"):
        now_ms += 1
    disk.write_file(path, json.dumps(rows, indent=1).encode())
    return path


def cut_before(disk: Disk, data_dir: str, end_offset: int) -> list[Range]:
    """Return the ranges that earlier starts have cut off at or after the log's end."""
    found = []
    for entry in disk.list_dir(f"{data_dir}/{TRIMMED_DIR}"):
        digits = entry.name[:FILE_NAME_SIZE]
        if entry.is_dir or not (digits.isascii() and digits.isdecimal()):
            continue
        offset = int(digits)
        if offset + entry.size > end_offset:
            found.append(Range(max(offset, end_offset), offset + entry.size))
    return found


def zero(disk_file: DiskFile, start: int, stop: int) -> None:
    """Zero positions of a file, the last ones first."""
    while stop > start:
        position = max(start, stop - _CHUNK_SIZE)
        disk_file.pwrite(bytes(stop - position), position)
        stop = position


def write_again(
    disk_file: DiskFile, start: int, stop: int, on_written: Callable[[int], None] | None = None
) -> None:
    """Read positions of a file, in whole pages, and write the same bytes again.

    Cached pages after them are dropped, too, so that later appends do not meet a page that a failed
    sync has marked clean.  No page may be mapped, because mapped pages are not dropped.
    ``on_written`` is called with the size of each piece.
    """
    start -= start % PAGE_SIZE
    stop = min(stop + -stop % PAGE_SIZE, disk_file.size)
    while start < disk_file.size:
        piece = start - start % FORGET_SIZE
        if start >= stop:
            disk_file.forget(piece)
            return
        data = disk_file.pread(min(piece + FORGET_SIZE, stop) - start, start)
        assert data, "a log file has its size"
        disk_file.forget(piece, FORGET_SIZE)
        disk_file.pwrite(data, start)
        if on_written is not None:
            on_written(len(data))
        start = piece + FORGET_SIZE
