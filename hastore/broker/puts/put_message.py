"""The path of one message on a master: check, append, flush, replicate, one status.

``submit`` never waits: it appends and returns a GroupCommitRequest that others complete (the flush
manager its FLUSH part, the group transfer service its HA part).  If the next mapped file is not
ready, the append waits for it, in order (``pending_puts``).

The conditions of every status:

==========================  =====================================================================
PUT_OK                      stored, and flushed and acknowledged as the modes require
FLUSH_DISK_TIMEOUT          stored; SYNC_FLUSH, and not on the disk in sync_flush_timeout_ms
FLUSH_SLAVE_TIMEOUT         stored; SYNC_MASTER, and not acknowledged in slave_timeout_ms
SLAVE_NOT_AVAILABLE         stored; SYNC_MASTER, and no slave is available
SERVICE_NOT_AVAILABLE       not stored: the node is a slave, stopping, stopped by a disk fault, or
                            its disk is too full
IN_SYNC_REPLICAS_NOT_ENOUGH not stored: the SyncStateSet has fewer than min_in_sync_replicas nodes
CREATE_MAPPED_FILE_FAILED   not stored: no next file in create_mapped_file_timeout_ms
OS_PAGE_CACHE_BUSY          not stored: too many puts wait for the next file, or for too long
MESSAGE_ILLEGAL             not stored: bad topic, or larger than max_message_size or a file
PROPERTIES_SIZE_EXCEEDED    not stored: more than 32767 bytes of properties; of what clients send,
                            with CLUSTER
UNKNOWN_ERROR               the disk failed: it is not known whether the message is stored
==========================  =====================================================================

A wait that ends early never undoes an append.

A message with a delay is stored in the schedule topic.  As in RocketMQ, its result names the topic
and queue that it was sent to, and the queue offset in the schedule queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.puts.pending_puts import body_size
from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.errors import DiskError
from hastore.flush.checkpoint_flusher import will_pass
from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_WAIT_STORE_MSG_OK,
    Message,
)
from hastore.status import AppendMessageStatus, FlushDiskType, PutMessageStatus
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.delay_message import delay_fault, to_schedule
from hastore.store.record.layout import INNER_BATCH_FLAG, TRANSACTION_TYPE_MASK
from hastore.topic import SCHEDULE_TOPIC, topic_fault

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from hastore.broker.puts.append_sampler import AppendSampler
    from hastore.broker.puts.pending_puts import PendingPut, PendingPuts
    from hastore.concurrency.decision_log import DecisionLog
    from hastore.config import StoreConfig
    from hastore.flush.flush_manager import FlushManager
    from hastore.ha.ha_service import HAService
    from hastore.store.commit_log import CommitLog
    from hastore.store.record.append_message_result import AppendMessageResult

_TOPICS_KNOWN_MAX: Final = 10_000
NOT_IN_SYNC_REMARK: Final = "in-sync replicas not enough"  # RocketMQ's
_INNER_BATCH_FAULT: Final = "inner batches need BatchCQ topics, which this broker does not have"

_PUT_OK = AppendMessageStatus.PUT_OK
_END_OF_FILE = AppendMessageStatus.END_OF_FILE
_SIZE_EXCEEDED = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
_REFUSED: Final = {
    AppendMessageStatus.MESSAGE_ILLEGAL: (
        PutMessageStatus.MESSAGE_ILLEGAL,
        "a field of the message does not fit its record",
    ),
    AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED: (
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        "the properties, with CLUSTER of the client port, are larger than 32767 bytes",
    ),
    AppendMessageStatus.UNKNOWN_ERROR: (PutMessageStatus.UNKNOWN_ERROR, "the append failed"),
}


@final
@attrs.define(eq=False)
class PutMessage:
    """Takes messages on a master; ``run`` serves the puts that wait for a file."""

    commit_log: CommitLog
    flush_manager: FlushManager
    ha_service: HAService
    config: StoreConfig
    is_sync_master: bool
    pending: PendingPuts
    sampler: AppendSampler
    decisions: DecisionLog
    notify_dispatch: Callable[[], None]
    # Why puts are refused now; None while they are taken.
    unavailable_because: str | None = attrs.field(default=None, init=False)
    # Likewise, because of the SyncStateSet alone.
    _not_in_sync_because: str | None = attrs.field(default=None, init=False)
    _disk_full_because: str | None = attrs.field(default=None, init=False)
    _held_because: str | None = attrs.field(default=None, init=False)
    _disk_failure: DiskError | None = attrs.field(default=None, init=False)
    _stopped_because: str | None = attrs.field(default=None, init=False)
    _delay_levels: DelayLevels = attrs.field(init=False)
    _append_message: Callable[[Message], AppendMessageResult] = attrs.field(init=False)
    _waiting: deque[PendingPut] = attrs.field(init=False)  # ``pending.waiting``
    _topics: set[str] = attrs.field(factory=set, init=False)
    _parts_waited_for: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Look up the values that do not change."""
        self._append_message = self.commit_log.append_message
        self._waiting = self.pending.waiting
        self._delay_levels = DelayLevels.parse(self.config.message_delay_level)
        sync_flush = self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._parts_waited_for = (Part.FLUSH if sync_flush else 0) | (
            Part.HA if self.is_sync_master else 0
        )

    def submit(self, message: Message) -> GroupCommitRequest:
        """Append one message; never raises, the request holds the outcome."""
        topic = message.topic
        request = GroupCommitRequest(topic, message.queue_id, self.decisions)
        if topic not in self._topics and self._is_illegal(message, request):
            return request
        properties = message.properties
        if message.sys_flag & INNER_BATCH_FLAG or (properties and PROPERTY_INNER_NUM in properties):
            request.decide(PutMessageStatus.MESSAGE_ILLEGAL, _INNER_BATCH_FAULT)
            return request
        if properties and PROPERTY_DELAY_TIME_LEVEL in properties:
            fault = delay_fault(message)
            if fault is not None:
                request.decide(PutMessageStatus.MESSAGE_ILLEGAL, fault)
                return request
            message = to_schedule(message, self._delay_levels)
        if self._waiting or self.unavailable_because is not None:
            self._postpone(request, message)
        else:
            began = trio.current_time() if self.sampler.is_measuring else None
            try:
                result = self._append_message(message)
            except DiskError as error:
                self._append_failed(request, error)
                return request
            if began is not None:
                self.sampler.measured(trio.current_time() - began)
            if result.status is _PUT_OK:
                self._appended(request, result, message)
            else:
                self._not_appended(request, result.status, message)
        return request

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Append messages of one topic and queue, all or none, as consecutive records."""
        first = messages[0] if messages else Message("", b"")
        request = GroupCommitRequest(
            first.topic, first.queue_id, self.decisions, max(len(messages), 1)
        )
        fault = _batch_fault(messages)
        if fault is not None:
            request.decide(PutMessageStatus.MESSAGE_ILLEGAL, fault)
        elif first.topic not in self._topics and self._is_illegal(first, request):
            pass
        elif self._waiting or self.unavailable_because is not None:
            self._postpone(request, messages)
        else:
            self._append(request, messages, None)
        return request

    def _append(
        self,
        request: GroupCommitRequest,
        messages: Message | Sequence[Message],
        since: float | None,
    ) -> None:
        """Append a put that may have waited since ``since``."""
        if self._disk_failure is not None or self._not_in_sync_because is not None:
            self._refuse(request)
            return
        try:
            if isinstance(messages, Message):
                first, result = messages, self._append_message(messages)
            else:
                first, result = messages[0], self.commit_log.append_batch(messages)
        except DiskError as error:
            self._append_failed(request, error)
            return
        if result.status is _PUT_OK:
            self._appended(request, result, first)
        else:
            self._not_appended(request, result.status, messages, since)

    def _append_failed(self, request: GroupCommitRequest, error: DiskError) -> None:
        """Answer a put that could not be written, and stop if no later one can."""
        request.decide(PutMessageStatus.UNKNOWN_ERROR, str(error))
        if not will_pass(error):
            self._disk_failure = error
            self.stop(f"this master has stopped: {error}")
            self.pending.fail(error)

    # -- after the append: flush, then slaves ----------------------------------------------------

    def _appended(
        self, request: GroupCommitRequest, result: AppendMessageResult, first: Message
    ) -> None:
        request.append_result = result
        sampler, wall_s = self.sampler, self.commit_log.append_wall_s
        if not sampler.since_wall_s <= wall_s < sampler.due_wall_s:
            sampler.mark(wall_s, result)
        sampler.appended.count += result.message_count
        self.notify_dispatch()
        self.flush_manager.notify_appended()
        self.ha_service.notify_appended()
        properties = first.properties
        if properties and properties.get(PROPERTY_WAIT_STORE_MSG_OK) == "false":
            parts = 0
        else:
            parts = self._parts_waited_for
        if not parts:
            request.decide(PutMessageStatus.PUT_OK)
            return
        request.expect(parts)
        if parts & Part.FLUSH:
            self.flush_manager.handle_disk_flush(request, result.next_offset)
        if parts & Part.HA:
            self.ha_service.handle_ha(request, result.next_offset)

    # -- no append yet ---------------------------------------------------------------------------

    def _is_illegal(self, message: Message, request: GroupCommitRequest) -> bool:
        fault = topic_fault(message.topic)
        if message.topic == SCHEDULE_TOPIC:
            fault = f"{SCHEDULE_TOPIC} is the store's own; set DELAY on a message of another topic"
        if fault is not None:
            request.decide(PutMessageStatus.MESSAGE_ILLEGAL, fault)
            return True
        if len(self._topics) < _TOPICS_KNOWN_MAX:
            self._topics.add(message.topic)
        return False

    def _not_appended(
        self,
        request: GroupCommitRequest,
        status: AppendMessageStatus,
        messages: Message | Sequence[Message],
        since: float | None = None,
    ) -> None:
        if status is _END_OF_FILE:
            self.flush_manager.notify_appended()  # the BLANK that closed the file
            self.ha_service.notify_appended()
            self.pending.add(request, messages, since)
        elif status is _SIZE_EXCEEDED:
            request.decide(PutMessageStatus.MESSAGE_ILLEGAL, self._why_too_large(messages))
        else:
            request.decide(*_REFUSED[status])

    def _why_too_large(self, messages: Message | Sequence[Message]) -> str:
        """Return which limit a message or batch exceeds."""
        what = "message" if isinstance(messages, Message) else "batch"
        size, size_max = body_size(messages), self.config.max_message_size
        if size > size_max:
            return f"the {what} is larger than max_message_size: {size} bytes, at most {size_max}"
        return f"the {what} is larger than a mapped file takes: {size} bytes and its properties"

    def _postpone(self, request: GroupCommitRequest, messages: Message | Sequence[Message]) -> None:
        """Queue a put for the next file, unless too much waits for it already."""
        if self.unavailable_because is not None:
            self._refuse(request)
            return
        reason = self.pending.busy_because()
        if reason is not None:
            request.decide(PutMessageStatus.OS_PAGE_CACHE_BUSY, reason)
        else:
            self.pending.add(request, messages)

    async def run(self) -> None:
        """Serve the puts that wait for a file, in order, until cancelled.

        Raises DiskError after a failed write: the content of the disk is unknown.
        """
        await self.pending.run(self._append)

    # -- refusal ---------------------------------------------------------------------------------

    def _refuse(self, request: GroupCommitRequest) -> None:
        reason = self.unavailable_because
        if reason is self._not_in_sync_because:
            request.decide(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, reason)
        else:
            request.decide(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts for ``reason``; None: there is room again."""
        self._disk_full_because = reason
        self._find_reason()

    @property
    def is_held(self) -> bool:
        """Whether the master hands its role over."""
        return self._held_because is not None

    def hold(self, reason: str | None) -> None:
        """Refuse puts while the master hands over, those that wait for a file, too; None: go on."""
        self._held_because = reason
        if reason is not None:
            self.pending.decide_all(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        self._find_reason()

    def set_not_in_sync(self, reason: str | None) -> None:
        """Refuse puts because the SyncStateSet is too small; None: it is large enough again.

        Puts that wait for a file are refused, too, when their turn comes.
        """
        self._not_in_sync_because = None if reason is None else f"{NOT_IN_SYNC_REMARK}: {reason}"
        self._find_reason()

    def _find_reason(self) -> None:
        self.unavailable_because = (
            self._stopped_because
            or self._held_because
            or self._disk_full_because
            or self._not_in_sync_because
        )

    def stop(self, reason: str) -> None:
        """Refuse new puts, and those that are not appended yet."""
        self.unavailable_because = self._stopped_because = reason
        self.pending.decide_all(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)


def _batch_fault(messages: Sequence[Message]) -> str | None:
    """Return what is wrong with a batch, or None."""
    if not messages:
        return "the batch is empty"
    first = messages[0]
    for message in messages:
        if message.topic != first.topic or message.queue_id != first.queue_id:
            return "the messages of a batch must have one topic and one queue"
        properties = message.properties
        if properties and properties.get(PROPERTY_DELAY_TIME_LEVEL, "0") != "0":
            return "a batch must not hold delayed messages"
        if message.sys_flag & TRANSACTION_TYPE_MASK:
            return "a batch must not hold transactional messages"
        if message.sys_flag & INNER_BATCH_FLAG or (properties and PROPERTY_INNER_NUM in properties):
            return _INNER_BATCH_FAULT
    return None
