"""Two groups of one cluster, in virtual time, with the model of etcd: each knows the other."""

import contextlib
from collections import Counter

import attrs
import trio

from hastore.broker.group_directory import TopicQueues
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.client.remoting_client import open_remoting_client
from hastore.cluster.cluster_routes import INTERVAL_S
from hastore.cluster.key_value_store import Delete
from hastore.cluster.route_records import RouteKeys
from hastore.errors import UnknownOutcomeError
from hastore.message import Message
from hastore.sim.cluster import CLIENT_PORT
from hastore.sim.sockets import HOST
from hastore.wire import liberal_json
from hastore.wire.remoting_codes import RequestCode
from tests.cluster.simulated import simulated
from tests.support.nodes.simulated_group import TTL_S

KEYS = RouteKeys("/test/c1/@routes/")


def known(group, node_id):
    """Return what a node knows of the other group; None: nothing."""
    groups = group.roles[node_id].other_groups()
    return groups[0] if groups else None


def topics_known(group, node_id):
    """Return the topics of the other group that a node knows."""
    found = known(group, node_id)
    return {} if found is None else found.topics


async def create(group, topic, queues):
    """Let a group's master make a topic."""
    ((node_id, _),) = group.masters().items()
    fields = {
        "topic": topic,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    async with to(group, node_id) as client:
        await client.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def to(group, node_id):
    """Connect to a node's client port, from another host."""
    HOST.set("10.0.0.99")
    return open_remoting_client((group.node(node_id).host, CLIENT_PORT))


async def brokers(group, node_id, topic):
    """Return the route of a topic as a node answers it: its queues by broker."""
    async with to(group, node_id) as client:
        answer = await client.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    route = liberal_json.loads_object(answer.body, "the route")
    return {each["brokerName"]: each["writeQueueNums"] for each in route["queueDatas"]}


@simulated(has_neighbour=True, listens=True)
async def test_every_node_knows_the_topics_of_the_other_group(group):
    """With their queues, and who is master there; a new topic becomes known, too."""
    other = group.neighbour
    await group.master()
    second, _ = await other.master()
    await create(other, "orders", 3)
    for node_id in (1, 2, 3):
        await group.until(lambda at=node_id: "orders" in topics_known(group, at))
        found = known(group, node_id)
        assert (found.cluster, found.broker_name) == ("c1", "g2")
        assert found.topics["orders"] == TopicQueues(read=3, write=3, perm=6)
        assert found.addresses[0] == (other.node(second).host, CLIENT_PORT)
        assert len(found.addresses) == 3
        assert await brokers(group, node_id, "orders") == {"g1": 8, "g2": 3}
    assert known(other, 1).broker_name == "g1"


@simulated(has_neighbour=True, listens=True)
async def test_a_failover_of_the_other_group_is_followed(group):
    """Its new master is named; until then its slaves are, so consumers keep their queues."""
    other = group.neighbour
    await group.master()
    first, _ = await other.master()
    await create(other, "orders", 3)
    await group.until(lambda: "orders" in topics_known(group, 1))
    await trio.sleep(TTL_S)
    other.node(first).kill()
    await group.until(lambda: 0 not in known(group, 1).addresses)
    assert len(known(group, 1).addresses) == 2
    assert "orders" in known(group, 1).topics
    second, _ = await other.master(epoch=2, members=2)
    took_s = await group.until(lambda: 0 in known(group, 1).addresses)
    assert took_s < 1.5
    assert known(group, 1).addresses[0] == (other.node(second).host, CLIENT_PORT)
    assert "orders" in known(group, 1).topics


@simulated(has_neighbour=True, listens=True)
async def test_clients_of_one_group_use_both_and_go_on_while_one_fails_over(group):
    """No put waits for the other group's election, and a consumer sees all that was PUT_OK."""
    other = group.neighbour
    await group.master()
    first, _ = await other.master()
    for each in (group, other):
        await create(each, "orders", 2)
    await group.until(lambda: "orders" in topics_known(group, 1))
    await trio.sleep(TTL_S)
    nodes = [(group.node(node_id).host, CLIENT_PORT) for node_id in (1, 2, 3)]
    HOST.set("10.0.0.99")
    acknowledged: dict[bytes, str] = {}

    async def send(producer, number):
        body = b"%d" % number
        with contextlib.suppress(UnknownOutcomeError):  # it was on its way to the killed master
            result = await producer.send(Message("orders", body))
            assert result.ok
            acknowledged[body] = result.message_id[:8]  # the host

    async with Producer.connect(nodes) as producer, trio.open_nursery() as nursery:
        for number in range(100):
            await send(producer, number)
            await trio.sleep(0.02)
        hosts = Counter(acknowledged.values())
        assert len(hosts) == 2, "each master has stored some"
        assert min(hosts.values()) > 30
        other.node(first).kill()
        for number in range(100, 110):
            nursery.start_soon(send, producer, number)
        await trio.sleep(1.0)
        for number in range(110, 140):
            with trio.fail_after(0.5):
                await send(producer, number)
        await other.master(epoch=2, members=2)
        await trio.sleep(1.0)
        for number in range(140, 180):
            await send(producer, number)
    assert len(Counter(acknowledged.values())) == 3, "the new master has stored some, too"
    async with Consumer.connect(nodes) as consumer:
        stream = consumer.messages("orders", until_end=True)
        consumed = Counter([message.body async for message in stream])
    assert acknowledged.keys() <= consumed.keys()
    assert set(consumed.values()) == {1}


@simulated(has_neighbour=True, listens=True)
async def test_a_group_that_has_gone_is_gone(group):
    """Once the leases of its nodes have ended; its topics may stay in the coordinator."""
    other = group.neighbour
    await group.master()
    await other.master()
    await group.until(lambda: known(group, 1) is not None)
    for node_id in (1, 2, 3):
        other.node(node_id).kill()
    took_s = await group.until(lambda: known(group, 1) is None)
    assert took_s < 2 * TTL_S


@simulated(has_neighbour=True, listens=True)
async def test_nothing_is_written_where_nothing_changes(group):
    """Puts and heartbeats go on; only roles and topics are told."""
    _, master = await group.master()
    await group.neighbour.master()
    await trio.sleep(2 * INTERVAL_S)
    before = {key: item.mod_revision for key, item in routes_in(group).items()}
    assert len(before) == 2 * (3 + 1), "three nodes and the topics of each group"
    for _ in range(10):
        await group.put(master)
        await trio.sleep(TTL_S)
    # The topic of the puts is new.
    changed = {
        key for key, item in routes_in(group).items() if item.mod_revision != before.get(key)
    }
    assert changed <= {KEYS.topics("g1")}
    assert routes_in(group).keys() == before.keys()


def routes_in(group):
    """Return what the coordinator has below the routes' prefix."""
    return group.model.state.read(KEYS.base).items


@simulated(has_neighbour=True, listens=True)
async def test_a_burst_of_topics_is_few_writes(group):
    """One a second at most."""
    await group.master()
    await trio.sleep(TTL_S)
    start = group.model.state.revision
    ((node_id, _),) = group.masters().items()
    for number in range(50):
        await create(group, f"topic-{number}", 1)
    await group.until(lambda: b"topic-49" in routes_in(group)[KEYS.topics("g1")].value)
    key = KEYS.topics("g1")
    writes = [
        change
        for change in group.model.state.history
        if change.revision > start and any(put.key == key for put in change.puts)
    ]
    assert 1 <= len(writes) <= 3, node_id


@simulated(has_neighbour=True, listens=True)
async def test_what_somebody_removes_is_written_again(group):
    """Also what etcd has forgotten, because it was restored."""
    other = group.neighbour
    await group.master()
    await other.master()
    await group.until(lambda: known(group, 1) is not None)
    await trio.sleep(TTL_S)
    whole = set(routes_in(group))
    state = group.model.state
    state.commit([], [Delete(key) for key in whole])
    group.model.take(lambda: None)
    await group.until(lambda: set(routes_in(group)) == whole)
    await group.until(lambda: known(group, 1) is not None)


def delete(key):
    """Return the removal of a key."""
    from hastore.cluster.key_value_store import Delete

    return Delete(key)


@simulated(has_neighbour=True, listens=True)
async def test_a_coordinator_that_is_down_changes_no_route(group):
    """What was known before counts on."""
    await group.master()
    await group.neighbour.master()
    await group.until(lambda: known(group, 1) is not None and 0 in known(group, 1).addresses)
    before = attrs.evolve(known(group, 1))
    group.model.stop()
    await trio.sleep(2 * INTERVAL_S)
    assert known(group, 1) == before
