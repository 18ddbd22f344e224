"""SYNC_FLUSH: one fdatasync for all puts that wait.

Puts queue in ``requests_write``.  When the last sync ends (or the service wakes from its wait) the
two queues are swapped, and one pass over the dirty files serves everything in ``requests_read``,
while new puts gather in the other.  FlushDiskWatcher keeps their deadlines, so a disk that hangs
delays no answer: FLUSH_DISK_TIMEOUT comes in time, and the sync that returns late still counts.

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

from hastore.concurrency.service import as_itself

if TYPE_CHECKING:
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.flush.flush_disk_watcher import FlushDiskWatcher
    from hastore.flush.log_flusher import LogFlusher


@final
@attrs.define(eq=False)
class GroupCommitService:
    """Syncs the log for the puts that wait; every append wakes ``wake``, waited for or not."""

    flusher: LogFlusher
    watcher: FlushDiskWatcher
    wake: WaitNotifyObject

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
