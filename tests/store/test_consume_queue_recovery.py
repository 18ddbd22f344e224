"""Consume queues after kill -9, a power cut, damage, and files that are none of theirs."""

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
    """The process ends here."""


def units(begin, end):
    return {index: unit(index) for index in range(begin, end)}


def image_of(begin, end, size=FILE_SIZE):
    return b"".join(UNIT.pack(*unit(index)) for index in range(begin, end)).ljust(size, b"\0")


def overwrite(disk, path, position, data):
    disk.inodes[path].cache[position : position + len(data)] = data


# -- where a queue ends --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 45, 50, 51])
@pytest.mark.parametrize("last_exit_ok", [False, True])
def test_a_queue_goes_on_where_it_ended(count, last_exit_ok):
    """With any number of files, full ones at the end too; nothing is written."""
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
def test_the_end_is_found_in_large_files(count, last_exit_ok):
    """At each bound of the pieces that are read, and by the search after a clean stop."""
    disk = FakeDisk()
    put(open_queues(disk, file_size=20_000), 0, count)
    store = open_queues(disk.kill(), file_size=20_000, last_exit_ok=last_exit_ok)
    assert store.find("t", 0).max_offset == count


@pytest.mark.parametrize("index", [0, 1, 300, 998])
@pytest.mark.parametrize(("physic_offset", "size"), [(5, 0), (5, -1), (-1, 5), (0, 0)])
def test_a_unit_that_no_record_has_ends_the_queue(index, physic_offset, size):
    """RocketMQ's rule: the offset is 0 or more, the size above 0."""
    disk = FakeDisk()
    put(open_queues(disk, file_size=20_000), 0, 1_000)
    disk = disk.kill()
    overwrite(disk, FIRST, index * UNIT_SIZE, UNIT.pack(physic_offset, size, 0))
    store = open_queues(disk, file_size=20_000)
    queue = store.find("t", 0)
    assert (queue.max_offset if queue else 0) == index
    assert store.rebuild_from == index * SIZE


def test_only_the_last_three_files_are_read():
    """RocketMQ looks at as many; a hundred files do not make a start slow."""
    disk = FakeDisk()
    put(open_queues(disk), 0, 1_000)
    disk = disk.kill()
    open_queues(disk)
    assert disk.reads < 20


def test_a_file_that_was_made_and_not_written_is_the_next_one():
    """Killed between the two: a file of zeros, or an empty one."""
    for size in (FILE_SIZE, 0):
        disk = FakeDisk()
        put(open_queues(disk), 0, 20)
        disk = disk.kill()
        disk.put(f"{ROOT}/t/0/{400:020d}", bytes(size))
        store = open_queues(disk)
        assert store.damaged == []
        if size:  # FakeDisk does not enlarge an empty one
            put(store, 20, 33)
            assert all_units(store.find("t", 0)) == units(0, 33)


# -- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reaches", range(0, 61, 3))
def test_a_write_that_was_killed_in_the_middle_is_made_good(reaches):
    """A torn unit that passes for a whole one as well: its record's put writes it again."""
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
    for index in range(2, 9):  # dispatched again from a point before
        store.put("t", 0, index, index * SIZE, SIZE, index if index < 4 else -1 - index)
    store.commit()
    expected = {index: (index * SIZE, SIZE, -1 - index) for index in range(4, 9)}
    assert all_units(store.find("t", 0)) == units(0, 4) | expected


def test_a_size_that_was_torn_is_made_good():
    """Its high bytes on the disk, its low ones not: a size above 0, and not the record's."""
    disk = FakeDisk()
    store = open_queues(disk)
    store.put("t", 0, 0, 0, 0x10203, 77)
    store.commit()
    disk = disk.kill()
    overwrite(disk, FIRST, 10, bytes(10))
    store = open_queues(disk)
    assert store.max_physic_offset == 0x10000
    store.put("t", 0, 0, 0, 0x10203, 77)
    store.commit()
    assert store.max_physic_offset == 0x10203
    assert all_units(store.find("t", 0)) == {0: (0, 0x10203, 77)}


@pytest.mark.parametrize("base", [0, 3 * 2**32 + 12_345])
@pytest.mark.parametrize("count", range(5))
def test_a_unit_of_which_only_the_second_sector_was_kept_is_made_good(base, count):
    """It passes for a valid one, with an offset that lacks bytes; also with units behind it."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 25, base=base)
    flush(store)
    put(store, 25, 26 + count, base=base)
    disk = disk.kill()
    overwrite(disk, FIRST, 500, bytes(12))  # unit 25 stands at 500 to 520
    overwrite(disk, FIRST, 510, b"\0\x64")
    store = open_queues(disk, file_size=2_000)
    assert store.find("t", 0).max_offset == 25
    put(store, 25, 26 + count, base=base)
    assert all_units(store.find("t", 0)) == {i: unit(i, base=base) for i in range(26 + count)}


def test_a_torn_unit_that_nothing_gives_away_is_made_good_by_its_record():
    """The log crossed 4 GiB between two records: the half offset lies behind the one before."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 25)
    store.put("t", 0, 25, 2**32 + 5_000, SIZE, 25)
    put(store, 26, 28, base=2**32 + 5_000)
    disk = disk.kill()
    overwrite(disk, FIRST, 500, bytes(4))
    store = open_queues(disk, file_size=2_000)
    assert store.find("t", 0).units(25, 1) == [(5_000, SIZE, 25)]
    store.put("t", 0, 25, 2**32 + 5_000, SIZE, 25)
    assert store.commit() == []
    assert store.find("t", 0).units(25, 1) == [(2**32 + 5_000, SIZE, 25)]


# -- power cuts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_is_made_good_by_the_dispatch_from_the_last_flush(seed):
    """Whichever sectors got to the disk; and nothing of what did not fit comes back later."""
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


def test_zeros_behind_the_end_are_durable():
    """Else a second power cut, when the queue has grown, would bring stale units back."""
    disk = FakeDisk()
    store = open_queues(disk, file_size=2_000)
    put(store, 0, 20)
    flush(store)
    put(store, 20, 90)
    disk = disk.kill()
    overwrite(disk, FIRST, 21 * UNIT_SIZE, bytes(UNIT_SIZE))
    store = open_queues(disk, file_size=2_000)
    assert (store.find("t", 0).max_offset, disk.syncs) == (21, [FIRST])
    assert store.damaged == ["t/0: units after its last valid one were dropped"]
    assert store.rebuild_from == 2_100
    assert not any(disk.cut_power().files(f"{ROOT}/t/0/")[f"{0:020d}"][21 * UNIT_SIZE :])


def test_after_an_unclean_stop_the_last_files_are_flushed_again():
    """What a killed process wrote may be in the page cache only."""
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
        (300, bytes(200), 20),  # a name that is no multiple of the size
    ],
)
def test_files_that_cannot_be_used_are_dropped_and_built_again(start, data, left, caplog):
    """With those behind them; the rest of the queue, and other queues, stay."""
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


def test_a_queue_whose_first_file_is_gone_begins_behind_it():
    """As expiry leaves it."""
    disk = with_three_files()
    disk.remove(FIRST)
    store = open_queues(disk)
    assert (store.damaged, store.find("t", 0).min_offset) == ([], 10)
    assert all_units(store.find("t", 0)) == units(10, 28)


def test_names_that_are_no_queues_are_left_alone_and_named(caplog):
    """Files where directories belong, directories where files belong, odd numbers, other names."""
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


def test_a_store_without_consume_queues_has_none():
    """A new one, and one that somebody emptied for a rebuild."""
    store = open_queues()
    assert (list(store), len(store), store.max_physic_offset, store.damaged) == ([], 0, 0, [])


@pytest.mark.parametrize(("wanted", "rounded"), [(200, 200), (199, 200), (181, 200), (1, 20)])
def test_a_file_size_is_rounded_up_to_whole_units(wanted, rounded):
    """As RocketMQ rounds the configured one."""
    assert open_queues(file_size=wanted).file_size == rounded


def test_the_size_of_the_files_that_are_there_is_kept(caplog):
    """A changed setting must not cost the queues of messages that the log no longer has."""
    disk = with_three_files()
    with caplog.at_level(logging.WARNING):
        store = open_queues(disk, file_size=6_000_000)
    assert "consume_queue_file_size_kept" in caplog.text
    assert (store.file_size, store.damaged) == (FILE_SIZE, [])
    assert all_units(store.find("t", 0)) == units(0, 28)


def unreadable(disk, code):
    """A disk on which reads of one queue fail with an errno."""

    def fail(pread):
        try:
            raise OSError(code, "bad")
        except OSError as error:
            raise DiskError("cannot read", path=pread.path) from error

    disk.before("pread", fail, path="/t/0/")
    return disk


def test_a_queue_that_cannot_be_read_is_built_again():
    """A bad sector under it is no reason not to start."""
    disk = unreadable(with_three_files(), errno.EIO)
    store = ConsumeQueueStore.load(disk, "/d", FILE_SIZE)
    store.recover()
    assert (store.find("t", 0), store.rebuild_from) == (None, 0)
    assert store.damaged == ["t/0: cannot read"]
    assert disk.files(f"{ROOT}/t/0/") == {}
    assert store.find("other", 0).max_offset == 3


def test_a_failure_that_will_pass_costs_no_queue():
    """Too many open files, for one: the start is refused, and nothing is removed."""
    disk = unreadable(with_three_files(), errno.EMFILE)
    store = ConsumeQueueStore.load(disk, "/d", FILE_SIZE)
    with pytest.raises(DiskError):
        store.recover()
    assert len(disk.files(f"{ROOT}/t/0/")) == 3


def test_a_unit_that_was_damaged_under_way_is_read_as_a_blank():
    """A reader passes over it, as over a queue offset without a record."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 4)
    overwrite(disk, FIRST, 2 * UNIT_SIZE + 8, b"\xff" * 4)
    found = store.find("t", 0).units(0, 9)
    assert [one.is_blank for one in found] == [False, False, True, False]


def test_each_way_to_look_for_the_end_finds_the_same():
    """All sizes at once, and one unit after the other."""
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
