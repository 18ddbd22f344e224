"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): requests and replies.

The ext fields, in the long form of code 10 and the one-letter form of 310 and 320::

    a producerGroup  b topic  c defaultTopic  d defaultTopicQueueNums  e queueId  f sysFlag
    g bornTimestamp  h flag   i properties    j reconsumeTimes         k unitMode
    l maxReconsumeTimes       m batch         n brokerName

A batch's body has one entry per message, back to back::

    int32 entry size | int32 magic (0) | int32 body CRC (0) | int32 flag
    int32 body size | body | int16 properties size | properties text (UTF-8)

The reply's ext fields are msgId, queueId, queueOffset and transactionId (the message's UNIQ_KEY).
Source: RocketMQ 4.9.8 ``SendMessageRequestHeaderV2``, ``MessageDecoder.encodeMessage``.

Invariant: reading returns messages whose numbers fit a record's fields and whose texts are UTF-8,
or raises ProtocolError.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote
from typing import TYPE_CHECKING, Any, Final

from hastore.errors import ProtocolError
from hastore.message import PROPERTY_UNIQ_KEY, Message
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.property_text import read_properties, write_properties
from hastore.wire.remoting_codes import (
    FLAG_RESPONSE,
    LANGUAGE,
    PROTOCOL_VERSION,
    RequestCode,
    SerializeType,
)
from hastore.wire.remoting_command import (
    FRAME_PREFIX,
    HEADER_WORD_SIZE,
    RemotingCommand,
    boolean_field,
    check_text,
    frame,
    integer_field,
    required_text_field,
    text_field,
)
from hastore.wire.rocketmq_header import encode_rocketmq_header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A batch is appended in one step, during which nothing else is served.
BATCH_MESSAGES_MAX: Final = 4_096
# Characters; longer texts are not even parsed, since a record holds 32 767 bytes of them.
PROPERTIES_TEXT_SIZE_MAX: Final = 65_536
# hastore's own ext field, in replies other than PUT_OK: the name of the status.
PUT_STATUS_FIELD: Final = "putStatus"
# hastore's own, too: "true" in such a reply of a node that takes no messages as a master.
NOT_MASTER_FIELD: Final = "notMaster"

# The fields of a message in the order in which the C extension sets them.
MESSAGE_FIELDS: Final = (
    "topic",
    "body",
    "properties",
    "queue_id",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "prepared_transaction_offset",
)
_pack_prefix: Final = FRAME_PREFIX.pack
_JSON: Final = int(SerializeType.JSON)
_INT32_MAX: Final = 0x7FFF_FFFF
_ENTRY: Final = struct.Struct("!iiiii")  # entry size, magic, body CRC, flag, body size
_INT16: Final = struct.Struct("!h")
_ENTRY_SIZE_MIN: Final = _ENTRY.size + _INT16.size

# The ends of a JSON reply with code 0.
_REPLY_BEGIN: Final = '{"code":0,"extFields":{"msgId":"'
_REPLY_END: Final = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'


def is_batch(command: RemotingCommand) -> bool:
    """Whether a send request's body holds several messages."""
    return command.code == RequestCode.SEND_BATCH_MESSAGE or boolean_field(
        command.ext_fields, "m" if "b" in command.ext_fields else "batch"
    )


def send_topic(fields: Mapping[str, Any]) -> str:
    """Return the topic of a send request: of each of its messages.  Raises ProtocolError."""
    return required_text_field(fields, "b" if "b" in fields else "topic")


def read_message(command: RemotingCommand, born_host: tuple[str, int]) -> Message:
    """Read the message of a send request; its ``queue_id`` is the client's and may be negative.

    Raises ProtocolError.
    """
    fields = command.ext_fields
    try:
        # Fast path: the usual fields.  Anything else is read again, slowly, with precise errors.
        queue_id = int(fields["e"])
        flag = int(fields["h"])
        sys_flag = int(fields["f"])
        born_timestamp_ms = int(fields["g"])
        reconsume_times = int(fields.get("j") or 0)
        topic = fields["b"]
        text = fields.get("i")
        if not (
            type(topic) is str
            and topic.isascii()
            and (text is None or (type(text) is str and text.isascii()))
            and (not text or len(text) <= PROPERTIES_TEXT_SIZE_MAX)
            and -_INT32_MAX <= queue_id <= _INT32_MAX
            and 0 <= flag <= _INT32_MAX
            and 0 <= sys_flag <= _INT32_MAX
            and 0 <= born_timestamp_ms <= _INT32_MAX << 31
            and 0 <= reconsume_times <= _INT32_MAX
        ):
            return _read_message_slowly(command, born_host)
    except (KeyError, TypeError, ValueError, OverflowError):
        return _read_message_slowly(command, born_host)
    return Message(
        topic,
        command.body,
        properties=read_properties(text) if text else None,
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
    )


_LONG_NAMES: Final = {
    "b": "topic",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
}
_SHORT_NAMES: Final = {name: name for name in _LONG_NAMES}


def _read_message_slowly(command: RemotingCommand, born_host: tuple[str, int]) -> Message:
    fields: Mapping[str, Any] = command.ext_fields
    names = _SHORT_NAMES if "b" in fields else _LONG_NAMES
    topic = send_topic(fields)
    text = text_field(fields, names["i"])
    check_text("the topic", topic)
    if text:
        check_text("the properties", text)
        if len(text) > PROPERTIES_TEXT_SIZE_MAX:
            msg = f"{len(text)} characters of properties; a record takes 32767 bytes"
            raise ProtocolError(msg)
    return Message(
        topic,
        command.body,
        properties=read_properties(text) if text else None,
        queue_id=integer_field(fields, names["e"]),
        flag=integer_field(fields, names["h"], 0),
        sys_flag=integer_field(fields, names["f"], 0),
        born_timestamp_ms=integer_field(fields, names["g"], bits=64),
        born_host=born_host,
        reconsume_times=integer_field(fields, names["j"], 0),
    )


# The fields of a send in both forms, without its properties' place and what only 310 has.
_WHOLE_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
}


def whole_send_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a send request's fields in the long form, as far as it has them.

    Raises ProtocolError.
    """
    is_short = "b" in fields
    found = {}
    for name, short in _WHOLE_NAMES.items():
        value = text_field(fields, short if is_short else name)
        if value is not None:
            found[name] = value
    return found


def write_send_fields(
    message: Message,
    properties_text: str,
    *,
    queue_id: int,
    born_timestamp_ms: int,
    group: str,
    batch: bool = False,
) -> dict[str, str]:
    """Return the ext fields of code 310 or 320."""
    return {
        "a": group,
        "b": message.topic,
        "c": DEFAULT_TOPIC,
        "d": "8",
        "e": str(queue_id),
        "f": str(message.sys_flag),
        "g": str(born_timestamp_ms),
        "h": str(message.flag),
        "i": properties_text,
        "j": str(message.reconsume_times),
        "k": "false",
        "m": "true" if batch else "false",
    }


def send_request_head(
    message: Message,
    properties_text: str,
    *,
    opaque: int,
    queue_id: int,
    born_timestamp_ms: int,
    group: str,
) -> bytes:
    """Return a SEND_MESSAGE_V2 request with a JSON header, without its body: the fast path."""
    header = (
        f'{_begin(group, message.topic)}{queue_id}","f":"{message.sys_flag}",'
        f'"g":"{born_timestamp_ms}","h":"{message.flag}","i":{_quote(properties_text)},'
        f'"j":"{message.reconsume_times}","k":"false","m":"false"}},"flag":0,'
        f'"language":"{LANGUAGE}","opaque":{opaque}{_REPLY_END}'
    ).encode()
    header_size = len(header)  # the serialize type is 0
    return _pack_prefix(HEADER_WORD_SIZE + header_size + len(message.body), header_size) + header


@lru_cache(maxsize=64)
def _begin(group: str, topic: str) -> str:
    return (
        f'{{"code":310,"extFields":{{"a":{_quote(group)},"b":{_quote(topic)},'
        f'"c":"{DEFAULT_TOPIC}","d":"8","e":"'
    )


# -- batches -------------------------------------------------------------------------------------


def read_batch(command: RemotingCommand, born_host: tuple[str, int]) -> list[Message]:
    """Read the messages of a batch request, in order; at least one.

    The request's own properties (``WAIT``) apply to each message, as in RocketMQ.  Raises
    ProtocolError.
    """
    whole = read_message(command, born_host)
    shared = {
        name: value for name, value in (whole.properties or {}).items() if name != PROPERTY_UNIQ_KEY
    }
    return read_entries(command.body, whole, shared)


def read_entries(body: bytes, whole: Message, shared: dict[str, str]) -> list[Message]:
    """Read the entries of a batch; other fields are those of ``whole``.  Raises ProtocolError."""
    messages: list[Message] = []
    position = 0
    while position < len(body):
        if len(messages) == BATCH_MESSAGES_MAX:
            msg = f"a batch of more than {BATCH_MESSAGES_MAX} messages; send it as several"
            raise ProtocolError(msg)
        flag, entry_body, text, position = _read_entry(body, position)
        messages.append(
            Message(
                whole.topic,
                entry_body,
                properties=read_properties(text) | shared,
                queue_id=whole.queue_id,
                flag=flag,
                sys_flag=whole.sys_flag,
                born_timestamp_ms=whole.born_timestamp_ms,
                born_host=whole.born_host,
                reconsume_times=whole.reconsume_times,
            )
        )
    if not messages:
        msg = "a batch without messages"
        raise ProtocolError(msg)
    return messages


def _read_entry(body: bytes, position: int) -> tuple[int, bytes, str, int]:
    """Return an entry's flag, body and properties text, and the position after it."""
    available = len(body) - position
    if available >= _ENTRY_SIZE_MIN:
        entry_size, _magic, _crc, flag, body_size = _ENTRY.unpack_from(body, position)
        properties_at = position + _ENTRY.size + body_size + _INT16.size
        if 0 <= body_size <= entry_size - _ENTRY_SIZE_MIN <= available - _ENTRY_SIZE_MIN:
            (properties_size,) = _INT16.unpack_from(body, properties_at - _INT16.size)
            end = position + entry_size
            if properties_at + properties_size == end:
                entry_body = body[position + _ENTRY.size : properties_at - _INT16.size]
                try:
                    return flag, entry_body, body[properties_at:end].decode(), end
                except UnicodeDecodeError as error:
                    msg = f"the properties at byte {properties_at} of a batch are not UTF-8"
                    raise ProtocolError(msg) from error
    msg = f"the batch entry at byte {position} of {len(body)} has impossible sizes"
    raise ProtocolError(msg)


def write_batch(messages: Sequence[Message]) -> bytes:
    """Return a batch's body.  Raises ProtocolError if a message has too many properties."""
    entries = []
    for message in messages:
        properties = write_properties(message.properties or {}).encode()
        if len(properties) > 0x7FFF:
            msg = f"{len(properties)} bytes of properties; a batch entry takes at most 32767"
            raise ProtocolError(msg)
        entries.append((message, properties))
    return join_batch(entries)


def join_batch(entries: Sequence[tuple[Message, bytes]]) -> bytes:
    """Return a batch's body of messages, each with at most 32767 bytes of properties text."""
    parts: list[bytes] = []
    for message, properties in entries:
        body = message.body
        entry_size = _ENTRY_SIZE_MIN + len(body) + len(properties)
        parts += (_ENTRY.pack(entry_size, 0, 0, message.flag, len(body)), body)
        parts += (_INT16.pack(len(properties)), properties)
    return b"".join(parts)


# -- replies -------------------------------------------------------------------------------------


def ok_reply_frame(
    serialize_type: int,
    opaque: int,
    *,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str | None,
) -> bytes:
    """Return the whole reply for PUT_OK (code 0): the fast path."""
    if serialize_type == _JSON:
        transaction = "" if transaction_id is None else f',"transactionId":{_quote(transaction_id)}'
        header = (
            f'{_REPLY_BEGIN}{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}"'
            f'{transaction}}},"flag":1,"language":"{LANGUAGE}","opaque":{opaque}{_REPLY_END}'
        ).encode()
        header_size = len(header)  # the serialize type is 0
        return _pack_prefix(HEADER_WORD_SIZE + header_size, header_size) + header
    fields = stored_fields(message_id, queue_id, queue_offset, transaction_id)
    header = encode_rocketmq_header(
        RemotingCommand(code=0, opaque=opaque, flag=FLAG_RESPONSE, ext_fields=fields)
    )
    return frame(serialize_type, header)


def stored_fields(
    message_id: str, queue_id: int, queue_offset: int, transaction_id: str | None
) -> dict[str, str]:
    """Return the ext fields that say where a message was stored."""
    fields = {"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    return fields
