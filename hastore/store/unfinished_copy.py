"""Copies many records into the map so that a kill in the middle is known for what it is.

A large memcpy stores its first bytes last: glibc aligns to 64 bytes, runs on (``rep movsb``), and
only then stores the head.  A process that is killed meanwhile, most likely in a page fault, leaves
a hole in front of sound records, which looks like damage in the middle of the log (seen in the
soak test: 26 bytes missing, 5 KiB of sound records behind them).

So a long copy is announced where it begins, by a mark in the place of its first bytes, and these
are copied last::

    | log … | "unfinished copy", 0, offset, size | rest of the data, perhaps with holes | zeros …
            └ 32 bytes, replaced at the end by the data's own

Where a mark is found the bytes from it to its end were never part of the log: no position covered
them and nobody was told of them.  They are hidden from the walk that finds the log's end, and then
trimmed like any torn tail.  A mark names its own offset, and is none inside a sound record whose
checksum covers it: a message may say what it likes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

import attrs

if TYPE_CHECKING:
    from hastore.env.interface import DiskFile

_MARK: Final = struct.Struct(">16sqq")
_MARK_TEXT: Final = b"unfinished copy\0"
_MARK_SIZE: Final = _MARK.size
# Below it a copy holds one record and a part of another at most: nothing sound behind a hole.
_GUARDED_SIZE_MIN: Final = 128
# A walk stops before the mark, at the record that it stands in, or (without a checksum over the
# properties) behind sound-looking records of the copy: so far before and behind it is looked for.
RECORD_SIZE_MAX: Final = 8 * 1024 * 1024
COPY_SIZE_MAX: Final = 32 * 1024 * 1024


def copy_guarded(
    view: memoryview, position: int, data: bytes | memoryview, physic_offset: int
) -> None:
    """Copy ``data`` to ``position``, which is ``physic_offset`` of the log.

    A kill leaves all of it, or a mark, or a hole with nothing sound behind it.
    """
    size = len(data)
    if size < _GUARDED_SIZE_MIN:
        view[position : position + size] = data
        return
    source = memoryview(data)
    head_end = position + _MARK_SIZE
    view[position:head_end] = _MARK.pack(_MARK_TEXT, physic_offset, size)
    view[head_end : position + size] = source[_MARK_SIZE:]
    view[position:head_end] = source[:_MARK_SIZE]


@attrs.frozen
class UnfinishedCopy:
    """Positions ``[start, end)`` of a file that a copy was being made to."""

    start: int
    end: int


def find_unfinished_copy(
    disk_file: DiskFile, file_from_offset: int, position: int
) -> UnfinishedCopy | None:
    """Look for a mark near ``position``, where a walk of the file has stopped.

    Gives the last one whose offset is its own.
    """
    first = max(0, position - COPY_SIZE_MAX)
    last = min(position + RECORD_SIZE_MAX, disk_file.size)
    data = disk_file.pread(last - first, first)
    at = len(data) - _MARK_SIZE + len(_MARK_TEXT)
    while (at := data.rfind(_MARK_TEXT, 0, at)) >= 0:
        start = first + at
        _, physic_offset, size = _MARK.unpack_from(data, at)
        room = disk_file.size - start
        if physic_offset == file_from_offset + start and _GUARDED_SIZE_MIN <= size <= room:
            return UnfinishedCopy(start, start + size)
        at += len(_MARK_TEXT) - 1
    return None


@final
@attrs.define(eq=False)
class FileWithoutCopy:
    """A file, for reading, in which an unfinished copy has been replaced by zeros."""

    file: DiskFile
    copy: UnfinishedCopy
    path: str = attrs.field(init=False)
    size: int = attrs.field(init=False)
    buffer: Any = attrs.field(default=None, init=False)  # no map: it would show what is hidden

    def __attrs_post_init__(self) -> None:
        """Take over what the file is."""
        self.path = self.file.path
        self.size = self.file.size

    def fileno(self) -> int:
        """Give the descriptor."""
        return self.file.fileno()

    def pread(self, size: int, position: int) -> bytes:
        """Read, with zeros for what is hidden."""
        data = self.file.pread(size, position)
        start = max(self.copy.start - position, 0)
        end = min(self.copy.end - position, len(data))
        return data if start >= end else data[:start] + bytes(end - start) + data[end:]

    def next_data(self, position: int) -> int:
        """Skip holes."""
        return self.file.next_data(position)

    def sync(self) -> None:
        """Force to the disk."""
        self.file.sync()

    def close(self) -> None:
        """Close the file."""
        self.file.close()
