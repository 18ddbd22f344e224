"""SYNC_FLUSH: one fdatasync for all puts that wait.

Puts queue in ``requests_write``.  When the last sync ends (or the service wakes from its wait) the
two queues are swapped, and one pass over the dirty files serves everything in ``requests_read``,
while new puts gather in the other.  Deadlines have a watcher of their own, so a disk that hangs
delays no answer: FLUSH_DISK_TIMEOUT comes in time, and the sync that returns late still counts.

::

    put ──► requests_write ──swap──► requests_read ──► fdatasync ──► release up to flushed_offset

Invariants: a request is released only after its bytes were synced; a failed sync releases nothing,
is not tried again, and ends the service (the kernel marks the pages clean: a second fdatasync would
claim success for bytes that are not there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.deadline_watcher import DeadlineWatcher
from hastore.concurrency.group_commit_request import OffsetOrderedQueue, Part
from hastore.errors import DiskError
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.flush.log_flusher import LogFlusher


@final
@attrs.define(eq=False)
class GroupCommitService:
    """The puts that wait for the disk; ``wake`` is woken by every append, waited for or not."""

    flusher: LogFlusher
    sync_flush_timeout_ms: int
    wake: WaitNotifyObject
    requests_write: DeadlineWatcher = attrs.field(init=False)
    requests_read: DeadlineWatcher = attrs.field(init=False)
    _timeout_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two queues, each with a timer."""
        self._timeout_s = self.sync_flush_timeout_ms / 1000
        self.requests_write = self._make_queue()
        self.requests_read = self._make_queue()

    def _make_queue(self) -> DeadlineWatcher:
        queue = OffsetOrderedQueue(Part.FLUSH, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        reason = f"the disk was not done within {self.sync_flush_timeout_ms} ms; it is in the log"
        return DeadlineWatcher(queue, reason)

    def __len__(self) -> int:
        """Number of puts that wait."""
        return len(self.requests_write.queue) + len(self.requests_read.queue)

    def put_request(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Let ``request`` wait until everything before ``next_offset`` is on the disk."""
        self.requests_write.put(next_offset, trio.current_time() + self._timeout_s, request)
        self.wake.wakeup()

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError is fail-stop."""
        failure: DiskError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.requests_write.run)
            nursery.start_soon(self.requests_read.run)
            try:
                await self._serve()
            except DiskError as error:
                failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _serve(self) -> None:
        while True:
            await self.wake.wait_for_running()
            self.requests_write, self.requests_read = self.requests_read, self.requests_write
            await self.flusher.flush()
            self.release()
            assert not len(self.requests_read.queue), "a pass serves all that waited before it"

    def release(self) -> None:
        """Complete the puts whose bytes are on the disk."""
        flushed_offset = self.flusher.commit_log.flushed_offset
        self.requests_read.queue.release(flushed_offset)
        self.requests_write.queue.release(flushed_offset)

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Answer all that wait; the older ones are in ``requests_read``."""
        self.requests_read.queue.fail_all(status, reason)
        self.requests_write.queue.fail_all(status, reason)
