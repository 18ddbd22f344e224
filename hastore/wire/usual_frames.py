"""The frames that come once a message, many at a time: requests to send one message, OK replies.

::

    | send | send | send | pull | send …       take_sends ends before the pull
    | OK | OK | FLUSH_DISK_TIMEOUT | OK …      take_replies ends before the FLUSH_DISK_TIMEOUT

A frame is *usual* if it is complete and its header is JSON as Java's clients and hastore write it:
the fields in their order, ASCII, numbers within their bounds.  Reading ends before the first frame
that is not: the caller reads that one with ``FrameReader.next_command``, so no rule for unusual or
damaged frames is here, and no error.

``take_sends`` is the C extension's function if that is in use (``hastore.native``), which reads the
same frames as its twin here.

Invariant: what is read here is what ``FrameReader`` and ``read_message`` read; what is written here
is what ``encode_command`` writes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

from hastore.errors import ConfigError
from hastore.message import PROPERTY_UNIQ_KEY, Message
from hastore.native.in_use import extension
from hastore.wire.property_text import read_properties, write_properties
from hastore.wire.remoting_codes import RequestCode, SerializeType
from hastore.wire.remoting_command import (
    FRAME_PREFIX,
    FRAME_SIZE_FIELD,
    HEADER_SIZE_MAX,
    RemotingCommand,
    frame_head,
)
from hastore.wire.rocketmq_header import encode_rocketmq_header
from hastore.wire.send_message import (
    MESSAGE_FIELDS,
    PROPERTIES_TEXT_SIZE_MAX,
    ok_reply_frame,
    send_request_head,
    write_send_fields,
)

Buffer: TypeAlias = bytes | bytearray
# The request that a reply answers: opaque, serialize type, UNIQ_KEY.  None for a one-way request.
ReplyTo: TypeAlias = "tuple[int, int, str | None] | None"
# Opaque, msgId, queueId, queueOffset, position of the frame.
OkReply: TypeAlias = "tuple[int, str, int, int, int]"

_TEXT_IN_JSON_MAX: Final = HEADER_SIZE_MAX - 8 * 1024  # beside the other fields

_PREFIX_SIZE: Final = FRAME_PREFIX.size
_prefix_at: Final = FRAME_PREFIX.unpack_from

# -- the usual headers in JSON, as Java's clients and hastore's write them ------------------------

_TEXT: Final = rb"[ !#-\[\]-\x7f]*"  # in a JSON string, without escapes
_PAIRS: Final = rb"(?:%b\\u0001%b\\u0002)*(?:%b\\u0001%b)?" % (_TEXT, _TEXT, _TEXT, _TEXT)
_INTEGER: Final = rb"(?:0|-?[1-9][0-9]{0,8})"
_END: Final = rb'"language":"%b","opaque":(%b),"serializeTypeCurrentRPC":"JSON","version":%b\}' % (
    _TEXT,
    _INTEGER,
    _INTEGER,
)
_match_send: Final = re.compile(
    rb'\{"code":310,"extFields":\{"a":"%b","b":"(%b)","c":"%b","d":"%b","e":"(-?[0-9]{1,9})",'
    rb'"f":"([0-9]{1,9})","g":"([0-9]{1,18})","h":"([0-9]{1,9})","i":"(%b)","j":"([0-9]{1,9})",'
    rb'"k":"%b"(?:,"l":"%b")?(?:,"m":"false")?(?:,"n":"%b")?\},"flag":([02]),%b'
    % (_TEXT, _TEXT, _TEXT, _TEXT, _PAIRS, _TEXT, _TEXT, _TEXT, _END)
).fullmatch
_match_reply: Final = re.compile(
    rb'\{"code":0,"extFields":\{"msgId":"([!#-\[\]-~]+)","queueId":"(-?[0-9]{1,9})",'
    rb'"queueOffset":"([0-9]{1,18})"(?:,"transactionId":"%b")?\},"flag":1,%b' % (_TEXT, _END)
).fullmatch


def take_sends_in_python(
    data: Buffer, position: int, count_max: int, frame_size_max: int, born_host: tuple[str, int]
) -> tuple[list[tuple[Message, ReplyTo]], int]:
    """Read at most ``count_max`` usual send requests; return them and the position after them.

    A message's ``queue_id`` is the client's and may be negative.  Never raises.
    """
    sends: list[tuple[Message, ReplyTo]] = []
    available = len(data)
    topic_before, topic_text = None, ""
    while len(sends) < count_max and available - position >= _PREFIX_SIZE:
        frame_size, header_size = _prefix_at(data, position)  # the serialize type is 0
        body_at = position + _PREFIX_SIZE + header_size
        end = position + FRAME_SIZE_FIELD + frame_size
        if frame_size > frame_size_max or header_size > HEADER_SIZE_MAX:
            break
        if not body_at <= end <= available:
            break
        match = _match_send(data, position + _PREFIX_SIZE, body_at)
        if match is None:
            break
        topic, queue_id, sys_flag, born_ms, flag, text, times, frame_flag, opaque = match.groups()
        properties: dict[str, str] | None = None
        unique_key = None
        if text:
            if len(text) > PROPERTIES_TEXT_SIZE_MAX:
                break
            properties = read_properties(
                text.decode().replace("\\u0001", "\x01").replace("\\u0002", "\x02")
            )
            unique_key = properties.get(PROPERTY_UNIQ_KEY)
        if topic != topic_before:
            topic_before, topic_text = topic, topic.decode()
        message = Message(
            topic_text,
            data[body_at:end] if type(data) is bytes else bytes(memoryview(data)[body_at:end]),
            properties=properties,
            queue_id=int(queue_id),
            flag=int(flag),
            sys_flag=int(sys_flag),
            born_timestamp_ms=int(born_ms),
            born_host=born_host,
            reconsume_times=int(times),
        )
        reply_to = None if frame_flag == b"2" else (int(opaque), 0, unique_key)
        sends.append((message, reply_to))
        position = end
    return sends, position


def take_replies(data: Buffer, position: int, frame_size_max: int) -> tuple[list[OkReply], int]:
    """Read the usual OK replies; return them and the position after them.  Never raises."""
    replies: list[OkReply] = []
    available = len(data)
    while available - position >= _PREFIX_SIZE:
        frame_size, header_size = _prefix_at(data, position)  # the serialize type is 0
        body_at = position + _PREFIX_SIZE + header_size
        end = position + FRAME_SIZE_FIELD + frame_size
        if frame_size > frame_size_max or header_size > HEADER_SIZE_MAX:
            break
        if not body_at <= end <= available:
            break
        match = _match_reply(data, position + _PREFIX_SIZE, body_at)
        if match is None:
            break
        message_id, queue_id, queue_offset, opaque = match.groups()
        replies.append(
            (int(opaque), message_id.decode(), int(queue_id), int(queue_offset), position)
        )
        position = end
    return replies, position


def ok_reply(
    reply_to: tuple[int, int, str | None],
    physic_offset: int,
    queue_id: int,
    queue_offset: int,
    store_host: bytes,
) -> bytes:
    """Return the whole reply for PUT_OK to one message."""
    opaque, serialize_type, transaction_id = reply_to
    return ok_reply_frame(
        serialize_type,
        opaque,
        message_id=f"{store_host.hex().upper()}{physic_offset:016X}",
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=transaction_id,
    )


def send_head(
    message: Message,
    *,
    serialize_type: SerializeType,
    opaque: int,
    queue_id: int,
    born_timestamp_ms: int,
    group: str,
    unique_key: str | None,
) -> bytes:
    """Return a request to send ``message``, without its body.

    ``unique_key`` is a new one for a message that has none.  Raises ConfigError for properties that
    are too large, or that no text can hold.
    """
    text = properties_text(message, unique_key)
    if serialize_type is SerializeType.JSON:
        return send_request_head(
            message,
            text,
            opaque=opaque,
            queue_id=queue_id,
            born_timestamp_ms=born_timestamp_ms,
            group=group,
        )
    fields = write_send_fields(
        message, text, queue_id=queue_id, born_timestamp_ms=born_timestamp_ms, group=group
    )
    header = encode_rocketmq_header(
        RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=opaque, ext_fields=fields)
    )
    return frame_head(SerializeType.ROCKETMQ, header, len(message.body))


def properties_text(message: Message, unique_key: str | None) -> str:
    """Return the properties of a request to send ``message``.  Raises ConfigError as above."""
    properties = message.properties
    text = write_properties(properties) if properties else ""
    if unique_key is not None:
        text = f"{PROPERTY_UNIQ_KEY}\x01{unique_key}\x02{text}"
    check_text_size(message.topic, text)
    return text


def check_text_size(topic: str, properties: str = "") -> None:
    """Raise ConfigError for a topic and properties too large for a frame.

    A node closes the connection for a header above HEADER_SIZE_MAX.  JSON writes a character in
    up to 6 bytes, and what is not in the BMP in 12.
    """
    size = len(topic) + len(properties)
    if size > PROPERTIES_TEXT_SIZE_MAX:
        msg = f"topic and properties of {size} characters do not fit a frame"
        raise ConfigError(msg, hint="a record takes 32767 bytes of properties")
    if 12 * size <= _TEXT_IN_JSON_MAX:
        return
    size = len(json.dumps(topic)) + len(json.dumps(properties))
    if size > _TEXT_IN_JSON_MAX:
        raise ConfigError(
            f"topic and properties take {size} bytes in JSON and do not fit a request's header",
            hint=f"at most {_TEXT_IN_JSON_MAX}: put large or binary values into the body",
        )


# -- the choice ----------------------------------------------------------------------------------


def take_sends_in_c(
    data: Buffer, position: int, count_max: int, frame_size_max: int, born_host: tuple[str, int]
) -> tuple[list[tuple[Message, ReplyTo]], int]:
    """Do the same by the C extension, which must be there."""
    found: tuple[list[tuple[Message, ReplyTo]], int] = _extension.take_sends(
        data, position, count_max, frame_size_max, born_host, Message, MESSAGE_FIELDS
    )
    return found


_extension: Any = extension
take_sends = take_sends_in_python if extension is None else take_sends_in_c
