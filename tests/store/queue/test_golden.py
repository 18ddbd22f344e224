"""Consume queues rebuilt from RocketMQ's logs equal RocketMQ's, byte for byte."""

import json

import pytest

from hastore.config import DEFAULT_DELAY_LEVELS
from hastore.env.real import RealDisk
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.record import layout, message_codec
from hastore.store.record.delay_levels import DelayLevels, parse_level
from hastore.store.record.java_hash import tags_code
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from hastore.topic import SCHEDULE_TOPIC

STORES = ("clean", "crashed", "propcrc", "replica", "replica_master")
FILE_SIZE = 1000
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def put_log(disk, path, store):
    """Put the records for which RocketMQ writes units, and return their number."""
    count = 0
    walker = LogWalker(disk, find_log(disk, str(path)))
    for offset, check in walker.walk():
        if check.kind is not RecordKind.MESSAGE:
            continue
        message = message_codec.decode(walker.read(offset, check.size))
        if message.sys_flag & 0xC not in (0, layout.TRANSACTION_COMMIT_TYPE):
            continue
        code = tags_code(message.properties.get("TAGS"))
        level = parse_level(message.properties.get("DELAY"))
        if message.topic == SCHEDULE_TOPIC and level > 0:
            code = LEVELS.deliver_time_ms(level, message.store_timestamp_ms)
        store.put(message.topic, message.queue_id, message.queue_offset, offset, check.size, code)
        count += 1
    return count


def images(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("name", STORES)
def test_queues_rebuilt_from_a_golden_log_equal_rocketmqs(golden, tmp_path, name):
    """Directories, file names and bytes are compared."""
    disk = RealDisk()
    store = ConsumeQueueStore.load(disk, str(tmp_path), FILE_SIZE)
    assert put_log(disk, golden / name, store)
    store.commit()
    store.close()
    assert images(tmp_path / "consumequeue") == images(golden / name / "consumequeue")


@pytest.mark.parametrize("name", STORES)
def test_opens_rocketmqs_queues_unchanged(golden, golden_copy, name):
    """Recovery keeps every unit, and dispatching the whole log again changes nothing."""
    path = golden_copy(name)
    disk = RealDisk()
    for last_exit_ok in (False, True):
        store = ConsumeQueueStore.load(disk, str(path), FILE_SIZE)
        store.recover(last_exit_ok=last_exit_ok)
        put_log(disk, path, store)
        assert store.commit() == []
        assert (store.damaged, store.rebuild_from) == ([], None)
        store.close()
    assert images(path / "consumequeue") == images(golden / name / "consumequeue")


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica"])
def test_units_equal_those_that_rocketmq_read(golden, golden_copy, name):
    """The manifest has each message's unit by queue offset; the queues hold no other units."""
    rows = json.loads((golden / f"{name}.manifest.json").read_text())["records"]
    store = ConsumeQueueStore.load(RealDisk(), str(golden_copy(name)), FILE_SIZE)
    store.recover()
    checked = 0
    for row in rows:
        if row["type"] != "MSG" or row["sysFlag"] & 0xC not in (0, 8):
            continue
        queue = store.find(row["topic"], row["queueId"])
        (unit,) = queue.units(row["queueOffset"], 1)
        assert unit == (row["cqPhyOffset"], row["cqSize"], row["cqTagsCode"])
        checked += 1
    assert checked == sum(queue.max_offset - queue.min_offset for queue in store)
    store.close()
