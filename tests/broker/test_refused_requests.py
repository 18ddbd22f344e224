"""Well-formed requests of readers that are refused, each with a remark that says why."""

from __future__ import annotations

import json

import pytest

from hastore.errors import DiskError
from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData, MessageModel
from hastore.wire.remoting_command import RemotingCommand
from tests.support.env.fake_env import RealFiles
from tests.support.env.scripted_disk import disk_full
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.reading import open_master, pull_command, put

QUEUE = {"topic": "T", "brokerName": "b", "queueId": 0}
LOCK = {"consumerGroup": "g", "clientId": "c", "mqSet": [QUEUE]}


def with_body(code, value):
    return RemotingCommand(code=code, body=json.dumps(value).encode())


@pytest.mark.parametrize(
    ("request_", "code", "named"),
    [
        (with_body(34, {"clientID": "c", "consumerDataSet": [{"groupName": "a b"}]}), 1, "group"),
        (with_body(41, LOCK | {"mqSet": 5}), 1, "not a list of objects"),
        (with_body(41, LOCK | {"mqSet": [QUEUE] * 16_385}), 1, "16385 queues"),
        (with_body(41, LOCK | {"mqSet": [QUEUE | {"queueId": 65_535}]}), 1, "queueId 65535"),
        (with_body(42, LOCK | {"clientId": ""}), 1, "0 characters"),
        (with_body(200, {"groupName": "a b"}), 1, "group"),
        (with_body(200, {"groupName": "g", "retryQueueNums": -1}), 1, "retryQueueNums"),
        (
            RemotingCommand(
                code=15,
                ext_fields={"consumerGroup": "a b", "topic": "T", "queueId": 0, "commitOffset": 1},
            ),
            1,
            "group",
        ),
        (RemotingCommand(code=12, ext_fields={"topic": "T", "key": "k" * 32_768}), 1, "32768"),
        (
            RemotingCommand(
                code=12, ext_fields={"topic": "T", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
            ),
            22,
            "no message",
        ),
        (RemotingCommand(code=203, ext_fields={"consumerGroup": "g"}), 206, "online"),
    ],
)
async def test_a_refusal_has_a_code_and_a_reason(tmp_path, request_, code, named):
    """The code is RocketMQ's, the remark names the fault, and the connection stays open."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        response = await client.ask(request_)
        assert (response.code, response.opaque) == (code, request_.opaque)
        assert named in response.remark
        assert (await client.ask(pull_command())).code == 19


async def test_a_group_that_may_not_broadcast_is_refused(tmp_path):
    """Heartbeats name the message model: clustering is served, broadcasting is not."""
    group = {"groupName": "g", "consumeBroadcastEnable": False}
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        assert (await client.ask(with_body(200, group))).code == 0
        codes = []
        for model in MessageModel:
            consumer = ConsumerData(group="g", message_model=model)
            heartbeat = HeartbeatData(client_id="c", consumers=(consumer,)).to_dict()
            await client.send(with_body(34, heartbeat), pull_command(2))
            while (response := await client.receive()).opaque != 2:
                pass
            codes.append(response.code)
    assert codes == [16, 19]


async def test_a_read_error_is_returned_to_the_client(tmp_path, monkeypatch):
    """Both a pull and a view fail with the disk's error, and the node goes on."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        (result,) = await put(master)

        def broken(*_, **__):
            raise DiskError("cannot read: Input/output error", path="commitlog/0")

        store = type(master.message_store)
        monkeypatch.setattr(store, "get_message_steps", broken)
        monkeypatch.setattr(store, "record_at", broken)
        pulled = await client.ask(pull_command())
        viewed = await client.ask(
            RemotingCommand(code=33, ext_fields={"offset": result.physic_offset})
        )
        monkeypatch.undo()
        assert (await client.ask(pull_command())).code == 0
    for response in (pulled, viewed):
        assert response.code == 1
        assert response.remark == "DiskError: cannot read: Input/output error"


async def test_creating_a_topic_on_a_full_disk_is_an_error(tmp_path):
    """The topic is written as soon as the disk has room."""
    fields = {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    env = RealFiles().env
    async with open_master(tmp_path, env=env) as master, raw_client(master.address) as client:
        env.disk.fail("write_file", disk_full)
        response = await client.ask(RemotingCommand(code=17, ext_fields=fields))
        assert response.code == 1
        assert "No space left" in response.remark
        env.disk.heal()
    assert "T" in json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
