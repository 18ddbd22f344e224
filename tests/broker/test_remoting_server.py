"""The client port over loopback: answers, pipelining, limits, bad peers and shutdown."""

from __future__ import annotations

import struct
from functools import reduce

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.broker.puts.send_message_processor import SendMessageProcessor
from hastore.broker.reply import ready
from hastore.config import RemotingConfig
from hastore.errors import ProtocolError
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import write_batch
from tests.patience import WITHIN_S
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.waiting import eventually


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_a_message_is_stored_and_answered_in_its_serialize_type(serialize_type):
    """The answer has the request's number and says where the message is stored."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        local = client.sock.getsockname()
        response = await client.ask(
            send_command(
                7,
                queue_id=3,
                properties={"KEYS": "k", "UNIQ_KEY": "U"},
                serialize_type=serialize_type,
            )
        )
    assert response == RemotingCommand(
        code=0,
        opaque=7,
        flag=1,
        ext_fields={
            "msgId": "7F00000100002A9F0000000000000000",
            "queueId": "3",
            "queueOffset": "0",
            "transactionId": "U",
        },
        serialize_type=serialize_type,
    )
    assert target.messages == [
        Message(
            "T",
            b"body",
            properties={"KEYS": "k", "UNIQ_KEY": "U", "CLUSTER": "DefaultCluster"},
            queue_id=3,
            born_timestamp_ms=1_700_000_000_000,
            born_host=local,
        )
    ]


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutMessageStatus.PUT_OK, 0),
        (PutMessageStatus.FLUSH_DISK_TIMEOUT, 10),
        (PutMessageStatus.SLAVE_NOT_AVAILABLE, 11),
        (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, 12),
        (PutMessageStatus.MESSAGE_ILLEGAL, 13),
        (PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, 13),
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutMessageStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutMessageStatus.CREATE_MAPPED_FILE_FAILED, 1),
        (PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, 1),
        (PutMessageStatus.UNKNOWN_ERROR, 1),
    ],
)
async def test_each_status_has_its_code_and_msg_id_only_if_stored(status, code, serialize_type):
    """The codes are RocketMQ's; a status other than PUT_OK comes with its name and its reason."""
    target = InMemoryTarget(answer=status, reason=f"because {status.value}")
    async with serving(target) as (_, address), raw_client(address) as client:
        response = await client.ask(send_command(serialize_type=serialize_type))
    assert response.code == code
    assert ("msgId" in response.ext_fields) is status.stored
    assert ("queueOffset" in response.ext_fields) is status.stored
    if code:
        assert response.remark == f"because {status.value}"
        assert response.ext_fields["putStatus"] == status.value


async def test_a_batch_is_stored_together_and_answered_once():
    """The answer to SEND_BATCH_MESSAGE has the ids of all its messages."""
    target = InMemoryTarget()
    body = write_batch([Message("T", b"1", properties={"n": "1"}), Message("T", b"2", flag=5)])
    async with serving(target) as (_, address), raw_client(address) as client:
        command = send_command(body=body, queue_id=2)
        command.code = 320
        response = await client.ask(command)
    assert response.ext_fields["msgId"] == (
        "7F00000100002A9F0000000000000000,7F00000100002A9F0000000000000064"
    )
    assert target.batches == [2]
    assert [(m.body, m.properties, m.flag, m.queue_id) for m in target.messages] == [
        (b"1", {"n": "1", "CLUSTER": "DefaultCluster"}, 0, 2),
        (b"2", {"CLUSTER": "DefaultCluster"}, 5, 2),
    ]


async def test_the_long_form_of_the_cpp_client_is_accepted():
    """SEND_MESSAGE 10 has spelled-out fields, numbers and ``"0"`` as a boolean."""
    target = InMemoryTarget()
    fields = {
        "producerGroup": "g",
        "topic": "T",
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "WAIT\x01false\x02",
        "batch": "0",
        "Signature": "x",
        "AccessKey": "",
    }
    async with serving(target) as (_, address), raw_client(address) as client:
        response = await client.ask(RemotingCommand(code=10, ext_fields=fields, remark=""))
    assert response.code == 0
    assert not target.messages[0].wait_store_msg_ok


async def test_one_way_requests_get_no_answer():
    """Neither accepted nor refused ones, sends or others."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        await client.send(
            send_command(1, flag=2),
            send_command(2, flag=2, ext_fields={"e": "x"}),
            RemotingCommand(code=999, opaque=3, flag=2),
            RemotingCommand(code=0, opaque=4, flag=1),
        )
        response = await client.ask(RemotingCommand(code=35, opaque=5))
        assert response.opaque == 5
    assert len(target.messages) == 1


async def test_a_one_way_send_is_in_flight_until_it_is_decided():
    """It counts towards the in-flight limit, like any other send."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address), raw_client(address) as client:
        await client.send(send_command(1, flag=2))
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().in_flight == 1
        target.release()
        assert server.statistics().in_flight == 0
        assert (await client.ask(RemotingCommand(code=35, opaque=5))).opaque == 5


async def test_messages_without_a_queue_go_to_each_queue_in_turn():
    """A queue id of -1 means any queue."""
    target = InMemoryTarget()
    async with (
        serving(target, RemotingConfig(default_topic_queue_nums=3)) as (_, address),
        raw_client(address) as client,
    ):
        taken = [
            (await client.ask(send_command(queue_id=-1))).ext_fields["queueId"] for _ in range(6)
        ]
    assert sorted(taken) == ["0", "0", "1", "1", "2", "2"]
    assert taken[:3] == taken[3:]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"ext_fields": {"g": "x"}}, 13, "ext field g is not an integer"),
        ({"properties": {"TRAN_MSG": "true"}}, 16, "transactional"),
        ({"ext_fields": {"m": "true"}}, 13, "batch entry at byte 0"),
    ],
)
async def test_an_invalid_send_is_refused_and_the_connection_stays_open(changes, code, remark):
    """A malformed or unsupported send is answered with a reason."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        response = await client.ask(send_command(1, **changes))
        assert response.code == code
        assert remark in response.remark
        assert (await client.ask(send_command(2))).code == 0
    assert len(target.messages) == 1


async def test_a_thousand_requests_are_answered_in_any_order():
    """They wait at once on one connection, and each answer has its request's number."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address), raw_client(address) as client:
        await client.send(*(send_command(number, body=b"%d" % number) for number in range(1000)))
        await trio.testing.wait_all_tasks_blocked()
        while len(target.held) < 1000:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert server.statistics().in_flight == 1000
        target.held.reverse()
        target.release()
        answers = [await client.receive() for _ in range(1000)]
    assert [answer.opaque for answer in answers] == list(range(999, -1, -1))
    assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(999, -1, -1))


async def test_a_connection_is_not_read_above_the_in_flight_limit():
    """While ``in_flight_max`` requests are undecided no other is accepted, and none is lost."""
    target = InMemoryTarget(answer=None)
    async with (
        serving(target, RemotingConfig(in_flight_max=4)) as (server, address),
        raw_client(address) as client,
    ):
        await client.send(*(send_command(number) for number in range(10)))
        for expected in (4, 4, 2):
            while len(target.held) < expected:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert len(target.held) == server.statistics().in_flight == expected
            target.release()
        answers = [await client.receive() for _ in range(10)]
    assert [answer.opaque for answer in answers] == list(range(10))


async def test_a_peer_that_reads_no_replies_is_not_read_either():
    """Memory stays bounded, and others are served."""
    target = InMemoryTarget(keep=False)
    async with (
        serving(target, RemotingConfig(output_size_max=20_000)) as (_, address),
        raw_client(address) as stalled,
        raw_client(address) as other,
    ):
        stalled.sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        request = encode_command(send_command(body=b"")) * 100
        async with trio.open_nursery() as nursery:

            async def send_on():
                while True:
                    await stalled.send(request)

            nursery.start_soon(send_on)
            await trio.testing.wait_all_tasks_blocked(0.1)  # the kernel's buffers are full
            count = target.counts[PutMessageStatus.PUT_OK]
            assert (await other.ask(send_command(2))).opaque == 2
            assert target.counts[PutMessageStatus.PUT_OK] == count + 1
            nursery.cancel_scope.cancel()


async def test_silent_connections_above_the_limit_are_closed(autojump_clock):
    """Existing connections are served, and a freed place can be taken."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    target = InMemoryTarget()
    async with serving(target, RemotingConfig(connections_max=2)) as (server, address):
        async with raw_client(address) as first, raw_client(address) as second:
            assert (await first.ask(send_command(1))).code == 0
            assert (await second.ask(send_command(1))).code == 0
            async with raw_client(address) as third:
                await third.closed()
            assert (await first.ask(send_command(2))).code == 0
            assert server.statistics().refused_total == 1
            assert "2 clients are connected already" in server.statistics().refused[0][1]
        await eventually(lambda: not server.statistics().connections)
        async with raw_client(address) as fourth:
            assert (await fourth.ask(send_command(1))).code == 0


async def test_a_silent_peer_is_closed():
    """It has sent nothing for the idle time-out, and the statistics name that reason."""
    target = InMemoryTarget()
    async with (
        serving(target, RemotingConfig(idle_timeout_ms=20)) as (server, address),
        raw_client(address) as client,
    ):
        with trio.fail_after(WITHIN_S):
            await client.closed()
        assert "for 20 ms" in server.statistics().refused[0][1]


async def test_a_slow_trickle_does_not_keep_a_connection_alive(autojump_clock):
    """Bytes that never become a request do not reset the idle time-out."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    target = InMemoryTarget()
    config = RemotingConfig(idle_timeout_ms=1_000)
    async with serving(target, config) as (_, address), raw_client(address) as client:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:

                async def trickle():
                    for byte in encode_command(send_command(body=bytes(1000))):
                        try:
                            await client.send(bytes([byte]))
                        except OSError:
                            return
                        await trio.sleep(0.1)

                nursery.start_soon(trickle)
                await client.closed()
                nursery.cancel_scope.cancel()
    assert target.messages == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of 1195725856 bytes"),
        (struct.pack("!II", 0xFFFFFFFF, 0), "a frame of 4294967295 bytes"),
        (struct.pack("!II", 200 << 20, 20), "a frame of 209715200 bytes"),
        (struct.pack("!II", 8, 0x07000004) + b"abcd", "serialize type 7"),
        (struct.pack("!II", 8, 4) + b"abcd", "the header is not JSON"),
        (struct.pack("!II", 8, 5) + b"abcd", "a header of 5 bytes in a frame of 8"),
        (struct.pack("!II", 0, 5), "no room for its header word"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_peer_that_breaks_the_protocol_is_closed_with_a_reason(data, reason):
    """The reason stays in the statistics; other connections go on."""
    target = InMemoryTarget()
    async with (
        serving(target) as (server, address),
        raw_client(address) as good,
        raw_client(address) as bad,
    ):
        assert (await good.ask(send_command(1))).code == 0
        await bad.send(data)
        await bad.closed()
        assert reason in server.statistics().refused[0][1]
        assert (await good.ask(send_command(2))).code == 0
    assert len(target.messages) == 2


async def test_requests_before_a_broken_frame_are_stored():
    """The frames after it are not read."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as bad:
        await bad.send(send_command(1), b"\xff" * 20, send_command(2))
        await bad.closed()
    assert len(target.messages) == 1


async def test_incomplete_requests_of_all_peers_have_one_limit():
    """Many peers with half a frame each cannot fill the memory: the largest one is closed."""
    target = InMemoryTarget()
    frame = encode_command(send_command(body=bytes(60_000)))
    async with (
        serving(target, RemotingConfig(buffered_size_max=100_000)) as (server, address),
        raw_client(address) as small,
        raw_client(address) as large,
        raw_client(address) as other,
    ):
        await small.send(frame[:20_000])
        await large.send(frame[:55_000])
        while server.statistics().buffered_size < 75_000:
            await trio.testing.wait_all_tasks_blocked()
        await other.send(frame[:30_000])
        await large.closed()
        statistics = server.statistics()
        assert statistics.buffered_size == 50_000
        assert "its address the most, this connection 55000" in statistics.refused[0][1]
        for client, sent in ((small, 20_000), (other, 30_000)):
            await client.send(frame[sent:])
            assert (await client.receive()).code == 0
        assert server.statistics().buffered_size == 0


async def test_a_large_frame_arrives_whole():
    """It is as large as the limit allows and comes in many pieces; one byte more is refused."""
    target = InMemoryTarget()
    body = bytes(range(256)) * (16 * 1024)
    config = RemotingConfig(frame_size_max=len(encode_command(send_command(body=body))) - 4)
    async with serving(target, config) as (_, address), raw_client(address) as client:
        assert (await client.ask(send_command(body=body))).code == 0
        await client.send(encode_command(send_command(body=body + b"x"))[:1_000])
        await client.closed()
    assert [message.body for message in target.messages] == [body]


async def test_requests_of_a_closed_connection_can_still_be_decided():
    """No answer is sent, and another connection is served."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address):
        async with raw_client(address) as client:
            client.sock.setsockopt(
                trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            await client.send(*(send_command(number) for number in range(5)))
            while len(target.held) < 5:
                await trio.testing.wait_all_tasks_blocked()
        await eventually(lambda: not server.statistics().connections)
        target.release()
        async with raw_client(address) as other:
            await other.send(send_command(9))
            while not target.held:
                await trio.testing.wait_all_tasks_blocked()
            target.release()
            assert (await other.receive()).opaque == 9


async def test_a_half_closed_peer_gets_its_answers():
    """The connection is closed after the last one."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address), raw_client(address) as client:
        await client.send(send_command(1), send_command(2))
        client.sock.shutdown(trio.socket.SHUT_WR)
        while len(target.held) < 2:
            await trio.testing.wait_all_tasks_blocked()
        target.release()
        assert [(await client.receive()).opaque for _ in range(2)] == [1, 2]
        assert await client.receive() is None


async def test_a_reply_to_a_peer_that_has_gone_closes_its_connection():
    """The peer half-closes first, so its end is noticed only when the answer is sent."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address):
        async with raw_client(address) as client:
            client.sock.setsockopt(
                trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            await client.send(send_command(1))
            client.sock.shutdown(trio.socket.SHUT_WR)
            while not target.held:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().connections == 1
        target.release()
        with trio.fail_after(WITHIN_S):
            while server.statistics().connections:
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert server.statistics().refused_total == 0


def _answer_later(server, connection):
    connection.answer_later(ready(_UNFIT))


def _notify(server, connection):
    assert not connection.notify(_UNFIT)


def _decide(server, _connection):
    server._target.release()


_UNFIT = RemotingCommand(code=40_000, serialize_type=SerializeType.ROCKETMQ)


@pytest.mark.parametrize("way", [_answer_later, _notify, _decide])
async def test_an_answer_that_cannot_be_encoded_ends_its_own_connection_only(way, monkeypatch):
    """An answer in its turn, a request of the node, and the reply to a put."""

    def unfit(_processor, _request):
        return encode_command(_UNFIT)

    monkeypatch.setattr(SendMessageProcessor, "reply_frame", unfit)
    target = InMemoryTarget(answer=None)
    async with (
        serving(target) as (server, address),
        raw_client(address) as client,
        raw_client(address) as other,
    ):
        await client.send(send_command(1))
        await eventually(lambda: target.held)
        (connection,) = (each for each in server._connections if each.in_flight)
        way(server, connection)
        await client.closed()
        statistics = server.statistics()
        assert statistics.refused_total == 1
        assert "does not fit a binary header" in statistics.refused[0][1]
        assert (await other.ask(RemotingCommand(code=35, opaque=5))).opaque == 5
        target.release()


@pytest.mark.parametrize(
    "changes",
    [
        {"opaque": 1 << 31, "serialize_type": SerializeType.ROCKETMQ},
        {"code": 40_000, "serialize_type": SerializeType.ROCKETMQ},
        {"ext_fields": {"\ud800": "x"}, "serialize_type": SerializeType.ROCKETMQ},
        {"ext_fields": {"x": reduce(lambda inner, _: [inner], range(100_000), [])}},
    ],
)
def test_what_cannot_be_encoded_is_a_protocol_error(changes):
    """No other error: it is what a connection ends with."""
    with pytest.raises(ProtocolError):
        encode_command(RemotingCommand(**{"code": 1, **changes}))


async def test_shut_down_answers_requests_in_flight_and_ends():
    """No later request is accepted, and ``run`` returns."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address), raw_client(address) as client:
        await client.send(send_command(1))
        while not target.held:
            await trio.testing.wait_all_tasks_blocked()
        server.shut_down(5.0)
        await client.send(send_command(2))
        await trio.testing.wait_all_tasks_blocked()
        target.release(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        response = await client.receive()
        assert (response.opaque, response.code) == (1, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        await client.closed()
        assert server.statistics().connections == 0
    assert len(target.messages) == 1


async def test_shut_down_ends_after_the_grace_time(autojump_clock):
    """Undecided requests delay it for that long at most."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (server, address), raw_client(address) as client:
        await client.send(send_command(1))
        while not target.held:
            await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        server.shut_down(5.0)
        await client.closed()
        assert 5.0 <= trio.current_time() - begin < 6.0


class ByteFuzzer:
    """One server for many examples, because starting a loop for each takes most of the time."""

    @staticmethod
    async def check(streams):
        target = InMemoryTarget()
        async with serving(target) as (server, address), raw_client(address) as good:
            for data, chunk_size in streams:
                async with raw_client(address) as bad:
                    try:
                        for begin in range(0, len(data), chunk_size):
                            await bad.send(data[begin : begin + chunk_size])
                        bad.sock.shutdown(trio.socket.SHUT_WR)
                    except OSError:  # refused before all was sent
                        pass
                    await bad.closed()
                assert (await good.ask(RemotingCommand(code=35))).code == 0
            await eventually(lambda: server.statistics().connections == 1)  # only ``good``


valid = encode_command(send_command(1, properties={"KEYS": "k"}))
valid_binary = encode_command(send_command(1, serialize_type=SerializeType.ROCKETMQ))
route = encode_command(RemotingCommand(code=105, ext_fields={"topic": "T"}))
heartbeat = encode_command(RemotingCommand(code=34, body=b'{"clientID":"c"}'))


@st.composite
def wild_streams(draw):
    """Random bytes, or real frames joined, with some bytes changed and the end cut off."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    parts = draw(
        st.lists(st.sampled_from([valid, valid_binary, route, heartbeat]), min_size=1, max_size=4)
    )
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(1, len(data)))])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(wild_streams(), st.integers(1, 300)), min_size=1, max_size=8))
def test_the_server_survives_any_bytes(streams):
    """The sender's connection ends or is answered, and another one is served."""
    trio.run(ByteFuzzer.check, streams)
