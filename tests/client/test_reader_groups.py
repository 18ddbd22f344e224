"""A consumer of a cluster of several groups reads a topic from all that have it."""

import attrs
import pytest
import trio

import hastore
from hastore.client import message_stream
from hastore.client.consumer import Consumer
from tests.patience import WITHIN_S
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.group_nodes import promote
from tests.support.nodes.two_groups import cluster, of_group, other, put, serve
from tests.support.waiting import eventually


async def read(consumer, count, **settings):
    """Return the bodies of the first messages of a stream."""
    stream = consumer.messages("T", **settings)
    return sorted([(await anext(stream)).body for _ in range(count)])


async def test_a_stream_has_the_messages_of_all_groups(tmp_path):
    """Of each queue of each group, also one that ends."""
    async with cluster(tmp_path) as (one, two, _):
        await put(one, b"a1", b"a2", b"a3")
        await put(two, b"b1", b"b2")
        async with Consumer.connect([one.address]) as consumer:
            assert await read(consumer, 5) == [b"a1", b"a2", b"a3", b"b1", b"b2"]
            ending = [each.body async for each in consumer.messages("T", until_end=True)]
        assert sorted(ending) == [b"a1", b"a2", b"a3", b"b1", b"b2"]


async def test_offsets_are_committed_to_the_group_that_has_the_messages(tmp_path):
    """So another consumer goes on in both."""
    async with cluster(tmp_path) as (one, two, _):
        await put(one, b"a1")
        await put(two, b"b1", b"b2")
        async with Consumer.connect([one.address]) as consumer:
            stream = consumer.messages("T", group="readers", until_end=True)
            assert len([each async for each in stream]) == 3
        await put(one, b"a2")
        await put(two, b"b3")
        async with Consumer.connect([one.address]) as consumer:
            assert await read(consumer, 2, group="readers") == [b"a2", b"b3"]


async def test_a_group_that_gets_the_topic_later_is_read_too(tmp_path, monkeypatch):
    """A look at the route now and then finds it."""
    monkeypatch.setattr(message_stream, "INTERVAL_S", 0.05)
    async with cluster(tmp_path, topics=()) as (one, two, directory):
        await put(one, b"a1")
        await put(two, b"b1")
        async with Consumer.connect([one.address]) as consumer:
            stream = consumer.messages("T")
            assert (await anext(stream)).body == b"a1"
            directory.others = (other(two.address, "T"),)
            assert (await anext(stream)).body == b"b1"


async def test_a_group_that_has_gone_ends_no_stream_and_is_read_on_later(
    tmp_path, monkeypatch, nursery
):
    """From where it was: nothing twice."""
    monkeypatch.setattr(message_stream, "INTERVAL_S", 0.05)
    directory, stop = Directory(broker_name="g1"), trio.Event()
    config = of_group(tmp_path, "g2")
    with trio.fail_after(WITHIN_S):
        two = await nursery.start(serve, config, stop)
        address = two.address
        async with hastore.open_node(of_group(tmp_path, "g1"), directory=directory) as one:
            await promote(one)
            directory.known = known(one.address, master=one.address)
            directory.others = (other(address, "T"),)
            await put(two, b"b1", b"b2")
            async with Consumer.connect([one.address], failover_timeout_s=0.1) as consumer:
                stream = consumer.messages("T")
                assert sorted([(await anext(stream)).body for _ in range(2)]) == [b"b1", b"b2"]
                stop.set()
                await eventually(lambda: not stream._read, "the group is given up")
                await put(one, b"a1")
                assert (await anext(stream)).body == b"a1"
                stop = trio.Event()
                two = await nursery.start(serve, attrs.evolve(config, listen=address), stop)
                await put(two, b"b3")
                assert (await anext(stream)).body == b"b3"
                stop.set()


@pytest.mark.parametrize("by", ["queues", "address"])
async def test_who_asks_for_one_group_gets_one(tmp_path, by):
    """By its queues, or by its one address."""
    async with cluster(tmp_path) as (one, two, _):
        await put(one, b"a1", b"a2")
        await put(two, b"b1", b"b2")
        where = [one.address] if by == "queues" else one.address
        queue_ids = (0, 1) if by == "queues" else None
        async with Consumer.connect(where) as consumer:
            stream = consumer.messages("T", queue_ids=queue_ids, until_end=True)
            assert sorted([each.body async for each in stream]) == [b"a1", b"a2"]
