"""The messages of a group's log, as the oracles see them: topic, queue, offset and put.

All hosts of a simulation have IPv4 addresses, and topics are short.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hastore.store.record.layout import BLANK_MAGIC_CODE, head_struct

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD: Final = head_struct("size", "magic", "queue_id", "queue_offset")
_WHOLE_HEAD: Final = head_struct("size", "magic", "queue_id", "queue_offset", "body_size")
_KEY: Final = re.compile(rb"KEYS\x01(put-\d+-)\x02")


class GroupRecord(NamedTuple):
    """One message, ``[start, end)`` of the log; ``key`` is that of its put, b"" for any other."""

    start: int
    end: int
    topic: bytes
    queue_id: int
    queue_offset: int
    key: bytes
    body_size: int


def records(data: bytes | bytearray, start: int = 0) -> Iterator[GroupRecord]:
    """Yield the whole messages from ``start`` on, where a record begins; pass over BLANKs."""
    while start + HEAD.size <= len(data):
        size, magic, queue_id, queue_offset = HEAD.unpack_from(data, start)
        end = start + size
        if size <= 0 or end > len(data):
            return
        if magic != BLANK_MAGIC_CODE:
            body_size = _WHOLE_HEAD.unpack_from(data, start)[-1]
            topic_at = start + _WHOLE_HEAD.size + body_size
            properties_at = topic_at + 1 + data[topic_at]
            topic = bytes(data[topic_at + 1 : properties_at])
            found = _KEY.search(data, properties_at, end)
            key = b"" if found is None else bytes(found[1])
            yield GroupRecord(start, end, topic, queue_id, queue_offset, key, body_size)
        start = end
