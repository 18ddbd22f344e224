"""What a request may cost before it is allowed: its size, the bytes parsed for it, the pieces.

The work is counted, not timed: ``python -m tests.hostile.siege`` measures it.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import sys

import attrs
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.access.permissions_file import parse_permissions
from hastore.access.secret import Secret
from hastore.access.signature import (
    AccessKey,
    is_signed_in_pieces,
    own_signature,
    own_signature_in_pieces,
    signed_fields,
)
from hastore.broker.access.node_access import NodeAccess
from hastore.broker.groups.consumer_processors import read_lock_request
from hastore.broker.groups.topic_config_manager import new_topic_config
from hastore.broker.port.remoting_connection import RemotingConnection
from hastore.broker.puts.send_message_processor import SEND_CODES
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.errors import FrameTooLargeError, ProtocolError
from hastore.message import Message
from hastore.wire import liberal_json
from hastore.wire.config_tables import SubscriptionGroupConfig
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.heartbeat_data import (
    GROUPS_MAX,
    KEPT_SIZE_MAX,
    ConsumerData,
    HeartbeatData,
    Subscription,
)
from hastore.wire.pieces import at_once
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import HEADER_SIZE_MAX, RemotingCommand, frame
from hastore.wire.request_sizes import (
    BODY_KINDS,
    LIST_SIZE_MAX,
    SMALL_SIZE_MAX,
    BodyKind,
    RequestSizes,
)
from hastore.wire.send_message import write_batch
from tests.support.nodes.access_keys import signed
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command

MIB = 1024 * 1024
MESSAGE_SIZE_MAX = 4 * MIB
RECEIVE_SIZE = 64 * 1024
SIZES = RequestSizes(MESSAGE_SIZE_MAX)
SIZE_MAX = {
    BodyKind.SMALL: SMALL_SIZE_MAX,
    BodyKind.LIST: LIST_SIZE_MAX,
    BodyKind.MESSAGE: MESSAGE_SIZE_MAX,
}
# A code of each kind, and one that is not known.
KINDS = [(200, SMALL_SIZE_MAX), (41, LIST_SIZE_MAX), (310, MESSAGE_SIZE_MAX), (9999, 64 * 1024)]


def read_in_pieces(reader, data, *, size=RECEIVE_SIZE):
    """Feed bytes as a socket does; return the commands, and how many bytes were kept at most."""
    commands, kept = [], 0
    for begin in range(0, len(data), size):
        reader.feed(data[begin : begin + size])
        while (command := reader.next_command()) is not None:
            commands.append(command)
        kept = max(kept, reader.buffered_size)
    return commands, kept


def test_the_sizes_are_those_of_the_docs():
    """Sends have large bodies, heartbeats and locks lists, and nothing else has either."""
    assert SEND_CODES | {36, 324, 325} == {
        code for code, kind in BODY_KINDS.items() if kind is BodyKind.MESSAGE
    }
    assert {code for code, kind in BODY_KINDS.items() if kind is BodyKind.LIST} == {34, 41, 42}


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize(("code", "size_max"), KINDS)
@pytest.mark.parametrize("piece", [7_000, RECEIVE_SIZE, 64 * MIB])
def test_a_body_is_kept_up_to_its_limit_and_skipped_above(code, size_max, piece, kind):
    """The next request is read as if nothing had been; the header is enough for the refusal."""
    after = RemotingCommand(code=907, opaque=2, serialize_type=kind)
    for size in (size_max, size_max + 1):
        request = RemotingCommand(code=code, opaque=1, body=bytes(size), serialize_type=kind)
        reader = FrameReader(16 * MIB, SIZES)
        stream = encode_command(request) + encode_command(after)
        (first, second), kept = read_in_pieces(reader, stream, size=piece)
        assert second == after
        assert reader.consumed == len(stream)
        assert reader.buffered_size == 0
        if size == size_max:
            assert first == request
        else:
            assert first.body == b""
            assert f"{size} bytes" in first.size_fault
            assert str(size_max) in first.size_fault
            assert kept <= piece + SMALL_SIZE_MAX


def test_a_refused_request_is_answered_when_its_last_byte_has_come():
    """An answer to a request that its client is still sending would come unexpected."""
    data = encode_command(RemotingCommand(code=41, body=bytes(16 * MIB - 3000)))
    reader = FrameReader(16 * MIB, SIZES)
    for part in (data[:200], data[200:-1]):
        reader.feed(part)
        assert reader.next_command() is None
        assert reader.buffered_size == 0
    reader.feed(data[-1:])
    assert reader.next_command().size_fault is not None


def json_header(code, size):
    begin = b'{"code":%d,"opaque":1,"extFields":{"a":"' % code
    return begin + b"x" * (size - len(begin) - 3) + b'"}}'


@pytest.mark.parametrize("begin", [b"", b" {", b'{"opaque":1,"code":310'])
def test_a_header_above_64_kib_begins_with_the_code_of_a_send(begin):
    """Any other one is refused before it is there; 128 KiB are the most for all."""
    for code in (*SEND_CODES, 36, 324, 325):
        for size in (SMALL_SIZE_MAX + 1, HEADER_SIZE_MAX):
            reader = FrameReader(16 * MIB, SIZES)
            commands, _ = read_in_pieces(reader, frame(0, json_header(code, size), b"body"))
            assert commands[0].code == code
            assert commands[0].size_fault is None
    for code in (11, 34, 41, 907, 9999):
        reader = FrameReader(16 * MIB, SIZES)
        commands, _ = read_in_pieces(reader, frame(0, json_header(code, SMALL_SIZE_MAX)))
        assert commands[0].code == code
        reader = FrameReader(16 * MIB, SIZES)
        large = frame(0, begin or json_header(code, SMALL_SIZE_MAX + 1))[4:]
        size = SMALL_SIZE_MAX + 1
        head = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + large[4:]
        reader.feed(head[:80].ljust(80))
        with pytest.raises(FrameTooLargeError, match=f"header of {size} bytes.*{SMALL_SIZE_MAX}"):
            reader.next_command()
    with pytest.raises(FrameTooLargeError, match=f"at most {HEADER_SIZE_MAX}"):
        read_in_pieces(FrameReader(16 * MIB), frame(0, json_header(310, HEADER_SIZE_MAX + 1)))


def test_a_header_that_names_two_codes_is_refused_by_the_one_that_counts():
    """The first code in its bytes lets it in, the last one is the request's."""
    header = json_header(310, SMALL_SIZE_MAX + 100)[:-1] + b',"code":41}'
    (command,), _ = read_in_pieces(FrameReader(16 * MIB, SIZES), frame(0, header, b"x"))
    assert command.code == 41
    assert f"a header of {len(header)} bytes" in command.size_fault


async def test_skipped_bytes_wait_for_their_turn_and_puts_do_not():
    """One client's refused body is received at a time, slowly; others send what they like."""
    target = InMemoryTarget()
    async with serving(target) as (server, address), raw_client(address) as client:
        async with raw_client(address) as attacker, server._processors.skipping._turn:
            refused = RemotingCommand(code=41, body=bytes(16 * MIB - 3000))
            await attacker.send(encode_command(refused)[:RECEIVE_SIZE])
            for number in range(10):
                assert (await client.ask(send_command(number))).code == 0
            assert server.statistics().buffered_size == 0


@pytest.mark.parametrize("is_one_way", [False, True])
async def test_a_client_is_told_the_limit_and_stays_connected(is_one_way):
    """A refused send is MESSAGE_ILLEGAL, as the store's refusal is; nothing was put."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        for code, size_max in KINDS:
            request = RemotingCommand(
                code=code, flag=2 * is_one_way, opaque=code, body=bytes(size_max + 1)
            )
            await client.send(request, RemotingCommand(code=907, opaque=1))
            if not is_one_way:
                answer = await client.receive()
                assert (answer.opaque, answer.code) == (code, 13 if code == 310 else 1)
                assert str(size_max) in answer.remark
            assert (await client.receive()).opaque == 1
    assert not any(target.counts.values())


async def test_a_batch_may_have_heads_and_properties_beside_a_messages_bytes():
    """Its messages' bodies together are limited by the store."""
    messages = [Message("T", bytes(1000), properties={"k": "v" * 500}) for _ in range(3_000)]
    body = write_batch(messages)
    assert MESSAGE_SIZE_MAX < len(body) <= 2 * MESSAGE_SIZE_MAX
    for code, fields in ((320, {}), (310, {"m": "true"})):
        request = send_command(ext_fields=fields, body=body)
        request.code = code
        async with serving(InMemoryTarget()) as (_, address), raw_client(address) as client:
            assert (await client.ask(request)).code == 0
            request.body = bytes(2 * MESSAGE_SIZE_MAX + 1)
            assert "the batch is larger than max_message_size" in (await client.ask(request)).remark


# -- JSON in pieces ------------------------------------------------------------------------------

values = st.recursive(
    st.integers() | st.booleans() | st.none() | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=30,
)


class TooLargeError(Exception):
    """A value is too large or too deep for such small windows."""


def in_windows(text, size=64):
    """Read a text through windows.  Raises ValueError, TooLargeError."""
    try:
        return at_once(liberal_json._Windows(text, None, size).whole())
    except ValueError as error:
        if "characters" in str(error):
            raise TooLargeError from error
        raise


@given(st.lists(values, max_size=5), st.sampled_from([None, 1]), st.integers(64, 80))
def test_json_is_read_through_windows_of_any_size(value, indent, size):
    """Whatever a window's end cuts: a number, a word, a string, a name, white space."""
    text = json.dumps(value, indent=indent)
    with contextlib.suppress(TooLargeError):
        assert in_windows(text, size) == value


@given(st.dictionaries(st.integers(0, 10**6), st.integers() | st.text(max_size=9), min_size=1))
@example(dict.fromkeys(range(100, 130), "x" * 7))
def test_bare_keys_are_read_in_each_window(value):
    """A stock master's table of offsets has one in each row."""
    rows = ",".join(f"{key}:{json.dumps(each)}" for key, each in value.items())
    text = f'{{"t":{{"a":{{{rows}}},"b":{{}}}}}}'
    expected = {str(key): each for key, each in value.items()}
    assert in_windows(text, 128) == {"t": {"a": expected, "b": {}}}


@given(st.binary(max_size=300) | values.map(lambda value: json.dumps([value] * 9).encode()[:-2]))
def test_any_text_is_read_or_refused_in_windows(data):
    """Never anything but a ValueError; what is no JSON is never read."""
    text = data.decode(errors="replace")
    try:
        read = in_windows(text)
    except (ValueError, RecursionError, TooLargeError):
        return
    assert read == json.loads(liberal_json._plain(text))


HEARTBEAT_ROW = (
    b'{"groupName":"g%d","subscriptionDataSet":[{"topic":"T%d","subString":"*","tagsSet":[]}]}'
)
MISUSED = {
    "empty lists": b'{"consumerGroup":"g","clientId":"c","mqSet":[' + b"[]," * 300_000 + b"[]]}",
    "empty objects": b'{"consumerGroup":"g","clientId":"c","mqSet":[' + b"{}," * 300_000 + b"{}]}",
    "no end": b'{"mqSet":[' + b"[]," * 300_000,
    "numbers": b'{"a":[' + b"1," * 500_000 + b"1]}",
    "lists in lists": b'{"a":[' + (b"[" + b"[]," * 30_000 + b"[]],") * 11 + b"0]}",
    "deep": b"[" * 1_000_000,
    "objects in objects": b'{"a":' * 180_000,
    "one string": b'{"a":"' + b"x" * 1_000_000 + b'"}',
    "bare keys": b"{" + b"1:[]," * 180_000 + b"2:1}",
    "spaces": b'{"a":' + b" " * 1_000_000 + b"1}",
}


@pytest.mark.parametrize("kind", MISUSED)
def test_a_mebibyte_of_json_is_read_in_pieces(kind):
    """No piece has more than a window, and the bytes that are read are those that are there."""
    sizes = []
    with contextlib.suppress(ProtocolError):
        sizes.extend(read_lock_request(MISUSED[kind]))
    assert sizes[0] == 0, "it waits for its turn first"
    assert max(sizes) <= liberal_json.WINDOW_SIZE
    assert sum(sizes) <= len(MISUSED[kind])


def locks(count):
    queues = [{"topic": f"T{n}", "brokerName": "b", "queueId": 0} for n in range(count)]
    return {"consumerGroup": "billing", "clientId": "c", "mqSet": queues}


async def test_a_long_lock_request_is_answered_in_pieces():
    """The answer is that of many short ones; each body is parsed once."""
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        turns = server._processors.reading
        for count in (0, 1, 200, 201, 16_000):
            body = json.dumps(locks(count)).encode()
            before = turns.size
            answer = await client.ask(RemotingCommand(code=41, body=body))
            wanted = locks(count)["mqSet"]
            assert answer.code == 0, answer.remark
            assert json.loads(answer.body)["lockOKMQSet"] == wanted
            read = turns.size - before
            if len(body) > liberal_json.TURN_SIZE:
                assert len(body) <= read <= len(body) + len(answer.body)
            else:
                assert not read
            assert (await client.ask(RemotingCommand(code=42, body=body))).code == 0
        assert turns.pieces > 50
        assert turns.size_max <= liberal_json.WINDOW_SIZE


async def test_a_long_heartbeat_is_read_in_pieces():
    """256 groups with many subscriptions each are one heartbeat."""
    rows = [HEARTBEAT_ROW % (n, n) for n in range(256)]
    body = b'{"clientID":"c","consumerDataSet":[' + b",".join(rows) + b'],"producerDataSet":[]}'
    assert len(body) > liberal_json.TURN_SIZE
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        assert (await client.ask(RemotingCommand(code=34, body=body))).code == 0
        assert server._processors.reading.size == len(body)
        assert len(server._processors.consumers.groups) == 256


def requests(*commands):
    """Return requests of a client, from code, body and fields of each."""
    return [
        RemotingCommand(code=code, opaque=number, body=json.dumps(body).encode(), ext_fields=fields)
        for number, (code, body, fields) in enumerate(commands)
    ]


async def answered(client, count):
    """Return the numbers of the next requests that are answered; skip notifications."""
    numbers = []
    while len(numbers) < count:
        if (answer := await client.receive()).is_response:
            assert answer.code == 0, answer.remark
            numbers.append(answer.opaque)
    return numbers


async def test_no_request_overtakes_a_long_heartbeat_of_its_connection():
    """Who leaves a group at once has left it, although the heartbeat waits for its turn."""
    topics = [{"topic": f"t{n:0100}"} for n in range(200)]
    rows = [{"groupName": "g", "subscriptionDataSet": topics}]
    leave = {"clientID": "c", "consumerGroup": "g"}
    heartbeat, unregister = requests(
        (34, {"clientID": "c", "consumerDataSet": rows}, {}), (35, {}, leave)
    )
    assert len(heartbeat.body) > liberal_json.TURN_SIZE
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        consumers = server._processors.consumers
        await client.send(heartbeat, unregister)
        assert await answered(client, 2) == [0, 1]
        assert not consumers.groups
        await client.send(unregister, heartbeat)
        assert await answered(client, 2) == [1, 0]
        assert list(consumers.groups) == ["g"]
        await client.send(unregister)
        assert await answered(client, 1) == [1]
        assert not consumers.groups
        (connection,) = server._connections
        assert connection.in_order_waiting == 0


async def test_no_request_overtakes_a_long_lock_request_of_its_connection():
    """A lock is released by the next request, and taken again by the one after it."""
    lock, unlock, again = requests((41, locks(2_000), {}), (42, locks(1), {}), (41, locks(1), {}))
    assert len(unlock.body) < liberal_json.TURN_SIZE < len(lock.body)
    async with (
        serving(InMemoryTarget()) as (_, address),
        raw_client(address) as client,
        raw_client(address) as other,
    ):
        others = json.dumps(locks(1) | {"clientId": "other"}).encode()
        await client.send(lock, unlock)
        assert await answered(client, 2) == [0, 1]
        answer = await other.ask(RemotingCommand(code=41, body=others))
        assert len(json.loads(answer.body)["lockOKMQSet"]) == 1
        assert (await other.ask(RemotingCommand(code=42, body=others))).code == 0
        await client.send(lock, unlock, again)
        assert await answered(client, 3) == [0, 1, 2]
        answer = await other.ask(RemotingCommand(code=41, body=others))
        assert json.loads(answer.body)["lockOKMQSet"] == []


@pytest.mark.parametrize("code", [34, 41, 42])
async def test_json_that_is_misused_costs_pieces_and_no_more(code):
    """A node without access keys reads what anybody sends; each body once, whatever is wrong."""
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        turns, sent = server._processors.reading, 0
        for body in MISUSED.values():
            answer = await client.ask(RemotingCommand(code=code, body=body))
            assert answer.code == 1
            sent += len(body)
            assert turns.size <= sent
        assert turns.size_max <= liberal_json.WINDOW_SIZE
        assert (await client.ask(RemotingCommand(code=200, body=b"[" * 16_777_000))).code == 1


async def test_a_large_header_waits_for_its_turn_unless_it_is_a_puts():
    """Its reader has parsed it, so the pause comes afterwards; properties are none of it."""
    small, large = {"k": "v" * 100}, {"k": "v" * 20_000}
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        async with server._processors.reading._turn:  # nobody else has a turn
            for properties in (small, large):
                # With a field that makes it unusual: read as any command.
                request = send_command(properties=properties, ext_fields={"z": "z"})
                assert (await client.ask(request)).code == 0
            await client.send(
                RemotingCommand(code=907, opaque=5, ext_fields={"k": "v" * 20_000}),
                RemotingCommand(code=907, opaque=6),
            )
            assert (await client.receive()).opaque == 5
            with trio.move_on_after(0) as scope:
                await client.receive()
            assert scope.cancelled_caught
        assert (await client.receive()).opaque == 6


# -- permission before bytes ---------------------------------------------------------------------

NO_RIGHTS = """\
accounts:
  - accessKey: the-empty
    secretKey: the-secret-of-all
    admin: false
"""


def guarded():
    table = parse_permissions(NO_RIGHTS.encode(), "acl.yml")
    return NodeAccess(real_env(), table, None, "acl.yml")


@pytest.mark.parametrize("code", [34, 41, 42])
async def test_a_body_is_not_read_before_its_signature(code):
    """No JSON is parsed for a key that is not proven, however it is sent."""
    body = json.dumps(locks(10_000)).encode()
    async with serving(InMemoryTarget(), access=guarded()) as (server, address):
        async with raw_client(address) as client:
            turns = server._processors.reading
            for key in (None, AccessKey("the-empty", Secret("another-secret"))):
                answer = await client.ask(signed(RemotingCommand(code=code, body=body), key))
                assert "access denied" in answer.remark
            assert (turns.pieces, turns.size) == (0, 0)


@pytest.mark.parametrize("code", [41, 42, 200, 1008, 28106])
async def test_a_body_is_not_read_for_a_key_that_may_never_send_it(code):
    """The header names the key, and the key says enough."""
    body = json.dumps(locks(1_000)).encode()[: 60 * 1024]
    key = AccessKey("the-empty", Secret("the-secret-of-all"))
    async with serving(InMemoryTarget(), access=guarded()) as (server, address):
        async with raw_client(address) as client:
            answer = await client.ask(signed(RemotingCommand(code=code, body=body), key))
            assert "access key the-empty needs " in answer.remark
            assert server._processors.reading.pieces == 0


async def test_a_signed_body_is_read_once_for_its_permission_and_its_work():
    """The guard reads the names, and the processor takes what the guard has read."""
    accounts = NO_RIGHTS + "    defaultTopicPerm: SUB\n    defaultGroupPerm: SUB\n"
    table = parse_permissions(accounts.encode(), "acl.yml")
    access = NodeAccess(real_env(), table, None, "acl.yml")
    key = AccessKey("the-empty", Secret("the-secret-of-all"))
    body = json.dumps(locks(10_000)).encode()
    async with serving(InMemoryTarget(), access=access) as (server, address):
        async with raw_client(address) as client:
            answer = await client.ask(signed(RemotingCommand(code=42, body=body), key))
            assert answer.code == 0, answer.remark
            assert server._processors.reading.size == len(body)


def test_a_signature_over_many_bytes_is_made_a_mebibyte_at_a_time():
    """It is the one that is made at once."""
    secret, fields = Secret("the-secret-of-all"), {"a": "1", "b": "2"}
    for size in (0, 1, MIB, MIB + 1, 3 * MIB + 5):
        body = bytes(size)
        given_fields = signed_fields(AccessKey("k", secret), fields, body)
        work = is_signed_in_pieces(secret, given_fields, body)
        assert max(work) <= MIB
        assert at_once(is_signed_in_pieces(secret, given_fields, body)) is True
        assert at_once(is_signed_in_pieces(secret, given_fields, body + b"x")) is False
        work = own_signature_in_pieces(secret, "n", 310, fields, body)
        assert max(work) <= MIB
        in_pieces = at_once(own_signature_in_pieces(secret, "n", 310, fields, body))
        assert in_pieces == own_signature(secret, "n", 310, fields, body)


# -- long answers --------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=3), values, max_size=4),
    st.dictionaries(st.text(max_size=9), st.integers(), max_size=4),
    st.integers(0, 3),
)
def test_an_object_written_in_pieces_has_the_same_bytes(value, rows, times):
    """Stock slaves read these tables: not one byte is different."""
    rows |= {f"{n}": n for n in range(times * 200)}
    names = list(rows)
    parts = {
        **value,
        "rows": liberal_json.Rows(rows, str),
        "few": liberal_json.Rows(rows, str, 3),
        "items": liberal_json.Items(names, len),
        "list": names,
    }
    texts = {name: str(row) for name, row in rows.items()}
    whole = {**value, "rows": texts, "few": texts, "items": list(map(len, names)), "list": names}
    assert liberal_json.all_rows(parts) == whole
    expected = json.dumps(whole, separators=(",", ":")).encode()
    assert at_once(liberal_json.dumps_in_pieces(parts)) == expected


@pytest.mark.parametrize("code", [21, 43, 201])
async def test_a_large_table_is_answered_in_pieces(code):
    """A request of a few bytes makes an answer of megabytes, some rows at a time."""
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        data, turns = server.data, server._processors.writing
        table = {21: data.topics, 43: data.offsets, 201: data.groups}[code]
        for n in range(5_000):
            data.topics.put(new_topic_config(f"T{n}", read_queue_nums=4, write_queue_nums=4))
            data.groups.put(SubscriptionGroupConfig(group=f"g{n}"))
            data.offsets.commit("g", f"T{n}", 0, n)
        answer = await client.ask(RemotingCommand(code=code))
        expected = json.dumps(table.to_dict(), separators=(",", ":")).encode()
        assert answer.body == expected
        assert turns.pieces >= 25
        assert turns.size_max < 100 * 1024


class Member:
    """A connection of a consumer, as its group sees it."""

    is_closed = False

    def __init__(self, number):
        self.peer = (f"10.0.{number // 250}.{number % 250}", 4711)

    def notify(self, command):
        pass


def join(server, members, subscriptions):
    """Have clients join the group billing, and return the body of each answer about it."""
    topics = [Subscription(topic=f"T{n}", expression="ü" * 20) for n in range(subscriptions)]
    data = ConsumerData(group="billing", subscriptions=tuple(topics))
    consumers = server._processors.consumers
    for number in range(members):
        heartbeat = HeartbeatData(client_id=f"c{number}", consumers=(data,))
        consumers.heartbeat(Member(number), heartbeat, "JAVA" * 1_000, 407)
    bodies = {38: {"consumerIdList": consumers.client_ids("billing")}}
    bodies[203] = liberal_json.all_rows(consumers.connections("billing"))
    assert len(bodies[203]["connectionSet"]) == members
    assert len(bodies[203]["subscriptionTable"]) == subscriptions
    return {code: json.dumps(body, separators=(",", ":")).encode() for code, body in bodies.items()}


@pytest.mark.parametrize(
    ("code", "members", "subscriptions", "pieces"),
    [
        (38, 200, 16, 0),
        (38, 1_000, 0, 6),
        (203, 200, 16, 0),
        (203, 1, 4_096, 256),
        (203, 900, 1, 6),
    ],
)
async def test_a_large_group_is_answered_in_pieces(code, members, subscriptions, pieces):
    """A small one at once, as its clients ask often; the answers are the same."""
    request = RemotingCommand(code=code, ext_fields={"consumerGroup": "billing"})
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        turns = server._processors.writing
        body = join(server, members, subscriptions)[code]
        answer = await client.ask(request)
        assert answer.code == 0
        assert answer.body == body
        assert turns.pieces == 0 if not pieces else turns.pieces >= pieces
        assert turns.size_max < 40 * 1024


async def test_what_a_group_keeps_of_a_client_is_short():
    """Otherwise few rows of an answer would have many bytes."""
    row = {"topic": "T", "expressionType": "x" * 256}
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [row]}]}
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        answer = await client.ask(RemotingCommand(code=34, body=json.dumps(body).encode()))
        assert answer.code == 1
        assert "expressionType has 256 characters" in answer.remark
        join(server, 1, 1)
        (group,) = server._processors.consumers.groups.values()
        assert [len(member.language) for member in group.members.values()] == [32]


def kept_size(value, seen):
    """Return the bytes of memory of a table, of the objects that are not in ``seen`` yet."""
    if id(value) in seen or isinstance(value, enum.Enum | RemotingConnection):
        return 0
    seen.add(id(value))
    parts = ()
    if isinstance(value, dict):
        parts = itertools.chain(value, value.values())
    elif isinstance(value, tuple | list | frozenset):
        parts = value
    elif attrs.has(type(value)):
        parts = (getattr(value, field.name) for field in attrs.fields(type(value)))
    return sys.getsizeof(value) + sum(kept_size(part, seen) for part in parts)


def largest_heartbeat(groups, text_of):
    """Return the largest heartbeat of ``groups`` that is accepted, with a topic more each time."""
    rows = [{"groupName": name, "subscriptionDataSet": []} for name in groups]
    kept = 0
    for number in itertools.count():
        topic, expression = f"t{number:05}", text_of(number)
        kept += Subscription(topic=topic, expression=expression).kept_size
        if kept > KEPT_SIZE_MAX:
            break
        row = {"topic": topic, "subString": expression, "subVersion": 1_700_000_000_000 + number}
        rows[number % len(rows)]["subscriptionDataSet"].append(row)
    return {"clientID": "c" * 200, "consumerDataSet": rows}


@pytest.mark.parametrize("text_of", [lambda _: "*", lambda _: "x" * 4_096, lambda _: "x\U0001f600"])
async def test_what_heartbeats_keep_of_a_connection_is_bounded(text_of):
    """Subscriptions, names and groups together; and another member of the groups costs less."""
    groups = [f"{number:0200}" for number in range(GROUPS_MAX)]
    limits = RemotingConfig(groups_per_owner_max=10_000, new_groups_per_minute_max=10_000)
    async with serving(InMemoryTarget(), limits) as (server, address):
        consumers, before = server._processors.consumers, 0
        async with raw_client(address) as one, raw_client(address) as two:
            for client, names, size_max in (
                (one, groups[:1], 160 * 1024),
                (two, groups, 400 * 1024),
                (one, groups, 48 * 1024),
            ):
                body = largest_heartbeat(names, text_of)
                await client.send(RemotingCommand(code=34, body=json.dumps(body).encode()))
                assert await answered(client, 1) == [0]
                size = kept_size((consumers.groups, consumers._clients), set())
                assert size - before < size_max
                before = size
            row = {"topic": "one-more", "subString": text_of(0)}
            body["consumerDataSet"][0]["subscriptionDataSet"].append(row)
            await one.send(RemotingCommand(code=34, body=json.dumps(body).encode()))
            while not (answer := await one.receive()).is_response:
                pass
            assert answer.code == 1
            assert "bytes of memory; at most 131072: use more clients" in answer.remark


async def test_what_a_connection_said_of_groups_that_it_left_is_not_kept():
    """Another connection, which says little, is a member of all of them."""
    groups = [f"g{number}" for number in range(16)]
    large = largest_heartbeat(["g"], lambda _: "x" * 4_096)["consumerDataSet"][0]
    rows = [{"topic": each["topic"]} for each in large["subscriptionDataSet"]]
    async with serving(InMemoryTarget()) as (server, address):
        consumers = server._processors.consumers
        async with raw_client(address) as one, raw_client(address) as two:

            async def beat(client, *consumer_data):
                body = {"clientID": "c", "consumerDataSet": consumer_data}
                await client.send(RemotingCommand(code=34, body=json.dumps(body).encode()))
                assert await answered(client, 1) == [0]

            small = [{"groupName": name, "subscriptionDataSet": rows} for name in groups]
            await beat(two, *small)
            before = kept_size((consumers.groups, consumers._clients), set())
            for name in groups:
                await beat(one, {**large, "groupName": name})
                await beat(two, *small)
            size = kept_size((consumers.groups, consumers._clients), set())
            assert size - before < 1.5 * KEPT_SIZE_MAX
