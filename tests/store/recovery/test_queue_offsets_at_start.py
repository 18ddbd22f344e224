"""Queue offsets after a start: which values in records and consume queues count."""

import logging
import struct

import pytest

from hastore.store.record.topic_queue_table import TopicQueueTable
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, open_log
from tests.support.store.recovering import recover


@pytest.mark.parametrize("text", ["7" * 5000, "1000000", "-3", "0", "x"])
def test_invalid_batch_count_counts_as_one(text):
    """A client's INNER_NUM neither prevents a start nor skews the queue offsets."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=16_384)
    append(log, sys_flag=0x80, properties={"INNER_NUM": text})
    assert append(open_log(fake_env(disk.kill()), mapped_file_size=None)).queue_offset == 1


def test_queue_offset_beyond_64_bits_is_not_recorded():
    """A record with the largest possible queue offset leaves its queue usable."""
    table = TopicQueueTable()
    table.advance(b"t", 0, 2**63)
    assert table.queue_count == 0
    table.advance(b"t", 0, 2**63 - 1)
    assert table.find("t").next_offsets == {0: 2**63 - 1}


def disk_without_first_file():
    """A killed master's disk without its first log file, and the units of that file's messages."""
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


def test_queue_without_records_continues_after_its_last_unit():
    """Its queue offsets must not restart at 0 because the log's first file was deleted."""
    disk, units = disk_without_first_file()
    put_consume_queue(disk, units)
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 10


def test_queue_offset_is_taken_from_the_last_queue_file_with_data():
    """Files are named by their byte offset; the last one may have been created ahead."""
    disk, units = disk_without_first_file()
    put_consume_queue(disk, units[:5], first=200, size=5)
    put_consume_queue(disk, units[5:9], first=205, size=5)
    put_consume_queue(disk, [], first=210, size=5)
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 209


def test_units_without_a_record_in_the_log_are_skipped():
    """A consume queue may be ahead of a log that lost its tail, or hold invalid units."""
    disk, units = disk_without_first_file()
    put_consume_queue(disk, [*units[:7], (10**9, 200), (-1, 5), (5, 0)])
    put_consume_queue(disk, units, queue_id="x")
    disk.put("/d/consumequeue/note", b"1")
    assert recover(disk).append(topic="old", queue_id=3).queue_offset == 7


def test_warns_if_queue_offsets_of_deleted_records_are_unknown(caplog):
    """Without consume queues, the queues begin at 0 again."""
    disk, _ = disk_without_first_file()
    with caplog.at_level(logging.WARNING):
        store = recover(disk)
    assert "queue_offsets_of_deleted_records_unknown" in caplog.text
    assert store.append(topic="old", queue_id=3).queue_offset == 0


def test_no_warning_if_consume_queues_or_all_records_exist(caplog):
    """Either is enough to know the queue offsets."""
    disk, units = disk_without_first_file()
    put_consume_queue(disk, units)
    with caplog.at_level(logging.WARNING):
        recover(disk)
        recover(FakeDisk()).append()
    assert "queue_offsets_of_deleted_records_unknown" not in caplog.text
