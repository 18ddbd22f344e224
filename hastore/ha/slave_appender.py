"""Appends replicated bytes to the slave's log, and measures the master's files.

Where a frame would cross the end of our file, the master's files are larger: from then on bytes are
only scanned, not stored, until the first BLANK tells the size (``hastore.ha.file_size_watch``).

Equal ends do not prove equal logs: an old master's unacknowledged tail may end where its
successor's log continues.  So each link begins below our end, and bytes that our log has are
compared: at least ``OVERLAP_SIZE``, and all of the last whole message.  Its header holds its
offset, times and checksum; a filler or a part of a large body may be equal in diverged logs.  Where
the log of a group's node is not verified, its bytes may differ.

Invariant: ``position`` is the stream's next byte; no byte of our log at or after it has been
compared with the master's on this link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore.concurrency.tcp import describe
from hastore.errors import DiskError, DivergedError, ExpiredError, FileSizeMismatchError
from hastore.ha.file_size_watch import (
    LAST_OF_BLANK,
    TAIL_SIZE,
    FirstBlankFinder,
    blank_size,
    ends_with_blank,
    find_first_blank,
)
from hastore.ha.slave_framing import ClassicFraming
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.trace import logger
from hastore.wire.ha_frames import FIRST_OFFSET_MIN, OVERLAP_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
    from hastore.flush.flush_manager import FlushManager
    from hastore.ha.slave_framing import LinkStart, SlaveFraming
    from hastore.store.commit_log import CommitLog
    from hastore.wire.double_read_buffer import DoubleReadBuffer

FRAMES_PER_TURN_MAX: Final = 1000  # small frames take 2 us each; then other tasks run

_log = logger("ha")
_new_tuple = tuple.__new__


class CutNeededError(Exception):
    """By its epochs our log must end at ``physic_offset``: the bytes below equal the master's."""

    def __init__(self, physic_offset: int, end_offset: int) -> None:
        super().__init__(f"the log must be cut at {physic_offset}; it ends at {end_offset}")
        self.physic_offset = physic_offset
        self.end_offset = end_offset


class AppendedFrames(NamedTuple):
    """Frames that were appended in one pass, at least one."""

    frames: int
    last_size: int  # bytes of the last body
    size_before: int  # of the one before; 0 if there is only one


@final
@attrs.define(eq=False, kw_only=True)
class SlaveAppender:
    """Writes the HAClient's frames to the slave's commit log."""

    env: Env
    commit_log: CommitLog
    flush_manager: FlushManager
    allocate_service: AllocateMappedFileService
    master: tuple[str, int]
    notify_dispatch: Callable[[], None]
    # Returns where a whole message of the log begins, if possible the last; None if unknown.
    last_message_offset: Callable[[], int | None]
    framing: SlaveFraming = attrs.field(factory=ClassicFraming)
    # The next byte of the stream: below the log's max offset while comparing, equal to it while
    # storing, and above it while measuring.
    position: int = attrs.field(init=False)
    # The least offset at which the master's log may begin: bytes below cannot be compared.
    _masters_min_offset: int = attrs.field(default=0, init=False)
    # Scans the stream while measuring; None while bytes are stored.
    _finder: FirstBlankFinder | None = attrs.field(default=None, init=False)
    # The last scan of a file of ours, so that the next one continues it.
    _own_finder: FirstBlankFinder | None = attrs.field(default=None, init=False)
    # Whether our log began this link at a file's end, which may be inside a record of the master.
    _must_check_end: bool = attrs.field(default=False, init=False)
    # Where our log is to be cut, once the bytes below have been compared; None: nowhere.
    _cut_at: int | None = attrs.field(default=None, init=False)
    # Whether received bytes wait for our disk: then the master's silence does not count.
    is_waiting: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin at the log's end."""
        self.position = self.commit_log.max_offset

    @property
    def is_measuring(self) -> bool:
        """Whether the master's files are larger, and bytes are scanned instead of stored."""
        return self._finder is not None

    @property
    def is_comparing(self) -> bool:
        """Whether some of the overlap has not been compared yet."""
        return self.position < self.commit_log.max_offset

    def reset(self, start: LinkStart | None = None) -> None:
        """Set ``position`` for a new link: an overlap below the log's end, or below ``start``'s.

        Raises ExpiredError if the master has deleted all that could be compared before a cut.
        """
        log = self.commit_log
        end = log.max_offset if start is None else start.point
        masters_min_offset = self._masters_min_offset
        if start is not None:
            masters_min_offset = max(masters_min_offset, start.asked_min)
        self.position = end
        if end > FIRST_OFFSET_MIN:
            head = self.last_message_offset()
            if head is None or not log.min_offset <= head < end:
                head = end - 1 - (end - 1) % log.file_size  # a file begins with a message
            first = max(min(end - OVERLAP_SIZE, head), log.min_offset, FIRST_OFFSET_MIN)
            self.position = min(max(first, masters_min_offset), end)
        self._finder = self._own_finder = None
        self._must_check_end = end > log.min_offset and end % log.file_size == 0
        self._cut_at = end if end < log.max_offset else None
        if self._cut_at is not None and self.position == end:
            msg = (
                f"too far behind: this slave's log agrees with the master's up to {end}, and the"
                f" master's begins at {masters_min_offset} now: nothing is left to compare"
            )
            raise ExpiredError(
                msg,
                min_offset=masters_min_offset,
                slave_offset=log.max_offset,
                hint="re-seed: start this slave with an empty --data directory",
            )

    def begin_later(self, masters_min_offset: int) -> None:
        """Compare fewer bytes from the next link on, because the master's log begins there."""
        self._masters_min_offset = masters_min_offset

    def append_frames(self, buffer: DoubleReadBuffer) -> AppendedFrames | None:
        """Append the whole frames at the buffer's front that simply continue our log.

        Only while bytes are stored.  Return None if there is none; ``append`` takes every other
        frame: a heartbeat, one that begins a file or does not fit into it, one that may show
        another file size.  The caller calls ``notify`` afterwards.  Raises DiskError.
        """
        if self._finder is not None:
            return None
        log, view = self.commit_log, buffer.view
        position = self.position
        start, end = buffer.dispatch_position, buffer.write_position
        count = size = size_before = 0
        append_data, file_size = log.append_data, log.file_size
        header_size, plain_header = self.framing.header_size, self.framing.plain_header
        try:
            while end - start >= header_size and count < FRAMES_PER_TURN_MAX:
                physic_offset, body_size = plain_header(view, start)
                body_start = start + header_size
                body_end = body_start + body_size
                if physic_offset != position or body_size <= 0 or body_end > end:
                    break
                in_file = position % file_size
                room = file_size - in_file - body_size
                if not in_file or room < 0:
                    break
                with view[body_start:body_end] as body:
                    may_be_blank = not room or body[-1] in LAST_OF_BLANK
                    if may_be_blank and (not room) != ends_with_blank(body):
                        break
                    append_data(position, body)
                position += body_size
                start = body_end
                count += 1
                size_before, size = size, body_size
        except DiskError:
            self.notify()
            raise
        finally:
            buffer.consume(start - buffer.dispatch_position)
            self.position = position
        if not count:
            return None
        # As AppendedFrames(...), at half the cost.
        return _new_tuple(AppendedFrames, (count, size, size_before))

    def notify(self) -> None:
        """Wake flush and dispatch for appended bytes."""
        self.flush_manager.notify_appended()
        self.notify_dispatch()

    def compare(self, physic_offset: int, body: memoryview) -> int:
        """Compare ``body`` with our log; return how many bytes of it our log has.

        Raises DivergedError if they differ, DiskError if ours have expired since the link began,
        CutNeededError once all is compared that is to be kept.
        """
        log = self.commit_log
        if self.position < log.min_offset:
            msg = (
                f"{log.path}: the bytes from {self.position} on have expired: comparing later ones"
            )
            raise DiskError(msg, path=log.path)
        until = log.max_offset if self._cut_at is None else self._cut_at
        size = min(until - physic_offset, len(body))
        while size > 0:
            own = log.read(self.position, size)  # up to a file's end
            start = self.position - physic_offset
            with body[start : start + len(own)] as masters:
                if own != masters and not self._may_differ(own, masters):
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
        if self.position == self._cut_at:
            raise CutNeededError(self.position, log.max_offset)
        return self.position - physic_offset

    def _may_differ(self, own: bytes, masters: memoryview) -> bool:
        """Return whether bytes from ``position`` on differ only where our log is not verified.

        That part is compared, and written again, once the link is in step (``LogComparison``).
        """
        part = self.framing.unverified
        if part is None:
            return False
        first = min(max(part.begin - self.position, 0), len(own))
        last = min(max(part.end - self.position, first), len(own))
        return own[:first] == masters[:first] and own[last:] == masters[last:]

    async def append(self, physic_offset: int, body: memoryview) -> None:
        """Compare, store or scan one frame's body.

        Raises DivergedError, CutNeededError, DiskError if the next file cannot be created, and
        FileSizeMismatchError once the master's files are known to have another size.
        """
        commit_log = self.commit_log
        if self._finder is None and self.is_comparing:
            known = self.compare(physic_offset, body)
            if known < len(body):
                with body[known:] as news:
                    await self.append(physic_offset + known, news)
            return
        if self._must_check_end:
            self._must_check_end = False
            tail = commit_log.read(physic_offset - TAIL_SIZE, TAIL_SIZE)
            if not ends_with_blank(memoryview(tail)):
                await self._check_layout()
        if self._finder is None:
            try:
                while not commit_log.append_data(physic_offset, body):
                    self.is_waiting = True
                    await self.allocate_service.wait_for_file()
            except FileSizeMismatchError:
                await self._start_measuring(physic_offset)
            else:
                self.position = commit_log.max_offset
                self.notify()
                at_file_end = self.position % commit_log.file_size == 0
                if at_file_end != ends_with_blank(body):
                    await self._check_layout()
                return
            finally:
                self.is_waiting = False
        self._measure(physic_offset, body)

    async def _start_measuring(self, physic_offset: int) -> None:
        log = self.commit_log
        if log.max_offset != physic_offset:  # our log is empty, and no file of ours starts there
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
        """Scan the file just written: raise if its first BLANK does not end where the file does.

        Called if our file ends without a visible BLANK, or a BLANK ends elsewhere.
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
        """Return the error for a BLANK at ``physic_offset`` that ends no file; None for any other.

        The dispatch may find it before ``_check_layout`` has scanned the file.
        """
        log = self.commit_log
        start = max(physic_offset - physic_offset % log.file_size, log.min_offset)
        found = (await self._find_first_blank(start)).found
        if found is None or found % log.file_size == 0:
            return None
        size = blank_size(log.read(physic_offset, BLANK_SIZE_MIN))
        return self._mismatch(found - start) if physic_offset + size == found else None

    async def ends_inside(self, physic_offset: int) -> bool:
        """Return whether our log ends, with a file, inside the record at ``physic_offset``.

        Then the master's files may be larger, and the record whole: ``append`` finds out.
        """
        log = self.commit_log
        end = log.max_offset
        start = max(physic_offset - physic_offset % log.file_size, log.min_offset)
        if end % log.file_size or not start < end <= start + log.file_size:
            return False
        finder = await self._find_first_blank(start)
        return not finder.is_done and finder.next_record > end

    async def _find_first_blank(self, start: int) -> FirstBlankFinder:
        """Scan our log from ``start`` on, continuing the last scan from there.

        A body full of bytes that look like BLANKs causes a scan at every frame: 16 scans over
        300 MiB, each from the start, delayed acks.
        """
        log = self.commit_log
        end = log.max_offset
        finder = self._own_finder
        # A scan beyond our end has read bytes that our log does not have: begin a new one.
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
