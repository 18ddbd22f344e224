"""When a service that flushes in the background makes its next pass: by pages, or by time.

::

    woken ──(interval, if timed)──► a pass over files that are full or have least_pages dirty pages
                                    thorough_interval after the last thorough pass: over everything

RocketMQ's FlushRealTimeService, CommitRealTimeService and FlushConsumeQueueService all work like
this.  Theirs poll; here a timer runs only while something is dirty.  As there, the first pass after
a quiet time is thorough, so a single message does not wait for the thorough interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.concurrency.wait_notify_object import WaitNotifyObject


@final
@attrs.define(eq=False, kw_only=True)
class FlushTimer:
    """Calls ``flush`` with the least number of dirty pages to flush; 0 means a thorough pass.

    ``is_timed``: at most one pass an interval, however often it is woken.  Otherwise each wake-up
    is a pass, and ``interval_ms`` is the longest wait for one while something is dirty.
    """

    interval_ms: int
    least_pages: int
    thorough_interval_ms: int
    is_timed: bool
    wake: WaitNotifyObject
    is_dirty: Callable[[], bool]
    flush: Callable[[int], Awaitable[object]]
    _next_thorough_time: float = attrs.field(default=-math.inf, init=False)

    async def run(self) -> None:
        """Serve until cancelled, or until ``flush`` raises."""
        interval_s = self.interval_ms / 1000
        while True:
            is_due = False
            now = trio.current_time()
            if not self.is_dirty():
                await self.wake.wait_for_running()
            elif now < self._next_thorough_time:
                deadline = self._next_thorough_time
                if not self.is_timed:
                    deadline = min(deadline, now + interval_s)
                with trio.move_on_at(deadline) as scope:
                    await self.wake.wait_for_running()
                is_due = scope.cancelled_caught
            if self.is_timed and not is_due:
                await trio.sleep(interval_s)
            now = trio.current_time()
            least_pages = self.least_pages
            if now >= self._next_thorough_time:
                self._next_thorough_time = now + self.thorough_interval_ms / 1000
                least_pages = 0
            await self.flush(least_pages)
