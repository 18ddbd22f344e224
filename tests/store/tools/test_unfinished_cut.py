"""Tools on a directory with an unfinished cut: they name it, and take nothing of it for damage."""

import random

import pytest

from hastore.errors import UnfinishedCutError
from hastore.store.tools.log_diff import diff_logs
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import Severity
from hastore.store.tools.log_info import read_info
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.log_walker import LogWalker
from hastore.store.tools.rebuild import rebuild
from hastore.store.tools.repair.plan import plan_repair
from hastore.store.tools.repair.source import DirectorySource
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_env import fake_env
from tests.support.store.cutting import CONFIG, closed_store, complete, cut


def half_cut(point=20):
    """Yield the store, the offset, and its disk for every operation at which a cut is killed."""
    store = closed_store(3)
    offset = store.cut_points[point]
    whole = DyingDisk.of(store.disk)
    cut(whole, offset)
    rng = random.Random(1)
    for dies_at in range(len(whole.operations)):
        dying = DyingDisk.of(store.disk, dies_at, rng.randrange(800))
        with pytest.raises(Killed):
            cut(dying, offset)
        if "/d/cut.json" in dying.inodes:
            yield store, offset, dying.kill()


@pytest.mark.parametrize("point", [0, 1, 20, -1])
def test_log_ends_where_the_cut_will_end_it(point):
    """Wherever the cut was killed; below it everything is verified."""
    count = 0
    for store, offset, disk in half_cut(point):
        count += 1
        log = find_log(disk, "/d")
        report = verify_log(disk, log)
        assert report.is_whole
        assert (report.min_offset, report.max_offset) == (0, offset)
        assert report.messages == sum(put.next_offset <= offset for put in store.puts)
        (finding,) = report.findings
        assert (finding.severity, finding.kind) == (Severity.WARNING, "unfinished-cut")
        assert (finding.physic_offset, finding.next_offset) == (offset, store.end_offset)
        assert "a start of the node finishes it" in finding.detail
        assert read_info(disk, log).max_offset == offset
        after = disk.kill()
        complete(after)
        both = disk.kill()
        for path, inode in after.inodes.items():
            both.put(path.replace("/d/", "/e/"), inode.seen())
        difference = diff_logs(both, find_log(both, "/d"), find_log(both, "/e"))
        assert difference.left.max_offset == difference.right.max_offset == offset
        assert difference.first_difference is None
        assert list(LogWalker(after, find_log(after, "/d")).walk()) == list(
            LogWalker(disk, log).walk()
        )
    assert count > 10


def test_damage_below_the_cut_is_still_found():
    """The end of the log is elsewhere, nothing else."""
    for store, offset, disk in half_cut():
        put = next(put for put in reversed(store.puts) if put.next_offset <= offset)
        path = max(path for path in disk.inodes if "/commitlog/" in path)
        path = f"{path[:-20]}{put.physic_offset // 4096 * 4096:020d}"
        disk.overwrite(path, put.physic_offset % 4096 + 60, b"\xee")
        report = verify_log(disk, find_log(disk, "/d"))
        assert report.count(Severity.DAMAGE) == 1


def test_commands_that_change_a_directory_refuse_it():
    """With the next step, and nothing is changed."""
    _, offset, disk = next(iter(half_cut()))
    before = dict(disk.files("/d/"))
    for act in (
        lambda: plan_repair(disk, "/d"),
        lambda: DirectorySource(disk, "/d"),
        lambda: rebuild(fake_env(disk), "/d", CONFIG, consume_queues=True, index=True),
    ):
        with pytest.raises(UnfinishedCutError, match=f"a cut .* at offset {offset}") as caught:
            act()
        assert caught.value.physic_offset == offset
        assert "start the node" in caught.value.hint
    assert disk.files("/d/") == before
