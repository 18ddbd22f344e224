"""The body of a pull's or a query's answer: stored messages, back to back.

A body that its producer has compressed (stock clients do, above 4 KiB) is given as it was before,
with the flag taken off; of a message's other fields nothing is changed.  What does not decompress
is given as it is, with the flag: one bad message must not keep a consumer from those behind it.

Invariant: whatever the bytes, the outcome is messages or a ProtocolError; no body grows beyond
BODY_SIZE_MAX.
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
_ZLIB_TYPES: Final = frozenset({0, 3})  # 1 lz4, 2 zstd; 0: from before there were several


def read_messages(body: bytes) -> list[StoredMessage]:
    """Read every message; ProtocolError names the byte where one is not sound."""
    messages = []
    position = 0
    while position < len(body):
        check = record_check.check_record(body, position, len(body) - position, None)
        if check.kind is not RecordKind.MESSAGE:
            what = check.detail or check.kind.value
            msg = f"the message at byte {position} of {len(body)} of an answer is unsound: {what}"
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
    """Return the body that a compressed message had before; None where there is no such body."""
    kind = message.sys_flag >> _COMPRESSION_TYPE_SHIFT & _COMPRESSION_TYPE_MASK
    if not message.sys_flag & COMPRESSED_FLAG or kind not in _ZLIB_TYPES:
        return None
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(message.body, BODY_SIZE_MAX)
    except zlib.error:
        return None
    return body if inflater.eof else None
