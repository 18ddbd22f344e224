"""The files of a commit log in order, and the next one, prepared before it is needed.

    commitlog/00000000000000000000   commitlog/00000000001073741824   …   (prepared)
              └── file_size bytes ──┘└── file_size bytes ──┘

A file is found by division: names are start offsets, all sizes are equal, and files at the front
may have been deleted.  The *prepared* file comes after the last one, is all zeros, and is no part
of the log until ``take_prepared`` moves it in.

With a transient store pool, each new file gets a write buffer; appends are committed in order, file
by file.

Invariants: files are contiguous; every file but the last is full; flushed ≤ committed ≤ wrote in
each; after a file with uncommitted bytes no file has committed ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.log.mapped_file import MappedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk
    from hastore.store.log.transient_store_pool import TransientStorePool

FILE_NAME_SIZE: Final = 20
FILES_MAPPED: Final = 2  # the one being written, and one that slaves may still be sent


def file_name(file_from_offset: int) -> str:
    """Return the name of the file that starts at an offset: 20 decimal digits."""
    return f"{file_from_offset:0{FILE_NAME_SIZE}d}"


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file named by its start offset."""
    return len(name) == FILE_NAME_SIZE and name.isascii() and name.isdecimal()


@final
@attrs.define(eq=False)
class MappedFileQueue:
    """The open files of the directory ``path``.

    ``first_file_offset`` is where the first file of an empty log starts; None until a slave knows
    it from its master.
    """

    disk: Disk
    path: str
    file_size: int
    first_file_offset: int | None = None
    files: list[MappedFile] = attrs.field(factory=list)
    prepared: MappedFile | None = None
    # Whether the next file is wanted however empty the last one is, and stays at a clean close;
    # until it is part of the log.
    wants_next_file: bool = attrs.field(default=False, init=False)
    transient_store_pool: TransientStorePool | None = None
    # Called when a file is wanted, and when one has rolled.
    _notify_allocation: Callable[[], None] | None = attrs.field(default=None, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    # -- looking up ------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Start of the first file; for an empty log its end."""
        if self.files:
            return self.files[0].file_from_offset
        return self.first_file_offset or 0

    @property
    def is_closed(self) -> bool:
        """Whether its files are closed, or about to be."""
        return self._closed

    @property
    def max_offset(self) -> int:
        """End of the written bytes."""
        if self.files:
            last = self.files[-1]
            return last.file_from_offset + last.wrote_position
        return self.first_file_offset or 0

    @property
    def committed_offset(self) -> int:
        """End of the committed bytes, without a gap below it."""
        committed_offset = self.max_offset
        for mapped_file in reversed(self.files):
            committed = mapped_file.committed_position
            if committed < mapped_file.wrote_position:
                committed_offset = mapped_file.file_from_offset + committed
            elif mapped_file.wrote_position:
                break
        return committed_offset

    @property
    def flushed_offset(self) -> int:
        """End of the bytes known to be on disk, without a gap below it."""
        flushed_offset = self.max_offset
        for mapped_file in reversed(self.files):
            if mapped_file.flushed_position < mapped_file.wrote_position:
                flushed_offset = mapped_file.file_from_offset + mapped_file.flushed_position
            elif mapped_file.wrote_position:
                break
        return flushed_offset

    def find_mapped_file_by_offset(self, physic_offset: int) -> MappedFile | None:
        """Return the file that holds an offset; None if no file does.

        Safe in any thread: expiry replaces the list instead of changing its front.
        """
        files = self.files
        if not files:
            return None
        index = (physic_offset - files[0].file_from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    @property
    def is_full(self) -> bool:
        """Whether nothing can be appended before the next file is made."""
        if self.prepared is not None or not self.files:
            return False
        return self.files[-1].wrote_position >= self.file_size

    # -- the next file ---------------------------------------------------------------------------

    def wanted_file_offset(self) -> int | None:
        """Return the start of the file to prepare now, None if there is none.

        That is the first file of an empty log, or the next file once the last is half written, or
        as soon as it is asked for.
        """
        if self.prepared is not None or self._closed:
            return None
        if not self.files:
            return self.first_file_offset
        last = self.files[-1]
        is_wanted = self.wants_next_file or last.wrote_position * 2 >= self.file_size
        return last.next_file_offset if is_wanted else None

    def create_file(self, file_from_offset: int) -> MappedFile:
        """Create, allocate and map a file; blocks, so a service runs it in a thread.

        Raises DiskError (DiskFullError where there is no space).
        """
        path = f"{self.path}/{file_name(file_from_offset)}"
        disk_file = self.disk.create_file(path, self.file_size)
        mapped_file = MappedFile(file_from_offset, self.file_size, disk_file)
        pool = self.transient_store_pool
        if pool is not None:
            mapped_file.begin_buffering(pool.borrow())
            pool.lock()
        return mapped_file

    def discard(self, mapped_file: MappedFile) -> None:
        """Remove a created file that will not be part of the log; blocks."""
        if mapped_file.write_buffer is not None and self.transient_store_pool is not None:
            self.transient_store_pool.give_back(mapped_file.write_buffer)
        mapped_file.close()
        self.disk.remove(mapped_file.path)

    def offer(self, mapped_file: MappedFile) -> None:
        """Hand over the wanted file; one that is no longer wanted is removed."""
        if mapped_file.file_from_offset != self.wanted_file_offset():
            self.discard(mapped_file)
            return
        self.prepared = mapped_file

    def take_prepared(self) -> MappedFile | None:
        """Make the prepared file the last of the log, and return it; None if there is none."""
        mapped_file = self.prepared
        if mapped_file is None:
            return None
        assert not self.files or self.files[-1].is_full
        assert not self.files or self.files[-1].next_file_offset == mapped_file.file_from_offset
        self.prepared, self.wants_next_file = None, False
        self.files.append(mapped_file)
        if self._notify_allocation is not None:
            self._notify_allocation()
        return mapped_file

    def subscribe(self, notify_allocation: Callable[[], None]) -> None:
        """Call ``notify_allocation`` from now on when a file is wanted, and when one has rolled."""
        self._notify_allocation = notify_allocation

    def want_file(self) -> None:
        """Notify the allocation service if a file is wanted now."""
        if self._notify_allocation is not None and self.wanted_file_offset() is not None:
            self._notify_allocation()

    # -- committing ------------------------------------------------------------------------------

    def begin_buffering(self, pool: TransientStorePool) -> None:
        """Let appends go to buffers of ``pool`` from now on, in the last and the prepared file too.

        Called once, before anything is appended.
        """
        assert self.transient_store_pool is None
        self.transient_store_pool = pool
        last = self.files[-1] if self.files else None
        for mapped_file in (last, self.prepared):
            if mapped_file is not None and not mapped_file.is_full:
                mapped_file.begin_buffering(pool.borrow())

    def commit_targets(self, least_pages: int = 0) -> list[tuple[MappedFile, int]]:
        """Return each file with bytes to commit, oldest first, and how far it is written now."""
        targets = []
        for mapped_file in reversed(self.files):
            if mapped_file.is_able_to_commit(least_pages):
                targets.append((mapped_file, mapped_file.wrote_position))
            elif mapped_file.is_full:
                break
        targets.reverse()
        return targets

    def mark_committed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Record that every target was committed to its position; take full files' buffers back."""
        for mapped_file, position in targets:
            buffer = mapped_file.mark_committed(position)
            if buffer is not None and self.transient_store_pool is not None:
                self.transient_store_pool.give_back(buffer)

    # -- flushing --------------------------------------------------------------------------------

    def flush_targets(self, least_pages: int = 0) -> list[tuple[MappedFile, int]]:
        """Return each file with bytes to flush, oldest first, and how far it is committed now.

        Flushing goes in order, so only files at the end can be dirty; all but the last are full, so
        ``least_pages`` can leave out only that one.
        """
        targets = []
        for mapped_file in reversed(self.files):
            if mapped_file.is_able_to_flush(least_pages):
                targets.append((mapped_file, mapped_file.committed_position))
            elif mapped_file.is_full and mapped_file.committed_position:
                break
        targets.reverse()
        return targets

    def mark_flushed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Record that every target was synced after its position had been read."""
        for mapped_file, position in targets:
            assert position <= mapped_file.committed_position
            mapped_file.flushed_position = max(mapped_file.flushed_position, position)

    # -- maps that are no longer needed ----------------------------------------------------------

    def rolled_files_with_lock(self) -> list[MappedFile]:
        """Return the rolled files whose map is still locked in memory."""
        return [mapped_file for mapped_file in self.files[:-1] if mapped_file.is_locked]

    def release_views(self) -> list[MappedFile]:
        """Release the views of flushed files that ``FILES_MAPPED`` others follow.

        Return these files: their ``disk_file`` is to be unmapped.
        """
        released = []
        for mapped_file in self.files[:-FILES_MAPPED]:
            is_flushed = mapped_file.flushed_position == self.file_size
            if is_flushed and mapped_file.disk_file.buffer is not None:
                mapped_file.release_view()
                released.append(mapped_file)
        return released

    # -- expiry ----------------------------------------------------------------------------------

    def take_first(self) -> MappedFile:
        """Take the oldest file out of the log; reads no longer find it.

        Only the front can be taken, and never the last file, so the log stays contiguous.  The file
        is still open and on disk; the caller removes and closes it.
        """
        assert len(self.files) > 1, "the last file of a log stays"
        first, *self.files = self.files
        return first

    def give_back(self, mapped_file: MappedFile) -> None:
        """Put back a file from ``take_first`` that could not be removed."""
        assert mapped_file.next_file_offset == self.files[0].file_from_offset
        self.files = [mapped_file, *self.files]

    # -- the end ---------------------------------------------------------------------------------

    def close(self, *, remove_prepared: bool) -> None:
        """Close every file; ``remove_prepared`` also removes the prepared one, which is empty.

        One that was asked for stays: the next role needs it.
        """
        self._closed = True
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.close()
            if remove_prepared and not self.wants_next_file:
                self.disk.remove(prepared.path)
        for mapped_file in self.files:
            mapped_file.close()
        if self.transient_store_pool is not None:
            self.transient_store_pool.close()
