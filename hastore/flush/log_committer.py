"""One pass of commits, in a thread: writes the write buffers to the log's files.

Invariants: passes go in the order of the log, so a process that dies meanwhile leaves a prefix;
``readable_offset`` moves only after everything below it was written; there is no write after a
failed one.
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
class LogCommitter:
    """Commits ``commit_log``, one pass at a time; concurrent callers wait."""

    env: Env
    commit_log: CommitLog
    on_committed: Callable[[], None] | None = None
    # Called in the same step in which a write fails, before any other task can acknowledge more.
    on_failed: Callable[[Exception], None] | None = None
    failure: Exception | None = attrs.field(default=None, init=False)
    # Store time of a record up to which all are committed.
    timestamp_ms: int = attrs.field(init=False)
    _one_pass: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with a log that is wholly committed."""
        self.timestamp_ms = self.commit_log.store_timestamp_ms

    @property
    def is_dirty(self) -> bool:
        """Whether bytes wait for a commit."""
        return self.commit_log.readable_offset < self.commit_log.max_offset

    async def commit(self, least_pages: int = 0) -> None:
        """Commit full files, and those with at least ``least_pages`` whole pages.

        A cancelled call still ends its writes and records them.  Raises DiskError, then and at
        every later call.
        """
        async with self._one_pass:
            await self._commit(least_pages)

    async def _commit(self, least_pages: int) -> None:
        if self.failure is not None:
            raise self.failure
        log = self.commit_log
        targets = log.commit_targets(least_pages)
        if not targets:
            return
        end, timestamp_ms = log.max_offset, log.store_timestamp_ms

        def write() -> None:
            for mapped_file, position in targets:
                mapped_file.commit(position)

        try:
            await self.env.offload.run(write)
        except Exception as error:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
            _log.error("commit_failed", reason=str(error), committed=log.readable_offset)
            raise
        log.mark_committed(targets)
        if log.readable_offset >= end:
            self.timestamp_ms = timestamp_ms
        if self.on_committed is not None:
            self.on_committed()
