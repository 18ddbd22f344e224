"""One pass of fdatasync over the dirty files, in a thread.

Both flush services flush through it.  Invariants: ``flushed_offset`` moves only after every dirty
file below it was synced; after a failed sync there is never another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog

_log = logger("flush")


@final
@attrs.define(eq=False)
class LogFlusher:
    """Flushes ``commit_log``, one pass at a time; others wait for their turn."""

    env: Env
    commit_log: CommitLog
    on_flushed: Callable[[int], None] | None = None
    # Called in the very step that sees a sync fail, before any other task can acknowledge more.
    on_failed: Callable[[Exception], None] | None = None
    failure: Exception | None = attrs.field(default=None, init=False)
    passes: int = attrs.field(default=0, init=False)  # that had something to sync
    _one_pass: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def flush(self) -> None:
        """Sync what is written now.

        A roll leaves two files to sync.  A cancelled call still ends its sync and notes it.
        Raises FlushFailedError, then and at every later call.
        """
        async with self._one_pass:
            await self._flush()

    async def _flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        targets = self.commit_log.flush_targets()
        if not targets:
            return

        def sync() -> None:
            for mapped_file, _ in targets:
                mapped_file.disk_file.sync()

        try:
            await self.env.offload.run(sync)
        except Exception as error:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
            _log.error("flush_failed", reason=str(error), flushed=self.commit_log.flushed_offset)
            raise
        self.passes += 1
        self.commit_log.mark_flushed(targets)
        if self.on_flushed is not None:
            self.on_flushed(self.commit_log.flushed_offset)
