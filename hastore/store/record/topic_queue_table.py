"""The next queue offsets of each topic (RocketMQ's topicQueueTable), and each topic's bytes.

A queue offset is a message's index in its queue.  The master assigns it at the append and advances
it only if the append succeeds; at a start it is rebuilt by walking the log, whose records hold it.
A slave needs no table: it copies bytes.

Invariant: a topic is in the table only if it has, or had, a record in the log.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from hastore.store.record.layout import (
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    TEXT_SIZE_MAX,
    TOPIC_LENGTHS,
    TOPIC_SIZE_MAX_V1,
)

_QUEUE_OFFSET_MAX: Final = 2**63 - 1


@final
class TopicQueues:
    """One topic: its next queue offset for each queue, and the bytes that each record repeats."""

    __slots__ = ("bare_tail", "magic", "next_offsets", "topic_field")

    def __init__(self, topic_bytes: bytes, bare_properties: bytes) -> None:
        size = len(topic_bytes)
        assert size <= TEXT_SIZE_MAX
        is_v2 = size > TOPIC_SIZE_MAX_V1
        self.magic = MESSAGE_MAGIC_CODE_V2 if is_v2 else MESSAGE_MAGIC_CODE
        self.topic_field = TOPIC_LENGTHS[self.magic].pack(size) + topic_bytes
        self.bare_tail = self.topic_field + bare_properties
        self.next_offsets: dict[int, int] = {}


@final
@attrs.define(eq=False)
class TopicQueueTable:
    """Every topic of the log.

    ``bare_properties`` begins the property field of a message without properties.
    """

    bare_properties: bytes = b"\0\0"
    topics: dict[str, TopicQueues] = attrs.field(factory=dict, init=False)
    _by_bytes: dict[bytes, TopicQueues | None] = attrs.field(factory=dict, init=False)

    def find(self, topic: str) -> TopicQueues | None:
        """Return a topic's queues, new ones if it is not in the table.

        The caller puts new ones into it once a record is stored.  None if no record can hold the
        name.
        """
        queues = self.topics.get(topic)
        if queues is None:
            try:
                topic_bytes = topic.encode()
            except UnicodeEncodeError:  # a lone surrogate
                return None
            if not topic_bytes or len(topic_bytes) > TEXT_SIZE_MAX:
                return None
            queues = TopicQueues(topic_bytes, self.bare_properties)
        return queues

    def advance(self, topic_bytes: bytes, queue_id: int, next_offset: int) -> None:
        """Advance a queue to ``next_offset``, unless it is there already.

        Impossible offsets are ignored: the field, or a batch's count, is damaged.
        """
        if next_offset > _QUEUE_OFFSET_MAX:
            return
        try:
            queues = self._by_bytes[topic_bytes]
        except KeyError:
            # No producer can name a topic that is not UTF-8, so it needs no offset.
            topic = topic_bytes.decode(errors="surrogateescape")
            queues = self._by_bytes[topic_bytes] = self.find(topic)
            if queues is not None:
                self.topics[topic] = queues
        if queues is not None and queues.next_offsets.get(queue_id, 0) < next_offset:
            queues.next_offsets[queue_id] = next_offset

    def forget(self, topic_bytes: bytes, queue_id: int, queue_offset: int) -> None:
        """Set a queue back to ``queue_offset``, that of its last record."""
        queues = self._by_bytes.get(topic_bytes)
        if queues is not None and queue_id in queues.next_offsets:
            queues.next_offsets[queue_id] = queue_offset
            if not queue_offset:
                del queues.next_offsets[queue_id]

    @property
    def queue_count(self) -> int:
        """Number of queues with at least one message."""
        return sum(len(queues.next_offsets) for queues in self.topics.values())
