"""A long start says in the log how far it is; a short one, and one on a strange clock, do not."""

import itertools
import logging

import attrs
import pytest

from hastore.store.log.mapped_file_queue import FILES_MAPPED
from hastore.store.recovery.progress import Progress
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock
from tests.support.store.recovering import FILE_SIZE, recover

FILES = 12
both_roles = pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])


@attrs.define(eq=False)
class PacedClock(FakeClock):
    """A wall clock that each look at it moves on."""

    step_ms: int = 5_000

    def now_s(self):
        self.ms += self.step_ms
        return self.ms / 1000


@pytest.fixture
def events(caplog):
    """The events of a name, as the pairs that they have."""
    caplog.set_level(logging.INFO, logger="hastore")

    def of(name):
        keys = ("step", "done_bytes", "total_bytes", "percent")
        return [
            {key: record.msg[key] for key in keys if key in record.msg}
            for record in caplog.records
            if record.msg["event"] == name
        ]

    return of


def without_checkpoint():
    """The disk of a store of twelve files of which nothing but the log is left."""
    disk = FakeDisk()
    store = recover(disk)
    while store.log.max_offset <= (FILES - 1) * FILE_SIZE + FILE_SIZE // 2:
        store.append(b"x" * 200)
    end = store.log.max_offset
    store.close(clean=False)
    left = FakeDisk()
    for name, data in disk.files("/d/commitlog/").items():
        if int(name) < FILES * FILE_SIZE:
            left.put(f"/d/commitlog/{name}", data)
    left.put("/d/abort", b"1")
    return left, end


def test_a_first_open_without_a_checkpoint_says_how_far_it_is(events):
    """What is read of all that there is; then the last two files, written and checked again."""
    disk, end = without_checkpoint()
    store = recover(disk, clock=PacedClock())
    assert store.log.max_offset == end
    told = events("recovering")
    whole, doubtful = FILES * FILE_SIZE, end - (FILES - FILES_MAPPED) * FILE_SIZE
    assert [(pairs["step"], pairs["total_bytes"]) for pairs in told] == [
        *[("reading", whole)] * FILES,
        ("writing again", doubtful),
        *[("checking again", doubtful)] * FILES_MAPPED,
    ]
    for number, pairs in enumerate(told[:FILES]):  # a file is a single read here
        assert number * FILE_SIZE < pairs["done_bytes"] <= (number + 1) * FILE_SIZE
    for pairs in told:
        assert pairs["percent"] == 100 * pairs["done_bytes"] // pairs["total_bytes"]
    store.close(clean=False)


@both_roles
def test_a_short_start_says_nothing_of_it(events, master):
    """Where less than five seconds pass."""
    disk, end = without_checkpoint()
    store = recover(disk, master=master, clock=PacedClock(step_ms=100))
    assert store.log.max_offset == end
    assert events("recovering") == []
    store.close(clean=False)


def test_progress_begins_its_five_seconds_again_when_the_clock_is_set_back():
    """It is neither told all the time then, nor not for an hour."""
    now_s = iter([1000.0, 1004.9, 1005.0, 1009.9, 500.0, 504.9, 505.0])
    told = []
    progress = Progress(lambda it: told.append(it.percent), lambda: next(now_s), size=1_000)
    counts = []
    for _ in range(6):
        progress.advance(100)
        counts.append(len(told))
    assert counts == [0, 1, 1, 1, 1, 2]
    assert told == [20, 60]


def test_progress_says_nothing_once_all_is_done():
    """The end is said elsewhere; and work of no size has no progress."""
    now_s = itertools.count(0, 10)
    told = []
    progress = Progress(lambda it: told.append(it.done), lambda: next(now_s), size=2)
    for _ in range(4):
        progress.advance(1)
    assert told == [1]
    progress.begin("checking again", 0)
    progress.advance(1)
    assert told == [1]
    assert progress.percent == 100
