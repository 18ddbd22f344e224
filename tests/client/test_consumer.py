"""The consumer against real nodes: streams, groups, start positions and faults."""

from __future__ import annotations

import zlib

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.pulls.pull_request_hold_service import PullRequestHoldService
from hastore.client.admin import AdminClient
from hastore.client.consume_from import ConsumeFrom
from hastore.client.consumer import Consumer
from hastore.client.message_stream import MessageStream, StreamSettings
from hastore.client.pull_client import PullStatus
from hastore.client.received_messages import DECODED_SIZE_MAX, read_all_in_pieces
from hastore.errors import ConfigError, ProtocolError, RequestFailedError, UnreachableError
from hastore.store.record import message_codec
from hastore.store.record.body_compression import BODY_SIZE_MAX
from hastore.wire.pieces import at_once
from tests.support.nodes.reading import dispatched, open_master, open_slave, put
from tests.support.nodes.scripted_node import scripted_node
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import eventually


async def collect(stream):
    return [message async for message in stream]


@pytest.fixture
def held(monkeypatch):
    """The pulls that the node has held: once there is one, a stream waits for messages."""
    pulls = []
    hold = PullRequestHoldService.hold

    def record_pull(self, pull):
        pulls.append(pull)
        return hold(self, pull)

    monkeypatch.setattr(PullRequestHoldService, "hold", record_pull)
    return pulls


async def test_until_end_reads_all_queues_to_their_ends(tmp_path):
    """Every message comes once and in its queue's order, then the stream ends."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        for queue_id in range(8):
            await put(master, bodies=[b"%d" % n for n in range(50)], queue_id=queue_id)
        messages = await collect(consumer.messages("T", until_end=True))
        assert len(messages) == 400
        for queue_id in range(8):
            of_queue = [message for message in messages if message.queue_id == queue_id]
            assert [message.queue_offset for message in of_queue] == list(range(50))
        two = await collect(consumer.messages("T", until_end=True, queue_ids=[2, 5]))
        assert {message.queue_id for message in two} == {2, 5}
        assert await collect(consumer.messages("nothing", until_end=True)) == []


async def test_a_stream_waits_for_new_messages(tmp_path, held):
    """They arrive while it runs, without a request per message."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        stream = consumer.messages("T", start=ConsumeFrom.end())
        found = []
        async with trio.open_nursery() as nursery:

            async def read():
                async for message in stream:
                    found.append(message.body)
                    if len(found) == 20:
                        return

            nursery.start_soon(read)
            await eventually(lambda: len(held) == 8, "a pull of each queue is held")
            for n in range(20):
                await put(master, bodies=[b"%d" % n], queue_id=n % 8)
        assert sorted(found, key=int) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (ConsumeFrom.beginning(), 0),
        (ConsumeFrom.offset(7), 7),
        (ConsumeFrom.time(0), 0),
        (ConsumeFrom.time(1 << 50), 10),
        (ConsumeFrom.end(), 10),
        (None, 0),
    ],
)
async def test_a_stream_begins_at_the_given_position(tmp_path, start, first):
    """At the beginning, an offset, a time or the end of the queue."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 10)
        stream = consumer.messages("T", start=start, queue_ids=[0], until_end=True)
        assert [message.queue_offset for message in await collect(stream)] == list(range(first, 10))


async def test_a_start_offset_after_the_end_is_corrected(tmp_path, held):
    """The stream continues at the end, where the next message will be."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 3)
        stream = consumer.messages("T", start=ConsumeFrom.offset(99), queue_ids=[0])
        async with trio.open_nursery() as nursery:

            async def send():
                await eventually(lambda: held, "the stream waits at the end")
                await put(master, bodies=[b"next"])

            nursery.start_soon(send)
            message = await stream.__anext__()
        assert (message.body, message.queue_offset) == (b"next", 3)


async def test_a_group_continues_where_it_stopped(tmp_path):
    """Handled messages do not come again; one that was received by a block that failed does."""
    async with open_master(tmp_path) as master:
        await put(master, bodies=[b"%d" % n for n in range(10)])

        async def read(count, *, fail=False):
            found = []
            async with Consumer.connect(master.address) as consumer:
                async for message in consumer.messages("T", group="g", until_end=True):
                    found.append(int(message.body))
                    if len(found) == count:
                        if fail:
                            raise ZeroDivisionError
                        break
            return found

        assert await read(3) == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            await read(2, fail=True)
        assert await read(100) == [3, 4, 5, 6, 7, 8, 9]
        assert await read(100) == []


async def test_offsets_are_committed_at_intervals(tmp_path):
    """The node knows a long stream's progress while it runs."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 5)
        stream = consumer.messages("T", group="g", commit_interval_s=0.05)
        for _ in range(4):
            await stream.__anext__()

        async def is_committed():
            return await ConsumeFrom.stored().find(consumer._client, "g", "T", 0) == 3

        await eventually(is_committed)


async def test_the_last_commit_completes_a_cancelled_one(nursery):
    """At the end of a block it commits the queues that the cancelled commit had not reached."""
    asked = []
    answers = trio.Event()

    class Client:
        async def invoke(self, _code, fields):
            asked.append((fields["queueId"], fields["commitOffset"]))
            await answers.wait()

    settings = StreamSettings(
        topic="T",
        group="g",
        start=ConsumeFrom.stored(),
        tags="*",
        queue_ids=(),
        until_end=False,
        count_max=1,
        suspend_timeout_ms=1,
        commit_interval_s=60,
    )
    stream = MessageStream(Client(), settings)
    stream._handled = {(stream._home, 0): 5, (stream._home, 1): 7}
    scope = trio.CancelScope()

    async def commit():
        with scope:
            await stream.commit()

    nursery.start_soon(commit)
    await trio.testing.wait_all_tasks_blocked()
    assert asked == [("0", "5")]
    answers.set()
    scope.cancel()
    await stream.commit()
    assert asked[-1] == ("1", "7")
    assert stream._handled == {}


async def test_only_messages_with_a_wanted_tag_arrive(tmp_path):
    """However many others lie between them."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        for n in range(30):
            await put(master, bodies=[b"%d" % n], properties={"TAGS": "abc"[n % 3]})
        stream = consumer.messages("T", tags="a||c", until_end=True)
        assert [int(message.body) for message in await collect(stream)] == [
            n for n in range(30) if n % 3 != 1
        ]


@pytest.mark.parametrize("until_end", [True, False])
async def test_messages_without_a_wanted_tag_are_committed_too(tmp_path, until_end):
    """A group that wants few messages does not check the rest again, and shows no lag."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        await put(master, bodies=[b"x"] * 30, properties={"TAGS": "b"})
        await put(master, bodies=[b"wanted"], properties={"TAGS": "a"})
        await put(master, bodies=[b"x"] * 5, properties={"TAGS": "b"})
        async with Consumer.connect(master.address) as consumer:
            stream = consumer.messages(
                "T", group="g", tags="a", until_end=until_end, commit_interval_s=0.02
            )
            assert (await stream.__anext__()).body == b"wanted"
            if until_end:
                assert await collect(stream) == []
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect, stream)

                    async def is_committed():
                        return await admin.query_offset("g", "T", 0) == 36

                    await eventually(is_committed)
                    nursery.cancel_scope.cancel()
        assert await admin.query_offset("g", "T", 0) == 36


async def test_only_the_handled_messages_of_an_answer_are_committed(tmp_path):
    """The answer's own next offset is after all of its messages."""
    async with open_master(tmp_path) as master:
        await put(master, bodies=[b"%d" % n for n in range(10)])
        async with Consumer.connect(master.address) as consumer:
            stream = consumer.messages("T", group="g", queue_ids=[0])
            for _ in range(4):
                await stream.__anext__()
        async with Consumer.connect(master.address) as consumer:
            stored = await ConsumeFrom.stored().find(consumer._client, "g", "T", 0)
            assert stored == 4


async def test_a_slave_can_be_read(tmp_path):
    """Its stream is the same; a pull after the slave's end is to be retried from that end."""
    async with open_master(tmp_path / "m") as master:
        await put(master, bodies=[b"%d" % n for n in range(5)])
        async with (
            open_slave(tmp_path / "s", master) as slave,
            Consumer.connect(slave.address) as consumer,
        ):
            stream = consumer.messages("T", until_end=True)
            assert [int(message.body) for message in await collect(stream)] == list(range(5))
            ahead = await consumer.pull("T", 0, 9)
            assert ahead.status is PullStatus.RETRY_NOW
            assert ahead.next_begin_offset == 5


async def test_a_single_pull_returns_its_outcome(tmp_path):
    """Each status, a pull that is held, and an error."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b"1", b"2"])
        found = await consumer.pull("T", 0, 0)
        assert [message.body for message in found.messages] == [b"1", b"2"]
        assert (found.status, found.next_begin_offset) == (PullStatus.FOUND, 2)
        assert (await consumer.pull("T", 0, 2)).status is PullStatus.NO_NEW_MESSAGE
        assert (await consumer.pull("T", 0, 9)).status is PullStatus.OFFSET_MOVED
        assert (await consumer.pull("T", 0, 0, tags="x")).status is PullStatus.RETRY_NOW
        began = trio.current_time()
        waited = await consumer.pull("T", 0, 2, suspend_timeout_s=0.3)
        assert waited.status is PullStatus.NO_NEW_MESSAGE
        assert trio.current_time() - began > 0.29
        with pytest.raises(RequestFailedError, match="queue 99"):
            await consumer.pull("T", 99, 0)


async def test_errors_come_out_of_the_stream(tmp_path):
    """An illegal topic, a stored offset without a group, and a node that stops."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        with pytest.raises(RequestFailedError, match="topic"):
            await collect(consumer.messages("a b"))
        with pytest.raises(ConfigError, match="group"):
            consumer.messages("T", start=ConsumeFrom.stored())
        await put(master)
        stream = consumer.messages("T")
        await stream.__anext__()
        master.stop()
        with pytest.raises(UnreachableError):
            await stream.__anext__()


# -- bodies --------------------------------------------------------------------------------------


async def record_of(tmp_path, **fields):
    async with open_master(tmp_path) as master:
        (result,) = await put(master, **fields)
        return master.message_store.record_at(result.physic_offset)


@pytest.mark.parametrize("sys_flag", [1, 1 | 3 << 8])
async def test_a_zlib_body_is_decompressed(tmp_path, sys_flag):
    """Either number for zlib is known; a body that is of another kind stays compressed."""
    packed = zlib.compress(b"body" * 1000)
    record = await record_of(tmp_path, bodies=[packed], sys_flag=sys_flag)
    (message,) = at_once(read_all_in_pieces(record))
    assert (message.body, message.sys_flag & 1) == (b"body" * 1000, 0)
    stored = message_codec.decode(record)
    other = message_codec.encode(attrs.evolve(stored, sys_flag=1 | 1 << 8))
    # The record's checksum is wrong now, so hide its property.
    (lz4,) = at_once(read_all_in_pieces(other.replace(b"__CRC32#", b"__OTHER#")))
    assert lz4.body == packed


@pytest.mark.parametrize("body", [b"no zlib", zlib.compress(b"x" * 99)[:-3]])
async def test_a_body_that_cannot_be_decompressed_does_not_end_the_stream(tmp_path, body):
    """It comes as it is stored, with the flag for compression and the reason."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[body], sys_flag=1)
        await put(master, bodies=[b"behind"])
        messages = await collect(consumer.messages("T", until_end=True))
    assert [(message.body, message.sys_flag & 1) for message in messages] == [
        (body, 1),
        (b"behind", 0),
    ]
    assert messages[0].body_fault is not None


async def test_a_consumer_may_ask_for_bodies_as_they_are_stored(tmp_path):
    """In streams, pulls and queries."""
    packed = zlib.compress(b"body" * 1000)
    async with (
        open_master(tmp_path) as master,
        Consumer.connect(master.address) as consumer,
        AdminClient.connect(master.address) as admin,
    ):
        (result,) = await put(master, bodies=[packed], sys_flag=1)
        await dispatched(master, result.next_offset)
        streamed = await collect(consumer.messages("T", until_end=True, raw_bodies=True))
        pulled = (await consumer.pull("T", 0, 0, raw_bodies=True)).messages
        viewed = await admin.view_message(result.physic_offset, raw_bodies=True)
        assert [m.body for m in (*streamed, *pulled, viewed)] == [packed] * 3
        assert (await admin.view_message(result.physic_offset)).body == b"body" * 1000


async def test_a_pull_ends_before_what_decodes_to_too_much(tmp_path):
    """Bombs in one answer cost the memory of few; the next pull has the others, none is lost."""
    bomb = zlib.compress(bytes(DECODED_SIZE_MAX))
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[bomb, bomb], sys_flag=1)
        (last,) = await put(master, bodies=[b"plain"])
        await dispatched(master, last.next_offset)
        first = await consumer.pull("T", 0, 0)
        assert [len(message.body) for message in first.messages] == [DECODED_SIZE_MAX]
        assert first.next_begin_offset == 1
        second = await consumer.pull("T", 0, 1)
        assert [len(m.body) for m in second.messages] == [DECODED_SIZE_MAX, len(b"plain")]
        assert second.next_begin_offset == 3
        sizes = [len(m.body) async for m in consumer.messages("T", until_end=True)]
    assert sizes == [DECODED_SIZE_MAX, DECODED_SIZE_MAX, len(b"plain")]


async def test_a_bomb_that_fails_takes_the_room_of_an_answer(tmp_path):
    """It costs as much as one that is decoded; the next pull has those behind it."""
    bomb = zlib.compress(bytes(BODY_SIZE_MAX + 1))
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[bomb, bomb], sys_flag=1)
        (last,) = await put(master, bodies=[b"plain"])
        await dispatched(master, last.next_offset)
        first = await consumer.pull("T", 0, 0)
        assert [(m.body, m.sys_flag) for m in first.messages] == [(bomb, 1)]
        assert first.next_begin_offset == 1
        second = await consumer.pull("T", 0, 1)
        assert [m.body for m in second.messages] == [bomb, b"plain"]


@pytest.mark.parametrize("queue_offset", [0, 5, 7, 90])
async def test_an_offset_of_another_queue_is_not_where_a_pull_continues(queue_offset):
    """A stock broker's record may come from one: the messages stay compressed, and none is lost."""
    bomb = zlib.compress(bytes(DECODED_SIZE_MAX))
    log = LogBuilder(file_size=1 << 20)
    for offset in (5, queue_offset):
        log.add(bomb, sys_flag=1, queue_offset=offset)
    positions = {"nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}
    async with (
        scripted_node(route_code=None) as (node, address),
        Consumer.connect(address) as consumer,
    ):
        results = []

        async def pull():
            results.append(await consumer.pull("orders", 0, 5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            (request,) = await node.receive(1)
            fields = positions | {"suggestWhichBrokerId": "0"}
            answer = request.response(0)
            await node.send(attrs.evolve(answer, ext_fields=fields, body=bytes(log.data)))
        (result,) = results
    assert result.next_begin_offset == 7
    assert len(result.messages[0].body) == DECODED_SIZE_MAX
    assert result.messages[1].body == bomb
    assert "too large" in result.messages[1].body_fault


async def test_a_query_has_what_there_is_no_room_to_decode_as_it_is_stored(tmp_path):
    """It says so."""
    bomb = zlib.compress(bytes(DECODED_SIZE_MAX))
    record = await record_of(tmp_path, bodies=[bomb], sys_flag=1)
    first, second = at_once(read_all_in_pieces(record * 2))
    assert (len(first.body), first.body_fault) == (DECODED_SIZE_MAX, None)
    assert (second.body, second.sys_flag) == (bomb, 1)
    assert "too large" in second.body_fault


async def test_an_answer_of_invalid_messages_raises_protocol_error(tmp_path):
    """A flipped bit, a cut end and zeros; the error names the position."""
    record = await record_of(tmp_path)
    flipped = bytearray(record)
    flipped[90] ^= 1
    for body in (bytes(flipped), record[:-1], record + b"x", b"\x00" * 100):
        with pytest.raises(ProtocolError, match="message at byte"):
            at_once(read_all_in_pieces(body))
    assert len(at_once(read_all_in_pieces(record * 3))) == 3
    assert at_once(read_all_in_pieces(b"")) == []
