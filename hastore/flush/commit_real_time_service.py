"""Commits the write buffers of a TransientStorePool to their files a little after each append.

The first append wakes it, and so do every ``commit_least_pages`` whole pages; everything is
committed ``commit_thorough_interval_ms`` after the last time that it was.  Slaves, dispatch and the
flush see only committed bytes.  A crash of the process loses the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.flush.append_wake import AppendWake
from hastore.flush.flush_timer import FlushTimer

if TYPE_CHECKING:
    from hastore.config import StoreConfig
    from hastore.flush.log_committer import LogCommitter
    from hastore.store.log.transient_store_pool import TransientStorePool


@final
@attrs.define(eq=False)
class CommitRealTimeService:
    """The timer of commits."""

    committer: LogCommitter
    pool: TransientStorePool
    config: StoreConfig
    _append_wake: AppendWake = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the wake-up."""
        self._append_wake = AppendWake(
            self.committer.commit_log, self.config.commit_least_pages, WaitNotifyObject()
        )

    def notify_appended(self) -> None:
        """Called after every append."""
        self._append_wake.notify_appended()

    async def run(self) -> None:
        """Serve until cancelled; a DiskError is fail-stop."""
        await self.committer.env.offload.run(self.pool.lock)
        await FlushTimer(
            interval_ms=self.config.commit_interval_ms,
            least_pages=self.config.commit_least_pages,
            thorough_interval_ms=self.config.commit_thorough_interval_ms,
            is_timed=False,
            wake=self._append_wake.wake,
            is_dirty=lambda: self.committer.is_dirty,
            flush=self._commit,
        ).run()

    async def _commit(self, least_pages: int) -> None:
        await self.committer.commit(least_pages)
        self._append_wake.pass_ended(self.committer.commit_log.readable_offset)
