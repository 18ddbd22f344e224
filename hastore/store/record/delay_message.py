"""A delayed message's two forms, and when it goes from one to the other.

::

    as sent                     as stored until it is due            as delivered
    topic      orders           topic      SCHEDULE_TOPIC_XXXX       topic      orders
    queue      2                queue      2 (level - 1)             queue      2
    DELAY      3                DELAY      3                         -
                                REAL_TOPIC orders, REAL_QID 2        REAL_TOPIC, REAL_QID

Everything else stays: body, flags, born host and time, UNIQ_KEY, the other properties.  The names
are RocketMQ's (``CommitLog.asyncPutMessage``, ``ScheduleMessageService.messageTimeup``).

A message is due when the wall clock has reached its deliver time, or when its level's delay has
passed, by a monotonic clock, since it was first seen here: setting the wall clock back delays no
message for longer than its level.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self, final

import attrs

from hastore.message import (
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT_STORE_MSG_OK,
    Message,
)
from hastore.store.record.delay_levels import is_level_text, parse_level
from hastore.store.record.layout import (
    BORN_HOST_V6_FLAG,
    STORE_HOST_V6_FLAG,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from hastore.message import StoredMessage
    from hastore.store.record.delay_levels import DelayLevels

PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"

_DELAYED_TYPES: Final = frozenset({0, TRANSACTION_COMMIT_TYPE})
_SPAN_WIDTH_MS: Final = 1_000.0
_SPANS_MAX: Final = 7_200
_QUEUE_ID_DIGITS_MAX: Final = 10
_QUEUE_ID_MAX: Final = 2**31 - 1


def delay_fault(message: Message) -> str | None:
    """Return why a message with DELAY could not be delivered; None if it could, or has no DELAY."""
    text = message.properties.get(PROPERTY_DELAY_TIME_LEVEL) if message.properties else None
    if text is None:
        return None
    if not is_level_text(text):
        return f"the property DELAY must be a number, not {text[:32]!r}"
    if not 0 <= message.queue_id <= _QUEUE_ID_MAX:
        return f"a message with DELAY needs a queue from 0 to {_QUEUE_ID_MAX}"
    return None


def to_schedule(message: Message, levels: DelayLevels) -> Message:
    """Return the scheduled form of ``message``, or ``message`` itself if it has no delay.

    Only messages without a transaction and committed ones are delayed.
    """
    properties = message.properties
    level = parse_level(properties.get(PROPERTY_DELAY_TIME_LEVEL)) if properties else 0
    if level <= 0 or message.sys_flag & TRANSACTION_TYPE_MASK not in _DELAYED_TYPES:
        return message
    assert properties is not None
    level = levels.clamp(level)
    return attrs.evolve(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties={
            **properties,
            PROPERTY_DELAY_TIME_LEVEL: str(level),
            PROPERTY_REAL_TOPIC: message.topic,
            PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
        },
    )


def to_real(stored: StoredMessage) -> Message | None:
    """Return the message to deliver for a scheduled one; None if it names no real topic and queue.

    No producer waits for it: it is stored with ``WAIT`` = ``false``.
    """
    properties = dict(stored.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    is_number = queue_id.isascii() and queue_id.isdecimal()
    if not topic or topic == SCHEDULE_TOPIC or not is_number:
        return None
    if len(queue_id) > _QUEUE_ID_DIGITS_MAX:
        return None
    properties.pop(PROPERTY_DELAY_TIME_LEVEL, None)
    properties.pop(PROPERTY_CRC32, None)  # it covers the scheduled record
    properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return Message(
        topic,
        stored.body,
        properties=properties,
        queue_id=int(queue_id),
        flag=stored.flag,
        sys_flag=stored.sys_flag & ~(BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG),
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
    )


def is_delivery_of(delivered: StoredMessage, scheduled: StoredMessage) -> bool:
    """Whether ``delivered`` is the record that the delivery of ``scheduled`` appended.

    Messages that agree in all of this are the same for a consumer.
    """
    real = scheduled.properties
    return (
        delivered.physic_offset > scheduled.physic_offset
        and delivered.topic == real.get(PROPERTY_REAL_TOPIC)
        and str(delivered.queue_id) == real.get(PROPERTY_REAL_QUEUE_ID)
        and delivered.properties.get(PROPERTY_UNIQ_KEY) == real.get(PROPERTY_UNIQ_KEY)
        and delivered.reconsume_times == scheduled.reconsume_times
        and delivered.born_timestamp_ms == scheduled.born_timestamp_ms
        and delivered.body == scheduled.body
    )


@final
@attrs.define(eq=False)
class FirstSeen:
    """When the messages of one queue were first seen (ms of a monotonic clock).

    Messages seen within ``width_ms`` share one span and count as seen at its end, so none is
    delivered early.  ``of`` chooses the width so that 7,200 spans cover ``delay_ms``.
    """

    width_ms: float = _SPAN_WIDTH_MS
    # Of each span: the queue offset after its last message, its first and its last time.
    _spans: deque[tuple[int, float, float]] = attrs.field(factory=deque, init=False)

    @classmethod
    def of(cls, delay_ms: int) -> Self:
        """Make one for a queue whose messages wait ``delay_ms``."""
        return cls(max(_SPAN_WIDTH_MS, delay_ms / _SPANS_MAX))

    @property
    def end(self) -> int:
        """The queue offset after the last message that was seen."""
        return self._spans[-1][0] if self._spans else 0

    def record(self, end: int, now_ms: float) -> None:
        """Record that every message below ``end`` has been seen by now."""
        spans = self._spans
        if spans and end <= spans[-1][0]:
            return
        began_ms = now_ms
        if spans and now_ms - spans[-1][1] < self.width_ms:
            began_ms = spans.pop()[1]
        spans.append((end, began_ms, now_ms))

    def seen_at_ms(self, queue_offset: int) -> float | None:
        """Return when a message was seen; None if it was not.  Forgets the messages before it."""
        spans = self._spans
        while len(spans) > 1 and spans[0][0] <= queue_offset:
            spans.popleft()
        if not spans or spans[0][0] <= queue_offset:
            return None
        return spans[0][2]


def due_in_ms(
    *, deliver_time_ms: int, wall_ms: int, delay_ms: int, seen_ms: float, now_ms: float
) -> float:
    """Return how long a message still has to wait; 0 or less if it is due.

    ``deliver_time_ms`` and ``wall_ms`` are wall time, ``seen_ms`` and ``now_ms`` monotonic time.
    """
    return min(deliver_time_ms - wall_ms, seen_ms + delay_ms - now_ms)
