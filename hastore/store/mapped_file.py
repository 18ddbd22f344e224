"""One file of a commit log, mapped, with the positions up to which it was written and flushed.

    0 ≤ flushed_position ≤ committed_position ≤ wrote_position ≤ file_size

Positions are relative to the file's start and exclusive.  There is no transient store pool yet, so
what is written is committed.  Bytes at and behind ``wrote_position`` belong to nobody: they are
zeros, or were zeroed when the log was loaded.

A map costs a second descriptor, so the older files of a log that was opened are not mapped: they
are never written again, and their ``view`` reads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from hastore.env.interface import DiskFile


@final
@attrs.frozen(eq=False)
class FileBytes:
    """The bytes of a file without a map: a slice of it is read, and may be cold."""

    disk_file: DiskFile

    def __getitem__(self, part: slice) -> memoryview:
        """Read a slice; a view as a map's is, to be released."""
        start, stop, _ = part.indices(self.disk_file.size)
        return memoryview(self.disk_file.pread(max(stop - start, 0), start))


@final
@attrs.define(eq=False)
class MappedFile:
    """A fixed-size file whose bytes are ``view``; closed by its queue, after every view is gone.

    One whose ``disk_file`` was opened for reading has no map.
    """

    file_from_offset: int
    file_size: int
    disk_file: DiskFile
    wrote_position: int = 0
    flushed_position: int = 0
    view: memoryview | FileBytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Take the whole map, if there is one."""
        assert self.disk_file.size == self.file_size
        buffer = self.disk_file.buffer
        self.view = FileBytes(self.disk_file) if buffer is None else memoryview(buffer)

    @property
    def writable_view(self) -> memoryview:
        """The whole map; only for a file that was opened for writing."""
        assert isinstance(self.view, memoryview), f"{self.path} was opened for reading"
        return self.view

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.disk_file.path

    @property
    def committed_position(self) -> int:
        """End of what other readers may see; equals ``wrote_position`` without a store pool."""
        return self.wrote_position

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be written."""
        return self.wrote_position == self.file_size

    @property
    def next_file_offset(self) -> int:
        """Where the next file starts: the offset right behind this one."""
        return self.file_from_offset + self.file_size

    def close(self) -> None:
        """Give up the map and the descriptor; idempotent."""
        if isinstance(self.view, memoryview):
            self.view.release()
        self.disk_file.close()
