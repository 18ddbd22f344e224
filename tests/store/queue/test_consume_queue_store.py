"""Consume queues: put, commit, read, truncate, expire and flush."""

import logging

import pytest

from hastore.env.real import RealDisk
from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.store.queue.consume_queue_store import GAP_UNITS_MAX, ConsumeQueueStore
from hastore.store.queue.file import OPEN_FILES_MAX
from hastore.store.queue.unit import BLANK, BLANK_SIZE, UNIT, UNIT_SIZE
from hastore.wire.config_tables import DeletedTopic
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full, sync_failed
from tests.support.store.consume_queues import (
    FILE_SIZE,
    ROOT,
    all_units,
    flush,
    open_queues,
    put,
    unit,
)

BLANK_UNIT = (0, BLANK_SIZE, 0)


# -- putting and reading -------------------------------------------------------------------------


def test_unit_is_readable_after_its_commit():
    """``put`` only fills memory; ``commit`` writes and returns the queues that grew."""
    store = open_queues()
    put(store, 0, 3, commit=False)
    queue = store.find("t", 0)
    assert (queue.min_offset, queue.max_offset, queue.units(0, 9)) == (0, 0, [])
    assert store.commit() == [queue]
    assert (queue.max_offset, queue.units(1, 9)) == (3, [unit(1), unit(2)])
    assert store.commit() == []
    assert store.max_physic_offset == 300


def test_commit_step_creates_a_few_files_at_a_time():
    """Units are readable after each step; the last step returns all queues that grew."""
    disk = FakeDisk()
    store = open_queues(disk)
    for queue_id in range(10):
        put(store, 0, 1, queue_id=queue_id, base=queue_id * 100, commit=False)
    for done in (4, 8):
        assert store.commit_step() is None
        assert len(disk.files(f"{ROOT}/")) == done
        readable = [queue.queue_id for queue in store if queue.max_offset]
        assert readable == list(range(done))
        assert store.max_physic_offset == 0
    assert [queue.queue_id for queue in store.commit_step()] == list(range(10))
    assert store.max_physic_offset == 1_000
    assert store.commit_step() == []


def test_commit_step_writes_many_queues_with_open_files():
    """Creating files is slow, writing is not. Puts between two steps are committed too."""
    store = open_queues()
    for queue_id in range(100):
        put(store, 0, 1, queue_id=queue_id, base=queue_id * 100)
    for queue_id in range(100):
        put(store, 1, 2, queue_id=queue_id, base=10_000 + queue_id * 100, commit=False)
    assert store.commit_step() is None
    assert [queue.max_offset for queue in store] == [2] * 64 + [1] * 36
    put(store, 2, 3, base=30_000, commit=False)
    assert len(store.commit_step()) == 100
    assert store.find("t", 0).max_offset == 3


def test_failed_commit_step_loses_nothing():
    """The next step tries again, with the other queues first."""
    disk = FakeDisk()
    store = open_queues(disk)
    for queue_id in range(10):
        put(store, 0, 1, queue_id=queue_id, base=queue_id * 100, commit=False)
    assert store.commit_step() is None
    disk.fail("pwrite", disk_full())
    for _ in range(2):
        with pytest.raises(DiskFullError):
            store.commit_step()
    disk.heal()
    assert store.max_physic_offset == 0
    assert len(store.commit()) == 10
    assert all(queue.units(0, 1) == [unit(0, base=queue.queue_id * 100)] for queue in store)


def test_units_end_at_a_file_end_and_at_the_bounds_of_the_queue():
    """A read returns units of one file; outside the queue it returns none."""
    store = open_queues()
    put(store, 0, 25)
    queue = store.find("t", 0)
    assert [len(queue.units(offset, 20)) for offset in (0, 8, 10, 24)] == [10, 2, 10, 1]
    assert [queue.units(offset, 5) for offset in (-1, 25, 10**15)] == [[], [], []]
    assert queue.units(3, 0) == []
    assert all_units(queue) == {index: unit(index) for index in range(25)}


def test_each_queue_of_each_topic_has_its_own_files():
    """They are named consumequeue/TOPIC/QUEUE_ID/FIRST_BYTE."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 11, topic="a", queue_id=1)
    put(store, 0, 1, topic="über", queue_id=0)
    names = [f"a/1/{0:020d}", f"a/1/{200:020d}", f"über/0/{0:020d}"]
    assert list(disk.files(f"{ROOT}/")) == names
    assert store.find("a", 0) is None
    assert sorted(repr(queue) for queue in store) == [
        "<ConsumeQueue a/1 [0, 11)>",
        "<ConsumeQueue über/0 [0, 1)>",
    ]


def test_putting_a_record_again_changes_nothing():
    """After a restart, dispatch repeats records of any queue, even old ones."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 25)
    before = disk.files(f"{ROOT}/")
    assert put(store, 0, 25) == []
    store = open_queues(disk.kill())
    assert put(store, 5, 25) == []
    assert disk.files(f"{ROOT}/") == before
    assert len(put(store, 24, 26)) == 1


def test_first_file_is_filled_with_blanks_up_to_the_first_unit():
    """RocketMQ's pre-blank: a queue's first file is the one that holds its first unit."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 23, 24, commit=False)
    queue = store.find("t", 0)
    assert (queue.min_offset, queue.max_offset) == (23, 23)
    put(store, 24, 26)
    (image,) = disk.files(f"{ROOT}/t/0/").values()
    assert list(disk.files(f"{ROOT}/t/0/")) == [f"{400:020d}"]
    assert image.startswith(BLANK * 3)
    assert image[6 * UNIT_SIZE :] == bytes(4 * UNIT_SIZE)
    for again in (store, open_queues(disk.kill()), open_queues(disk.kill(), last_exit_ok=True)):
        queue = again.find("t", 0)
        assert (queue.min_offset, queue.max_offset) == (23, 26)
        assert all_units(queue) == {index: unit(index) for index in range(23, 26)}
        assert (again.max_physic_offset, again.damaged) == (2600, [])


def test_skipped_records_leave_blanks_that_later_puts_fill():
    """Every unit is at its own index; RocketMQ would append it at the end of the queue."""
    store = open_queues()
    put(store, 0, 4)
    put(store, 17, 18)
    queue = store.find("t", 0)
    expected = {index: unit(index) for index in (0, 1, 2, 3, 17)}
    blanks = dict.fromkeys(range(4, 17), BLANK_UNIT)
    assert all_units(queue) == expected | blanks
    assert queue.units(5, 1)[0].is_blank
    assert store.damaged == ["t/0: no records for queue offsets 4 to 16"]
    assert store.rebuild_from == 400
    assert put(store, 0, 18) == []  # dispatch again, from rebuild_from or earlier
    assert all_units(queue) == {index: unit(index) for index in range(18)}
    put(store, 18, 19)
    assert queue.max_offset == 19


def test_fills_a_gap_that_is_only_in_memory():
    """Its blanks have not been committed."""
    store = open_queues()
    put(store, 0, 4)
    put(store, 7, 8, commit=False)
    put(store, 4, 7)
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(8)}


@pytest.mark.parametrize("queue_offset", [GAP_UNITS_MAX + 5, 2**62, -1])
def test_reports_and_skips_a_queue_offset_too_far_away(queue_offset, caplog):
    """A damaged field must neither fill the disk with blanks nor end the queue."""
    store = open_queues()
    put(store, 0, 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.put("t", 0, queue_offset, 10_000, 100, 0)
    assert caplog.text.count("record_in_no_consume_queue") == 1
    put(store, 2, 3)
    assert store.find("t", 0).max_offset == 3


def test_fully_expired_queue_continues_at_any_queue_offset():
    """Without old units there is no gap to fill."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 25)
    store.delete_expired(2_500)
    far = GAP_UNITS_MAX + 1_003
    put(store, far, far + 3)
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(far, far + 3)}
    assert list(disk.files(f"{ROOT}/t/0/")) == [f"{far * 20 // 200 * 200:020d}"]
    assert all_units(open_queues(disk.kill()).find("t", 0)).keys() == set(range(far, far + 3))


@pytest.mark.parametrize(
    ("topic", "queue_id", "queue_offset"),
    [
        *(
            (topic, 0, 0)
            for topic in (
                "",
                "..",
                "../up",
                "a/b",
                "n\0",
                "x" * 256,
                "é" * 128,
                "a\x1b[2J",
                "a\n",
                "\x9b1m",
                "\x7f",
            )
        ),
        ("t", -1, 0),
        ("t", 0, 2**60),
        ("t", 0, -1),
    ],
)
def test_reports_and_skips_a_record_that_fits_no_queue(topic, queue_id, queue_offset, caplog):
    """Topics are names of directories, and none may lead out of consumequeue/."""
    disk = FakeDisk()
    store = open_queues(disk)
    with caplog.at_level(logging.WARNING):
        store.put(topic, queue_id, queue_offset, 0, 100, 0)
    assert "record_in_no_consume_queue" in caplog.text
    assert (store.commit(), list(store), disk.files("/")) == ([], [], {})


def test_keeps_the_first_of_two_records_with_one_queue_offset(caplog):
    """As in RocketMQ, the later record is in no queue; a warning reports it."""
    store = open_queues()
    put(store, 0, 3)
    with caplog.at_level(logging.WARNING):
        store.put("t", 0, 1, 5_000, 100, 0)
    assert "an earlier record has this queue offset" in caplog.text
    assert store.commit() == []
    assert store.find("t", 0).units(1, 1) == [unit(1)]


# -- disk failures -------------------------------------------------------------------------------


@pytest.mark.parametrize("reaches", [0, 1, 19, 20, 33])
def test_full_disk_at_commit_loses_nothing(reaches):
    """Wherever the write stopped, the next commit completes it and returns the queues."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 2, topic="a")
    put(store, 2, 5, topic="a", commit=False)
    put(store, 0, 3, topic="b", commit=False)
    disk.fail("pwrite", disk_full(), reaches=reaches)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            store.commit()
    assert store.find("a", 0).max_offset == 2
    assert store.find("b", 0).max_offset == 0
    put(store, 5, 7, topic="a", commit=False)
    disk.heal()
    assert {queue.topic for queue in store.commit()} == {"a", "b"}
    for again in (store, open_queues(disk.kill())):
        assert all_units(again.find("a", 0)) == {index: unit(index) for index in range(7)}
        assert all_units(again.find("b", 0)) == {index: unit(index) for index in range(3)}


def test_next_commit_returns_queues_that_a_failed_commit_wrote():
    """A queue that cannot be written does not block the others."""
    disk = FakeDisk()
    disk.fail("open_sparse_file", disk_full, path="/bad/")
    store = ConsumeQueueStore.load(disk, "/d", FILE_SIZE)
    put(store, 0, 1, topic="bad", commit=False)
    put(store, 0, 1, topic="good", commit=False)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            store.commit()
    assert store.find("good", 0).max_offset == 1
    disk.heal()
    assert {queue.topic for queue in store.commit()} == {"bad", "good"}
    assert store.commit() == []


def test_units_before_a_file_that_cannot_be_created_are_readable():
    """The other units wait in memory."""
    disk = FakeDisk()
    disk.fail("open_sparse_file", disk_full, path=f"{200:020d}")
    store = open_queues(disk)
    put(store, 0, 13, commit=False)
    with pytest.raises(DiskFullError):
        store.commit()
    assert store.find("t", 0).max_offset == 10
    disk.heal()
    assert store.commit() == [store.find("t", 0)]
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(13)}


# -- truncation and expiry -----------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 9, 10, 11, 25, 30, 31])
def test_truncate_drops_units_of_lost_records(kept):
    """Units after the end become zeros and files after it are removed, at once and durably."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 31)
    flush(store)
    store.truncate(kept * 100 + 50)  # in the middle of a record
    images = disk.cut_power().files(f"{ROOT}/t/0/")
    assert len(images) == -(-kept // 10)
    assert b"".join(images.values())[kept * UNIT_SIZE :].count(0) == len(images) * 200 - kept * 20
    queue = store.find("t", 0)
    assert (queue.max_offset if queue else 0) == kept
    assert store.max_physic_offset == kept * 100
    put(store, kept, 40, base=7)
    expected = {i: unit(i) for i in range(kept)} | {i: unit(i, base=7) for i in range(kept, 40)}
    assert all_units(store.find("t", 0)) == expected


@pytest.mark.parametrize("kept", [0, 3, 4, 6, 8])
def test_truncate_drops_pending_units_too(kept):
    """Truncation drops units in memory first, then those in files."""
    store = open_queues()
    put(store, 0, 4)
    put(store, 4, 8, commit=False)
    store.truncate(kept * 100)
    put(store, kept, 9, base=7)
    expected = {i: unit(i) for i in range(kept)} | {i: unit(i, base=7) for i in range(kept, 9)}
    assert all_units(store.find("t", 0)) == expected


def test_truncate_at_the_end_changes_nothing():
    """No byte is written, and no file is opened."""
    disk = FakeDisk()
    put(open_queues(disk), 0, 5)
    disk = disk.kill()
    store = open_queues(disk)
    reads = disk.reads
    store.truncate(500)
    assert (disk.reads, disk.changes, disk.syncs) == (reads, [], [])


def test_truncate_removes_a_queue_with_only_blanks_left():
    """The next unit decides where the queue begins."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 23, 26)
    store.truncate(100)
    assert (store.find("t", 0), disk.files(f"{ROOT}/")) == (None, {})
    put(store, 3, 5)
    assert all_units(store.find("t", 0)) == {3: unit(3), 4: unit(4)}


def test_expiry_removes_leading_files_and_moves_the_min_offset():
    """The last file stays; without records, the min offset is the one after the last unit."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 31)
    queue = store.find("t", 0)
    seen = []
    for min_physic_offset in (0, 50, 100, 900, 901, 999, 1000, 2150, 3000, 3100, 9999):
        removed = store.delete_expired(min_physic_offset)
        files = len(disk.files(f"{ROOT}/t/0/"))
        seen.append((removed, files, queue.min_offset))
    assert seen == [
        (0, 4, 0),
        (0, 4, 1),
        (0, 4, 1),
        (0, 4, 9),
        (1, 3, 10),
        (0, 3, 10),
        (0, 3, 10),
        (1, 2, 22),
        (1, 1, 30),
        (0, 1, 31),
        (0, 1, 31),
    ]
    assert (queue.units(30, 1), queue.max_offset) == ([], 31)
    put(store, 31, 32, base=20_000)
    assert all_units(queue) == {31: unit(31, base=20_000)}


def test_expiry_in_a_queue_with_blanks_keeps_all_remaining_records():
    """The search for the first remaining record may meet blanks at any step."""
    for count in range(1, 9):
        store = open_queues()
        put(store, 3, 5)
        put(store, 5 + count, 7 + count)
        put(store, 8 + count, 12 + count)
        real = [3, 4, 5 + count, 6 + count, *range(8 + count, 12 + count)]
        for index, first in enumerate(real):
            store.delete_expired(first * 100)
            queue = store.find("t", 0)
            assert queue.min_offset == first
            found = all_units(queue).items()
            assert [key for key, value in found if value != BLANK_UNIT] == real[index:]


def test_queue_truncated_to_nothing_leaves_no_file():
    """Its pending units are dropped too, and the queue can begin again."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 15)
    put(store, 15, 16, commit=False)
    store.truncate(0)
    store.truncate(0)
    assert (store.commit(), list(store), disk.files(f"{ROOT}/")) == ([], [], {})
    put(store, 0, 1)
    assert store.find("t", 0).max_offset == 1


# -- flushing ------------------------------------------------------------------------------------


def test_committed_files_and_new_directories_are_dirty_until_synced():
    """Each of them is returned once."""
    disk = FakeDisk()
    store = open_queues(disk)
    assert (store.is_flushed, store.dirty_files(), store.dirty_dirs()) == (True, [], [])
    put(store, 0, 11)
    assert not store.is_flushed
    assert sorted(store.dirty_dirs()) == [ROOT, f"{ROOT}/t", f"{ROOT}/t/0"]
    assert flush(store) == [f"{ROOT}/t/0/{0:020d}", f"{ROOT}/t/0/{200:020d}"]
    assert (store.is_flushed, store.dirty_files(), store.dirty_dirs()) == (True, [], [])
    put(store, 11, 12)
    assert flush(store) == [f"{ROOT}/t/0/{200:020d}"]
    assert all_units(open_queues(disk.cut_power()).find("t", 0)) == {i: unit(i) for i in range(12)}


def test_file_written_during_its_sync_stays_dirty():
    """It comes after the files that still wait for their first sync."""
    store = open_queues()
    put(store, 0, 1, topic="a")
    put(store, 0, 1, topic="b")
    files = store.dirty_files()
    put(store, 0, 1, topic="c")
    put(store, 1, 2, topic="a")
    store.mark_flushed(files)
    assert [file.path.split("/")[3] for file in store.dirty_files()] == ["c", "a"]


def test_files_stay_dirty_until_mark_flushed():
    """After a failed flush, ``dirty_files`` returns the same files again."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 1)
    disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        flush(store)
    disk.heal()
    assert len(store.dirty_files()) == len(store.dirty_files()) == 1
    assert not store.is_flushed
    flush(store)
    assert store.is_flushed


def test_least_pages_defers_files_with_few_dirty_pages():
    """Pages of 4 KiB that changed since the last sync count; a full file is never deferred."""
    store = open_queues(file_size=20_000)
    put(store, 0, 300)
    assert flush(store, least_pages=2) == []
    put(store, 300, 500)  # 10,000 bytes
    assert len(flush(store, least_pages=2)) == 1
    put(store, 500, 700)
    assert flush(store, least_pages=2) == []
    put(store, 700, 1_000)
    put(store, 1_000, 1_001)
    assert len(flush(store, least_pages=4)) == 1
    assert len(flush(store)) == 1


def test_file_removed_during_its_sync_stays_open_until_the_end():
    """Another thread uses its descriptor."""
    store = open_queues()
    put(store, 0, 11)
    files = store.dirty_files()
    store.truncate(0)
    for file in files:
        file.sync()
    store.mark_flushed(files)
    assert all(file.is_closed for file in files)
    assert store.is_flushed


def test_syncs_a_file_before_recovery_would_skip_it():
    """Recovery reads the last three files, and the flush service may be further behind."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 30)
    assert disk.syncs == []
    put(store, 30, 55)
    assert disk.syncs == [f"{ROOT}/t/0/{start:020d}" for start in (0, 200, 400)]
    assert flush(store) == [f"{ROOT}/t/0/{start:020d}" for start in (600, 800, 1000)]
    put(store, 55, 61)
    assert len(disk.syncs) == 3 + 3 + 3  # files and directories, none of them twice


def test_failed_sync_is_not_retried():
    """It would succeed although the bytes are lost."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 30)
    disk.fail("sync", sync_failed())
    put(store, 30, 35, commit=False)
    with pytest.raises(FlushFailedError):
        store.commit()
    disk.heal()
    with pytest.raises(FlushFailedError):
        store.commit()
    with pytest.raises(FlushFailedError):
        store.dirty_files()
    assert store.find("t", 0).max_offset == 30


def test_limits_open_files_across_queues():
    """A flush of all queues proceeds in portions."""
    store = open_queues()
    for index in range(2 * OPEN_FILES_MAX):
        put(store, 0, 1, topic=f"topic-{index}", base=index, commit=False)
    store.commit()
    is_open = [queue.files[0].disk_file is not None for queue in store]
    assert sum(is_open) == OPEN_FILES_MAX
    portion = store.dirty_files()
    assert len(portion) == OPEN_FILES_MAX // 2
    for queue in store:
        assert len(queue.units(0, 1)) == 1
    assert not any(file.is_closed for file in portion)
    assert len(set(flush(store))) == 2 * OPEN_FILES_MAX
    store.close()
    assert not any(queue.files[0].disk_file for queue in store)


def test_syncs_a_directory_again_if_a_file_appears_during_its_sync():
    """The sync may have missed the new file, whose name a power cut would then lose."""
    store = open_queues()
    put(store, 0, 1)
    syncing = store.dirty_dirs()
    put(store, 1, 11)  # a second file, while a thread syncs
    store.mark_dirs_flushed(syncing)
    assert store.dirty_dirs() == ["/d/consumequeue/t/0"]
    store.mark_dirs_flushed(store.dirty_dirs())
    assert store.dirty_dirs() == []


def test_settle_writes_and_syncs_all_units():
    """A power cut afterwards loses nothing, and nothing is left to flush."""
    store = open_queues()
    put(store, 0, 15)
    put(store, 0, 3, topic="other", commit=False)
    store.settle()
    assert store.is_flushed
    assert store.dirty_dirs() == []
    again = open_queues(store._files.disk.cut_power())
    assert again.find("t", 0).max_offset == 15
    assert again.find("other", 0).max_offset == 3


def test_works_on_a_real_file_system(tmp_path):
    """Files are sparse and are created with their directories."""
    store = ConsumeQueueStore.load(RealDisk(), str(tmp_path), 6_000_000)
    put(store, 0, 5)
    path = tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}"
    assert (path.stat().st_size, path.stat().st_blocks <= 16) == (6_000_000, True)
    assert len(flush(store)) == 1
    store.close()
    store = ConsumeQueueStore.load(RealDisk(), str(tmp_path), 6_000_000)
    store.recover()
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(5)}
    store.truncate(200)
    assert path.read_bytes()[2 * UNIT_SIZE :].count(0) == 6_000_000 - 2 * UNIT_SIZE
    store.close()


# -- records that come back ----------------------------------------------------------------------


def restore(store, number):
    """Put the unit of record ``number``, which was written into the log in its place."""
    store.restore("t", 0, number, *unit(number))
    store.commit()


@pytest.mark.parametrize("index", [0, 1, 5, 299, 300, 598])
def test_a_blank_unit_comes_back_in_any_file(index):
    """Readers get it at its queue offset, and nothing else changes."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 600)
    wanted = all_units(store.find("t", 0))
    flush(store)
    store.close()
    path = f"{ROOT}/t/0/{index * UNIT_SIZE // FILE_SIZE * FILE_SIZE:020d}"
    file = disk.open_sparse_file(path, FILE_SIZE)
    file.pwrite(BLANK, index * UNIT_SIZE % FILE_SIZE)
    file.close()
    store = open_queues(disk)
    restore(store, index)
    assert all_units(store.find("t", 0)) == wanted
    flush(store)
    store.close()
    store = open_queues(disk.kill())
    assert all_units(store.find("t", 0)) == wanted


def test_a_queues_last_record_comes_back():
    """Its unit was removed with it; so was the queue, if it had no other."""
    store = open_queues()
    restore(store, 0)
    put(store, 1, 3)
    restore(store, 3)
    assert all_units(store.find("t", 0)) == {n: unit(n) for n in range(4)}


def test_a_unit_of_another_record_is_not_replaced(caplog):
    """It is logged: one of the two records has a wrong queue offset."""
    store = open_queues()
    put(store, 0, 3)
    store.restore("t", 0, 1, 5_000, 100, 7)
    store.commit()
    assert all_units(store.find("t", 0)) == {n: unit(n) for n in range(3)}
    assert "another record has this queue offset" in caplog.text


def test_a_unit_that_is_there_is_put_once():
    """A comparison may be repeated."""
    store = open_queues()
    put(store, 0, 3)
    restore(store, 1)
    assert all_units(store.find("t", 0)) == {n: unit(n) for n in range(3)}


# -- deleted topics ------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_queue_without_messages_since_a_deletion_gets_no_deleted_unit(whole):
    """A power cut has taken its last units; another queue of the topic has a new message."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 3, queue_id=1)
    store.put("t", 0, 7, 1_000, 100, 7)
    store.settle()
    store.close()
    store = open_queues(disk)
    deletion = DeletedTopic(log_offset=1_000, next_offsets={0: 7, 1: 5})
    store.remove_trees(store.delete_topics({"t": deletion}))
    if whole:
        store.put_units("t", 1, 0, b"".join(UNIT.pack(*unit(number)) for number in range(5)))
    else:
        put(store, 0, 5, queue_id=1)
    store.commit()
    assert store.find("t", 1) is None
    assert store.next_offset_of_deleted("t", 1) == 5
    assert not disk.exists(f"{ROOT}/t/1")
    store.put("t", 1, 5, 1_100, 100, 5)
    store.commit()
    queue = store.find("t", 1)
    assert (queue.min_offset, queue.max_offset) == (5, 6)
    assert store.find("t", 0).max_offset == 8
    flush(store)


@pytest.mark.parametrize("change", ["rename", "remove_tree"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_deletion_that_the_disk_refused_is_done_by_the_next_call(monkeypatch, change, made_again):
    """Of the topic that it refused, and of all others; also if a topic was made again meanwhile."""
    disk = FakeDisk()
    store = open_queues(disk)
    for topic in "a", "b":
        for number in range(5):
            store.put(topic, 0, number, 1_000 + number * 100, 100, number)
    store.commit()
    deletion = DeletedTopic(log_offset=2_000, next_offsets={0: 5})
    deleted = {"a": deletion, "b": deletion}

    def refuse(*_):
        raise DiskError("Input/output error", path="b")

    with monkeypatch.context() as patch:
        patch.setattr(type(disk), change, refuse)
        with pytest.raises(DiskError):
            store.remove_trees(store.delete_topics(deleted))
    assert store.has_undeleted
    if made_again:
        store.put("b", 0, 5, 2_000, 100, 9)
        store.commit()
    store.remove_trees(store.delete_topics(deleted))
    assert not store.has_undeleted
    assert store.find("a", 0) is None
    assert not disk.exists(f"{ROOT}/a")
    queue = store.find("b", 0)
    if made_again:
        assert (queue.min_offset, queue.max_offset) == (5, 6)
    else:
        assert queue is None
    assert not [entry.name for entry in disk.list_dir(ROOT) if entry.name.startswith(".")]
