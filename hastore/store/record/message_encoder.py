"""The append path's encoder: a producer's message to the bytes of its record.

    head … middle … bodyLen | body | topicLen, topic, propertiesLen, properties
           sysFlag to preparedTransactionOffset

It returns the same bytes as ``message_codec.encode``, faster, because it runs once a message: one
``pack`` for the head, one ``join`` for the record; repeated parts (the topic's field, hosts) are
made once.  *Plain* messages (nothing set but topic, queue, flag and body) of one millisecond share
their middle.

With ``append_prop_crc`` the last 20 bytes of the properties are ``__CRC32#`` (see ``layout``).

With the C extension most records are encoded by ``encode_record``, straight into the log's file.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Final, TypeAlias, final

from isal import isal_zlib

from hastore.message import PROPERTY_CRC32
from hastore.status import AppendMessageStatus
from hastore.store.record.layout import (
    BORN_HOST_V6_FLAG,
    CRC_MASK,
    HOST_FLAGS,
    HOST_FLAGS_ALL,
    HOST_SIZE_V6,
    PORT,
    PROP_CRC_BACKWARDS,
    PROP_CRC_SIZE,
    PROPERTIES_LENGTH,
    STORE_HOST_V6_FLAG,
    TEXT_SIZE_MAX,
    TRANSACTION_TYPE_MASK,
    split_head,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hastore.message import Message
    from hastore.store.record.topic_queue_table import TopicQueues

RECORD_SLACK_SIZE: Final = 64 * 1024  # a record may exceed max_message_size by this
_BORN_HOSTS_MAX: Final = 4_096
_COPIED_SIZE_MAX: Final = 4_096  # bytes of a body: another copy costs less than two calls

_BARE_PROPERTIES: Final = PROPERTIES_LENGTH.pack(0)
_CRC_ONLY_PROPERTIES: Final = PROPERTIES_LENGTH.pack(PROP_CRC_SIZE)

_ILLEGAL: Final = AppendMessageStatus.MESSAGE_ILLEGAL
_SIZE_EXCEEDED: Final = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
_PROPERTIES_SIZE_EXCEEDED: Final = AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED

# For a born host: pack of the middle, the host's bytes, its sysFlag bits.
_Host: TypeAlias = "tuple[Callable[..., bytes], bytes, int]"

# By the middle's size: pack of the head, and the head's size.
_HEADS: Final = {
    middle.size: (head.pack, head.size) for middle, head in map(split_head, HOST_FLAGS_ALL)
}
_MIDDLES: Final = {flags: split_head(flags)[0] for flags in HOST_FLAGS_ALL}

_crc32 = isal_zlib.crc32
_join = b"".join


def encode_host(host: tuple[str, int]) -> bytes:
    """Return a host's 8 (IPv4) or 20 (IPv6) bytes: the address, then the port as 4 bytes.

    Raises ValueError if the address is no IP address.
    """
    return ipaddress.ip_address(host[0].partition("%")[0]).packed + PORT.pack(host[1])


@final
class MessageEncoder:
    """Encodes records of one store, with its host and limits, and with or without ``__CRC32#``."""

    def __init__(
        self, *, store_host: tuple[str, int], max_message_size: int, append_prop_crc: bool
    ) -> None:
        self.max_message_size = max_message_size
        self.prop_crc_size = PROP_CRC_SIZE if append_prop_crc else 0
        self.bare_properties = _CRC_ONLY_PROPERTIES if append_prop_crc else _BARE_PROPERTIES
        self.record_size_max = max_message_size + RECORD_SLACK_SIZE
        self.name_store_host(store_host)

    def name_store_host(self, store_host: tuple[str, int]) -> None:
        """Encode this host from now on.  Raises ValueError if its address is no IP address."""
        self.store_host_bytes = encode_host(store_host)
        self._own_host = self._prepare_host(self.store_host_bytes)
        self._born_hosts: dict[tuple[str, int], _Host] = {}

    def encode(
        self,
        message: Message,
        queues: TopicQueues,
        queue_offset: int,
        physic_offset: int,
        store_timestamp_ms: int,
    ) -> bytes | AppendMessageStatus:
        """Return the record, or the status that says why it cannot be encoded."""
        middle = self.encode_middle(message, store_timestamp_ms)
        if not isinstance(middle, bytes):
            return middle
        parts = self.encode_parts(message, queues, queue_offset, physic_offset, middle)
        return _join(parts) if isinstance(parts, tuple) else parts

    def encode_parts(
        self,
        message: Message,
        queues: TopicQueues,
        queue_offset: int,
        physic_offset: int,
        middle: bytes,
    ) -> tuple[bytes, ...] | AppendMessageStatus:
        """Return the record that has this middle, or the status that says why there is none.

        The record is in two or three parts, to be joined or written one after the other.  A body of
        more than 4 KiB is a part of its own, the message's.
        """
        body = message.body
        body_size = len(body)
        if body_size > self.max_message_size:
            return _SIZE_EXCEEDED
        tail = queues.bare_tail
        if message.properties:
            encoded = self._encode_tail(queues, message.properties)
            if not isinstance(encoded, bytes):
                return encoded
            tail = encoded
        pack, head_size = _HEADS[len(middle)]
        size = head_size + body_size + len(tail) + self.prop_crc_size
        if size > self.record_size_max:
            return _SIZE_EXCEEDED
        try:
            head = pack(
                size,
                queues.magic,
                _crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physic_offset,
                middle,
                body_size,
            )
        except struct.error:  # a number that its field cannot hold
            return _ILLEGAL
        if not self.prop_crc_size:
            return head, body, tail
        if body_size <= _COPIED_SIZE_MAX:
            start = _join((head, body, tail))
            return start, (PROP_CRC_BACKWARDS % (_crc32(start) & CRC_MASK))[::-1]
        crc = _crc32(tail, _crc32(body, _crc32(head)))
        return head, body, tail + (PROP_CRC_BACKWARDS % (crc & CRC_MASK))[::-1]

    def encode_middle(
        self, message: Message, store_timestamp_ms: int
    ) -> bytes | AppendMessageStatus:
        """Return sysFlag to preparedTransactionOffset."""
        born_host = message.born_host
        host = self._own_host if born_host is None else self._find_host(born_host)
        if host is None:
            return _ILLEGAL
        pack, born_host_bytes, host_flags = host
        born_timestamp_ms = message.born_timestamp_ms
        try:
            return pack(
                message.sys_flag & ~HOST_FLAGS | host_flags,
                store_timestamp_ms if born_timestamp_ms is None else born_timestamp_ms,
                born_host_bytes,
                store_timestamp_ms,
                self.store_host_bytes,
                message.reconsume_times,
                message.prepared_transaction_offset,
            )
        except struct.error:  # a number that its field cannot hold
            return _ILLEGAL

    def plain_middle(self, store_timestamp_ms: int) -> bytes:
        """Return the middle of a plain message."""
        pack, host, flags = self._own_host
        return pack(flags, store_timestamp_ms, host, store_timestamp_ms, host, 0, 0)

    def _encode_tail(
        self, queues: TopicQueues, properties: Mapping[str, str]
    ) -> bytes | AppendMessageStatus:
        """Return the bytes after the body, without the 20 bytes of ``__CRC32#``.

        For a message without properties they are ``TopicQueues.bare_tail``.
        """
        if PROPERTY_CRC32 in properties:
            properties = {k: v for k, v in properties.items() if k != PROPERTY_CRC32}
        text = ""
        for name, value in properties.items():
            text += f"{name}\x01{value}\x02"
        count = len(properties)
        if text.count("\x01") != count or text.count("\x02") != count or "\0" in text:
            return _ILLEGAL  # a separator or a NUL inside a name or value
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            try:
                raw = text.encode(errors="surrogateescape")
            except UnicodeEncodeError:
                return _ILLEGAL
        size = len(raw) + self.prop_crc_size
        if size > TEXT_SIZE_MAX:
            return _PROPERTIES_SIZE_EXCEEDED
        return _join((queues.topic_field, size.to_bytes(2), raw))

    def encode_batch(
        self,
        messages: Sequence[Message],
        queues: TopicQueues,
        queue_offset: int,
        physic_offset: int,
        store_timestamp_ms: int,
    ) -> list[bytes] | AppendMessageStatus:
        """Return the records of messages of one topic and queue, to be stored end to end."""
        if sum(len(message.body) for message in messages) > self.max_message_size:
            return _SIZE_EXCEEDED
        first = messages[0]
        records = []
        for message in messages:
            assert message.topic == first.topic
            assert message.queue_id == first.queue_id
            if message.sys_flag & TRANSACTION_TYPE_MASK:
                return _ILLEGAL
            record = self.encode(message, queues, queue_offset, physic_offset, store_timestamp_ms)
            if not isinstance(record, bytes):
                return record
            records.append(record)
            queue_offset += 1
            physic_offset += len(record)
        return records

    def _find_host(self, host: tuple[str, int]) -> _Host | None:
        """Return the cached values for a producer's host; None if it is no IP address."""
        found = self._born_hosts.get(host)
        if found is None:
            try:
                found = self._prepare_host(encode_host(host))
            except (ValueError, struct.error):
                return None
            if len(self._born_hosts) >= _BORN_HOSTS_MAX:
                self._born_hosts.clear()
            self._born_hosts[host] = found
        return found

    def _prepare_host(self, born_host_bytes: bytes) -> _Host:
        """Make the values that depend on a born host."""
        flags = BORN_HOST_V6_FLAG if len(born_host_bytes) == HOST_SIZE_V6 else 0
        flags |= STORE_HOST_V6_FLAG if len(self.store_host_bytes) == HOST_SIZE_V6 else 0
        return _MIDDLES[flags].pack, born_host_bytes, flags
