"""Passes of fdatasync over the dirty files, in a thread of its own.

Both flush services flush through it.  Invariants: ``flushed_offset`` moves only after every dirty
file below it was synced; one pass runs at a time; there is no sync after a failed one; the
checkpoint covers only what was synced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.concurrency.wait_notify_object import park, wake_all
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.wait_notify_object import Sleepers
    from hastore.env.interface import Env, SyncThread
    from hastore.flush.checkpoint_flusher import CheckpointFlusher
    from hastore.store.commit_log import CommitLog
    from hastore.store.log.mapped_file import MappedFile

_log = logger("flush")


@final
@attrs.define(eq=False)
class LogFlusher:
    """Flushes ``commit_log``, one pass at a time; concurrent callers wait.

    ``store_timestamp_ms`` returns the store time of the newest readable record that is known.
    """

    env: Env
    commit_log: CommitLog
    store_timestamp_ms: Callable[[], int]
    checkpoint_flusher: CheckpointFlusher | None = None
    on_flushed: Callable[[int], None] | None = None
    # Called in the same step in which a sync fails, before any other task can acknowledge more.
    on_failed: Callable[[Exception], None] | None = None
    failure: Exception | None = attrs.field(default=None, init=False)
    pass_times: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    _sync_thread: SyncThread = attrs.field(init=False)
    _is_running: bool = attrs.field(default=False, init=False)  # a pass
    _waiting: Sleepers = attrs.field(factory=list, init=False)  # callers, for the end of that pass

    def __attrs_post_init__(self) -> None:
        """Take a thread, which starts with the first pass."""
        self._sync_thread = self.env.offload.sync_thread()

    @property
    def is_dirty(self) -> bool:
        """Whether bytes wait for a sync."""
        return self.commit_log.flushed_offset < self.commit_log.readable_offset

    async def flush(self, least_pages: int = 0) -> None:
        """Sync full files, and those with at least ``least_pages`` dirty pages.

        A roll leaves two files to sync.  A cancelled call still ends its sync and records it.
        Raises FlushFailedError, then and at every later call.
        """
        end = self.commit_log.readable_offset
        while self._is_running:
            await park(self._waiting)
            if self.failure is None and self.commit_log.flushed_offset >= end:
                return
        if self.failure is not None:
            raise self.failure
        targets = self.commit_log.flush_targets(least_pages)
        if targets:
            await self._sync(targets)
        else:
            await trio.lowlevel.checkpoint()

    async def _sync(self, targets: list[tuple[MappedFile, int]]) -> None:
        log = self.commit_log
        end, timestamp_ms = log.readable_offset, self.store_timestamp_ms()
        began = trio.current_time()
        self._is_running = True
        try:
            self._sync_thread.start([mapped_file.disk_file for mapped_file, _ in targets])
            await self._sync_thread.wait()
        except Exception as error:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
            _log.error("flush_failed", reason=str(error), flushed=log.flushed_offset)
            raise
        finally:
            self._is_running = False
            wake_all(self._waiting)
            self._waiting = []
        self.pass_times.observe(trio.current_time() - began)
        log.mark_flushed(targets)
        flushed_offset = log.flushed_offset
        if self.checkpoint_flusher is not None:
            is_whole = flushed_offset >= end  # then the record of ``timestamp_ms`` is on disk
            self.checkpoint_flusher.record_flushed(
                flushed_offset, timestamp_ms if is_whole else None
            )
        if self.on_flushed is not None:
            self.on_flushed(flushed_offset)

    def close(self) -> None:
        """End the thread; there is no pass after it."""
        self._sync_thread.close()
