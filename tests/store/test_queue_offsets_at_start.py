"""Queue offsets after a start: what a record or a consume queue may say, and what it may not."""

import logging
import struct

import pytest

from hastore.store.record.topic_queue_table import TopicQueueTable
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, open_log
from tests.support.store.recovering import recover


@pytest.mark.parametrize("text", ["7" * 5000, "1000000", "-3", "0", "x"])
def test_a_senseless_batch_count_counts_as_one(text):
    """A client's INNER_NUM neither keeps the store from opening nor skews the queue offsets."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=16_384)
    append(log, sys_flag=0x80, properties={"INNER_NUM": text})
    assert append(open_log(fake_env(disk.kill()), mapped_file_size=None)).queue_offset == 1


def test_a_queue_offset_beyond_any_field_is_not_noted():
    """A record whose queue offset is the greatest there is leaves its queue usable."""
    table = TopicQueueTable()
    table.advance(b"t", 0, 2**63)
    assert table.queue_count == 0
    table.advance(b"t", 0, 2**63 - 1)
    assert table.find("t").next_offsets == {0: 2**63 - 1}


def without_front():
    """A killed master's disk: ten messages of an old topic, then others; the first file is gone."""
    disk = FakeDisk()
    log = open_log(fake_env(disk))
    units = [append(log, topic="old", queue_id=3) for _ in range(10)]
    while log.max_offset < 2 * FILE_SIZE:
        append(log, topic="new", body=b"x" * 300)
    disk = disk.kill()
    del disk.inodes[f"/d/commitlog/{0:020d}"]
    return disk, [(unit.physic_offset, unit.next_offset - unit.physic_offset) for unit in units]


def put_consume_queue(disk, units, *, first=0, size=200, queue_id="3"):
    data = b"".join(struct.pack(">qiq", offset, size, 0) for offset, size in units)
    path = f"/d/consumequeue/old/{queue_id}"
    disk.put(f"{path}/{first * 20:020d}", data.ljust(size * 20, b"\0"))


def test_a_queue_whose_records_are_deleted_goes_on_where_its_consume_queue_ends():
    """Queue offsets must not begin at 0 again because the log's front is deleted."""
    disk, units = without_front()
    put_consume_queue(disk, units)
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 10


def test_a_consume_queue_of_several_files_counts_from_its_last_one_with_data():
    """Its files are named by their byte offset; the last may have been made in advance."""
    disk, units = without_front()
    put_consume_queue(disk, units[:5], first=200, size=5)
    put_consume_queue(disk, units[5:9], first=205, size=5)
    put_consume_queue(disk, [], first=210, size=5)
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 209


def test_units_of_records_that_the_log_has_not_are_passed_over():
    """A consume queue may be ahead of a log that lost its tail, and may hold senseless units."""
    disk, units = without_front()
    put_consume_queue(disk, [*units[:7], (10**9, 200), (-1, 5), (5, 0)])
    put_consume_queue(disk, units, queue_id="x")
    disk.put("/d/consumequeue/note", b"1")
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 7


def test_a_log_without_front_and_without_consume_queues_says_what_it_does_not_know(caplog):
    """The queues begin at 0 again, and somebody must be told."""
    disk, _ = without_front()
    with caplog.at_level(logging.WARNING):
        store = recover(disk)
    assert "queue_offsets_of_deleted_records_unknown" in caplog.text
    assert store.append(topic="old", queue_id=3).queue_offset == 0


def test_nothing_is_said_of_a_log_whose_queues_or_whose_front_are_there(caplog):
    """The warning is for what really is not known."""
    disk, units = without_front()
    put_consume_queue(disk, units)
    with caplog.at_level(logging.WARNING):
        recover(disk)
        recover(FakeDisk()).append()
    assert "queue_offsets_of_deleted_records_unknown" not in caplog.text
