"""Finds what is at a position of a log: an intact record, a filler, nothing, or a kind of damage.

Every walk over a log (loading, verifying, resynchronising) calls ``check_record``, which checks the
lengths, the stored offset and the checksums of ``layout`` and raises nothing.  Invariant: MESSAGE
means that the lengths inside add up exactly to the size.  ``record_search`` asks the same of each
place where a record might begin.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from isal import isal_zlib

from hastore.env.interface import SECTOR_SIZE
from hastore.errors import HastoreError
from hastore.message import PROPERTY_CRC32
from hastore.store.record.layout import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    BODY_LENGTH,
    BODY_POSITIONS,
    CRC_MASK,
    HEAD_READ_SIZE,
    HEADS,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGICS,
    PROP_CRC_BACKWARDS,
    PROP_CRC_HALVES,
    PROP_CRC_NAME,
    PROP_CRC_NAME_SIZE,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    SIZE,
    SIZE_AND_MAGIC,
    SIZE_AND_OFFSET,
    TEXT_SIZE_MAX,
    TEXTS_SIZE_MAX,
    TEXTS_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    Buffer,
    head_struct,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The checked fields of a head with IPv4 hosts; and those that IPv6 hosts move, by host flags.
_V4_HEAD: Final = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "stored_offset", "sys_flag",
    "store_ms", "body_size",
)  # fmt: skip
_TIME_AND_BODY_SIZE: Final = {
    flags: head_struct("store_ms", "body_size", host_flags=flags) for flags in HEADS
}
_EMPTY: Final = BODY_LENGTH.pack(0)
_HALF_1, _HALF_2 = PROP_CRC_HALVES
_HALF_SIZE: Final = len(_HALF_1)
_PROP_CRC_NAME_END: Final = PROP_CRC_NAME_SIZE - PROP_CRC_SIZE  # counted from a record's end
_crc32 = isal_zlib.crc32
_new_tuple = tuple.__new__  # a NamedTuple's own __new__ takes twice as long


class RecordKind(enum.Enum):
    """What is at a position of a log."""

    MESSAGE = "message"
    BLANK = "blank"  # the rest of the file is filler
    EMPTY = "empty"  # zeros: nothing was written here yet
    TORN = "torn"  # claims more bytes than there are
    BAD_SIZE = "bad-size"
    BAD_MAGIC = "bad-magic"
    BAD_LENGTHS = "bad-lengths"  # the inner lengths do not add up to the size
    BAD_PHYSIC_OFFSET = "bad-physic-offset"  # the stored offset is not its position
    BAD_BODY_CRC = "bad-body-crc"
    BAD_PROP_CRC = "bad-prop-crc"
    HOLE = "hole"  # log_walker only: zeros, with written bytes after them
    MISSING = "missing"  # log_walker only: no file holds these offsets
    UNCONFIRMED = "unconfirmed"  # log_walker only: intact, but behind damage, so perhaps planted
    BAD_VALUE = "bad-value"  # encode only: a value that its field cannot hold


INTACT_KINDS: Final = frozenset({RecordKind.MESSAGE, RecordKind.BLANK})
# A message whose lengths agree, so that its own end is known, whatever else is wrong with it.
MEASURED_KINDS: Final = frozenset(
    {
        RecordKind.MESSAGE,
        RecordKind.BAD_BODY_CRC,
        RecordKind.BAD_PROP_CRC,
        RecordKind.BAD_PHYSIC_OFFSET,
    }
)


class RecordError(HastoreError):
    """Bytes that are no record, or values that no record can hold; ``position`` in the buffer."""

    exit_code = 4

    def __init__(self, kind: RecordKind, detail: str, *, position: int = 0) -> None:
        super().__init__(f"{kind.value} at position {position}: {detail}")
        self.kind = kind
        self.detail = detail
        self.position = position


class RecordCheck(NamedTuple):
    """What ``check_record`` found.

    ``size`` is in bytes: of a MESSAGE or BLANK its own, of a BAD_..._CRC or BAD_PHYSIC_OFFSET the
    size on which its lengths agree, else 0.  The fields from ``queue_id`` on are set if the lengths
    agree (with a bad CRC they may be wrong), else zero and empty.  ``unconfirmed`` is set by
    log_walker only: how many intact records lie inside damage, where nothing confirms them.
    """

    kind: RecordKind
    size: int
    detail: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    store_timestamp_ms: int = 0
    topic: bytes = b""
    properties: bytes = b""
    has_prop_crc: bool = False
    unconfirmed: int = 0


def check_record(  # noqa: C901, PLR0911, PLR0912 - one pass and no calls: it runs once a record
    buffer: Buffer,
    position: int,
    available: int,
    physic_offset: int | None,
    *,
    check_crc: bool = True,
) -> RecordCheck:
    """Check the bytes at ``position``; never raises, whatever they are.

    ``available``: bytes from ``position`` to the end of the file, to which a BLANK must reach.
    A record that is not wholly in ``buffer`` is TORN.  ``physic_offset`` is what the record's
    stored offset must be (None: not compared).
    """
    in_buffer = len(buffer) - position
    if in_buffer < RECORD_SIZE_MIN:
        return _check_short(buffer[position:], available)
    head = _V4_HEAD.unpack_from(buffer, position)
    size, magic, body_crc, queue_id, queue_offset, stored_offset, sys_flag, store_ms, body_size = (
        head
    )
    if magic not in MESSAGE_MAGICS:
        return _check_other(size, magic, available)
    if size < RECORD_SIZE_MIN:
        return RecordCheck(RecordKind.BAD_SIZE, 0, f"size {size}, below {RECORD_SIZE_MIN}")
    if size > available or size > in_buffer:
        return RecordCheck(RecordKind.TORN, 0, f"size {size}, but {available} bytes are left")
    body = position + _V4_HEAD.size
    end = position + size
    if sys_flag & HOST_FLAGS:
        moved = _TIME_AND_BODY_SIZE[sys_flag & HOST_FLAGS]
        body = position + moved.size
        if body + TEXTS_SIZE_MIN > end:
            return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"size {size}, too small for IPv6 hosts")
        store_ms, body_size = moved.unpack_from(buffer, position)
    topic = body + body_size + 1
    if body_size < 0 or topic + 2 > end:
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"body length {body_size} in size {size}")
    topic_size = buffer[topic - 1]
    if magic == MESSAGE_MAGIC_CODE_V2:
        topic_size = topic_size << 8 | buffer[topic]
        topic += 1
    elif topic_size > TOPIC_SIZE_MAX_V1:
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"topic length {topic_size} in a V1 record")
    text = topic + topic_size + 2
    if text > end:
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"topic length {topic_size} in size {size}")
    text_size = buffer[text - 2] << 8 | buffer[text - 1]
    if text + text_size != end or text_size > TEXT_SIZE_MAX or topic_size > TEXT_SIZE_MAX:
        detail = f"its lengths add up to {text + text_size - position}, not to size {size}"
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, detail)
    properties = bytes(buffer[text:end])
    kind, detail = RecordKind.MESSAGE, ""
    if stored_offset != physic_offset and physic_offset is not None:
        kind, detail = RecordKind.BAD_PHYSIC_OFFSET, f"its stored offset is {stored_offset}"
    elif check_crc:
        crc = _crc32(buffer[body : body + body_size]) & CRC_MASK
        if crc != body_crc:
            detail = f"body CRC stored {body_crc & 0xFFFFFFFF:08x} computed {crc:08x}"
            kind = RecordKind.BAD_BODY_CRC
        elif is_prop_crc_wrong(buffer, position, end, properties):
            detail = f"{PROPERTY_CRC32} does not fit the record's bytes"
            kind = RecordKind.BAD_PROP_CRC
    name = bytes(buffer[topic : text - 2])
    has_crc = properties[-PROP_CRC_SIZE:_PROP_CRC_NAME_END] == PROP_CRC_NAME
    fields = (
        kind, size, detail, queue_id, queue_offset, sys_flag, store_ms, name, properties, has_crc,
        0,
    )  # fmt: skip
    return _new_tuple(RecordCheck, fields)


def _check_short(rest: Buffer, available: int) -> RecordCheck:
    """Check fewer bytes than any record has: a small BLANK at the file's end, or TORN."""
    if len(rest) < BLANK_SIZE_MIN or available < BLANK_SIZE_MIN:
        return RecordCheck(RecordKind.TORN, 0, f"{available} bytes are too few for any record")
    size, magic = SIZE_AND_MAGIC.unpack_from(rest)
    if magic not in MESSAGE_MAGICS:
        return _check_other(size, magic, available)
    return RecordCheck(RecordKind.TORN, 0, f"size {size}, but {available} bytes are left")


def claims_fit(head: Buffer) -> bool:
    """Whether the size and the body length that a record claims can both be true.

    ``head`` is a record's first HEAD_READ_SIZE bytes; checked before a very large one is read.
    """
    size, _ = SIZE_AND_MAGIC.unpack_from(head, 0)
    moved = _TIME_AND_BODY_SIZE[head[HOST_FLAGS_POSITION] & HOST_FLAGS]
    _, body_size = moved.unpack_from(head)
    texts_size: int = size - body_size - moved.size
    return TEXTS_SIZE_MIN <= texts_size <= TEXTS_SIZE_MAX


def texts_range(head: Buffer) -> tuple[int, int] | None:
    """Return where a record's topic and properties lie, counted from its start: [begin, end).

    ``head`` is its first HEAD_READ_SIZE bytes, fewer if the file ends.  None if they cannot be the
    head of a record.
    """
    if len(head) < RECORD_SIZE_MIN:
        return None
    body = BODY_POSITIONS[head[HOST_FLAGS_POSITION] & HOST_FLAGS]
    if len(head) < body or not claims_fit(head):
        return None
    (size,) = SIZE.unpack_from(head)
    (body_size,) = BODY_LENGTH.unpack_from(head, body - BODY_LENGTH.size)
    return (body + body_size, size) if body_size >= 0 else None


def check_without_body(head: Buffer, texts: Buffer, physic_offset: int) -> RecordCheck:
    """Check a record as ``check_record`` does, except its body, and without checksums.

    ``texts`` are the bytes that ``texts_range`` names.
    """
    texts_at = texts_range(head)
    if texts_at is None:
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, "no head of a record")
    begin, end = texts_at
    body = BODY_POSITIONS[head[HOST_FLAGS_POSITION] & HOST_FLAGS]
    size = body + end - begin
    # The same record with an empty body.
    record = b"".join((SIZE.pack(size), head[SIZE.size : body - BODY_LENGTH.size], _EMPTY, texts))
    check = check_record(record, 0, size, physic_offset, check_crc=False)
    return check._replace(size=end) if check.size else check


def is_one_begun(head: Buffer, physic_offset: int, end_offset: int) -> bool:
    """Whether one message can begin at an offset that goes on after the end, so none is whole.

    ``head`` is what is there, up to HEAD_READ_SIZE bytes.
    """
    size = end_offset - physic_offset
    if size < RECORD_SIZE_MIN:
        return True
    _, magic = SIZE_AND_MAGIC.unpack_from(head)
    claimed, stored_offset = SIZE_AND_OFFSET.unpack_from(head)
    is_head = magic in MESSAGE_MAGICS and stored_offset == physic_offset and claims_fit(head)
    return is_head and claimed > size


def is_only_begun(
    physic_offset: int,
    file_end: int,
    read: Callable[[int, int], bytes],
    is_written_from: Callable[[int], bool],
) -> bool:
    """Whether the log ends in a record at an offset, of which only a first part is written.

    Nothing else can follow then.  ``read`` returns the bytes at an offset, and ``is_written_from``
    says whether the log has any but zeros from an offset on.  False if what is written contradicts
    itself: a damaged size may reach over later records.
    """
    if not is_written_from(physic_offset + RECORD_SIZE_MIN):
        return True
    head = read(physic_offset, HEAD_READ_SIZE)
    if len(head) < HEAD_READ_SIZE:
        return False
    size: int
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    _, stored_offset = SIZE_AND_OFFSET.unpack_from(head)
    if (
        magic not in MESSAGE_MAGICS
        or stored_offset != physic_offset
        or not RECORD_SIZE_MIN <= size <= file_end - physic_offset
    ):
        return False
    if not is_written_from(physic_offset + BODY_POSITIONS[head[HOST_FLAGS_POSITION] & HOST_FLAGS]):
        return True
    texts_at = texts_range(head)
    if texts_at is None or is_written_from(physic_offset + size):
        return False
    texts = read(physic_offset + texts_at[0], size - texts_at[0]).rstrip(b"\0")
    topic = 2 if magic == MESSAGE_MAGIC_CODE_V2 else 1
    end = topic + int.from_bytes(texts[:topic]) + 2
    return len(texts) < end or end + int.from_bytes(texts[end - 2 : end]) == size - texts_at[0]


def _check_other(size: int, magic: int, available: int) -> RecordCheck:
    """Distinguish a BLANK, zeros and invalid bytes."""
    if magic == BLANK_MAGIC_CODE:
        if size == available:
            return RecordCheck(RecordKind.BLANK, size)
        detail = f"a BLANK of {size} bytes, but {available} are left in the file"
        return RecordCheck(RecordKind.BAD_SIZE, 0, detail)
    if size == magic == 0:
        return RecordCheck(RecordKind.EMPTY, 0)
    return RecordCheck(RecordKind.BAD_MAGIC, 0, f"magic {magic & 0xFFFFFFFF:08x}")


def is_prop_crc_wrong(buffer: Buffer, position: int, end: int, properties: bytes) -> bool:
    """Whether the record has a ``__CRC32#``, perhaps a damaged one, that does not match it.

    A damaged name is recognised by its other half and the property's shape: otherwise a record with
    one flipped byte there would pass as one without a checksum.
    """
    stored = properties[-PROP_CRC_SIZE:]
    return claims_prop_crc(stored) and stored != prop_crc_property(
        buffer[position : end - PROP_CRC_SIZE]
    )


def claims_prop_crc(stored: bytes) -> bool:
    """Whether properties end in a ``__CRC32#``, perhaps a damaged one.

    ``stored`` are their last PROP_CRC_SIZE bytes, or all of them.
    """
    if stored[:_HALF_SIZE] != _HALF_1 and stored[_HALF_SIZE:PROP_CRC_NAME_SIZE] != _HALF_2:
        return False
    if stored[:PROP_CRC_NAME_SIZE] != PROP_CRC_NAME:
        digits, mark = stored[PROP_CRC_NAME_SIZE : PROP_CRC_SIZE - 1], stored[PROP_CRC_SIZE - 1 :]
        if not digits.isdigit() or mark != b"\x02":
            return False
    return True


def is_cut_off(check: RecordCheck) -> bool:
    """Whether the last record of a log lacks its last bytes.

    Neither a topic nor properties end in a byte 0, so a 0 there was never written.  (Without
    properties the record ends in their length, two bytes 0, so the topic decides.)
    """
    return (check.properties or check.topic)[-1:] == b"\0"


def is_torn_inside(check: RecordCheck, position: int) -> bool:
    """Whether a record at a position of its file lacks its last bytes although others follow.

    A power cut leaves each sector either old or new, so if another record follows, missing bytes
    end at a sector's end.  Elsewhere zeros prove damage only if no writer can have produced them:
    properties of RocketMQ 4.9.3 to 5.1.4 may end in a value without a separator, and a value may
    end in a 0.
    """
    if not is_cut_off(check):
        return False
    last_pair = check.properties.rpartition(b"\x02")[2]
    return (position + check.size) % SECTOR_SIZE == 0 or b"\x01" not in last_pair


# -- checksums -----------------------------------------------------------------------------------


def body_crc32(body: Buffer) -> int:
    """Return the CRC as a record stores it: without its sign bit."""
    return _crc32(body) & CRC_MASK


def prop_crc_property(covered: Buffer) -> bytes:
    """Return the 20 bytes of ``__CRC32#`` for ``covered``, all of a record before them."""
    return prop_crc_of(_crc32(covered))


def prop_crc_of(crc: int) -> bytes:
    """Return the 20 bytes of ``__CRC32#`` for the CRC32 of all of a record before them."""
    return (PROP_CRC_BACKWARDS % (crc & CRC_MASK))[::-1]
