"""Requests of mqadmin and dashboards, over a real socket, on masters and slaves."""

import contextlib
import json
import re
from collections.abc import Set as AbstractSet

import attrs
import trio

from hastore.broker.groups.consumer_processors import consumed_topics
from hastore.broker.observe import broker_stats
from hastore.broker.observe.broker_stats import BrokerStats
from hastore.broker.port import client_control_processors, statistics_processors
from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.store.message_store import MessageStore
from hastore.topic import OPERATORS_TOPICS
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import RemotingCommand
from tests.broker.pull_answers import bodies
from tests.patience import WITHIN_S
from tests.support.env.fake_env import START_MS, FakeClock
from tests.support.nodes import group_nodes
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import (
    REPLY_TOPIC,
    all_dispatched,
    open_master,
    open_slave,
    pull_command,
    put,
)

TOPIC_NOT_EXIST = 17
NAME = "hastore-a"


def tables_of(text):
    """Read JSON with queues as keys: what RocketMQ's fastjson writes, and no JSON reader takes."""
    keys = re.sub(r'\{("brokerName":"[^"]*","queueId":\d+,"topic":"[^"]*")\}:', _as_key, text)
    return json.loads(keys)


def _as_key(match):
    queue = json.loads(f"{{{match[1]}}}")
    return f'"{queue["brokerName"]} {queue["topic"]}/{queue["queueId"]}":'


async def ask(client, code, **fields):
    return await client.ask(RemotingCommand(code=code, opaque=5, ext_fields=fields))


async def answer(client, code, **fields):
    """Return an answer's body, read."""
    response = await ask(client, code, **fields)
    assert response.code == 0, response.remark
    return tables_of(response.body.decode())


@contextlib.asynccontextmanager
async def consumed_topic(path):
    """Run a master with 3 messages in T/0, each a second later, and the offset 2 of group g."""
    clock = FakeClock()
    async with (
        open_master(path, env=attrs.evolve(real_env(), wall_clock=clock)) as master,
        raw_client(master.address) as client,
    ):
        fields = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        assert (await ask(client, 17, **fields)).code == 0
        for second in (1, 2, 3):
            clock.ms = START_MS + second * 1_000
            await put(master, "T", [b"x"])
        offset = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "2"}
        assert (await ask(client, 15, **offset)).code == 0
        yield master, client, clock


async def test_how_far_a_group_has_consumed(tmp_path):
    """By queue, for one topic or all, also for a group that is not connected."""
    rows = {
        f"{NAME} T/0": {
            "brokerOffset": 3,
            "consumerOffset": 2,
            "lastTimestamp": START_MS + 2_000,
            "pullOffset": 2,
        },
        f"{NAME} T/1": {
            "brokerOffset": 0,
            "consumerOffset": 0,
            "lastTimestamp": 0,
            "pullOffset": 0,
        },
    }
    async with consumed_topic(tmp_path) as (master, client, _):
        for fields in ({}, {"topic": "T"}, {"topicList": "U;T"}):
            found = await answer(client, 208, consumerGroup="g", **fields)
            assert found == {"offsetTable": rows, "consumeTps": 0.0}
        text = (await ask(client, 208, consumerGroup="g")).body
        assert b'{"offsetTable":{{"brokerName":"hastore-a","queueId":0,"topic":"T"}:{' in text
        for fields in ({"consumerGroup": "g", "topic": "U"}, {"consumerGroup": "h"}):
            assert (await answer(client, 208, **fields))["offsetTable"] == {}
        all_of_them = await answer(client, 317)
        host, port = master.address
        assert all_of_them == {
            "consumeStatsList": [{"g": [{"offsetTable": rows, "consumeTps": 0.0}]}],
            "brokerAddr": f"{host}:{port}",
            "totalDiff": 1,
        }
        assert (await answer(client, 317, isOrder="true"))["consumeStatsList"] == []


async def test_topics_that_a_group_does_not_consume_any_more_are_left_out(tmp_path):
    """Those that are gone, and those to which a connected group has no subscription."""
    async with consumed_topic(tmp_path) as (_, client, _):
        body = {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "U"}]}],
        }
        await client.send(RemotingCommand(code=34, opaque=1, body=json.dumps(body).encode()))
        assert [(await client.receive()).code for _ in range(2)] == [40, 0]
        assert (await answer(client, 208, consumerGroup="g"))["offsetTable"] == {}
        assert (await answer(client, 300, topic="U")) == {"groupList": ["g"]}
        assert (await answer(client, 300, topic="T")) == {"groupList": ["g"]}
        assert (await answer(client, 300, topic="V")) == {"groupList": []}


async def test_the_offsets_and_times_of_a_topic(tmp_path):
    """202 is about its queues, 303 about a group in them."""
    async with consumed_topic(tmp_path) as (_, client, clock):
        clock.ms = START_MS + 10_000
        found = await answer(client, 202, topic="T")
        assert found == {
            "offsetTable": {
                f"{NAME} T/0": {
                    "lastUpdateTimestamp": START_MS + 3_000,
                    "maxOffset": 3,
                    "minOffset": 0,
                },
                f"{NAME} T/1": {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
            }
        }
        first, second = (await answer(client, 303, topic="T", group="g"))["consumeTimeSpanSet"]
        assert first == {
            "messageQueue": {"brokerName": NAME, "queueId": 0, "topic": "T"},
            "minTimeStamp": START_MS + 1_000,
            "maxTimeStamp": START_MS + 3_000,
            "consumeTimeStamp": START_MS + 2_000,
            "delayTime": 7_000,
        }
        assert (second["maxTimeStamp"], second["delayTime"]) == (0, 0)
        for code in (202, 303):
            assert (await ask(client, code, topic="U", group="g")).code == TOPIC_NOT_EXIST


async def test_an_answer_has_a_limited_number_of_queues(tmp_path, monkeypatch):
    """One more is refused, before any is looked at."""
    for module in (statistics_processors, client_control_processors):
        monkeypatch.setattr(module, "ROWS_MAX", 1)
    async with consumed_topic(tmp_path) as (_, client, _):
        for code in (202, 208, 222, 303, 317):
            refused = await ask(client, code, **reset(), consumerGroup="g")
            assert refused.code == 1
            assert "more than 1 queues" in refused.remark
        assert await offset_of(client) == 2


def test_the_topics_that_a_request_names_are_looked_up_by_hash():
    """Of 13,000 in a header, with a group of 1,000 topics, a search in turn took 3 s."""
    names = consumed_topics({"topicList": "U;T;;T", "topic": "V"})
    assert isinstance(names, AbstractSet)
    assert list(names) == ["U", "T", "V"]
    assert not consumed_topics({})


async def test_producers_and_system_topics(tmp_path):
    """204 has the members of a group, 305 the system topics, of which 17 makes two."""
    async with consumed_topic(tmp_path) as (_, client, _):
        body = {"clientID": "c@1", "producerDataSet": [{"groupName": "p"}]}
        heartbeat = RemotingCommand(
            code=34, opaque=1, body=json.dumps(body).encode(), language="JAVA", version=435
        )
        assert (await client.ask(heartbeat)).code == 0
        (row,) = (await answer(client, 204, producerGroup="p"))["connectionSet"]
        host, port = client.sock.getsockname()
        assert row == {
            "clientAddr": f"{host}:{port}",
            "clientId": "c@1",
            "language": "JAVA",
            "version": 435,
        }
        assert (await ask(client, 204, producerGroup="q")).code == 1
        topics = (await answer(client, 305))["topicList"]
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", NAME, REPLY_TOPIC} <= set(topics)
        for topic in topics:
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1"}
            assert (await ask(client, 17, **fields)).code == (topic not in OPERATORS_TOPICS)


async def test_a_log_that_cannot_be_read_does_not_hide_the_other_figures(tmp_path, monkeypatch):
    """Slaves ask 28, too."""
    async with consumed_topic(tmp_path) as (_, client, _):

        def unreadable(_store):
            raise DiskError("cannot read", path="log")

        monkeypatch.setattr(MessageStore, "earliest_time_steps", unreadable)
        table = (await answer(client, 28))["table"]
        assert (table["brokerName"], table["earliestMessageTimeStamp"]) == (NAME, "-1")


async def test_rates_under_both_spellings_and_counts_by_name(tmp_path):
    """28 has three figures for each rate; 315 counts puts by topic and gets by group."""
    async with consumed_topic(tmp_path) as (master, client, clock):
        clock.ms = START_MS + 60_000
        assert (await client.ask(send_command(topic="T"))).code == 0
        await all_dispatched(master)
        assert (await client.ask(pull_command(topic="T"))).code == 0
        table = (await answer(client, 28))["table"]
        assert table["brokerName"] == NAME
        assert table["earliestMessageTimeStamp"] == str(START_MS + 1_000)
        assert 0 < float(table["commitLogDiskRatio"]) < 1
        for name in ("putTps", "getTotalTps", "getTransferedTps", "getTransferredTps"):
            ten_s, minute, ten_minutes = map(float, table[name].split(" "))
            assert ten_s >= minute >= ten_minutes > 0, name
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "4")
        for name, key in (
            ("TOPIC_PUT_NUMS", "T"),
            ("GROUP_GET_NUMS", "T@g"),
            ("BROKER_PUT_NUMS", "DefaultCluster"),
            ("BROKER_GET_NUMS", "DefaultCluster"),
        ):
            found = await answer(client, 315, statsName=name, statsKey=key)
            assert list(found) == ["statsMinute", "statsHour", "statsDay"]
            assert {window["sum"] for window in found.values()} == {4}
            assert found["statsMinute"]["tps"] > 0
        for name, key in (("TOPIC_PUT_NUMS", "U"), ("TOPIC_PUT_SIZE", "T")):
            absent = await ask(client, 315, statsName=name, statsKey=key)
            assert (absent.code, absent.remark) == (1, f"The stats <{name}> <{key}> not exist")
        tps = (await answer(client, 208, consumerGroup="g"))["consumeTps"]
        assert tps > 0


async def test_what_the_queues_had_at_the_start_is_no_rate(tmp_path):
    """Counts begin with the process, as RocketMQ's."""
    async with open_master(tmp_path) as master:
        await put(master, "T", [b"1", b"2"])
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await put(master, "T", [b"3"])
        assert (await answer(client, 28))["table"]["msgPutTotalTodayNow"] == "1"


async def test_a_slave_answers_tools(tmp_path):
    """They ask a random slave where there is no master."""
    async with consumed_topic(tmp_path / "m") as (master, _, _):
        async with (
            open_slave(tmp_path / "s", master, master_client=master.address) as slave,
            raw_client(slave.address) as client,
        ):
            while REPLY_TOPIC not in await topics_of(client):  # the master's table is copied
                pass
            assert len((await answer(client, 202, topic="T"))["offsetTable"]) == 2
            for code in (28, 208, 300, 303, 305, 317):
                await answer(client, code, topic="T", group="g", consumerGroup="g")


# -- what they have consumers do -------------------------------------------------------------------


def heartbeat_of(client_id, language="JAVA", topic="T"):
    row = {"groupName": "g", "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [row]}).encode()
    return RemotingCommand(code=34, opaque=1, body=body, language=language)


@contextlib.asynccontextmanager
async def member_of(master, client_id, language="JAVA"):
    """Connect a member of g; what it is told of other members' coming is read later."""
    async with raw_client(master.address) as member:
        await member.send(heartbeat_of(client_id, language))
        assert [(await member.receive()).code for _ in range(2)] == [40, 0]
        yield member


async def offset_of(client, queue_id=0):
    found = await ask(client, 14, consumerGroup="g", topic="T", queueId=str(queue_id))
    return int(found.ext_fields["offset"])


def reset(**fields):
    return {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true", **fields}


async def test_a_groups_offsets_are_reset_by_time_while_it_is_not_connected(tmp_path):
    """To the first message at the time or later; forward only by force; one queue if asked."""
    second = str(START_MS + 2_000)
    async with consumed_topic(tmp_path) as (master, client, _):
        rows = {f"{NAME} T/0": 1, f"{NAME} T/1": 0}
        found = await answer(client, 222, **reset(timestamp=second, isForce="false"))
        assert found == {"offsetTable": rows}
        assert await offset_of(client) == 1
        on_disk = json.loads((tmp_path / "config/consumerOffset.json").read_text())
        assert on_disk["offsetTable"] == {"T@g": {"0": 1, "1": 0}}
        found = await answer(client, 222, **reset(isForce="false"))
        assert found["offsetTable"][f"{NAME} T/0"] == 1
        assert (await answer(client, 222, **reset()))["offsetTable"][f"{NAME} T/0"] == 3
        one = await answer(client, 222, **reset(queueId="0", offset="2"))
        assert one == {"offsetTable": {f"{NAME} T/0": 2}}
        assert await offset_of(client) == 2
        for code, fields in (
            (17, {"topic": "U"}),
            (26, {"group": "h"}),
            (1, {"queueId": "2"}),
            (1, {"queueId": "0", "offset": "4"}),
            (1, {"timestamp": None}),  # it is not left out: the default was the end
        ):
            assert (await ask(client, 222, **reset(**fields))).code == code, fields
        assert await offset_of(client) == 2
        # Commits count: nobody was connected.
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "3"}
        assert (await ask(client, 15, **commit)).code == 0
        assert await offset_of(client) == 3
        async with (
            open_slave(tmp_path / "s", master, master_client=master.address) as slave,
            raw_client(slave.address) as reader,
        ):
            assert (await ask(reader, 222, **reset())).code == 1


async def test_members_are_told_of_a_reset_and_their_old_positions_do_not_count(tmp_path):
    """Each in its language; a pull at another offset, held or not, learns the new one."""
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "3"}
    async with (
        consumed_topic(tmp_path) as (master, client, _),
        member_of(master, "java") as java,
    ):
        pull = pull_command(7, queue_offset=3, suspend_timeout_ms=60_000)
        await java.send(pull)  # it is held
        async with member_of(master, "cpp", "CPP") as cpp:
            assert (await java.receive()).code == 40
            await answer(client, 222, **reset(timestamp="0"))
            told = await java.receive()
            assert (told.code, told.is_one_way) == (220, True)
            assert told.ext_fields == {"topic": "T", "group": "g", "timestamp": "0"}
            assert tables_of(told.body.decode()) == {
                "offsetTable": {f"{NAME} T/0": 0, f"{NAME} T/1": 0}
            }
            listed = json.loads((await cpp.receive()).body)["offsetTable"]
            assert listed[0] == {"brokerName": NAME, "queueId": 0, "topic": "T", "offset": 0}
        moved = await java.receive()
        assert (moved.opaque, moved.code) == (7, 21)
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert (await java.receive()).code == 40  # the other one has left
        assert (await ask(java, 15, **commit)).code == 0  # after the pull it counts again
        assert await offset_of(client) == 3
        await answer(client, 222, **reset(timestamp="0"))
        assert (await java.receive()).code == 220
        assert (await ask(java, 15, **commit)).code == 0
        assert await offset_of(client) == 0
        assert (await java.ask(pull_command(queue_offset=0))).code == 0  # as told
        assert (await ask(java, 15, **commit)).code == 0
        assert await offset_of(client) == 3


async def test_only_a_member_learns_of_a_reset_also_one_that_was_away(tmp_path):
    """A tool that pulls as the group does not learn it in the place of its members."""
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "3"}
    async with consumed_topic(tmp_path) as (master, client, _):
        async with member_of(master, "java") as java:
            await answer(client, 222, **reset(timestamp="0"))
            assert (await java.receive()).code == 220
            await client.ask(pull_command(queue_offset=1))
            assert (await ask(java, 15, **commit)).code == 0
            assert await offset_of(client) == 0
        with trio.fail_after(WITHIN_S):
            while (await ask(client, 38, consumerGroup="g")).code == 0:  # it has members
                pass
        async with member_of(master, "java") as java:
            assert (await ask(java, 15, **commit)).code == 0
            assert await offset_of(client) == 0
            moved = await java.ask(pull_command(queue_offset=3))
            assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "0")
            assert (await ask(java, 15, **commit)).code == 0
            assert await offset_of(client) == 3


async def test_a_member_is_asked_how_it_runs_and_to_consume_a_message(tmp_path):
    """Its answer is the answer; the message is the one that the id names."""
    who = {"consumerGroup": "g", "clientId": "java"}
    async with (
        consumed_topic(tmp_path) as (master, client, _),
        member_of(master, "java") as java,
    ):
        (stored,) = await put(master, "T", [b"this one"])
        ids = {"msgId": stored.message_id, "brokerName": NAME}
        for code, fields in ((307, {"jstackEnable": "true"}), (309, ids)):
            request = RemotingCommand(code=code, opaque=5, ext_fields={**who, **fields, "x": "y"})
            await client.send(request)
            asked = await java.receive()
            assert (asked.code, asked.ext_fields) == (code, {**who, **fields})
            assert bodies(asked) == ([b"this one"] if code == 309 else [])
            reply = RemotingCommand(
                code=4, opaque=asked.opaque, flag=1, remark="so", body=b"{}" * 40_000
            )
            await java.send(reply)
            found = await client.receive()
            assert (found.opaque, found.code, found.remark) == (5, 4, "so")
            assert found.body == reply.body
            absent = await ask(client, code, **{**who, **fields, "clientId": "cpp"})
            assert (absent.code, absent.remark) == (1, "The Consumer <g> <cpp> not online")
        for message_id in ("no", "0" * 15 + "1" + "F" * 16):
            assert (await ask(client, 309, **who, msgId=message_id)).code == 1
        await client.send(RemotingCommand(code=307, opaque=5, ext_fields=who))
        assert (await java.receive()).code == 307
        java.sock.close()
        assert (await client.receive()).code == 207


async def test_a_members_code_that_fits_no_binary_header_is_an_error_to_the_tool(tmp_path):
    """And nothing more: the node goes on, and so do the connections of both."""
    who = {"consumerGroup": "g", "clientId": "java"}
    async with (
        consumed_topic(tmp_path) as (master, client, _),
        member_of(master, "java") as java,
    ):
        for serialize_type in SerializeType:
            for code in (32_768, -32_769):
                await client.send(
                    RemotingCommand(
                        code=307, opaque=5, ext_fields=who, serialize_type=serialize_type
                    )
                )
                asked = await java.receive()
                await java.send(RemotingCommand(code=code, opaque=asked.opaque, flag=1))
                found = await client.receive()
                assert (found.opaque, found.code) == (5, 1)
                assert f"<java> at 127.0.0.1:{java.sock.getsockname()[1]}" in found.remark
                assert found.remark.endswith(f"answers with code {code}")
        assert await offset_of(java) == await offset_of(client) == 2


# -- settings and epochs ---------------------------------------------------------------------------


async def config_of(client):
    found = await ask(client, 26)
    assert found.code == 0
    lines = found.body.decode().splitlines()
    version = json.loads(found.ext_fields["version"])["counter"]
    return dict(line.split("=", 1) for line in lines), version


async def update(client, text):
    return await client.ask(RemotingCommand(code=25, opaque=5, body=text.encode()))


async def test_settings_that_can_change_do_and_others_are_refused_by_name(tmp_path):
    """All of a request, or none; the names are RocketMQ's."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        config, version = await config_of(client)
        assert (config["brokerName"], config["brokerClusterName"]) == (NAME, "DefaultCluster")
        assert (config["brokerId"], config["brokerRole"]) == ("0", "ASYNC_MASTER")
        assert config["haListenPort"] == str(master.ha_address[1])
        assert config["listenPort"] == str(master.address[1])
        assert config["autoCreateTopicEnable"] == "true"
        assert version == 0
        changes = "autoCreateTopicEnable = false\ndefaultTopicQueueNums=3\n"
        for text, code, remark in (
            (f"{changes}fileReservedTime=1\n", 1, "fileReservedTime does not change"),
            (f"{changes}unheardOf=1\n", 1, "no setting unheardOf"),
            (f"{changes}brokerConfigPath=/etc/passwd\n", 16, "brokerConfigPath"),
            ("autoCreateTopicEnable=maybe\n", 1, "true or false"),
            ("defaultTopicQueueNums=0\n", 1, "1 to 65535"),
            ("", 1, "no line"),
        ):
            refused = await update(client, text)
            assert (refused.code, remark in refused.remark) == (code, True), refused.remark
        assert (await config_of(client))[0] == config
        unchanged = f"fileReservedTime={config['fileReservedTime']}\n"
        assert (await update(client, unchanged)).code == 0
        assert (await update(client, changes)).code == 0
        config, version = await config_of(client)
        assert (config["autoCreateTopicEnable"], config["defaultTopicQueueNums"]) == ("false", "3")
        assert version == 1
        assert (await client.ask(send_command(topic="new"))).code == TOPIC_NOT_EXIST
        assert (await update(client, "autoCreateTopicEnable=true\n")).code == 0
        assert (await client.ask(send_command(topic="new"))).code == 0
        assert (await topics_of(client))["new"]["writeQueueNums"] == 3


async def test_the_epochs_of_a_replica_groups_log(tmp_path):
    """As RocketMQ 5's controller mode shows them; a classic node has none."""
    async with group_nodes.group(tmp_path, 1) as (node,):
        await node.become_master()
        async with raw_client(node.role_node.address) as client:
            found = await answer(client, 1007)
        assert found == {
            "brokerId": 0,
            "brokerName": node.role_node.broker_name,
            "clusterName": "DefaultCluster",
            "epochList": [{"epoch": 1, "startOffset": 0, "endOffset": 2**63 - 1}],
            "maxOffset": 0,
        }
    async with open_master(tmp_path / "m") as master, raw_client(master.address) as client:
        assert (await ask(client, 1007)).code == 1


async def test_requests_that_this_broker_does_not_have_are_refused(tmp_path):
    """316 by name; a controller's, of which a tool needs both."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for code, remark in ((316, "cleanUnusedTopic"), (1005, "1005"), (1006, "1006")):
            refused = await ask(client, code)
            assert (refused.code, remark in refused.remark) == (3, True)


async def topics_of(client):
    return (await answer(client, 21))["topicConfigTable"]


async def test_only_the_last_topics_are_counted(monkeypatch):
    """A topic that has had no message for long makes room for another."""
    monkeypatch.setattr(broker_stats, "ITEMS_MAX", 2)

    @attrs.define
    class Queue:
        topic: str
        max_offset: int
        queue_id: int = 0
        min_offset: int = 0

    stats = BrokerStats()
    stats.dispatched([Queue("a", 1), Queue("b", 1), Queue("a", 2), Queue("c", 5)])
    found = {topic: stats.find("TOPIC_PUT_NUMS", topic, "cluster") for topic in "abc"}
    assert found["b"] is None
    assert (found["a"].messages.count, found["c"].messages.count) == (2, 5)
    assert stats.puts.messages.count == 8
