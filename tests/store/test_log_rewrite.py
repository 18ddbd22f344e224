"""Bytes of a log that are written in place, and the records that are whole again."""

import contextlib

import attrs
import pytest

from hastore.env.real import real_env
from hastore.errors import FlushFailedError
from hastore.store.log.mapped_file import MappedFile
from hastore.store.log_rewrite import (
    BadRecord,
    MoreNeeded,
    bad_record_at,
    first_damage,
    record_before,
    rewrite,
    written_records,
)
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.message_codec import decode, encode, encode_blank
from hastore.store.record.record_check import RecordKind, body_crc32, check_record
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
    return builder, builder.write(tmp_path / "D", queues=True)


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


# -- whose record is damaged ---------------------------------------------------------------------


def flipped(data, *positions):
    changed = bytearray(data)
    for position in positions:
        changed[position] ^= 0x5A
    return bytes(changed)


@pytest.fixture
def log(store):
    """The bytes of a log of 50 messages, and where each begins."""
    builder, path = store
    return next((path / "commitlog").iterdir()).read_bytes(), builder.offsets


def damage(own, masters, begin, stop):
    return first_damage(own[begin:stop], masters[begin:stop], begin, stop, len(masters))


@pytest.mark.parametrize("position", range(0, 200, 7))
def test_any_flipped_byte_of_a_master_is_damage(log, position):
    """Whatever field of a record it hits, and of whichever record."""
    data, at = log
    bad = flipped(data, at[7] + position)
    record = max(offset for offset in at if offset <= at[7] + position)
    found = damage(data, bad, at[5], at[12])
    assert (found.physic_offset, type(found)) == (record, BadRecord)
    assert damage(bad, data, at[5], at[12]) is None


def test_damage_that_both_logs_have_is_passed_over(log):
    """Nothing is to be written there; what follows is checked."""
    data, at = log
    both = flipped(data, at[6] + 100)
    assert damage(both, both, at[5], at[9]) is None
    master = flipped(both, at[8] + 100)
    assert damage(both, master, at[5], at[9]) == BadRecord(at[8], RecordKind.BAD_BODY_CRC)
    assert damage(flipped(both, at[8] + 100), both, at[5], at[9]) is None
    assert damage(flipped(both, at[6] + 99), both, at[5], at[9]).physic_offset == at[6]


def test_the_last_record_is_read_to_its_end(log):
    """A piece may end inside of it; more is asked for only as far as its head says."""
    data, at = log
    own, master, asked = flipped(data, at[8] + 20), flipped(data, at[9] - 3), set()
    for stop in range(at[8] + 21, at[9] - 3):
        found = MoreNeeded(stop)
        while isinstance(found, MoreNeeded):
            known = found.stop
            asked.add(known)
            found = first_damage(own[at[7] : stop], master[at[7] : known], at[7], stop, len(master))
        assert found == BadRecord(at[8], RecordKind.BAD_PROP_CRC)
    assert max(asked) == at[9]


def test_a_blank_ends_the_file(log):
    """What follows it holds no message."""
    data, at = log
    file_end = at[3] + 50
    masters = data[: at[3]] + encode_blank(50) + bytes(50 - 8)
    own = flipped(masters, at[3] + 20)
    assert first_damage(own, masters, 0, file_end, file_end) is None
    assert first_damage(own[at[3] :], masters[at[3] :], at[3], file_end, file_end) is None
    assert first_damage(own[-4:], bytes(4), file_end - 4, file_end, file_end) is None


def test_the_record_around_a_byte_is_found(store):
    """Also after damage, and where damage begins."""
    builder, path = store
    at, disk = builder.offsets, real_env().disk
    file = next((path / "commitlog").iterdir())

    def before(offset):
        return record_before(disk, str(path), size_of(path), offset)

    assert [before(at[5]), before(at[5] + 1), before(at[6] - 1)] == [at[5]] * 3
    assert before(at[0] + 3) == at[0] == 0
    assert bad_record_at(disk, str(path), size_of(path), at[5]) is None
    assert bad_record_at(disk, str(path), size_of(path), at[5] + 9) is None
    file.write_bytes(flipped(file.read_bytes(), at[5] + 100, at[8] + 100))
    assert [before(at[5]), before(at[6] - 1)] == [at[5]] * 2
    assert [before(at[6]), before(at[9] + 1)] == [at[5]] * 2
    for record in at[5], at[8]:
        found = bad_record_at(disk, str(path), size_of(path), record)
        assert found == BadRecord(record, RecordKind.BAD_BODY_CRC)
    assert bad_record_at(disk, str(path), size_of(path), at[6]) is None
    assert bad_record_at(disk, str(path), size_of(path), at[5] + 9) is None


def test_a_record_that_was_half_written_hides_no_boundary(store):
    """A piece of a comparison may end where a record of ours does, inside of one of the master's.

    Then our next record is intact, and begins where none of the master's does.
    """
    builder, path = store
    at = builder.offsets
    file = next((path / "commitlog").iterdir())
    own = file.read_bytes()
    body = bytes(at[7] - at[4] - 91 - 1)
    record = encode(
        attrs.evolve(
            decode(own[at[4] : at[5]]),
            total_size=at[7] - at[4],
            body=body,
            body_crc=body_crc32(body),
            topic="t",
            properties_raw=b"",
            properties={},
        )
    )
    masters = own[: at[4]] + record + own[at[7] :]
    assert check_record(masters[at[4] :], 0, 10_000, at[4]).kind is RecordKind.MESSAGE
    file.write_bytes(masters[: at[5]] + own[at[5] :])
    differs_at = next(i for i in range(at[5], at[6]) if own[i] != masters[i])
    assert differs_at > at[5]
    begin = record_before(real_env().disk, str(path), size_of(path), differs_at)
    assert begin == at[4]
    now = file.read_bytes()
    stop = at[7]
    assert first_damage(now[begin:stop], masters[begin:stop], begin, stop, len(now)) is None


def test_a_record_is_found_without_queues(tmp_path):
    """The walk begins with the file."""
    builder = LogBuilder().fill(15)
    path = builder.write(tmp_path / "D")
    at = builder.offsets[10]
    assert record_before(real_env().disk, str(path), size_of(path), at + 150) == at
    assert found(path, at, builder.offsets[12]) == builder.offsets[10:12]


def test_a_record_that_was_planted_in_a_body_is_none_of_the_range(tmp_path):
    """Else a member that compares its log would put units for it, and consumers would get it."""
    builder = LogBuilder(file_size=1 << 16).fill(3).plant().fill(3)
    around, following = builder.offsets[3:5]
    path = builder.write(tmp_path / "D", queues=True)
    disk, first = real_env().disk, builder.planted[0]
    assert found(path, first, following + 1) == [around, following]
    assert record_before(disk, str(path), size_of(path), first + 5) == around
    file = next((path / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[around : around + 8] = b"\xff" * 8
    file.write_bytes(data)
    assert found(path, first, following + 1) == [following]
    assert record_before(disk, str(path), size_of(path), first + 5) == around
