"""One file of a commit log, mapped, with the positions up to which it was written and flushed.

    0 ≤ flushed_position ≤ committed_position ≤ wrote_position ≤ file_size

Positions are relative to the file's start and exclusive.  There is no transient store pool yet, so
what is written is committed.  Bytes at and behind ``wrote_position`` belong to nobody: they are
zeros, or were zeroed when the log was loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from hastore.env.interface import DiskFile


@final
@attrs.define(eq=False)
class MappedFile:
    """A fixed-size file whose bytes are ``view``; closed by its queue, after every view is gone."""

    file_from_offset: int
    file_size: int
    disk_file: DiskFile
    wrote_position: int = 0
    flushed_position: int = 0
    view: memoryview = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Take the whole map."""
        assert self.disk_file.size == self.file_size
        assert self.disk_file.buffer is not None, "a mapped file is opened for writing"
        self.view = memoryview(self.disk_file.buffer)

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
        self.view.release()
        self.disk_file.close()
