"""The last decisions about puts, with what a person needs to understand them.

Two rings, so that neither pushes the other out: what did not end with PUT_OK, and a sample of what
a slave has acknowledged (one in ``OK_PERIOD_S`` at most).  Decisions of one status and cause that
follow each other within ``SAME_STORY_S`` are one entry with a count: a master without a slave makes
thousands a second.  A cause is the reason as it is, but where reasons hold numbers.

A put that ends with PUT_OK costs nothing here.
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
    from hastore.store.record.append_message_result import AppendMessageResult

WEAK_MAX: Final = 256
OK_MAX: Final = 64
OK_PERIOD_S: Final = 0.1
SAME_STORY_S: Final = 10.0  # what comes later is told anew, with the slaves as they are then
_SAME_STORY_MS: Final = round(SAME_STORY_S * 1000)
_TOPIC_MAX: Final = 255
_SAME_CAUSE: Final = 20  # characters in which two reasons of one cause are alike
# Faults of a message are its producer's, and say nothing of slaves and disks.
_NOT_AVAILABLE: Final = PutMessageStatus.SLAVE_NOT_AVAILABLE
_OF_ONE_CAUSE: Final = frozenset(
    {PutMessageStatus.OS_PAGE_CACHE_BUSY, PutMessageStatus.CREATE_MAPPED_FILE_FAILED}
)
_NOT_KEPT: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)


@final
@attrs.define(eq=False, kw_only=True)
class Decision:
    """One decision, or several of one cause: the time of the first and of the last, in trio's.

    Of several SLAVE_NOT_AVAILABLE the last one's time is that of its append, in ``last_result``.

    ``context`` is what was known of the slaves at the first of them; ``waited_s`` are the longest
    and the shortest wait of what was acknowledged together.
    """

    status: PutMessageStatus
    first_time: float
    last_time: float
    count: int
    topic: str
    queue_id: int
    first_offset: int | None  # where the first of them ends in the log
    last_result: AppendMessageResult | None
    reason: str | None = None
    slave: tuple[str, int] | None = None
    waited_s: tuple[float, float] | None = None
    context: Any = None


@final
@attrs.define(eq=False)
class DecisionLog:
    """The rings of one master, and how many puts had which status.

    ``describe`` gives the context of a new entry: it is asked once for each, not for each put.
    """

    counts: dict[PutMessageStatus, int] = attrs.field(
        factory=lambda: dict.fromkeys(PutMessageStatus, 0)
    )
    describe: Callable[[PutMessageStatus, int | None], Any] | None = None
    weak: deque[Decision] = attrs.field(factory=lambda: deque(maxlen=WEAK_MAX), init=False)
    ok: deque[Decision] = attrs.field(factory=lambda: deque(maxlen=OK_MAX), init=False)
    _last: Decision | None = attrs.field(default=None, init=False)  # of the weak ones
    _last_of: dict[PutMessageStatus, Decision] = attrs.field(factory=dict, init=False)
    next_ok_time: float = attrs.field(default=0.0, init=False)  # of the sample

    def note(self, request: GroupCommitRequest) -> None:
        """Note a put that was decided, and not with PUT_OK."""
        last, status = self._last, request.status
        if last is None or status is not last.status:
            assert status is not None
            last = self._last_of.get(status)
        if last is None or not (
            request.reason is last.reason or _is_alike(last.status, last.reason, request.reason)
        ):
            self._note_first(request)
            return
        appended, before = request.append_result, last.last_result
        if status is _NOT_AVAILABLE and appended is not None and before is not None:
            # Decided when it was appended: no need for a clock.
            age_ms = appended.store_timestamp_ms - before.store_timestamp_ms
            if age_ms > _SAME_STORY_MS:
                self._note_first(request)
                return
        else:
            now = trio.current_time()
            if now - last.last_time > SAME_STORY_S:
                self._note_first(request)
                return
            last.last_time = now
        last.count += 1
        last.last_result = appended
        self._last = last

    def _note_first(self, request: GroupCommitRequest) -> None:
        status = request.status
        assert status is not None
        if status in _NOT_KEPT:
            return
        now = trio.current_time()
        appended = request.append_result
        next_offset = None if appended is None else appended.next_offset
        if len(self.weak) == WEAK_MAX and self._last_of.get(self.weak[0].status) is self.weak[0]:
            del self._last_of[self.weak[0].status]  # it goes: nothing is counted there any more
        self._last = self._last_of[status] = last = Decision(
            status=status,
            first_time=now,
            last_time=now,
            count=1,
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
        slave: tuple[str, int],
        now: float,
    ) -> None:
        """Note that one report released ``count`` puts, the oldest of them ``request``."""
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
    """Whether two reasons are one but for the numbers in them."""
    if status in _OF_ONE_CAUSE:
        return True
    if reason is None or other is None:
        return reason is other
    return reason == other or (
        reason.startswith("the nearest slave is") and reason[:_SAME_CAUSE] == other[:_SAME_CAUSE]
    )
