"""The append path's encoder: a producer's message to the bytes of its record.

    totalSize 4 | magic 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8
    | sysFlag 4 | bornTimestamp 8 | bornHost 8 or 20 | storeTimestamp 8 | storeHost 8 or 20
    | reconsumeTimes 4 | preparedTransactionOffset 8 | bodyLen 4 + body
    | topicLen 1 (V1) or 2 (V2) + topic | propertiesLen 2 + properties

It gives the same bytes as ``message_codec.encode`` and exists because it runs once a message: one
``pack`` for the head, one ``join`` for the record, and whatever repeats (the topic's field, hosts)
made once.  With ``append_prop_crc`` the last 20 bytes of the properties are ``__CRC32#``, U+0001,
ten digits and U+0002: RocketMQ 5's CRC32 of every byte before them, least significant digit first.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Final, final

from isal import isal_zlib

from hastore.message import PROPERTY_CRC32
from hastore.status import AppendMessageStatus
from hastore.store.message_codec import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from hastore.store.record_check import (
    CRC_MASK,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PROP_CRC_SIZE,
    TEXT_SIZE_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.message import Message
    from hastore.store.topic_queue_table import TopicQueues

_HOST_FLAGS: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
RECORD_SLACK_SIZE: Final = 64 * 1024  # a record may exceed max_message_size by this
_BORN_HOSTS_MAX: Final = 4_096

_PROPERTIES_LENGTH: Final = struct.Struct(">h")
_BARE_PROPERTIES: Final = _PROPERTIES_LENGTH.pack(0)
_CRC_ONLY_PROPERTIES: Final = _PROPERTIES_LENGTH.pack(PROP_CRC_SIZE)

_ILLEGAL: Final = AppendMessageStatus.MESSAGE_ILLEGAL
_SIZE_EXCEEDED: Final = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
_PROPERTIES_SIZE_EXCEEDED: Final = AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED

_crc32 = isal_zlib.crc32
_join = b"".join


def encode_host(host: tuple[str, int]) -> bytes:
    """Give a host's 8 (IPv4) or 20 (IPv6) bytes: the address, then the port as 4 bytes.

    Raises ValueError where the address is no IP address.
    """
    return ipaddress.ip_address(host[0].partition("%")[0]).packed + struct.pack(">i", host[1])


@final
class MessageEncoder:
    """Encodes for one store: its own host, its limits, and whether records carry a whole CRC."""

    def __init__(
        self, *, store_host: tuple[str, int], max_message_size: int, append_prop_crc: bool
    ) -> None:
        self.store_host_bytes = encode_host(store_host)
        self.max_message_size = max_message_size
        self._record_size_max = max_message_size + RECORD_SLACK_SIZE
        self.append_prop_crc = append_prop_crc
        self._no_properties = _CRC_ONLY_PROPERTIES if append_prop_crc else _BARE_PROPERTIES
        self._own_host = self._prepare_host(self.store_host_bytes)
        self._born_hosts: dict[
            tuple[str, int] | None, tuple[Callable[..., bytes], int, bytes, int]
        ] = {None: self._own_host}

    def encode(
        self,
        message: Message,
        queues: TopicQueues,
        queue_offset: int,
        physic_offset: int,
        store_timestamp_ms: int,
    ) -> bytes | AppendMessageStatus:
        """Give the record, or why there can be none."""
        body = message.body
        body_size = len(body)
        if body_size > self.max_message_size:
            return _SIZE_EXCEEDED
        try:
            pack, head_size, born_host, host_flags = self._born_hosts[message.born_host]
        except KeyError:
            if message.born_host is None or not self._learn_host(message.born_host):
                return _ILLEGAL
            pack, head_size, born_host, host_flags = self._born_hosts[message.born_host]
        if message.properties:
            properties = self._encode_properties(message.properties)
            if type(properties) is not bytes:
                return properties
        else:
            properties = self._no_properties
        tail = queues.topic_field + properties
        append_prop_crc = self.append_prop_crc
        size = head_size + body_size + len(tail)
        if append_prop_crc:
            size += PROP_CRC_SIZE
        if size > self._record_size_max:
            return _SIZE_EXCEEDED
        sys_flag = message.sys_flag
        born_timestamp_ms = message.born_timestamp_ms
        try:
            head = pack(
                size,
                MESSAGE_MAGIC_CODE_V2 if queues.is_v2 else MESSAGE_MAGIC_CODE,
                _crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physic_offset,
                (sys_flag & ~_HOST_FLAGS) | host_flags if sys_flag else host_flags,
                store_timestamp_ms if born_timestamp_ms is None else born_timestamp_ms,
                born_host,
                store_timestamp_ms,
                self.store_host_bytes,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_size,
            )
        except struct.error:  # a number that its field cannot hold
            return _ILLEGAL
        if not append_prop_crc:
            return _join((head, body, tail))
        crc = _crc32(tail, _crc32(body, _crc32(head))) & CRC_MASK
        # Written backwards and turned round, the digits stand least significant first.
        return _join((head, body, tail, (b"\x02%010d\x01#23CRC__" % crc)[::-1]))

    def _encode_properties(self, properties: Mapping[str, str]) -> bytes | AppendMessageStatus:
        """Give length and text of the properties, without the CRC's own 20 bytes."""
        pairs = [
            f"{name}\x01{value}\x02" for name, value in properties.items() if name != PROPERTY_CRC32
        ]
        text = "".join(pairs)
        if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
            return _ILLEGAL  # a separator inside a name or value
        try:
            raw = text.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            return _ILLEGAL
        size = len(raw) + PROP_CRC_SIZE if self.append_prop_crc else len(raw)
        if size > TEXT_SIZE_MAX:
            return _PROPERTIES_SIZE_EXCEEDED
        return _PROPERTIES_LENGTH.pack(size) + raw

    def _learn_host(self, host: tuple[str, int]) -> bool:
        """Remember a producer's host; false where it is no IP address."""
        try:
            host_bytes = encode_host(host)
        except (ValueError, struct.error):
            return False
        if len(self._born_hosts) >= _BORN_HOSTS_MAX:
            self._born_hosts = {None: self._own_host}
        self._born_hosts[host] = self._prepare_host(host_bytes)
        return True

    def _prepare_host(self, born_host_bytes: bytes) -> tuple[Callable[..., bytes], int, bytes, int]:
        """Give the head's pack and size, the host's bytes, and the sysFlag bits of both hosts."""
        born_size = len(born_host_bytes)
        store_size = len(self.store_host_bytes)
        head = struct.Struct(f">iiiiiqqiq{born_size}sq{store_size}siqi")
        flags = BORN_HOST_V6_FLAG if born_size == 20 else 0
        flags |= STORE_HOST_V6_FLAG if store_size == 20 else 0
        return head.pack, head.size, born_host_bytes, flags
