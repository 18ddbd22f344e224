"""Bytes of a log that are written in place, and the records that are whole again."""

import contextlib

import pytest

from hastore.env.real import real_env
from hastore.errors import FlushFailedError
from hastore.store.log.mapped_file import MappedFile
from hastore.store.log_rewrite import rewrite, written_records
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.recovery.trim import Range
from hastore.store.tools.repair.lost import LostMessages, lost_messages
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import sync_failed
from tests.support.store.log_builder import LogBuilder
from tests.support.store.recovering import recover

LEVELS = DelayLevels.parse("1s 5s 10s")


@pytest.fixture
def store(tmp_path):
    """A log of 50 messages, and where they begin."""
    builder = LogBuilder().fill(50)
    return builder, builder.write(tmp_path / "D")


def size_of(path):
    return next((path / "commitlog").iterdir()).stat().st_size


@contextlib.contextmanager
def mapped(path, *, writable=True):
    """Open the log's only file."""
    name = str(next((path / "commitlog").iterdir()))
    disk_file = real_env().disk.open_file(name, writable=writable)
    mapped_file = MappedFile(0, disk_file.size, disk_file)
    yield mapped_file
    mapped_file.close()


def found(path, start, stop):
    where = Range(start, stop)
    records = written_records(real_env().disk, str(path), size_of(path), where, LEVELS)
    return [record.physic_offset for record in records]


@pytest.mark.parametrize("writable", [True, False])
def test_bytes_are_written_in_place(store, writable):
    """Those around them stay; in a file with a map, and in an older one, open for reading."""
    builder, path = store
    file = next((path / "commitlog").iterdir())
    before = file.read_bytes()
    at = builder.offsets[3] + 10
    with mapped(path, writable=writable) as mapped_file:
        rewrite(real_env().disk, mapped_file, at, b"xyz")
        assert bytes(mapped_file.view[at : at + 3]) == b"xyz"
    assert file.read_bytes() == before[:at] + b"xyz" + before[at + 3 :]


def test_the_records_that_overlap_a_range_are_found(store):
    """A range may begin and end inside of them."""
    builder, path = store
    at = builder.offsets
    assert found(path, at[3], at[5]) == at[3:5]
    assert found(path, at[3] + 1, at[4] + 1) == at[3:5]
    assert found(path, at[0], at[0] + 1) == at[:1]
    assert found(path, at[4] - 1, at[4]) == at[3:4]
    assert found(path, at[49], at[49] + 5) == at[49:50]
    records = written_records(
        real_env().disk, str(path), size_of(path), Range(at[7], at[8]), LEVELS
    )
    assert [(r.topic, r.physic_offset, r.size, r.is_in_queue) for r in records] == [
        ("orders", at[7], at[8] - at[7], True)
    ]
    assert "k7" in records[0].keys


def test_damaged_records_of_a_range_are_left_out(store):
    """The next whole one is found by its offset and checksum."""
    builder, path = store
    at = builder.offsets
    with mapped(path) as mapped_file:
        rewrite(real_env().disk, mapped_file, at[4], b"\0\0\0\0\0\0")
    assert found(path, at[3], at[7]) == [at[3], at[5], at[6]]


def test_a_failed_sync_is_not_hidden():
    """The bytes may not be on the disk."""
    disk = FakeDisk()
    opened = recover(disk)
    offset = opened.append(b"body").physic_offset
    opened.flush_log()
    mapped_file = opened.log.mapped_file_queue.find_mapped_file_by_offset(offset)
    disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        rewrite(disk, mapped_file, offset, b"xy")


def test_lost_messages_are_named_by_their_units():
    """By queue, with the first and the last queue offset; nothing without units."""
    disk = FakeDisk()
    opened = recover(disk)
    offsets = [opened.append(b"body", topic=f"t{number % 2}").physic_offset for number in range(20)]
    opened.dispatch()
    opened.flush_log()
    opened.flush_queues()
    opened.close()
    lost = [Range(offsets[4], offsets[7]), Range(offsets[10], offsets[11])]
    assert lost_messages(disk, "/d", lost) == (
        LostMessages(topic="t0", queue_id=0, first=2, last=5, count=3),
        LostMessages(topic="t1", queue_id=0, first=2, last=2, count=1),
    )
    assert lost_messages(disk, "/d", []) == ()
