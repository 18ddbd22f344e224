"""ASYNC_FLUSH: what was appended is synced a little later, while nobody waits for it.

Sleeps until something is appended, then syncs at most every ``flush_interval_ms``; a quiet node
uses no CPU.  A crash of the machine may lose what was appended since the last sync; a crash of the
process loses nothing (the bytes are in the page cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

if TYPE_CHECKING:
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.flush.log_flusher import LogFlusher


@final
@attrs.define(eq=False)
class FlushRealTimeService:
    """The timer; ``wake`` is woken by every append."""

    flusher: LogFlusher
    flush_interval_ms: int
    wake: WaitNotifyObject

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError is fail-stop."""
        interval_s = self.flush_interval_ms / 1000
        while True:
            await self.wake.wait_for_running()
            await trio.sleep(interval_s)
            await self.flusher.flush()
