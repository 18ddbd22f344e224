"""The index service: put, commit, query, roll and expire; full and failing disks."""

import threading

import pytest

from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.store.index.file import CLOCK_STEP_MAX_MS
from hastore.store.index.layout import key_hash, topic_hash
from tests.patience import WITHIN_S
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import FakeClock
from tests.support.env.scripted_disk import disk_full, sync_failed
from tests.support.store.index_stores import (
    CheckpointStandIn,
    delete_expired,
    fake_service,
    flush,
    query_index,
)

LATEST = 2**62


def put(service, offset, *keys, topic="t", at=START_MS):
    service.put(topic, list(keys), offset, at)


def ask(service, key, *, topic="t", count=100, begin=0, end=LATEST):
    return query_index(service, topic, key, max_count=count, begin_ms=begin, end_ms=end)


def test_query_returns_the_newest_first_up_to_the_count():
    """Three records share one key."""
    service = fake_service()
    for offset in (0, 100, 200):
        put(service, offset, "k", f"u{offset}")
    service.commit()
    assert ask(service, "k") == [200, 100, 0]
    assert ask(service, "k", count=2) == [200, 100]
    assert ask(service, "u100") == [100]
    assert ask(service, "nobody") == []
    assert service.end_physic_offset == 200


def test_query_sees_only_committed_keys():
    """Pending keys are skipped, and committed ones below them are found."""
    service = fake_service()
    put(service, 0, "k")
    assert ask(service, "k") == []
    service.commit()
    put(service, 100, "k")
    assert ask(service, "k") == [0]
    service.commit()
    assert ask(service, "k") == [100, 0]


def test_query_separates_topics_with_the_same_key():
    """Both keys share one slot."""
    service = fake_service(slots=1)
    put(service, 0, "k", topic="a")
    put(service, 100, "k", topic="b")
    service.commit()
    assert ask(service, "k", topic="a") == [0]
    assert ask(service, "k", topic="b") == [100]


def test_query_returns_a_record_with_a_repeated_key_once():
    """The file holds both entries, as in RocketMQ."""
    service = fake_service()
    put(service, 0, "k", "k")
    service.commit()
    assert service.files[0].index_count == 3
    assert ask(service, "k") == [0]


def test_query_returns_records_of_all_keys_with_the_same_hash():
    """``Aa`` and ``BB`` have one hash; the caller compares the keys."""
    assert key_hash(topic_hash("t"), "Aa") == key_hash(topic_hash("t"), "BB")
    service = fake_service()
    put(service, 0, "Aa")
    put(service, 100, "BB")
    service.commit()
    assert ask(service, "Aa") == [100, 0]


def test_time_window_is_exact_to_a_second():
    """All records in the window are found, and perhaps some up to a second outside."""
    service = fake_service(entries=100)
    for second in range(20):
        put(service, second * 100, "k", at=START_MS + second * 1000 + 500)
    service.commit()
    for second in range(20):
        at = START_MS + second * 1000 + 500
        found = ask(service, "k", begin=at, end=at)
        assert second * 100 in found
        assert all(abs(offset // 100 - second) <= 1 for offset in found)


def test_query_finds_all_records_after_the_clock_stepped_back():
    """The clock steps back in the middle of a file and of a chain."""
    service = fake_service(entries=100)
    times = [START_MS, START_MS + 60_000, START_MS + 10_000, START_MS + 20_000, START_MS - 5_000]
    for number, at in enumerate(times):
        put(service, number * 100, "k", at=at)
    service.commit()
    for number, at in enumerate(times):
        assert number * 100 in ask(service, "k", begin=at, end=at)


def test_query_stops_at_entries_far_older_than_the_window():
    """The rest of the chain is not read."""
    service = fake_service(entries=1000, slots=1)
    for number in range(500):
        put(service, number * 100, "k", at=START_MS + number * 100_000)
    service.commit()
    begin = START_MS + 495 * 100_000
    reads = service.env.disk.reads
    assert ask(service, "k", begin=begin) == [49900, 49800, 49700, 49600, 49500]
    assert service.env.disk.reads - reads < 20


def test_query_skips_files_outside_the_window():
    """The times in their headers show this, for newer and for older files."""
    service = fake_service(entries=101, slots=1)
    for number in range(500):
        put(service, number * 100, "k", at=START_MS + number * 100_000)
    service.commit()
    assert len(service.files) == 5
    at = START_MS + 250 * 100_000
    reads = service.env.disk.reads
    assert ask(service, "k", begin=at, end=at) == [25_000]
    assert service.env.disk.reads - reads < 110
    assert ask(service, "k", end=START_MS - CLOCK_STEP_MAX_MS - 1) == []
    assert service.env.disk.reads - reads < 110


def test_window_at_a_file_boundary_is_searched_in_both_files():
    """After the clock stepped back, its records may be in the next file."""
    service = fake_service(entries=3, slots=1)
    times = [START_MS + seconds * 1000 for seconds in (0, 60, 30, 90, 20)]
    for number, at in enumerate(times):
        put(service, number * 100, "k", at=at)
    service.commit()
    assert len(service.files) == 3
    for number, at in enumerate(times):
        assert number * 100 in ask(service, "k", begin=at, end=at)


def test_full_file_is_followed_by_the_next_one():
    """A roll in the middle of a record divides its keys between two files."""
    service = fake_service(entries=4)
    put(service, 0, "a", "b")
    put(service, 100, "c", "d", "e")
    put(service, 200, "a")
    service.commit()
    assert [file.index_count for file in service.files] == [4, 4]
    assert [ask(service, key) for key in "abcde"] == [[200, 0], [0], [100], [100], [100]]


def test_one_commit_may_fill_many_files():
    """Forty keys fill ten files of four entries."""
    service = fake_service(entries=5)
    put(service, 0, *[f"k{number}" for number in range(40)])
    service.commit()
    assert len(service.files) == 10
    assert all(ask(service, f"k{number}") == [0] for number in range(40))
    flush(service)
    assert all(file.slots is None for file in service.files)  # 20 MB each at the defaults
    assert all(ask(service, f"k{number}") == [0] for number in range(40))


def test_file_names_increase_when_the_clock_does_not():
    """Two files in one millisecond, then one an hour earlier (end of summer time)."""
    clock = FakeClock()
    service = fake_service(entries=2, clock=clock)
    put(service, 0, "a", "b")
    clock.ms -= 3_600_000
    put(service, 100, "c")
    service.commit()
    assert [file.name for file in service.files] == [
        "20231114221320000",
        "20231114221320001",
        "20231114221320002",
    ]


def test_putting_a_record_again_adds_nothing():
    """A dispatcher may begin again at any record; only missing keys are added."""
    service = fake_service(entries=6)
    records = [(0, "a", "b"), (100, "c"), (200, "d", "e", "f"), (300, "g")]
    for _ in range(2):
        for offset, *keys in records:
            put(service, offset, *keys)
        service.commit()
    assert sum(file.index_count - 1 for file in service.files) == 7
    service.close()
    again = fake_service(service.env.disk, entries=6)
    for offset, *keys in records:
        put(again, offset, *keys)
    put(again, 400, "h")
    again.commit()
    assert sum(file.index_count - 1 for file in again.files) == 8


def test_expiry_removes_the_first_files_but_never_the_last():
    """A file expires when its newest record is gone."""
    service = fake_service(entries=3)
    for offset in range(0, 1000, 100):
        put(service, offset, f"k{offset}")
    service.commit()
    while flush(service):
        pass
    assert delete_expired(service, 0) == 0
    assert delete_expired(service, 400) == 2
    assert ask(service, "k300") == []
    assert ask(service, "k400") == [400]
    assert delete_expired(service, 10_000) == 2
    assert ask(service, "k900") == [900]
    assert len(service.env.disk.files("/d/index/")) == 1


def test_destroy_removes_all_files_and_accepts_new_puts():
    """A slave that begins again needs this."""
    service = fake_service(entries=3)
    for offset in range(0, 500, 100):
        put(service, offset, "k")
    service.commit()
    service.destroy()
    assert service.env.disk.files("/d/index/") == {}
    assert ask(service, "k") == []
    put(service, 0, "k")
    service.commit()
    assert ask(service, "k") == [0]


def test_creates_nothing_before_the_first_record():
    """There is no directory, no file and nothing to flush."""
    service = fake_service()
    service.commit()
    assert flush(service) == 0
    service.close()
    assert not service.env.disk.exists("/d/index")


# -- disk failures -------------------------------------------------------------------------------


@pytest.mark.parametrize("reaches", [0, 7, 30])
def test_full_disk_loses_no_key(reaches):
    """The commit fails, queries see earlier commits, and the next commit writes all keys."""
    disk = FakeDisk()
    service = fake_service(disk, entries=5)
    put(service, 0, "a")
    service.commit()
    put(service, 100, "a", "b", "c", "d", "e", "f")
    disk.fail("pwrite", disk_full(), reaches=reaches)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            service.commit()
        assert ask(service, "a") == [0]
        assert ask(service, "b") == []
        assert service.dirty_files() == []  # a commit has to come first
    disk.heal()
    service.commit()
    assert ask(service, "a") == [100, 0]
    assert [ask(service, key) for key in "bcdef"] == [[100]] * 5


def test_flush_is_retried_after_a_full_disk():
    """It writes slots and header, and the files equal those of an index without the failure."""
    disk, intact = FakeDisk(), FakeDisk()
    service, other = fake_service(disk), fake_service(intact)
    for which in (service, other):
        put(which, 0, "a", "b", "c")
        which.commit()
    disk.fail("pwrite", disk_full())
    with pytest.raises(DiskFullError):
        flush(service)
    disk.heal()
    put(service, 100, "d")
    put(other, 100, "d")
    for which in (service, other):
        which.commit()
        assert flush(which) == 1
        which.close()
    assert disk.files("/d/index/") == intact.files("/d/index/")


def test_failed_sync_does_not_count_as_a_flush():
    """Nothing is flushed any more, close fails, and the next start indexes from the mark."""
    disk, checkpoint = FakeDisk(), CheckpointStandIn()
    service = fake_service(disk, checkpoint=checkpoint)
    put(service, 0, "a")
    put(service, 100, "b")
    service.commit()
    disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        flush(service)
    disk.heal()
    put(service, 200, "c")
    service.commit()
    assert ask(service, "c") == [200]
    assert flush(service) == 0
    with pytest.raises(DiskError, match="could not be flushed"):
        service.close()
    assert checkpoint.index_msg_timestamp == 0
    again = fake_service(disk.kill())
    assert again.redispatch_from() == 0


def test_failed_close_leaves_the_mark():
    """The next start resumes from it, even if the stop counts as clean."""
    disk = FakeDisk()
    service = fake_service(disk)
    put(service, 0, "a")
    service.commit()
    flush(service)
    put(service, 100, "b")
    service.commit()
    disk.fail("pwrite", disk_full())
    with pytest.raises(DiskFullError):
        service.close()
    disk.heal()
    again = fake_service(disk.kill(), last_exit_ok=True)
    assert again.redispatch_from() == 0
    put(again, 0, "a")
    put(again, 100, "b")
    again.commit()
    assert (ask(again, "a"), ask(again, "b")) == ([0], [100])


# -- the directory -------------------------------------------------------------------------------


def test_keeps_and_reports_foreign_files(caplog):
    """A foreign name and a file of another size are not read. An empty file is removed."""
    disk = FakeDisk()
    disk.put("/d/index/lost+found", b"x")
    disk.put("/d/index/20231114221310000", bytes(1000))
    disk.put("/d/index/20231114221310001", b"")
    service = fake_service(disk)
    put(service, 0, "a")
    service.commit()
    assert ask(service, "a") == [0]
    service.close()
    names = list(disk.files("/d/index/"))
    assert names == ["20231114221310000", "20231114221320000", "lost+found"]
    assert "index_stray_file" in caplog.text
    assert "index_file_of_another_size" in caplog.text


def test_unclean_start_without_an_index_redispatches_the_whole_log():
    """Otherwise keys that were never written would stay missing."""
    assert fake_service(last_exit_ok=False).redispatch_from() == 0
    assert fake_service(last_exit_ok=True).redispatch_from() is None


def test_query_runs_concurrently_with_puts_and_commits():
    """As in a node, another thread queries; it finds consecutive records, newest first."""
    service = fake_service(entries=5000, slots=4)
    done, seen = threading.Event(), threading.Event()
    wrong = []

    def query():
        while not done.is_set():
            found = ask(service, "k", count=20)
            if found != [found[0] - 100 * step for step in range(len(found))] if found else False:
                wrong.append(found)
            if found:
                seen.set()

    thread = threading.Thread(target=query)
    thread.start()
    try:
        for number in range(3000):
            put(service, number * 100, "k")
            if number % 3 == 0:
                service.commit()
            if number % 1000 == 999:
                seen.clear()
                assert seen.wait(WITHIN_S), "no query finds anything"
    finally:
        done.set()
        thread.join()
    assert not wrong
