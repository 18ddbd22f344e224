"""A producer of a cluster of several groups: a topic is spread over those that have it."""

import contextlib

import pytest
import trio

from hastore.broker.group_directory import BrokerRoute, TopicQueues
from hastore.client.producer import Producer
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.status import PutMessageStatus as Status
from hastore.topic import DEFAULT_TOPIC
from tests.patience import WITHIN_S
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.waiting import eventually

QUEUES = TopicQueues(read=8, write=8, perm=6)


def route(name, address, *topics):
    """Return a group of one node that has these topics."""
    return BrokerRoute(
        cluster="DefaultCluster",
        broker_name=name,
        addresses={0: address},
        topics=dict.fromkeys(topics, QUEUES),
    )


@contextlib.asynccontextmanager
async def cluster(*topics, **settings):
    """Two groups, of which the second has these topics, and a producer that knows the first."""
    a, b = (InMemoryTarget(replica_group=name, epoch=1) for name in ("G1", "G2"))
    with trio.fail_after(WITHIN_S):
        async with serving(a) as (_, first), serving(b) as (_, second):
            a.directory = Directory(
                known(first, master=first), (route("G2", second, *topics),), broker_name="G1"
            )
            async with Producer.connect([first], **settings) as producer:
                yield a, b, producer


async def linked(producer, topic="T"):
    """Send until both groups take messages of a topic."""
    assert (await producer.send(Message(topic, b"first"))).ok
    await eventually(lambda: len(producer._spread.others) == 1, "the other group is linked")


async def test_messages_go_to_all_groups_of_their_topic_in_turn():
    """Once the routes are known; before, to the group of the given addresses."""
    async with cluster("T") as (a, b, producer):
        await linked(producer)
        before = len(a.messages)
        for number in range(20):
            assert (await producer.send(Message("T", b"%d" % number))).ok
        assert (len(a.messages) - before, len(b.messages)) == (10, 10)
        assert producer.in_flight == 0


async def test_a_topic_that_one_group_has_stays_there():
    """The other one has no queue for it."""
    async with cluster("T") as (_, b, producer):
        await linked(producer)
        for _ in range(10):
            assert (await producer.send(Message("X", b"x"))).ok
        assert {message.topic for message in b.messages} <= {"T"}


async def test_messages_with_a_queue_stay_with_one_group():
    """So that the queue keeps its order."""
    async with cluster("T") as (_, b, producer):
        await linked(producer)
        for _ in range(10):
            assert (await producer.send(Message("T", b"x"), queue_id=0)).ok
            assert (await producer.send(Message("T", b"x", queue_id=3))).ok
        assert not b.messages


async def test_many_messages_are_spread_by_calls():
    """Each call's go to one group, as batches; what may not go there waits for the next call."""
    async with cluster("T", in_flight_max=64) as (a, b, producer):
        await linked(producer)
        messages = [Message("T", b"%d" % number) for number in range(200)]
        messages.insert(100, Message("T", b"queue", queue_id=2))
        left, pendings = messages, []
        while left:
            taken = await producer.submit_many(left)
            pendings += taken
            left = left[len(taken) :]
        assert all([(await pending.wait()).ok for pending in pendings])
    bodies = [message.body for target in (a, b) for message in target.messages]
    assert sorted(bodies) == sorted([b"first", *(message.body for message in messages)])
    assert b"queue" in {message.body for message in a.messages}
    assert len(b.messages) > 50


async def test_while_one_group_has_no_master_the_others_take_all():
    """A message that waits for that group's next master has its outcome later."""
    async with cluster("T", failover_timeout_s=WITHIN_S) as (a, b, producer):
        await linked(producer)
        b.answer = None
        pendings = [await producer.submit(Message("T", b"x")) for _ in range(10)]
        await eventually(lambda: len(b.held) == 5, "half of them wait there")
        b.role = BrokerRole.SLAVE
        b.answer = Status.SERVICE_NOT_AVAILABLE
        b.release(Status.SERVICE_NOT_AVAILABLE)
        await eventually(
            lambda: not producer._spread.others["G2"].link.has_room, "its link is left"
        )
        before = len(a.messages)
        for _ in range(10):
            assert (await producer.send(Message("T", b"y"))).ok
        assert len(a.messages) == before + 10
        assert producer.in_flight == 5
        assert producer.broken_because is None
        b.role, b.answer = BrokerRole.SYNC_MASTER, Status.PUT_OK  # the next one
        assert all([(await pending.wait()).ok for pending in pendings])


async def test_a_group_that_has_gone_takes_nothing_more():
    """What waited for it is refused; the producer goes on with the others, and then with it."""
    async with cluster("T", failover_timeout_s=0.3) as (a, b, producer):
        await linked(producer)
        b.role, b.answer = BrokerRole.SLAVE, Status.SERVICE_NOT_AVAILABLE
        results = [await producer.send(Message("T", b"x")) for _ in range(6)]
        assert [result.status for result in results].count(Status.SERVICE_NOT_AVAILABLE) == 1
        await eventually(lambda: not producer._spread.others, "it is forgotten")
        before = len(a.messages)
        assert all([(await producer.send(Message("T", b"y"))).ok for _ in range(5)])
        assert len(a.messages) == before + 5


async def test_a_producer_of_one_address_stays_with_its_node():
    """Its caller has chosen it; the queues of other groups are not its own."""
    async with cluster("T", DEFAULT_TOPIC) as (_, b, following):
        async with Producer.connect(following.address) as producer:
            assert producer.queue_nums == following.queue_nums == 8
            for _ in range(10):
                assert (await producer.send(Message("T", b"x"))).ok
        assert not b.messages


@pytest.mark.parametrize("room", [1, 2])
async def test_a_full_link_is_passed_over_while_another_has_room(room):
    """A slow group holds up nobody but itself."""
    async with cluster("T", in_flight_max=room) as (a, b, producer):
        await linked(producer)
        b.answer = None
        for _ in range(10):
            await producer.submit(Message("T", b"x"))
        assert len(b.held) == room
        b.release(Status.PUT_OK)
        b.answer = Status.PUT_OK
        await producer.drain()
        assert len(a.messages) + len(b.messages) == 11
