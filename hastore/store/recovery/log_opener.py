"""Opens the files of a log whose end is known, and makes them match that end on disk.

::

    file 0 ── read only      file 1 ── mapped                       file 2 ── prepared
    record … BLANK filler │  record … (durable) record │ 0000 …     0000 …            (removed)
                                      └─ written again ┘└ zeroed ─────────┘
                                      └─ forgotten by the cache ──────────┘

Order: files after the prepared one are removed; the others are opened; then, from the last file to
the first, bytes that may not be on disk are dropped from the cache and written again, dead bytes
are zeroed, and the file is synced; then the directory; the rewritten bytes are checked; only then
are positions set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.errors import DiskError
from hastore.store.log.mapped_file import MappedFile
from hastore.store.log.mapped_file_queue import FILES_MAPPED, MappedFileQueue, file_name
from hastore.store.recovery.tail_scan import FileWalk
from hastore.store.recovery.trim import Range, write_again, zero

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk
    from hastore.store.log.store_directory import LogFiles
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.recovery.progress import Progress


@attrs.frozen(kw_only=True)
class LogEnd:
    """Where the log ends: ``position`` in file ``index``, and the check of what is there.

    ``ranges`` are the bytes after it that are not 0; ``intact_offset`` is the first intact record
    among them.
    """

    index: int
    position: int
    check: RecordCheck | None
    ranges: tuple[Range, ...] = ()
    intact_offset: int | None = None

    def offset(self, found: LogFiles) -> int:
        """Return the log's end; without a file the offset that an empty one names."""
        if not found.offsets:
            return found.empty_offset
        return found.offsets[self.index] + self.position


@final
@attrs.define(eq=False, kw_only=True)
class LogOpener:
    """Opens one log, once.

    ``rewrite_from``: from here on bytes may be in the page cache only; None after a clean stop.
    ``dead``: bytes that must be zeros.  ``removed`` (paths) and ``written_again`` (bytes) report
    what was done.
    """

    disk: Disk
    path: str
    found: LogFiles
    end: LogEnd
    rewrite_from: int | None
    dead: Sequence[Range]
    progress: Progress
    check_from: int | None = None  # a record at or before ``rewrite_from``; None: nothing to check
    removed: list[str] = attrs.field(factory=list, init=False)
    written_again: int = attrs.field(default=0, init=False)

    def open(self, *, begins_anywhere: bool, syncs: bool) -> MappedFileQueue:
        """Open the files; blocks.  Raises DiskError after closing everything.

        ``begins_anywhere``: if the log is empty, its start is not known yet (a slave's).
        ``syncs``: sync every file, not only the changed ones.
        """
        queue = MappedFileQueue(self.disk, self.path, self.found.file_size)
        try:
            self._open_files(queue, begins_anywhere=begins_anywhere)
            self._change_files(queue, syncs=syncs)
            if self.rewrite_from is not None and self.check_from is not None:
                self._check_again(queue, self.rewrite_from, self.check_from)
        except BaseException:
            queue.close(remove_prepared=False)
            raise
        for mapped_file in queue.files:
            mapped_file.wrote_position = mapped_file.flushed_position = self.found.file_size
        if queue.files and self.end.index == len(queue.files) - 1:
            last = queue.files[-1]
            last.wrote_position = last.flushed_position = self.end.position
        return queue

    def _open_files(self, queue: MappedFileQueue, *, begins_anywhere: bool) -> None:
        """Open the files that the log uses and the prepared one after them; remove the rest."""
        found, end = self.found, self.end
        used = min(end.index + (1 if end.position else 0), len(found.offsets))
        kept = 0
        if used or not begins_anywhere:
            queue.first_file_offset = found.offsets[0] if found.offsets else found.empty_offset
            kept = used + 1
        for offset in reversed(found.offsets[kept:]):
            self._remove(f"{self.path}/{file_name(offset)}")
        if found.unfinished is not None:
            self._remove(f"{self.path}/{found.unfinished.name}")
        for index, offset in enumerate(found.offsets[:kept]):
            changes = self._doubtful_part(offset) is not None or bool(self._dead_parts(offset))
            is_mapped = index >= used - FILES_MAPPED or changes
            path = f"{self.path}/{file_name(offset)}"
            disk_file = self.disk.open_file(path, writable=is_mapped)
            mapped_file = MappedFile(offset, found.file_size, disk_file)
            if index < used:
                queue.files.append(mapped_file)
            else:
                queue.prepared = mapped_file

    def _dead_parts(self, file_from_offset: int) -> list[tuple[int, int]]:
        """Return the dead positions of a file."""
        size = self.found.file_size
        clipped = [
            (max(part.start - file_from_offset, 0), min(part.stop - file_from_offset, size))
            for part in self.dead
        ]
        return [(start, stop) for start, stop in clipped if start < stop]

    def _doubtful_part(self, file_from_offset: int) -> tuple[int, int] | None:
        """Return the positions of a file that may be in the page cache only; None if none are.

        The range is empty if the log ends before it.  Bytes after its end are doubtful too: a tail
        that was cut off, or the BLANK before which a slave's log ends.
        """
        size = self.found.file_size
        if self.rewrite_from is None or self.rewrite_from >= file_from_offset + size:
            return None
        start = max(self.rewrite_from - file_from_offset, 0)
        stop = min(self.end.offset(self.found) - file_from_offset, size)
        return start, max(start, stop)

    def _change_files(self, queue: MappedFileQueue, *, syncs: bool) -> None:
        files = [*queue.files, queue.prepared] if queue.prepared is not None else queue.files
        if self.rewrite_from is not None:
            self.progress.begin("writing again", self.end.offset(self.found) - self.rewrite_from)
        for mapped_file in reversed(files):
            disk_file = mapped_file.disk_file
            doubtful = self._doubtful_part(mapped_file.file_from_offset)
            dead = self._dead_parts(mapped_file.file_from_offset)
            if doubtful is not None:  # first, while no page is dirty
                write_again(disk_file, *doubtful, on_written=self.progress.advance)
                self.written_again += doubtful[1] - doubtful[0]
            for start, stop in dead:
                zero(disk_file, start, stop)
            if doubtful is not None or dead or syncs:
                disk_file.sync()
        if syncs and files:
            self.disk.sync_dir(self.path)

    def _check_again(self, queue: MappedFileQueue, rewrite_from: int, check_from: int) -> None:
        """Raise DiskError if the log has changed since its end was found.

        The kernel drops bytes that a failed sync left in the cache only when it needs the memory,
        and that may have been just before they were written again.
        """
        size = self.found.file_size
        check_from = max(
            check_from, rewrite_from - rewrite_from % size
        )  # a record begins at a file's start
        self.progress.begin("checking again", self.end.offset(self.found) - check_from)
        walk = FileWalk(table=None, torn_from=rewrite_from, on_walked=self.progress.advance)
        for mapped_file in queue.files:
            start, file_end = mapped_file.file_from_offset, mapped_file.file_from_offset + size
            if file_end <= check_from:
                continue
            stopped = walk.walk(
                mapped_file.disk_file,
                start,
                check_crc=True,
                position=max(check_from - start, 0),
            )
            reached = start + stopped.position
            if reached < min(self.end.offset(self.found), file_end):
                raise DiskError(
                    f"{mapped_file.path} changed at offset {reached} while the log was opened:"
                    " bytes that a failed sync had left in the page cache only are lost",
                    path=mapped_file.path,
                    hint="start again: the log then ends before that",
                )

    def _remove(self, path: str) -> None:
        self.disk.remove(path)
        self.removed.append(path)
