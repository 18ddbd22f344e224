"""Send requests, batches and their replies: fields, bytes, refusals."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.errors import ConfigError, ProtocolError
from hastore.message import Message
from hastore.wire import send_message
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.property_text import read_properties, write_properties
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import (
    is_batch,
    ok_reply_frame,
    read_batch,
    read_message,
    send_request_head,
    write_batch,
    write_send_fields,
)

PEER = ("10.1.2.3", 4711)

plain = st.text('aZ09 "\\{}:,\x00\n\x7fé\u4e2d\U0001f600', max_size=9)
wild = st.text("a-1\x01\x02\ud800", max_size=9)
properties = st.dictionaries(plain.filter(bool), plain, max_size=4)
messages = st.builds(
    Message,
    topic=plain,
    body=st.binary(max_size=40),
    properties=st.none() | properties.filter(bool),
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(0, 2**31 - 1),
    sys_flag=st.integers(0, 2**31 - 1),
    born_timestamp_ms=st.integers(0, 2**50),
    born_host=st.just(PEER),
    reconsume_times=st.integers(0, 2**31 - 1),
)

LONG_FORM = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": 3,
    "sysFlag": "0",
    "bornTimestamp": "1700000000123",
    "flag": "9",
    "properties": "KEYS\x01k\x02WAIT\x01false",
    "reconsumeTimes": "2",
    "unitMode": "0",
    "batch": "0",
}

VALID_FIELDS = {"a": "g", "b": "T", "e": "1", "f": "0", "g": "5", "h": "0", "i": "", "j": "0"}


def parse(data: bytes) -> RemotingCommand:
    reader = FrameReader(1 << 24)
    reader.feed(data)
    command = reader.next_command()
    assert command is not None
    return command


@given(messages)
def test_a_fast_request_frame_is_read_back(message):
    """The frame is JSON built by hand; the message that is read from it is equal."""
    data = send_request_head(
        message,
        write_properties(message.properties or {}),
        opaque=5,
        queue_id=message.queue_id,
        born_timestamp_ms=message.born_timestamp_ms,
        group='g"1',
    )
    data += message.body
    command = parse(data)
    assert (command.code, command.opaque, command.ext_fields["a"]) == (310, 5, 'g"1')
    assert read_message(command, PEER) == message
    assert not is_batch(command)


@given(messages, st.sampled_from(SerializeType))
def test_a_general_request_is_read_back_in_both_header_forms(message, serialize_type):
    """A request that is built from fields has a JSON or a binary header."""
    fields = write_send_fields(
        message,
        write_properties(message.properties or {}),
        queue_id=message.queue_id,
        born_timestamp_ms=message.born_timestamp_ms,
        group="g",
    )
    request = RemotingCommand(
        code=310, ext_fields=fields, body=message.body, serialize_type=serialize_type
    )
    assert read_message(parse(encode_command(request)), PEER) == message


def test_the_fast_request_equals_the_general_one():
    """The request built by hand has the same fields."""
    message = Message("T", b"b", properties={"KEYS": "k"}, flag=4)
    text = write_properties(message.properties)
    fields = write_send_fields(message, text, queue_id=1, born_timestamp_ms=2, group="g")
    data = send_request_head(message, text, opaque=3, queue_id=1, born_timestamp_ms=2, group="g")
    data += message.body
    assert parse(data) == RemotingCommand(code=310, opaque=3, ext_fields=fields, body=b"b")


def test_the_long_form_is_read():
    """SEND_MESSAGE 10 spells its fields out."""
    message = read_message(RemotingCommand(code=10, ext_fields=LONG_FORM, body=b"body"), PEER)
    assert message == Message(
        "T",
        b"body",
        properties={"KEYS": "k", "WAIT": "false"},
        queue_id=3,
        flag=9,
        born_timestamp_ms=1_700_000_000_123,
        born_host=PEER,
        reconsume_times=2,
    )
    assert not message.wait_store_msg_ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b": None}, "ext field b is missing"),
        ({"b": ["T"]}, "ext field b is neither text"),
        ({"b": "\ud800"}, "the topic is not UTF-8"),
        ({"i": "KEYS\x01\udfff\x02"}, "the properties is not UTF-8"),
        ({"i": "k\x01v\x02" * 20_000}, "80000 characters of properties"),
        ({"e": "x"}, "ext field e is not an integer"),
        ({"e": None}, "ext field e is missing"),
        ({"e": float("inf")}, "ext field e is not an integer"),
        ({"f": 2**31}, "ext field f does not fit 32 bits"),
        ({"g": 2**63}, "ext field g does not fit 64 bits"),
        ({"g": None}, "ext field g is missing"),
        ({"h": -(2**31) - 1}, "ext field h does not fit 32 bits"),
        ({"j": "1" * 20}, "ext field j does not fit 32 bits"),
    ],
)
def test_invalid_fields_are_refused_by_name(change, reason):
    """The error also says what is wrong."""
    with pytest.raises(ProtocolError, match=reason):
        read_message(RemotingCommand(code=310, ext_fields=VALID_FIELDS | change), PEER)


def test_unusual_field_values_are_read():
    """Negative numbers that fit, unquoted numbers and non-ASCII text are accepted."""
    fields = {"b": "T", "e": -1, "f": -1, "g": "5", "h": -(2**31) + 1, "i": "KEYS\x01ü\x02"}
    message = read_message(RemotingCommand(code=310, ext_fields=fields), PEER)
    assert (message.queue_id, message.sys_flag, message.flag) == (-1, -1, -(2**31) + 1)
    assert message.properties == {"KEYS": "ü"}


@given(
    st.sampled_from([{}, VALID_FIELDS]),
    st.dictionaries(st.sampled_from("abefghijm"), st.none() | st.integers() | wild | plain),
)
@example({}, {"g": 0, "a": None, "f": None, "i": "1\x01\x01", "b": 0, "e": 0})
def test_random_fields_are_read_or_raise_protocol_error(base, fields):
    """A value may hold a separator: the encoder refuses such a message (MESSAGE_ILLEGAL)."""
    try:
        message = read_message(RemotingCommand(code=310, ext_fields=base | fields), PEER)
        struct.pack(
            "!iiiqi",
            message.queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp_ms,
            message.reconsume_times,
        )
        "".join(map("".join, (message.properties or {}).items())).encode()
    except ProtocolError:
        pass


flags = st.integers(-9, 2**31 - 1)


@given(st.lists(st.tuples(st.binary(max_size=20), properties, flags), min_size=1))
def test_a_written_batch_is_read_back(entries):
    """Each message has its own body, flag and properties; the rest is the request's."""
    sent = [Message("T", body, properties=own, flag=flag) for body, own, flag in entries]
    fields = write_send_fields(
        Message("T", b"", sys_flag=1, reconsume_times=3),
        "",
        queue_id=2,
        born_timestamp_ms=5,
        group="g",
        batch=True,
    )
    command = RemotingCommand(code=320, ext_fields=fields, body=write_batch(sent))
    assert is_batch(command)
    read = read_batch(parse(encode_command(command)), PEER)
    assert [(m.body, m.properties, m.flag) for m in read] == entries
    assert {(m.topic, m.queue_id, m.born_timestamp_ms) for m in read} == {("T", 2, 5)}
    assert {(m.sys_flag, m.reconsume_times, m.born_host) for m in read} == {(1, 3, PEER)}


def test_a_batch_entry_has_rocketmqs_layout():
    """Its bytes are where MessageDecoder.encodeMessage puts them."""
    text = b"KEYS\x01k\x02"
    assert write_batch([Message("T", b"body", properties={"KEYS": "k"}, flag=7)]) == (
        struct.pack("!iiiii", 22 + 4 + len(text), 0, 0, 7, 4)
        + b"body"
        + struct.pack("!h", len(text))
        + text
    )


def test_the_requests_properties_apply_to_each_message_of_a_batch():
    """WAIT=false applies to all messages, whatever they say, but the request's UNIQ_KEY to none."""
    fields = {"b": "T", "e": 0, "f": 0, "g": 5, "h": 0, "i": "WAIT\x01false\x02UNIQ_KEY\x01all\x02"}
    first = Message("T", b"1", properties={"UNIQ_KEY": "one", "WAIT": "true"})
    body = write_batch([first, Message("T", b"2")])
    first, second = read_batch(RemotingCommand(code=320, ext_fields=fields, body=body), PEER)
    assert first.properties == {"UNIQ_KEY": "one", "WAIT": "false"}
    assert second.properties == {"WAIT": "false"}


def test_code_310_with_the_batch_flag_is_a_batch():
    """RocketMQ decides by the flag as well as by the code."""
    assert is_batch(RemotingCommand(code=310, ext_fields={"b": "T", "m": True}))
    assert is_batch(RemotingCommand(code=10, ext_fields={"topic": "T", "batch": "1"}))
    assert not is_batch(RemotingCommand(code=10, ext_fields=LONG_FORM))


@given(st.binary(max_size=120))
def test_random_batch_bodies_are_read_or_raise_protocol_error(body):
    """No other error comes from a body of up to 120 bytes."""
    fields = {"b": "T", "e": 0, "f": 0, "g": 5, "h": 0}
    with contextlib.suppress(ProtocolError):
        read_batch(RemotingCommand(code=320, ext_fields=fields, body=body), PEER)


@given(st.data())
def test_a_batch_with_one_byte_changed_is_read_or_refused(data):
    """The only error is ProtocolError."""
    body = bytearray(write_batch([Message("T", b"abc", properties={"k": "v"})] * 2))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    fields = {"b": "T", "e": 0, "f": 0, "g": 5, "h": 0}
    with contextlib.suppress(ProtocolError):
        read_batch(RemotingCommand(code=320, ext_fields=fields, body=bytes(body)), PEER)


def test_a_batch_of_4096_messages_is_read_and_one_of_4097_is_refused():
    """The limit keeps one batch from delaying other clients, and the error names it."""
    fields = {"b": "T", "e": 0, "f": 0, "g": 5, "h": 0}
    message = Message("T", b"")
    body = write_batch([message] * 4_096)
    assert len(read_batch(RemotingCommand(code=320, ext_fields=fields, body=body), PEER)) == 4_096
    body += write_batch([message])
    with pytest.raises(ProtocolError, match="a batch of more than 4096 messages; send it as"):
        read_batch(RemotingCommand(code=320, ext_fields=fields, body=body), PEER)


def test_invalid_batches_are_refused(monkeypatch):
    """Empty, cut short, not UTF-8, or with too large properties or too many messages."""
    fields = {"b": "T", "e": 0, "f": 0, "g": 5, "h": 0}
    body = write_batch([Message("T", b"abc")] * 3)
    for bad, reason in [(b"", "without messages"), (body[:-1], "entry at byte 50 of 74")]:
        with pytest.raises(ProtocolError, match=reason):
            read_batch(RemotingCommand(code=320, ext_fields=fields, body=bad), PEER)
    bad = write_batch([Message("T", b"", properties={"k": "v"})]).replace(b"v", b"\xff")
    with pytest.raises(ProtocolError, match="not UTF-8"):
        read_batch(RemotingCommand(code=320, ext_fields=fields, body=bad), PEER)
    good = write_batch([Message("T", b"", properties={"k": "v"})])
    for size in (3, 5, -1):  # of the properties, which have 4 bytes
        bad = good[:20] + size.to_bytes(2, signed=True) + good[22:]
        with pytest.raises(ProtocolError, match="entry at byte 0 of 26 has impossible sizes"):
            read_batch(RemotingCommand(code=320, ext_fields=fields, body=bad), PEER)
    with pytest.raises(ProtocolError, match="32767"):
        write_batch([Message("T", b"", properties={"k": "v" * 40_000})])
    monkeypatch.setattr(send_message, "BATCH_MESSAGES_MAX", 2)
    with pytest.raises(ProtocolError, match="more than 2 messages"):
        read_batch(RemotingCommand(code=320, ext_fields=fields, body=body), PEER)


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("transaction_id", [None, 'odd"\n\x01id'])
def test_the_fast_reply_equals_the_general_one(serialize_type, transaction_id):
    """The reply built by hand is read back in both header forms."""
    data = ok_reply_frame(
        serialize_type,
        9,
        message_id="7F0000010000271000000000000004D2",
        queue_id=3,
        queue_offset=12,
        transaction_id=transaction_id,
    )
    fields = {"msgId": "7F0000010000271000000000000004D2", "queueId": "3", "queueOffset": "12"}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    expected = RemotingCommand(
        code=0, opaque=9, flag=1, ext_fields=fields, serialize_type=serialize_type
    )
    assert parse(data) == expected


@given(properties)
def test_written_properties_are_read_back(given_properties):
    """With and without the last separator."""
    text = write_properties(given_properties)
    assert read_properties(text) == given_properties
    assert read_properties(text.removesuffix("\x02")) == given_properties


@pytest.mark.parametrize("bad", [{"": "v"}, {"k\x01": "v"}, {"k": "a\x02b\x01c"}])
def test_properties_that_would_be_read_differently_are_refused(bad):
    """An empty name, or a separator in a name or value, is the caller's mistake."""
    with pytest.raises(ConfigError, match="holds U\\+0001 or U\\+0002"):
        write_properties(bad)


def test_properties_are_read_leniently():
    """Items without a name or a separator are skipped; the last value of a name is used."""
    assert read_properties("a\x011\x02junk\x02\x01x\x02b\x01\x02a\x012") == {"a": "2", "b": ""}
