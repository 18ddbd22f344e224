"""Putting, committing, reading, cutting and flushing consume queues."""

import logging

import pytest

from hastore.env.real import RealDisk
from hastore.errors import DiskFullError, FlushFailedError
from hastore.store.queue.consume_queue_store import GAP_UNITS_MAX, ConsumeQueueStore
from hastore.store.queue.file import OPEN_FILES_MAX
from hastore.store.queue.unit import BLANK, BLANK_SIZE, UNIT_SIZE
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


def test_a_unit_is_readable_once_it_is_committed():
    """``put`` fills memory only; ``commit`` writes and names the queues that grew."""
    store = open_queues()
    put(store, 0, 3, commit=False)
    queue = store.find("t", 0)
    assert (queue.min_offset, queue.max_offset, queue.units(0, 9)) == (0, 0, [])
    assert store.commit() == [queue]
    assert (queue.max_offset, queue.units(1, 9)) == (3, [unit(1), unit(2)])
    assert store.commit() == []
    assert store.max_physic_offset == 300


def test_a_commit_in_steps_makes_a_few_files_at_a_time():
    """Readers see what was written; what all of the commit comes to is told when it is done."""
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


def test_a_commit_in_steps_takes_many_queues_whose_files_are_open():
    """It is their files that take time; a put between two steps is committed with the rest."""
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


def test_a_step_that_fails_loses_nothing():
    """The next one tries again, the other queues first."""
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


def test_units_end_at_a_files_end_and_at_the_queues_bounds():
    """A read gives what one file holds; outside the queue there is nothing."""
    store = open_queues()
    put(store, 0, 25)
    queue = store.find("t", 0)
    assert [len(queue.units(offset, 20)) for offset in (0, 8, 10, 24)] == [10, 2, 10, 1]
    assert [queue.units(offset, 5) for offset in (-1, 25, 10**15)] == [[], [], []]
    assert queue.units(3, 0) == []
    assert all_units(queue) == {index: unit(index) for index in range(25)}


def test_each_queue_of_each_topic_has_files_of_its_own():
    """Named consumequeue/TOPIC/QUEUE_ID/first byte; other queues are not touched."""
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


def test_a_record_that_was_put_before_changes_nothing():
    """Dispatch after a restart repeats records; also ones far behind, in any queue."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 25)
    before = disk.files(f"{ROOT}/")
    assert put(store, 0, 25) == []
    store = open_queues(disk.kill())
    assert put(store, 5, 25) == []
    assert disk.files(f"{ROOT}/") == before
    assert len(put(store, 24, 26)) == 1


def test_a_queue_that_begins_late_is_filled_with_blanks_up_to_its_first_unit():
    """RocketMQ's pre-blank: the file that holds the unit is the queue's first."""
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


def test_records_that_are_passed_over_leave_blanks_and_come_in_later():
    """No unit stands at another index than its own; RocketMQ appends it where the queue ends."""
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
    assert put(store, 0, 18) == []  # the dispatch once more, from rebuild_from or before
    assert all_units(queue) == {index: unit(index) for index in range(18)}
    put(store, 18, 19)
    assert queue.max_offset == 19


def test_a_gap_that_was_not_committed_yet_is_mended_too():
    """Also while its blanks are in memory only."""
    store = open_queues()
    put(store, 0, 4)
    put(store, 7, 8, commit=False)
    put(store, 4, 7)
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(8)}


@pytest.mark.parametrize("queue_offset", [GAP_UNITS_MAX + 5, 2**62, -1])
def test_a_queue_offset_too_far_away_is_named_and_left_out(queue_offset, caplog):
    """A damaged field must not fill the disk with blanks, nor end the queue."""
    store = open_queues()
    put(store, 0, 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.put("t", 0, queue_offset, 10_000, 100, 0)
    assert caplog.text.count("record_in_no_consume_queue") == 1
    put(store, 2, 3)
    assert store.find("t", 0).max_offset == 3


def test_a_queue_without_a_record_left_goes_on_wherever_its_next_one_is():
    """Its old units are expired; nothing needs to be filled up."""
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
        *((topic, 0, 0) for topic in ("", "..", "../up", "a/b", "n\0", "x" * 256, "é" * 128)),
        ("t", -1, 0),
        ("t", 0, 2**60),
        ("t", 0, -1),
    ],
)
def test_a_record_that_can_have_no_queue_is_named_and_left_out(
    topic, queue_id, queue_offset, caplog
):
    """A topic is a directory's name: none may lead out of consumequeue/."""
    disk = FakeDisk()
    store = open_queues(disk)
    with caplog.at_level(logging.WARNING):
        store.put(topic, queue_id, queue_offset, 0, 100, 0)
    assert "record_in_no_consume_queue" in caplog.text
    assert (store.commit(), list(store), disk.files("/")) == ([], [], {})


def test_two_records_with_one_queue_offset_are_the_first_one(caplog):
    """As RocketMQ: the later one is in no queue, and somebody is told."""
    store = open_queues()
    put(store, 0, 3)
    with caplog.at_level(logging.WARNING):
        store.put("t", 0, 1, 5_000, 100, 0)
    assert "an earlier record has this queue offset" in caplog.text
    assert store.commit() == []
    assert store.find("t", 0).units(1, 1) == [unit(1)]


# -- a disk that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("reaches", [0, 1, 19, 20, 33])
def test_a_full_disk_at_commit_loses_nothing(reaches):
    """The next commit writes it, wherever the write broke off, and names the queues."""
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


def test_what_a_failing_commit_did_write_is_readable_and_named_by_the_next():
    """One queue's bad disk does not hold the others for ever."""
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


def test_a_file_that_cannot_be_made_keeps_what_went_before_it():
    """The units up to a file's end are readable; the rest waits."""
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


# -- cutting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 9, 10, 11, 25, 30, 31])
def test_truncate_drops_what_the_log_lost(kept):
    """Units behind it are zeros, files wholly behind it are gone, at once and durably."""
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
    """Those in memory, and then those in files."""
    store = open_queues()
    put(store, 0, 4)
    put(store, 4, 8, commit=False)
    store.truncate(kept * 100)
    put(store, kept, 9, base=7)
    expected = {i: unit(i) for i in range(kept)} | {i: unit(i, base=7) for i in range(kept, 9)}
    assert all_units(store.find("t", 0)) == expected


def test_truncate_behind_everything_changes_nothing():
    """Not a byte is written and no file opened."""
    disk = FakeDisk()
    put(open_queues(disk), 0, 5)
    disk = disk.kill()
    store = open_queues(disk)
    reads = disk.reads
    store.truncate(500)
    assert (disk.reads, disk.changes, disk.syncs) == (reads, [], [])


def test_a_queue_without_a_record_is_no_queue_any_more():
    """Blanks alone are no reason to keep a file: the next first unit says where it begins."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 23, 26)
    store.truncate(100)
    assert (store.find("t", 0), disk.files(f"{ROOT}/")) == (None, {})
    put(store, 3, 5)
    assert all_units(store.find("t", 0)) == {3: unit(3), 4: unit(4)}


def test_expiry_removes_leading_files_and_moves_the_first_offset():
    """Never the last file; where no record is left the first offset is the one behind the last."""
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


def test_expiry_in_a_queue_with_blanks_keeps_each_record_that_is_left():
    """Wherever the search meets a blank."""
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


def test_a_queue_cut_to_nothing_leaves_no_file_and_may_begin_anew():
    """With what was pending."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 15)
    put(store, 15, 16, commit=False)
    store.truncate(0)
    store.truncate(0)
    assert (store.commit(), list(store), disk.files(f"{ROOT}/")) == ([], [], {})
    put(store, 0, 1)
    assert store.find("t", 0).max_offset == 1


# -- to the disk ---------------------------------------------------------------------------------


def test_what_was_committed_is_dirty_until_it_was_synced():
    """Files and the directories that got them, each once."""
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


def test_what_is_written_while_a_file_is_synced_is_dirty_still():
    """And comes behind the files that had no turn."""
    store = open_queues()
    put(store, 0, 1, topic="a")
    put(store, 0, 1, topic="b")
    files = store.dirty_files()
    put(store, 0, 1, topic="c")
    put(store, 1, 2, topic="a")
    store.mark_flushed(files)
    assert [file.path.split("/")[3] for file in store.dirty_files()] == ["c", "a"]


def test_a_flush_that_failed_is_asked_for_again():
    """Until ``mark_flushed`` says that it was done."""
    store = open_queues()
    put(store, 0, 1)
    assert len(store.dirty_files()) == len(store.dirty_files()) == 1
    assert not store.is_flushed
    flush(store)
    assert store.is_flushed


def test_least_pages_leave_small_changes_for_later():
    """Pages of 4 KiB that were touched since the last sync; a file that is full counts as well."""
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


def test_a_file_that_is_removed_while_it_is_synced_stays_open_until_then():
    """Another thread has its descriptor."""
    store = open_queues()
    put(store, 0, 11)
    files = store.dirty_files()
    store.truncate(0)
    for file in files:
        file.sync()
    store.mark_flushed(files)
    assert all(file.is_closed for file in files)
    assert store.is_flushed


def test_a_file_that_no_recovery_would_look_at_is_on_the_disk():
    """A recovery reads the last three; the flush service may be further behind than that."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 30)
    assert disk.syncs == []
    put(store, 30, 55)
    assert disk.syncs == [f"{ROOT}/t/0/{start:020d}" for start in (0, 200, 400)]
    assert flush(store) == [f"{ROOT}/t/0/{start:020d}" for start in (600, 800, 1000)]
    put(store, 55, 61)
    assert len(disk.syncs) == 3 + 3 + 3  # files, and directories: nothing twice


def test_a_sync_that_failed_is_not_tried_again():
    """It would succeed, and the bytes would not be there."""
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


def test_few_of_many_queues_have_an_open_file():
    """And a flush of all of them comes in portions."""
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


def test_a_file_made_during_a_sync_of_its_directory_has_it_synced_again():
    """The sync may have come before the file, and a power cut would take the file's name."""
    store = open_queues()
    put(store, 0, 1)
    given = store.dirty_dirs()
    put(store, 1, 11)  # a second file, while a thread syncs
    store.mark_dirs_flushed(given)
    assert store.dirty_dirs() == ["/d/consumequeue/t/0"]
    store.mark_dirs_flushed(store.dirty_dirs())
    assert store.dirty_dirs() == []


def test_settling_writes_and_syncs_all_that_was_put():
    """After it a power cut takes nothing, and nothing is left to flush."""
    store = open_queues()
    put(store, 0, 15)
    put(store, 0, 3, topic="other", commit=False)
    store.settle()
    assert store.is_flushed
    assert store.dirty_dirs() == []
    again = open_queues(store._files.disk.cut_power())
    assert again.find("t", 0).max_offset == 15
    assert again.find("other", 0).max_offset == 3


def test_a_real_directory_holds_what_was_put(tmp_path):
    """On a real file system: sparse files, made with their directories."""
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
