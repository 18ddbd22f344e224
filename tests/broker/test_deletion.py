"""Deleted topics and groups: what goes, what stays, what comes back, and what a crash leaves."""

import contextlib
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio

import hastore
from hastore.broker.groups import slave_synchronize, topic_config_manager
from hastore.broker.groups.broker_data import BrokerData, TableFile
from hastore.broker.groups.copied_tables import CopiedTable
from hastore.broker.groups.topic_config_manager import new_topic_config
from hastore.broker.node.slave_store import revive_topics
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.port import admin_processors
from hastore.client.admin import AdminClient
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.errors import DiskFullError, RequestFailedError
from hastore.message import Message
from hastore.store.json_file import JsonFile
from hastore.store.queue.deleted_topics import load_deleted
from hastore.store.queue.unit import UNIT, UNIT_SIZE
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.rebuild import rebuild
from hastore.wire.config_tables import DeletedTopic, SubscriptionGroupConfig
from hastore.wire.remoting_command import RemotingCommand
from tests.broker.pull_answers import bodies, offsets
from tests.patience import WITHIN_S
from tests.support.env.fake_env import fake_env
from tests.support.nodes import group_nodes
from tests.support.nodes.group_nodes import group, node_config, promote_by_request
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import (
    dispatched,
    of_users,
    open_master,
    open_slave,
    pull_command,
    put,
    store_config,
)
from tests.support.waiting import eventually

PULL_NOT_FOUND, PULL_OFFSET_MOVED, TOPIC_NOT_EXIST = 19, 21, 17
SYSTEM_TOPICS = (
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRACE_TOPIC",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "rmq_sys_SYNC_BROKER_MEMBER_x",
    "DefaultCluster",
    "DefaultCluster_REPLY_TOPIC",
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.02)


@contextlib.asynccontextmanager
async def master_of(data_dir, store=None, **remoting):
    """Run a master, with an admin client and a raw one."""
    async with (
        open_master(data_dir, store, **remoting) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as client,
    ):
        await dispatched(master, master.max_offset)
        yield master, admin, client


def queue_files(data_dir, topic="T"):
    """Return the files of a topic's queues, and directories that are being removed."""
    root = Path(data_dir, "consumequeue")
    return sorted([*root.glob(f"{topic}/*/*"), *root.glob(".*")])


def on_disk(data_dir):
    return json.loads(Path(data_dir, "config/topics.json").read_text())


async def read(client, queue_offset=0, **fields):
    answer = await client.ask(pull_command(queue_offset=queue_offset, **fields))
    return answer.code, bodies(answer) if answer.code == 0 else None


def units_of(path, config=None):
    """Verify a closed store's consume queues and index; return how many units there are."""
    disk, config = real_env().disk, config or store_config(path)
    report = verify_derived(disk, str(path), find_log(disk, str(path)), config)
    assert report.findings == (), report.findings
    return report.units


# -- topics --------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_gone_and_its_messages_stay_in_the_log(tmp_path):
    """Row, route, offsets, queues and keys go; other topics and all bytes of the log stay."""
    async with master_of(tmp_path, auto_create_topic_enable=False) as (master, admin, client):
        for topic in "T", "U":
            await admin.create_topic(topic, read_queue_nums=2)
            await put(master, topic, [b"1", b"2"], properties={"KEYS": "k"})
            await admin.update_offset("g", topic, 0, 1)
        log_end = master.max_offset
        await admin.delete_topic("T")
        assert sorted(of_users(await admin.topics())) == ["%RETRY%g", "U"]
        with pytest.raises(RequestFailedError, match="does not exist"):
            await admin.route("T")
        assert await admin.consumer_offsets() == {("U", "g"): {0: 1}}
        assert (await client.ask(pull_command())).code == TOPIC_NOT_EXIST
        assert await read(client, topic="U") == (0, [b"1", b"2"])
        assert queue_files(tmp_path) == []
        assert len(queue_files(tmp_path, "U")) == 1
        assert await admin.query_message("T", "k") == []
        assert len(await admin.query_message("U", "k")) == 2
        assert master.max_offset == log_end
        deleted = on_disk(tmp_path)["deletedTopics"]
        assert deleted == {"T": {"logOffset": log_end, "nextOffsets": {"0": 2}}}
        await admin.delete_topic("T")  # again, and one that never was
        await admin.delete_topic("never")
        assert on_disk(tmp_path)["deletedTopics"] == deleted


async def test_a_topic_that_is_made_again_continues_its_queues(tmp_path):
    """No queue offset names two messages; RocketMQ begins at 0 again."""
    async with master_of(tmp_path) as (master, admin, client):
        await put(master, bodies=[b"1", b"2"])
        await put(master, queue_id=1)
        await admin.delete_topic("T")
        assert [await admin.max_offset("T", queue_id) for queue_id in (0, 1, 2)] == [2, 1, 0]
        await admin.create_topic("T", read_queue_nums=4)
        moved = await client.ask(pull_command())
        assert (moved.code, offsets(moved)) == (PULL_OFFSET_MOVED, (2, 2, 2))
        (again,) = await put(master, bodies=[b"new"], properties={"KEYS": "k"})
        assert again.queue_offset == 2
        assert await read(client, 2) == (0, [b"new"])
        moved = await client.ask(pull_command())
        assert (moved.code, offsets(moved)) == (PULL_OFFSET_MOVED, (2, 2, 3))
        assert [message.body for message in await admin.query_message("T", "k")] == [b"new"]


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("how", ["start", "crash", "queues removed", "all removed", "rebuild"])
async def test_nothing_revives_a_deleted_topic(tmp_path, how, made_again):
    """Neither a start, nor dispatching the whole log again, nor a rebuild."""
    path = tmp_path / "m"
    async with master_of(path) as (master, admin, client):
        await put(master, bodies=[b"1", b"2"])
        await put(master, "U", [b"other"])
        await admin.delete_topic("T")
        if made_again:
            assert (await put(master, bodies=[b"new"]))[0].queue_offset == 2
        if how == "crash":
            shutil.copytree(path, tmp_path / "crashed")
            path = tmp_path / "crashed"
    if how == "queues removed":
        shutil.rmtree(path / "consumequeue")
    if how == "all removed":
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name)
        (path / "checkpoint").unlink()
    if how == "rebuild":
        report = rebuild(real_env(), str(path), store_config(path), consume_queues=True, index=True)
        assert (report.records, report.units) == (3 + made_again, 1 + made_again)
    async with master_of(path) as (master, admin, client):
        await eventually(lambda: master.status().dispatch_behind_bytes == 0)
        assert sorted(of_users(await admin.topics())) == (["T", "U"] if made_again else ["U"])
        assert len(queue_files(path)) == made_again
        assert await read(client, topic="U") == (0, [b"other"])
        if made_again:
            assert await read(client, 2) == (0, [b"new"])
        (again,) = await put(master, bodies=[b"newest"])
        assert again.queue_offset == 2 + made_again
        assert await admin.min_offset("T", 0) == 2
        assert await read(client, again.queue_offset) == (0, [b"newest"])
    assert units_of(path) == 2 + made_again


async def test_messages_put_while_a_topic_is_deleted_are_in_the_new_one(tmp_path, monkeypatch):
    """What is appended after the deletion, and dispatched before the files go, stays."""
    async with master_of(tmp_path) as (master, admin, client):
        await put(master, bodies=[b"1", b"2"])
        await put(master, queue_id=1)
        gate, proceed = trio.Event(), trio.Event()
        delete_queues = type(master).delete_queues

        async def delayed(node, deleted):
            gate.set()
            await proceed.wait()
            await delete_queues(node, deleted)

        monkeypatch.setattr(type(master), "delete_queues", delayed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(admin.delete_topic, "T")
            await gate.wait()
            assert (await put(master, bodies=[b"new"]))[0].queue_offset == 2
            proceed.set()
        assert await read(client, 2) == (0, [b"new"])
        assert await admin.min_offset("T", 0) == 2
        assert (await admin.min_offset("T", 1), await admin.max_offset("T", 1)) == (1, 1)
    async with master_of(tmp_path) as (master, admin, client):
        assert await read(client, 2) == (0, [b"new"])
        assert (await client.ask(pull_command())).code == PULL_OFFSET_MOVED


@pytest.mark.parametrize("topic", SYSTEM_TOPICS)
async def test_a_system_topic_cannot_be_deleted(tmp_path, topic):
    """The remark says so, and nothing is changed."""
    async with master_of(tmp_path) as (_, admin, _):
        with pytest.raises(RequestFailedError, match="own and cannot be deleted"):
            await admin.delete_topic(topic)
        assert load_deleted(real_env().disk, str(tmp_path)) == {}


async def test_a_brokers_name_is_a_system_topic_and_a_groups_topics_are_not(tmp_path):
    """RocketMQ's mqadmin deletes `%RETRY%g` and `%DLQ%g` together with group g."""
    async with master_of(tmp_path) as (master, admin, _):
        with pytest.raises(RequestFailedError, match="cannot be deleted"):
            await admin.delete_topic(master.broker_name)
        for topic in "%RETRY%g", "%DLQ%g":
            await put(master, topic)
            await admin.delete_topic(topic)
        assert of_users(await admin.topics()) == []


@pytest.mark.parametrize("fields", [{}, {"topic": ""}, {"topic": "a/../b"}, {"topic": "ü"}])
async def test_a_malformed_deletion_is_refused(tmp_path, fields):
    """The remark names the topic."""
    async with master_of(tmp_path) as (_, _, client):
        answer = await client.ask(RemotingCommand(code=215, ext_fields=fields))
        assert (answer.code, "topic" in answer.remark) == (1, True)


async def test_held_pulls_of_a_deleted_topic_are_answered(tmp_path):
    """With TOPIC_NOT_EXIST, at once; those of other topics go on waiting."""
    async with master_of(tmp_path) as (master, admin, client):
        await put(master)
        await put(master, "U")
        for opaque, topic in ((7, "T"), (8, "U")):
            held = pull_command(opaque, topic=topic, queue_offset=1, suspend_timeout_ms=60_000)
            await client.send(held)
        # Answered in its turn: both pulls are held then.
        assert (await client.ask(RemotingCommand(code=21, opaque=9))).code == 0
        with trio.fail_after(WITHIN_S):
            await admin.delete_topic("T")
            answer = await client.receive()
            assert (answer.opaque, answer.code) == (7, TOPIC_NOT_EXIST)
            await put(master, "U", [b"next"])
            answer = await client.receive()
            assert (answer.opaque, bodies(answer)) == (8, [b"next"])


async def test_a_deletion_needs_a_master(tmp_path):
    """A slave refuses both requests."""
    async with (
        open_master(tmp_path / "m") as master,
        open_slave(tmp_path / "s", master) as slave,
        AdminClient.connect(slave.address) as admin,
    ):
        for refused in admin.delete_topic("T"), admin.delete_group("g", with_offsets=True):
            with pytest.raises(RequestFailedError, match="is a slave"):
                await refused


async def test_the_table_of_deleted_topics_is_bounded(tmp_path, monkeypatch):
    """An expired deletion is forgotten first; if there is none, the next topic stays."""
    monkeypatch.setattr(topic_config_manager, "DELETED_MAX", 2)
    async with master_of(tmp_path) as (master, admin, client):
        for topic in "A", "B", "C":
            await put(master, topic)
        await admin.delete_topic("A")
        await admin.delete_topic("B")
        with pytest.raises(RequestFailedError, match="remembers at most 2 deleted topics"):
            await admin.delete_topic("C")
        assert of_users(await admin.topics()) == ["C"]
        assert await read(client, topic="C") == (0, [b"body"])
        topics = topic_config_manager.TopicConfigManager(8, True, lambda: 0, 100)
        topics.deleted = {
            "A": DeletedTopic(log_offset=10, next_offsets={}),
            "B": DeletedTopic(log_offset=5, next_offsets={}),
        }
        new = DeletedTopic(log_offset=20, next_offsets={0: 1})
        topics.delete("C", new, log_min_offset=10)
        assert list(topics.deleted) == ["A", "C"]
        monkeypatch.setattr(topic_config_manager, "DELETED_QUEUES_MAX", 1)
        topics.delete("D", attrs.evolve(new, log_offset=21), log_min_offset=20)
        assert list(topics.deleted) == ["D"]


async def test_topics_that_never_had_a_message_are_deleted_without_limit(tmp_path, monkeypatch):
    """Nothing of them could come back, so nothing is kept; a deletion that is known stays."""
    monkeypatch.setattr(topic_config_manager, "DELETED_MAX", 1)
    async with master_of(tmp_path) as (master, admin, _):
        await put(master, "A")
        await admin.delete_topic("A")
        deleted = on_disk(tmp_path)["deletedTopics"]
        for number in range(3):
            await admin.create_topic(f"auto{number}", read_queue_nums=1)
            await admin.update_offset("g", f"auto{number}", 0, 0)
            await admin.delete_topic(f"auto{number}")
        assert sorted(of_users(await admin.topics())) == ["%RETRY%g"]
        assert await admin.consumer_offsets() == {}
        assert on_disk(tmp_path)["deletedTopics"] == deleted
        assert list(deleted) == ["A"]
        await admin.create_topic("A", read_queue_nums=1)
        await admin.delete_topic("A")
        assert on_disk(tmp_path)["deletedTopics"]["A"]["nextOffsets"] == {"0": 1}
        (again,) = await put(master, "auto0")
        assert again.queue_offset == 0
        # What a crash between the two files leaves goes with the next deletion.
        await admin.create_topic("crashed", read_queue_nums=1)
        await admin.update_offset("g", "crashed", 0, 3)
    value = on_disk(tmp_path)
    del value["topicConfigTable"]["crashed"]
    Path(tmp_path, "config/topics.json").write_text(json.dumps(value))
    async with master_of(tmp_path) as (_, admin, _):
        # Lowered to the end of the queue.
        assert await admin.consumer_offsets() == {("crashed", "g"): {0: 0}}
        await admin.delete_topic("crashed")
        assert await admin.consumer_offsets() == {}


async def test_queues_whose_tail_the_log_has_lost_go_on_behind_it(tmp_path):
    """A deletion behind the log's end is lowered: the messages that come next were not deleted."""
    async with master_of(tmp_path) as (master, admin, _):
        await put(master, bodies=[b"1"])
        await admin.delete_topic("T")
        end = master.max_offset
    file = tmp_path / "config/topics.json"
    table = json.loads(file.read_text())
    table["deletedTopics"]["T"] = {"logOffset": end + 5_000, "nextOffsets": {"0": 9}}
    file.write_text(json.dumps(table))
    for number in (9, 10):
        async with master_of(tmp_path) as (master, _, client):
            assert (await put(master, bodies=[b"new"]))[0].queue_offset == number
            assert await read(client, number) == (0, [b"new"])
            assert load_deleted(real_env().disk, str(tmp_path))["T"].log_offset == end


# -- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["removeOffset", "cleanOffset", None])
async def test_a_deleted_group_is_gone_with_its_offsets_or_without(tmp_path, field):
    """RocketMQ 4 and 5 name the field differently; without it the offsets stay."""
    async with master_of(tmp_path) as (_, admin, client):
        for name in "g", "h":
            await admin.create_group(SubscriptionGroupConfig(group=name))
            await admin.update_offset(name, "T", 0, 0)
        fields = {"groupName": "g"} | ({} if field is None else {field: "true"})
        assert (await client.ask(RemotingCommand(code=207, ext_fields=fields))).code == 0
        kept = {("T", "h"): {0: 0}} | ({("T", "g"): {0: 0}} if field is None else {})
        assert list(await admin.groups()) == ["h"]
        assert await admin.consumer_offsets() == kept
    async with master_of(tmp_path) as (_, admin, client):
        assert list(await admin.groups()) == ["h"]
        assert await admin.consumer_offsets() == kept
        answer = await client.ask(RemotingCommand(code=207, ext_fields={}))
        assert (answer.code, "groupName" in answer.remark) == (1, True)


# -- crashes -------------------------------------------------------------------------------------


class Snapshots:
    """A disk of which each change, from ``begin`` on, leaves copies of a directory."""

    CHANGES = ("write_file", "rename", "remove", "remove_tree", "make_dirs")

    def __init__(self, disk, data_dir, copies):
        self._disk, self._data_dir, self._copies = disk, data_dir, copies
        self.is_on = False
        self._one = threading.Lock()
        self.taken = []
        self.refuses = None

    def __getattr__(self, name):
        method = getattr(self._disk, name)
        if name not in self.CHANGES:
            return method

        def change(path, *arguments):
            if self.refuses is not None and self.refuses in f"{name} {path}":
                raise DiskFullError(f"no room for {path}", path=path)
            self._take(f"before {name} {path}")
            result = method(path, *arguments)
            self._take(f"after {name} {path}")
            return result

        return change

    def _take(self, when):
        with self._one:  # several threads change files
            if self.is_on:
                copy = self._copies / str(len(self.taken))
                shutil.copytree(self._data_dir, copy)
                self.taken.append((when, copy))


async def test_a_crash_at_any_moment_leaves_a_topic_there_or_deleted(tmp_path):
    """Never half: with all messages and offsets, or without any, and it continues either way."""
    path = tmp_path / "m"
    env = real_env()
    disk = Snapshots(env.disk, path, tmp_path)
    async with (
        open_master(path, env=attrs.evolve(env, disk=disk)) as master,
        AdminClient.connect(master.address) as admin,
    ):
        await put(master, bodies=[b"1", b"2"])
        await put(master, queue_id=1)
        await put(master, "U")
        await admin.update_offset("g", "T", 0, 1)
        await master.flush_manager.flush_all()
        await eventually((path / "config/consumerOffset.json").exists)
        disk.is_on = True
        await admin.delete_topic("T")
        disk.is_on = False
    found = []
    for when, copy in disk.taken:
        async with master_of(copy) as (master, admin, client):
            await eventually(lambda: master.status().dispatch_behind_bytes == 0)
            is_there = "T" in await admin.topics()
            offset = (await admin.consumer_offsets()).get(("T", "g"))
            count = len(queue_files(copy))
            read_there = await read(client) if is_there else None
            found.append(is_there)
            wanted = (2, {0: 1}, (0, [b"1", b"2"])) if is_there else (0, None, None)
            assert (count, offset, read_there) == wanted, when
            assert (await put(master, bodies=[b"new"]))[0].queue_offset == 2, when
    assert found == sorted(found, reverse=True)
    assert {True, False} == set(found)


async def test_a_full_disk_delays_a_deletion_but_halves_nothing(tmp_path):
    """Refused: nothing was removed from the disk.  The next attempt completes it."""
    env = real_env()
    disk = Snapshots(env.disk, tmp_path, tmp_path)
    async with (
        open_master(tmp_path, env=attrs.evolve(env, disk=disk)) as master,
        AdminClient.connect(master.address) as admin,
    ):
        await put(master, bodies=[b"1", b"2"])
        disk.refuses = "topics.json"
        with pytest.raises(RequestFailedError, match="no room"):
            await admin.delete_topic("T")
        assert len(queue_files(tmp_path)) == 1
        disk.refuses = None
        await admin.delete_topic("T")
        assert queue_files(tmp_path) == []
        assert "T" in on_disk(tmp_path)["deletedTopics"]


async def test_a_deletion_that_its_request_left_undone_is_finished(tmp_path, monkeypatch):
    """Without another request; and no crash before that leaves the topic without its offsets."""
    monkeypatch.setattr(admin_processors, "RETRY_INTERVAL_S", 0.02)
    env = real_env()
    disk = Snapshots(env.disk, tmp_path, tmp_path)
    offsets_file = JsonFile(disk, str(tmp_path / "config/consumerOffset.json"))
    async with (
        open_master(
            tmp_path,
            env=attrs.evolve(env, disk=disk),
            flush_consumer_offset_interval_ms=20,
        ) as master,
        AdminClient.connect(master.address) as admin,
    ):
        await put(master, bodies=[b"1", b"2"])
        await admin.update_offset("g", "T", 0, 1)
        await eventually(offsets_file.load)
        disk.refuses = "topics.json"
        with pytest.raises(RequestFailedError, match="no room"):
            await admin.delete_topic("T")
        await trio.sleep(0.2)  # ten intervals of the offsets' file
        assert offsets_file.load()["offsetTable"] == {"T@g": {"0": 1}}
        disk.refuses = None
        await eventually(lambda: queue_files(tmp_path) == [])
        assert "T" in on_disk(tmp_path)["deletedTopics"]
        assert offsets_file.load()["offsetTable"] == {}


async def test_offsets_do_not_wait_for_topics_that_cannot_be_written(tmp_path):
    """Those of a topic whose deletion is not on the disk stay in the file until it is."""
    disk, config = Snapshots(real_env().disk, tmp_path / "m", tmp_path), tmp_path / "m/config"
    env = attrs.evolve(real_env(), disk=disk)

    def written():
        return JsonFile(env.disk, str(config / "consumerOffset.json")).load().get("offsetTable")

    async with (
        open_master(tmp_path / "m", env=env, flush_consumer_offset_interval_ms=20) as master,
        AdminClient.connect(master.address) as admin,
        raw_client(master.address) as client,
    ):
        await put(master, "T")
        await put(master, "U")
        await admin.update_offset("g", "T", 0, 1)
        await admin.update_offset("g", "U", 0, 0)
        await eventually(lambda: written() == {"T@g": {"0": 1}, "U@g": {"0": 0}})
        before = (config / "topics.json").read_text()
        disk.refuses = "topics.json"
        assert (await client.ask(send_command(topic="new"))).code == 0
        await admin.update_offset("g", "U", 0, 1)
        await eventually(lambda: written() == {"T@g": {"0": 1}, "U@g": {"0": 1}})
        with pytest.raises(RequestFailedError, match="no room"):
            await admin.delete_topic("T")
        await admin.update_offset("g", "new", 0, 1)
        rows = {"T@g": {"0": 1}, "U@g": {"0": 1}, "new@g": {"0": 1}}
        await eventually(lambda: written() == rows)
        bad = [each for each in findings(master.status(), Limits()) if each.level is Level.CRITICAL]
        assert [each.subject for each in bad] == ["stored"]
        assert "topics are not stored" in bad[0].what
        disk.is_on = True
        await eventually(lambda: disk.taken)
        disk.is_on = False
        disk.refuses = None
        del rows["T@g"]
        await eventually(lambda: written() == rows)
        await eventually(lambda: "new" in (config / "topics.json").read_text() != before)
        assert master.status().failed_writes == ()
    async with master_of(disk.taken[0][1]) as (_, admin, _):
        assert await admin.consumer_offsets() == {
            ("T", "g"): {0: 1}, ("U", "g"): {0: 1}, ("new", "g"): {0: 1}
        }  # fmt: skip
        assert {"T", "U", "new"} < set(await admin.topics())


def test_a_queue_of_deleted_messages_makes_no_topic():
    """Its last units may be committed just after the deletion, and before its files go."""
    data = BrokerData.make(fake_env(), RemotingConfig(), None)
    data.topics.deleted = {"T": DeletedTopic(log_offset=100, next_offsets={0: 2})}
    queue = SimpleNamespace(topic="T", queue_id=0, is_empty=False, max_physic_offset=100)
    data.adopt([queue])
    assert data.topics.topics == {}
    queue.max_physic_offset = 101
    data.adopt([queue])
    assert list(data.topics.topics) == ["T"]


# -- slaves --------------------------------------------------------------------------------------


def slave_of(path, master):
    return hastore.config.SlaveConfig(
        store=store_config(path),
        master=master.ha_address,
        master_client=master.address,
        listen=("127.0.0.1", 0),
    )


async def test_a_classic_slave_follows_and_honours_it_when_it_is_promoted(tmp_path):
    """Row, queues, and the offsets of topics and groups go, at the latest a second later."""
    async with (
        master_of(tmp_path / "m") as (master, admin, _),
        hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
    ):
        await put(master, bodies=[b"1", b"2"])
        await put(master, "U")
        for group_name in "g", "h":
            await admin.update_offset(group_name, "T", 0, 1)
            await admin.update_offset(group_name, "U", 0, 1)
        copied = slave.slave_synchronize.data
        await eventually(lambda: len(copied.offsets.offsets) == 4)
        await dispatched(slave, master.max_offset)
        await admin.delete_topic("T")
        await admin.delete_group("h", with_offsets=True)
        await put(master, bodies=[b"new"])
        await admin.update_offset("g", "T", 0, 3)
        wanted = {"T@g": {0: 3}, "U@g": {0: 1}}
        await eventually(lambda: copied.offsets.offsets == wanted)
        await dispatched(slave, master.max_offset)
        await eventually(lambda: slave.message_store.min_offset_in_queue("T", 0) == 2)
        async with raw_client(slave.address) as client:
            assert await read(client, 2) == (0, [b"new"])
        await admin.delete_topic("T")
        await eventually(lambda: queue_files(tmp_path / "s") == [])
        await eventually(lambda: "T" not in on_disk(tmp_path / "s")["topicConfigTable"])
    async with master_of(tmp_path / "s") as (master, admin, client):
        # The first offset of a group makes its retry topic, which is deleted by its own name.
        assert sorted(of_users(await admin.topics())) == ["%RETRY%g", "%RETRY%h", "U"]
        assert await admin.consumer_offsets() == {("U", "g"): {0: 1}}
        assert (await put(master, bodies=[b"newest"]))[0].queue_offset == 3
        assert await read(client, 3) == (0, [b"newest"])


async def test_a_slave_forgets_the_offsets_of_a_topic_that_never_had_a_message(tmp_path):
    """Its master keeps no record of the deletion; other topics' offsets stay."""
    async with (
        master_of(tmp_path / "m") as (master, admin, _),
        hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
    ):
        await put(master, "U")
        await admin.create_topic("auto", read_queue_nums=1)
        for topic in "auto", "U":
            await admin.update_offset("g", topic, 0, 0)
        copied = slave.slave_synchronize.data
        await eventually(lambda: copied.offsets.offsets.keys() == {"auto@g", "U@g"})
        await admin.delete_topic("auto")
        await eventually(lambda: copied.offsets.offsets.keys() == {"U@g"})
        assert sorted(of_users(copied.topics.topics)) == ["%RETRY%g", "U"]
        await admin.create_topic("auto", read_queue_nums=1)
        await admin.update_offset("g", "auto", 0, 0)
        await eventually(lambda: copied.offsets.offsets.keys() == {"auto@g", "U@g"})


async def test_a_slave_forgets_the_offsets_that_a_crash_of_its_master_has_left(tmp_path):
    """The master stopped between the writes of two tables, and the topic never had a message.

    Found by the simulator (``delete-topic``): the slave kept its copy for ever.
    """
    config = tmp_path / "m" / "config"
    config.mkdir(parents=True)
    left = {"offsetTable": {"auto@g": {"0": 0}}}
    (config / "consumerOffset.json").write_text(json.dumps(left))
    async with (
        master_of(tmp_path / "m") as (master, admin, _),
        hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
    ):
        await put(master, "U")
        await admin.update_offset("g", "U", 0, 0)
        copied = slave.slave_synchronize.data
        await eventually(lambda: copied.offsets.offsets.keys() == {"auto@g", "U@g"})
        await admin.delete_topic("auto")  # which is not there: only its offsets are
        await eventually(lambda: copied.offsets.offsets.keys() == {"U@g"})


async def test_a_second_deletion_removes_offsets_committed_after_the_first(tmp_path):
    """A consumer that still ran has left them, on master and slave, in a topic that is gone.

    Found by the simulator (``delete-topic``).
    """
    async with (
        master_of(tmp_path / "m") as (master, admin, _),
        hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
    ):
        await put(master)
        await admin.delete_topic("T")
        await admin.update_offset("g", "T", 0, 0)
        copied = slave.slave_synchronize.data
        await eventually(lambda: copied.offsets.offsets.keys() == {"T@g"})
        await admin.delete_topic("T")
        assert await admin.consumer_offsets() == {}
        await eventually(lambda: copied.offsets.offsets == {})


async def test_a_slave_forgets_one_groups_offsets_though_another_commits_again(tmp_path):
    """Both have left offsets in a topic that is gone; the slave missed the moment without any."""
    async with master_of(tmp_path / "m") as (master, admin, _):
        await put(master)
        await admin.delete_topic("T")
        for group in "g", "h":
            await admin.update_offset(group, "T", 0, 1)
        async with hastore.open_slave(slave_of(tmp_path / "s", master)) as slave:
            copied = slave.slave_synchronize.data
            await eventually(lambda: copied.offsets.offsets.keys() == {"T@g", "T@h"})
        await admin.delete_topic("T")
        await admin.update_offset("h", "T", 0, 1)
        async with hastore.open_slave(slave_of(tmp_path / "s", master)) as slave:
            copied = slave.slave_synchronize.data
            assert copied.offsets.offsets.keys() == {"T@g", "T@h"}
            await eventually(lambda: copied.offsets.offsets.keys() == {"T@h"})


async def test_a_slave_that_is_behind_dispatches_nothing_of_a_deleted_topic(tmp_path):
    """A new slave gets the deletion before, or after, the log: the outcome is the same."""
    async with master_of(tmp_path / "m") as (master, admin, _):
        await put(master, bodies=[b"1", b"2"])
        await admin.delete_topic("T")
        await put(master, bodies=[b"new"])
        async with (
            hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
            raw_client(slave.address) as client,
        ):
            await dispatched(slave, master.max_offset)
            await eventually(lambda: slave.message_store.min_offset_in_queue("T", 0) == 2)
            assert await read(client, 2) == (0, [b"new"])


def test_a_master_without_deletions_leaves_a_slaves_as_they_are():
    """A stock master, or one of the last release, says nothing about them."""
    topics = topic_config_manager.TopicConfigManager(8, True, lambda: 0, 100)
    topics.deleted = {"T": DeletedTopic(log_offset=10, next_offsets={0: 2})}
    topics.copy({}, None)
    topics.copy({}, None, {})  # forgotten there: it has no such topic either
    assert list(topics.deleted) == ["T"]


async def read_at(node, queue_offset, topic="T"):
    async with raw_client(node.address) as client:
        return await read(client, queue_offset, topic=topic)


async def put_in_group(master, body, queue_id=0):
    with trio.fail_after(WITHIN_S):
        result = await master.put(Message("T", body, queue_id=queue_id))
    assert result.status.stored  # a slave may just be opening its store again
    await dispatched(master, result.next_offset)
    return result.queue_offset


async def test_a_deletion_survives_a_failover(tmp_path):
    """Both nodes have it; the new master's topic continues, and the former master follows."""
    ha = attrs.evolve(group_nodes.HA, ha_send_heartbeat_interval_ms=50)
    async with group(tmp_path, 2, ha=ha) as (one, two):
        master = await promote_by_request(one, two, 1)
        for body in b"1", b"2":
            await put_in_group(master, body)
        await dispatched(two.role_node, master.max_offset)
        async with AdminClient.connect(one.address) as admin:
            await admin.delete_topic("T")
        await eventually(lambda: queue_files(tmp_path / "2") == [])
        master = await promote_by_request(two, one, 2)
        assert await put_in_group(master, b"new") == 2
        for node in one, two:
            await dispatched(node.role_node, master.max_offset)
            assert await read_at(node, 2) == (0, [b"new"])
            assert node.role_node.message_store.min_offset_in_queue("T", 0) == 2


async def test_a_deletion_that_no_slave_knew_is_undone_by_the_failover(tmp_path):
    """The former master builds the topic's queues again: both nodes have all messages."""
    ha = attrs.evolve(group_nodes.HA, ha_send_heartbeat_interval_ms=50)
    async with group(tmp_path, 2, ha=ha) as (one, two):
        master = await promote_by_request(one, two, 1)
        for body in b"1", b"2":
            await put_in_group(master, body)
        await dispatched(two.role_node, master.max_offset)
        copied = two.role_node.slave_synchronize
        await eventually(lambda: "T" in copied.data.topics.topics)
        copied._copies[0].take = lambda _table: 0  # as if the master failed before it was copied
        async with AdminClient.connect(one.address) as admin:
            await admin.delete_topic("T")
        assert queue_files(tmp_path / "1") == []
        master = await promote_by_request(two, one, 2)
        assert await put_in_group(master, b"3") == 2
        await eventually(
            lambda: (
                one.role_node.message_store.max_offset_in_queue("T", 0) == 3
                and one.role_node.message_store.min_offset_in_queue("T", 0) == 0
            )
        )
        for node in one, two:
            assert await read_at(node, 0) == (0, [b"1", b"2", b"3"])
        assert one.role_node.message_store.consume_queues.deleted == {}
        master = await promote_by_request(one, two, 3)
        assert await put_in_group(master, b"4") == 3
        await dispatched(two.role_node, master.max_offset)
    for name in "1", "2":
        assert units_of(tmp_path / name, node_config(tmp_path / name, 1).store) == 4


async def test_a_deletion_beyond_a_slaves_log_hides_nothing_of_the_next_master(
    tmp_path, monkeypatch
):
    """Neither after the next link nor after the next start, also before the tables are copied.

    Its master fails, and the slave had copied its deletion, but not the end of its log.
    """
    path, disk = tmp_path / "s", real_env().disk
    async with master_of(tmp_path / "m") as (master, _, _):
        await put(master, bodies=[b"1", b"2"])
        async with hastore.open_slave(slave_of(path, master)) as slave:
            copied = slave.slave_synchronize
            await eventually(lambda: "T" in copied.data.topics.topics)
            await dispatched(slave, master.max_offset)
            end = slave.max_offset
            copied._copies[0].take = lambda _table: 0
            beyond = {"T": DeletedTopic(log_offset=end + 10_000, next_offsets={0: 2})}
            copied.data.topics.copy({}, None, beyond)
            await copied._delete_queues()
            assert queue_files(path) == []
            slave.ha_client.link.sock.shutdown(trio.socket.SHUT_RDWR)
            await eventually(lambda: load_deleted(disk, str(path))["T"].log_offset == end)
            await put(master, bodies=[b"3"])
            await dispatched(slave, master.max_offset)
            assert await read_at(slave, 2) == (0, [b"3"])
            copied.data.topics.copy({}, None, beyond)
            await copied._delete_queues()
            end = slave.max_offset
        monkeypatch.setattr(slave_synchronize.SlaveSynchronize, "_take_topics", lambda *_: 0)
        async with hastore.open_slave(slave_of(path, master)) as slave:
            assert load_deleted(disk, str(path))["T"].log_offset == end
            await put(master, bodies=[b"4"])
            await dispatched(slave, master.max_offset)
            assert await read_at(slave, 3) == (0, [b"4"])
    async with master_of(path) as (_, _, client):
        assert await read(client, 3) == (0, [b"4"])


async def test_a_link_that_ends_while_queues_are_removed_lowers_the_deletion_all_the_same(tmp_path):
    """The removal waits for a flush; by then the place that it names is another link's."""
    path = tmp_path / "s"

    def place():
        deletion = load_deleted(real_env().disk, str(path)).get("T")
        return None if deletion is None else deletion.log_offset

    async with (
        master_of(tmp_path / "m") as (master, _, _),
        hastore.open_slave(slave_of(path, master)) as slave,
    ):
        await put(master, bodies=[b"1", b"2"])
        copied = slave.slave_synchronize
        await eventually(lambda: "T" in copied.data.topics.topics)
        await dispatched(slave, master.max_offset)
        end = slave.max_offset
        copied._copies[0].take = lambda _table: 0
        queues, in_force = slave.message_store.consume_queues, []
        delete_topics = queues.delete_topics

        def recorded(deleted):
            in_force.append(deleted["T"].log_offset)
            return delete_topics(deleted)

        queues.delete_topics = recorded
        service = slave.dispatching.flush_service
        async with service.paused():
            beyond = {"T": DeletedTopic(log_offset=end + 10_000, next_offsets={0: 2})}
            copied.data.topics.copy({}, None, beyond)
            await eventually(lambda: place() == end + 10_000)
            await eventually(lambda: service._one_pass.statistics().tasks_waiting)
            slave.ha_client.link.sock.shutdown(trio.socket.SHUT_RDWR)
            await eventually(lambda: place() == end)
        await put(master, bodies=[b"3"])
        await dispatched(slave, master.max_offset)
        await eventually(lambda: in_force)
        assert await read_at(slave, 2) == (0, [b"3"])
        assert set(in_force) == {end}


async def test_a_lower_deletion_counts_before_anything_more_is_dispatched(tmp_path):
    """Between the check that no queue must be built again, and the files, no unit is missed."""
    async with (
        master_of(tmp_path / "m") as (master, _, _),
        hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
    ):
        await put(master, bodies=[b"1", b"2"])
        copied = slave.slave_synchronize
        await eventually(lambda: "T" in copied.data.topics.topics)
        await dispatched(slave, master.max_offset)
        queues = slave.message_store.consume_queues
        low, end = DeletedTopic(log_offset=0, next_offsets={}), slave.max_offset
        queues.deleted = {"T": attrs.evolve(low, log_offset=end + 10_000), "U": low}
        copied.dispatched_offset = lambda: 0
        copied._take_topics(CopiedTable(None, {}, (), {"T": low}))
        assert queues.deleted == {"T": low}


async def test_a_revival_serves_without_what_damage_hides(tmp_path, caplog):
    """The queues of the topic are gone, so nothing confirms what follows; the node goes on."""
    async with master_of(tmp_path) as (master, admin, _):
        await put(master, "U", [b"first"])
        results = await put(master, bodies=[b"1", b"2", b"3"])
        end = master.max_offset
        await dispatched(master, end)
        await admin.delete_topic("T")
    with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(results[1].physic_offset)
        log.write(b"\xff" * 8)  # its size and magic
    config = hastore.config.SlaveConfig(store=store_config(tmp_path), master=("127.0.0.1", 1))
    await trio.to_thread.run_sync(revive_topics, real_env(), config, {}, end)
    (warning,) = [each.msg for each in caplog.records if each.msg["event"] == "records_set_aside"]
    assert warning["records"] == 1
    (file,) = queue_files(tmp_path)
    assert [unit[0] for unit in UNIT.iter_unpack(file.read_bytes()[: 2 * UNIT_SIZE])] == [
        results[0].physic_offset, 0,
    ]  # fmt: skip


async def test_offsets_are_written_while_topics_change_all_the_time(tmp_path):
    """They wait for the changes before them, not for those that follow."""
    data = BrokerData.make(real_env(), RemotingConfig(), str(tmp_path))
    (tmp_path / "config").mkdir()
    persist, count = TableFile.persist, 0

    async def changing(file):
        nonlocal count
        await persist(file)
        count += 1
        data.topics.put(new_topic_config(f"T-{count}", read_queue_nums=1, write_queue_nums=1))

    data.topics.put(new_topic_config("T", read_queue_nums=1, write_queue_nums=1))
    data.offsets.commit("g", "T", 0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableFile, "persist", changing)
        with trio.move_on_after(WITHIN_S):
            await persist(data.offsets_file)
    assert count == 2  # topics and groups
    offsets = json.loads((tmp_path / "config/consumerOffset.json").read_text())
    assert offsets["offsetTable"] == {"T@g": {"0": 1}}
