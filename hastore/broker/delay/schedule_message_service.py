"""Delivery of delayed messages when they are due: RocketMQ's ScheduleMessageService.

Only a master runs it.

::

    SCHEDULE_TOPIC_XXXX / level - 1   | delivered … | due … | waiting …            |
                                                    └ offset                       └ max_offset

Each level has a cursor into its queue, whose messages are due in their order.  It sleeps until the
head is due (and checks the clock at least once a minute), puts the message into its real topic, and
advances once that is stored.  A level without messages waits until the dispatch wakes it.

Delivery is at least once: ``delayOffset.json`` is written every ten seconds and at a stop, and only
with offsets whose deliveries are on the disk, so a crash can only repeat deliveries.  In a replica
group they must be confirmed, too: what is not may be cut from this log.  Messages that were in the
queues at the start are first looked up in the index, in a thread, and not delivered again if it has
their delivery.  So a slave's directory, whose ``delayOffset.json`` may be behind, delivers what is
still due when it is promoted.

Invariants: an offset passes only a message that was stored (or can never be, which is logged); the
messages of a level are delivered in order; ``confirmed_offsets``, which slaves copy, passes only
deliveries below the confirm offset.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.concurrency.store_health import StoreHealth, Write
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.message import PROPERTY_UNIQ_KEY
from hastore.status import PutMessageStatus
from hastore.store.json_file import JsonFile
from hastore.store.log.store_directory import DELAY_OFFSET_FILE
from hastore.store.queue.unit import BLANK_SIZE
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.delay_message import (
    PROPERTY_REAL_TOPIC,
    FirstSeen,
    due_in_ms,
    is_delivery_of,
    to_real,
)
from hastore.store.record.message_codec import decode
from hastore.topic import SCHEDULE_TOPIC
from hastore.trace import logger
from hastore.wire.config_tables import stored_delay_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.message import Message, StoredMessage
    from hastore.store.message_store import MessageStore
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.unit import Unit

PERSIST_INTERVAL_S: Final = 10.0  # RocketMQ's flushDelayOffsetInterval
LOOK_AGAIN_S: Final = 60.0  # the wall clock may have been set
DISPATCH_WAIT_S: Final = 60.0  # at most, at the start, until the queues are complete
STOP_TIMEOUT_S: Final = 2.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 10.0
_BATCH_MAX: Final = 64
_BATCH_SIZE_MAX: Final = 1024 * 1024
_DISPATCH_POLL_S: Final = 0.1  # a repeated dispatch does not make a queue grow
_OFFSET_TABLE: Final = "offsetTable"
_HOUR_MS: Final = 3_600_000

# Another attempt would end the same way.
_NEVER_ACCEPTED: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)

_log = logger("broker")


@final
@attrs.define(eq=False)
class SafeOffset:
    """How far a cursor's deliveries are safe: on the disk, or confirmed."""

    offset: int  # queue offset; deliveries below it are safe
    # (end of the delivery in the log, the cursor's offset after it), oldest first
    _waiting: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)

    def add(self, next_physic_offset: int, offset: int) -> None:
        """Raise the offset to ``offset`` once the log is safe up to ``next_physic_offset``."""
        self._waiting.append((next_physic_offset, offset))

    def settle(self, safe_end: int) -> bool:
        """Raise ``offset``, the log being safe below ``safe_end``; return whether some wait."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= safe_end:
            self.offset = waiting.popleft()[1]
        return bool(waiting)


@final
@attrs.define(eq=False)
class LevelCursor:
    """The next message of one level to deliver, and up to where deliveries are on the disk."""

    level: int
    offset: int  # queue offset of the next message to deliver
    inherited_end: int  # queue offset; the messages below it were there at the start
    seen: FirstSeen
    log_end: int  # of the log at the start; the deliveries of the last run are below it
    settled: SafeOffset = attrs.field(init=False)  # ≤ offset; may be stored
    confirmed: SafeOffset = attrs.field(init=False)  # ≤ offset; slaves may copy it
    wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def __attrs_post_init__(self) -> None:
        """Treat the deliveries of the last run as settled, but not as confirmed."""
        self.settled = SafeOffset(self.offset)
        self.confirmed = SafeOffset(0)
        self.confirmed.add(self.log_end, self.offset)

    def advance(self, next_physic_offset: int) -> None:
        """Pass a message whose delivery ends there in the log; 0 if it was not delivered."""
        self.offset += 1
        self.settled.add(next_physic_offset, self.offset)
        self.confirmed.add(next_physic_offset, self.offset)


@final
@attrs.define(eq=False)
class ScheduleMessageService:
    """Delivers the delayed messages of one master through ``submit``."""

    env: Env
    message_store: MessageStore
    config: StoreConfig
    submit: Callable[[Message], GroupCommitRequest]
    # Bytes that are confirmed and not dispatched yet; the queues are complete when it is 0.
    dispatch_behind: Callable[[], int]
    confirm_offset: Callable[[], int]
    stores_confirmed_only: bool = False  # in a replica group
    health: StoreHealth = attrs.field(factory=StoreHealth)
    levels: DelayLevels = attrs.field(init=False)
    cursors: dict[int, LevelCursor] = attrs.field(factory=dict, init=False)
    delivered: int = attrs.field(default=0, init=False)
    dropped: int = attrs.field(default=0, init=False)  # messages that can never be delivered
    fault: str | None = attrs.field(default=None, init=False)  # of a delivery that is retried
    _file: JsonFile = attrs.field(init=False)
    _stored: dict[str, Any] = attrs.field(factory=dict, init=False)  # what the file holds
    _changed: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _dispatched: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _one_write: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _one_query: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        """Parse the levels."""
        self.levels = DelayLevels.parse(self.config.message_delay_level)
        path = f"{self.message_store.commit_log.path.rstrip('/')}/{DELAY_OFFSET_FILE}"
        self._file = JsonFile(self.env.disk, path)

    def on_dispatched(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the levels among the queues that grew."""
        for queue in queues:
            if queue.topic == SCHEDULE_TOPIC:
                cursor = self.cursors.get(queue.queue_id + 1)
                if cursor is None:
                    self._dispatched.wakeup()
                else:
                    cursor.seen.record(queue.max_offset, trio.current_time() * 1000)
                    cursor.wake.wakeup()

    async def run(self) -> None:
        """Deliver until cancelled; store the offsets at the end."""
        self._stored = await self.env.offload.run(self._file.load)
        if not isinstance(self._stored.get(_OFFSET_TABLE), dict):
            self._stored[_OFFSET_TABLE] = {}
        await self._wait_for_queues()
        self._begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._persist_in_time)
                for cursor in self.cursors.values():
                    nursery.start_soon(self._serve, cursor)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
                await self.persist()

    # -- the start -------------------------------------------------------------------------------

    async def _wait_for_queues(self) -> None:
        """Wait for the dispatch, which may still be adding to the queues."""
        with trio.move_on_after(DISPATCH_WAIT_S):
            while self.dispatch_behind() > 0:
                with trio.move_on_after(_DISPATCH_POLL_S):
                    await self._dispatched.wait_for_running()

    def _begin(self) -> None:
        """Place a cursor in the queue of each level, and in each other schedule queue."""
        stored = stored_delay_offsets(self._stored)
        queues = {
            queue.queue_id + 1: queue
            for queue in self.message_store.consume_queues
            if queue.topic == SCHEDULE_TOPIC
        }
        now_ms = trio.current_time() * 1000
        for level in sorted({*range(1, self.levels.level_max + 1), *queues}):
            queue = queues.get(level)
            low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
            offset = min(stored.get(level, low), high)
            if offset < stored.get(level, low):
                _log.warning("delay_offset_corrected", level=level, stored=stored[level], to=high)
            seen = FirstSeen.of(self._delay_ms(level))
            seen.record(high, now_ms)
            log_end = self.message_store.commit_log.max_offset
            self.cursors[level] = LevelCursor(level, offset, high, seen, log_end)
        longest_h = max(self.levels.delays_ms) // _HOUR_MS
        if longest_h >= self.config.file_reserved_time_h:
            _log.warning(
                "delay_longer_than_retention",
                delay_h=longest_h,
                file_reserved_time_h=self.config.file_reserved_time_h,
                effect="a message may expire before it is due",
            )

    # -- one level -------------------------------------------------------------------------------

    async def _serve(self, cursor: LevelCursor) -> None:
        while True:
            queue = self.message_store.consume_queues.find(SCHEDULE_TOPIC, cursor.level - 1)
            if queue is None or cursor.offset >= queue.max_offset:
                await cursor.wake.wait_for_running()
                continue
            if cursor.offset < queue.min_offset:
                self._jump(cursor, queue.min_offset)
                continue
            try:
                units = queue.units(cursor.offset, _BATCH_MAX)
                count, wait_ms = self._due(cursor, queue, units)
                if count:
                    await self._deliver(cursor, _up_to_size(units[:count]))
                else:
                    await trio.sleep(min(max(wait_ms / 1000, 0.001), LOOK_AGAIN_S))
            except DiskError as error:
                self._record_fault(cursor, str(error))
                await trio.sleep(RETRY_MAX_S)

    def _jump(self, cursor: LevelCursor, min_offset: int) -> None:
        _log.error(
            "delayed_messages_expired",
            level=cursor.level,
            messages=min_offset - cursor.offset,
            reason="their files were deleted before they were due",
        )
        self.dropped += min_offset - cursor.offset
        cursor.offset = min_offset - 1
        cursor.advance(0)
        self._changed.wakeup()

    def _due(
        self, cursor: LevelCursor, queue: ConsumeQueue, units: Sequence[Unit]
    ) -> tuple[int, float]:
        """Return how many of the units are due, and how long the next one has to wait (ms)."""
        now_ms = trio.current_time() * 1000
        wall_ms = self.message_store.commit_log.wall_time_ms()
        cursor.seen.record(queue.max_offset, now_ms)
        delay_ms = self._delay_ms(cursor.level)
        for index, unit in enumerate(units):
            if unit.size == BLANK_SIZE:
                continue
            seen_ms = cursor.seen.seen_at_ms(cursor.offset + index)
            wait_ms = due_in_ms(
                deliver_time_ms=self._deliver_time_ms(cursor, unit),
                wall_ms=wall_ms,
                delay_ms=delay_ms,
                seen_ms=now_ms if seen_ms is None else seen_ms,
                now_ms=now_ms,
            )
            if wait_ms > 0:
                return index, wait_ms
        return len(units), 0

    def _delay_ms(self, level: int) -> int:
        """Return a level's delay; the longest one if the table no longer has the level."""
        delay_ms = self.levels.delay_ms(self.levels.clamp(level))
        assert delay_ms is not None
        return delay_ms

    def _deliver_time_ms(self, cursor: LevelCursor, unit: Unit) -> int:
        """Return the time in the unit's tags code, or the record's own if that is not a time.

        It is not one if it is an address in a ConsumeQueueExt.
        """
        if unit.tags_code > 0:
            return unit.tags_code
        record = self.message_store.record_at(unit.physic_offset, unit.size)
        if record is None:
            return 0
        return self.levels.deliver_time_ms(cursor.level, decode(record).store_timestamp_ms)

    async def _deliver(self, cursor: LevelCursor, units: Sequence[Unit]) -> None:
        store = self.message_store
        records = await self.env.offload.run(
            lambda: [
                None if unit.size == BLANK_SIZE else store.record_at(unit.physic_offset, unit.size)
                for unit in units
            ]
        )
        for unit, record in zip(units, records, strict=True):
            end = 0
            if record is not None:
                end = await self._deliver_one(cursor, decode(record))
            elif unit.size != BLANK_SIZE:
                self._drop(cursor, unit.physic_offset, "its record is gone or damaged")
            cursor.advance(end)
            self._changed.wakeup()
        cursor.settled.settle(self._storable_end())
        cursor.confirmed.settle(self.confirm_offset())

    async def _deliver_one(self, cursor: LevelCursor, scheduled: StoredMessage) -> int:
        """Deliver a scheduled message; return the end of the record, 0 if none was stored."""
        message = to_real(scheduled)
        if message is None:
            self._drop(cursor, scheduled.physic_offset, "it does not name its real topic")
            return 0
        if cursor.offset < cursor.inherited_end and await self._was_delivered(scheduled):
            return 0
        pause_s = RETRY_MIN_S
        while True:
            request = self.submit(message)
            status = request.status or await request.wait()
            if status.stored:
                self.fault = None
                self.delivered += 1
                assert request.append_result is not None
                return request.append_result.next_offset
            reason = f"{status.value}: {request.reason}"
            if status in _NEVER_ACCEPTED:
                self._drop(cursor, scheduled.physic_offset, reason)
                return 0
            self._record_fault(cursor, reason)
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _was_delivered(self, scheduled: StoredMessage) -> bool:
        """Return whether the log holds the delivery of a message that was there at the start."""
        key = scheduled.properties.get(PROPERTY_UNIQ_KEY)
        if not key:
            return False
        topic, begin_ms = scheduled.properties[PROPERTY_REAL_TOPIC], scheduled.store_timestamp_ms
        query = partial(
            self.message_store.query_message, topic, key, begin_ms=begin_ms, with_deleted=True
        )
        async with self._one_query:  # one thread for all levels
            found = await self.env.offload.run(query)
        return any(is_delivery_of(decode(record), scheduled) for record in found)

    def _drop(self, cursor: LevelCursor, physic_offset: int, reason: str) -> None:
        self.dropped += 1
        _log.error(
            "delayed_message_dropped",
            level=cursor.level,
            physic_offset=physic_offset,
            reason=reason,
        )

    def _record_fault(self, cursor: LevelCursor, reason: str) -> None:
        if self.fault is None:
            _log.warning("delivery_waits", level=cursor.level, reason=reason)
        self.fault = reason

    # -- delayOffset.json ------------------------------------------------------------------------

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return each level's next offset and its queue's end (``scheduleMessageOffset_LEVEL``)."""
        store = self.message_store
        return {
            level: (cursor.offset, store.max_offset_in_queue(SCHEDULE_TOPIC, level - 1))
            for level, cursor in self.cursors.items()
        }

    def confirmed_offsets(self) -> dict[int, int]:
        """Return each level's next offset as far as the deliveries below it are confirmed.

        Without levels for which that is 0.
        """
        confirm_offset = self.confirm_offset()
        for cursor in self.cursors.values():
            cursor.confirmed.settle(confirm_offset)
        return {
            level: cursor.confirmed.offset
            for level, cursor in self.cursors.items()
            if cursor.confirmed.offset
        }

    def _storable_end(self) -> int:
        """Return the end of the deliveries that a stored offset may pass."""
        flushed_offset = self.message_store.commit_log.flushed_offset
        if self.stores_confirmed_only:
            return min(flushed_offset, self.confirm_offset())
        return flushed_offset

    async def _persist_in_time(self) -> None:
        while True:
            await self._changed.wait_for_running()
            await trio.sleep(PERSIST_INTERVAL_S)
            if await self.persist():
                self._changed.wakeup()

    async def persist(self) -> bool:
        """Store the offsets whose deliveries are safe; return whether some are left.

        A failed write is logged and repeated at the next call.
        """
        storable_end = self._storable_end()
        async with self._one_write:
            left = [cursor.settled.settle(storable_end) for cursor in self.cursors.values()]
            table = {
                str(level): cursor.settled.offset
                for level, cursor in self.cursors.items()
                if cursor.settled.offset or str(level) in self._stored[_OFFSET_TABLE]
            }
            value = {**self._stored, _OFFSET_TABLE: table}
            if table == self._stored[_OFFSET_TABLE]:
                return any(left)
            try:
                await self.env.offload.run(lambda: self._file.store(value))
            except DiskError as error:
                _log.error("delay_offsets_not_stored", reason=str(error), next=error.hint)
                self.health.failed(Write.CONFIG, str(error), part=self._file.path)
                return True
            self.health.works(Write.CONFIG, part=self._file.path)
            self._stored = value
        return any(left)


def _up_to_size(units: Sequence[Unit]) -> Sequence[Unit]:
    """Return at least one of the units, and more while their records fit in one batch."""
    size = 0
    for count, unit in enumerate(units):
        size += 0 if unit.size == BLANK_SIZE else unit.size
        if count and size > _BATCH_SIZE_MAX:
            return units[:count]
    return units
