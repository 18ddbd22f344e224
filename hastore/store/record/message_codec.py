"""One record of a commit log: bytes ⇄ values (the bytes: ``layout``).

Invariant: ``encode(decode(record)) == record`` for every record that ``decode`` accepts, even if
its texts are not UTF-8 (they are read with ``surrogateescape``).  Whatever the bytes, only
RecordError is raised.

Source: RocketMQ ``MessageExtEncoder``, ``MessageDecoder``.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from typing import Final

from hastore.message import PROPERTY_INNER_NUM, StoredMessage
from hastore.store.record.layout import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    BORN_HOST_V6_FLAG,
    HEADS_WITH_PORTS,
    HOST_FLAGS,
    MESSAGE_ID_END,
    NAME_VALUE_SEPARATOR,
    PROP_CRC_SIZE,
    PROPERTIES_LENGTH,
    PROPERTY_SEPARATOR,
    RECORD_SIZE_MIN,
    SIZE_AND_MAGIC,
    STORE_HOST_V6_FLAG,
    TOPIC_LENGTHS,
    Buffer,
)
from hastore.store.record.record_check import (
    RecordError,
    RecordKind,
    check_record,
    prop_crc_property,
)

_INNER_NUM_DIGITS_MAX: Final = 5
_BORN_HOST_NAMES_MAX: Final = 4_096


def decode(buffer: Buffer, position: int = 0) -> StoredMessage:
    """Read one record, without checking CRCs and the stored offset.

    Raises RecordError for anything but a MESSAGE that is wholly in the buffer.
    """
    available = len(buffer) - position
    check = check_record(buffer, position, available, None, check_crc=False)
    if check.kind is not RecordKind.MESSAGE:
        raise RecordError(check.kind, check.detail or "no message", position=position)
    head = HEADS_WITH_PORTS[check.sys_flag & HOST_FLAGS]
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

    As in RocketMQ, a pair without a name or a value is skipped, and if a name comes twice, the last
    value counts.
    """
    properties = {}
    for pair in raw.decode(errors="surrogateescape").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def inner_batch_count(raw_properties: bytes) -> int:
    """Return how many queue offsets a record with INNER_BATCH_FLAG takes: 1 to 99,999.

    A client wrote the text: anything else is read as 1.
    """
    text = decode_properties(raw_properties).get(PROPERTY_INNER_NUM, "")
    is_count = text.isascii() and text.isdecimal() and len(text) <= _INNER_NUM_DIGITS_MAX
    return max(int(text), 1) if is_count else 1


def encode(message: StoredMessage) -> bytes:
    """Return the record's bytes, with every stored field (CRCs too) as in ``message``.

    Raises RecordError if a value does not fit its field, or ``total_size`` is wrong.
    """
    topic = _text_bytes(message.topic)
    try:
        topic_size = TOPIC_LENGTHS[message.magic].pack(len(topic))
        head = HEADS_WITH_PORTS[message.sys_flag & HOST_FLAGS].pack(
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
        properties_size = PROPERTIES_LENGTH.pack(len(message.properties_raw))
    except KeyError:
        raise RecordError(RecordKind.BAD_VALUE, f"no record has magic {message.magic}") from None
    except struct.error as error:
        raise RecordError(RecordKind.BAD_VALUE, f"a field cannot hold its value: {error}") from None
    record = b"".join(
        (head, message.body, topic_size, topic, properties_size, message.properties_raw)
    )
    if len(record) != message.total_size:
        detail = f"total_size {message.total_size}, but {len(record)} bytes were encoded"
        raise RecordError(RecordKind.BAD_VALUE, detail)
    return record


def _text_bytes(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise RecordError(RecordKind.BAD_VALUE, f"not a text: {error}") from None


def encode_blank(size: int) -> bytes:
    """Return the first 8 bytes of a filler of ``size`` bytes up to the end of the file."""
    assert size >= BLANK_SIZE_MIN, size
    return SIZE_AND_MAGIC.pack(size, BLANK_MAGIC_CODE)


def append_prop_crc(record: bytearray) -> None:
    """Fill the record's last 20 bytes, which its lengths include, with ``__CRC32#``."""
    assert len(record) >= RECORD_SIZE_MIN + PROP_CRC_SIZE, len(record)
    with memoryview(record) as view:
        view[-PROP_CRC_SIZE:] = prop_crc_property(view[:-PROP_CRC_SIZE])


# -- hosts ---------------------------------------------------------------------------------------


def message_id(store_host: tuple[str, int], physic_offset: int) -> str:
    """Return the offsetMsgId: hex of the address (4 or 16 bytes), port (4) and offset (8)."""
    address, port = store_host
    return (_packed(address) + MESSAGE_ID_END.pack(port, physic_offset)).hex().upper()


@functools.lru_cache(maxsize=_BORN_HOST_NAMES_MAX)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


@functools.lru_cache(maxsize=_BORN_HOST_NAMES_MAX)
def address_text(address: bytes) -> str:
    """Return an address of 4 or 16 bytes as text, the same in every Python.

    Python 3.13 writes the last part of ``::ffff:102:304`` with dots.
    """
    ip = ipaddress.ip_address(address)
    if ip.version == 6 and ip.ipv4_mapped is not None:
        return "::ffff:{:x}:{:x}".format(*struct.unpack_from(">HH", address, 12))
    return str(ip)


def _address_bytes(text: str, v6_flag: int) -> bytes:
    """Return 4 or 16 bytes.  Raises RecordError if the sysFlag says another IP version."""
    try:
        address = _packed(text)
    except ValueError as error:
        raise RecordError(RecordKind.BAD_VALUE, str(error)) from None
    if len(address) != (16 if v6_flag else 4):
        detail = f"sysFlag and address {text} are of different IP versions"
        raise RecordError(RecordKind.BAD_VALUE, detail)
    return address
