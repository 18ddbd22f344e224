"""The files of a commit log in order, and the next one, made ready before it is needed.

    commitlog/00000000000000000000   commitlog/00000000001073741824   …   (prepared)
              └── file_size bytes ──┘└── file_size bytes ──┘

A file is found by division: names are start offsets, all sizes are equal, and files at the front
may have been deleted.  The *prepared* file lies behind the last one, is all zeros, and is no part
of the log until ``take_prepared`` moves it in.

With a transient store pool, each file that is made gets a write buffer; appends are committed in
order, file by file.

Invariants: files are contiguous; every file but the last is full; flushed ≤ committed ≤ wrote in
each; a file with uncommitted bytes is followed by files without a committed one.
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


@final
@attrs.define(eq=False)
class MappedFileQueue:
    """The open files of the directory ``path``.

    ``first_file_offset`` is where the first file of an empty log starts; None while a slave has
    not yet learned it from its master.
    """

    disk: Disk
    path: str
    file_size: int
    first_file_offset: int | None = None
    files: list[MappedFile] = attrs.field(factory=list)
    prepared: MappedFile | None = None
    on_file_wanted: Callable[[], None] | None = None
    on_rolled: Callable[[], None] | None = None
    transient_store_pool: TransientStorePool | None = None
    _closed: bool = attrs.field(default=False, init=False)

    # -- looking up ------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Start of the first file; the end of an empty log."""
        if self.files:
            return self.files[0].file_from_offset
        return self.first_file_offset or 0

    @property
    def max_offset(self) -> int:
        """End of what was written."""
        if self.files:
            last = self.files[-1]
            return last.file_from_offset + last.wrote_position
        return self.first_file_offset or 0

    @property
    def committed_offset(self) -> int:
        """End of what is in the files, without a gap before it."""
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
        """End of what is known to be on the disk, without a gap before it."""
        flushed_offset = self.max_offset
        for mapped_file in reversed(self.files):
            if mapped_file.flushed_position < mapped_file.wrote_position:
                flushed_offset = mapped_file.file_from_offset + mapped_file.flushed_position
            elif mapped_file.wrote_position:
                break
        return flushed_offset

    def find_mapped_file_by_offset(self, physic_offset: int) -> MappedFile | None:
        """Return the file that holds an offset, by division; None where no file does.

        Safe in any thread: the front of a list of files never changes, see ``take_first``.
        """
        files = self.files
        if not files:
            return None
        index = (physic_offset - files[0].file_from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    # -- the next file ---------------------------------------------------------------------------

    def wanted_file_offset(self) -> int | None:
        """Return the start of the file that should be made ready now, None if there is none.

        That is the first file of an empty log, and the next file once the last is half written.
        """
        if self.prepared is not None or self._closed:
            return None
        if not self.files:
            return self.first_file_offset
        last = self.files[-1]
        return last.next_file_offset if last.wrote_position * 2 >= self.file_size else None

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
        """Remove a file that was created and is not to be part of the log; blocks."""
        if mapped_file.write_buffer is not None and self.transient_store_pool is not None:
            self.transient_store_pool.give_back(mapped_file.write_buffer)
        mapped_file.close()
        self.disk.remove(mapped_file.path)

    def offer(self, mapped_file: MappedFile) -> None:
        """Hand over the file that was wanted; one that nobody wants any more is removed again."""
        if mapped_file.file_from_offset != self.wanted_file_offset():
            self.discard(mapped_file)
            return
        self.prepared = mapped_file

    def take_prepared(self) -> MappedFile | None:
        """Make the prepared file the last of the log; None while there is none."""
        mapped_file = self.prepared
        if mapped_file is None:
            return None
        assert not self.files or self.files[-1].is_full
        assert not self.files or self.files[-1].next_file_offset == mapped_file.file_from_offset
        self.prepared = None
        self.files.append(mapped_file)
        if self.on_rolled is not None:
            self.on_rolled()
        return mapped_file

    def want_file(self) -> None:
        """Tell whoever makes files that one is wanted now."""
        if self.on_file_wanted is not None and self.wanted_file_offset() is not None:
            self.on_file_wanted()

    # -- committing ------------------------------------------------------------------------------

    def begin_buffering(self, pool: TransientStorePool) -> None:
        """Let appends go to buffers of ``pool`` from now on: the last file's too, and the next's.

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
        """Note that every target was committed up to its position; full files' buffers go back."""
        for mapped_file, position in targets:
            buffer = mapped_file.mark_committed(position)
            if buffer is not None and self.transient_store_pool is not None:
                self.transient_store_pool.give_back(buffer)

    # -- flushing --------------------------------------------------------------------------------

    def flush_targets(self, least_pages: int = 0) -> list[tuple[MappedFile, int]]:
        """Return each file with bytes to flush, oldest first, and how far it is committed now.

        Flushing goes in order, so only files at the end can be dirty; ``least_pages`` can leave out
        the last, because every other is full.
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
        """Note that every target was synced after its position had been read."""
        for mapped_file, position in targets:
            assert position <= mapped_file.committed_position
            mapped_file.flushed_position = max(mapped_file.flushed_position, position)

    # -- maps that are no more needed ------------------------------------------------------------

    def rolled_files_with_lock(self) -> list[MappedFile]:
        """Return the files whose map is locked in memory although nothing is written there now."""
        return [mapped_file for mapped_file in self.files[:-1] if mapped_file.is_locked]

    def release_views(self) -> list[MappedFile]:
        """Give up the views of old files; gives the files whose ``disk_file`` is to be unmapped.

        Those are full, flushed, and followed by ``FILES_MAPPED`` others.
        """
        given_up = []
        for mapped_file in self.files[:-FILES_MAPPED]:
            is_flushed = mapped_file.flushed_position == self.file_size
            if is_flushed and mapped_file.disk_file.buffer is not None:
                mapped_file.release_view()
                given_up.append(mapped_file)
        return given_up

    # -- expiry ----------------------------------------------------------------------------------

    def take_first(self) -> MappedFile:
        """Take the oldest file out of the log; nobody finds it any more.

        Only the front can be taken, and never the last file, so the log stays contiguous.  The file
        is still open, and still on the disk: removing and closing it is its taker's.
        """
        assert len(self.files) > 1, "the last file of a log stays"
        first, *self.files = self.files
        return first

    def give_back(self, mapped_file: MappedFile) -> None:
        """Put the file back that ``take_first`` gave: it could not be removed."""
        assert mapped_file.next_file_offset == self.files[0].file_from_offset
        self.files = [mapped_file, *self.files]

    # -- the end ---------------------------------------------------------------------------------

    def close(self, *, remove_prepared: bool) -> None:
        """Close every file; the prepared one holds nothing and may be removed."""
        self._closed = True
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.close()
            if remove_prepared:
                self.disk.remove(prepared.path)
        for mapped_file in self.files:
            mapped_file.close()
        if self.transient_store_pool is not None:
            self.transient_store_pool.close()
