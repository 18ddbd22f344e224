"""The checkpoint: RocketMQ's 40 bytes, and a valid file after a crash at any byte."""

import contextlib
import logging
import random
import struct

import pytest

from hastore.env.real import RealDisk
from hastore.errors import DiskError, FlushFailedError
from hastore.store.recovery.store_checkpoint import CHECKPOINT_SIZE, StoreCheckpoint
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import sync_failed

PATH = "/d/checkpoint"
NUMBERS = (1_700_000_000_123, 1_700_000_000_456, 1_700_000_000_789, 4_711, 815)
OTHERS = (1_700_000_255_123, 1_700_001_000_456, 1_700_000_000_790, 1_048_575, 900)


def numbers_of(checkpoint):
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.flushed_offset,
        checkpoint.confirm_offset,
    )


def fill(checkpoint, numbers):
    (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.flushed_offset,
        checkpoint.confirm_offset,
    ) = numbers


def write(disk, numbers):
    checkpoint = StoreCheckpoint.open(disk, "/d")
    fill(checkpoint, numbers)
    checkpoint.flush()
    checkpoint.close()


def read(disk):
    return StoreCheckpoint.open(disk, "/d")


def rocketmq_image(*numbers, over=bytes(CHECKPOINT_SIZE)):
    """The file after RocketMQ has overwritten its first bytes with its numbers."""
    head = struct.pack(f">{len(numbers)}q", *numbers)
    return head + over[len(head) :]


@pytest.fixture
def disk():
    disk = FakeDisk()
    disk.make_dirs("/d")
    return disk


def test_flushed_numbers_are_read_back(disk):
    """All five numbers are at RocketMQ's positions, in a file of RocketMQ's size."""
    write(disk, NUMBERS)
    checkpoint = read(disk)
    assert numbers_of(checkpoint) == NUMBERS
    assert checkpoint.is_usable
    image = disk.inodes[PATH].durable
    assert len(image) == CHECKPOINT_SIZE
    assert struct.unpack_from(">5q", image) == NUMBERS
    write(disk, OTHERS)
    assert numbers_of(read(disk)) == OTHERS
    assert struct.unpack_from(">5q", disk.inodes[PATH].durable) == OTHERS


def test_min_timestamp_is_three_seconds_before_the_earlier_time(disk):
    """RocketMQ's rule; it is 0 while one of the two is unknown."""
    checkpoint = read(disk)
    assert checkpoint.min_timestamp == 0
    checkpoint.physic_msg_timestamp = 10_000
    assert checkpoint.min_timestamp == 0
    checkpoint.logics_msg_timestamp = 9_000
    assert checkpoint.min_timestamp == 6_000


def test_open_changes_nothing_on_disk(disk):
    """A start that is refused later must leave the store unchanged."""
    checkpoint = read(disk)
    assert not checkpoint.is_usable
    assert numbers_of(checkpoint) == (0, 0, 0, 0, 0)
    checkpoint.close()
    assert (disk.inodes, disk.changes) == ({}, [])


def test_flush_without_changes_writes_nothing(disk):
    """A flush every second costs nothing while the store is idle."""
    checkpoint = read(disk)
    fill(checkpoint, NUMBERS)
    checkpoint.flush()
    fill(checkpoint, OTHERS)
    checkpoint.flush()
    done = list(disk.syncs)
    checkpoint.flush()
    assert disk.syncs == done == [PATH]
    checkpoint.close()
    checkpoint.close()
    assert disk.syncs == [PATH, PATH]


@pytest.mark.parametrize("flushes", [0, 1, 2, 3])
def test_kill_at_any_byte_of_a_flush_leaves_a_valid_checkpoint(disk, flushes):
    """It holds the numbers from before the flush or those of the flush, never a mixture."""
    for count in range(flushes):
        write(disk, tuple(number + count for number in NUMBERS))
    before = numbers_of(read(disk))
    outcomes = set()
    for dies_at in range(4):
        for bytes_written in range(61):
            dying = DyingDisk.of(disk, dies_at, bytes_written)
            with contextlib.suppress(Killed):
                write(dying, OTHERS)
            after = read(dying.kill())
            assert numbers_of(after) in (before, OTHERS), (dies_at, bytes_written)
            assert after.is_usable == (numbers_of(after) != (0, 0, 0, 0, 0))
            outcomes.add(numbers_of(after))
            write(dying.kill(), NUMBERS)  # and it can be written again
    assert outcomes == {before, OTHERS}


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_power_cut_during_a_flush_leaves_a_valid_checkpoint(disk, flushes):
    """Unsynced sectors may be kept or lost."""
    for count in range(flushes):
        write(disk, tuple(number + count for number in NUMBERS))
    before = numbers_of(read(disk))
    for dies_at in range(4):  # at: copy, sync, head, the close's sync
        for kept in (False, True):
            dying = DyingDisk.of(disk, dies_at)
            with pytest.raises(Killed):
                write(dying, OTHERS)
            after = dying.cut_power(lambda kept=kept: kept)
            is_there = dies_at > 1 or (kept and dies_at == 1)
            assert numbers_of(read(after)) == (OTHERS if is_there else before)
            seal = struct.pack(">5q", *(OTHERS if kept and dies_at > 2 else before))
            assert after.inodes[PATH].durable.startswith(seal)


def test_repeated_crashes_lose_no_completed_flush(disk):
    """A completed flush survives, whatever happens to those after it."""
    rng = random.Random(1)
    flushed = None
    for round_ in range(300):
        dying = DyingDisk.of(disk, rng.randrange(12), rng.randrange(61))
        checkpoint = read(dying)
        assert flushed is None or checkpoint.flushed_offset >= flushed
        try:
            for step in range(5):
                value = round_ * 1_000 + step * 77
                fill(checkpoint, (NUMBERS[0] + value, NUMBERS[1] + value, value, value, value))
                checkpoint.flush()
                flushed = value
        except Killed:
            pass
        keep = rng.random()
        disk = dying.cut_power(lambda keep=keep: rng.random() < keep)


def test_failed_write_leaves_a_valid_checkpoint(disk):
    """The error is raised, the numbers are kept, and the next flush writes all of them again."""
    write(disk, NUMBERS)
    for reaches in (0, 10, 60):
        checkpoint = read(disk)
        fill(checkpoint, OTHERS)
        disk.fail("pwrite", DiskError("read-only", path=PATH), reaches=reaches)
        with pytest.raises(DiskError):
            checkpoint.flush()
        checkpoint.close()
        assert numbers_of(read(disk.kill())) in (NUMBERS, OTHERS)
    disk.heal()
    disk.fail("write_file", DiskError("read-only", path=PATH))
    with pytest.raises(DiskError):
        checkpoint.flush()
    disk.heal()
    checkpoint.flush()
    assert numbers_of(read(disk.cut_power())) == OTHERS


def test_failed_sync_raises_flush_failed_error(disk):
    """The caller must stop the node."""
    write(disk, NUMBERS)
    checkpoint = read(disk)
    fill(checkpoint, OTHERS)
    disk.fail("sync", sync_failed(PATH))
    with pytest.raises(FlushFailedError):
        checkpoint.flush()
    assert numbers_of(read(disk.cut_power())) == NUMBERS


def test_rocketmqs_checkpoint_is_read(disk):
    """Its times count, but its masterFlushedOffset does not describe this disk."""
    disk.put(PATH, rocketmq_image(*NUMBERS))
    checkpoint = read(disk)
    assert numbers_of(checkpoint) == (*NUMBERS[:3], 0, NUMBERS[4])
    assert checkpoint.is_usable


@pytest.mark.parametrize("size", [24, 40])
def test_rocketmqs_numbers_over_hastores_checkpoint_count(disk, size):
    """RocketMQ 4.x writes the first 24 bytes, 5.x 40, and both keep hastore's copies."""
    write(disk, NUMBERS)
    later = tuple(number + 60_000 for number in NUMBERS)
    disk.put(PATH, rocketmq_image(*later[: size // 8], over=disk.inodes[PATH].seen()))
    checkpoint = read(disk)
    assert numbers_of(checkpoint)[:4] == (*later[:3], 0)
    for dies_at, bytes_written in [(0, 0), (1, 30), (2, 30), (3, 0)]:
        dying = DyingDisk.of(disk, dies_at, bytes_written)
        again = read(dying)
        again.flushed_offset = 5_000
        try:
            again.flush()
        except Killed:
            assert read(dying.kill()).flushed_offset == 0
        else:
            assert read(dying.kill()).flushed_offset == 5_000


@pytest.mark.parametrize("name", ["clean", "crashed", "replica", "replica_master", "propcrc"])
def test_golden_checkpoints_are_read(golden, name):
    """All of RocketMQ's numbers are read, except masterFlushedOffset."""
    raw = (golden / name / "checkpoint").read_bytes()
    checkpoint = StoreCheckpoint.open(RealDisk(), str(golden / name))
    *times, _, confirm_offset = struct.unpack_from(">5q", raw)
    assert numbers_of(checkpoint) == (*times, 0, confirm_offset)
    assert checkpoint.is_usable


def test_flush_of_a_golden_checkpoint_keeps_rocketmqs_layout(golden_copy):
    """Size, times and positions stay RocketMQ's."""
    path = golden_copy("crashed")
    raw = (path / "checkpoint").read_bytes()
    checkpoint = StoreCheckpoint.open(RealDisk(), str(path))
    for flushed_offset in (331_293, 331_518):
        checkpoint.flushed_offset = flushed_offset
        checkpoint.flush()
        image = (path / "checkpoint").read_bytes()
        assert len(image) == len(raw)
        assert image[:24] == raw[:24]
        assert StoreCheckpoint.open(RealDisk(), str(path)).flushed_offset == flushed_offset
    checkpoint.close()


def test_flipped_bit_in_the_checkpoint_is_harmless(disk):
    """The copies protect the head, and the head protects the copies."""
    write(disk, NUMBERS)
    write(disk, OTHERS)
    image = disk.inodes[PATH].seen()
    for position in [*range(60), *range(1024, 1084), *range(2048, 2108)]:
        for bit in (0, 7):
            flipped = bytearray(image)
            flipped[position] ^= 1 << bit
            disk.put(PATH, bytes(flipped))
            checkpoint = read(disk)
            # A time that is slightly later looks like one that RocketMQ wrote.
            assert checkpoint.physic_msg_timestamp >= OTHERS[0] or checkpoint.flushed_offset
            assert checkpoint.flushed_offset in (OTHERS[3], 0)
            assert checkpoint.is_usable


@pytest.mark.parametrize(
    "image",
    [b"", b"short", bytes(39), b"\xff" * CHECKPOINT_SIZE, b"\x7f" * 40, b"\0" * 4095 + b"x"],
)
def test_unreadable_checkpoint_reads_as_zeros(disk, image, caplog):
    """A warning is logged, unless the file holds only zeros."""
    disk.put(PATH, image)
    with caplog.at_level(logging.WARNING, logger="hastore"):
        checkpoint = read(disk)
    assert numbers_of(checkpoint) == (0, 0, 0, 0, 0)
    assert not checkpoint.is_usable
    events = [record.msg["event"] for record in caplog.records]
    assert events == (["checkpoint_unreadable"] if image.strip(b"\0") else [])
    write(disk, NUMBERS)
    assert numbers_of(read(disk)) == NUMBERS
    assert len(disk.inodes[PATH].seen()) == CHECKPOINT_SIZE


def test_short_checkpoint_from_rocketmq_is_read(disk):
    """Its times count; the first flush extends the file to its full size."""
    disk.put(PATH, rocketmq_image(*NUMBERS)[:100])
    checkpoint = read(disk)
    assert numbers_of(checkpoint)[:3] == NUMBERS[:3]
    checkpoint.flushed_offset = 7
    checkpoint.flush()
    assert read(disk).flushed_offset == 7
    assert len(disk.inodes[PATH].seen()) == CHECKPOINT_SIZE
