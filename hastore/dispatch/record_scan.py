"""Reads ordinary records of a log, many at a time, into what consume queues and index take.

    | record | record | record | damaged …        the scan of this ends before the damaged record
    └───────── count ──────────┘
       units   of each queue, packed as they stand in its file (``store/queue/unit``)
       keys    hashed and packed for the index (``PACKED_KEY``), in the log's order

A record is *ordinary* if it is intact, has no transaction, holds no inner batch, waits for no
delivery time, continues its queue without a gap, and its topic and properties are ASCII.  A scan
ends before the first record that is not: the caller handles that one by ``check_record``, so no
rule for special or damaged records is here, and what a scan returns needs no further check.

In Python decoding costs as much as the append, and reading a large record back costs more than all
else: so a master feeds what it encodes in Python to ``scan_fed_records``, and only what that does
not take is read from the log.  With the extension those are records of more than 12 KiB, except in
a write buffer, and messages that C leaves to Python.

``scan_records`` is the C extension's function if that is in use (``hastore.native``), else
``scan_records_in_python``, which has no other result for any input.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from isal import isal_zlib

from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.native.in_use import extension
from hastore.store.index.layout import PACKED_KEY, to_key_hash, topic_hash
from hastore.store.queue.unit import UNIT
from hastore.store.record.java_hash import hash_ascii
from hastore.store.record.layout import (
    CRC_MASK,
    HOST_FLAGS,
    INNER_BATCH_FLAG,
    MESSAGE_MAGIC_CODE,
    PROP_CRC_BACKWARDS,
    PROP_CRC_NAME,
    PROP_CRC_NAME_SIZE,
    PROP_CRC_SIZE,
    PROPERTIES_LENGTH,
    RECORD_SIZE_MIN,
    TEXT_SIZE_MAX,
    TEXTS_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    TRANSACTION_TYPE_MASK,
    head_struct,
)
from hastore.store.record.record_check import RecordKind, check_record, is_prop_crc_wrong
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from hastore.store.commit_log import FedRecord
    from hastore.store.record.layout import Buffer

SCAN_RECORDS_MAX: Final = 1_000  # of one call

_TAGS, _UNIQ_KEY, _KEYS = PROPERTY_TAGS.encode(), PROPERTY_UNIQ_KEY.encode(), PROPERTY_KEYS.encode()
# The pairs of these names, after a separator; if a name comes twice, the last value counts.
_find_texts = re.compile(rb"\x02(%b|%b|%b)\x01([^\x02]+)" % (_TAGS, _UNIQ_KEY, _KEYS)).findall
_MESSAGE: Final = RecordKind.MESSAGE
_pack_unit = UNIT.pack
_pack_key = PACKED_KEY.pack
_SPECIAL: Final = TRANSACTION_TYPE_MASK | INNER_BATCH_FLAG
_UNUSUAL: Final = _SPECIAL | HOST_FLAGS
_HEAD: Final = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "stored_offset", "sys_flag",
    "store_ms", "body_size",
)  # fmt: skip
_unpack_head, _HEAD_SIZE = _HEAD.unpack_from, _HEAD.size
_LENGTH_SIZE: Final = PROPERTIES_LENGTH.size
_PROP_CRC_NAME_END: Final = PROP_CRC_NAME_SIZE - PROP_CRC_SIZE  # counted from a record's end
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_crc32 = isal_zlib.crc32
_topic_hash = lru_cache(maxsize=1_000)(topic_hash)  # scans are short: of 32 records, if need be

# Topic, queue id, queue offset of the first unit, the units.
QueueUnits: TypeAlias = "tuple[str, int, int, bytes]"


class RecordScan(NamedTuple):
    """What a scan has read.

    ``position`` is the end of the last record, ``last_offset`` its physic offset (-1 if there is
    none), ``last_store_ms`` its store time.  ``queues`` come in the order of their first records.
    """

    position: int
    record_count: int
    last_offset: int
    last_store_ms: int
    queues: list[QueueUnits]
    keys: bytes


def scan_records_in_python(  # noqa: C901, PLR0912, PLR0915 - one pass and few calls: it runs once a record
    buffer: Buffer,
    position: int,
    physic_offset: int,
    file_size: int,
    count_max: int,
    *,
    check_crc: bool,
) -> RecordScan:
    """Read up to ``count_max`` ordinary records from ``position`` on; never raises.

    ``physic_offset`` is the log's offset there.  A record that is not wholly in ``buffer``, or
    crosses the end of its file, is not ordinary.
    """
    topics: dict[bytes, dict[int, _Queue]] = {}  # by the topic with its length, then by queue id
    queues: list[_Queue] = []
    keys = bytearray()
    count, last_offset, last_store_ms = 0, -1, 0
    count_max = min(count_max, SCAN_RECORDS_MAX)
    buffer = memoryview(buffer)
    buffer_end = len(buffer)
    last_position = buffer_end - RECORD_SIZE_MIN
    field = texts = b""
    while count < count_max and position <= last_position:
        (
            size, magic, body_crc, queue_id, queue_offset, stored_offset, sys_flag, store_ms,
            body_size,
        ) = _unpack_head(buffer, position)  # fmt: skip
        body = position + _HEAD_SIZE
        body_end = body + body_size
        end = position + size
        available = file_size - physic_offset % file_size
        of_topic = None  # until the record is known to be ordinary
        if (
            magic == MESSAGE_MAGIC_CODE
            and stored_offset == physic_offset
            and not sys_flag & _UNUSUAL
            and size <= available
            and end <= buffer_end
            and body_size >= 0
            and body_end + TEXTS_SIZE_MIN <= end
        ):
            rest = bytes(buffer[body_end:end])  # topic and properties, with their lengths
            topic_end = rest[0] + 1
            texts = rest[topic_end + _LENGTH_SIZE :]
            if (
                len(texts) <= TEXT_SIZE_MAX
                and rest[topic_end : topic_end + _LENGTH_SIZE] == len(texts).to_bytes(_LENGTH_SIZE)
                and texts.isascii()
                and not (
                    check_crc
                    and (
                        _crc32(buffer[body:body_end]) & CRC_MASK != body_crc
                        or _is_prop_crc_wrong(buffer, position, end, texts)
                    )
                )
            ):
                field = rest[:topic_end]
                of_topic = topics.get(field)
                if of_topic is None and _is_ordinary_topic(field):
                    of_topic = topics[field] = {}
        if of_topic is None:  # ``check_record`` takes twice as long, and decides about all others
            check = check_record(buffer, position, available, physic_offset, check_crc=check_crc)
            kind, size, _, queue_id, queue_offset, sys_flag, store_ms, name, texts, *_ = check
            if kind is not _MESSAGE or sys_flag & _SPECIAL or name == _SCHEDULE_TOPIC:
                break
            if not (name.isascii() and texts.isascii()):
                break
            field = _field_of(name)
            of_topic = topics.setdefault(field, {})
        queue = of_topic.get(queue_id)
        if queue is None:
            queue = of_topic[queue_id] = _Queue(field[1:].decode(), queue_id, queue_offset)
            queues.append(queue)
        elif queue_offset != queue.next_offset:
            break
        queue.next_offset = queue_offset + 1
        tags_code = 0
        if texts:
            found = dict(_find_texts(b"\x02" + texts))
            if _TAGS in found:
                tags_code = hash_ascii(found[_TAGS])
            names = [found[_UNIQ_KEY]] if _UNIQ_KEY in found else []
            if _KEYS in found:
                names += found[_KEYS].split(b" ")
            for name in names:
                if name:
                    hashed = hash_ascii(name, queue.topic_hash)
                    if hashed < 0:
                        hashed = to_key_hash(hashed)
                    keys += _pack_key(hashed, physic_offset, store_ms)
        queue.units += _pack_unit(physic_offset, size, tags_code)
        last_offset, last_store_ms = physic_offset, store_ms
        count += 1
        position += size
        physic_offset += size
    found_queues = [
        (queue.topic, queue.queue_id, queue.first_offset, bytes(queue.units)) for queue in queues
    ]
    return RecordScan(position, count, last_offset, last_store_ms, found_queues, bytes(keys))


def scan_fed_records(
    feed: deque[FedRecord], physic_offset: int, limit: int, count_max: int
) -> RecordScan:
    """Do the same with the records that a master has just appended, without reading them.

    Takes from the feed those from ``physic_offset`` up to ``limit``, and all before them.
    ``position`` of the result is an offset of the log.
    """
    queues: dict[tuple[str, int], _Queue] = {}
    keys = bytearray()
    count, last_offset, last_store_ms = 0, -1, 0
    while feed and feed[0][0] < physic_offset:
        feed.popleft()
    while feed and count < count_max:
        start, size, topic, queue_id, queue_offset, store_ms, sys_flag, tags, uniq_key, parts = (
            feed[0]
        )
        if start != physic_offset or start + size > limit or sys_flag & _SPECIAL:
            break
        if not (tags.isascii() and uniq_key.isascii() and parts.isascii()):
            break
        queue = queues.get((topic, queue_id))
        if queue is None:
            if topic == SCHEDULE_TOPIC or not topic.isascii():
                break
            queue = queues[topic, queue_id] = _Queue(topic, queue_id, queue_offset)
        elif queue_offset != queue.next_offset:
            break
        queue.next_offset = queue_offset + 1
        for key in (uniq_key, *parts.split(" ")) if parts else (uniq_key,):
            if key:
                hashed = hash_ascii(key.encode(), queue.topic_hash)
                if hashed < 0:
                    hashed = to_key_hash(hashed)
                keys += _pack_key(hashed, start, store_ms)
        queue.units += _pack_unit(start, size, hash_ascii(tags.encode()) if tags else 0)
        last_offset, last_store_ms = start, store_ms
        count += 1
        physic_offset += size
        feed.popleft()
    found_queues = [
        (queue.topic, queue.queue_id, queue.first_offset, bytes(queue.units))
        for queue in queues.values()
    ]
    return RecordScan(physic_offset, count, last_offset, last_store_ms, found_queues, bytes(keys))


def _is_ordinary_topic(field: bytes) -> bool:
    """Whether a topic, with its length before it, is one of ordinary records."""
    name = field[1:]
    return len(name) <= TOPIC_SIZE_MAX_V1 and name.isascii() and name != _SCHEDULE_TOPIC


def _field_of(name: bytes) -> bytes:
    """Return a topic with its length before it; with 255 for all that are longer."""
    return min(len(name), 255).to_bytes() + name


def _is_prop_crc_wrong(buffer: Buffer, position: int, end: int, texts: bytes) -> bool:
    """Do as ``is_prop_crc_wrong``, in two thirds of the time for a whole ``__CRC32#``."""
    if texts[-PROP_CRC_SIZE:_PROP_CRC_NAME_END] != PROP_CRC_NAME:
        return is_prop_crc_wrong(buffer, position, end, texts)
    crc = _crc32(buffer[position : end - PROP_CRC_SIZE]) & CRC_MASK
    return texts[-PROP_CRC_SIZE:] != (PROP_CRC_BACKWARDS % crc)[::-1]


class _Queue:
    """The units of one queue in a scan."""

    __slots__ = ("first_offset", "next_offset", "queue_id", "topic", "topic_hash", "units")

    def __init__(self, topic: str, queue_id: int, queue_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.topic_hash = _topic_hash(topic)
        self.first_offset = self.next_offset = queue_offset
        self.units = bytearray()


def scan_records_in_c(
    buffer: Buffer,
    position: int,
    physic_offset: int,
    file_size: int,
    count_max: int,
    *,
    check_crc: bool,
) -> RecordScan:
    """Do the same by the C extension, which must be there."""
    crc32 = _crc32 if check_crc else None
    return RecordScan._make(
        extension.scan_records(  # type: ignore[union-attr] # it is there
            buffer, position, physic_offset, file_size, count_max, _SCHEDULE_TOPIC, crc32
        )
    )


scan_records: Callable[..., RecordScan] = (
    scan_records_in_python if extension is None else scan_records_in_c
)
