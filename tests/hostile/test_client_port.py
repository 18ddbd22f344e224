"""The client port under hostile and mutated streams: answered or closed, and no false ack.

Every stream goes to a real master on its own connection, whole or in pieces.  Each answer must
belong to a request; an answer that says "stored" must name a record of the log.  Meanwhile another
client is served.
"""

import random
import struct

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.errors import ProtocolError
from hastore.store.record.record_check import RecordKind, check_record
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from tests.hostile.corpus_files import mutated, mutated_inside, mutations, recorded
from tests.hostile.handmade import CLIENT_PORT
from tests.hostile.hosted import hosted
from tests.patience import WITHIN_S
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import open_master, put

STREAMS = recorded("client_port") | CLIENT_PORT
MUTATIONS = 900


def opaques_in(stream):
    """Return the opaques of the complete requests in a stream."""
    reader = FrameReader(16 << 20)
    reader.feed(stream)
    numbers = []
    try:
        while (command := reader.next_command()) is not None:
            numbers.append(command.opaque)
    except ProtocolError:
        pass
    return numbers


async def answers_to(address, stream, piece=None):
    """Send a stream and no more; return the answers until the connection ends."""
    reader = FrameReader(32 << 20)
    answers = []
    with trio.fail_after(WITHIN_S):
        async with raw_client(address) as client:
            try:
                step = piece or max(len(stream), 1)
                for at in range(0, len(stream), step):
                    await client.send(stream[at : at + step])
                client.sock.shutdown(trio.socket.SHUT_WR)
                while data := await client.sock.recv(65_536):
                    reader.feed(data)
                    while (command := reader.next_command()) is not None:
                        answers.append(command)
            except OSError:
                pass  # the node closed with our bytes unread
    return answers


def check_answers(master, stream, answers, stored):
    """Check that each answer has a request, and each stored message a record."""
    numbers = opaques_in(stream)
    for answer in answers:
        assert answer.is_response or answer.code == 40, answer
        assert not answer.is_response or answer.opaque in numbers, (answer.opaque, numbers)
        if "msgId" not in answer.ext_fields:
            continue
        for message_id in answer.ext_fields["msgId"].split(","):
            offset = int(message_id[-16:], 16)
            assert offset not in stored, f"{offset} was given out twice"
            stored.add(offset)
            size = struct.unpack("!i", master.commit_log.read(offset, 4))[0]
            data = master.commit_log.read(offset, size)
            assert check_record(data, 0, size, offset).kind is RecordKind.MESSAGE


async def check_served(client, opaque):
    """Check that another client's message is answered soon."""
    with trio.fail_after(WITHIN_S):
        answer = await client.ask(send_command(opaque, topic="Good"))
    assert (answer.opaque, answer.code) == (opaque, 0)


async def test_hostile_streams_are_answered_or_closed(tmp_path):
    """Each stream, recorded or handmade, whole and in pieces; another client is served."""
    stored = set()
    async with open_master(tmp_path) as master, raw_client(master.address) as good:
        await put(master, "T", [b"one", b"two"])
        for number, (name, stream) in enumerate(STREAMS.items()):
            for piece in (None, max(len(stream) // 7, 1)):
                try:
                    answers = await answers_to(master.address, stream, piece)
                    check_answers(master, stream, answers, stored)
                    await check_served(good, number)
                except BaseException as error:
                    error.add_note(f"stream: {name}, in pieces of {piece}")
                    raise


async def test_mutated_requests_are_answered_or_closed(tmp_path):
    """Hundreds of mutations: no false ack, no crash, and the node serves on."""
    stored = set()
    async with open_master(tmp_path) as master, raw_client(master.address) as good:
        await put(master, "T", [b"one", b"two"])
        for number, (name, stream) in enumerate(mutations(STREAMS, MUTATIONS, 1, are_frames=True)):
            try:
                check_answers(master, stream, await answers_to(master.address, stream), stored)
                if number % 10 == 0:
                    await check_served(good, number)
            except BaseException as error:
                error.add_note(f"stream: {name}: {stream[:200].hex()}")
                raise
        assert master.status().state == "serving"


numbers = st.one_of(
    st.integers(-2, 20),
    st.sampled_from([2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, 10**30]),
)
values = st.one_of(
    numbers.map(str),
    numbers,
    st.text(max_size=20),
    st.none(),
    st.booleans(),
    st.sampled_from(["T", "g", "Good", "../x", "", "*", "TAG", "a\x01b\x02", "%RETRY%g"]),
)
FIELDS = """
    a b e f g h i j k m topic consumerGroup queueId queueOffset maxMsgNums sysFlag commitOffset
    suspendTimeoutMillis subscription subVersion expressionType offset timestamp key beginTimestamp
    endTimestamp maxNum group delayLevel originTopic producerGroup flag properties perm defaultTopic
    readQueueNums writeQueueNums topicFilterType
"""
names = st.sampled_from(FIELDS.split())
bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"{}", b"[]", b'{"mqSet":[{}]}', b'{"clientID":"c","consumerDataSet":[{}]}']),
)


@st.composite
def wild_streams(draw):
    """Requests of every code with random fields, some of them mutated."""
    choose = random.Random(draw(st.integers(0, 2**32)))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            data = draw(st.sampled_from(sorted(STREAMS.items())))[1]
        else:
            command = RemotingCommand(
                code=draw(st.one_of(st.sampled_from(list(RequestCode)), st.integers(-5, 400))),
                opaque=draw(st.integers(0, 2**31 - 1)),
                flag=draw(st.sampled_from([0, 0, 0, 2])),
                ext_fields=draw(st.dictionaries(names, values, max_size=12)),
                body=draw(bodies),
            )
            if draw(st.booleans()):
                command.serialize_type = SerializeType.ROCKETMQ
                command.ext_fields = {k: str(v) for k, v in command.ext_fields.items()}
                command.code = min(max(int(command.code), 0), 32_000)
            data = encode_command(command)
        if draw(st.integers(0, 2)) == 0:
            mutate = draw(st.sampled_from([mutated, mutated_inside]))
            data = mutate(data, list(recorded("client_port").values()), choose)
        parts.append(data)
    return b"".join(parts)


def test_random_requests_are_answered_or_closed(tmp_path):
    """They cause no false ack and no crash; the same node serves all of them."""
    stored = set()
    with hosted(lambda: open_master(tmp_path)) as run:

        async def check(stream, piece):
            master = run.value
            check_answers(master, stream, await answers_to(master.address, stream, piece), stored)
            async with raw_client(master.address) as good:
                await check_served(good, 1)

        @settings(max_examples=settings.default.max_examples, deadline=None)
        @given(wild_streams(), st.sampled_from([None, None, 1000, 1]))
        def run_example(stream, piece):
            run.call(check, stream, piece if len(stream) < 2000 else None)

        run_example()
