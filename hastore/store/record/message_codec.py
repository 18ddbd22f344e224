"""One record of a commit log: bytes ⇄ values.

All integers are big-endian and signed; records follow each other without padding::

    off  size  field                      off  size    field
      0   4    totalSize, all of it         48  8|20    bornHost: address 4|16, port 4
      4   4    magic V1 | V2 | BLANK       +0  8       storeTimestamp, ms
      8   4    bodyCRC: CRC32 & 2^31-1     +8  8|20    storeHost
     12   4    queueId                     +0  4       reconsumeTimes
     16   4    flag                        +4  8       preparedTransactionOffset
     20   8    queueOffset                +12  4 + n   bodyLen, body
     28   8    physicalOffset                 1|2 + n  topicLen (V1 | V2), topic
     36   4    sysFlag                        2 + n    propertiesLen, properties
     40   8    bornTimestamp, ms                       [... __CRC32# 01 dddddddddd 02]

A host has 20 bytes iff its sysFlag bit says so.  A file ends in a BLANK: its 4-byte size reaches
exactly to the end of the file, its magic follows, the rest is filler.  Where the properties end in
``__CRC32#`` (20 bytes, ten decimal digits, least significant first), they hold the CRC32 of every
byte of the record before those 20.

Invariant: ``encode(decode(record)) == record`` for every record that ``decode`` takes, also where
its texts are not UTF-8 (they are read with ``surrogateescape``).  Whatever the bytes, nothing but
RecordError comes out of here.

Source: RocketMQ ``MessageExtEncoder``, ``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder``.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from typing import TYPE_CHECKING, Final

from hastore.message import StoredMessage
from hastore.store.record.record_check import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    HOST_SIZES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGICS,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    Buffer,
    RecordCheck,
    RecordError,
    RecordKind,
    body_crc32,
    check_record,
    prop_crc_digits,
    prop_crc_property,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# The codec's whole face: who reads or writes records needs this module only.
__all__ = [
    "BLANK_MAGIC_CODE",
    "BLANK_SIZE_MIN",
    "BORN_HOST_V6_FLAG",
    "COMPRESSED_FLAG",
    "INNER_BATCH_FLAG",
    "MESSAGE_MAGIC_CODE",
    "MESSAGE_MAGIC_CODE_V2",
    "MULTI_TAGS_FLAG",
    "NAME_VALUE_SEPARATOR",
    "PROPERTY_SEPARATOR",
    "PROP_CRC_SIZE",
    "RECORD_SIZE_MIN",
    "STORE_HOST_V6_FLAG",
    "TRANSACTION_COMMIT_TYPE",
    "TRANSACTION_PREPARED_TYPE",
    "TRANSACTION_ROLLBACK_TYPE",
    "TRANSACTION_TYPE_MASK",
    "Buffer",
    "RecordCheck",
    "RecordError",
    "RecordKind",
    "append_prop_crc",
    "body_crc32",
    "check_record",
    "decode",
    "decode_properties",
    "encode",
    "encode_blank",
    "encode_properties",
    "message_id",
    "prop_crc_digits",
]

COMPRESSED_FLAG: Final = 0x1
MULTI_TAGS_FLAG: Final = 0x2
TRANSACTION_TYPE_MASK: Final = 0xC
TRANSACTION_PREPARED_TYPE: Final = 0x4
TRANSACTION_COMMIT_TYPE: Final = 0x8
TRANSACTION_ROLLBACK_TYPE: Final = 0xC
BORN_HOST_V6_FLAG: Final = 0x10
STORE_HOST_V6_FLAG: Final = 0x20
INNER_BATCH_FLAG: Final = 0x80

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

_HEADS: Final = tuple(struct.Struct(f">iiiiiqqiq{b}siq{s}siiqi") for b, s in HOST_SIZES)
_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_SHORT: Final = struct.Struct(">h")
_PROPERTY_INNER_NUM: Final = "INNER_NUM"
_INNER_NUM_DIGITS_MAX: Final = 5
_BORN_HOST_NAMES_MAX: Final = 4_096


def decode(buffer: Buffer, position: int = 0) -> StoredMessage:
    """Read one record; CRCs and the stored offset are ``check_record``'s to judge.

    Raises RecordError for anything but a MESSAGE that is all in the buffer.
    """
    available = len(buffer) - position
    check = check_record(buffer, position, available, None, check_crc=False)
    if check.kind is not RecordKind.MESSAGE:
        raise RecordError(check.kind, check.detail or "no message", position=position)
    head = _HEADS[check.sys_flag >> 4 & 3]
    (
        _,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physic_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = head.unpack_from(buffer, position)
    body = position + head.size
    return StoredMessage(
        magic=magic,
        body_crc=body_crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physic_offset=physic_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=(address_text(born_address), born_port),
        store_timestamp_ms=store_timestamp_ms,
        store_host=(address_text(store_address), store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=bytes(buffer[body : body + body_size]),
        topic=check.topic.decode(errors="surrogateescape"),
        properties_raw=check.properties,
        total_size=check.size,
        properties=decode_properties(check.properties),
    )


def decode_properties(raw: bytes) -> dict[str, str]:
    """Read a property text, with or without the last separator.

    As RocketMQ reads it: a pair without a name or a value is passed over, of a name that comes
    twice the last value counts.
    """
    properties = {}
    for pair in raw.decode(errors="surrogateescape").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def inner_batch_count(raw_properties: bytes) -> int:
    """Say how many queue offsets a record with INNER_BATCH_FLAG takes: 1 to 99,999.

    The text is a client's: what is no such number is read as 1.
    """
    text = decode_properties(raw_properties).get(_PROPERTY_INNER_NUM, "")
    is_count = text.isascii() and text.isdecimal() and len(text) <= _INNER_NUM_DIGITS_MAX
    return max(int(text), 1) if is_count else 1


def encode(message: StoredMessage) -> bytes:
    """Give the record's bytes, every stored field (CRCs too) as it is in ``message``.

    Raises RecordError where a value does not fit its field, or ``total_size`` is another.
    """
    topic = _text_bytes(message.topic)
    is_v2 = message.magic == MESSAGE_MAGIC_CODE_V2
    try:
        topic_size = _SHORT.pack(len(topic)) if is_v2 else struct.pack(">b", len(topic))
        head = _HEADS[message.sys_flag >> 4 & 3].pack(
            message.total_size,
            message.magic,
            message.body_crc,
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.physic_offset,
            message.sys_flag,
            message.born_timestamp_ms,
            _address_bytes(message.born_host[0], message.sys_flag & BORN_HOST_V6_FLAG),
            message.born_host[1],
            message.store_timestamp_ms,
            _address_bytes(message.store_host[0], message.sys_flag & STORE_HOST_V6_FLAG),
            message.store_host[1],
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(message.body),
        )
        properties_size = _SHORT.pack(len(message.properties_raw))
    except struct.error as error:
        raise RecordError(RecordKind.BAD_VALUE, f"a field cannot hold its value: {error}") from None
    record = b"".join(
        (head, message.body, topic_size, topic, properties_size, message.properties_raw)
    )
    if message.magic not in MESSAGE_MAGICS or len(record) != message.total_size:
        detail = f"magic {message.magic}, total_size {message.total_size}, encoded {len(record)}"
        raise RecordError(RecordKind.BAD_VALUE, detail)
    return record


def encode_properties(properties: Mapping[str, str], *, has_last_separator: bool = True) -> bytes:
    """Give the text; ``has_last_separator`` False is the form of RocketMQ 4.9.3 to 5.1.4.

    Raises RecordError where a name is empty, or a name or value holds a separator or is no text.
    """
    for name, value in properties.items():
        if not name or any(mark in text for mark in "\x01\x02" for text in (name, value)):
            detail = f"property {name!r} is empty or holds a separator"
            raise RecordError(RecordKind.BAD_VALUE, detail)
    text = PROPERTY_SEPARATOR.join([f"{name}\x01{value}" for name, value in properties.items()])
    if text and has_last_separator:
        text += PROPERTY_SEPARATOR
    return _text_bytes(text)


def _text_bytes(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise RecordError(RecordKind.BAD_VALUE, f"not a text: {error}") from None


def encode_blank(size: int) -> bytes:
    """Give the 8 bytes that begin a filler of ``size`` bytes up to the end of the file."""
    assert size >= BLANK_SIZE_MIN, size
    return _SIZE_AND_MAGIC.pack(size, BLANK_MAGIC_CODE)


def append_prop_crc(record: bytearray) -> None:
    """Fill the last 20 bytes, which its lengths already count, with ``__CRC32#``."""
    assert len(record) >= RECORD_SIZE_MIN + PROP_CRC_SIZE, len(record)
    with memoryview(record) as view:
        view[-PROP_CRC_SIZE:] = prop_crc_property(view[:-PROP_CRC_SIZE])


# -- hosts ---------------------------------------------------------------------------------------


def message_id(store_host: tuple[str, int], physic_offset: int) -> str:
    """Give the offsetMsgId: hex of the address (4 or 16 bytes), port (4) and offset (8)."""
    return (_packed(store_host[0]) + struct.pack(">iq", store_host[1], physic_offset)).hex().upper()


@functools.lru_cache(maxsize=_BORN_HOST_NAMES_MAX)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


@functools.lru_cache(maxsize=_BORN_HOST_NAMES_MAX)
def address_text(address: bytes) -> str:
    """Give an address of 4 or 16 bytes as text, the same on each Python.

    3.13 began to write the last part of ``::ffff:102:304`` with dots.
    """
    ip = ipaddress.ip_address(address)
    if ip.version == 6 and ip.ipv4_mapped is not None:
        return "::ffff:{:x}:{:x}".format(*struct.unpack_from(">HH", address, 12))
    return str(ip)


def _address_bytes(text: str, v6_flag: int) -> bytes:
    """Give 4 or 16 bytes; RecordError where that is not what the sysFlag says."""
    try:
        address = _packed(text)
    except ValueError as error:
        raise RecordError(RecordKind.BAD_VALUE, str(error)) from None
    if len(address) != (16 if v6_flag else 4):
        detail = f"sysFlag and address {text} are of different IP versions"
        raise RecordError(RecordKind.BAD_VALUE, detail)
    return address
