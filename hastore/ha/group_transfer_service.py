"""Wakes the producers of a SYNC_MASTER when a slave has acknowledged what they wrote.

RocketMQ's GroupTransferService without its serial waiting and polling: an ack releases a prefix of
the offset-ordered queue in one pass, and each request has its own deadline
(``slave_timeout_ms``), after which its producer is told FLUSH_SLAVE_TIMEOUT.  The message stays.

Invariant: a request is released only when ``push2_slave_max_offset`` >= its ``next_offset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.group_commit_request import (
    DeadlineWatcher,
    GroupCommitRequest,
    OffsetOrderedQueue,
    Part,
)
from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.decision_log import DecisionLog
    from hastore.ha.slave_ack_table import SlaveAckTable


@final
@attrs.define(eq=False)
class GroupTransferService:
    """The queue of producers that wait for a slave."""

    ack_table: SlaveAckTable
    slave_timeout_ms: int
    on_timed_out: Callable[[], None] = lambda: None  # called after producers were told so
    decisions: DecisionLog | None = None
    # Seconds from a put's append to the ack that released it.
    waits: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    _queue: OffsetOrderedQueue = attrs.field(init=False)
    _watcher: DeadlineWatcher = attrs.field(init=False)
    _timeout_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the queue and its timer."""
        self._queue = OffsetOrderedQueue(Part.HA, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self._timeout_s = self.slave_timeout_ms / 1000
        reason = f"no slave acknowledged it within {self.slave_timeout_ms} ms; it is stored here"
        self._watcher = DeadlineWatcher(self._queue, reason, self.on_timed_out)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest message begins that still waits for a slave; None where none does."""
        waiting = self._queue.waiting
        if not waiting:
            return None
        appended = waiting[0][2].append_result
        assert appended is not None, "what waits for a slave is in the log"
        return appended.physic_offset

    def put_request(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Let ``request`` wait until some slave has everything before ``next_offset``."""
        if self.ack_table.push2_slave_max_offset >= next_offset:
            request.complete(Part.HA, PutMessageStatus.PUT_OK)
            return
        self._watcher.put(next_offset, trio.current_time() + self._timeout_s, request)

    def notify_transfer_some(self, slave: tuple[str, int]) -> None:
        """Release every request that the acks now satisfy, of which ``slave``'s is the newest."""
        reached = self.ack_table.push2_slave_max_offset
        queue = self._queue
        if not queue.waiting or queue.waiting[0][0] > reached:
            return
        _, oldest_deadline, oldest = queue.waiting[0]
        now = trio.current_time()
        count = queue.release(reached)
        # A deadline is the time of the append and the timeout.
        since = now + self._timeout_s
        oldest_s, newest_s = since - oldest_deadline, since - queue.released_deadline
        if count == 1:
            self.waits.observe(oldest_s)
        else:
            self.waits.observe_batch(oldest_s, newest_s, count)
        decisions = self.decisions
        if decisions is not None and now >= decisions.next_ok_time:
            waited_s = oldest_s, newest_s
            decisions.acknowledged(oldest, count, waited_s, slave, now)

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Answer all that wait: no slave will be heard any more."""
        self._queue.fail_all(status, reason)

    async def run(self) -> None:
        """Watch the deadlines until cancelled."""
        await self._watcher.run()
