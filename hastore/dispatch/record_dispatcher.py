"""Puts records into their consume queues and the index, by the rules of ``derived_record``.

Ordinary records come as scans, many at a time, all others one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.store.record.derived_record import derive
from hastore.store.record.layout import INNER_BATCH_FLAG
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.dispatch.record_scan import RecordScan
    from hastore.store.index.service import IndexService
    from hastore.store.log_rewrite import WrittenRecord
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.record.record_check import RecordCheck

_log = logger("dispatch")


@final
@attrs.define(eq=False)
class RecordDispatcher:
    """Dispatches records; they are readable after a commit."""

    consume_queues: ConsumeQueueStore
    index_service: IndexService | None
    delay_levels: DelayLevels
    _has_warned_of_inner_batches: bool = attrs.field(default=False, init=False)
    # Queues that grew in commit steps that are not returned yet.
    _grown: list[ConsumeQueue] = attrs.field(factory=list, init=False)

    def dispatch_scan(self, scan: RecordScan, physic_offset: int) -> None:
        """Dispatch what a scan from ``physic_offset`` on has read, at least one record.

        Records come in the log's order; dispatching one again changes nothing.
        """
        for topic, queue_id, queue_offset, units in scan.queues:
            self.consume_queues.put_units(topic, queue_id, queue_offset, units)
        if self.index_service is not None:
            self.index_service.put_keys(scan.keys)
            self.index_service.record_seen(physic_offset, scan.last_offset)

    def dispatch_record(self, check: RecordCheck, physic_offset: int) -> None:
        """Dispatch one record, of whatever kind."""
        if check.sys_flag & INNER_BATCH_FLAG:
            self._warn_of_inner_batch(check.topic)
        store_ms = check.store_timestamp_ms
        record = derive(
            check.topic.decode(errors="surrogateescape"),
            sys_flag=check.sys_flag,
            store_ms=store_ms,
            properties=check.properties,
            delay_levels=self.delay_levels,
        )
        if record.is_in_queue:
            place = check.queue_id, check.queue_offset, physic_offset, check.size
            self.consume_queues.put(record.topic, *place, record.tags_code)
        if self.index_service is not None:
            if record.keys:
                self.index_service.put(record.topic, record.keys, physic_offset, store_ms)
            self.index_service.record_seen(physic_offset, physic_offset)

    def log_rewritten(self) -> None:
        """Have units checked before they are used: they may name bytes that were replaced."""
        self.consume_queues.distrust()

    def restore(self, record: WrittenRecord) -> None:
        """Put the unit of a record that was written into the log in place of other bytes.

        The index still has its keys, if the record was there once: entries are never removed.
        """
        self.consume_queues.restore(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.physic_offset,
            record.size,
            record.tags_code,
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

    def _warn_of_inner_batch(self, topic: bytes) -> None:
        if not self._has_warned_of_inner_batches:
            self._has_warned_of_inner_batches = True
            _log.warning(
                "inner_batches_have_no_consume_queue",
                topic=topic.decode(errors="surrogateescape"),
                reason="RocketMQ 5 keeps them in batchconsumequeue/, which is not built here",
            )
