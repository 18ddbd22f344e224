"""Topics, groups and offsets: their limits, their files, and how they survive disk faults."""

import json
from types import SimpleNamespace

import pytest
import trio

from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.groups.topic_config_manager import new_topic_config
from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.config import RemotingConfig
from hastore.errors import DiskFullError, RequestFailedError
from hastore.wire.config_tables import DataVersion, SubscriptionGroupConfig
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.nodes.reading import open_master
from tests.support.waiting import eventually

CONFIG = "/d/config"


def make(disk=None, **config):
    data = BrokerData.make(fake_env(disk or FakeDisk()), RemotingConfig(**config), "/d")
    data.load()
    return data


def queue(topic, queue_id):
    return SimpleNamespace(topic=topic, queue_id=queue_id, is_empty=False, max_physic_offset=100)


def stored(disk, name):
    return json.loads(disk.read_file(f"{CONFIG}/{name}"))


# -- topics --------------------------------------------------------------------------------------


def test_the_first_send_creates_a_topic_but_a_lookup_does_not():
    """A lookup returns the configuration that a new topic would get."""
    topics = make(default_topic_queue_nums=3).topics
    assert topics.find("T").read_queue_nums == 3
    assert not topics.topics
    assert topics.find_for_send("T").write_queue_nums == 3
    assert list(topics.topics) == ["T"]


def test_without_auto_creation_unknown_topics_are_refused():
    """A lookup returns None and a send raises an error, until an administrator adds the topic."""
    topics = make(auto_create_topic_enable=False).topics
    assert topics.find("T") is None
    with pytest.raises(RequestFailedError, match="does not exist") as caught:
        topics.find_for_send("T")
    assert caught.value.code == 17
    topics.put(new_topic_config("T", read_queue_nums=1, write_queue_nums=1))
    assert topics.find_for_send("T").write_queue_nums == 1


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "\ud800"])
def test_an_illegal_topic_is_never_created(topic):
    """Neither by a message nor by an administrator nor by a queue in the store."""
    data = make()
    assert data.topics.find(topic) is None
    assert data.topics.find_for_send(topic) is None
    with pytest.raises(RequestFailedError, match="topic"):
        data.topics.put(new_topic_config(topic, read_queue_nums=1, write_queue_nums=1))
    data.adopt([queue(topic, 0)])
    assert not data.topics.topics


@pytest.mark.parametrize(
    "wrong",
    [{"read_queue_nums": 0}, {"write_queue_nums": 65_536}, {"perm": 1}, {"perm": 14}],
)
def test_invalid_topic_configurations_are_refused(wrong):
    """Numbers of queues and permissions have bounds."""
    with pytest.raises(RequestFailedError):
        new_topic_config("T", **({"read_queue_nums": 1, "write_queue_nums": 1} | wrong))


def test_adopt_creates_topics_for_the_queues_of_the_store():
    """A known topic gets more read queues if needed; adopting a queue again changes nothing."""
    data = make(default_topic_queue_nums=2)
    data.adopt([queue("T", 5), queue("SCHEDULE_TOPIC_XXXX", 0), queue("%RETRY%g", 0)])
    version = data.topics.version
    data.adopt([queue("T", 5), queue("T", 0)])
    assert data.topics.version == version
    topics = data.topics.topics
    assert {name: topics[name].read_queue_nums for name in topics} == {"T": 6, "%RETRY%g": 1}
    assert topics["T"].write_queue_nums == 2


SMALL = {"topics_max": 1, "groups_max": 1, "offset_keys_max": 1, "offsets_max": 2}


def test_full_tables_refuse_new_rows_but_take_updates():
    """Topics, groups and consumer offsets each have a limit."""
    data = make(**SMALL)
    data.topics.find_for_send("T")
    data.groups.register("g")
    data.offsets.commit("g", "T", 0, 1)
    data.offsets.commit("g", "T", 1, 1)
    for refused in (
        lambda: data.topics.find_for_send("U"),
        lambda: data.groups.register("h"),
        lambda: data.offsets.commit("h", "T", 0, 1),
        lambda: data.offsets.commit("g", "T", 2, 1),
        lambda: data.offsets.commit("g", "T", -1, 1),
    ):
        with pytest.raises(RequestFailedError):
            refused()
    data.offsets.commit("g", "T", 1, 7)
    assert data.offsets.query("g", "T", 1) == 7


def test_what_is_on_the_nodes_own_disk_is_taken_whole():
    """Above the limits, too: rows were lost in memory, and in the files with the next write."""
    disk = FakeDisk()
    data = make(disk, **SMALL)
    rows = {name: topic(name).to_dict() for name in ("T", "U", "V")}
    disk.put(f"{CONFIG}/topics.json", json.dumps({"topicConfigTable": rows}).encode())
    groups = {name: SubscriptionGroupConfig(group=name).to_dict() for name in "gh"}
    groups_text = json.dumps({"subscriptionGroupTable": groups})
    disk.put(f"{CONFIG}/subscriptionGroup.json", groups_text.encode())
    offsets = {f"{name}@g": {"0": 1, "1": 2} for name in rows}
    disk.put(f"{CONFIG}/consumerOffset.json", json.dumps({"offsetTable": offsets}).encode())
    data = make(disk, **SMALL)
    data.adopt([queue("W", 0)])
    assert data.topics.topics.keys() == {*rows, "W"}
    assert data.groups.groups.keys() == groups.keys()
    assert data.offsets.to_dict()["offsetTable"] == offsets
    data.topics.put(topic("U", 5))
    assert data.topics.find_for_send("U").read_queue_nums == 5
    data.commit("g", "U", 1, 7, None, is_slave=False)
    for refused in (
        lambda: data.topics.put(topic("X")),
        lambda: data.groups.register("i"),
        lambda: data.commit("g", "X", 0, 1, None, is_slave=False),
        lambda: data.commit("g", "U", 2, 1, None, is_slave=False),
    ):
        with pytest.raises(RequestFailedError, match=r"\[remoting\] .*_max is"):
            refused()


@pytest.mark.parametrize("group", ["", "a b", "x" * 249])
def test_a_group_whose_retry_topic_is_illegal_is_refused(group):
    """The retry topic's name contains the group's name, and a topic's name has limits."""
    with pytest.raises(RequestFailedError):
        make().groups.register(group)


# -- files ---------------------------------------------------------------------------------------


async def test_changes_are_written_and_read_by_the_next_start(autojump_clock, nursery):
    """Topics and groups are written at once, offsets after their interval."""
    disk = FakeDisk()
    data = make(disk, flush_consumer_offset_interval_ms=5_000)
    nursery.start_soon(data.run)
    data.topics.find_for_send("T")
    data.groups.put(SubscriptionGroupConfig(group="g", retry_max_times=3))
    data.offsets.commit("g", "T", 4, 17)
    await trio.sleep(0.1)
    assert stored(disk, "topics.json")["topicConfigTable"]["T"]["readQueueNums"] == 8
    assert not disk.exists(f"{CONFIG}/consumerOffset.json")
    await trio.sleep(5)
    assert stored(disk, "consumerOffset.json")["offsetTable"] == {"T@g": {"4": 17}}
    writes = len(disk.changes)
    await trio.sleep(60)
    data.offsets.commit("g", "T", 4, 17)
    await trio.sleep(60)
    assert len(disk.changes) == writes, "unchanged tables were written"
    again = make(disk)
    assert again.topics.topics == data.topics.topics
    assert again.groups.find("g").retry_max_times == 3
    assert again.offsets.query("g", "T", 4) == 17
    assert again.topics.version == data.topics.version


async def test_persist_all_writes_changed_tables_once():
    """It needs no running service; a second call writes nothing."""
    disk = FakeDisk()
    data = make(disk)
    data.offsets.commit("g", "T", 0, 1)
    await data.persist_all()
    await data.persist_all()
    assert stored(disk, "consumerOffset.json")["dataVersion"]["counter"] == 1
    assert not disk.exists(f"{CONFIG}/topics.json")


async def test_a_write_is_retried_after_a_full_disk(autojump_clock, nursery):
    """Changes are kept in memory while the disk refuses them."""
    disk = FakeDisk()
    disk.fail("write_file", disk_full())
    data = make(disk)
    nursery.start_soon(data.run)
    data.topics.find_for_send("T")
    await trio.sleep(3.5)
    assert not disk.exists(f"{CONFIG}/topics.json")
    disk.heal()
    await trio.sleep(1)
    assert list(stored(disk, "topics.json")["topicConfigTable"]) == ["T"]


@pytest.mark.parametrize("attempt", range(8))  # which task runs first is random
async def test_the_service_retries_an_administrators_failed_write(autojump_clock, nursery, attempt):
    """It does so even if it found nothing to write while the failing write was under way."""
    disk = FakeDisk()
    data = make(disk)
    nursery.start_soon(data.run)
    await trio.sleep(1)
    disk.fail("write_file", disk_full())
    data.topics.find_for_send(f"T{attempt}")
    with pytest.raises(DiskFullError):
        await data.topics_file.persist()
    disk.heal()
    await trio.sleep(3)
    assert list(stored(disk, "topics.json")["topicConfigTable"]) == [f"T{attempt}"]


@pytest.mark.parametrize(
    ("content", "offsets"),
    [
        (b"", {}),
        (b"{", {}),
        (b'{"offsetTable": 5}', {}),
        (
            b'{"offsetTable": {"no-sep": {"0": 1}, "T@g": {"0": "x", "1": 2, "z": 3, "-1": 1}}}',
            {"T@g": {1: 2}},
        ),
        (
            b'{"dataVersion": {"counter": "x"}, "offsetTable": {"T@g": {1:2}, "U@g": 5}}',
            {"T@g": {1: 2}},
        ),
        (b'{"offsetTable": {"T@g": {1:2, ' + b"9" * 5000 + b":1}}}", {"T@g": {1: 2}}),
    ],
)
def test_damaged_files_do_not_prevent_a_start(content, offsets):
    """Valid rows of a damaged file are read, the others skipped."""
    disk = FakeDisk()
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        disk.put(f"{CONFIG}/{name}", content)
    data = make(disk)
    assert data.offsets.offsets == offsets


async def test_a_node_shows_what_its_start_read_instead_of_torn_tables(tmp_path):
    """Until the next start, even after the table was written again."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_bytes(bytes(40))
    (config / "consumerOffset.json.bak").write_text('{"offsetTable": {"T@g": {0: 0,}}}')
    (config / "delayOffset.json").write_text("{")
    async with (
        open_master(tmp_path) as master,
        AdminClient.connect(master.address) as admin,
    ):
        await admin.update_offset("g", "T", 1, 7)
        assert await admin.consumer_offsets() == {("T", "g"): {0: 0, 1: 7}}
        await eventually((config / "consumerOffset.json.torn").exists)
        torn = NodeStatus.from_dict(master.status().to_dict()).torn_tables
        assert torn.keys() == {"config/consumerOffset.json", "config/delayOffset.json"}
        assert torn["config/consumerOffset.json"].endswith(f"; {config}/consumerOffset.json.bak")
        assert torn["config/delayOffset.json"].endswith("; starting without it: no backup")
    async with open_master(tmp_path) as master:
        assert "config/consumerOffset.json" not in master.status().torn_tables


@pytest.mark.parametrize("row", ['"@": {"0": 1}', '"T@": {"0": 1}', '"@g": {"0": 1}', '"x": 7'])
def test_a_bad_row_costs_that_row_only(row, caplog):
    """Rows without a topic or a group were copied to slaves, too.  One line has the number."""
    disk = FakeDisk()
    content = b'{"offsetTable": {%s, "T@g": {"0": 5.0}, "y": 8}}' % row.encode()
    disk.put(f"{CONFIG}/consumerOffset.json", content)
    assert make(disk).offsets.offsets == {"T@g": {0: 5}}
    (line,) = [record.msg for record in caplog.records]
    assert (line["event"], line["table"], line["rows"]) == ("table_rows_ignored", "offsetTable", 2)


def test_a_java_brokers_files_are_read():
    """They have bare integer keys and RocketMQ 5's fields; invalid rows are skipped."""
    disk = FakeDisk()
    disk.put(f"{CONFIG}/consumerOffset.json", b'{"offsetTable":{"%RETRY%g@g":{0:3},"T@g":{0:5}}}')
    disk.put(
        f"{CONFIG}/topics.json",
        b'{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},"topicConfigTable":{'
        b'"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"writeQueueNums":4},'
        b'"a b":{"readQueueNums":4,"writeQueueNums":4},"U":{"readQueueNums":"x"}}}',
    )
    disk.put(
        f"{CONFIG}/subscriptionGroup.json",
        b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":2},"h":{"brokerId":[]}}}',
    )
    data = make(disk)
    assert data.offsets.query("g", "%RETRY%g", 0) == 3
    assert list(data.topics.topics) == ["T"]
    assert data.topics.version.counter == 7
    assert {name: group.retry_max_times for name, group in data.groups.groups.items()} == {"g": 2}


async def test_without_a_directory_everything_lives_in_memory(autojump_clock, nursery):
    """Nothing is written, and ``persist_all`` returns."""
    disk = FakeDisk()
    data = BrokerData.make(fake_env(disk), RemotingConfig(), None)
    data.load()
    nursery.start_soon(data.run)
    data.topics.find_for_send("T")
    await trio.sleep(100)
    await data.persist_all()
    assert disk.changes == []


# -- a slave's copies ----------------------------------------------------------------------------


def topic(name, queue_nums=1):
    return new_topic_config(name, read_queue_nums=queue_nums, write_queue_nums=queue_nums)


def test_a_copy_replaces_topics_and_keeps_their_numbers_of_queues():
    """The version is the master's; the queues of the log add no read queues any more."""
    data = make()
    data.adopt([queue("T", 5), queue("gone", 0)])
    version = DataVersion(counter=9, timestamp_ms=3, state_version=2)
    data.topics.copy({"T": topic("T", 4)}, version)
    assert (list(data.topics.topics), data.topics.version) == (["T"], version)
    changes = data.topics.changes
    data.adopt([queue("T", 5)])
    data.topics.copy({"T": topic("T", 4)}, version)
    data.topics.copy({"T": topic("T", 4)}, None)
    assert data.topics.topics["T"].read_queue_nums == 4
    assert data.topics.changes == changes
    data.adopt([queue("new", 0)])
    assert list(data.topics.topics) == ["T", "new"]


def test_a_copy_keeps_the_groups_of_the_slaves_own_consumers():
    """A group that the master has had and has no more goes."""
    data = make()
    one, two = SubscriptionGroupConfig(group="one"), SubscriptionGroupConfig(group="two")
    data.groups.copy({"one": one, "two": two}, DataVersion(counter=1))
    data.groups.register("own")
    data.groups.copy({"one": one}, DataVersion(counter=2))
    assert list(data.groups.groups) == ["one", "own"]
    data.groups.copy({"one": one, "own": two}, None)
    data.groups.copy({"one": one}, None)
    assert list(data.groups.groups) == ["one"]


def test_a_masters_tables_are_copied_whole():
    """Else a failover would lose rows.  Of offsets of former masters as many stay as the limit."""
    data = make(**SMALL)
    groups = {name: SubscriptionGroupConfig(group=name) for name in "gh"}
    data.topics.copy({"T": topic("T"), "U": topic("U")}, None)
    assert data.topics.topics.keys() == {"T", "U"}
    data.groups.register("own")
    data.groups.copy(groups, None)
    assert list(data.groups.groups) == ["g", "h", "own"]
    data.offsets.follow()
    first = {"T@g": {0: 1}, "U@g": {0: 1}}
    assert data.offsets.copy(first, None) == 0
    assert data.offsets.offsets == first
    assert data.offsets.copy({"V@g": {0: 1}, "W@g": {0: 1}}, None) == 1
    assert data.offsets.offsets == {**first, "V@g": {0: 1}}
    assert data.offsets.copy({"T@g": {0: 2}}, None) == 0
    assert data.offsets.query("g", "T", 0) == 2


def test_tables_without_room_leave_nothing_behind():
    """A peer that names other keys in every table must not fill a slave's memory."""
    offsets = make(**SMALL).offsets
    offsets.follow()
    for number in range(20):
        offsets.copy({f"t{number}-{key}@g": {0: 1} for key in range(10)}, None)
    assert offsets._copied == offsets.offsets
    assert len(offsets.offsets) < 20


def test_an_offset_follows_its_masters_when_that_moves():
    """Until then a commit of the slave's consumers stays, also over restarts; a reset is copied."""
    disk = FakeDisk()
    disk.put(f"{CONFIG}/consumerOffset.json", b'{"offsetTable":{"T@g":{"0":5},"U@g":{"0":1}}}')
    offsets = make(disk).offsets
    offsets.follow()
    offsets.copy({"T@g": {0: 5, 1: 2}}, None)
    offsets.commit("g", "T", 0, 8)
    offsets.commit("g", "T", 1, 2)
    offsets.copy({"T@g": {0: 5, 1: 2}}, None)
    assert offsets.offsets == {"T@g": {0: 8, 1: 2}, "U@g": {0: 1}}
    assert offsets.to_dict()["masterOffsetTable"] == {"T@g": {"0": 5}}
    disk.put(f"{CONFIG}/consumerOffset.json", json.dumps(offsets.to_dict()).encode())
    offsets = make(disk).offsets
    offsets.follow()
    offsets.copy({"T@g": {0: 5}}, None)
    assert offsets.query("g", "T", 0) == 8
    offsets.copy({"T@g": {0: 3}}, None)
    assert offsets.query("g", "T", 0) == 3
    assert "masterOffsetTable" not in offsets.to_dict()


def test_becoming_master_limits_offsets_to_the_ends_of_their_queues():
    """An offset in the queue stays; from then on the table is this node's own."""
    disk = FakeDisk()
    text = (
        b'{"offsetTable":{"T@g":{"0":5,"1":5},"%RETRY%g@g":{"0":1}},'
        b'"masterOffsetTable":{"T@g":{"0":9},"x":{"0":1}}}'
    )
    disk.put(f"{CONFIG}/consumerOffset.json", text)
    data = make(disk)
    data.offsets.follow()
    assert "masterOffsetTable" in data.offsets.to_dict()
    ends = {("T", 0): 4, ("T", 1): 5}
    data.limit_offsets(lambda topic, queue_id: ends.get((topic, queue_id), 0))
    assert data.offsets.offsets == {"T@g": {0: 4, 1: 5}, "%RETRY%g@g": {0: 0}}
    assert data.offsets_file.is_dirty
    assert "masterOffsetTable" not in data.offsets.to_dict()


async def test_a_followers_file_has_its_masters_version(autojump_clock, nursery):
    """The slave's own writes do not count; a master's do."""
    disk = FakeDisk()
    data = make(disk)
    data.offsets.follow()
    data.offsets.copy({"T@g": {0: 1}}, DataVersion(counter=7))
    nursery.start_soon(data.run)
    await trio.sleep(60)
    assert stored(disk, "consumerOffset.json")["dataVersion"]["counter"] == 7
    data.limit_offsets(lambda _topic, _queue_id: 0)
    await trio.sleep(60)
    assert stored(disk, "consumerOffset.json")["dataVersion"]["counter"] == 8


def test_a_version_keeps_its_state_until_a_new_one_is_given():
    """RocketMQ 5 counts epochs in it."""
    version = DataVersion(counter=1, timestamp_ms=2, state_version=3)
    assert version.next(5) == DataVersion(counter=2, timestamp_ms=5, state_version=3)
    assert version.next(5, 4).state_version == 4
