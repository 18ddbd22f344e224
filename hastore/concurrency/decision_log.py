"""The last decisions about puts, with the facts that explain them.

Two rings, so that neither evicts the other's entries: decisions other than PUT_OK, and a sample of
the acknowledged puts (one per ``OK_PERIOD_S`` at most).  Decisions of one status and cause, each
within ``SAME_CAUSE_S`` of the one before, are one entry with a count: a master without a slave
makes thousands per second.  Two reasons are one cause if they are equal but for their numbers.

A put that ends with PUT_OK costs nothing here.

``own_failure`` is the last put that failed through this node alone, not through its message, a
slave or its role: what health is judged by.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.lease import Lease
    from hastore.store.record.append_message_result import AppendMessageResult

WEAK_MAX: Final = 256
OK_MAX: Final = 64
OK_PERIOD_S: Final = 0.1
SAME_CAUSE_S: Final = 10.0  # a later decision gets an entry and a context of its own
_SAME_CAUSE_MS: Final = round(SAME_CAUSE_S * 1000)
_TOPIC_MAX: Final = 255
_CAUSE_SIZE: Final = 20  # the first characters of a reason, before any number
_NOT_AVAILABLE: Final = PutMessageStatus.SLAVE_NOT_AVAILABLE
_OF_ONE_CAUSE: Final = frozenset(
    {PutMessageStatus.OS_PAGE_CACHE_BUSY, PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
)
# Failures of this node's own: its next file, its disk.
_OWN: Final = frozenset(
    {
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.OS_PAGE_CACHE_BUSY,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.UNKNOWN_ERROR,
    }
)
# Decisions about puts that the disk took as it should.
_TAKEN: Final = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)
# Faults of the message, which are the producer's and not of slaves or disks.
_NOT_KEPT: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)


@final
@attrs.define(eq=False, kw_only=True)
class Decision:
    """One decision, or several of one status and cause.  Times are trio's.

    ``count``: messages; in the sample of acknowledged puts a batch is one.
    """

    status: PutMessageStatus
    first_time: float
    # For SLAVE_NOT_AVAILABLE that of the first decision: ``last_result`` has the time of the last.
    last_time: float
    count: int
    topic: str  # of the first, as are ``queue_id``, ``first_offset``, ``reason`` and ``context``
    queue_id: int
    first_offset: int | None  # the message's end in the log; None if not appended
    last_result: AppendMessageResult | None  # of the last one; None if not appended
    reason: str | None = None
    slave: tuple[str, int] | None = None  # whose ack decided; None if none did
    waited_s: tuple[float, float] | None = None  # the longest and shortest wait for that ack
    context: Any = None  # from ``DecisionLog.describe``


@final
@attrs.frozen(kw_only=True)
class OwnFailure:
    """The last put that failed through this node, and how many did without a success between.

    A batch is one put.
    """

    status: PutMessageStatus
    reason: str | None
    time: float  # trio's
    count: int
    taken_before: int  # messages of this master that its disk had taken then


@final
@attrs.define(eq=False)
class DecisionLog:
    """The rings of one master, and the numbers of messages and of batches by status."""

    counts: dict[PutMessageStatus, int] = attrs.field(
        factory=lambda: dict.fromkeys(PutMessageStatus, 0)
    )
    batch_counts: dict[PutMessageStatus, int] = attrs.field(
        factory=lambda: dict.fromkeys(PutMessageStatus, 0)
    )
    # Returns the context of a new entry, given its status and ``first_offset``.
    describe: Callable[[PutMessageStatus, int | None], Any] | None = None
    lease: Lease | None = None  # see DecisionKeeper
    weak: deque[Decision] = attrs.field(factory=lambda: deque(maxlen=WEAK_MAX), init=False)
    ok: deque[Decision] = attrs.field(factory=lambda: deque(maxlen=OK_MAX), init=False)
    own_failure: OwnFailure | None = attrs.field(default=None, init=False)
    _last: Decision | None = attrs.field(default=None, init=False)  # the last one that counted
    _last_of: dict[PutMessageStatus, Decision] = attrs.field(factory=dict, init=False)
    next_ok_time: float = attrs.field(default=0.0, init=False)  # when the next sample is due

    def record(self, request: GroupCommitRequest) -> None:
        """Record a put that was decided with another status than PUT_OK."""
        last, status = self._last, request.status
        if status in _OWN:
            self._record_own(request)
        if last is None or status is not last.status:
            assert status is not None
            last = self._last_of.get(status)
        if last is None or not (
            request.reason is last.reason or _is_alike(last.status, last.reason, request.reason)
        ):
            self._add(request)
            return
        appended, before = request.append_result, last.last_result
        if status is _NOT_AVAILABLE and appended is not None and before is not None:
            # Decided when it was appended: its timestamp saves reading the clock.
            age_ms = appended.store_timestamp_ms - before.store_timestamp_ms
            if age_ms > _SAME_CAUSE_MS:
                self._add(request)
                return
        else:
            now = trio.current_time()
            if now - last.last_time > SAME_CAUSE_S:
                self._add(request)
                return
            last.last_time = now
        last.count += request.message_count
        last.last_result = appended
        self._last = last

    @property
    def taken(self) -> int:
        """How many messages this master's disk has taken as it should."""
        return sum(self.counts[status] for status in _TAKEN)

    def _record_own(self, request: GroupCommitRequest) -> None:
        before, taken = self.own_failure, self.taken
        assert request.status is not None
        is_repeated = before is not None and before.taken_before == taken
        self.own_failure = OwnFailure(
            status=request.status,
            reason=request.reason,
            time=trio.current_time(),
            count=before.count + 1 if before is not None and is_repeated else 1,
            taken_before=taken,
        )

    def _add(self, request: GroupCommitRequest) -> None:
        status = request.status
        assert status is not None
        if status in _NOT_KEPT:
            return
        now = trio.current_time()
        appended = request.append_result
        next_offset = None if appended is None else appended.next_offset
        if len(self.weak) == WEAK_MAX and self._last_of.get(self.weak[0].status) is self.weak[0]:
            del self._last_of[self.weak[0].status]  # the ring drops it
        self._last = self._last_of[status] = last = Decision(
            status=status,
            first_time=now,
            last_time=now,
            count=request.message_count,
            topic=request.topic[:_TOPIC_MAX],
            queue_id=request.queue_id,
            first_offset=next_offset,
            last_result=appended,
            reason=request.reason,
            context=None if self.describe is None else self.describe(status, next_offset),
        )
        self.weak.append(last)

    def acknowledged(
        self,
        request: GroupCommitRequest,
        count: int,
        waited_s: tuple[float, float],
        slave: tuple[str, int] | None,
        now: float,
    ) -> None:
        """Record that a report of ``slave`` released ``count`` puts, ``request`` the oldest.

        None: a change of the SyncStateSet released them.
        """
        if now < self.next_ok_time:
            return
        self.next_ok_time = now + OK_PERIOD_S
        appended = request.append_result
        next_offset = None if appended is None else appended.next_offset
        self.ok.append(
            Decision(
                status=PutMessageStatus.PUT_OK,
                first_time=now,
                last_time=now,
                count=count,
                topic=request.topic[:_TOPIC_MAX],
                queue_id=request.queue_id,
                first_offset=next_offset,
                last_result=appended,
                slave=slave,
                waited_s=waited_s,
            )
        )


def _is_alike(status: PutMessageStatus, reason: str | None, other: str | None) -> bool:
    """Return whether two reasons are equal but for their numbers."""
    if status in _OF_ONE_CAUSE:
        return True
    if reason is None or other is None:
        return reason is other
    return reason == other or (
        reason.startswith("the nearest slave is") and reason[:_CAUSE_SIZE] == other[:_CAUSE_SIZE]
    )
