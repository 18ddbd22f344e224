"""Read the body of a pull's or a query's answer: records, back to back.

Compressed bodies are decoded (``hastore.store.record.body_compression``).  One that cannot be is
returned as it is, flags included, with the reason in ``body_fault``: one bad message must not keep
a consumer from the next.

An answer of some 256 KiB may decode to gigabytes.  So decoding ends before the first compressed
message behind DECODED_SIZE_MAX: a pull leaves it and the messages behind it to the next pull, and
another answer has them compressed.

Invariant: any bytes yield messages or a ProtocolError; of an answer at most DECODED_SIZE_MAX bytes
and one body more are decoded, those of bodies that fail included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hastore.errors import ProtocolError
from hastore.store.record import message_codec, record_check
from hastore.store.record.body_compression import decode_body_in_pieces, with_body
from hastore.store.record.layout import COMPRESSED_FLAG
from hastore.store.record.record_check import RecordError, RecordKind

if TYPE_CHECKING:
    from hastore.message import StoredMessage
    from hastore.wire.pieces import Pieces

DECODED_SIZE_MAX: Final = 16 * 1024 * 1024  # of the bodies of one answer that were compressed
_NO_ROOM: Final = "the bodies before it in the answer are too large"


class ReceivedMessages(NamedTuple):
    """The messages of an answer: those that were read, and those left for lack of room."""

    messages: list[StoredMessage]
    left: list[StoredMessage]  # as they are stored

    @property
    def all(self) -> list[StoredMessage]:
        """All messages; those that there was no room to decode say so."""
        left = (
            attrs.evolve(one, body_fault=_NO_ROOM) if one.sys_flag & COMPRESSED_FLAG else one
            for one in self.left
        )
        return [*self.messages, *left]


def read_all_in_pieces(body: bytes, *, raw_bodies: bool = False) -> Pieces[list[StoredMessage]]:
    """Read all messages; those that there is no room to decode say so.  Raises ProtocolError."""
    received = yield from read_in_pieces(body, raw_bodies=raw_bodies)
    return received.all


def read_in_pieces(body: bytes, *, raw_bodies: bool = False) -> Pieces[ReceivedMessages]:
    """Read the messages that there is room for; with ``raw_bodies`` none is decoded.

    Raises ProtocolError with the position of a damaged one.
    """
    stored = _stored_messages(body)
    messages: list[StoredMessage] = []
    decoded_size = 0
    for number, message in enumerate(stored):
        if raw_bodies or not message.sys_flag & COMPRESSED_FLAG:
            messages.append(message)
            continue
        if decoded_size >= DECODED_SIZE_MAX:
            return ReceivedMessages(messages, stored[number:])
        decoded = yield from decode_body_in_pieces(message.body, message.sys_flag)
        decoded_size += decoded.decoded_size
        messages.append(with_body(message, decoded))
    return ReceivedMessages(messages, [])


def _stored_messages(body: bytes) -> list[StoredMessage]:
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
        messages.append(message)
        position += check.size
    return messages
