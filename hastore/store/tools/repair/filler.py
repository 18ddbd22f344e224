"""Fillers in the place of lost bytes: records that every reader skips.

::

    | record | filler … 1 MiB | filler … the rest | record |          in the middle of a file
    | record | filler | BLANK, zeros ─────────────┤        | record   up to a file's end

Offsets after the damage must not change, and RocketMQ, old slaves and tools must read on, so the
gap is filled by intact records: V1, topic ``HASTORE_FILLER``, a body of zeros, ``__CRC32#`` if
there is room.  sysFlag says *rolled back*: neither RocketMQ nor hastore puts such a record into a
consume queue or an index, and it takes no queue offset.  The store time is that of the record
before, so that time does not go back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.message import StoredMessage
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    MESSAGE_MAGIC_CODE,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import append_prop_crc, encode, encode_blank
from hastore.store.record.record_check import body_crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.store.record.record_check import RecordCheck

FILLER_TOPIC: Final = "HASTORE_FILLER"
FILLER_SIZE_MIN: Final = RECORD_SIZE_MIN + 1  # a topic of one letter
FILLER_SIZE_MAX: Final = 1024 * 1024  # because RocketMQ reads a whole record into memory
_TOPIC: Final = FILLER_TOPIC.encode()
_FULL_SIZE: Final = RECORD_SIZE_MIN + len(FILLER_TOPIC) + PROP_CRC_SIZE
_NOBODY: Final = ("0.0.0.0", 0)  # noqa: S104 - no address that is listened on: there was no sender


def can_fill(size: int, *, to_file_end: bool) -> bool:
    """Whether ``size`` bytes can be filled."""
    return size >= (BLANK_SIZE_MIN if to_file_end else FILLER_SIZE_MIN)


def fill(
    physic_offset: int, size: int, store_timestamp_ms: int, *, to_file_end: bool
) -> Iterator[bytes]:
    """Yield, in pieces, ``size`` bytes of filler for the log from ``physic_offset`` on.

    ``can_fill`` must be true.
    """
    assert can_fill(size, to_file_end=to_file_end)
    if to_file_end:
        if size >= _FULL_SIZE + BLANK_SIZE_MIN:
            yield _filler(physic_offset, _FULL_SIZE, store_timestamp_ms)
            size -= _FULL_SIZE
        yield encode_blank(size)
        size -= BLANK_SIZE_MIN
        while size:
            piece = min(size, FILLER_SIZE_MAX)
            yield bytes(piece)
            size -= piece
        return
    while size:
        piece = min(size, FILLER_SIZE_MAX)
        if 0 < size - piece < FILLER_SIZE_MIN:
            piece -= FILLER_SIZE_MIN
        yield _filler(physic_offset, piece, store_timestamp_ms)
        physic_offset += piece
        size -= piece


def is_filler(check: RecordCheck) -> bool:
    """Whether an intact record is a filler."""
    is_rolled_back = check.sys_flag & TRANSACTION_TYPE_MASK == TRANSACTION_ROLLBACK_TYPE
    return is_rolled_back and bool(check.topic) and _TOPIC.startswith(check.topic)


def _filler(physic_offset: int, size: int, store_timestamp_ms: int) -> bytes:
    has_crc = size >= _FULL_SIZE
    topic = FILLER_TOPIC[: size - RECORD_SIZE_MIN]
    properties = bytes(PROP_CRC_SIZE if has_crc else 0)
    body = bytes(size - RECORD_SIZE_MIN - len(topic) - len(properties))
    record = bytearray(
        encode(
            StoredMessage(
                total_size=size,
                magic=MESSAGE_MAGIC_CODE,
                body_crc=body_crc32(body),
                queue_id=0,
                flag=0,
                queue_offset=0,
                physic_offset=physic_offset,
                sys_flag=TRANSACTION_ROLLBACK_TYPE,
                born_timestamp_ms=store_timestamp_ms,
                born_host=_NOBODY,
                store_timestamp_ms=store_timestamp_ms,
                store_host=_NOBODY,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=body,
                topic=topic,
                properties_raw=properties,
                properties={},
            )
        )
    )
    if has_crc:
        append_prop_crc(record)
    return bytes(record)
