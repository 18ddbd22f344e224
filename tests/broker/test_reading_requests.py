"""Requests of readers other than pulls, on real nodes, through AdminClient and as raw frames."""

from __future__ import annotations

import json
import re
import threading

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hastore.broker.groups import consumer_processors
from hastore.broker.pulls.message_by_offset import NOT_FOUND
from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.errors import RequestFailedError
from hastore.message import Message
from hastore.store.log import cold_read
from hastore.store.message_store import MessageStore
from hastore.store.record import message_codec
from hastore.wire.config_tables import SubscriptionGroupConfig
from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import RemotingCommand
from tests.patience import PROCESS_WITHIN_S, WITHIN_S
from tests.support.env.fake_env import FakeClock
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.reading import (
    dispatched,
    of_users,
    open_master,
    open_slave,
    pull_command,
    put,
)
from tests.support.waiting import eventually

# -- offsets and single messages -----------------------------------------------------------------


@pytest.mark.parametrize("cold_distance", [0, 1 << 30], ids=["cold", "hot"])
async def test_messages_are_found_by_offset_time_key_and_id(tmp_path, monkeypatch, cold_distance):
    """A queue also has bounds and an oldest store time; a query may have a time window."""
    monkeypatch.setattr(cold_read, "COLD_DISTANCE", cold_distance)
    clock = FakeClock()
    env = attrs.evolve(real_env(), wall_clock=clock)
    async with (
        open_master(tmp_path, env=env) as master,
        AdminClient.connect(master.address) as admin,
    ):
        results = []
        for n in range(6):
            properties = {"KEYS": f"k{n % 2} all", "UNIQ_KEY": f"U{n}"}
            results += await put(master, bodies=[b"%d" % n], queue_id=3, properties=properties)
            clock.ms += 3
        times = [result.store_timestamp_ms for result in results]
        assert (await admin.min_offset("T", 3), await admin.max_offset("T", 3)) == (0, 6)
        assert await admin.max_offset("T", 4) == await admin.max_offset("unknown", 0) == 0
        assert await admin.search_offset("T", 3, times[2]) == 2
        assert await admin.search_offset("T", 3, times[5] + 1) == 6
        assert await admin.earliest_store_time_ms("T", 3) == times[0]
        assert await admin.earliest_store_time_ms("T", 4) is None
        found = await admin.query_message("T", "k1")
        assert [message.body for message in found] == [b"5", b"3", b"1"]
        window = await admin.query_message("T", "all", begin_ms=times[1], end_ms=times[2])
        assert [message.body for message in window] == [b"2", b"1"]
        assert [message.body for message in await admin.query_message("T", "U4")] == [b"4"]
        assert len(await admin.query_message("T", "all", count_max=2)) == 2
        assert await admin.query_message("T", "nobody") == []
        viewed = await admin.view_message(results[4].physic_offset)
        assert (viewed.body, viewed.queue_offset) == (b"4", 4)


async def test_a_query_checks_each_record_in_a_turn_of_its_own(tmp_path, monkeypatch):
    """Each check reads a unit, perhaps from a disk; and no more are checked than are answered."""
    turns = 0
    checked_in = []
    is_in_queue = MessageStore.is_in_queue

    class Turns(trio.abc.Instrument):
        def after_io_wait(self, timeout):
            nonlocal turns
            turns += 1

    def check(store, record):
        checked_in.append(turns)
        return is_in_queue(store, record)

    monkeypatch.setattr(MessageStore, "is_in_queue", check)
    async with (
        open_master(tmp_path, pull_size_max=5_000) as master,
        AdminClient.connect(master.address) as admin,
    ):
        trio.lowlevel.add_instrument(Turns())
        await put(master, bodies=[b"%d" % n for n in range(20)], properties={"KEYS": "all"})
        assert len(await admin.query_message("T", "all")) == 20
        assert len(set(checked_in)) == 20
        checked_in.clear()
        await put(master, bodies=[bytes(1_000)] * 20, properties={"KEYS": "large"})
        found = await admin.query_message("T", "large")
        assert 0 < len(found) < 20
        assert len(checked_in) <= len(found) + 1


async def test_a_slow_query_does_not_delay_other_requests(tmp_path, monkeypatch):
    """It runs in a thread, and a second query does not take another thread meanwhile."""
    gate = threading.Event()
    running = []

    def query_message(*_args, **_limits):
        running.append(1)
        gate.wait(PROCESS_WITHIN_S)
        return []

    monkeypatch.setattr(MessageStore, "query_message", query_message)
    query = RemotingCommand(code=12, ext_fields={"topic": "T", "key": "k"})
    async with (
        open_master(tmp_path) as master,
        raw_client(master.address) as one,
        raw_client(master.address) as two,
        raw_client(master.address) as other,
    ):
        try:
            for asking in one, two:
                await asking.send(query)
            await eventually(lambda: running)
            with trio.fail_after(WITHIN_S):
                await put(master)
                assert (await other.ask(pull_command())).code == 0
            assert len(running) == 1
        finally:
            gate.set()
        with trio.fail_after(WITHIN_S):
            assert [(await client.receive()).code for client in (one, two)] == [22, 22]


@pytest.mark.parametrize("where", ["inside", "end", "behind", "negative"])
async def test_view_message_fails_where_no_message_begins(tmp_path, where):
    """Within a record, at the log's end, after it or below 0."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        (result,) = await put(master)
        offset = {
            "inside": result.physic_offset + 4,
            "end": result.next_offset,
            "behind": 1 << 50,
            "negative": -1,
        }[where]
        with pytest.raises(RequestFailedError, match=re.escape(NOT_FOUND)):
            await admin.view_message(offset)


# -- topics and groups ---------------------------------------------------------------------------


async def test_created_topics_and_groups_are_listed_and_persisted(tmp_path):
    """They are also on the disk, in the route, and there after a restart."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        await admin.create_topic("T", read_queue_nums=4, write_queue_nums=2, perm=4)
        await admin.create_group(SubscriptionGroupConfig(group="g", retry_max_times=3))
        on_disk = json.loads((tmp_path / "config/topics.json").read_text())
        assert on_disk["topicConfigTable"]["T"]["writeQueueNums"] == 2
        queue = (await admin.route("T"))["queueDatas"][0]
        assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (4, 2, 4)
        await admin.update_offset("g", "T", 1, 0)
        await put(master, "embedded")
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        topics = await admin.topics()
        assert sorted(of_users(topics)) == ["T", "embedded"]
        assert (topics["T"].read_queue_nums, topics["T"].perm) == (4, 4)
        assert (await admin.groups())["g"].retry_max_times == 3
        assert await admin.consumer_offsets() == {("T", "g"): {1: 0}}
        assert await admin.query_offset("g", "T", 1) == 0


@pytest.mark.parametrize(
    ("topic", "queue_nums", "named"),
    [("a b", 1, "allowed are"), ("TBW102", 1, "own"), ("T", 0, "0 read queues")],
)
async def test_an_invalid_topic_is_refused(tmp_path, topic, queue_nums, named):
    """The remark names the fault, and no topic is created."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        with pytest.raises(RequestFailedError, match=named):
            await admin.create_topic(topic, read_queue_nums=queue_nums)
        assert of_users(await admin.topics()) == []


async def test_without_auto_creation_an_administrator_creates_topics(tmp_path):
    """An unknown topic has no route, no pulls and no offsets."""
    async with (
        open_master(tmp_path, auto_create_topic_enable=False) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as client,
    ):
        with pytest.raises(RequestFailedError, match="does not exist"):
            await admin.route("T")
        assert (await client.ask(pull_command())).code == 17
        with pytest.raises(RequestFailedError, match="does not exist"):
            await admin.update_offset("g", "T", 0, 0)
        await admin.create_topic("T", read_queue_nums=1)
        assert (await client.ask(pull_command())).code == 19


async def test_a_slave_lists_topics_but_creates_none(tmp_path):
    """It knows its master's topics from the log and refuses all changes."""
    async with open_master(tmp_path / "m") as master:
        (result,) = await put(master, "T", queue_id=11)
        async with (
            open_slave(tmp_path / "s", master) as slave,
            AdminClient.connect(slave.address) as admin,
            raw_client(slave.address) as client,
        ):
            assert (await admin.topics())["T"].read_queue_nums == 12
            assert (await admin.view_message(result.physic_offset)).body == b"body"
            for refused in (
                admin.create_topic("U", read_queue_nums=1),
                admin.create_group(SubscriptionGroupConfig(group="g")),
            ):
                with pytest.raises(RequestFailedError, match="is a slave"):
                    await refused
            back = RemotingCommand(code=36, ext_fields={"group": "g", "offset": 0})
            assert (await client.ask(back)).code == 14


# -- consumers -----------------------------------------------------------------------------------


async def test_a_group_without_an_offset_starts_at_0_or_decides_itself(tmp_path, monkeypatch):
    """The answer is 0 if that misses nothing and is near; otherwise there is no offset."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        assert await admin.query_offset("g", "T", 0) == 0
        await put(master)
        assert await admin.query_offset("g", "T", 0) == 0
        monkeypatch.setattr(consumer_processors, "RECENT_SIZE_MAX", 0)
        assert await admin.query_offset("g", "T", 0) is None
        await admin.update_offset("g", "T", 0, -1)
        assert await admin.query_offset("g", "T", 0) is None
        await admin.update_offset("g", "T", 0, 1)
        await admin.update_offset("g", "T", 0, 0)
        assert await admin.query_offset("g", "T", 0) == 0


async def test_members_are_notified_of_each_other(tmp_path):
    """The first one is notified of the second one's heartbeat and end; the lists agree."""

    def beat(client_id):
        data = HeartbeatData(client_id=client_id, consumers=(ConsumerData(group="g"),))
        return RemotingCommand(code=34, opaque=9, body=json.dumps(data.to_dict()).encode())

    async def asked(client, command):
        await client.send(command)
        notified = []
        while (answer := await client.receive()).opaque != command.opaque or answer.code == 40:
            notified.append(answer.ext_fields["consumerGroup"])
        return answer, notified

    listing = RemotingCommand(code=38, opaque=8, ext_fields={"consumerGroup": "g"})
    async with (
        open_master(tmp_path) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as one,
    ):
        assert await admin.members("g") == []
        assert (await one.ask(listing)).code == 1
        await asked(one, beat("one"))
        async with raw_client(master.address) as two:
            await asked(two, beat("two"))
            assert (await one.receive()).code == 40
            answer, _ = await asked(two, listing)
            assert json.loads(answer.body) == {"consumerIdList": ["one", "two"]}
            assert [row["clientId"] for row in await admin.members("g")] == ["one", "two"]
        assert (await one.receive()).ext_fields == {"consumerGroup": "g"}
        answer, _ = await asked(one, listing)
        assert json.loads(answer.body) == {"consumerIdList": ["one"]}
        farewell = {"clientID": "one", "consumerGroup": "g"}
        await asked(one, RemotingCommand(code=35, opaque=7, ext_fields=farewell))
        assert (await one.ask(listing)).code == 1
        assert "%RETRY%g" not in await admin.topics()
        assert not await admin.groups(), "it has committed nothing"
        await admin.update_offset("g", "T", 0, 0)
        assert "%RETRY%g" in await admin.topics()
        assert list(await admin.groups()) == ["g"]


async def test_queues_are_locked_for_one_client(tmp_path):
    """LOCK_BATCH_MQ returns the queues that it locked; UNLOCK_BATCH_MQ frees them."""

    def request(code, client_id):
        queues = [{"topic": "T", "brokerName": "hastore-a", "queueId": n} for n in range(2)]
        body = {"consumerGroup": "g", "clientId": client_id, "mqSet": queues}
        return RemotingCommand(code=code, body=json.dumps(body).encode())

    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        locked = [
            len(json.loads((await client.ask(request(code, who))).body or b'{"lockOKMQSet":"-"}')[
                "lockOKMQSet"
            ])
            for code, who in [(41, "a"), (41, "b"), (42, "b"), (41, "b"), (42, "a"), (41, "b")]
        ]  # fmt: skip
        assert locked == [2, 0, 1, 0, 1, 2]
        for body in (b"", b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T"}]}'):
            assert (await client.ask(RemotingCommand(code=41, body=body))).code == 1


# -- returned messages ---------------------------------------------------------------------------


async def return_message(master, client, offset, **fields):
    given = {"group": "g", "offset": offset, "delayLevel": 0, **fields}
    response = await client.ask(RemotingCommand(code=36, ext_fields=given))
    assert response.code == 0, response.remark
    await dispatched(master, master.max_offset)


def last_record(master):
    queues = master.message_store.consume_queues
    offset = max(
        queue.units(queue.max_offset - 1, 1)[0].physic_offset
        for queue in queues
        if queue.max_offset
    )
    return message_codec.decode(master.message_store.record_at(offset))


async def test_a_returned_message_is_stored_for_a_later_delivery(tmp_path):
    """It is delayed from level 3 upwards, and keeps its body, first topic and id."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        properties = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "U"}
        message = Message("T", b"body", flag=7, properties=properties, born_timestamp_ms=5)
        (first,) = [await master.put(message)]
        await dispatched(master, first.next_offset)
        await return_message(master, client, first.physic_offset)
        stored = last_record(master)
        second_offset = stored.physic_offset
    assert stored.topic == "SCHEDULE_TOPIC_XXXX"
    assert (stored.body, stored.flag, stored.born_timestamp_ms) == (b"body", 7, 5)
    assert stored.reconsume_times == 1
    wanted = {
        **properties,
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first.message_id,
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
        "DELAY": "3",
    }
    found = dict(stored.properties)
    found.pop("__CRC32#")
    assert found == wanted
    assert second_offset > first.physic_offset


@pytest.mark.parametrize(
    "fields", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}], ids=["as asked", "too often"]
)
async def test_a_message_returned_too_often_is_a_dead_letter(tmp_path, fields):
    """After its last attempt it goes to the group's %DLQ% topic at once."""
    async with (
        open_master(tmp_path) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as client,
    ):
        (first,) = await put(master, properties={"DELAY": "0"})
        await return_message(master, client, first.physic_offset, **fields)
        stored = last_record(master)
        topics = await admin.topics()
    assert (stored.topic, stored.queue_id, stored.body) == ("%DLQ%g", 0, b"body")
    assert "DELAY" not in stored.properties
    assert topics["%DLQ%g"].read_queue_nums == 1


async def test_returning_an_offset_without_a_message_is_refused(tmp_path):
    """Nothing is stored, and no group is made."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        fields = {"group": "g", "offset": 5, "delayLevel": 0}
        response = await client.ask(RemotingCommand(code=36, ext_fields=fields))
        assert (response.code, master.max_offset) == (1, 0)
        assert response.remark == NOT_FOUND
        answer = await client.ask(RemotingCommand(code=201))
        assert json.loads(answer.body)["subscriptionGroupTable"] == {}


async def test_a_group_without_retry_queues_gets_no_retries(tmp_path):
    """With retryQueueNums 0 the answer is a success, but nothing is stored."""
    async with (
        open_master(tmp_path) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as client,
    ):
        await admin.create_group(SubscriptionGroupConfig(group="g", retry_queue_nums=0))
        (first,) = await put(master)
        await return_message(master, client, first.physic_offset)
        assert master.max_offset == first.next_offset


# -- random requests -----------------------------------------------------------------------------

_CHANGING = {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER}
READING_CODES = [code for code in RequestCode if code not in {10, 310, 320, *_CHANGING}]
FIELDS = [
    "topic", "consumerGroup", "group", "queueId", "queueOffset", "offset", "timestamp", "key",
    "maxNum", "beginTimestamp", "endTimestamp", "commitOffset", "sysFlag", "maxMsgNums",
    "delayLevel", "subscription", "suspendTimeoutMillis", "clientID",
]  # fmt: skip
values = (
    st.integers(-(2**70), 2**70)
    | st.sampled_from(["T", "g", "", "0", "1", "x", "\x00", "%RETRY%", "\ud800", "9" * 5000])
    | st.none()
    | st.lists(st.none(), max_size=1)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(READING_CODES),
            st.dictionaries(st.sampled_from(FIELDS), values, max_size=8),
            st.sampled_from([b"", b"{}", b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}'])
            | st.binary(max_size=20),
        ),
        min_size=20,
        max_size=60,
    )
)
def test_random_requests_get_one_answer_each(tmp_path_factory, requests):
    """Each answer has its request's number, and the node serves the next request."""

    async def ask_all():
        data_dir = tmp_path_factory.mktemp("node")
        async with (
            open_master(data_dir, suspend_timeout_max_ms=1) as master,
            raw_client(master.address) as client,
        ):
            await put(master, bodies=[b"1", b"2"])
            with trio.fail_after(WITHIN_S):
                for opaque, (code, fields, body) in enumerate(requests, 1):
                    await client.send(
                        RemotingCommand(code=code, opaque=opaque, ext_fields=fields, body=body)
                    )
                    while True:
                        answer = await client.receive()
                        assert answer is not None, (code, fields, body)
                        if answer.is_response:
                            break
                    assert answer.opaque == opaque
                    assert answer.code == 0 or answer.remark, (code, fields, body)
                assert (await client.ask(pull_command(0))).code == 0

    trio.run(ask_all)
