"""One timer for all deadlines of an offset-ordered queue.

The head of the queue has the earliest deadline, so one sleeping task is enough: it sleeps until
the deadline that it saw last, looks again, and expires what is due.  A released request costs the
timer nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest, OffsetOrderedQueue


@final
@attrs.define(eq=False)
class DeadlineWatcher:
    """Answers what waits in ``queue`` too long; ``reason`` is the line that producers read."""

    queue: OffsetOrderedQueue
    reason: str
    on_expired: Callable[[], None] = lambda: None  # called after some were answered
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def put(self, next_offset: int, deadline: float, request: GroupCommitRequest) -> None:
        """Queue a request, and wake the timer if it sleeps without a deadline."""
        self.queue.put(next_offset, deadline, request)
        if self._wake.sleeper is not None:
            self._wake.wakeup()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            deadline = self.queue.head_deadline
            if deadline is None:
                await self._wake.wait_for_running()
            else:
                await trio.sleep_until(deadline)
                if self.queue.expire(trio.current_time(), self.reason):
                    self.on_expired()
