"""Routes of a node that knows its group: the master as id 0, on every node; other groups, too."""

import json
from functools import partial

import attrs
import pytest
import trio

import hastore
from hastore.broker.group_directory import BrokerRoute, TopicQueues
from hastore.broker.port.routes import brokers_of, route_json
from hastore.client.admin import AdminClient
from hastore.client.producer import Producer
from hastore.client.remoting_client import open_remoting_client
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.config_tables import GROUP_ONLY, TopicConfig
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from tests.patience import WITHIN_S
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.group_nodes import node_config, promote
from tests.support.nodes.in_memory_target import InMemoryTarget

A, B, C = ("10.0.0.1", 10911), ("10.0.0.2", 10911), ("10.0.0.3", 10911)
G2 = BrokerRoute(cluster="DefaultCluster", broker_name="g2", addresses={0: ("10.0.1.1", 1)})


def target(address, directory, *, is_slave=False):
    role = BrokerRole.SLAVE if is_slave else BrokerRole.SYNC_MASTER
    return InMemoryTarget(role=role, address=address, directory=directory)


@pytest.mark.parametrize(
    ("asked", "is_slave"), [(A, False), (B, True)], ids=["the master", "a slave"]
)
def test_each_node_names_the_whole_group(asked, is_slave):
    """The same brokers, on every node: the master is 0, a slave has its node id."""
    directory = Directory(known(A, B, C, master=A))
    (broker,) = brokers_of(target(asked, directory, is_slave=is_slave), asked)
    assert broker == BrokerRoute(
        cluster="DefaultCluster", broker_name="g1", addresses={0: A, 2: B, 3: C}
    )


def test_a_group_without_a_master_takes_no_messages():
    """Consumers may read from its slaves."""
    brokers = brokers_of(target(B, Directory(known(A, B)), is_slave=True), B)
    route = route_json(brokers, "T", TopicConfig(topic="T", read_queue_nums=8, write_queue_nums=8))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"1": "10.0.0.1:10911", "2": "10.0.0.2:10911"}
    assert route["queueDatas"][0] == {
        "brokerName": "g1", "perm": 4, "readQueueNums": 8, "topicSynFlag": 0, "writeQueueNums": 0,
    }  # fmt: skip


def test_a_node_that_takes_no_messages_is_not_named_master():
    """Whatever the directory, which may be behind, says of it."""
    directory = Directory(known(A, B, master=A))
    (broker,) = brokers_of(target(A, directory, is_slave=True), A)
    assert broker.addresses == {1: A, 2: B}


def test_a_node_knows_itself_by_its_id_when_it_advertises_another_address():
    """Clients get that address, and no master that takes no messages."""
    (own, other) = known(("n1", 10911), B, master=("n1", 10911))
    directory = Directory((attrs.evolve(own, is_own=True), other))
    for is_slave, found in ((True, {1: ("n1", 10911), 2: B}), (False, {0: ("n1", 10911), 2: B})):
        asked = target(("0.0.0.0", 10911), directory, is_slave=is_slave)
        (broker,) = brokers_of(asked, ("10.0.0.7", 10911))
        assert broker.addresses == found


def test_a_topic_has_its_queues_on_each_group():
    """As many as it has there, on those that have it; the node's own group comes first."""
    others = (
        attrs.evolve(G2, broker_name="g0", topics={"X": TopicQueues(read=1, write=1, perm=6)}),
        attrs.evolve(G2, topics={"T": TopicQueues(read=8, write=8, perm=4)}),
    )
    directory = Directory(known(A, master=A), others)
    brokers = brokers_of(target(A, directory), A)
    config = TopicConfig(topic="T", read_queue_nums=4, write_queue_nums=2)
    assert queues_in(route_json(brokers, "T", config)) == [("g1", 4, 2, 6), ("g2", 8, 8, 4)]
    assert queues_in(route_json(brokers, "T", None)) == [("g2", 8, 8, 4)]
    assert queues_in(route_json(brokers, "Y", None)) == []


def test_a_group_without_a_master_is_read_only_for_others_too():
    """Its slaves serve consumers."""
    queues = {"T": TopicQueues(read=8, write=8, perm=6)}
    other = attrs.evolve(G2, addresses={2: ("10.0.1.2", 1)}, topics=queues)
    route = route_json([other], "T", None)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"2": "10.0.1.2:1"}
    assert queues_in(route) == [("g2", 8, 0, 4)]


def queues_in(route):
    """Return broker, read and write queues and permissions, as the route lists them."""
    assert [each["brokerName"] for each in route["brokerDatas"]] == [
        each["brokerName"] for each in route["queueDatas"]
    ]
    return [
        (queue["brokerName"], queue["readQueueNums"], queue["writeQueueNums"], queue["perm"])
        for queue in route["queueDatas"]
    ]


async def test_a_client_may_ask_for_the_group_only(tmp_path):
    """Hastore's own clients do, which speak to one group each; a stock client gets all groups."""
    other = attrs.evolve(G2, topics={"T": TopicQueues(read=8, write=8, perm=6)})
    other = attrs.evolve(other, topics={**other.topics, DEFAULT_TOPIC: other.topics["T"]})
    open_one = partial(hastore.open_node, directory=Directory((), (other,)))
    config = node_config(tmp_path, 1, (1,))
    remoting = attrs.evolve(config.remoting, auto_create_topic_enable=False)
    async with open_one(attrs.evolve(config, remoting=remoting)) as node:
        node.directory.known = known(node.address, master=node.address)
        await promote(node)
        async with AdminClient.connect(node.address) as admin:
            await admin.create_topic("T", read_queue_nums=2)
        async with open_remoting_client(node.address) as client:
            answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": DEFAULT_TOPIC})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST, "of itself it has nothing to say"
            for fields, names in [({}, ["g1", "g2"]), ({GROUP_ONLY: "true"}, ["g1"])]:
                answer = await client.invoke(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", **fields}
                )
                route = json.loads(answer.body)
                assert [each["brokerName"] for each in route["brokerDatas"]] == names
        assert node.directory.topics is not None, "the master has said which topics it has"


@pytest.mark.parametrize("directory", [None, Directory(), Directory((), (G2,))])
def test_a_node_that_knows_nothing_answers_for_itself(directory):
    """As it does without a directory."""
    (broker,) = brokers_of(target(A, directory), A)
    assert (broker.broker_name, broker.addresses) == ("hastore-a", {0: A})
    (broker,) = brokers_of(target(A, directory, is_slave=True), A)
    assert broker.addresses == {1: A}


async def test_without_a_directory_a_group_is_still_one_broker(tmp_path):
    """By its name, whatever its nodes are called: a client keeps its queues after a failover."""
    config = attrs.evolve(node_config(tmp_path, 2), name="n2")
    async with hastore.open_node(config) as node:
        await promote(node)
        async with AdminClient.connect(node.address) as admin:
            await admin.create_topic("T", read_queue_nums=2)
            route = await admin.route("T")
        assert [each["brokerName"] for each in route["brokerDatas"]] == ["g1"]
        assert (node.name, node.status().name) == ("n2", "n2")


def test_wildcards_are_no_addresses():
    """The own one is where the client has reached it; nobody reaches another's."""
    wild, other = ("0.0.0.0", 1), ("0.0.0.0", 2)
    directory = Directory(known(wild, other, C, master=wild))
    (broker,) = brokers_of(target(wild, directory), A)
    assert broker.addresses == {0: A, 3: C}


async def test_a_client_of_one_node_finds_the_others_by_its_routes(tmp_path):
    """A producer that was given a slave only sends to the master, and to its successor."""
    directory = Directory()
    open_one = partial(hastore.open_node, directory=directory)
    with trio.fail_after(WITHIN_S):
        async with (
            open_one(node_config(tmp_path / "1", 1, (1, 2))) as one,
            open_one(node_config(tmp_path / "2", 2, (1, 2))) as two,
        ):
            addresses = one.address, two.address
            await promote(one, two, epoch=1)
            directory.known = known(*addresses, master=one.address)
            async with Producer.connect([two.address]) as producer:
                assert (await producer.send(Message("T", b"1"))).ok
                async with AdminClient.connect(two.address) as admin:
                    route = await admin.route("T")
                (broker,) = route["brokerDatas"]
                assert broker["brokerAddrs"]["0"] == f"127.0.0.1:{one.address[1]}"
                await promote(two, one, epoch=3, members={1, 2})
                directory.known = known(*addresses, master=two.address)
                assert (await producer.send(Message("T", b"2"))).ok
                assert producer.address == two.address
