"""Remoting frames as values and bytes: both header forms, lenient reading, typed errors."""

from __future__ import annotations

import contextlib
import gc
import json
import struct
import sys
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import FrameTooLargeError, ProtocolError
from hastore.quantities import read_integer
from hastore.wire import liberal_json
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.json_header import decode_json_header, encode_json_header
from hastore.wire.pieces import at_once
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import (
    HEADER_SIZE_MAX,
    RemotingCommand,
    boolean_field,
    content_of,
    frame,
    integer_field,
    required_text_field,
    text_field,
)
from hastore.wire.rocketmq_header import decode_rocketmq_header, encode_rocketmq_header

MIB = 1024 * 1024

texts = st.text('aZ09 "\\{}[]:,\x00\x01\x02\n\x7fé\u4e2d\U0001f600', max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=int32,
    flag=int32,
    ext_fields=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | texts.filter(bool),
    language=st.sampled_from(["JAVA", "CPP", "PYTHON", "OTHER"]),
    version=st.integers(0, 2**15 - 1),
    serialize_type=st.sampled_from(SerializeType),
)


def read_all(stream: bytes, *, chunk_size: int | None = None, limit: int = MIB):
    reader = FrameReader(limit)
    found = []
    step = chunk_size or max(len(stream), 1)
    for begin in range(0, len(stream), step):
        reader.feed(stream[begin : begin + step])
        while (command := reader.next_command()) is not None:
            found.append(command)
    return found


@given(st.lists(commands, max_size=4))
def test_encoded_commands_are_read_back_whole_or_byte_by_byte(sent):
    """The commands are equal whether the stream is fed at once or one byte at a time."""
    stream = b"".join(encode_command(command) for command in sent)
    assert read_all(stream) == sent
    assert read_all(stream, chunk_size=1) == sent


@given(st.lists(commands, min_size=1, max_size=4), st.integers(1, 200))
def test_commands_survive_any_split(sent, chunk_size):
    """Where the stream is cut makes no difference."""
    stream = b"".join(encode_command(command) for command in sent)
    assert read_all(stream, chunk_size=chunk_size) == sent


@given(st.binary(max_size=300), st.integers(1, 300))
def test_random_bytes_are_read_or_raise_protocol_error(stream, chunk_size):
    """The stream is fed in chunks of any size."""
    with contextlib.suppress(ProtocolError):
        read_all(stream, chunk_size=chunk_size)


json_headers = st.dictionaries(
    st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"]),
    st.none() | st.integers() | texts | st.dictionaries(texts, texts | st.integers(), max_size=2),
).map(lambda fields: json.dumps({"code": 1, "opaque": 2} | fields).encode())


@given(st.sampled_from(SerializeType), st.binary(max_size=200) | json_headers)
def test_random_headers_are_read_or_raise_protocol_error(serialize_type, header):
    """The frame around the header is well-formed, and its body is kept."""
    try:
        (command,) = read_all(frame(serialize_type, header, b"body"))
        assert command.body == b"body"
    except ProtocolError:
        pass


@given(commands, st.data())
def test_a_binary_header_with_one_byte_changed_is_read_or_refused(command, data):
    """The only error is ProtocolError."""
    header = bytearray(encode_rocketmq_header(command))
    header[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        decode_rocketmq_header(bytes(header), b"")


def test_the_binary_header_has_rocketmqs_layout():
    """Its bytes are where RocketMQ's RocketMQSerializable puts them."""
    command = RemotingCommand(
        code=103,
        opaque=5,
        flag=1,
        version=2333,
        language="CPP",
        remark="Sample",
        ext_fields={"key": "value"},
    )
    assert encode_rocketmq_header(command) == (
        struct.pack("!hbhii", 103, 1, 2333, 5, 1)
        + struct.pack("!i", 6)
        + b"Sample"
        + struct.pack("!i", 2 + 3 + 4 + 5)
        + struct.pack("!h", 3)
        + b"key"
        + struct.pack("!i", 5)
        + b"value"
    )


def test_a_frame_begins_with_its_size_and_the_serialize_type():
    """The size counts the bytes after it; the header's size comes with the type."""
    command = RemotingCommand(code=34, body=b"xyz", serialize_type=SerializeType.ROCKETMQ)
    data = encode_command(command)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert data[4] == 1
    assert int.from_bytes(data[5:8], "big") == len(data) - 8 - 3


def test_a_json_header_of_the_cpp_client_is_read():
    """Numbers as text, an empty remark and unknown fields are accepted."""
    header = (
        b'{"code":10,"extFields":{"queueId":3,"batch":false,"topic":"T"},"flag":"0",'
        b'"language":"CPP","opaque":12,"remark":"","serializeTypeCurrentRPC":"JSON",'
        b'"version":335,"later":{"x":[1]}}\n'
    )
    command = decode_json_header(header, b"")
    assert (command.code, command.opaque, command.flag, command.remark) == (10, 12, 0, "")
    assert (command.language, command.version) == ("CPP", 335)
    assert integer_field(command.ext_fields, "queueId") == 3
    assert boolean_field(command.ext_fields, "batch") is False


def test_a_json_header_needs_only_its_code():
    """Every other field may be missing or null."""
    command = decode_json_header(b' {"code":105,"extFields":null,"remark":null}', b"")
    assert (command.code, command.opaque, command.flag) == (105, 0, 0)
    assert command.ext_fields == {}
    assert command.remark is None
    assert decode_json_header(b'{"code":1,"remark":5}', b"").remark == "5"


def test_a_long_header_may_have_any_text():
    """Braces and brackets of a property's value are no objects and lists."""
    text = json.dumps({"rows": [[1]] * 2_000, "quote": '"{', "path": "\\\\", "last": "\\"})
    fields = {"i": f"k\x01{text}\x02"}
    header = encode_json_header(RemotingCommand(code=310, ext_fields=fields))
    assert len(header) > 8_000
    assert decode_json_header(header, b"").ext_fields == fields


def test_a_long_header_of_few_objects_ends_where_its_text_does():
    """A quote behind an even number of backslashes ends a text; lists behind it count."""
    lists = b"[]," * 70 + b"[]"
    for slashes in range(5):
        text = b"x" * 5_000 + b"\\\\" * slashes
        header = b'{"code":1,"extFields":{"a":"' + text + b'","b":[' + lists + b"]}}"
        with pytest.raises(ProtocolError, match="more than 64 objects and lists"):
            decode_json_header(header, b"")
        header = b'{"code":1,"extFields":{"a":"' + text + b'\\",' + lists + b'"}}'
        assert decode_json_header(header, b"").code == 1


def test_a_body_that_cannot_be_read_is_not_kept():
    """Bodies of megabytes waited for the garbage collector: the error led back to its request."""

    def read(body):
        yield 0
        raise ProtocolError(f"{len(body)} bytes are not a request")

    body = b"x" * 5_000
    gc.disable()
    try:
        for _ in range(3):
            request = RemotingCommand(code=41, body=body)
            for _ in range(2):
                with pytest.raises(ProtocolError, match="5000 bytes are not a request"):
                    at_once(content_of(request, read))
            del request
        assert sys.getrefcount(body) == 2
    finally:
        gc.enable()


def test_the_bytes_of_a_body_are_kept_once():
    """By its command alone, once no other frame follows."""
    frames = encode_command(RemotingCommand(code=10, body=bytes(MIB)))
    reader = FrameReader(2 * MIB)
    tracemalloc.start()
    try:
        for begin in range(0, len(frames), 65_536):
            assert reader.next_command() is None
            reader.feed(frames[begin : begin + 65_536])
        command = reader.next_command()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(command.body) == MIB < kept < 1.5 * MIB


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object but list"),
        (b"{}", "header field code is missing"),
        (b'{"code":"ten"}', "header field code is not an integer"),
        (b'{"code":1e400}', "header field code is not an integer"),
        (b'{"code":1,"opaque":4294967296}', "opaque does not fit 32 bits"),
        (b'{"code":1,"extFields":[1]}', "extFields is not a JSON object but list"),
        (b'{"code":1}{', "1 characters after its JSON"),
        (b'{"code":\xff}', "not JSON"),
        (b"[" * 4_000, "not JSON"),
        (b"[" * 200_000, "more than 64 objects and lists"),
        (b'{"code":1,"extFields":{"a":[' + b"[]," * 2_000 + b"[]]}}", "more than 64 objects and"),
        (b'{"code":' + b"1" * 5_000 + b"}", "not JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_json_header_is_refused(header, reason):
    """The error says what is wrong with it."""
    with pytest.raises(ProtocolError, match=reason):
        decode_json_header(header, b"")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "ends inside a field"),
        (struct.pack("!hbhiii", 1, 0, 0, 0, 0, -1) + bytes(4), "a remark of -1 bytes"),
        (struct.pack("!hbhiii", 1, 0, 0, 0, 0, 9) + bytes(4), "a remark of 9 bytes"),
        (struct.pack("!hbhiiii", 1, 0, 0, 0, 0, 0, 5) + b"abcd", "5 bytes of ext fields where 4"),
        (struct.pack("!hbhiiiih", 1, 0, 0, 0, 0, 0, 2, 9), "name at byte 21"),
        (struct.pack("!hbhiiiihci", 1, 0, 0, 0, 0, 0, 7, 1, b"k", 1), "value at byte 24"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_binary_header_is_refused(header, reason):
    """The error says what is wrong with it, and where."""
    with pytest.raises(ProtocolError, match=reason):
        decode_rocketmq_header(header, b"")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (b"caf\xe9", "caf\ufffd"),  # Latin-1
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"\xe2\x82", "\ufffd"),  # the beginning of a character counts once, as in Java
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate, for which Java has one
        ("ü€😀".encode(), "ü€😀"),
    ],
)
def test_header_bytes_that_are_not_utf_8_are_replaced(text, read):
    """Both headers read them alike, in names, values and remarks."""
    in_json = b'{"code":1,"remark":"%b","extFields":{"%b":"%b"}}' % (text, text, text)
    size = len(text)
    fields = struct.pack("!h", size) + text + struct.pack("!i", size) + text
    fixed = struct.pack("!hbhiii", 1, 0, 0, 0, 0, size)
    in_binary = fixed + text + struct.pack("!i", len(fields)) + fields
    for command in (decode_json_header(in_json, b""), decode_rocketmq_header(in_binary, b"")):
        assert command.ext_fields == {read: read}
        assert command.remark == read


def test_a_code_that_does_not_fit_a_binary_header_is_refused():
    """RocketMQ truncates a large code; here it is an error."""
    with pytest.raises(ProtocolError, match="200050"):
        encode_rocketmq_header(RemotingCommand(code=200_050))


def test_a_name_that_does_not_fit_a_binary_header_is_refused():
    """An ext field's name has 16 bits for its size."""
    with pytest.raises(ProtocolError, match="40000"):
        encode_rocketmq_header(RemotingCommand(code=1, ext_fields={"k" * 40_000: "v"}))


@pytest.mark.parametrize("split", [4, 8])
def test_a_frame_above_the_limit_is_refused_at_its_first_bytes(split):
    """The size is checked once its four bytes have come, before memory is taken for the frame."""
    reader = FrameReader(16 * MIB)
    reader.feed(struct.pack("!II", 200 * MIB, 20)[:split])
    with pytest.raises(FrameTooLargeError, match=r"209715200 bytes; at most 16777216 .*byte 0"):
        reader.next_command()
    assert reader.buffered_size <= 8


def test_http_on_the_client_port_is_a_frame_above_the_limit():
    """``GET `` read as a size is 1.2 GB."""
    with pytest.raises(FrameTooLargeError, match="1195725856"):
        read_all(b"GET / HTTP/1.1\r\n\r\n", limit=16 * MIB)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (struct.pack("!II", 3, 0), "no room for its header word"),
        (struct.pack("!II", 10, 7) + bytes(6), "a header of 7 bytes in a frame of 10"),
        (struct.pack("!II", 6, 0x0200_0002) + b"{}", "serialize type 2"),
        (
            struct.pack("!II", HEADER_SIZE_MAX + 5, HEADER_SIZE_MAX + 1),
            f"a header of {HEADER_SIZE_MAX + 1} bytes",
        ),
    ],
)
def test_an_invalid_frame_prefix_is_refused(prefix, reason):
    """The error says what is wrong and at which byte of the stream the frame begins."""
    good = encode_command(RemotingCommand(code=1))
    reader = FrameReader(16 * MIB)
    reader.feed(good + prefix)
    assert reader.next_command() is not None
    with pytest.raises(ProtocolError, match=f"{reason}.*byte {len(good)} of the stream"):
        reader.next_command()
    with pytest.raises(ProtocolError, match=reason):
        reader.next_command()


def test_the_reader_keeps_only_the_incomplete_frame():
    """Its bytes are kept once and freed when it has been read."""
    command = RemotingCommand(code=1, body=bytes(100_000))
    data = encode_command(command)
    reader = FrameReader(MIB)
    for begin in range(0, len(data), 1000):
        assert reader.next_command() is None
        assert reader.buffered_size == begin
        reader.feed(data[begin : begin + 1000])
    assert reader.next_command() == command
    assert reader.buffered_size == 0
    assert reader.consumed == len(data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(value, True) for value in ("1", "true", "True", 1, True)],
        *[(value, False) for value in ("0", "false", "", 0, False, None)],
    ],
)
def test_a_boolean_field_is_read_in_every_spelling(value, expected):
    """Java writes "true", C++ "1", JavaScript true."""
    assert boolean_field({"m": value}, "m") is expected


def test_a_text_field_may_be_a_number_or_a_boolean():
    """Clients do not quote all their values."""
    fields = {"a": 7, "b": True, "c": "x", "d": None, "e": [1], "f": False}
    assert [text_field(fields, name) for name in "abcdfz"] == [
        "7",
        "true",
        "x",
        None,
        "false",
        None,
    ]
    with pytest.raises(ProtocolError, match="ext field e is neither text nor a number but list"):
        text_field(fields, "e")
    with pytest.raises(ProtocolError, match="ext field d is missing"):
        required_text_field(fields, "d")


def test_an_integer_field_may_be_text():
    """In either form it must fit its number of bits."""
    fields = {"a": "-1", "b": 5, "c": "x", "d": 2**31, "e": [1]}
    assert integer_field(fields, "a") == -1
    assert integer_field(fields, "b") == 5
    assert integer_field(fields, "z", 9) == 9
    assert integer_field(fields, "d", bits=64) == 2**31
    for name, reason in [("c", "not an integer"), ("d", "32 bits"), ("e", "not an"), ("z", "miss")]:
        with pytest.raises(ProtocolError, match=reason):
            integer_field(fields, name)


@pytest.mark.parametrize(
    "value",
    [
        "1_000",
        " 1",
        "1 ",
        "",
        "-",
        "+-1",
        "\u0663",
        "\uff11",
        "1.0",
        "0x1",
        "1" * 41,
        1.5,
        1e400,
        None,
    ],
)
def test_an_integer_is_ascii_digits_with_a_sign(value):
    """Python's ``int`` takes underscores, blanks and other scripts, which Java refuses."""
    assert read_integer(value) is None
    if value is not None:
        with pytest.raises(ProtocolError, match="not an integer"):
            integer_field({"a": value}, "a")
    assert [read_integer(each) for each in ("+7", "-7", "007", b"7", 7, 7.0, True)] == [
        7, -7, 7, 7, 7, 7, 1,
    ]  # fmt: skip


def test_a_response_copies_opaque_and_serialize_type():
    """Clients match answers to requests by ``opaque``."""
    request = RemotingCommand(code=105, opaque=77, serialize_type=SerializeType.ROCKETMQ)
    response = request.response(17, remark="no such topic")
    assert response.is_response
    assert not request.is_response
    assert (response.opaque, response.serialize_type) == (77, SerializeType.ROCKETMQ)
    assert RemotingCommand(code=1, flag=2).is_one_way


def test_bare_integer_keys_are_read():
    """Java's fastjson writes ``{0:"addr"}``; the same characters inside a string stay."""
    data = b'{"brokerAddrs":{0:"h:1", 1 :"{2:3,4:5}"},"list":[1,2],-7:{"a\\"{1:":8}}\n'
    assert liberal_json.loads(data, "a route") == {
        "brokerAddrs": {"0": "h:1", "1": "{2:3,4:5}"},
        "list": [1, 2],
        "-7": {'a"{1:': 8},
    }


@given(
    st.recursive(st.integers() | texts, lambda inner: st.dictionaries(texts, inner), max_leaves=9)
)
def test_plain_json_is_read_as_by_the_json_module(value):
    """The lenient reader changes nothing in valid JSON."""
    assert liberal_json.loads(json.dumps(value).encode(), "a body") == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 200_000, b"{0x:1}"])
def test_a_body_that_is_not_json_is_refused(data):
    """The error names the body."""
    with pytest.raises(ProtocolError, match="the heartbeat is not JSON"):
        liberal_json.loads(data, "the heartbeat")


def test_a_body_that_is_not_an_object_is_refused():
    """A list is not accepted in its place."""
    with pytest.raises(ProtocolError, match="the heartbeat is not a JSON object but list"):
        liberal_json.loads_object(b"[]", "the heartbeat")


@pytest.mark.parametrize(
    "data",
    [rb"\"" * 500_000, rb'{"a":"' + rb"\"" * 500_000, b'"' * 999_999, b"{" * 1_000_000],
    ids=["escaped quotes", "an unclosed string", "quotes", "braces"],
)
def test_a_body_that_is_not_json_is_refused_in_linear_time(data):
    """A megabyte of unclosed strings must not take quadratic time."""
    begin = time.thread_time()  # CPU time, whatever else runs
    with pytest.raises(ProtocolError, match="the heartbeat is not JSON"):
        liberal_json.loads(data, "the heartbeat")
    assert time.thread_time() - begin < 5
