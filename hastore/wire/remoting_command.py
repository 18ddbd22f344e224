"""One frame of RocketMQ's remoting protocol, as a value and as bytes.

::

    int32  frame size        bytes after this field
    int32  header word       top byte: serialize type (0 JSON, 1 ROCKETMQ); low 24 bits: header size
    bytes  header            hastore.wire.json_header or hastore.wire.rocketmq_header
    bytes  body              frame size - 4 - header size

Source: RocketMQ 4.9.8 ``RemotingCommand``.  Reading is liberal: an ext field may be a string, a
number or a boolean, and a boolean may be ``"1"``, ``"true"`` or ``true``; ``text_field``,
``integer_field`` and ``boolean_field`` convert them.

Invariant: ``decode(encode(command)) == command`` if every ext field is a string.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import attrs

from hastore.errors import FrameTooLargeError, ProtocolError
from hastore.quantities import read_integer
from hastore.wire.remoting_codes import (
    FLAG_ONE_WAY,
    FLAG_RESPONSE,
    LANGUAGE,
    PROTOCOL_VERSION,
    ResponseCode,
    SerializeType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.wire.pieces import Pieces

T = TypeVar("T")

FRAME_PREFIX: Final = struct.Struct("!II")  # frame size, header word
FRAME_SIZE_FIELD: Final = 4  # the frame size does not count itself
# 32 767 bytes of properties may have 98 301 in JSON (text that is not ASCII), beside other fields.
HEADER_SIZE_MAX: Final = 128 * 1024
NAME_SIZE_MAX: Final = 255  # characters of a client id, a group or a topic
HEADER_WORD_SIZE: Final = 4


@attrs.define(slots=True, kw_only=True)
class RemotingCommand:
    """A request or a response; ``opaque`` is the number that matches the two."""

    code: int
    opaque: int = 0
    flag: int = 0
    ext_fields: Mapping[str, Any] = attrs.field(factory=dict)
    body: bytes = b""
    remark: str | None = None
    language: str = LANGUAGE
    version: int = PROTOCOL_VERSION
    serialize_type: SerializeType = SerializeType.JSON
    # Why its size is not allowed (``request_sizes``): its body was skipped, and it is refused.
    size_fault: str | None = None
    # What ``content_of`` has read of the body, or what is wrong: a body is not parsed twice.
    content: Any = attrs.field(default=None, init=False, eq=False, repr=False)

    @property
    def is_response(self) -> bool:
        """Whether this frame answers one of the receiver's requests."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & FLAG_ONE_WAY)

    def without_content(self) -> RemotingCommand:
        """Return what ``response`` needs, to keep while the answer is awaited."""
        return attrs.evolve(self, ext_fields={}, body=b"", remark=None)

    def response(
        self,
        code: int,
        *,
        remark: str | None = None,
        ext_fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return an answer to this request: same ``opaque``, same serialize type."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            ext_fields={} if ext_fields is None else ext_fields,
            body=body,
            remark=remark,
            serialize_type=self.serialize_type,
        )


@final
@attrs.frozen
class _Fault:
    """Why a body cannot be read."""

    text: str


def content_of(request: RemotingCommand, read: Callable[[bytes], Pieces[T]]) -> Pieces[T]:
    """Return what ``read`` makes of a request's body, which it reads once.

    Raises ProtocolError, each time.
    """
    if isinstance(request.content, _Fault):
        raise ProtocolError(request.content.text)
    if request.content is None:
        try:
            request.content = yield from read(request.body)
        except ProtocolError as error:
            # Not the error itself: its traceback would lead back to the request, and so keep the
            # body in memory until the garbage collector finds the cycle.
            request.content = _Fault(str(error))
            raise
    content: T = request.content
    return content


def json_response(request: RemotingCommand, value: dict[str, Any]) -> RemotingCommand:
    """Return a successful answer with ``value`` as its JSON body."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return request.response(ResponseCode.SUCCESS, body=body)


def check_frame_size(frame_size: int, frame_size_max: int) -> None:
    """Raise ProtocolError for an impossible frame size, before memory is reserved for it."""
    if frame_size > frame_size_max:
        msg = f"a frame of {frame_size} bytes; at most {frame_size_max} are taken"
        raise FrameTooLargeError(msg)
    if frame_size < HEADER_WORD_SIZE:
        msg = f"a frame of {frame_size} bytes has no room for its header word"
        raise ProtocolError(msg)


def header_size_of(header_word: int, frame_size: int) -> int:
    """Return the size of a frame's header.  Raises ProtocolError if the frame is too small."""
    header_size = header_word & 0xFFFFFF
    if header_size > frame_size - HEADER_WORD_SIZE:
        msg = f"a header of {header_size} bytes in a frame of {frame_size}"
        raise ProtocolError(msg)
    if header_size > HEADER_SIZE_MAX:
        msg = f"a header of {header_size} bytes; at most {HEADER_SIZE_MAX} are taken"
        raise FrameTooLargeError(msg)
    return header_size


def frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_head(serialize_type, header, len(body)) + body


def frame_head(serialize_type: int, header: bytes, body_size: int) -> bytes:
    """Return a frame without its body, which is sent separately."""
    header_size = len(header)
    word = serialize_type << 24 | header_size
    return FRAME_PREFIX.pack(HEADER_WORD_SIZE + header_size + body_size, word) + header


# -- ext fields, read liberally ------------------------------------------------------------------


def text_field(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field as text; None if it is missing or null.  Raises ProtocolError."""
    value = fields.get(name)
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    msg = f"ext field {name} is neither text nor a number but {type(value).__name__}"
    raise ProtocolError(msg)


def check_text(what: str, text: str) -> None:
    """Raise ProtocolError for text that is not UTF-8: a lone surrogate, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} is not UTF-8 text: {error.reason}"
        raise ProtocolError(msg) from error


def required_text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text.  Raises ProtocolError if it is missing."""
    value = text_field(fields, name)
    if value is None:
        msg = f"ext field {name} is missing"
        raise ProtocolError(msg)
    return value


def name_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a client id, a group or a topic.  Raises ProtocolError for no such name."""
    value = required_text_field(fields, name)
    if not 0 < len(value) <= NAME_SIZE_MAX:
        msg = f"ext field {name} has {len(value)} characters, not 1 to {NAME_SIZE_MAX}"
        raise ProtocolError(msg)
    check_text(name, value)
    return value


def integer_field(
    fields: Mapping[str, Any], name: str, default: int | None = None, *, bits: int = 32
) -> int:
    """Return a field as a signed integer of ``bits`` bits, or ``default`` if it is missing.

    Raises ProtocolError if it does not fit, is not a number, or is missing without a default.
    """
    value = fields.get(name)
    if value is None:
        if default is None:
            msg = f"ext field {name} is missing"
            raise ProtocolError(msg)
        return default
    number = read_integer(value)
    if number is None:
        msg = f"ext field {name} is not an integer: {value!r:.40}"
        raise ProtocolError(msg)
    if number.bit_length() >= bits:
        msg = f"ext field {name} does not fit {bits} bits: {number}"
        raise ProtocolError(msg)
    return number


def boolean_field(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field as a boolean; false if it is missing, as in RocketMQ."""
    value = fields.get(name)
    if isinstance(value, str):
        return value.lower() in {"true", "1"}
    return bool(value)
