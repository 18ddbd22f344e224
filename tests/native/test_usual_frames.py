"""Usual frames in C and in Python: the same messages, replies and bytes as the general code.

Both readers may leave a frame to the general code; what they do read must be what that would have
read, in any stream: mutated, cut off, with numbers as text, in any order, twice, escaped, huge.
"""

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.errors import ConfigError, ProtocolError
from hastore.message import Message
from hastore.native.in_use import extension
from hastore.wire import usual_frames
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import frame
from hastore.wire.send_message import (
    BATCH_MESSAGES_MAX,
    MESSAGE_FIELDS,
    join_batch,
    read_entries_in_c,
    read_entries_in_python,
)
from tests.hostile.corpus_files import recorded
from tests.native.what_is_read import (
    FRAME_SIZE_MAX,
    PEER,
    take_nothing,
    what_is_answered,
    what_is_sent,
)

SENDS = [usual_frames.take_sends_in_python]
REPLIES = [usual_frames.take_replies_in_python]
if extension is not None:
    SENDS.append(usual_frames.take_sends_in_c)
    REPLIES.append(extension.take_replies)
in_c = pytest.mark.skipif(extension is None, reason="the C extension is not in use")

JAVA = (
    '{"code":310,"extFields":{"a":"group","b":"orders","c":"TBW102","d":"4","e":"3","f":"0",'
    '"g":"1700000000123","h":"0","i":"KEYS\\u0001k-1\\u0002UNIQ_KEY\\u00017F00\\u0002","j":"0",'
    '"k":"false","l":"2","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":7,'
    '"serializeTypeCurrentRPC":"JSON","version":409}'
)
REPLY = (
    '{"code":0,"extFields":{"msgId":"7F00000100002A9F000000004001F3C8","queueId":"3",'
    '"queueOffset":"17","transactionId":"7F00"},"flag":1,"language":"PYTHON","opaque":7,'
    '"serializeTypeCurrentRPC":"JSON","version":409}'
)

# -- wild headers --------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), 10**17, 10**18, 2**63, -(10**18), 10**25, 10**40]),
)
number_texts = numbers.map(str) | st.sampled_from(
    ["", "-", "007", "-0", "+1", " 1", "1_0", "1.0", "1e3", "٣", "0x1", "-9", "999999999999999999"]
)
texts = st.sampled_from(
    ["", "orders", "T", "false", "0", "true", "1", "a\x01b\x02", "UNIQ_KEY\x01k\x02UNIQ_KEY\x01l",
     "\x01v\x02k\x01\x02\x02x", "KEYS\x01" + "k" * 70_000, "é", "\ud800", "\x7f", 'q"\\/', "\n\0"]
) | st.text('aZ \x01\x02"\\\u00e9', max_size=8)  # fmt: skip
json_numbers = numbers.map(str) | st.sampled_from(["1.5", "1e2", "-0", "00", "01", "-", "NaN"])


@st.composite
def json_strings(draw, text):
    """Some JSON spelling of a text: plain, or with escapes that nobody needs."""
    quoted = json.dumps(text, ensure_ascii=draw(st.booleans()))
    if draw(st.integers(0, 5)) == 0 and text:
        quoted = '"' + "".join(f"\\u{ord(char) & 0xFFFF:04X}" for char in text) + '"'
    return quoted


@st.composite
def json_values(draw):
    """A text, a number in either spelling, or something else."""
    kind = draw(st.integers(0, 9))
    if kind < 4:
        return draw(json_strings(draw(texts | number_texts)))
    if kind < 8:
        return draw(json_numbers)
    return draw(
        st.sampled_from(["null", "true", "false", "{}", "[1]", '"', "", '"\\u00"', '"\\x"'])
    )


SHORT = "abcdefghijklmn"
LONG = ["topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes",
        "batch", "producerGroup", "AccessKey", "msgId", "queueOffset", "putStatus"]  # fmt: skip
TOP = ["code", "flag", "opaque", "version", "language", "remark", "serializeTypeCurrentRPC", "new"]
USUAL = {
    "a": '"g"', "b": '"T"', "c": '"TBW102"', "d": '"8"', "e": '"1"', "f": '"0"', "g": '"5"',
    "h": '"0"', "i": '"KEYS\\u0001k\\u0002"', "j": '"0"', "k": '"false"', "m": '"false"',
}  # fmt: skip
LONG_USUAL = {
    "topic": '"T"', "queueId": "1", "sysFlag": "0", "bornTimestamp": '"5"', "flag": "0",
    "properties": '"KEYS\\u0001k"', "batch": '"0"',
}  # fmt: skip
REPLY_USUAL = {
    "msgId": '"7F00"', "queueId": '"1"', "queueOffset": '"5"', "transactionId": '"k"',
}  # fmt: skip


@st.composite
def json_objects(draw, pairs, names):
    """An object of pairs, perhaps some of them changed, twice, missing or in another order."""
    pairs = list(pairs)
    for _ in range(draw(st.sampled_from([0] * 6 + [1, 2]))):
        place = draw(st.integers(0, len(pairs) - 1))
        if draw(st.booleans()):
            pairs[place] = pairs[place][0], draw(json_values())
        else:
            pairs.insert(place, (draw(st.sampled_from(names)), draw(json_values())))
    rearranged = draw(st.integers(0, 19))
    if rearranged == 0:
        pairs = draw(st.permutations(pairs))
    elif rearranged == 1:
        del pairs[draw(st.integers(0, len(pairs) - 1))]
    comma, colon = draw(st.sampled_from([",:"] * 30 + [", :", ",: "])).split(":")
    return "{" + comma.join(f"{json.dumps(k)}:{colon}{v}" for k, v in pairs) + "}"


@st.composite
def json_frames(draw, codes, usual, flags="0002"):
    """A frame with a JSON header that is usual, or nearly so."""
    fields = draw(json_objects(draw(st.sampled_from(usual)).items(), [*SHORT, *LONG]))
    top = {
        "code": draw(st.sampled_from(codes)),
        "extFields": fields,
        "flag": draw(st.sampled_from([*flags * 5, "0", "1", "3", '"0"'])),
        "language": '"JAVA"',
        "opaque": draw(st.sampled_from([*"7890" * 4, "-1", "2147483647", "2147483648", '"8"'])),
        "serializeTypeCurrentRPC": '"JSON"',
        "version": "409",
    }
    header = draw(json_objects(top.items(), TOP)) + draw(st.sampled_from([""] * 9 + ["\n", " x"]))
    return frame(0, header.encode("utf-8", "surrogatepass"), draw(st.binary(max_size=9)))


@st.composite
def binary_frames(draw, codes, usual):
    """A frame with a binary header that is usual, or nearly so."""
    pairs = [(k, json.loads(v)) for k, v in draw(st.sampled_from(usual)).items()]
    pairs += draw(st.lists(st.tuples(st.sampled_from([*SHORT, *LONG]), number_texts), max_size=1))
    fields = b""
    for name, value in pairs:
        data = str(value).encode()
        fields += struct.pack("!h", len(name)) + name.encode() + struct.pack("!i", len(data)) + data
    remark = draw(st.sampled_from([b"", b"", b"", b"why", b"\xff"]))
    code, flag = int(draw(st.sampled_from(codes))), draw(st.sampled_from([0, 0, 1, 1, 2, 3]))
    head = struct.pack("!hbhiii", code, 3, 409, draw(numbers) & 0x7FFF, flag, len(remark)) + remark
    return frame(1, head + struct.pack("!i", len(fields)) + fields, draw(st.binary(max_size=9)))


@st.composite
def streams(draw, frames):
    """Some frames, perhaps with changed bytes, or cut off."""
    data = bytearray(b"".join(draw(st.lists(frames, min_size=1, max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 3)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


send_frames = json_frames(["310"] * 8 + ["10", "320"], [USUAL, USUAL, LONG_USUAL]) | binary_frames(
    ["310", "310", "10", "320"], [USUAL, LONG_USUAL]
)
reply_frames = json_frames(["0"] * 7 + ["11"], [REPLY_USUAL], "1") | binary_frames(
    ["0", "0", "11"], [REPLY_USUAL]
)

# -- send requests -------------------------------------------------------------------------------


@pytest.mark.parametrize("take_sends", SENDS)
@given(streams(send_frames))
@example(frame(0, JAVA.encode(), b"body"))
@example(frame(0, JAVA.replace("orders", "\xe9").encode(), b""))
@example(frame(0, JAVA.replace('"b"', '"\\u0062"').encode(), b""))
@example(frame(0, JAVA.encode() + b"\n", b"") + b"\0\0\0")
@example(frame(0, JAVA.replace("KEYS", "A\\u0001b\\u0001c\\u0002KEYS").encode(), b""))
@example(frame(0, JAVA.replace("7F00", "\\u0001").encode(), b""))
def test_any_stream_of_requests_is_read_as_by_the_general_code(take_sends, stream):
    """Same messages and reply addresses, same refusals, same error at the same place."""
    assert what_is_sent(stream, take_sends) == what_is_sent(stream, take_nothing)


@pytest.mark.parametrize("take_sends", SENDS)
@given(st.binary(max_size=80), st.integers(-3, 90), st.integers(-1, 3), st.integers(-1, 100))
def test_random_bytes_are_no_usual_requests(take_sends, data, position, count_max, size_max):
    """Nothing is read from them, whatever the limits are."""
    sends, end = take_sends(data, max(position, 0), count_max, size_max, PEER)
    assert (sends, end) == ([], max(position, 0))


@pytest.mark.parametrize("take_sends", SENDS)
def test_usual_requests_are_taken(take_sends):
    """Java's and hastore's own: the comparisons above are not of what was left."""
    own = recorded("client_port")["own_send_message_v2"]
    stream = frame(0, JAVA.encode(), b"body") + own
    (java, reply_to), (message, _) = take_sends(stream, 0, 9, 4096, PEER)[0]
    assert java == Message(
        "orders",
        b"body",
        properties={"KEYS": "k-1", "UNIQ_KEY": "7F00"},
        queue_id=3,
        born_timestamp_ms=1_700_000_000_123,
        born_host=PEER,
    )
    assert reply_to == (7, 0, "7F00")
    assert (message.topic, message.body) == ("Own", b"message 00")


@in_c
def test_the_cpp_client_and_binary_headers_are_taken_in_c():
    """Numbers without quotes, long names, a newline at the end; headers without JSON."""
    stream = recorded("client_port")["stock_send_message"]
    message = Message("T", b"body", properties={"KEYS": "k"}, born_timestamp_ms=5)
    head = usual_frames.send_head_in_python(
        message,
        serialize_type=SerializeType.ROCKETMQ,
        opaque=-2,
        queue_id=1,
        born_timestamp_ms=5,
        group="g",
        unique_key="K",
    )
    sends, end = usual_frames.take_sends_in_c(stream + head + b"body", 0, 9, 4096, PEER)
    assert end == len(stream + head) + 4
    assert [send.topic for send, _ in sends] == ["Recorded", "T"]
    assert [reply_to for _, reply_to in sends][1] == (-2, 1, "K")


@pytest.mark.parametrize("take_sends", SENDS)
def test_a_large_frame_is_read_from_a_bytearray(take_sends):
    """As it gathers from several reads; the body is bytes of its own."""
    stream = bytearray(frame(0, JAVA.encode(), b"x" * 50_000))
    ((message, _),) = take_sends(stream, 0, 9, FRAME_SIZE_MAX, PEER)[0]
    assert type(message.body) is bytes
    assert message.body == b"x" * 50_000
    stream.clear()  # nothing holds the buffer


@pytest.mark.parametrize("take_sends", SENDS)
def test_limits_end_the_reading(take_sends):
    """The number of requests, and the size of a frame."""
    one = frame(0, JAVA.encode(), b"body")
    assert len(take_sends(one * 5, 0, 3, 4096, PEER)[0]) == 3
    assert take_sends(one, 0, 3, len(one) - 5, PEER) == ([], 0)
    assert len(take_sends(one, 0, 3, len(one) - 4, PEER)[0]) == 1
    assert take_sends(one[:-1], 0, 3, 4096, PEER) == ([], 0)


# -- batches -------------------------------------------------------------------------------------

WHOLE = Message(
    "T", b"", queue_id=-1, sys_flag=1, born_timestamp_ms=5, born_host=PEER, reconsume_times=2
)


def entries_of(read, body, shared):
    """Return the messages of a batch, or the error."""
    try:
        return read(body, WHOLE, shared)
    except ProtocolError as error:
        return str(error)


@in_c
@given(
    entries=st.lists(
        st.tuples(
            st.builds(Message, st.just(""), st.binary(max_size=9), flag=st.integers(-9, 2**31 - 1)),
            texts.map(lambda text: text[:99].encode("utf-8", "surrogatepass")),
        ),
        max_size=5,
    ),
    shared=st.sampled_from([{}, {"WAIT": "false", "k": "shared"}]),
    flips=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=2),
    cut=st.sampled_from([0] * 4 + [1, 5, 22]),
)
def test_any_batch_is_read_alike(entries, shared, flips, cut):
    """Whole, changed and cut off ones: the same messages, or the same error."""
    body = bytearray(join_batch(entries))
    for place, value in flips:
        if body:
            body[place % len(body)] = value
    body = bytes(body[: len(body) - cut])
    expected = entries_of(read_entries_in_python, body, shared)
    assert entries_of(read_entries_in_c, body, shared) == expected


@in_c
def test_usual_batches_are_read_in_c():
    """Up to the limit: the comparison above is not of Python with itself."""
    body = join_batch([(Message("", b"body", flag=7), b"KEYS\x01k\x02")] * BATCH_MESSAGES_MAX)
    values = tuple(getattr(WHOLE, name) for name in MESSAGE_FIELDS)
    arguments = (BATCH_MESSAGES_MAX, {"a": "b"}, values, Message, MESSAGE_FIELDS)
    messages = extension.take_entries(body, *arguments)
    assert len(messages) == BATCH_MESSAGES_MAX
    assert messages == read_entries_in_python(body, WHOLE, {"a": "b"})
    assert extension.take_entries(body + body[:35], *arguments) is None
    assert extension.take_entries(b"", *arguments) is None


# -- replies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("take_replies", REPLIES)
@given(streams(reply_frames))
@example(frame(0, REPLY.encode()))
@example(frame(0, REPLY.replace('"flag":1', '"flag":1,"remark":""').encode()))
@example(frame(0, REPLY.replace('"3"', "-1").encode()) + b"\0")
def test_any_stream_of_replies_is_read_as_by_the_general_code(take_replies, stream):
    """Same results, same errors, same command for a request that is no send."""
    assert what_is_answered(stream, take_replies) == what_is_answered(stream, take_nothing)


@pytest.mark.parametrize("take_replies", REPLIES)
@given(st.binary(max_size=80), st.integers(0, 90), st.integers(-1, 100))
def test_random_bytes_are_no_usual_replies(take_replies, data, position, size_max):
    """Nothing is read from them."""
    assert take_replies(data, position, size_max) == ([], position)


@pytest.mark.parametrize("take_replies", REPLIES)
def test_usual_replies_are_taken(take_replies):
    """With the UNIQ_KEY of hastore's client, and of the C++ client."""
    stream = frame(0, REPLY.encode()) + recorded("to_client")["stock_heart_beat_0"]
    first, second = take_replies(stream, 0, 4096)[0]
    assert first == (7, "7F00000100002A9F000000004001F3C8", 3, 17, 0)
    assert second == (2, "7F0000010000A42300000000000000D0", 1, 0, len(REPLY) + 8)


# -- writing -------------------------------------------------------------------------------------

any_numbers = st.integers(-3, 300) | st.sampled_from([2**31, 2**63, -(2**63), 10**18, 10**30])
any_texts = st.text('aZ \x00\x01\x02\x1f"\\\n\t\x7fé\u4e2d', max_size=9) | st.just("x" * 5_000)
any_properties = st.none() | st.dictionaries(any_texts, any_texts, max_size=4)


@in_c
@given(
    opaque=st.integers(-(2**31), 2**31 - 1),
    serialize_type=st.sampled_from(SerializeType),
    transaction_id=st.none() | any_texts,
    physic_offset=st.integers(0, 2**62),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    store_host=st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", b"\xff" * 20, b""]),
)
def test_replies_have_the_same_bytes(  # noqa: PLR0917 - what hypothesis varies
    opaque, serialize_type, transaction_id, physic_offset, queue_id, queue_offset, store_host
):
    """In both header forms, for any transaction id."""
    reply_to = opaque, serialize_type, transaction_id
    arguments = reply_to, physic_offset, queue_id, queue_offset, store_host
    expected = usual_frames.ok_reply_in_python(*arguments)
    assert usual_frames.ok_reply_in_c(*arguments) == expected


@in_c
@given(
    topic=any_texts,
    body=st.binary(max_size=9),
    properties=any_properties,
    numbers=st.tuples(*[any_numbers] * 4),
    opaque=st.integers(1, 2**31 - 1),
    queue_id=any_numbers,
    group=any_texts,
    unique_key=st.none() | st.just("7F00"),
    serialize_type=st.sampled_from(SerializeType),
)
def test_requests_have_the_same_bytes(  # noqa: PLR0917 - what hypothesis varies
    topic, body, properties, numbers, opaque, queue_id, group, unique_key, serialize_type
):
    """Or both raise the same error for properties that no text can hold."""
    flag, sys_flag, times, born_ms = numbers
    message = Message(
        topic, body, properties=properties, flag=flag, sys_flag=sys_flag, reconsume_times=times
    )
    found = []
    for send_head in (usual_frames.send_head_in_python, usual_frames.send_head_in_c):
        try:
            head = send_head(
                message,
                serialize_type=serialize_type,
                opaque=opaque,
                queue_id=queue_id,
                born_timestamp_ms=born_ms,
                group=group,
                unique_key=unique_key,
            )
        except ConfigError as error:
            head = str(error)
        found.append(head)
    assert found[0] == found[1]


@in_c
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ok_reply", ((1, 0), 1, 2, 3, b"")),
        ("ok_reply", ((1, 7, None), 1, 2, 3, b"")),
        ("ok_reply", ((2**31, 0, None), 1, 2, 3, b"")),
        ("ok_reply", ((True, 0, None), 1, 2, 3, b"")),
        ("ok_reply", ([1, 0, None], 1, 2, 3, b"")),
        ("ok_reply", ((1, 0, 5), 1, 2, 3, b"")),
        ("ok_reply", ((1, 0, "k" * 2_000), 1, 2, 3, b"")),
        ("ok_reply", ((1, 0, None), -1, 2, 3, b"")),
        ("ok_reply", ((1, 0, None), 1, 2.0, 3, b"")),
        ("ok_reply", ((1, 0, None), 1, 2, 3, b"x" * 21)),
        ("ok_reply", ((1, 0, None), 1, 2, 3, "host")),
    ],
)
def test_what_is_not_usual_is_left_to_python(name, arguments):
    """None, no error and no guess."""
    assert getattr(extension, name)(*arguments) is None


@in_c
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ok_reply", ()),
        ("send_head", (1,)),
        ("take_replies", (b"",)),
        ("take_replies", ("text", 0, 1)),
        ("take_entries", (b"",)),
        ("take_entries", (bytearray(1), 1, {}, MESSAGE_FIELDS, Message, MESSAGE_FIELDS)),
        ("take_entries", (b"", 1, None, MESSAGE_FIELDS, Message, MESSAGE_FIELDS)),
        ("take_entries", (b"", 1, {}, ("topic",), Message, MESSAGE_FIELDS)),
        ("take_entries", (b"", 1, {}, MESSAGE_FIELDS, "Message", MESSAGE_FIELDS)),
        ("take_sends", (b"", 0, 1, 1, PEER, Message, ("topic",))),
        ("take_sends", (b"", 0, 1, 1, PEER, "Message", MESSAGE_FIELDS)),
        ("take_sends", (b"", "0", 1, 1, PEER, Message, MESSAGE_FIELDS)),
    ],
)
def test_wrong_arguments_are_type_errors(name, arguments):
    """They never come from a peer."""
    with pytest.raises(TypeError):
        getattr(extension, name)(*arguments)
