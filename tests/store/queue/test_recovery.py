"""Recovery of consume queues: kill -9, power cuts, damage and foreign files."""

import errno
import logging
import random

import pytest

from hastore.errors import DiskError
from hastore.store.queue import recovery as consume_queue_recovery
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.queue.unit import UNIT, UNIT_SIZE
from tests.support.env.fake_disk import FakeDisk
from tests.support.store.consume_queues import (
    FILE_SIZE,
    ROOT,
    SIZE,
    all_units,
    flush,
    open_queues,
    put,
    unit,
)

FIRST = f"{ROOT}/t/0/{0:020d}"


class KilledError(Exception):
    """Simulates a kill of the process."""


def units(begin, end):
    return {index: unit(index) for index in range(begin, end)}


def image_of(begin, end, size=FILE_SIZE):
    return b"".join(UNIT.pack(*unit(index)) for index in range(begin, end)).ljust(size, b"\0")


# -- where a queue ends --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 45, 50, 51])
@pytest.mark.parametrize("last_exit_ok", [False, True])
def test_queue_resumes_at_its_end(count, last_exit_ok):
    """It may have any number of files, and the last may be full; recovery writes nothing."""
    disk = FakeDisk()
    put(open_queues(disk), 0, count)
    disk = disk.kill()
    store = open_queues(disk, last_exit_ok=last_exit_ok)
    assert (disk.changes, disk.syncs, store.damaged, store.rebuild_from) == ([], [], [], None)
    assert store.max_physic_offset == count * SIZE
    put(store, count, 60)
    assert all_units(store.find("t", 0)) == units(0, 60)


@pytest.mark.parametrize("count", [199, 200, 201, 455, 456, 457, 999, 1000])
@pytest.mark.parametrize("last_exit_ok", [False, True])
def test_finds_the_end_in_large_files(count, last_exit_ok):
    """The counts surround the bounds of the chunks read; after a clean stop the end is bisected."""
    disk = FakeDisk()
    put(open_queues(disk, file_size=20_000), 0, count)
    store = open_queues(disk.kill(), file_size=20_000, last_exit_ok=last_exit_ok)
    assert store.find("t", 0).max_offset == count


@pytest.mark.parametrize("index", [0, 1, 300, 998])
@pytest.mark.parametrize(("physic_offset", "size"), [(5, 0), (5, -1), (-1, 5), (0, 0)])
def test_invalid_unit_ends_the_queue(index, physic_offset, size):
    """RocketMQ's rule: a valid offset is at least 0, and a valid size above 0."""
    disk = FakeDisk()
    put(open_queues(disk, file_size=20_000), 0, 1_000)
    disk = disk.kill()
    disk.overwrite(FIRST, index * UNIT_SIZE, UNIT.pack(physic_offset, size, 0))
    store = open_queues(disk, file_size=20_000)
    queue = store.find("t", 0)
    assert (queue.max_offset if queue else 0) == index
    assert store.rebuild_from == index * SIZE


def test_recovery_reads_only_the_last_three_files():
    """As in RocketMQ, a hundred files do not slow a start."""
    disk = FakeDisk()
    put(open_queues(disk), 0, 1_000)
    disk = disk.kill()
    open_queues(disk)
    assert disk.reads < 20


def test_continues_in_a_file_that_was_created_but_not_written():
    """A kill between the two leaves a file of zeros or an empty one."""
    for size in (FILE_SIZE, 0):
        disk = FakeDisk()
        put(open_queues(disk), 0, 20)
        disk = disk.kill()
        disk.put(f"{ROOT}/t/0/{400:020d}", bytes(size))
        store = open_queues(disk)
        assert store.damaged == []
        if size:  # FakeDisk does not enlarge an empty file
            put(store, 20, 33)
            assert all_units(store.find("t", 0)) == units(0, 33)


# -- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reaches", range(0, 61, 3))
def test_repairs_a_write_that_a_kill_interrupted(reaches):
    """A torn unit may look valid, but dispatching its record again rewrites it."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 4)
    for index in range(4, 7):
        store.put("t", 0, index, index * SIZE, SIZE, -1 - index)
    disk.fail("pwrite", KilledError(), reaches=reaches)
    with pytest.raises(KilledError):
        store.commit()
    disk = disk.kill()
    store = open_queues(disk)
    assert 4 <= store.find("t", 0).max_offset <= 7
    assert store.max_physic_offset <= 700
    for index in range(2, 9):  # dispatch starts at an earlier record
        store.put("t", 0, index, index * SIZE, SIZE, index if index < 4 else -1 - index)
    store.commit()
    expected = {index: (index * SIZE, SIZE, -1 - index) for index in range(4, 9)}
    assert all_units(store.find("t", 0)) == units(0, 4) | expected


def test_repairs_a_torn_size():
    """Only its high bytes are on disk: a size above 0 that is not the record's."""
    disk = FakeDisk()
    store = open_queues(disk)
    store.put("t", 0, 0, 0, 0x10203, 77)
    store.commit()
    disk = disk.kill()
    disk.overwrite(FIRST, 10, bytes(10))
    store = open_queues(disk)
    assert store.max_physic_offset == 0x10000
    store.put("t", 0, 0, 0, 0x10203, 77)
    store.commit()
    assert store.max_physic_offset == 0x10203
    assert all_units(store.find("t", 0)) == {0: (0, 0x10203, 77)}


@pytest.mark.parametrize("base", [0, 3 * 2**32 + 12_345])
@pytest.mark.parametrize("count", range(5))
def test_repairs_a_unit_that_lost_its_offset(base, count):
    """With its size intact it looks valid; up to four units follow it."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 25, base=base)
    flush(store)
    put(store, 25, 26 + count, base=base)
    disk = disk.kill()
    disk.overwrite(FIRST, 500, bytes(12))  # unit 25 is at 500 to 520
    disk.overwrite(FIRST, 510, b"\0\x64")
    store = open_queues(disk, file_size=2_000)
    assert store.find("t", 0).max_offset == 25
    put(store, 25, 26 + count, base=base)
    assert all_units(store.find("t", 0)) == {i: unit(i, base=base) for i in range(26 + count)}


def test_dispatch_repairs_a_torn_unit_that_recovery_cannot_detect():
    """The log crossed 4 GiB between two records: the torn offset still follows the previous one."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 25)
    store.put("t", 0, 25, 2**32 + 5_000, SIZE, 25)
    put(store, 26, 28, base=2**32 + 5_000)
    disk = disk.kill()
    disk.overwrite(FIRST, 500, bytes(4))
    store = open_queues(disk, file_size=2_000)
    assert store.find("t", 0).units(25, 1) == [(5_000, SIZE, 25)]
    store.put("t", 0, 25, 2**32 + 5_000, SIZE, 25)
    assert store.commit() == []
    assert store.find("t", 0).units(25, 1) == [(2**32 + 5_000, SIZE, 25)]


# -- power cuts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_dispatch_from_the_last_flush_repairs_a_power_cut(seed):
    """Any sectors may be on disk, and no dropped unit reappears later."""
    choice = random.Random(seed)
    file_size = 4_000
    disk = FakeDisk()
    store = open_queues(disk, file_size=file_size)
    flushed = choice.randrange(700)
    put(store, 0, flushed)
    flush(store)
    end = flushed + choice.randrange(700)
    put(store, flushed, end)
    for _ in range(3):
        disk = disk.cut_power(lambda: choice.random() < 0.5)
        store = open_queues(disk, file_size=file_size)
        queue = store.find("t", 0)
        found = queue.max_offset if queue else 0
        assert found >= flushed
        assert store.rebuild_from is None or store.rebuild_from >= flushed * SIZE
        assert not any(b"".join(disk.files(f"{ROOT}/t/0/").values())[found * UNIT_SIZE :])
        if choice.random() < 0.5:
            end = choice.randrange(flushed, end + 1)  # the log lost its tail as well
            store.truncate(end * SIZE)
        put(store, flushed, end)
        queue = store.find("t", 0)
        assert (all_units(queue) if queue else {}) == units(0, end)


def test_zeros_after_the_end_are_durable():
    """Otherwise a second power cut could restore stale units once the queue has grown."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 20)
    flush(store)
    put(store, 20, 90)
    disk = disk.kill()
    disk.overwrite(FIRST, 21 * UNIT_SIZE, bytes(UNIT_SIZE))
    store = open_queues(disk, file_size=2_000)
    assert (store.find("t", 0).max_offset, disk.syncs) == (21, [FIRST])
    assert store.damaged == ["t/0: units after its last valid one were dropped"]
    assert store.rebuild_from == 2_100
    assert not any(disk.cut_power().files(f"{ROOT}/t/0/")[f"{0:020d}"][21 * UNIT_SIZE :])


def test_flushes_the_last_files_again_after_an_unclean_stop():
    """The writes of a killed process may be only in the page cache."""
    disk = FakeDisk()
    put(open_queues(disk), 0, 45)
    disk = disk.kill()
    for inode in disk.inodes.values():
        inode.durable = bytes(len(inode.cache))
    store = open_queues(disk)
    assert len(flush(store)) == 3
    assert open_queues(disk.kill(), last_exit_ok=True).is_flushed


# -- damage --------------------------------------------------------------------------------------


def with_three_files():
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 28)
    put(store, 0, 3, topic="other")
    return disk.kill()


@pytest.mark.parametrize(
    ("start", "data", "left"),
    [
        (400, image_of(20, 25, 100), 20),  # short
        (400, image_of(20, 28, 300), 20),  # long
        (400, b"x", 20),
        (200, image_of(10, 15, 100), 10),
        (200, None, 10),  # missing
        (200, b"", 10),
        (0, b"\1" * 7, 0),
        (300, bytes(200), 20),  # its name is not a multiple of the size
    ],
)
def test_drops_and_rebuilds_unusable_files(start, data, left, caplog):
    """Files after them are dropped too; the rest of the queue and other queues stay."""
    disk = with_three_files()
    path = f"{ROOT}/t/0/{start:020d}"
    if data is None:
        disk.remove(path)
    else:
        disk.put(path, data)
    with caplog.at_level(logging.WARNING):
        store = open_queues(disk)
    assert "consume_queue_damaged" in caplog.text
    assert [line.partition(":")[0] for line in store.damaged] == ["t/0"]
    assert store.rebuild_from == left * SIZE
    queue = store.find("t", 0)
    assert (queue.max_offset if queue else 0) == left
    assert len(disk.files(f"{ROOT}/t/0/")) == left // 10
    put(store, left // 2, 28)
    assert all_units(store.find("t", 0)) == units(0, 28)
    assert store.find("other", 0).max_offset == 3
    assert open_queues(disk.kill()).damaged == []


def test_queue_without_its_first_file_begins_at_the_second():
    """Expiry leaves such a queue."""
    disk = with_three_files()
    disk.remove(FIRST)
    store = open_queues(disk)
    assert (store.damaged, store.find("t", 0).min_offset) == ([], 10)
    assert all_units(store.find("t", 0)) == units(10, 28)


def test_reports_and_keeps_foreign_names(caplog):
    """Files in place of directories and the reverse, invalid numbers, other names."""
    disk = with_three_files()
    strays = ["note", "t/note", "t/x/1", f"t/07/{0:020d}", f"t/-1/{0:020d}", "t/0/note.tmp"]
    strays += [f"t/99999999999/{0:020d}", f"lost+found/0/{0:020d}"]
    for name in strays:
        disk.put(f"{ROOT}/{name}", image_of(0, 5))
    disk.make_dirs(f"{ROOT}/t/0/{600:020d}")
    disk.make_dirs(f"{ROOT}/empty/0")
    with caplog.at_level(logging.WARNING):
        store = open_queues(disk)
    assert "foreign_files_ignored" in caplog.text
    assert (store.damaged, len(store)) == ([], 2)
    assert all_units(store.find("t", 0)) == units(0, 28)
    assert all(disk.exists(f"{ROOT}/{name}") for name in strays)


def test_opens_a_store_without_consume_queues():
    """The store is new, or was emptied for a rebuild."""
    store = open_queues()
    assert (list(store), len(store), store.max_physic_offset, store.damaged) == ([], 0, 0, [])


@pytest.mark.parametrize(("wanted", "rounded"), [(200, 200), (199, 200), (181, 200), (1, 20)])
def test_file_size_is_rounded_up_to_whole_units(wanted, rounded):
    """RocketMQ rounds the configured size in the same way."""
    assert open_queues(file_size=wanted).file_size == rounded


def test_keeps_the_size_of_existing_files(caplog):
    """A changed setting must not drop units of messages that the log no longer has."""
    disk = with_three_files()
    with caplog.at_level(logging.WARNING):
        store = open_queues(disk, file_size=6_000_000)
    assert "consume_queue_file_size_kept" in caplog.text
    assert (store.file_size, store.damaged) == (FILE_SIZE, [])
    assert all_units(store.find("t", 0)) == units(0, 28)


def unreadable(disk, code):
    """Let reads of one queue fail with this errno, and return the disk."""

    def fail(pread):
        try:
            raise OSError(code, "bad")
        except OSError as error:
            raise DiskError("cannot read", path=pread.path) from error

    disk.before("pread", fail, path="/t/0/")
    return disk


def test_rebuilds_a_queue_that_cannot_be_read():
    """A bad sector must not prevent a start."""
    disk = unreadable(with_three_files(), errno.EIO)
    store = ConsumeQueueStore.load(disk, "/d", FILE_SIZE)
    store.recover()
    assert (store.find("t", 0), store.rebuild_from) == (None, 0)
    assert store.damaged == ["t/0: cannot read"]
    assert disk.files(f"{ROOT}/t/0/") == {}
    assert store.find("other", 0).max_offset == 3


def test_transient_read_error_removes_no_queue():
    """With too many open files, for example, the start fails and no file is removed."""
    disk = unreadable(with_three_files(), errno.EMFILE)
    store = ConsumeQueueStore.load(disk, "/d", FILE_SIZE)
    with pytest.raises(DiskError):
        store.recover()
    assert len(disk.files(f"{ROOT}/t/0/")) == 3


def test_unit_damaged_at_run_time_is_read_as_a_blank():
    """Readers skip it, like a queue offset without a record."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 4)
    disk.overwrite(FIRST, 2 * UNIT_SIZE + 8, b"\xff" * 4)
    found = store.find("t", 0).units(0, 9)
    assert [one.is_blank for one in found] == [False, False, True, False]


def test_fast_search_for_the_end_equals_a_loop():
    """Above 256 units all sizes are checked at once; negative numbers need the slow path."""
    choice = random.Random(1)
    for _ in range(200):
        count = choice.randrange(257, 700)
        data = bytearray(image_of(1, count + 1, 0))
        for _ in range(choice.randrange(3)):
            bad = choice.choice([(0, 0), (-3, 9), (9, -3), (-1, 0)])
            UNIT.pack_into(data, choice.randrange(count) * UNIT_SIZE, *bad, 5)
        expected = next(
            (i for i, (at, size, _) in enumerate(UNIT.iter_unpack(data)) if at < 0 or size <= 0),
            count,
        )
        assert consume_queue_recovery._first_invalid(bytes(data) + b"rest") == expected
