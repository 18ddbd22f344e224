"""Puts a record into its consume queue and the index: RocketMQ's dispatchers, in their order.

A consume queue gets messages without a transaction and committed ones; the index gets the keys of
all but rolled-back ones: UNIQ_KEY, then each part of KEYS.  The unit of a message in
SCHEDULE_TOPIC_XXXX holds the time at which it is due instead of the tags code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.dispatch.dispatch_feed import dispatch_texts
from hastore.store.record.delay_levels import parse_level
from hastore.store.record.java_hash import tags_code
from hastore.store.record.layout import (
    INNER_BATCH_FLAG,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import decode_properties
from hastore.topic import SCHEDULE_TOPIC
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.dispatch.dispatch_feed import DispatchRequest
    from hastore.store.index.service import IndexService
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.record.record_check import RecordCheck

_IN_QUEUES: Final = frozenset({0, TRANSACTION_COMMIT_TYPE})

_log = logger("dispatch")


@final
@attrs.define(eq=False)
class RecordDispatcher:
    """Dispatches records; they are readable after a commit."""

    consume_queues: ConsumeQueueStore
    index_service: IndexService | None
    delay_levels: DelayLevels
    _put: Callable[[str, int, int, int, int, int], None] = attrs.field(init=False)
    _has_warned_of_inner_batches: bool = attrs.field(default=False, init=False)
    # Queues that grew in commit steps that are not returned yet.
    _grown: list[ConsumeQueue] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Bind the put, which runs once a message."""
        self._put = self.consume_queues.put

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        """Dispatch records in the log's order; dispatching one again changes nothing."""
        put = self._put
        for request in requests:
            physic_offset, size, topic, queue_id, queue_offset, _, sys_flag, texts = request
            if texts is None and not sys_flag:
                put(topic, queue_id, queue_offset, physic_offset, size, 0)
            elif sys_flag & INNER_BATCH_FLAG:
                self._pass_over_inner_batch(topic)
            else:
                self._dispatch_special(request)
        if requests and self.index_service is not None:
            self.index_service.record_seen(requests[0][0], requests[-1][0])

    def _dispatch_special(self, request: DispatchRequest) -> None:
        physic_offset, size, topic, queue_id, queue_offset, store_ms, sys_flag, texts = request
        tags, uniq_key, keys, delay = texts or (None, None, None, None)
        transaction_type = sys_flag & TRANSACTION_TYPE_MASK
        if transaction_type in _IN_QUEUES:
            code = tags_code(tags)
            if topic == SCHEDULE_TOPIC and (level := parse_level(delay)) > 0:
                code = self.delay_levels.deliver_time_ms(level, store_ms)
            self._put(topic, queue_id, queue_offset, physic_offset, size, code)
        if self.index_service is None or transaction_type == TRANSACTION_ROLLBACK_TYPE:
            return
        names = [uniq_key] if uniq_key else []
        if keys:
            names += [key for key in keys.split(" ") if key]
        if names:
            self.index_service.put(topic, names, physic_offset, store_ms)

    def request_of(self, check: RecordCheck, physic_offset: int) -> DispatchRequest:
        """Make the request of a record that was read from the log."""
        return (
            physic_offset,
            check.size,
            check.topic.decode(errors="surrogateescape"),
            check.queue_id,
            check.queue_offset,
            check.store_timestamp_ms,
            check.sys_flag,
            dispatch_texts(decode_properties(check.properties)) if check.properties else None,
        )

    def commit_step(self) -> list[ConsumeQueue] | None:
        """Make a part of the dispatched records readable; the last part includes the index.

        Return None while more is left, then the queues that grew.  Raises DiskError; what could not
        be written is kept for the next call.
        """
        grown = self.consume_queues.commit_step()
        if grown is None:
            return None
        self._grown += grown
        if self.index_service is not None:
            self.index_service.commit()
        grown, self._grown = self._grown, []
        return grown

    def _pass_over_inner_batch(self, topic: str) -> None:
        if not self._has_warned_of_inner_batches:
            self._has_warned_of_inner_batches = True
            _log.warning(
                "inner_batches_have_no_consume_queue",
                topic=topic,
                reason="RocketMQ 5 keeps them in batchconsumequeue/, which is not built here",
            )
