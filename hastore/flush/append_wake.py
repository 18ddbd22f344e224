"""Wakes a service for the first append after a pass, and again once enough pages have gathered.

A task switch costs more than an append, so an append only compares two numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.env.interface import PAGE_SIZE

if TYPE_CHECKING:
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.store.commit_log import CommitLog


@final
@attrs.define(eq=False)
class AppendWake:
    """Wakes ``wake`` once the log has reached the offset that makes a pass worthwhile."""

    commit_log: CommitLog
    least_pages: int
    wake: WaitNotifyObject
    _goal: int = attrs.field(default=0, init=False)

    def notify_appended(self) -> None:
        """Called after every append."""
        if self.commit_log.max_offset >= self._goal:
            self.wake.wakeup()

    def pass_ended(self, done_offset: int) -> None:
        """Record how far a pass came, and wake the service if enough was appended meanwhile."""
        log = self.commit_log
        self._goal = done_offset + 1
        if done_offset < log.max_offset and self.least_pages:
            position = done_offset % log.file_size
            pages = position // PAGE_SIZE + self.least_pages
            file_end = done_offset - position + log.file_size  # a full file is worth a pass
            self._goal = min(done_offset - position + pages * PAGE_SIZE, file_end)
        if log.max_offset >= self._goal:
            self.wake.wakeup()
