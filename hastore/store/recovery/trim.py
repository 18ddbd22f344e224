"""Makes the end of a log what it was found to be: bytes cut off are kept, then dead for good.

::

    log  … record │ torn bytes, perhaps sound ones behind them │ zeros
                  └──── copied to DIR/trimmed/, then zeroed ───┘

Order: copied, durably; then zeroed from the back to the front; then synced.  So whenever the
process dies in between, what is left is again a log whose end is torn at the same offset, and no
byte is in neither place.  Whoever lowers the checkpoint does so before anything is zeroed.

Written again: after an unclean stop the page cache may show bytes that a failed sync has left
off the disk, and the kernel takes them for clean.  Read, forgotten and written a second time they
are dirty again, and the next sync tells the truth.  (Not forgotten, they would still miss the disk
on ext4: the old page is taken to have its block, and the block stays marked as never written.)
What the cache shows behind the log's end is forgotten as well, for the sake of later appends.
Zeros that an earlier start wrote are written again, too: ``trimmed/`` says where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.store.log.mapped_file_queue import FILE_NAME_SIZE, file_name
from hastore.store.log.store_directory import TRIMMED_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hastore.env.interface import Disk, DiskFile

TRIMMED_PIECE_SIZE_MAX: Final = 8 * 1024 * 1024
_CHUNK_SIZE: Final = 1024 * 1024
_PAGE_SIZE: Final = 4096
_FORGET_SIZE: Final = 8 * 1024 * 1024  # the largest piece in which ext4 caches a file


@attrs.frozen
class Range:
    """Bytes ``[start, stop)`` of the log, all in one file."""

    start: int
    stop: int


@attrs.frozen(kw_only=True)
class TrimmedTail:
    """Bytes that were cut off behind the last whole record, and where they are kept."""

    physic_offset: int
    size: int
    kind: str  # what the first of them was: torn, bad-body-crc, …
    topic: str | None  # where it could be read
    saved_paths: tuple[str, ...]
    # The first sound record among them: written after the last flush, behind a hole.
    sound_offset: int | None = None


def pieces(
    ranges: Iterable[Range], read: Callable[[int, int], bytes]
) -> Iterator[tuple[int, bytes]]:
    """Read ranges in pieces; ``read`` gives bytes by offset and size, all in one file."""
    for part in ranges:
        for offset in range(part.start, part.stop, TRIMMED_PIECE_SIZE_MAX):
            yield offset, read(offset, min(TRIMMED_PIECE_SIZE_MAX, part.stop - offset))


def save(
    disk: Disk, directory: str, now_ms: int, copied: Iterable[tuple[int, bytes]]
) -> tuple[str, ...]:
    """Write pieces of the log, by offset, to files of their own, durably; gives their paths.

    None is ever replaced.
    """
    disk.make_dirs(directory)
    paths = []
    for offset, data in copied:
        stem = f"{directory}/{file_name(offset)}"
        saved_ms = now_ms
        while disk.exists(f"{stem}-{saved_ms}"):  # by a start that was killed since
            saved_ms += 1
        paths.append(f"{stem}-{saved_ms}")
        disk.write_file(paths[-1], data)
    return tuple(paths)


def cut_before(disk: Disk, data_dir: str, end_offset: int) -> list[Range]:
    """Return what earlier starts have cut off at and behind the log's end."""
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
    """Read positions of a file, in whole pages, and write the same bytes there anew.

    All that the cache holds behind them is dropped, too, so that what is appended there later meets
    no page that a failed sync has marked clean.  None of these pages may be mapped: such are not
    forgotten.  ``on_written`` is called with the bytes of each piece.
    """
    start -= start % _PAGE_SIZE
    stop = min(stop + -stop % _PAGE_SIZE, disk_file.size)
    while start < disk_file.size:
        piece = start - start % _FORGET_SIZE
        if start >= stop:
            disk_file.forget(piece)
            return
        data = disk_file.pread(min(piece + _FORGET_SIZE, stop) - start, start)
        assert data, "a log file has its size"
        disk_file.forget(piece, _FORGET_SIZE)
        disk_file.pwrite(data, start)
        if on_written is not None:
            on_written(len(data))
        start = piece + _FORGET_SIZE
