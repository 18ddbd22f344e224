"""Wakes the producers of a SYNC_MASTER when a slave has acknowledged their messages.

RocketMQ's GroupTransferService without its serial waiting and polling: an ack releases a prefix of
the offset-ordered queue in one pass, and each request has its own deadline (``slave_timeout_ms``),
after which its producer gets FLUSH_SLAVE_TIMEOUT.  The message stays in the log.

Two questions, two answers.  *Has some slave got this message?* is answered by
``push2_slave_max_offset``, which never falls.  *Is there a slave worth waiting for?* is answered by
the slaves connected now (RocketMQ uses the first for both, so a departed slave makes a slave that
lags look healthy).

Invariants: ``push2_slave_max_offset`` is never above the master's max offset, because
``SlaveProgress`` has validated every report; a request is released only when it is >= the
request's ``next_offset``.
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


@final
@attrs.define(eq=False)
class SlaveAckTable:
    """The acks of the slaves connected now, and the highest ack of all time."""

    # The highest ack of all time (exclusive, in bytes): never falls, <= the master's max offset.
    push2_slave_max_offset: int = attrs.field(default=0, init=False)
    # The highest report of the slaves connected now; None without any.  It may not be an ack yet,
    # so it may be above or below ``push2_slave_max_offset``.
    nearest: int | None = attrs.field(default=None, init=False)
    _acks: dict[int, int] = attrs.field(factory=dict, init=False)  # by connection id

    def set_position(self, connection_id: int, ack_offset: int) -> None:
        """Record a report that is not an ack yet."""
        acks, nearest = self._acks, self.nearest
        acks[connection_id] = ack_offset
        if nearest is None or ack_offset > nearest:
            self.nearest = ack_offset
        elif ack_offset < nearest:
            self.nearest = max(acks.values())

    def acknowledge(self, connection_id: int, ack_offset: int) -> bool:
        """Record an ack; return whether it raised ``push2_slave_max_offset``."""
        nearest = self.nearest
        if nearest is not None and ack_offset > nearest:  # set_position, without a call
            self._acks[connection_id] = self.nearest = ack_offset
        else:
            self.set_position(connection_id, ack_offset)
        if ack_offset > self.push2_slave_max_offset:
            self.push2_slave_max_offset = ack_offset
            return True
        return False

    def remove(self, connection_id: int) -> None:
        """Forget a slave that left."""
        self._acks.pop(connection_id, None)
        self.nearest = max(self._acks.values(), default=None)

    @property
    def connected(self) -> int:
        """Number of connected slaves that have reported."""
        return len(self._acks)


@final
@attrs.define(eq=False)
class GroupTransferService:
    """The queue of producers that wait for a slave."""

    ack_table: SlaveAckTable
    slave_timeout_ms: int
    on_timed_out: Callable[[], None] = lambda: None  # called after requests have timed out
    decisions: DecisionLog | None = None
    awaited: str = "no slave"  # who has not acknowledged a request that times out
    released: int = attrs.field(default=0, init=False)  # how many puts, when any was
    # Whether the last ack that released puts released one, which a task awaited.
    has_released_one: bool = attrs.field(default=False, init=False)
    # Seconds from a put's append to the ack that released it.
    waits: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    _queue: OffsetOrderedQueue = attrs.field(init=False)
    _watcher: DeadlineWatcher = attrs.field(init=False)
    _timeout_s: float = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(init=False)  # trio.current_time, at a third of its cost

    def __attrs_post_init__(self) -> None:
        """Make the queue and its timer."""
        self._queue = OffsetOrderedQueue(Part.HA, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self._timeout_s = self.slave_timeout_ms / 1000
        self._now = trio.lowlevel.current_clock().current_time
        reason = (
            f"{self.awaited} acknowledged it within {self.slave_timeout_ms} ms; it is stored here"
        )
        self._watcher = DeadlineWatcher(self._queue, reason, self.on_timed_out)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first_undecided_offset(self) -> int | None:
        """The offset of the oldest message that waits for a slave; None if none waits."""
        waiting = self._queue.waiting
        if not waiting:
            return None
        appended = waiting[0][2].append_result
        assert appended is not None, "a request that waits for a slave is in the log"
        return appended.physic_offset

    def put_request(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Complete ``request`` once a slave has acknowledged ``next_offset``."""
        if self.ack_table.push2_slave_max_offset >= next_offset:
            request.complete(Part.HA, PutMessageStatus.PUT_OK)
            return
        self._watcher.put(next_offset, self._now() + self._timeout_s, request)

    def wait(self, next_offset: int, request: GroupCommitRequest) -> None:
        """Complete ``request`` once ``release`` reaches ``next_offset``."""
        self._watcher.put(next_offset, self._now() + self._timeout_s, request)

    def notify_transfer_some(self, slave: tuple[str, int]) -> None:
        """Release every request that the acks now satisfy; ``slave`` sent the newest ack."""
        self.release(self.ack_table.push2_slave_max_offset, slave)

    def release(self, reached: int, slave: tuple[str, int] | None) -> None:
        """Release every request up to ``reached``; ``slave`` sent the newest ack, if one did."""
        queue = self._queue
        if not queue.waiting or queue.waiting[0][0] > reached:
            return
        _, oldest_deadline, oldest = queue.waiting[0]
        now, is_awaited = self._now(), oldest.is_awaited
        self.released = count = queue.release(reached)
        self.has_released_one = is_awaited and count == 1 and slave is not None
        # A deadline is the time of the append plus the timeout.
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
        """Complete all requests with ``status``: no ack will be counted any more."""
        self._queue.fail_all(status, reason)

    async def run(self) -> None:
        """Expire requests until cancelled."""
        await self._watcher.run()
