"""A put that waits, the offset-ordered queue in which it waits, and the timer of that queue.

A put waits for up to two things, the disk and a slave; each is a *part*, kept in its own queue.
Requests enter a queue in the order of their offsets and with deadlines that never fall, so one
acknowledgement releases a prefix of the queue and one timer serves all deadlines (PostgreSQL's
syncrep keeps its waiters the same way).

Invariants: a request is decided once, when its last part completes; a cancelled or expired wait
changes nothing in the log; where both parts failed, the HA status wins over the flush status
(RocketMQ's ``CommitLog.handleDiskFlushAndHA``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WOKEN, WaitNotifyObject, park, wake_all
from hastore.message import PutMessageResult
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.lease import Lease
    from hastore.concurrency.wait_notify_object import Sleepers
    from hastore.store.record.append_message_result import AppendMessageResult

# Why a put is not PUT_OK that all others have: it is stored here, and a later master may lack it.
LEASE_OVER: Final = "this master's lease is over: another node may be master by now"

_PUT_OK = PutMessageStatus.PUT_OK
_new_tuple = tuple.__new__


class Part:
    """What a put may wait for, as bits: plain integers, because an IntFlag is slow."""

    FLUSH: Final = 1
    HA: Final = 2


class DecisionKeeper(Protocol):
    """Counts decided requests and records those that failed: a DecisionLog."""

    # Messages of all decided requests, and requests of several messages; PUT_OK is only counted.
    counts: dict[PutMessageStatus, int]
    batch_counts: dict[PutMessageStatus, int]
    lease: Lease | None  # without it nothing is PUT_OK; None: none is needed

    def record(self, request: GroupCommitRequest) -> None:
        """Record a request that was decided with another status than PUT_OK."""


@final
class GroupCommitRequest:
    """One put on its way; ``status`` is None until it is decided.

    ``wait`` parks the calling task until then.  Cancelling that wait leaves the message in the log
    and the outcome unknown to the caller.  ``on_done`` is called once, synchronously, with the
    decided request: it must not block or raise.
    """

    __slots__ = (
        "_outcome",
        "_pending",
        "_sleeper",
        "_sleepers",
        "append_result",
        "interrupt",
        "log",
        "message_count",
        "on_done",
        "queue_id",
        "reason",
        "status",
        "tag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        log: DecisionKeeper | None = None,
        message_count: int = 1,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.message_count = message_count
        self.log = log
        self.append_result: AppendMessageResult | None = None
        self.status: PutMessageStatus | None = None
        self.reason: str | None = None
        self.on_done: Callable[[GroupCommitRequest], None] | None = None
        self.tag: Any = None  # the caller's own; never read here
        # Called last, once it is decided, as ``on_done`` is: for a task that waits for that by
        # another way than ``wait``, and for delayed messages that wait for a file.
        self.interrupt: Callable[[], None] | None = None
        self._outcome = _PUT_OK
        self._pending = 0
        self._sleeper: trio.lowlevel.Task | None = None  # the first task that waits,
        self._sleepers: Sleepers | None = None  # and the others

    def expect(self, parts: int) -> None:
        """Set the parts that must complete before the request is decided."""
        self._pending = parts

    def waits_only_for(self, part: int) -> bool:
        """Return whether the request is undecided, and ``part`` alone decides it."""
        return self._pending == part

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for it."""
        return self._sleeper is not None

    def complete(self, part: int, status: PutMessageStatus, reason: str | None = None) -> None:
        """Complete one part; the last one decides the request.  A repeated one changes nothing."""
        pending = self._pending & ~part
        if pending == self._pending:
            return
        self._pending = pending
        if status is not _PUT_OK and (part == Part.HA or self._outcome is _PUT_OK):
            self._outcome = status
            self.reason = reason
        if not pending:
            self.decide(self._outcome, self.reason)

    def decide(self, status: PutMessageStatus, reason: str | None = None) -> None:
        """Set the status, once, and wake the tasks that wait for it."""
        assert self.status is None, "a request is decided once"
        log = self.log
        if log is not None and log.lease is not None and status is _PUT_OK and log.lease.is_over():
            status, reason = PutMessageStatus.FLUSH_SLAVE_TIMEOUT, LEASE_OVER
        self._pending = 0
        self.status = status
        self.reason = reason
        if log is not None:
            log.counts[status] += self.message_count
            if self.message_count > 1:
                log.batch_counts[status] += 1
            if status is not _PUT_OK:
                log.record(self)
        if self.on_done is not None:
            self.on_done(self)
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper, WOKEN)
            self._sleeper = None
        if self._sleepers is not None:
            wake_all(self._sleepers)
            self._sleepers = None
        if self.interrupt is not None:
            self.interrupt()

    async def wait(self) -> PutMessageStatus:
        """Wait until the request is decided and return its status."""
        if self.status is not None:
            await trio.lowlevel.checkpoint()
        elif self._sleeper is None:  # nearly always: no list of tasks is made
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            if self._sleepers is None:
                self._sleepers = []
            await park(self._sleepers)
        assert self.status is not None
        return self.status

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """Forget the first task that waits: it is cancelled."""
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    @property
    def result(self) -> PutMessageResult | None:
        """The result as a value; None until the request is decided."""
        status = self.status
        if status is None:
            return None
        appended = self.append_result
        if appended is None or (status is not _PUT_OK and not status.stored):
            return PutMessageResult(status, self.topic, self.queue_id, reason=self.reason)
        _, start, end, queue_offset, count, store_ms, host, batch_offsets = appended
        return _new_tuple(  # as PutMessageResult(...), at half the cost
            PutMessageResult,
            (
                status,
                self.topic,
                self.queue_id,
                queue_offset,
                start,
                end,
                count,
                store_ms,
                self.reason,
                host,
                batch_offsets,
            ),
        )


@final
@attrs.define(eq=False)
class OffsetOrderedQueue:
    """Requests that wait for one part, in the order of their next offsets.

    Neither offsets nor deadlines fall: requests come in append order and share one timeout.  The
    limits on appends bound the queue: every request here is a record in the log.
    """

    part: int
    timeout_status: PutMessageStatus
    # (next offset, deadline, request), oldest first
    waiting: deque[tuple[int, float, GroupCommitRequest]] = attrs.field(factory=deque, init=False)
    released_deadline: float = attrs.field(default=0.0, init=False)  # of the last one released

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def head_deadline(self) -> float | None:
        """The earliest deadline (trio time); None without requests."""
        return self.waiting[0][1] if self.waiting else None

    def put(self, next_offset: int, deadline: float, request: GroupCommitRequest) -> None:
        """Queue a request that is satisfied once the part reaches ``next_offset``."""
        self.waiting.append((next_offset, deadline, request))

    def release(self, offset: int) -> int:
        """Complete every request whose ``next_offset`` is ≤ ``offset``; return their number."""
        waiting = self.waiting
        part = self.part
        released = 0
        while waiting and waiting[0][0] <= offset:
            _, self.released_deadline, request = waiting.popleft()
            request.complete(part, _PUT_OK)
            released += 1
        return released

    def expire(self, now: float, reason: str) -> int:
        """Time out every request whose deadline is ≤ ``now``; return their number."""
        waiting = self.waiting
        expired = 0
        while waiting and waiting[0][1] <= now:
            waiting.popleft()[2].complete(self.part, self.timeout_status, reason)
            expired += 1
        return expired

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Complete all requests with ``status``, because the service that served them has ended."""
        waiting = self.waiting
        while waiting:
            waiting.popleft()[2].complete(self.part, status, reason)


@final
@attrs.define(eq=False)
class DeadlineWatcher:
    """Expires requests in ``queue`` at their deadlines; ``reason`` is the line that producers read.

    The head has the earliest deadline, so one sleeping task serves all, and a released request
    costs the timer nothing.
    """

    queue: OffsetOrderedQueue
    reason: str
    on_expired: Callable[[], None] = lambda: None  # called after some have expired
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def put(self, next_offset: int, deadline: float, request: GroupCommitRequest) -> None:
        """Queue a request, and wake the timer if it sleeps without a deadline."""
        self.queue.waiting.append((next_offset, deadline, request))
        if self._wake.sleeper is not None:
            self._wake.wakeup()

    async def run(self) -> None:
        """Expire requests until cancelled."""
        while True:
            deadline = self.queue.head_deadline
            if deadline is None:
                await self._wake.wait_for_running()
            else:
                await trio.sleep_until(deadline)
                if self.queue.expire(trio.current_time(), self.reason):
                    self.on_expired()
