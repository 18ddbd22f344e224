"""Says whether a unit names a record of its own queue.

::

    unit n of topic T, queue q      log
    | physic_offset | size | … |    … | size  T  q  n  physic_offset … | …
              └──────────────────────┘

RocketMQ leaves others behind: a slave that cuts its log back keeps units of records that were cut.
Later records lie there then, of other queues and other sizes.

The record's head and topic are read, never its body, and no checksum is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.store.record.layout import (
    HEAD_READ_SIZE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGICS,
    PROPERTIES_LENGTH,
    RECORD_SIZE_MIN,
    TOPIC_LENGTHS,
    TOPIC_SIZE_MAX_V1,
    head_struct,
)
from hastore.store.record.record_check import texts_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.store.queue.unit import Unit

_NAMED: Final = head_struct("size", "magic", "queue_id", "queue_offset", "stored_offset")
# Topics whose units name records of other topics: RocketMQ's multi dispatch.
MULTI_DISPATCH_PREFIX: Final = "%LMQ%"
_WINDOW_SIZE: Final = 4_096  # read at once: small records lie side by side


@final
class UnitCheck:
    """Checks units against one log; ``read`` returns up to so many bytes at a physic offset."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._window = (0, b"")

    def names_record(self, unit: Unit, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether the record at the unit's place has its size, topic, queue and queue offset.

        Raises DiskError.
        """
        physic_offset, size, _ = unit
        head = self._bytes(physic_offset, HEAD_READ_SIZE)
        if len(head) < RECORD_SIZE_MIN:
            return False
        claimed_size, magic, *place = _NAMED.unpack_from(head)
        if (
            magic not in MESSAGE_MAGICS
            or claimed_size != size
            or place != [queue_id, queue_offset, physic_offset]
            or (magic == MESSAGE_MAGIC_CODE and len(topic) > TOPIC_SIZE_MAX_V1)
        ):
            return False
        texts_at = texts_range(head)
        if texts_at is None:
            return False
        begin, end = texts_at
        name = TOPIC_LENGTHS[magic].pack(len(topic)) + topic
        name_end = len(name) + PROPERTIES_LENGTH.size
        texts = self._bytes(physic_offset + begin, name_end)
        properties_size = int.from_bytes(texts[len(name) : name_end])
        return texts.startswith(name) and begin + name_end + properties_size == end

    def _bytes(self, physic_offset: int, size: int) -> bytes:
        begin, data = self._window
        at = physic_offset - begin
        if at < 0 or at + size > len(data):
            data, at = self._read(physic_offset, max(size, _WINDOW_SIZE)), 0
            self._window = (physic_offset, data)
        return data[at : at + size]
