"""Stores that real RocketMQ wrote: hastore opens, rewrites and replicates them."""

import hashlib
import json

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.message import PROPERTY_CRC32, Message
from hastore.store.commit_log import CommitLog
from hastore.store.record import message_codec
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.topic_queue_table import TopicQueues
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.store.open_log import DATA_DIR, all_bytes, append, append_data

WHOLE = ("clean", "propcrc", "replica", "replica_master")
FILE_SIZE = 65_536


def open_store(path, *, master=True):
    return CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path)),
        store_host=("127.0.0.1", 10_911),
        needs_queue_offsets=master,
    )


def digests(path):
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((path / "commitlog").iterdir())
    }


def manifest(golden, name):
    return json.loads((golden / f"{name}.manifest.json").read_text())


def stored_messages(golden, name):
    """Return all messages of a store."""
    rows = manifest(golden, name)["records"]
    log = b"".join(file.read_bytes() for file in sorted((golden / name / "commitlog").iterdir()))
    return [
        message_codec.decode(log, row["physicalOffset"]) for row in rows if row["type"] == "MSG"
    ]


def as_given(stored):
    """Return the message that the producer of a stored message must have sent."""
    properties = {k: v for k, v in stored.properties.items() if k != PROPERTY_CRC32}
    return Message(
        stored.topic,
        stored.body,
        properties=properties,
        queue_id=stored.queue_id,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("name", WHOLE)
def test_opening_and_closing_a_clean_store_changes_no_byte(golden, golden_copy, name, master):
    """The file ``abort`` exists only while the store is open."""
    path = golden_copy(name)
    before = digests(path)
    log = open_store(path, master=master)
    report = log.load_report
    assert log.max_offset == log.flushed_offset == manifest(golden, name)["maxPhyOffset"]
    assert (report.last_exit_ok, report.trimmed, report.removed_files) == (True, None, ())
    assert (path / "abort").read_text().isdecimal()
    log.close(clean=True)
    assert not (path / "abort").exists()
    assert digests(path) == before


@pytest.mark.parametrize("name", [*WHOLE, "crashed", "crashed_torn", "crashed_torn_props"])
def test_a_master_continues_rocketmqs_queue_offsets(golden, golden_copy, name):
    """Each queue's next offset is one more than its last record's in the manifest."""
    # RocketMQ keeps the last record of crashed_torn_props, whose properties are torn.
    recovered = {"crashed": "crashed.recovered", "crashed_torn": "crashed_torn.recovered"}
    recovered["crashed_torn_props"] = "crashed_torn.recovered"
    expected = {}
    for row in manifest(golden, recovered.get(name, name))["records"]:
        if row["type"] == "MSG" and row["sysFlag"] & 0xC not in (0x4, 0xC):
            expected[row["topic"], row["queueId"]] = row["queueOffset"] + 1
    log = open_store(golden_copy(name))
    found = {
        (topic, queue_id): next_offset
        for topic, queues in log._table.topics.items()
        for queue_id, next_offset in queues.next_offsets.items()
    }
    assert found == expected
    assert log.load_report.queues == len(expected)
    log.close(clean=False)


@pytest.mark.parametrize("master", [True, False])
def test_a_crashed_store_opens_unchanged(golden, golden_copy, master):
    """The empty file at its end becomes the prepared one; ``abort`` was there."""
    path = golden_copy("crashed")
    before = digests(path)
    log = open_store(path, master=master)
    assert log.max_offset == manifest(golden, "crashed.recovered")["maxPhyOffset"]
    assert log.load_report.last_exit_ok is False
    assert log.mapped_file_queue.prepared.file_from_offset == 393_216
    log.close(clean=False)
    assert digests(path) == before


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize(("name", "size"), [("crashed_torn", 110), ("crashed_torn_props", 188)])
def test_a_torn_store_is_trimmed_and_its_bytes_are_saved(golden_copy, name, size, master):
    """The torn record at 331293 is removed from the log, and a second open finds nothing to trim.

    RocketMQ keeps a record of which only the properties are torn: no checksum covers them.
    """
    path = golden_copy(name)
    torn = (path / "commitlog" / "00000000000000327680").read_bytes()
    log = open_store(path, master=master)
    trimmed = log.load_report.trimmed
    assert (trimmed.physic_offset, trimmed.size) == (331_293, size)
    assert log.max_offset == log.flushed_offset == 331_293
    log.close(clean=True)
    (saved,) = (path / "trimmed").iterdir()
    assert str(saved) == trimmed.saved_paths[0]
    position = 331_293 - 327_680
    assert saved.read_bytes() == torn[position : position + size]
    after = (path / "commitlog" / "00000000000000327680").read_bytes()
    assert after == torn[:position] + bytes(FILE_SIZE - position)
    again = open_store(path, master=master)
    assert again.load_report.trimmed is None
    assert again.max_offset == 331_293
    again.close(clean=True)


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica_master"])
def test_the_encoder_writes_rocketmqs_bytes(golden, name):
    """Each golden record is encoded again from the message that its producer sent."""
    for stored in stored_messages(golden, name):
        encoder = MessageEncoder(
            store_host=stored.store_host,
            max_message_size=4 * 1024 * 1024,
            append_prop_crc=name == "propcrc",
        )
        record = encoder.encode(
            as_given(stored),
            TopicQueues(stored.topic.encode(), encoder.bare_properties),
            stored.queue_offset,
            stored.physic_offset,
            stored.store_timestamp_ms,
        )
        assert record == message_codec.encode(stored)


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica_master"])
def test_a_log_written_again_equals_rocketmqs(golden, name):
    """The same messages at the same times produce the same offsets, rolls and BLANKs.

    Records with an IPv6 store host are appended as bytes, because a master has only one address.
    """
    clock = FakeClock()
    log = CommitLog.open(
        fake_env(clock=clock),
        StoreConfig(
            data_dir=DATA_DIR, mapped_file_size=FILE_SIZE, append_prop_crc=name == "propcrc"
        ),
        store_host=("127.0.0.1", 10_911),
        needs_queue_offsets=True,
    )
    for stored in stored_messages(golden, name):
        clock.ms = stored.store_timestamp_ms
        if stored.store_host == ("127.0.0.1", 10_911):
            result = append(log, as_given(stored))
            assert result.physic_offset == stored.physic_offset
            assert result.queue_offset == stored.queue_offset
        else:
            append_data(log, stored.physic_offset, message_codec.encode(stored))
    files = b"".join(file.read_bytes() for file in sorted((golden / name / "commitlog").iterdir()))
    assert all_bytes(log) == files[: log.max_offset]
    assert log.max_offset == manifest(golden, name)["maxPhyOffset"]


def test_a_slave_writes_the_same_files_from_any_frames(golden):
    """Frames may split records anywhere, but never cross a file's end."""
    files = [file.read_bytes() for file in sorted((golden / "replica" / "commitlog").iterdir())]
    for size in (7, 1000, 32_768, FILE_SIZE):
        log = CommitLog.open(
            fake_env(),
            StoreConfig(data_dir=DATA_DIR, mapped_file_size=FILE_SIZE),
            store_host=("127.0.0.1", 10_911),
            needs_queue_offsets=False,
        )
        for number, data in enumerate(files):
            for position in range(0, FILE_SIZE, size):
                append_data(log, number * FILE_SIZE + position, data[position : position + size])
        assert all_bytes(log) == b"".join(files)
