"""Puts replicated bytes into the slave's log, waits for files, and measures a master's files.

``append`` copies into the map at the log's own end.  Where a frame would cross the end of our file
the master's files are larger: from then on bytes are only walked, not stored, until the first BLANK
gives the size to name (``hastore.ha.file_size_watch``).

Equal ends are not equal logs: an old master's unacknowledged tail may end where its successor's
log went on.  So each connection begins before the own end, and what comes again is compared, not
stored: ``OVERLAP_SIZE`` bytes at least, and the last whole message from its head on, which has its
offset, times and checksum.  Without a head, in a filler or a large body, parted logs could agree.

Invariant: ``position`` is the stream's next byte; it equals the log's max offset while storing, and
nothing behind it has been compared with the master's log yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.concurrency.tcp import describe
from hastore.errors import DiskError, DivergedError, FileSizeMismatchError
from hastore.ha.file_size_watch import (
    FirstBlankFinder,
    blank_size,
    ends_with_blank,
    find_first_blank,
)
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
    from hastore.flush.flush_manager import FlushManager
    from hastore.store.commit_log import CommitLog

OVERLAP_SIZE: Final = 4096
FIRST_OFFSET_MIN: Final = 3  # 0, 1 and 2 as a first report are a new slave's wishes

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
    notify_dispatch: Callable[[], None]
    # Where some message begins that is whole in the log, the later the better; None: not known.
    last_message_offset: Callable[[], int | None]
    # The next byte of the stream: <= the log's max offset while comparing, = it while storing, and
    # beyond it while measuring.
    position: int = attrs.field(init=False)
    # Where the master's log begins, as far as it was told: nothing before can be compared.
    _masters_min_offset: int = attrs.field(default=0, init=False)
    _finder: FirstBlankFinder | None = attrs.field(default=None, init=False)
    # What walked the own bytes of one file last: asked again, it goes on where it was.
    _own_finder: FirstBlankFinder | None = attrs.field(default=None, init=False)
    # Whether bytes that have come wait for our own disk: then the master's silence counts for
    # nothing.
    is_waiting: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin at the log's end."""
        self.position = self.commit_log.max_offset

    @property
    def is_measuring(self) -> bool:
        """Whether the master's files are known to be larger, and bytes are no longer stored."""
        return self._finder is not None

    @property
    def is_comparing(self) -> bool:
        """Whether the overlap is not compared to its end yet."""
        return self.position < self.commit_log.max_offset

    def reset(self) -> None:
        """Begin a new connection, an overlap before the log's end."""
        log = self.commit_log
        end = log.max_offset
        self.position = end
        if end > FIRST_OFFSET_MIN:
            head = self.last_message_offset()
            if head is None or not log.min_offset <= head < end:
                head = end - 1 - (end - 1) % log.file_size  # a file begins with one
            start = max(min(end - OVERLAP_SIZE, head), log.min_offset, FIRST_OFFSET_MIN)
            self.position = min(max(start, self._masters_min_offset), end)
        self._finder = self._own_finder = None

    def begin_later(self, masters_min_offset: int) -> None:
        """Compare fewer bytes from the next link on: the master's log begins there now."""
        self._masters_min_offset = masters_min_offset

    def compare(self, physic_offset: int, body: memoryview) -> int:
        """Compare what the log has already; give how many bytes of ``body`` that was.

        Raises DivergedError where master and slave hold different bytes, DiskError where the own
        ones have expired since the link began.
        """
        log = self.commit_log
        if self.position < log.min_offset:
            msg = (
                f"{log.path}: the bytes from {self.position} on have expired: comparing later ones"
            )
            raise DiskError(msg, path=log.path)
        size = min(log.max_offset - physic_offset, len(body))
        while size > 0:
            own = log.read(self.position, size)  # up to a file's end
            start = self.position - physic_offset
            with body[start : start + len(own)] as masters:
                if own != masters:
                    msg = (
                        f"master and slave hold different bytes between {self.position}"
                        f" and {self.position + len(own)}: not the same log"
                    )
                    raise DivergedError(
                        msg,
                        master_offset=self.position,
                        slave_offset=log.max_offset,
                        hint="compare the two: hastore log diff MASTER_DIR SLAVE_DIR;"
                        " or give this slave an empty --data directory",
                    )
            self.position += len(own)
            size -= len(own)
        return self.position - physic_offset

    async def append(self, physic_offset: int, body: memoryview) -> None:
        """Append one frame's body.

        Raises DiskError where the next file cannot be had, FileSizeMismatchError once the master's
        file size is known to be another.
        """
        commit_log = self.commit_log
        if self._finder is None and self.is_comparing:
            known = self.compare(physic_offset, body)
            if known < len(body):
                with body[known:] as news:
                    await self.append(physic_offset + known, news)
            return
        if self._finder is None:
            try:
                while not commit_log.append_data(physic_offset, body):
                    self.is_waiting = True
                    await self.allocate_service.wait_for_file()
            except FileSizeMismatchError:
                await self._start_measuring(physic_offset)
            else:
                self.position = commit_log.max_offset
                self.flush_manager.notify_appended()
                self.notify_dispatch()
                at_file_end = self.position % commit_log.file_size == 0
                if at_file_end != ends_with_blank(body):
                    await self._check_layout()
                return
            finally:
                self.is_waiting = False
        self._measure(physic_offset, body)

    async def _start_measuring(self, physic_offset: int) -> None:
        log = self.commit_log
        if log.max_offset != physic_offset:  # an empty log, and none of its files starts there
            raise self._mismatch(None)
        self._finder = finder = await self._find_first_blank(log.min_offset)
        _log.info("master_file_size_differs", own=log.file_size, stored_until=log.max_offset)
        if finder.found is not None:
            raise self._mismatch(finder.found - finder.walked_from)

    def _measure(self, physic_offset: int, body: memoryview) -> None:
        finder = self._finder
        assert finder is not None
        found = finder.feed(physic_offset, body)
        self.position = physic_offset + len(body)
        if found is not None:
            raise self._mismatch(found - finder.walked_from)
        if finder.is_lost:
            raise self._mismatch(None)

    async def _check_layout(self) -> None:
        """Walk the file just written: its first BLANK must end where the file does.

        Asked where a file of ours ends without a visible BLANK, or a BLANK ends elsewhere.
        """
        log = self.commit_log
        start = (self.position - 1) // log.file_size * log.file_size
        start = max(start, log.min_offset)
        finder = await self._find_first_blank(start)
        found = finder.found
        if found == start - start % log.file_size + log.file_size or finder.is_lost:
            return
        if found is not None:
            raise self._mismatch(found - start)
        if self.position % log.file_size == 0:
            self._finder = finder
            _log.info("master_file_size_differs", own=log.file_size, stored_until=self.position)

    async def file_end_at(self, physic_offset: int) -> FileSizeMismatchError | None:
        """Return the error that is due where a BLANK stands at ``physic_offset`` and ends no file.

        The dispatch may come by before ``_check_layout`` has walked the file.
        """
        log = self.commit_log
        start = max(physic_offset - physic_offset % log.file_size, log.min_offset)
        found = (await self._find_first_blank(start)).found
        if found is None or found % log.file_size == 0:
            return None
        size = blank_size(log.read(physic_offset, BLANK_SIZE_MIN))
        return self._mismatch(found - start) if physic_offset + size == found else None

    async def _find_first_blank(self, start: int) -> FirstBlankFinder:
        """Walk the own bytes from ``start`` on; those that were walked before are not read again.

        A body that is made of what looks like BLANKs has every frame ask for a walk: from the start
        each time, that held up acks for the time of 16 walks over 300 MiB.
        """
        log = self.commit_log
        end = log.max_offset
        finder = self._own_finder
        # Fed beyond the end: with bytes of the master's that were not stored, or that are gone.
        if finder is None or finder.walked_from != start or finder.fed_until > end:
            self._own_finder = finder = FirstBlankFinder(start)
        was_waiting, self.is_waiting = self.is_waiting, True
        try:
            await self.env.offload.run(lambda: find_first_blank(finder, log.read, end))
        finally:
            self.is_waiting = was_waiting
        return finder

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
