"""Answers FLUSH_DISK_TIMEOUT to each put at its own deadline, even while the disk hangs.

RocketMQ's FlushDiskWatcher.  The sync runs in a thread and may take any time; the deadlines are
watched here, by one timer for each of GroupCommitService's two queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.group_commit_request import DeadlineWatcher, OffsetOrderedQueue, Part
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.concurrency.group_commit_request import GroupCommitRequest


@final
@attrs.define(eq=False)
class FlushDiskWatcher:
    """The puts that wait for the disk, in two queues that are swapped, and their deadlines."""

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
