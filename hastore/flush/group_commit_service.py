"""SYNC_FLUSH: one fdatasync for all puts that wait.

Puts queue in the order of the log.  While one pass over the dirty files runs, new puts gather for
the next.  FlushDiskWatcher keeps their deadlines, so a disk that hangs delays no answer:
FLUSH_DISK_TIMEOUT comes in time, and the sync that returns late still counts.

::

    put ──► queue ──► fdatasync in the flusher's thread ──► release up to flushed_offset

Invariants: a request is released only after its bytes were synced; a failed sync releases nothing,
is not tried again, and ends the service (the kernel marks the pages clean, so a second fdatasync
would succeed although the bytes are not on the disk).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.group_commit_request import DeadlineWatcher, OffsetOrderedQueue, Part
from hastore.concurrency.service import as_itself
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.flush.log_flusher import LogFlusher


@final
@attrs.define(eq=False)
class GroupCommitService:
    """Syncs the log for the puts that wait; every append wakes ``wake``, waited for or not."""

    flusher: LogFlusher
    wake: WaitNotifyObject
    sync_flush_timeout_ms: int
    watcher: FlushDiskWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the queue of waiting puts."""
        self.watcher = FlushDiskWatcher(self.sync_flush_timeout_ms)

    def put_request(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Let ``request`` wait until everything below ``next_offset`` is on the disk."""
        self.watcher.put(next_offset, request)
        self.wake.wakeup()

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError is fail-stop."""
        with as_itself():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.watcher.run)
                nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        while True:
            # A turn of all tasks, in which those that the last pass released put again: with 16 of
            # them, one pass for all is quicker than two for halves, one after the other.
            await self.wake.wait_for_running()
            await self.flusher.flush()

    def release(self, flushed_offset: int) -> None:
        """Complete the puts whose bytes are on the disk."""
        self.watcher.queue.release(flushed_offset)


@final
@attrs.define(eq=False)
class FlushDiskWatcher:
    """RocketMQ's FlushDiskWatcher: answers FLUSH_DISK_TIMEOUT to each put at its own deadline."""

    sync_flush_timeout_ms: int
    queue: OffsetOrderedQueue = attrs.field(init=False)
    _deadlines: DeadlineWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the queue and its timer."""
        self.queue = OffsetOrderedQueue(Part.FLUSH, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        reason = f"not flushed to disk within {self.sync_flush_timeout_ms} ms; it is in the log"
        self._deadlines = DeadlineWatcher(self.queue, reason)

    def put(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Let a put wait, from now until its deadline."""
        deadline = trio.current_time() + self.sync_flush_timeout_ms / 1000
        self._deadlines.put(next_offset, deadline, request)

    async def run(self) -> None:
        """Watch the deadlines until cancelled."""
        await self._deadlines.run()
