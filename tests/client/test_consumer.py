"""The consumer against real nodes: streams, groups, places, faults."""

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
from hastore.client.received_messages import read_messages
from hastore.errors import ConfigError, ProtocolError, RequestFailedError, UnreachableError
from hastore.store.record import message_codec
from tests.support.nodes.reading import open_master, open_slave, put
from tests.support.waiting import eventually


async def collect(stream):
    return [message async for message in stream]


@pytest.fixture
def held(monkeypatch):
    """The pulls that the node holds, or has held: a stream waits for messages once it has one."""
    pulls = []
    hold = PullRequestHoldService.hold

    def noted(self, pull):
        pulls.append(pull)
        return hold(self, pull)

    monkeypatch.setattr(PullRequestHoldService, "hold", noted)
    return pulls


async def test_all_queues_are_read_to_their_ends(tmp_path):
    """Every message of every queue once, each queue in its order, then the stream ends."""
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


async def test_a_stream_waits_for_what_comes(tmp_path, held):
    """Messages sent while it runs arrive, without a question a message."""
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
async def test_a_stream_begins_where_it_is_told(tmp_path, start, first):
    """Each place is found in the queue."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 10)
        stream = consumer.messages("T", start=start, queue_ids=[0], until_end=True)
        assert [message.queue_offset for message in await collect(stream)] == list(range(first, 10))


async def test_an_offset_that_the_queue_does_not_hold_is_corrected(tmp_path, held):
    """Behind the end the stream goes on at the end, where the next message will be."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 3)
        stream = consumer.messages("T", start=ConsumeFrom.offset(99), queue_ids=[0])
        async with trio.open_nursery() as nursery:

            async def send():
                await eventually(lambda: held, "it waits at the end")
                await put(master, bodies=[b"next"])

            nursery.start_soon(send)
            message = await stream.__anext__()
        assert (message.body, message.queue_offset) == (b"next", 3)


async def test_a_group_goes_on_where_it_was(tmp_path):
    """What was handled does not come again; what was given out in a block that failed does."""
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


async def test_offsets_are_committed_now_and_then(tmp_path):
    """A long stream's progress is on the node while it runs."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[b""] * 5)
        stream = consumer.messages("T", group="g", commit_interval_s=0.05)
        for _ in range(4):
            await stream.__anext__()

        async def is_committed():
            return await ConsumeFrom.stored().find(consumer._client, "g", "T", 0) == 3

        await eventually(is_committed)


async def test_a_commit_that_was_cut_short_leaves_the_rest_to_the_last(nursery):
    """The end of a block commits what a commit under way had not come to."""
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
    stream._handled = {0: 5, 1: 7}
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


async def test_tags_choose_messages(tmp_path):
    """Only what the expression wants arrives, however much lies between."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        for n in range(30):
            await put(master, bodies=[b"%d" % n], properties={"TAGS": "abc"[n % 3]})
        stream = consumer.messages("T", tags="a||c", until_end=True)
        assert [int(message.body) for message in await collect(stream)] == [
            n for n in range(30) if n % 3 != 1
        ]


@pytest.mark.parametrize("until_end", [True, False])
async def test_what_the_tags_leave_out_is_committed_too(tmp_path, until_end):
    """A group that wants little does not look at the rest again, and shows no lag."""
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


async def test_an_answer_half_given_out_is_not_committed_whole(tmp_path):
    """Of one answer's messages only those that were handled count, whatever it says of its end."""
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
    """The same stream from a slave; behind its end it waits instead of spinning."""
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


async def test_one_pull_is_a_value(tmp_path):
    """Each outcome of one question, and a wait that is answered."""
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


async def test_what_goes_wrong_comes_out_of_the_stream(tmp_path):
    """A topic that cannot be, a stored offset without a group, and a node that goes away."""
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
async def test_a_compressed_body_is_given_as_it_was(tmp_path, sys_flag):
    """A zlib body, by either number; a kind that is not known is given as it is."""
    packed = zlib.compress(b"body" * 1000)
    record = await record_of(tmp_path, bodies=[packed], sys_flag=sys_flag)
    (message,) = read_messages(record)
    assert (message.body, message.sys_flag & 1) == (b"body" * 1000, 0)
    stored = message_codec.decode(record)
    other = message_codec.encode(attrs.evolve(stored, sys_flag=1 | 1 << 8))
    # The checksum of the whole record is not ours to keep here.
    (lz4,) = read_messages(other.replace(b"__CRC32#", b"__OTHER#"))
    assert lz4.body == packed


@pytest.mark.parametrize("body", [b"no zlib", zlib.compress(b"x" * 99)[:-3]])
async def test_a_body_that_does_not_decompress_keeps_nobody_from_those_behind(tmp_path, body):
    """It comes as it is, its flag says so, and the stream goes on."""
    async with open_master(tmp_path) as master, Consumer.connect(master.address) as consumer:
        await put(master, bodies=[body], sys_flag=1)
        await put(master, bodies=[b"behind"])
        messages = await collect(consumer.messages("T", until_end=True))
    assert [(message.body, message.sys_flag & 1) for message in messages] == [
        (body, 1),
        (b"behind", 0),
    ]


async def test_an_answer_that_is_no_messages_is_named(tmp_path):
    """A flipped bit, a cut end and bytes that are nothing."""
    record = await record_of(tmp_path)
    flipped = bytearray(record)
    flipped[90] ^= 1
    for body in (bytes(flipped), record[:-1], record + b"x", b"\x00" * 100):
        with pytest.raises(ProtocolError, match="message at byte"):
            read_messages(body)
    assert len(read_messages(record * 3)) == 3
    assert read_messages(b"") == []
