"""Reads of old records in a thread, and of new ones at once (``hastore.store.log.cold_read``).

A file that expires meanwhile is closed only when no read of it is under way
(``CleanCommitLogService``).  At most THREADS_MAX reads run in threads, so that a flush never waits
for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import attrs
import trio

from hastore.store.log.cold_read import is_cold

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Offload
    from hastore.store.commit_log import CommitLog
    from hastore.store.log.cold_read import ReadSteps

THREADS_MAX: Final = 8

T = TypeVar("T")


@final
@attrs.define(eq=False)
class ColdReader:
    """The cold reads of one node's consumers."""

    offload: Offload
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(THREADS_MAX), init=False
    )

    async def run(self, log: CommitLog, steps: ReadSteps[T]) -> T:
        """Run a read's steps; new records are read without a checkpoint."""
        answer: Any = None
        try:
            while True:
                step = steps.send(answer)
                if is_cold(step.physic_offset, log.max_offset):
                    answer = await self.in_thread(step.read)
                else:
                    answer = step.read()
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a cold read."""
        async with self._threads:
            return await self.offload.run(call)
