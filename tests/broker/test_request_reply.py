"""Request-reply: CLUSTER on each stored message, the reply topic, and pushed replies."""

import contextlib
import json
import logging
import tracemalloc

import attrs
import pytest
import trio

from hastore.access.permissions_file import parse_permissions
from hastore.broker import client_requests
from hastore.broker.access.node_access import NodeAccess
from hastore.broker.groups.producer_manager import Member, ProducerManager
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.store.record.layout import TEXT_SIZE_MAX
from hastore.wire.property_text import read_properties
from hastore.wire.remoting_codes import FLAG_ONE_WAY, FLAG_RESPONSE, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import write_batch
from tests.broker.pull_answers import messages
from tests.patience import WITHIN_S
from tests.support.nodes.access_keys import ACCOUNTS, ADMIN_KEY, POOR_KEY, USER_KEY, signed
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import (
    REPLY_TOPIC,
    all_dispatched,
    open_master,
    open_slave,
    pull_command,
)
from tests.support.waiting import eventually

CLIENT_ID = "10.0.0.7@4711#1"
ANSWER_FIELDS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
REPLY = {
    "MSG_TYPE": "reply",
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": CLIENT_ID,
    "TTL": "3000",
}
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


def heartbeat(client_id=CLIENT_ID, groups=("requesters",), opaque=1):
    body = {"clientID": client_id, "producerDataSet": [{"groupName": group} for group in groups]}
    return RemotingCommand(code=34, opaque=opaque, body=json.dumps(body).encode())


def reply(code=325, *, opaque=9, properties=REPLY, topic=REPLY_TOPIC, flag=0, **changes):
    """Return a reply as Java's clients send it: the fields of 10 (324) or of 310 (325)."""
    command = send_command(opaque, topic=topic, properties=properties, body=b"answer", **changes)
    fields = command.ext_fields
    if code == 324:
        fields = {LONG_NAMES[name]: fields[name] for name in LONG_NAMES}
    return attrs.evolve(command, code=code, ext_fields=fields, flag=flag)


@contextlib.asynccontextmanager
async def requester_and_replier(target=None, config=None, **options):
    """Serve a node, with a requester that has sent its heartbeat, and a replier."""
    target = target or InMemoryTarget()
    async with (
        serving(target, config, **options) as (server, address),
        raw_client(address) as requester,
        raw_client(address) as replier,
    ):
        if "access" not in options:
            assert (await requester.ask(heartbeat())).code == 0
        yield server, requester, replier


# -- CLUSTER -------------------------------------------------------------------------------------


async def test_each_stored_message_carries_the_name_of_the_cluster(tmp_path):
    """In both forms of a send, with and without properties, in each of a batch, and once only."""
    long = send_command(2, properties={"KEYS": "k"})
    long.code = 10
    long.ext_fields = {LONG_NAMES[name]: long.ext_fields[name] for name in LONG_NAMES}
    batch = send_command(
        3,
        body=write_batch([Message("T", b"a", properties={"KEYS": "k"}), Message("T", b"b")]),
        ext_fields={"m": "true"},
    )
    batch.code = 320
    sends = (
        send_command(1, properties={"UNIQ_KEY": "u"}),  # as the fast path reads it
        send_command(4),
        send_command(5, properties={"CLUSTER": "Another"}),
        send_command(6, properties={"KEYS": "ü"}, serialize_type=SerializeType.ROCKETMQ),
        long,
        batch,
    )
    store = {"append_prop_crc": False}
    async with open_master(tmp_path, store) as master, raw_client(master.address) as client:
        for command in sends:
            assert (await client.ask(command)).code == 0
        await all_dispatched(master)
        stored = messages(await client.ask(pull_command()))
    assert [message.properties for message in stored] == [
        {"UNIQ_KEY": "u", "CLUSTER": "DefaultCluster"},
        {"CLUSTER": "DefaultCluster"},
        {"CLUSTER": "DefaultCluster"},
        {"KEYS": "ü", "CLUSTER": "DefaultCluster"},
        {"KEYS": "k", "CLUSTER": "DefaultCluster"},
        {"KEYS": "k", "CLUSTER": "DefaultCluster"},
        {"CLUSTER": "DefaultCluster"},
    ]


@pytest.mark.parametrize("is_batch", [False, True])
async def test_the_clusters_name_counts_for_the_size_of_the_properties(tmp_path, is_batch):
    """A record has 32,767 bytes of properties, in RocketMQ, too; one byte more is refused."""
    own = len("K\x01\x02CLUSTER\x01DefaultCluster\x02")
    store = {"append_prop_crc": False}
    async with open_master(tmp_path, store) as master, raw_client(master.address) as client:
        for too_many, code in ((0, 0), (1, 13)):
            properties = {"K": "v" * (TEXT_SIZE_MAX - own + too_many)}
            command = send_command(properties=properties)
            if is_batch:
                body = write_batch([Message("T", b"a", properties=properties)])
                command = send_command(body=body, ext_fields={"m": "true"})
                command.code = 320
            answer = await client.ask(command)
            assert answer.code == code
        assert "with CLUSTER" in answer.remark


# -- the reply topic -----------------------------------------------------------------------------


async def test_the_reply_topic_exists_from_the_start_and_nobody_changes_it(tmp_path):
    """It has one queue, a route on the master and its slave, and takes messages."""
    async with (
        open_master(tmp_path / "m", auto_create_topic_enable=False) as master,
        open_slave(
            tmp_path / "s",
            master,
            master_client=master.address,
            auto_create_topic_enable=False,
        ) as slave,
        raw_client(master.address) as client,
        raw_client(slave.address) as reader,
    ):
        route = RemotingCommand(code=105, ext_fields={"topic": REPLY_TOPIC})

        async def queues(client):
            answer = await client.ask(route)
            return json.loads(answer.body)["queueDatas"] if answer.code == 0 else None

        (queue,) = await queues(client)
        assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (1, 1, 6)
        table = json.loads((await client.ask(RemotingCommand(code=21))).body)
        assert list(table["topicConfigTable"]) == [REPLY_TOPIC]
        for code in (17, 215):
            fields = {"topic": REPLY_TOPIC, "readQueueNums": "4", "writeQueueNums": "4"}
            answer = await client.ask(RemotingCommand(code=code, ext_fields=fields))
            assert answer.code == 1
            assert "the broker's own" in answer.remark
        with trio.fail_after(WITHIN_S):
            while (copied := await queues(reader)) is None:
                pass
        assert (copied[0]["readQueueNums"], copied[0]["writeQueueNums"]) == (1, 0)
        assert (await client.ask(send_command(topic=REPLY_TOPIC))).code == 0


async def test_a_cluster_whose_name_no_topic_can_have_has_no_reply_topic(caplog):
    """The node serves without it, and says so."""
    caplog.set_level(logging.WARNING)
    async with serving(InMemoryTarget(cluster="of cats")) as (server, _):
        assert server.data.topics.topics == {}
    assert "reply_topic_refused" in caplog.text


# -- pushed replies ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [324, 325])
async def test_a_reply_is_pushed_to_its_requester_whose_answer_is_awaited(code):
    """The push has the reply's fields in the long form, and the reply is not stored."""
    target = InMemoryTarget()
    async with requester_and_replier(target) as (_, requester, replier):
        sent = reply(code)
        await replier.send(sent)
        pushed = await requester.receive()
        assert (pushed.code, pushed.flag, pushed.body) == (326, 0, b"answer")
        fields = dict(pushed.ext_fields)
        properties = read_properties(fields.pop("properties"))
        stored_at = fields.pop("storeTimestamp")
        assert properties == {**REPLY, "PUSH_REPLY_TIME": stored_at}
        host, port = replier.sock.getsockname()
        assert fields.pop("bornHost") == f"{host}:{port}"
        host, port = replier.sock.getpeername()
        assert fields.pop("storeHost") == f"{host}:{port}"
        assert fields == {
            "producerGroup": "g",
            "topic": REPLY_TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "8",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "0",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        # What comes meanwhile is answered.
        assert (await replier.ask(send_command(10))).opaque == 10
        await requester.send(RemotingCommand(code=0, opaque=pushed.opaque, flag=FLAG_RESPONSE))
        answer = await replier.receive()
    place = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
    assert (answer.opaque, answer.code) == (9, 0)
    assert answer.ext_fields == {**ANSWER_FIELDS, **place}
    assert [message.topic for message in target.messages] == ["T"]


@pytest.mark.parametrize("how", ["refused", "gone", "silent", "too large"])
async def test_a_reply_that_its_requester_does_not_take_is_refused(how, monkeypatch):
    """By code 1, as in RocketMQ, whether it answers so, leaves, or says nothing."""
    if how == "silent":
        monkeypatch.setattr(client_requests, "ANSWER_TIMEOUT_S", 0.01)
    async with requester_and_replier() as (_, requester, replier):
        await replier.send(reply())
        pushed = await requester.receive()
        answer = RemotingCommand(code=1, opaque=pushed.opaque, flag=FLAG_RESPONSE)
        if how == "refused":
            await requester.send(answer)
        elif how == "gone":
            requester.sock.close()
        elif how == "too large":
            await requester.send(attrs.evolve(answer, code=0, body=bytes(1 << 21)))
        refused = await replier.receive()
    assert (refused.opaque, refused.code) == (9, 1)
    assert refused.remark == f"push reply message to {CLIENT_ID}fail."
    assert refused.ext_fields == ANSWER_FIELDS


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"properties": {"CORRELATION_ID": "c"}}, 1, "properties[REPLY_TO_CLIENT] is null"),
        (
            {"properties": {"REPLY_TO_CLIENT": "another"}},
            1,
            "push reply message fail, channel of <another> not found.",
        ),
        ({"topic": "a b"}, 13, "topic"),
        ({"ext_fields": {"e": "many"}}, 1, "ext field e is not an integer"),
        ({"properties": {"TRAN_MSG": "true"}}, 16, "transactional"),
    ],
)
async def test_a_reply_is_checked_as_a_message_that_is_sent(changes, code, remark):
    """And the requester must be connected."""
    async with requester_and_replier() as (_, _, replier):
        answer = await replier.ask(reply(**changes))
    assert answer.code == code
    assert remark in answer.remark


async def test_a_slave_takes_no_replies():
    """Its clients find the master by the route."""
    async with requester_and_replier(InMemoryTarget(role=BrokerRole.SLAVE)) as (_, _, replier):
        assert (await replier.ask(reply())).code == 14


async def test_a_one_way_reply_is_pushed_and_not_answered():
    """The answer that comes next is to the request after it."""
    async with requester_and_replier() as (_, requester, replier):
        await replier.send(reply(flag=FLAG_ONE_WAY))
        pushed = await requester.receive()
        await requester.send(RemotingCommand(code=0, opaque=pushed.opaque, flag=FLAG_RESPONSE))
        assert (await replier.ask(send_command(10))).opaque == 10


async def test_an_answer_counts_on_the_connection_that_was_asked():
    """Another client that guesses the number of the request changes nothing."""
    async with requester_and_replier() as (_, requester, replier):
        await replier.send(reply())
        pushed = await requester.receive()
        answer = RemotingCommand(code=0, opaque=pushed.opaque, flag=FLAG_RESPONSE)
        await replier.send(answer, send_command(10))
        assert (await replier.receive()).opaque == 10
        await requester.send(attrs.evolve(answer, code=1))
        assert (await replier.receive()).code == 1


async def test_a_client_id_is_its_last_connections_until_it_leaves():
    """A connection leaves by its end, by 35, and by a heartbeat without producer groups."""
    leave = RemotingCommand(
        code=35, opaque=2, ext_fields={"clientID": CLIENT_ID, "producerGroup": "requesters"}
    )

    async def answer_of(replier):
        return (await replier.ask(reply())).remark

    async with requester_and_replier() as (server, requester, replier):
        async with raw_client(requester.sock.getpeername()) as again:
            assert (await again.ask(heartbeat())).code == 0
            await replier.send(reply())
            assert (await again.receive()).code == 326
        producers = server._processors.consumers.producers
        await eventually(lambda: producers.find(CLIENT_ID) is None)
        assert "fail." in (await replier.receive()).remark
        for way_out in (leave, heartbeat(groups=())):
            assert (await requester.ask(heartbeat())).code == 0
            assert producers.find(CLIENT_ID) is not None
            assert (await requester.ask(way_out)).code == 0
            assert "not found" in await answer_of(replier)


def test_another_owner_does_not_take_over_a_client_id():
    """While its connection is open; afterwards it does."""

    @attrs.define(eq=False)
    class Client:
        owner: str
        is_closed: bool = False

    first, again, other = Client("key a"), Client("key a"), Client("key b")
    member = Member(client_id="c", language="JAVA", version=409)
    producers = ProducerManager()
    for client, found in ((first, first), (other, first), (again, again)):
        producers.heartbeat(client, member, ["g"])
        assert producers.find("c") is found
    assert set(producers.members("g")) == {first, again, other}
    again.is_closed = True
    assert producers.find("c") is None
    producers.heartbeat(other, member, ["g"])
    assert producers.find("c") is other


async def test_the_replies_of_one_owner_are_limited():
    """By how many wait for an answer, and by how many come within a minute."""
    config = RemotingConfig(pushed_replies_per_owner_max=2, pushed_replies_per_minute_max=3)
    target = InMemoryTarget()
    async with requester_and_replier(target, config) as (_, requester, replier):
        await replier.send(reply(opaque=1), reply(opaque=2), reply(opaque=3))
        refused = await replier.receive()
        assert (refused.opaque, refused.code) == (3, 1)
        assert "pushed_replies_per_owner_max" in refused.remark
        for _ in range(2):
            pushed = await requester.receive()
            await requester.send(RemotingCommand(code=0, opaque=pushed.opaque, flag=FLAG_RESPONSE))
            assert (await replier.receive()).code == 0
        await replier.send(reply(opaque=4), reply(opaque=5))
        refused = await replier.receive()
        assert (refused.opaque, refused.code) == (5, 1)
        assert "pushed_replies_per_minute_max" in refused.remark
    assert dict(target.quota_refusals.counts) == {
        "pushed_replies_per_owner_max": 1,
        "pushed_replies_per_minute_max": 1,
    }


async def test_a_reply_is_not_kept_until_its_requester_answers():
    """A thousand of 4 MiB would be the memory of the node."""
    size = 1 << 20
    async with requester_and_replier() as (_, requester, replier):
        tracemalloc.start()
        try:
            for opaque in range(8):
                await replier.send(attrs.evolve(reply(opaque=opaque), body=bytes(size)))
                assert len((await requester.receive()).body) == size
            assert (await replier.ask(send_command(10))).opaque == 10
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 4 * size


async def test_each_key_may_send_replies_unless_its_account_says_otherwise():
    """To the reply topic of the node's cluster, and nothing else by default."""
    denied = ACCOUNTS.replace(
        "topicPerms: [orders=PUB|SUB]", f"topicPerms: [orders=PUB|SUB, {REPLY_TOPIC}=DENY]"
    )
    table = parse_permissions(denied.encode(), "acl.yml")
    access = NodeAccess(real_env(), table, None, "acl.yml")
    async with requester_and_replier(access=access) as (_, requester, replier):
        assert (await requester.ask(signed(heartbeat(), ADMIN_KEY))).code == 0
        route = RemotingCommand(code=105, ext_fields={"topic": REPLY_TOPIC})
        assert (await replier.ask(signed(route, POOR_KEY))).code == 0
        await replier.send(signed(reply(), POOR_KEY))
        assert (await requester.receive()).code == 326
        refused = (
            signed(reply(), USER_KEY),
            signed(reply(topic="another_REPLY_TOPIC"), POOR_KEY),
            signed(pull_command(topic=REPLY_TOPIC), POOR_KEY),
        )
        for command in refused:
            answer = await replier.ask(command)
            assert "accessDenied" in answer.ext_fields
        for topic in ("orders", "%RETRY%billing"):  # on which it has PUB
            answer = await replier.ask(signed(reply(topic=topic), USER_KEY))
            assert (answer.code, REPLY_TOPIC in answer.remark) == (13, True)
