"""Says whether a unit names a record of its own queue.

::

    unit n of topic T, queue q      log
    | physic_offset | size | … |    … | size  T  q  n  physic_offset … | …
              └──────────────────────┘

RocketMQ leaves others behind: a slave that cuts its log back keeps units of records that were cut.
Later records lie there then, of other queues and other sizes.

The record's head and topic are read, never its body, and no checksum is computed.  A start also
compares the tags code: where all messages have one size, the unit of a record that was cut differs
from the new record's in that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.message import PROPERTY_TAGS
from hastore.store.record.java_hash import tags_code
from hastore.store.record.layout import (
    BODY_LENGTH,
    BODY_POSITIONS,
    HEAD_READ_SIZE,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MAGIC_POSITION,
    MAGIC_SIZE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGICS,
    PROPERTIES_LENGTH,
    TEXT_SIZE_MAX,
    TOPIC_LENGTHS,
    TOPIC_SIZE_MAX_V1,
    head_struct,
)
from hastore.store.record.message_codec import decode_properties
from hastore.store.record.record_check import (
    RecordKind,
    check_record,
    check_without_body,
    texts_range,
)
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.store.queue.unit import Unit

_NAMED: Final = head_struct("size", "queue_id", "queue_offset", "stored_offset")
# Topics whose units name records of other topics: RocketMQ's multi dispatch.
MULTI_DISPATCH_PREFIX: Final = "%LMQ%"
_WINDOW_SIZE: Final = 8_192  # read at once: small records lie side by side


@final
class UnitCheck:
    """Checks units against one log; ``read`` returns up to so many bytes at a physic offset.

    A pull checks every unit that it answers, so this is written for speed: some 3 µs a unit.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._begin, self._window = 0, b""  # the bytes that were read last, and from where
        self._names: dict[tuple[bytes, bytes], bytes | None] = {}

    def names_record(self, unit: Unit, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether the record at the unit's place has its size, topic, queue and queue offset.

        Raises DiskError.
        """
        physic_offset, size, _ = unit
        at = physic_offset - self._begin
        if at < 0 or at + HEAD_READ_SIZE > len(self._window):
            at = self._move(physic_offset, HEAD_READ_SIZE)
        data = self._window
        if (size, queue_id, queue_offset, physic_offset) != _NAMED.unpack_from(data, at):
            return False
        body = BODY_POSITIONS[data[at + HOST_FLAGS_POSITION] & HOST_FLAGS]
        (body_size,) = BODY_LENGTH.unpack_from(data, at + body - BODY_LENGTH.size)
        name = self._name(data[at + MAGIC_POSITION : at + MAGIC_POSITION + MAGIC_SIZE], topic)
        if name is None or body_size < 0:
            return False
        # The topic, and the length of properties that fill the rest of the record.
        topic_at, name_size = body + body_size, len(name)
        properties_size = size - topic_at - name_size - PROPERTIES_LENGTH.size
        if not 0 <= properties_size <= TEXT_SIZE_MAX:
            return False
        at += topic_at
        if at + name_size + PROPERTIES_LENGTH.size > len(data):
            at = self._move(physic_offset + topic_at, name_size + PROPERTIES_LENGTH.size)
            data = self._window
        return data.startswith(name + PROPERTIES_LENGTH.pack(properties_size), at)

    def has_tags_code(self, unit: Unit, topic: bytes) -> bool:
        """Whether the record that a unit names has its tags code, or may have it.

        It may where the code is in ``consumequeue_ext/``, where it is a delayed message's time,
        which depends on the table of delay levels, and where the record is damaged.

        Raises DiskError.
        """
        if unit.is_extended or topic == SCHEDULE_TOPIC.encode():
            return True
        physic_offset, size, code = unit
        head = self._bytes(physic_offset, HEAD_READ_SIZE)
        texts_at = texts_range(head)
        if texts_at is None:
            return True
        begin, end = texts_at
        check = check_without_body(
            head, self._bytes(physic_offset + begin, end - begin), physic_offset
        )
        if code == tags_code(decode_properties(check.properties).get(PROPERTY_TAGS)):
            return True
        record = self._read(physic_offset, size)
        check = check_record(record, 0, len(record), physic_offset, check_crc=True)
        return check.kind is not RecordKind.MESSAGE

    def _bytes(self, physic_offset: int, size: int) -> bytes:
        at = physic_offset - self._begin
        if at < 0 or at + size > len(self._window):
            at = self._move(physic_offset, size)
        return self._window[at : at + size]

    def _name(self, magic: bytes, topic: bytes) -> bytes | None:
        """Return a topic as in a record with this magic; None if no such record can have it."""
        key = magic, topic
        if key not in self._names:
            number = int.from_bytes(magic, signed=True)
            is_long = number == MESSAGE_MAGIC_CODE and len(topic) > TOPIC_SIZE_MAX_V1
            is_possible = number in MESSAGE_MAGICS and not is_long
            self._names = {
                key: TOPIC_LENGTHS[number].pack(len(topic)) + topic if is_possible else None
            }
        return self._names[key]

    def _move(self, physic_offset: int, size: int) -> int:
        """Read a window that begins at an offset; return 0, where that is in it.

        After the log's end it has zeros, which no record needs.
        """
        data = self._read(physic_offset, max(size, _WINDOW_SIZE))
        self._begin, self._window = physic_offset, data.ljust(size, b"\0")
        return 0
