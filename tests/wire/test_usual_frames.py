"""Usual frames: the same messages, replies and bytes as those of the general code.

A reader may leave a frame to the general code; what it does read must be what that would have read,
in any stream: mutated, cut off, with numbers as text, in any order, twice, escaped, huge.  The
reader in C leaves what its twin leaves.
"""

import json
import struct
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.errors import ConfigError
from hastore.message import Message
from hastore.native.in_use import extension
from hastore.wire import usual_frames
from hastore.wire.frame_reader import encode_command, encode_head
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import HEADER_SIZE_MAX, RemotingCommand, frame
from hastore.wire.send_message import MESSAGE_FIELDS, stored_fields, write_send_fields
from tests.hostile.corpus_files import recorded
from tests.support.what_is_read import (
    FRAME_SIZE_MAX,
    PEER,
    take_nothing,
    what_is_answered,
    what_is_sent,
)

SENDS = [usual_frames.take_sends_in_python]
if extension is not None:
    SENDS.append(usual_frames.take_sends_in_c)
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


def edited_frame(header, body, old="", new="", *, size_change=0):
    """A frame with something in its header replaced, or another frame size."""
    data = bytearray(frame(0, header.replace(old, new, 1).encode("latin-1"), body))
    data[:4] = (int.from_bytes(data[:4]) + size_change).to_bytes(4)
    return bytes(data)


java_frame = partial(edited_frame, JAVA, b"body")
reply_frame = partial(edited_frame, REPLY, b"")


PROPERTIES = "KEYS\\u0001k-1\\u0002UNIQ_KEY\\u00017F00\\u0002"
HEADER_ROOM = HEADER_SIZE_MAX - len(JAVA)


@pytest.mark.parametrize("take_sends", SENDS)
@given(streams(send_frames))
@example(frame(0, JAVA.encode(), b"body"))
@example(frame(0, JAVA.replace("orders", "\xe9").encode(), b""))
@example(
    frame(0, JAVA.replace("k-1", "\xe9").encode("latin-1"), b"") + frame(0, JAVA.encode(), b"")
)
@example(frame(0, JAVA.replace('"b"', '"\\u0062"').encode(), b""))
@example(frame(0, JAVA.encode() + b"\n", b"") + b"\0\0\0")
@example(frame(0, JAVA.replace("KEYS", "A\\u0001b\\u0001c\\u0002KEYS").encode(), b""))
@example(frame(0, JAVA.replace("7F00", "\\u0001").encode(), b""))
def test_any_stream_of_requests_is_read_as_by_the_general_code(take_sends, stream):
    """Same messages and reply addresses, same refusals, same error at the same place."""
    assert what_is_sent(stream, take_sends) == what_is_sent(stream, take_nothing)


@in_c
@given(streams(send_frames), st.sampled_from([0] * 9 + [1, 500]))
@example(frame(0, JAVA.replace('"opaque":7', '"opaque":-07').encode()), 0)
@example(frame(0, JAVA.replace('"opaque":7', '"opaque":-0').encode()), 0)
@example(frame(0, JAVA.replace("7F00\\u0002", "7F00").encode()), 0)
@example(frame(0, JAVA.replace("7F00\\u0002", "7F00\\u0002x").encode()), 0)
@example(frame(0, JAVA.replace("KEYS", "").encode()), 0)
@example(java_frame(PROPERTIES, ""), 0)
@example(java_frame(PROPERTIES, "UNIQ_KEY\\u0001a\\u0002UNIQ_KEY\\u0001b"), 0)
@example(java_frame(PROPERTIES, "UNIQ_KEY2\\u0001a"), 0)
@example(java_frame() + java_frame("orders", "order"), 0)
@example(java_frame('"f":"0"', '"f":"1"'), 0)
@example(java_frame('"h":"0"', '"h":"5"'), 0)
@example(java_frame('"j":"0"', '"j":"2"'), 0)
@example(frame(0, JAVA.replace('"e":"3"', '"e":"-3"').encode()), 0)
def test_any_stream_of_requests_is_read_alike_by_both(stream, position):
    """The same requests, up to the same place."""
    limits = position, 3, FRAME_SIZE_MAX, PEER
    expected = usual_frames.take_sends_in_python(stream, *limits)
    assert usual_frames.take_sends_in_c(stream, *limits) == expected


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
    assert take_sends(one, 0, 0, 4096, PEER) == ([], 0)
    assert take_sends(one, 0, -1, 4096, PEER) == ([], 0)
    assert take_sends(one, 0, 3, len(one) - 5, PEER) == ([], 0)
    assert len(take_sends(one, 0, 3, len(one) - 4, PEER)[0]) == 1
    assert take_sends(one[:-1], 0, 3, 4096, PEER) == ([], 0)


@pytest.mark.parametrize("take_sends", SENDS)
@pytest.mark.parametrize(
    ("stream", "is_usual"),
    [
        (java_frame('"opaque":7', '"opaque":999999999'), True),
        (java_frame('"opaque":7', '"opaque":1000000000'), False),
        (java_frame('"opaque":7', '"opaque":-1'), True),
        (java_frame('"opaque":7', '"opaque":0'), True),
        (java_frame('"opaque":7', '"opaque":07'), False),
        (java_frame('"m":"false"', '"m":"true"'), False),
        (java_frame('"e":"3"', '"e":"-999999999"'), True),
        (java_frame('"e":"3"', '"e":"1000000000"'), False),
        (java_frame('"f":"0"', '"f":"999999999"'), True),
        (java_frame('"f":"0"', '"f":"-1"'), False),
        (java_frame("1700000000123", "9" * 18), True),
        (java_frame("1700000000123", "9" * 19), False),
        (java_frame('"h":"0"', '"h":"1000000000"'), False),
        (java_frame('"j":"0"', '"j":"1000000000"'), False),
        (java_frame("orders", "or ders\x7f"), True),
        (java_frame("orders", "orders\x1f"), False),
        (java_frame("orders", "orders\xe9"), False),
        (java_frame("}", "} "), False),
        (java_frame(":409}", ":409}}"), False),
        (java_frame(":409}", ":409} "), False),
        (java_frame(PROPERTIES, "k\\u0001" + "v" * (65_536 - 7)), True),
        (java_frame(PROPERTIES, "k\\u0001" + "v" * (65_536 - 6)), False),
        (java_frame("group", "group" + "g" * HEADER_ROOM), True),
        (java_frame("group", "group" + "g" * (HEADER_ROOM + 1)), False),
        (java_frame(size_change=-4), True),
        (java_frame(size_change=-5), False),
    ],
)
def test_the_edges_of_what_is_usual(take_sends, stream, is_usual):
    """The last value within each limit, the first one outside."""
    sends, end = take_sends(stream, 0, 1, 2 * HEADER_SIZE_MAX, PEER)
    assert len(sends) == is_usual
    assert end == is_usual * (4 + int.from_bytes(stream[:4]))


# -- replies -------------------------------------------------------------------------------------


@given(streams(reply_frames))
@example(frame(0, REPLY.encode()))
@example(frame(0, REPLY.replace('"flag":1', '"flag":1,"remark":""').encode()))
@example(frame(0, REPLY.replace('"3"', "-1").encode()) + b"\0")
def test_any_stream_of_replies_is_read_as_by_the_general_code(stream):
    """Same results, same errors, same command for a request that is no send."""
    assert what_is_answered(stream, usual_frames.take_replies) == what_is_answered(
        stream, take_nothing
    )


@given(st.binary(max_size=80), st.integers(0, 90), st.integers(-1, 100))
def test_random_bytes_are_no_usual_replies(data, position, size_max):
    """Nothing is read from them."""
    assert usual_frames.take_replies(data, position, size_max) == ([], position)


def test_usual_replies_are_taken():
    """With the UNIQ_KEY of hastore's client, and of the C++ client."""
    stream = frame(0, REPLY.encode()) + recorded("to_client")["stock_heart_beat_0"]
    first, second = usual_frames.take_replies(stream, 0, 4096)[0]
    assert first == (7, "7F00000100002A9F000000004001F3C8", 3, 17, 0)
    assert second == (2, "7F0000010000A42300000000000000D0", 1, 0, len(REPLY) + 8)


@pytest.mark.parametrize(
    ("stream", "is_usual"),
    [
        (reply_frame(), True),
        (reply_frame(size_change=-1), False),
        (reply_frame('"17"', f'"{"9" * 18}"'), True),
        (reply_frame('"17"', f'"{"9" * 19}"'), False),
        (reply_frame('"3"', '"999999999"'), True),
        (reply_frame('"3"', '"1000000000"'), False),
        (reply_frame("7F00000100002A9F000000004001F3C8", ""), False),
        (reply_frame('"code":0', '"code":1'), False),
        (reply_frame("PYTHON", "P" * 3_900), False),
    ],
)
def test_the_edges_of_what_a_usual_reply_is(stream, is_usual):
    """The last value within each limit, the first one outside; frames of 4 KiB at most."""
    replies, end = usual_frames.take_replies(stream, 0, 4_096)
    assert len(replies) == is_usual
    assert end == is_usual * len(stream)


# -- writing -------------------------------------------------------------------------------------

any_texts = st.text('aZ \x00\x01\x02\x1f"\\\n\t\x7f\u00e9\u4e2d', max_size=9) | st.just("x" * 5_000)
no_marks = st.text('aZ \x00\x1f"\\\n\x7f\u00e9\u4e2d', max_size=9)
any_properties = st.none() | st.dictionaries(no_marks.filter(len), no_marks, max_size=4)
any_numbers = st.integers(-3, 300) | st.sampled_from([2**31, 2**63, -(2**63), 10**18, 10**30])


@given(
    opaque=st.integers(-(2**31), 2**31 - 1),
    serialize_type=st.sampled_from(SerializeType),
    transaction_id=st.none() | any_texts,
    physic_offset=st.integers(0, 2**62),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    store_host=st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", bytes(range(20))]),
)
def test_any_reply_equals_the_general_one(  # noqa: PLR0917 - what hypothesis varies
    opaque, serialize_type, transaction_id, physic_offset, queue_id, queue_offset, store_host
):
    """In both header forms, for any transaction id."""
    reply_to = opaque, serialize_type, transaction_id
    found = usual_frames.ok_reply(reply_to, physic_offset, queue_id, queue_offset, store_host)
    message_id = f"{store_host.hex().upper()}{physic_offset:016X}"
    fields = stored_fields(message_id, queue_id, queue_offset, transaction_id)
    assert found == encode_command(
        RemotingCommand(
            code=0, opaque=opaque, flag=1, ext_fields=fields, serialize_type=serialize_type
        )
    )


@given(
    topic=any_texts,
    body=st.binary(max_size=9),
    properties=any_properties,
    numbers=st.tuples(*[any_numbers] * 4),
    queue_id=any_numbers,
    group=any_texts,
    unique_key=st.none() | st.just("7F00"),
    serialize_type=st.sampled_from(SerializeType),
)
def test_any_request_equals_the_general_one(  # noqa: PLR0917 - what hypothesis varies
    topic, body, properties, numbers, queue_id, group, unique_key, serialize_type
):
    """In both header forms; a new UNIQ_KEY is the first property."""
    flag, sys_flag, times, born_ms = numbers
    message = Message(
        topic,
        body,
        properties=properties,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=times,
    )
    found = usual_frames.send_head(
        message,
        serialize_type=serialize_type,
        opaque=7,
        queue_id=queue_id,
        born_timestamp_ms=born_ms,
        group=group,
        unique_key=unique_key,
    )
    text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    if unique_key is not None:
        text = f"UNIQ_KEY\x01{unique_key}\x02{text}"
    fields = write_send_fields(
        message, text, queue_id=queue_id, born_timestamp_ms=born_ms, group=group
    )
    command = RemotingCommand(code=310, opaque=7, ext_fields=fields, serialize_type=serialize_type)
    assert found == encode_head(command, len(body))


def test_topic_and_properties_have_65536_characters_at_most():
    """One more is a ConfigError."""
    message = Message("orders", b"", properties={"k": "v" * (65_536 - len("orders") - 3)})
    assert len(usual_frames.properties_text(message, None)) == 65_536 - len("orders")
    message.topic = "orders2"
    with pytest.raises(ConfigError, match="65537 characters do not fit"):
        usual_frames.properties_text(message, None)


# -- what the caller in Python gives -------------------------------------------------------------


@in_c
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((b"", 0, 1, 1, PEER, "Message", MESSAGE_FIELDS), TypeError),
        ((b"", "0", 1, 1, PEER, Message, MESSAGE_FIELDS), TypeError),
        (("text", 0, 1, 1, PEER, Message, MESSAGE_FIELDS), TypeError),
        ((b"", 0, 1, 1, PEER, Message, list(MESSAGE_FIELDS)), TypeError),
        ((b"", 0, 1, 1, PEER, Message, ("topic",)), ValueError),
        ((b"", -1, 1, 1, PEER, Message, MESSAGE_FIELDS), ValueError),
        ((frame(0, JAVA.encode()), 0, 1, 4096, PEER, Message, ("no",) * 10), AttributeError),
        ((frame(0, JAVA.encode()), 0, 1, 4096, PEER, Message, (7,) * 10), TypeError),
    ],
)
def test_wrong_arguments_are_errors(arguments, error):
    """They never come from a peer."""
    with pytest.raises(error):
        extension.take_sends(*arguments)
