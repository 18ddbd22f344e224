"""A long start logs its progress; a short one does not. The clock may be set back meanwhile."""

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
    """A wall clock that advances with each reading."""

    step_ms: int = 5_000

    def now_s(self):
        self.ms += self.step_ms
        return self.ms / 1000


@pytest.fixture
def events(caplog):
    """Returns the logged events of a name, with their progress fields."""
    caplog.set_level(logging.INFO, logger="hastore")

    def of(name):
        keys = ("step", "done_bytes", "total_bytes", "percent", "bytes_per_s", "left_s")
        return [
            {key: record.msg[key] for key in keys if key in record.msg}
            for record in caplog.records
            if record.msg["event"] == name
        ]

    return of


def without_checkpoint():
    """The disk of a store of twelve files that has lost all but its log."""
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


def test_first_start_without_a_checkpoint_reports_its_progress(events):
    """It reads the whole log, then writes the last two files again and checks them."""
    disk, end = without_checkpoint()
    store = recover(disk, clock=PacedClock())
    assert store.log.max_offset == end
    reported = events("recovering")
    whole, doubtful = FILES * FILE_SIZE, end - (FILES - FILES_MAPPED) * FILE_SIZE
    assert [(pairs["step"], pairs["total_bytes"]) for pairs in reported] == [
        *[("reading", whole)] * FILES,
        ("writing again", doubtful),
        *[("checking again", doubtful)] * FILES_MAPPED,
    ]
    for number, pairs in enumerate(reported[:FILES]):  # a file is a single read here
        assert number * FILE_SIZE < pairs["done_bytes"] <= (number + 1) * FILE_SIZE
    for pairs in reported:
        left = pairs["total_bytes"] - pairs["done_bytes"]
        assert pairs["percent"] == 100 * pairs["done_bytes"] // pairs["total_bytes"]
        assert pairs["left_s"] == pytest.approx(left / pairs["bytes_per_s"], rel=0.01, abs=0.6)
    store.close(clean=False)


@both_roles
def test_short_start_reports_no_progress(events, master):
    """It takes less than five seconds."""
    disk, end = without_checkpoint()
    store = recover(disk, master=master, clock=PacedClock(step_ms=100))
    assert store.log.max_offset == end
    assert events("recovering") == []
    store.close(clean=False)


def test_progress_interval_restarts_when_the_clock_is_set_back():
    """Otherwise each step would log its progress, or none would for an hour."""
    now_s = iter([1000.0, 1004.9, 1005.0, 1009.9, 500.0, 504.9, 505.0])
    reported = []
    progress = Progress(lambda it: reported.append(it.percent), lambda: next(now_s), size=1_000)
    counts = []
    for _ in range(6):
        progress.advance(100)
        counts.append(len(reported))
    assert counts == [0, 1, 1, 1, 1, 2]
    assert reported == [20, 60]


def test_rate_is_that_since_the_report_before():
    """Also over a step's end; a report without progress says no time that is left."""
    now_s = iter([0.0, 3.0, 8.0, 13.0, 18.0])
    reported = []
    progress = Progress(lambda it: reported.append(it.pairs()), lambda: next(now_s), size=100)
    progress.advance(40)
    progress.begin("checking again", 400)
    for size in (40, 200, 0):
        progress.advance(size)
    assert [(pairs["bytes_per_s"], pairs.get("left_s")) for pairs in reported] == [
        (10, 36),
        (40, 4),
        (0, None),
    ]


def test_progress_does_not_report_completion():
    """The end is logged elsewhere, and work of size 0 has no progress."""
    now_s = itertools.count(0, 10)
    reported = []
    progress = Progress(lambda it: reported.append(it.done), lambda: next(now_s), size=2)
    for _ in range(4):
        progress.advance(1)
    assert reported == [1]
    progress.begin("checking again", 0)
    progress.advance(1)
    assert reported == [1]
    assert progress.percent == 100
