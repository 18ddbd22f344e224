"""The files of a commit log in order, and the next one, made ready before it is needed.

    commitlog/00000000000000000000   commitlog/00000000001073741824   …   (prepared)
              └── file_size bytes ──┘└── file_size bytes ──┘

A file is found by division: names are start offsets, all sizes are equal, and files at the front
may have been deleted.  The *prepared* file lies behind the last one, is all zeros, and is no part
of the log until ``take_prepared`` moves it in.

Invariants: files are contiguous; every file but the last is full; flushed ≤ wrote in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.mapped_file import MappedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk

FILE_NAME_SIZE: Final = 20


def file_name(file_from_offset: int) -> str:
    """Give the name of the file that starts at an offset: 20 decimal digits."""
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
        """Give the file that holds an offset, by division; None where no file does."""
        if not self.files:
            return None
        index = (physic_offset - self.files[0].file_from_offset) // self.file_size
        return self.files[index] if 0 <= index < len(self.files) else None

    # -- the next file ---------------------------------------------------------------------------

    def wanted_file_offset(self) -> int | None:
        """Give the start of the file that should be made ready now, None if there is none.

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
        return MappedFile(file_from_offset, self.file_size, disk_file)

    def offer(self, mapped_file: MappedFile) -> None:
        """Hand over the file that was wanted; one that nobody wants any more is removed again."""
        if mapped_file.file_from_offset != self.wanted_file_offset():
            mapped_file.close()
            self.disk.remove(mapped_file.path)
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
        return mapped_file

    def want_file(self) -> None:
        """Tell whoever makes files that one is wanted now."""
        if self.on_file_wanted is not None and self.wanted_file_offset() is not None:
            self.on_file_wanted()

    # -- flushing --------------------------------------------------------------------------------

    def flush_targets(self) -> list[tuple[MappedFile, int]]:
        """Give each file with bytes to flush, oldest first, and how far it is written now.

        Flushing goes in order, so only files at the end can be dirty.
        """
        targets = []
        for mapped_file in reversed(self.files):
            if mapped_file.flushed_position < mapped_file.wrote_position:
                targets.append((mapped_file, mapped_file.wrote_position))
            elif mapped_file.wrote_position:
                break
        targets.reverse()
        return targets

    def mark_flushed(self, targets: list[tuple[MappedFile, int]]) -> None:
        """Note that every target was synced after its wrote position had been read."""
        for mapped_file, position in targets:
            assert position <= mapped_file.wrote_position
            mapped_file.flushed_position = max(mapped_file.flushed_position, position)

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
