"""SYNC_FLUSH: one fdatasync for all puts that wait.

Puts queue in ``requests_write``.  When the last sync ends (or the service wakes from its wait) the
two queues are swapped, and one pass over the dirty files serves everything in ``requests_read``,
while new puts gather in the other.  FlushDiskWatcher keeps their deadlines, so a disk that hangs
delays no answer: FLUSH_DISK_TIMEOUT comes in time, and the sync that returns late still counts.  It
has one timer for each of the two queues.

::

    put ──► requests_write ──swap──► requests_read ──► fdatasync ──► release up to flushed_offset

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
        """Make the queues of waiting puts."""
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
            await self.wake.wait_for_running()
            self.watcher.swap()
            await self.flusher.flush()
            self.release()
            assert not len(self.watcher.requests_read.queue), "a pass serves all swapped puts"

    def release(self) -> None:
        """Complete the puts whose bytes are on the disk."""
        self.watcher.release(self.flusher.commit_log.flushed_offset)


@final
@attrs.define(eq=False)
class FlushDiskWatcher:
    """RocketMQ's FlushDiskWatcher: the puts that wait, in two queues that are swapped.

    It answers FLUSH_DISK_TIMEOUT to each at its own deadline.
    """

    sync_flush_timeout_ms: int
    requests_write: DeadlineWatcher = attrs.field(init=False)
    requests_read: DeadlineWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two queues, each with a timer."""
        self.requests_write = self._make_queue()
        self.requests_read = self._make_queue()

    def _make_queue(self) -> DeadlineWatcher:
        queue = OffsetOrderedQueue(Part.FLUSH, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        reason = f"not flushed to disk within {self.sync_flush_timeout_ms} ms; it is in the log"
        return DeadlineWatcher(queue, reason)

    def __len__(self) -> int:
        """Number of puts that wait."""
        return len(self.requests_write.queue) + len(self.requests_read.queue)

    def put(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Let a put wait, from now until its deadline."""
        deadline = trio.current_time() + self.sync_flush_timeout_ms / 1000
        self.requests_write.put(next_offset, deadline, request)

    def swap(self) -> None:
        """Let the next pass serve the puts that have gathered."""
        self.requests_write, self.requests_read = self.requests_read, self.requests_write

    def release(self, flushed_offset: int) -> None:
        """Complete the puts whose bytes are on the disk, the older ones first."""
        self.requests_read.queue.release(flushed_offset)
        self.requests_write.queue.release(flushed_offset)

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Answer all waiting puts, in their order."""
        self.requests_read.queue.fail_all(status, reason)
        self.requests_write.queue.fail_all(status, reason)

    async def run(self) -> None:
        """Watch the deadlines until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.requests_write.run)
            nursery.start_soon(self.requests_read.run)
