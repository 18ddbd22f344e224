"""Nodes register at a name server: as what, when, again, and never in the way of anything."""

import contextlib
import json
import types
from functools import partial

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.broker.group_directory import KnownNode
from hastore.broker.groups.topic_config_manager import TopicConfigManager
from hastore.broker.naming import name_server_registration
from hastore.broker.naming.name_server_registration import (
    BrokerIdentity,
    NameServerRegistration,
    slave_id,
)
from hastore.broker.node.group_node import run_group_node
from hastore.broker.node.master_store import Promotion
from hastore.client.admin import AdminClient
from hastore.client.producer import Producer
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.message import Message
from hastore.setting import Kind
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore_cli.settings.kinds import parse_value
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.directory import Directory
from tests.support.nodes.group_nodes import group, node_config, promote
from tests.support.nodes.harness import master_config
from tests.support.waiting import eventually


@attrs.define(eq=False)
class NameServer:
    """One that records requests, and answers with ``code``."""

    address: tuple[str, int]
    code: int = 0
    requests: list = attrs.field(factory=list)
    connections: list = attrs.field(factory=list)
    routes: dict = attrs.field(factory=dict)  # topic to broker name to its row, as RocketMQ 4.9 has

    def ids(self, *codes):
        """Return code and broker id of the requests, in order, repeated ones once."""
        found = []
        for request in self.requests:
            one = request.code, request.ext_fields.get("brokerId")
            if request.code in codes and (not found or found[-1] != one):
                found.append(one)
        return found

    def topics(self):
        """Return the topics of the last registration."""
        last = [request for request in self.requests if request.code == 103][-1]
        return json.loads(last.body)["topicConfigSerializeWrapper"]

    async def serve(self, stream):
        self.connections.append(stream)
        reader = FrameReader(1 << 24)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                reader.feed(data)
                while (request := reader.next_command()) is not None:
                    self.requests.append(request)
                    await stream.send_all(encode_command(self.answer(request)))

    def answer(self, request):
        """Add what is registered; nothing but 216 takes a topic away."""
        topic = request.ext_fields.get("topic")
        if request.code == 103:
            table = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
            for name, row in table.items():
                brokers = self.routes.setdefault(name, {})
                brokers[request.ext_fields["brokerName"]] = row
        if request.code == 216:
            self.routes.pop(topic, None)
        if request.code == 105 and topic not in self.routes:
            return request.response(17)
        answer = request.response(self.code)
        if request.code == 105:
            rows = [{"brokerName": name} for name in self.routes[topic]]
            answer.body = json.dumps({"queueDatas": rows}).encode()
        return answer


@contextlib.asynccontextmanager
async def name_server():
    listener = await open_listener(ANY_PORT, "brokers")
    server = NameServer(bound_address(listener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, [trio.SocketListener(listener)])
        yield server
        nursery.cancel_scope.cancel()


async def test_a_master_registers_its_topics_again_when_one_is_new(tmp_path):
    """As broker id 0, with its HA port; more than one topic, even without any of its own."""
    async with name_server() as server:
        config = master_config(tmp_path, listen=ANY_PORT, name_servers=(server.address,))
        async with hastore.open_master(config) as master:
            await eventually(lambda: server.requests)
            (first,) = server.requests
            assert first.code == 103
            assert len(server.topics()["topicConfigTable"]) >= 2
            assert "TBW102" in server.topics()["topicConfigTable"]
            assert first.ext_fields["brokerAddr"] == f"127.0.0.1:{master.address[1]}"
            assert first.ext_fields["haServerAddr"] == f"127.0.0.1:{master.ha_address[1]}"
            async with Producer.connect(master.address) as producer:
                await producer.send(Message("orders", b""))
            await eventually(lambda: "orders" in server.topics()["topicConfigTable"])
    assert server.ids(103, 104) == [(103, "0"), (104, "0")]


@pytest.mark.parametrize("is_away", [False, True], ids=["connected", "later"])
async def test_a_name_server_forgets_a_deleted_topic(tmp_path, is_away):
    """By 216 if no other broker has it; else this broker's row loses its permissions.

    Also if the name server was away at that moment, and until the next start if the topic had a
    message.
    """
    async with name_server() as server:
        names = () if is_away else (server.address,)
        config = master_config(tmp_path, listen=ANY_PORT, name_servers=names)
        server.routes |= {"shared": {"other": {"perm": 6}}, "others": {"other": {"perm": 6}}}
        async with (
            hastore.open_master(config) as master,
            AdminClient.connect(master.address) as admin,
        ):
            mine = ("own", "shared", "kept")
            async with Producer.connect(master.address) as producer:
                for topic in (*mine, "others") if is_away else mine:
                    await admin.create_topic(topic, read_queue_nums=2)
                    if is_away:
                        await producer.send(Message(topic, b""))
            if is_away:
                for topic in mine:
                    server.routes.setdefault(topic, {})[config.name] = {"perm": 6}
            else:
                await eventually(lambda: config.name in server.routes.get("kept", {}))
            for topic in "own", "shared", "others":
                await admin.delete_topic(topic)
            if not is_away:
                await eventually(lambda: "own" not in server.routes)
        if is_away:
            config = attrs.evolve(config, name_servers=(server.address,))
            async with hastore.open_master(config):
                await eventually(lambda: "own" not in server.routes)
        await eventually(lambda: server.routes["shared"][config.name]["perm"] == 0)
        assert server.routes["shared"]["other"] == {"perm": 6}
        assert list(server.routes["others"]) == ["other"]
        assert server.routes["kept"][config.name]["perm"] == 6
        deleted = [each.ext_fields["topic"] for each in server.requests if each.code == 216]
        assert deleted == ["own"]


async def test_a_node_registers_where_its_group_knows_it(tmp_path):
    """With the advertised host: a name server sees only one address of a node that has several."""
    async with name_server() as server:
        config = attrs.evolve(
            node_config(tmp_path, 1, listen=("0.0.0.0", 0), ha_listen=("0.0.0.0", 0)),
            name_servers=(server.address,),
        )
        directory = Directory()
        async with trio.open_nursery() as nursery:
            run = partial(run_group_node, config, real_env(), directory=directory)
            node = await nursery.start(run)
            own = KnownNode(
                node_id=1, client_address=("n1", node.address[1]), is_master=True, is_own=True
            )
            directory.known = (own,)
            await node.become_master(Promotion(epoch=1, members=frozenset({1})))
            await eventually(lambda: (103, "0") in server.ids(103))
            (found, *_) = [each for each in server.requests if each.ext_fields["brokerId"] == "0"]
            assert found.ext_fields["brokerAddr"] == f"n1:{node.address[1]}"
            assert found.ext_fields["haServerAddr"] == f"n1:{node.ha_address[1]}"
            nursery.cancel_scope.cancel()


async def test_a_failover_is_registered_with_its_epoch(tmp_path):
    """Slaves under their node ids; the new master as 0, with the epoch as stateVersion."""
    async with name_server() as server:
        async with group(tmp_path, 2, name_servers=(server.address,)) as (one, two):
            await promote(one, two, epoch=3)
            await eventually(lambda: (103, "0") in server.ids(103))
            assert server.topics()["dataVersion"]["stateVersion"] in {0, 3}
            await eventually(lambda: server.ids(103)[-1] == (103, "2") or len(server.ids(103)) > 2)
            before = len(server.requests)
            await one.follow(two.ha_address, None)
            await promote(two, one, epoch=4, members={1, 2})

            def masters():
                return [
                    request
                    for request in server.requests[before:]
                    if request.code == 103 and request.ext_fields["brokerId"] == "0"
                ]

            await eventually(masters)
            (new, *_) = masters()
            assert new.ext_fields["brokerAddr"] == f"127.0.0.1:{two.address[1]}"
            assert new.ext_fields["brokerName"] == "g1"
            wrapper = json.loads(new.body)["topicConfigSerializeWrapper"]
            assert wrapper["dataVersion"]["stateVersion"] == 4
    # A group's master is forgotten with its connection: by id it could be its successor.
    assert (104, "0") not in server.ids(104)


async def test_a_name_server_that_is_down_is_tried_again_and_named_once(tmp_path):
    """The node serves meanwhile; once the server is there, it is told."""
    listener = await open_listener(ANY_PORT, "brokers")
    address = bound_address(listener)
    listener.close()
    config = master_config(tmp_path, listen=ANY_PORT, name_servers=(address,))
    async with hastore.open_master(config) as master:
        async with Producer.connect(master.address) as producer:
            assert (await producer.send(Message("T", b""))).status.stored
        listener = await open_listener(address, "brokers")
        server = NameServer(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, server.serve, [trio.SocketListener(listener)])
            await eventually(lambda: server.requests)
            nursery.cancel_scope.cancel()


@attrs.define
class Target:
    """A node, as far as a registration needs one."""

    config: object = types.SimpleNamespace(cluster="c")
    address: tuple[str, int] = ("0.0.0.0", 10911)
    directory: object = None
    epoch: int | None = None


def registration_at(server, **settings):
    topics = TopicConfigManager(4, auto_create=True, now_ms=lambda: 1, topics_max=100)
    identity = BrokerIdentity(
        broker_name="bk", broker_id=2, epoch=None, ha_address=None, is_of_group=True
    )
    made = NameServerRegistration(Target(), identity, topics, (server.address,), **settings)
    return made, topics


async def test_it_registers_from_time_to_time():
    """Also if nothing changes; of a wildcard it names the host that the server sees."""
    async with name_server() as server, trio.open_nursery() as nursery:
        registration, _ = registration_at(server, interval_s=0.01)
        nursery.start_soon(registration.run)
        await eventually(lambda: len(server.requests) >= 4)
        nursery.cancel_scope.cancel()
    assert {request.ext_fields["brokerAddr"] for request in server.requests} == {"127.0.0.1:10911"}


async def test_a_closed_connection_is_noticed_at_once():
    """Not after the interval: the server has forgotten the node."""
    async with name_server() as server, trio.open_nursery() as nursery:
        registration, _ = registration_at(server)
        nursery.start_soon(registration.run)
        await eventually(lambda: len(server.requests) == 1)
        await server.connections[0].aclose()
        with trio.fail_after(WITHIN_S / 3):
            await eventually(lambda: len(server.requests) >= 2)
        nursery.cancel_scope.cancel()


async def test_a_refusal_is_tried_again():
    """With back-off."""
    async with name_server() as server, trio.open_nursery() as nursery:
        server.code = 1
        registration, _ = registration_at(server)
        nursery.start_soon(registration.run)
        await eventually(lambda: server.requests)
        server.code = 0
        await eventually(lambda: len(server.requests) >= 2)
        nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()


async def test_forgotten_topics_never_keep_a_registration_waiting(monkeypatch):
    """Many at once are withdrawn in rounds, and new topics are shown first.

    One that another broker has keeps this broker's row: the next message makes it again.
    """
    monkeypatch.setattr(name_server_registration, "WITHDRAWN_AT_ONCE", 3)
    async with name_server() as server, trio.open_nursery() as nursery:
        registration, topics = registration_at(server)
        registration.identity = attrs.evolve(registration.identity, broker_id=0)
        for name in ("a", *map(str, range(10))):
            topics.find_for_send(name, "owner")
        nursery.start_soon(registration.run)
        await eventually(lambda: "a" in server.routes)
        await trio.testing.wait_all_tasks_blocked(0.1)  # its answer has come
        server.routes["a"]["other"] = {"perm": 6}
        del server.requests[:]
        for name in tuple(topics.topics):
            topics._forget(name)
        topics.find_for_send("new", "owner")
        await eventually(lambda: not server.routes.keys() & set(map(str, range(10))))
        await eventually(lambda: [each.code for each in server.requests].count(105) == 11)
        nursery.cancel_scope.cancel()
    codes = [request.code for request in server.requests]
    assert codes[0] == 103
    assert (
        "new"
        in json.loads(server.requests[0].body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    )
    asked = [code for code in codes if code in {103, 105}]
    rounds = "".join("r" if code == 103 else "q" for code in asked).strip("r").split("r")
    assert max(map(len, rounds)) == 3
    assert server.routes["a"]["bk"]["perm"] == 6
    assert codes.count(216) == 10


async def test_a_slave_unregisters_at_the_end():
    """Under its own id."""
    async with name_server() as server:
        async with trio.open_nursery() as nursery:
            registration, _ = registration_at(server)
            nursery.start_soon(registration.run)
            await eventually(lambda: server.requests)
            nursery.cancel_scope.cancel()
        await eventually(lambda: server.ids(103, 104) == [(103, "2"), (104, "2")])


def test_ids_of_slaves():
    """Their node's, or 1."""
    assert (slave_id(None), slave_id(3)) == (1, 3)


def test_name_servers_are_written_as_rocketmq_does_too():
    """With commas or semicolons; each once."""
    parse = partial(parse_value, Kind.ADDRESSES)
    assert parse("n1:9876;n2:9876, n1:9876") == (("n1", 9876), ("n2", 9876))
    assert parse("") == ()
    with pytest.raises((ValueError, ConfigError)):
        parse("n1")
