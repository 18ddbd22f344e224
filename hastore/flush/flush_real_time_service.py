"""ASYNC_FLUSH: syncs appended bytes a little later; no put waits for it.

Timed (RocketMQ's default): a pass each ``flush_interval_ms`` while there is something to flush.
Not timed: the first append wakes the service, and every ``flush_least_pages`` whole pages do.
Either way everything is synced ``flush_thorough_interval_ms`` after the last time that it was, and
a quiet node uses no CPU.  A crash of the machine may lose what was appended since; a crash of the
process loses nothing (the bytes are in the page cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.flush.flush_timer import FlushTimer

if TYPE_CHECKING:
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.config import StoreConfig
    from hastore.flush.append_wake import AppendWake
    from hastore.flush.log_flusher import LogFlusher


@final
@attrs.define(eq=False)
class FlushRealTimeService:
    """The timer of flushes; ``wake`` is woken by each append (or commit).

    With ``append_wake`` only the appends that make a pass worthwhile wake it.
    """

    flusher: LogFlusher
    wake: WaitNotifyObject
    config: StoreConfig
    append_wake: AppendWake | None = None

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError is fail-stop."""
        await FlushTimer(
            interval_ms=self.config.flush_interval_ms,
            least_pages=self.config.flush_least_pages,
            thorough_interval_ms=self.config.flush_thorough_interval_ms,
            is_timed=self.config.flush_commit_log_timed,
            wake=self.wake,
            is_dirty=lambda: self.flusher.is_dirty,
            flush=self._flush,
        ).run()

    async def _flush(self, least_pages: int) -> None:
        await self.flusher.flush(least_pages)
        if self.append_wake is not None:
            self.append_wake.pass_ended(self.flusher.commit_log.flushed_offset)
