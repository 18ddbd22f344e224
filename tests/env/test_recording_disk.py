"""The ledger of a node's failed writes: what could not be stored, until it is."""

import threading

import attrs
import pytest

from hastore.env.failed_writes import FAILED_MAX, Change
from hastore.env.recording_disk import recording
from hastore.errors import DiskError
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.env.scripted_disk import disk_full


@attrs.define(slots=False)
class Bench:
    """A disk whose calls fail as a test says, behind one that records."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    clock: FakeClock = attrs.field(factory=FakeClock)

    def __attrs_post_init__(self):
        self.env = recording(fake_env(self.disk, self.clock))
        self.env.disk.make_dirs("/d/config")

    def paths(self):
        return [(failed.path, failed.is_removal) for failed in self.env.failed_writes.now]


CHANGES = {
    "make_dirs": lambda disk: disk.make_dirs("/d/config/x"),
    "open_sparse_file": lambda disk: disk.open_sparse_file("/d/config/x", 100),
    "sync_dir": lambda disk: disk.sync_dir("/d/config"),
    "write_file": lambda disk: disk.write_file("/d/config/x", b"1"),
    "rename": lambda disk: disk.rename("/d/config/old", "/d/config/new"),
    "remove": lambda disk: disk.remove("/d/config/old"),
    "remove_tree": lambda disk: disk.remove_tree("/d/config"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_fails_is_recorded_until_it_succeeds(name):
    """With its reason; its callers get the error as before."""
    bench = Bench()
    bench.env.disk.write_file("/d/config/old", b"1")
    bench.disk.fail(name, disk_full, times=2)
    for _ in range(2):
        with pytest.raises(DiskError):
            CHANGES[name](bench.env.disk)
    (failed,) = bench.env.failed_writes.now
    assert "No space left" in failed.reason
    CHANGES[name](bench.env.disk)
    assert bench.env.failed_writes.now == ()


def test_a_failure_begins_with_the_first_of_a_row():
    """A later reason takes the place of an earlier one, and not of its time."""
    bench = Bench()
    ledger = bench.env.failed_writes
    ledger.failed("/d/a", "one")
    began_ms = bench.clock.now_ms()
    bench.clock.ms += 5_000
    ledger.failed("/d/a", "two", "make room")
    ledger.failed("/d/b", "three")
    first, second = ledger.now
    assert (first.reason, first.hint, first.first_ms) == ("two", "make room", began_ms)
    assert second.first_ms == began_ms + 5_000


def test_a_write_or_removal_that_succeeds_leaves_nothing_to_do():
    """A file that is written again need not be removed, and the reverse."""
    bench = Bench()
    ledger = bench.env.failed_writes
    for change in (
        lambda: bench.env.disk.write_file("/d/a", b"1"),
        lambda: bench.env.disk.remove("/d/a"),
    ):
        ledger.failed("/d/a", "written")
        ledger.failed("/d/a", "removed", change=Change.REMOVE)
        assert bench.paths() == [("/d/a", False), ("/d/a", True)]
        change()
        assert bench.paths() == []


def test_a_rename_or_an_open_file_does_not_end_a_failed_write():
    """A table is renamed to its backup at each attempt to store it."""
    bench = Bench()
    disk, ledger = bench.env.disk, bench.env.failed_writes
    disk.write_file("/d/a", b"1")
    ledger.failed("/d/a", "written")
    disk.open_sparse_file("/d/a", 100)
    ledger.failed("/d/a", "renamed", change=Change.RENAME)
    disk.rename("/d/a", "/d/a.bak")
    assert bench.paths() == [("/d/a", False)]
    disk.write_file("/d/a", b"1")
    assert bench.paths() == []


def test_the_ledger_has_a_limit_and_forgets_a_directory_that_is_opened():
    """What could not be stored is read again as it is."""
    bench = Bench()
    for number in range(FAILED_MAX + 5):
        bench.env.failed_writes.failed(f"/d/{number}", "full")
    assert len(bench.paths()) == FAILED_MAX
    bench.env.failed_writes.forget_below("/d/config")
    assert len(bench.paths()) == FAILED_MAX
    bench.env.failed_writes.forget_below("/d")
    assert bench.paths() == []


def test_a_failure_is_not_forgotten_by_a_success_of_before():
    """Two threads write one path: what failed after the success counts."""
    ledger = Bench().env.failed_writes
    ledger.failed("/d/a", "first")
    threads = []

    class Watched(dict):
        def get(self, key, default=None):
            if not threads:
                threads.append(threading.Thread(target=ledger.failed, args=("/d/a", "second")))
                threads[0].start()
                threads[0].join(0.2)  # it waits for the success; without a lock it would not
            return super().get(key, default)

    ledger._failed = Watched(ledger._failed)
    ledger.succeeded("/d/a")
    threads[0].join()
    assert [failed.reason for failed in ledger.now] == ["second"]
