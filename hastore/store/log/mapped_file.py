"""One file of a commit log, mapped, with the positions up to which it was written and flushed.

    0 ≤ flushed_position ≤ committed_position ≤ wrote_position ≤ file_size

Positions are relative to the file's start and exclusive.  Appends go to ``append_view``: the map,
and what is written is committed; or a write buffer (``log.transient_store_pool``), and
only ``commit`` brings it into the file.  Readers see what is committed.  Bytes of the file at and
behind ``committed_position`` belong to nobody: they are zeros, or were zeroed when the log was
loaded.

A map costs a second descriptor, so the older files of a log are not mapped: those of a log that was
opened never are, the others give their map up once they are flushed and two files behind.  They are
never written again, and their ``view`` reads the file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import DiskFile
    from hastore.store.log.transient_store_pool import WriteBuffer

PAGE_SIZE: Final = 4096  # RocketMQ's OS_PAGE_SIZE, whatever the machine's pages are


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
    write_buffer: WriteBuffer | None = attrs.field(default=None, init=False)
    is_locked: bool = attrs.field(default=False, init=False)  # the map, by mlock
    # Reads under way that span an await or run in a thread; expiry closes no file that has any.
    holders: int = attrs.field(default=0, init=False)
    view: memoryview | FileBytes = attrs.field(init=False)
    # None: what is written is committed.
    _committed: int | None = attrs.field(default=None, init=False)

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
    def append_view(self) -> memoryview:
        """Where appends go, position by position: the write buffer, or else the map."""
        return self.writable_view if self.write_buffer is None else self.write_buffer.view

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.disk_file.path

    @property
    def committed_position(self) -> int:
        """End of what is in the file, and may be read and flushed."""
        return self.wrote_position if self._committed is None else self._committed

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be written."""
        return self.wrote_position == self.file_size

    @property
    def next_file_offset(self) -> int:
        """Where the next file starts: the offset right behind this one."""
        return self.file_from_offset + self.file_size

    # -- from the buffer to the file, from the file to the disk ----------------------------------

    def begin_buffering(self, buffer: WriteBuffer | None) -> None:
        """From here on what is written is committed only by ``commit`` and ``mark_committed``.

        ``buffer`` None: the pool had none; it is written through the map, and committed as others.
        """
        assert self._committed is None
        self._committed = self.wrote_position
        self.write_buffer = buffer

    def is_able_to_commit(self, least_pages: int) -> bool:
        """Whether a commit is worth it: full, or with so many whole pages (0: any byte)."""
        return self._is_worth_it(self.committed_position, self.wrote_position, least_pages)

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether a flush is worth it, by the same rule."""
        return self._is_worth_it(self.flushed_position, self.committed_position, least_pages)

    def _is_worth_it(self, done: int, end: int, least_pages: int) -> bool:
        if done >= end:
            return False
        return self.is_full or end // PAGE_SIZE - done // PAGE_SIZE >= least_pages

    def commit(self, end: int) -> None:
        """Bring what was written up to ``end`` into the file; blocks.

        Nothing counts as committed before ``mark_committed``.  Raises DiskError; any part may be in
        the file then.
        """
        if self.write_buffer is not None:
            start = self.committed_position
            with self.write_buffer.view[start:end] as data:
                self.disk_file.pwrite(data, start)

    def mark_committed(self, end: int) -> WriteBuffer | None:
        """Note a commit; gives the buffer once the file needs it no more."""
        assert self._committed is not None
        assert self._committed <= end <= self.wrote_position
        self._committed = end
        if end < self.file_size:
            return None
        buffer, self.write_buffer = self.write_buffer, None
        return buffer

    # -- the end ---------------------------------------------------------------------------------

    def release_view(self) -> None:
        """Read by the descriptor from now on; the map itself is then ``disk_file.unmap``'s.

        Whoever holds a slice of the old view goes on reading it.
        """
        if isinstance(self.view, memoryview):
            self.view.release()
            self.view = FileBytes(self.disk_file)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the file open for the length of a block; expiry waits for it, up to a limit."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1

    def close(self) -> None:
        """Give up the map and the descriptor; idempotent."""
        if isinstance(self.view, memoryview):
            self.view.release()
        self.disk_file.close()
