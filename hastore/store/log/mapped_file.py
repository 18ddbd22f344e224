"""One file of a commit log, mapped, with the positions up to which it was written and flushed.

    0 ≤ flushed_position ≤ committed_position ≤ wrote_position ≤ file_size

Positions are relative to the file's start and exclusive.  Appends go to ``append_view``: the map,
where they are committed at once; or a write buffer (``log.transient_store_pool``), from which
``commit`` writes them to the file.  Readers see committed bytes; the others are no part of the log.

A map costs a second descriptor, so the older files of a log are not mapped: when a log is opened
they are opened for reading only, and later a file loses its map once it is flushed and two files
follow.  It is never written again, and its ``view`` reads the file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, final

import attrs

from hastore.env.interface import PAGE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import DiskFile
    from hastore.store.log.transient_store_pool import WriteBuffer


@final
@attrs.frozen(eq=False)
class FileBytes:
    """The bytes of a file without a map; a slice is read, and may wait for the disk."""

    disk_file: DiskFile

    def __getitem__(self, part: slice) -> memoryview:
        """Read a slice; like a map's, the view is to be released."""
        start, stop, _ = part.indices(self.disk_file.size)
        return memoryview(self.disk_file.pread(max(stop - start, 0), start))


@final
@attrs.define(eq=False)
class MappedFile:
    """A fixed-size file whose bytes are ``view``; its queue closes it after all views are released.

    Without a map if ``disk_file`` was opened for reading.
    """

    file_from_offset: int
    file_size: int
    disk_file: DiskFile
    wrote_position: int = 0
    flushed_position: int = 0
    write_buffer: WriteBuffer | None = attrs.field(default=None, init=False)
    is_locked: bool = attrs.field(default=False, init=False)  # the map is locked by mlock
    # Reads under way that span an await or run in a thread; expiry closes no file that has any.
    holders: int = attrs.field(default=0, init=False)
    view: memoryview | FileBytes = attrs.field(init=False)
    # None: written bytes are committed at once.
    _committed: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Take the whole map, if there is one."""
        assert self.disk_file.size == self.file_size
        buffer = self.disk_file.buffer
        self.view = FileBytes(self.disk_file) if buffer is None else memoryview(buffer)

    @property
    def writable_view(self) -> memoryview:
        """The whole map; only if the file was opened for writing."""
        assert isinstance(self.view, memoryview), f"{self.path} was opened for reading"
        return self.view

    @property
    def append_view(self) -> memoryview:
        """Where appends go, position by position: the write buffer if there is one, or the map."""
        return self.writable_view if self.write_buffer is None else self.write_buffer.view

    @property
    def path(self) -> str:
        """The file's path."""
        return self.disk_file.path

    @property
    def committed_position(self) -> int:
        """End of the bytes that are in the file, and may be read and flushed."""
        return self.wrote_position if self._committed is None else self._committed

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be written."""
        return self.wrote_position == self.file_size

    @property
    def next_file_offset(self) -> int:
        """Where the next file starts: the offset right after this one."""
        return self.file_from_offset + self.file_size

    # -- from the buffer to the file, from the file to the disk ----------------------------------

    def begin_buffering(self, buffer: WriteBuffer | None) -> None:
        """From now on ``commit`` and ``mark_committed`` are needed to commit what is written.

        ``buffer`` None: the pool had none, so appends still go through the map.
        """
        assert self._committed is None
        self._committed = self.wrote_position
        self.write_buffer = buffer

    def is_able_to_commit(self, least_pages: int) -> bool:
        """Whether to commit: the file is full, or has this many whole pages (0: any byte)."""
        return self._is_worth_it(self.committed_position, self.wrote_position, least_pages)

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether to flush, by the same rule."""
        return self._is_worth_it(self.flushed_position, self.committed_position, least_pages)

    def _is_worth_it(self, done: int, end: int, least_pages: int) -> bool:
        if done >= end:
            return False
        return self.is_full or end // PAGE_SIZE - done // PAGE_SIZE >= least_pages

    def commit(self, end: int) -> None:
        """Write the buffered bytes up to ``end`` to the file; blocks.

        They count as committed after ``mark_committed``.  Raises DiskError; part of them may then
        be in the file.
        """
        if self.write_buffer is not None:
            start = self.committed_position
            with self.write_buffer.view[start:end] as data:
                self.disk_file.pwrite(data, start)

    def mark_committed(self, end: int) -> WriteBuffer | None:
        """Record a commit; return the buffer once the file no longer needs it."""
        assert self._committed is not None
        assert self._committed <= end <= self.wrote_position
        self._committed = end
        if end < self.file_size:
            return None
        buffer, self.write_buffer = self.write_buffer, None
        return buffer

    # -- the end ---------------------------------------------------------------------------------

    def release_view(self) -> None:
        """Read through the descriptor from now on; ``disk_file.unmap`` then removes the map.

        Existing slices of the old view stay readable.
        """
        if isinstance(self.view, memoryview):
            self.view.release()
            self.view = FileBytes(self.disk_file)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the file open during a ``with`` block; expiry waits for it, up to a limit."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1

    def close(self) -> None:
        """Release the map and the descriptor; idempotent."""
        if isinstance(self.view, memoryview):
            self.view.release()
        self.disk_file.close()
