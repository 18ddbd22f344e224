"""Read the body of a pull's or a query's answer: records, back to back.

A body that its producer compressed (stock clients do, above 4 KiB) is decompressed, and its flag
cleared.  One that does not decompress is returned as it is, flag included: one bad message must not
keep a consumer from the next.

Invariant: any bytes yield messages or a ProtocolError; no body grows beyond BODY_SIZE_MAX.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import ProtocolError
from hastore.store.record import message_codec, record_check
from hastore.store.record.layout import COMPRESSED_FLAG
from hastore.store.record.record_check import RecordError, RecordKind

if TYPE_CHECKING:
    from hastore.message import StoredMessage

BODY_SIZE_MAX: Final = 64 * 1024 * 1024
_COMPRESSION_TYPE_SHIFT: Final = 8
_COMPRESSION_TYPE_MASK: Final = 7
_ZLIB_TYPES: Final = frozenset({0, 3})  # 1 is LZ4, 2 ZSTD; 0 is the zlib of older versions


def read_messages(body: bytes) -> list[StoredMessage]:
    """Read all messages.  Raises ProtocolError with the position of a damaged one."""
    messages = []
    position = 0
    while position < len(body):
        check = record_check.check_record(body, position, len(body) - position, None)
        if check.kind is not RecordKind.MESSAGE:
            what = check.detail or check.kind.value
            msg = f"the message at byte {position} of {len(body)} of an answer is damaged: {what}"
            raise ProtocolError(msg)
        try:
            message = message_codec.decode(body, position)
        except RecordError as error:
            msg = f"the message at byte {position} of an answer cannot be read: {error}"
            raise ProtocolError(msg) from error
        messages.append(_decompressed(message))
        position += check.size
    return messages


def _decompressed(message: StoredMessage) -> StoredMessage:
    body = unpacked_body(message)
    if body is None:
        return message
    return attrs.evolve(message, body=body, sys_flag=message.sys_flag & ~COMPRESSED_FLAG)


def unpacked_body(message: StoredMessage) -> bytes | None:
    """Return a compressed message's original body; None if it is not zlib, or does not inflate."""
    kind = message.sys_flag >> _COMPRESSION_TYPE_SHIFT & _COMPRESSION_TYPE_MASK
    if not message.sys_flag & COMPRESSED_FLAG or kind not in _ZLIB_TYPES:
        return None
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(message.body, BODY_SIZE_MAX)
    except zlib.error:
        return None
    return body if inflater.eof else None
