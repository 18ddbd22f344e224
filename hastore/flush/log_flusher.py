"""One pass of fdatasync over the dirty files, in a thread.

Both flush services flush through it.  Invariants: ``flushed_offset`` moves only after every dirty
file below it was synced; there is no sync after a failed one; the checkpoint covers only what was
synced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.flush.checkpoint_flusher import CheckpointFlusher
    from hastore.store.commit_log import CommitLog

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
    _one_pass: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def is_dirty(self) -> bool:
        """Whether bytes wait for a sync."""
        return self.commit_log.flushed_offset < self.commit_log.readable_offset

    async def flush(self, least_pages: int = 0) -> None:
        """Sync full files, and those with at least ``least_pages`` dirty pages.

        A roll leaves two files to sync.  A cancelled call still ends its sync and records it.
        Raises FlushFailedError, then and at every later call.
        """
        async with self._one_pass:
            await self._flush(least_pages)

    async def _flush(self, least_pages: int) -> None:
        if self.failure is not None:
            raise self.failure
        log = self.commit_log
        targets = log.flush_targets(least_pages)
        if not targets:
            return
        end, timestamp_ms = log.readable_offset, self.store_timestamp_ms()

        def sync() -> None:
            for mapped_file, _ in targets:
                mapped_file.disk_file.sync()

        began = trio.current_time()
        try:
            await self.env.offload.run(sync)
        except Exception as error:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
            _log.error("flush_failed", reason=str(error), flushed=log.flushed_offset)
            raise
        self.pass_times.observe(trio.current_time() - began)
        log.mark_flushed(targets)
        if self.checkpoint_flusher is not None:
            is_whole = log.flushed_offset >= end  # then the record of ``timestamp_ms`` is on disk
            self.checkpoint_flusher.record_flushed(
                log.flushed_offset, timestamp_ms if is_whole else None
            )
        if self.on_flushed is not None:
            self.on_flushed(log.flushed_offset)
