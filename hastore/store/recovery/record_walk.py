"""Walks the intact records at the beginning of a chunk of a log, and collects their queue offsets.

    | record | record | record | damaged, or not whole in the chunk …
    └─────── count ────────────┘ position

A start reads a log by chunks and needs to know two things: up to where every record is intact, and
the next offset of each queue.  If a record has a ``__CRC32#``, that is verified instead of the
body's checksum, because it covers the body.  What is doubtful ends the walk: ``check_at`` of
``tail_scan`` decides then.

``walk_records`` is the C extension's function if that is in use (``hastore.native``), with records
that it leaves out (of an inner batch, damaged) walked here one by one; else
``walk_records_in_python``, which has no other result for any input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from isal import isal_zlib

from hastore.native.in_use import extension
from hastore.store.record.layout import (
    BODY_LENGTH,
    BODY_POSITIONS,
    CRC_MASK,
    HOST_FLAGS,
    INNER_BATCH_FLAG,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PROP_CRC_BACKWARDS,
    PROP_CRC_HALVES,
    PROP_CRC_NAME,
    PROP_CRC_NAME_SIZE,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    TEXTS_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    TRANSACTION_PREPARED_TYPE,
    head_struct,
)
from hastore.store.record.message_codec import inner_batch_count
from hastore.store.record.record_check import RecordCheck, RecordKind, check_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.store.record.topic_queue_table import TopicQueueTable

# The fields of a head that a walk reads, if both hosts are IPv4.
_V4_HEAD: Final = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "stored_offset", "sys_flag",
    "body_size",
)  # fmt: skip
_SKIMMED_HEAD: Final = head_struct("size", "magic", "stored_offset", "sys_flag", "body_size")
_V4_BODY_POSITION: Final = BODY_POSITIONS[0]
_HALF_1, _HALF_2 = PROP_CRC_HALVES
_HALF_SIZE: Final = len(_HALF_1)
_NO_QUEUE_OFFSET_FLAGS: Final = TRANSACTION_PREPARED_TYPE | INNER_BATCH_FLAG
_crc32 = isal_zlib.crc32


class WalkedRecords(NamedTuple):
    """Where the walk ended, where its last record begins (-1 if there is none), and how many."""

    position: int
    last: int
    record_count: int


def walk_records_in_python(
    data: bytes,
    physic_base: int,
    table: TopicQueueTable | None,
    torn_from: int,
    *,
    check_crc: bool,
) -> WalkedRecords:
    """Walk the intact records at the beginning of ``data``, which begins at ``physic_base``.

    Without ``check_crc`` their lengths and stored offsets decide.  With it, from ``torn_from`` in
    ``data`` on, a record that no ``__CRC32#`` covers must not end in a 0.
    """
    skimmed = WalkedRecords(0, -1, 0)
    if check_crc and table is None:
        skimmed = _skim(data, physic_base)
    walked = _walk(
        data,
        skimmed.position,
        physic_base,
        table,
        torn_from,
        count_max=len(data),
        check_crc=check_crc,
    )
    if not walked.record_count:
        return skimmed
    return walked._replace(record_count=skimmed.record_count + walked.record_count)


def walk_records_in_c(
    data: bytes,
    physic_base: int,
    table: TopicQueueTable | None,
    torn_from: int,
    *,
    check_crc: bool,
) -> WalkedRecords:
    """Do the same by the C extension, which must be there."""
    walk = extension.walk_records  # type: ignore[union-attr] # it is there
    crc32 = _crc32 if check_crc else None
    at, last, count = 0, -1, 0
    while True:
        *walked, queues = walk(
            data, at, physic_base + at, physic_base + torn_from, table is not None, crc32
        )
        for queue in queues:
            table.advance(*queue)  # type: ignore[union-attr] # without one there are none
        if not walked[2]:
            walked = _walk(
                data, at, physic_base, table, torn_from, count_max=1, check_crc=check_crc
            )
        if not walked[2]:
            return WalkedRecords(at, last, count)
        at, last = walked[0], walked[1]
        count += walked[2]


def _skim(data: bytes, physic_base: int) -> WalkedRecords:
    """Skip the plain records at the beginning of ``data`` whose ``__CRC32#`` is right.

    Plain: IPv4 hosts, a V1 topic, lengths that add up.  The checksum covers every byte before it,
    so nothing else is read.
    """
    unpack = _SKIMMED_HEAD.unpack_from
    crc32, backwards, mask, crc_size = _crc32, PROP_CRC_BACKWARDS, CRC_MASK, PROP_CRC_SIZE
    view, available = memoryview(data), len(data)
    at, last, count = 0, -1, 0
    while at + RECORD_SIZE_MIN <= available:
        size, magic, physic_offset, sys_flag, body_size = unpack(data, at)
        end = at + size
        crc_start = end - crc_size
        topic = at + _V4_BODY_POSITION + body_size
        if (
            magic != MESSAGE_MAGIC_CODE
            or physic_offset != physic_base + at
            or sys_flag & HOST_FLAGS
            or body_size < 0
            or topic >= crc_start
            or end > available
        ):
            break
        text = topic + 1 + data[topic]
        if text + 2 > crc_start or text + 2 + (data[text] << 8 | data[text + 1]) != end:
            break
        crc = crc32(view[at:crc_start]) & mask
        if data[end - 1 : crc_start - 1 : -1] != backwards % crc or data[topic] > TOPIC_SIZE_MAX_V1:
            break
        last = at
        at = end
        count += 1
    return WalkedRecords(at, last, count)


def _walk(  # noqa: C901, PLR0912 - one pass and few calls: it runs once a record
    data: bytes,
    position: int,
    physic_base: int,
    table: TopicQueueTable | None,
    torn_from: int,
    *,
    count_max: int,
    check_crc: bool,
) -> WalkedRecords:
    """Walk the intact records from ``position`` on, of any kind."""
    available = len(data)
    unpack_fields, unpack_length = _V4_HEAD.unpack_from, BODY_LENGTH.unpack_from
    view = memoryview(data)
    at, last, count = position, -1, 0
    while at + RECORD_SIZE_MIN <= available and count < count_max:
        size, magic, body_crc, queue_id, queue_offset, physic_offset, sys_flag, body_size = (
            unpack_fields(data, at)
        )
        end = at + size
        body = at + _V4_BODY_POSITION
        if physic_offset != physic_base + at or end > available:
            break
        if sys_flag & HOST_FLAGS:
            body = at + BODY_POSITIONS[sys_flag & HOST_FLAGS]
            if body + TEXTS_SIZE_MIN > end:
                break
            body_size = unpack_length(data, body - BODY_LENGTH.size)[0]
        topic = body + body_size
        if not body <= topic <= end - TEXTS_SIZE_MIN:
            break
        if magic == MESSAGE_MAGIC_CODE and data[topic] <= TOPIC_SIZE_MAX_V1:
            text = topic + 1 + data[topic]
            topic += 1
        elif magic == MESSAGE_MAGIC_CODE_V2:
            text = topic + 2 + (data[topic] << 8 | data[topic + 1])
            topic += 2
        else:
            break
        if text + 2 > end or text + 2 + (data[text] << 8 | data[text + 1]) != end:
            break
        if check_crc:
            crc_start = end - PROP_CRC_SIZE
            stored = data[crc_start:end]
            # If it has a __CRC32#, that covers the body, too.
            if stored[:PROP_CRC_NAME_SIZE] == PROP_CRC_NAME and crc_start > text + 1:
                crc = _crc32(view[at:crc_start]) & CRC_MASK
                is_intact = stored[::-1] == PROP_CRC_BACKWARDS % crc
            else:
                is_intact = (
                    _crc32(view[body : body + body_size]) & CRC_MASK == body_crc
                    and stored[:_HALF_SIZE] != _HALF_1  # half of its name may be damaged
                    and stored[_HALF_SIZE:PROP_CRC_NAME_SIZE] != _HALF_2
                    # a damaged value that is shorter than it should be
                    and (
                        end - text - 2 >= PROP_CRC_SIZE
                        or data[text + 2 : text + 2 + PROP_CRC_NAME_SIZE] != PROP_CRC_NAME
                    )
                    and (at < torn_from or data[(end if text + 2 < end else text) - 1])
                )
            if not is_intact:
                check = check_record(view, at, available - at, physic_offset)
                if check.kind is not RecordKind.MESSAGE or at >= torn_from:
                    break
        if table is not None:
            if sys_flag & _NO_QUEUE_OFFSET_FLAGS:
                check = check_record(view, at, available - at, physic_offset, check_crc=False)
                record_offset(table, check)
            else:
                table.advance(data[topic:text], queue_id, queue_offset + 1)
        last = at
        at = end
        count += 1
    return WalkedRecords(at, last, count)


def record_offset(table: TopicQueueTable, check: RecordCheck) -> None:
    """Record any record's queue offset: PREPARED and ROLLBACK have none, a batch has several."""
    if check.sys_flag & TRANSACTION_PREPARED_TYPE:  # ROLLBACK has this bit too
        return
    count = 1
    if check.sys_flag & INNER_BATCH_FLAG:
        count = inner_batch_count(check.properties)
    table.advance(check.topic, check.queue_id, check.queue_offset + count)


walk_records: Callable[..., WalkedRecords] = (
    walk_records_in_python if extension is None else walk_records_in_c
)
