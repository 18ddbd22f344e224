"""Puts replicated bytes into the slave's log, waits for files, and measures a master's files.

``append`` copies into the map at the log's own end.  Where a frame would cross the end of our file
the master's files are larger: from then on bytes are only walked, not stored, until the first BLANK
gives the size to name (``hastore.ha.file_size_watch``).

Invariant: ``position`` is the stream's next byte; it equals the log's max offset while storing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.concurrency.tcp import describe
from hastore.errors import FileSizeMismatchError
from hastore.ha.file_size_watch import FirstBlankFinder, ends_with_blank, find_first_blank
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
    from hastore.flush.flush_manager import FlushManager
    from hastore.store.commit_log import CommitLog

_log = logger("ha")


@final
@attrs.define(eq=False)
class SlaveAppender:
    """The slave's commit log as the HAClient writes it."""

    env: Env
    commit_log: CommitLog
    flush_manager: FlushManager
    allocate_service: AllocateMappedFileService
    master: tuple[str, int]
    position: int = attrs.field(init=False)
    _finder: FirstBlankFinder | None = attrs.field(default=None, init=False)
    _walked_from: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin at the log's end."""
        self.position = self.commit_log.max_offset

    @property
    def is_measuring(self) -> bool:
        """Whether the master's files are known to be larger, and bytes are no longer stored."""
        return self._finder is not None

    def reset(self) -> None:
        """Begin a new connection at the log's end."""
        self.position = self.commit_log.max_offset
        self._finder = None

    async def append(self, physic_offset: int, body: memoryview) -> None:
        """Append one frame's body.

        Raises DiskError where the next file cannot be had, FileSizeMismatchError once the master's
        file size is known to be another.
        """
        commit_log = self.commit_log
        if self._finder is None:
            try:
                while not commit_log.append_data(physic_offset, body):
                    await self.allocate_service.wait_for_file()
            except FileSizeMismatchError:
                await self._start_measuring()
            else:
                self.position = commit_log.max_offset
                self.flush_manager.notify_appended()
                at_file_end = self.position % commit_log.file_size == 0
                if at_file_end != ends_with_blank(body):
                    await self._check_layout()
                return
        self._measure(physic_offset, body)

    def room_for(self, physic_offset: int, size: int) -> bool:
        """Whether a frame of ``size`` bytes fits the file being written, at the log's end."""
        log = self.commit_log
        if self._finder is not None or physic_offset != log.max_offset:
            return False
        with log.room(size) as room:
            return len(room) == size

    def filled(self, size: int) -> None:
        """Count bytes that were received straight into the log's room."""
        self.commit_log.filled(size)
        self.position = self.commit_log.max_offset
        self.flush_manager.notify_appended()

    async def end_frame(self, size: int) -> None:
        """Look at the layout after a frame of ``size`` bytes was received straight into the log."""
        with self.commit_log.written(size) as body:
            looks_wrong = (self.position % self.commit_log.file_size == 0) != ends_with_blank(body)
        if looks_wrong:
            await self._check_layout()

    async def _start_measuring(self) -> None:
        log = self.commit_log
        self._walked_from = log.min_offset
        found, self._finder = await self._find_first_blank(log.min_offset)
        _log.warning("master_file_size_differs", own=log.file_size, stored_until=log.max_offset)
        if found is not None:
            raise self._mismatch(found - log.min_offset)

    def _measure(self, physic_offset: int, body: memoryview) -> None:
        assert self._finder is not None
        found = self._finder.feed(physic_offset, body)
        self.position = physic_offset + len(body)
        if found is not None:
            raise self._mismatch(found - self._walked_from)
        if self._finder.is_lost:
            raise self._mismatch(None)

    async def _check_layout(self) -> None:
        """Walk the file just written: its first BLANK must end where the file does.

        Asked where a file of ours ends without a visible BLANK, or a BLANK ends elsewhere.
        """
        log = self.commit_log
        start = (self.position - 1) // log.file_size * log.file_size
        start = max(start, log.min_offset)
        found, finder = await self._find_first_blank(start)
        if found == start - start % log.file_size + log.file_size or finder.is_lost:
            return
        if found is not None:
            raise self._mismatch(found - start)
        if self.position % log.file_size == 0:
            self._finder, self._walked_from = finder, start
            _log.warning("master_file_size_differs", own=log.file_size, stored_until=self.position)

    async def _find_first_blank(self, start: int) -> tuple[int | None, FirstBlankFinder]:
        log = self.commit_log
        end = log.max_offset
        return await self.env.offload.run(lambda: find_first_blank(log.read, start, end))

    def _mismatch(self, master_size: int | None) -> FileSizeMismatchError:
        own = self.commit_log.file_size
        path = self.commit_log.path
        named = "another size" if master_size is None else f"{master_size} bytes"
        size = "SIZE" if master_size is None else str(master_size)
        return FileSizeMismatchError(
            f"this slave's files are {own} bytes, those of master {describe(self.master)}"
            f" are {named}",
            path=path,
            size_found=own,
            size_wanted=master_size or own,
            hint=f"start again with an empty --data directory and --mapped-file-size {size}",
        )
