"""The log's oldest files go when they may: one at a time, from the front, and nobody is cut off."""

import hashlib

import attrs
import pytest
import trio

from hastore.broker.expiry.clean_commit_log_service import CleanCommitLogService
from hastore.config import StoreConfig
from hastore.errors import DiskError
from hastore.store.archive.manifest import ArchivedSegment, manifest_text
from hastore.store.log.cleaning import Hold, Reason
from tests.broker.delay_bench import TrioClock
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, flush, open_log

HOUR_MS = 3_600_000
FILES = 6
# START_MS is 22:13:20 of a day in UTC; the clock is set to 04:00 of the next.
AT_FOUR_MS = 5 * HOUR_MS + 46 * 60_000 + 40_000


@attrs.define(slots=False)
class Bench:
    """A log of six full files and a seventh, all expired but the last; it is four o'clock."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    config: StoreConfig = attrs.field(factory=lambda: StoreConfig(data_dir="/d"))
    holds: list[Hold] = attrs.field(factory=list)
    calls: list[object] = attrs.field(factory=list)

    def __attrs_post_init__(self):
        self.clock = TrioClock()
        self.env = fake_env(self.disk, self.clock)
        self.log = open_log(self.env)
        while self.log.max_offset < FILES * FILE_SIZE:
            append(self.log, body=bytes(1000))
        flush(self.log)
        self.disk.set_modified_ms(self.paths()[:FILES], START_MS - 72 * HOUR_MS)
        self.clock.set_by_ms = AT_FOUR_MS
        self.service = CleanCommitLogService(
            env=self.env,
            config=self.config,
            commit_log=self.log,
            holds=lambda: self.holds,
            let_go=lambda: self.calls.append(("let go", self.log.min_offset)),
            on_removed=lambda: self.calls.append(("removed", self.log.min_offset)),
            on_disk_full=self.calls.append,
        )

    def paths(self):
        return sorted(f"/d/commitlog/{name}" for name in self.disk.files())

    def at(self, index):
        return index * FILE_SIZE


async def test_expired_files_are_removed_from_the_front_and_the_last_stays(autojump_clock):
    """In order; the directory and the log's start say the same; the bytes behind are all there."""
    bench = Bench()
    before = bench.log.read(bench.at(FILES), FILE_SIZE)
    removed_before = len(bench.disk.changes)
    assert await bench.service.clean() == FILES
    assert bench.log.min_offset == bench.at(FILES)
    assert bench.disk.changes[removed_before:] == [
        f"remove /d/commitlog/{bench.at(index):020d}" for index in range(FILES)
    ]
    assert bench.calls == [("removed", bench.at(FILES))]
    assert bench.service.last_decision.stopped_because is Reason.LAST_FILE
    assert bench.log.read(bench.at(FILES), FILE_SIZE) == before
    assert bench.log.read(bench.at(FILES - 1), 10) == b""
    assert append(bench.log).physic_offset > bench.at(FILES)
    bench.log.close(clean=False)
    again = open_log(fake_env(bench.disk.kill()))
    assert again.min_offset == bench.at(FILES)


async def test_the_first_run_is_a_minute_after_the_start_then_every_ten_seconds(autojump_clock):
    """As in RocketMQ; a round takes at most delete_file_batch_max files, 100 ms apart."""
    bench = Bench(config=StoreConfig(data_dir="/d", delete_file_batch_max=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        for until, gone in ((59.9, 0), (60.05, 1), (60.15, 2), (69.9, 2), (70.5, 4)):
            await trio.sleep_until(until)
            assert bench.log.min_offset == bench.at(gone)
        nursery.cancel_scope.cancel()


async def test_nothing_goes_at_another_hour_while_there_is_room(autojump_clock):
    """The directory is not even listed."""
    bench = Bench()
    bench.clock.set_by_ms += HOUR_MS
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_THE_HOUR


async def test_files_that_are_younger_stay_until_the_disk_asks_for_them(autojump_clock):
    """Above 85 % one goes after the other, only until there is room."""
    bench = Bench()
    bench.disk.set_modified_ms(bench.paths(), START_MS)
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_EXPIRED
    bench.disk.used = 0.88

    def free(_removal):
        bench.disk.used -= 0.01

    bench.disk.after("remove", free)
    assert await bench.service.clean() == 3  # 88, 87, 86, and 85 is enough
    assert bench.log.min_offset == bench.at(3)


async def test_puts_are_refused_while_the_disk_is_full(autojump_clock):
    """From above 90 % until 85 %; the reason says how full it is.  It is known at once."""
    bench = Bench(config=StoreConfig(data_dir="/d", clean_file_forcibly_enable=False))
    bench.disk.set_modified_ms(bench.paths(), START_MS)
    bench.disk.used = 0.901
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        await trio.sleep(1)
        assert "disk is 91 % full" in bench.calls[-1]
        bench.disk.used = 0.86
        await trio.sleep(10)
        assert "disk is 86 % full" in bench.calls[-1]
        bench.disk.used = 0.85
        await trio.sleep(10)
        assert bench.calls[-1] is None
        told = len(bench.calls)
        await trio.sleep(100)
        assert len(bench.calls) == told
        nursery.cancel_scope.cancel()


async def test_a_hold_keeps_a_file_for_two_minutes_and_its_holder_is_told(autojump_clock):
    """The file goes then, alone in its round, and ``let_go`` is called as it leaves the log."""
    bench = Bench()
    bench.holds = [Hold(physic_offset=bench.at(1) + 5, who="slave a")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        await trio.sleep_until(179.9)
        assert bench.log.min_offset == bench.at(1)
        assert bench.service.last_decision.holders == ("slave a",)
        await trio.sleep_until(180.2)
        assert bench.log.min_offset == bench.at(2)
        assert ("let go", bench.at(2)) in bench.calls
        bench.holds.clear()
        await trio.sleep_until(191)
        assert bench.log.min_offset == bench.at(FILES)
        nursery.cancel_scope.cancel()


async def test_a_holder_that_moves_on_is_never_cut_off(autojump_clock):
    """Each file has its own two minutes: a slow slave that makes progress keeps its link."""
    bench = Bench()
    bench.holds = [Hold(physic_offset=0, who="slave a")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        for index in range(1, FILES + 1):
            await trio.sleep(110)
            bench.holds = [Hold(physic_offset=bench.at(index), who="slave a")]
        await trio.sleep(30)
        assert bench.log.min_offset == bench.at(FILES)
        nursery.cancel_scope.cancel()
    assert not [call for call in bench.calls if call[0] == "let go"]


async def test_a_file_is_closed_when_the_last_read_of_it_has_ended(autojump_clock):
    """One that was forced out under a reader is unlinked, and still reads until then."""
    bench = Bench()
    first = bench.log.mapped_file_queue.files[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        with first.held():
            await trio.sleep(200)
            assert bench.log.min_offset > 0
            assert not bench.disk.exists(first.path)
            assert first.disk_file.pread(4, 0) != b"\0\0\0\0"
        await trio.sleep(11)
        assert first.disk_file.is_closed
        nursery.cancel_scope.cancel()


async def test_a_view_of_the_map_only_delays_the_close(autojump_clock):
    """A map that somebody looks at cannot be closed, and nothing breaks."""
    bench = Bench()
    first = bench.log.mapped_file_queue.files[0]
    view = first.view[0:4]
    assert await bench.service.clean() == FILES
    assert not first.disk_file.is_closed
    view.release()
    await bench.service.clean()
    assert first.disk_file.is_closed


async def test_a_file_that_cannot_be_removed_stays_in_the_log(autojump_clock):
    """None behind it goes either, so there is no hole; it is tried again."""
    bench = Bench()
    bench.disk.fail("remove", DiskError("cannot remove F: Input/output error", path="F"))
    assert await bench.service.clean() == 0
    assert bench.log.min_offset == 0
    assert bench.log.read(0, 4) != b""
    bench.disk.heal()
    assert await bench.service.clean() == FILES


async def test_a_file_that_is_gone_already_goes(autojump_clock):
    """Its name was taken out of a directory that could not be synced then: the next round ends it,
    and those behind it have their turn.
    """
    bench = Bench()

    def fail_the_first(removal):
        if bench.disk.counts["remove"] == 1:
            msg = f"cannot remove {removal.path}: Input/output error"
            raise DiskError(msg, path=removal.path)

    bench.disk.after("remove", fail_the_first)
    assert await bench.service.clean() == 0
    assert (bench.log.min_offset, len(bench.paths())) == (0, FILES)
    assert await bench.service.clean() == FILES
    assert bench.log.min_offset == bench.at(FILES)


async def test_what_is_not_flushed_stays(autojump_clock):
    """Whatever its age."""
    bench = Bench()
    bench.log.mapped_file_queue.files[0].flushed_position -= 1
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_FLUSHED


@pytest.mark.parametrize("broken", ["used_ratio", "list_dir"])
async def test_a_disk_that_does_not_answer_costs_no_file(autojump_clock, broken):
    """What is not known to be old is not deleted."""
    bench = Bench()

    bench.disk.fail(broken, DiskError("cannot look: Input/output error", path="/d"))
    if broken == "used_ratio":
        bench.clock.set_by_ms += HOUR_MS
    assert await bench.service.clean() == 0
    assert bench.log.min_offset == 0


async def test_a_kill_at_any_point_leaves_a_log_without_a_hole(autojump_clock):
    """Whatever was removed by then was the front."""
    bench = Bench()
    disks = []
    for around in (bench.disk.before, bench.disk.after):
        around("remove", lambda _removal: disks.append(bench.disk.kill()))
    await bench.service.clean()
    starts = [open_log(fake_env(disk)).min_offset // FILE_SIZE for disk in disks]
    assert starts == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


class ArchivedBench(Bench):
    """The same, where a file may only go once it is in the archive ``/a``."""

    def __init__(self):
        super().__init__(config=StoreConfig(data_dir="/d", delete_only_archived="/a"))

    def archive(self, *indexes):
        """Let the archive have these files; they are as they were written."""
        entries = []
        for index in indexes:
            path = self.paths()[index - self.log.min_offset // FILE_SIZE]
            data = self.disk.files("/")[path[1:]]
            entries.append(
                ArchivedSegment(
                    segment=f"{self.at(index):020d}",
                    size=FILE_SIZE,
                    sha256=hashlib.sha256(data).hexdigest(),
                    end=FILE_SIZE,
                    is_complete=True,
                    # Every second one has another time than its file: then its bytes decide.
                    modified_ms=self.disk.inodes[path].modified_ms + index % 2,
                    rows=0,
                    messages=0,
                    damaged=0,
                    files=(),
                )
            )
        self.disk.put("/a/manifest.json", manifest_text(entries))


async def test_only_archived_files_go_where_it_is_asked_for(autojump_clock, caplog):
    """Not one before; the first that waits is named once, with the command that helps."""
    bench = ArchivedBench()
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_ARCHIVED
    await bench.service.clean()
    told = [r.msg for r in caplog.records if "expired_file_not_archived" in str(r.msg)]
    assert len(told) == 1
    assert told[0]["reason"] == "/a has no manifest.json"
    assert told[0]["next"] == "hastore pipeline run archive /d --out /a"
    bench.archive(0, 1, 3)
    assert await bench.service.clean() == 2
    assert bench.log.min_offset == bench.at(2)
    assert bench.service.last_decision.stopped_because is Reason.NOT_ARCHIVED
    bench.archive(2, 3, 4, 5)
    assert await bench.service.clean() == 4
    assert bench.service.last_decision.stopped_because is Reason.LAST_FILE


async def test_a_full_disk_refuses_puts_rather_than_lose_what_is_not_archived(autojump_clock):
    """At no level does a file go; puts are refused, and the reason says what else is in the way."""
    bench = ArchivedBench()
    bench.disk.set_modified_ms(bench.paths(), START_MS)  # and none of them has expired
    bench.disk.used = 0.95
    for _ in range(2):
        assert await bench.service.clean() == 0
        assert bench.service.last_decision.stopped_because is Reason.NOT_ARCHIVED
    assert "puts are refused" in bench.calls[-1]
    assert "not archived stay (delete_only_archived)" in bench.calls[-1]
    assert bench.log.min_offset == 0
    bench.disk.set_modified_ms(bench.paths(), 5)
    bench.archive(0, 1)
    assert await bench.service.clean() == 2
    assert bench.log.min_offset == bench.at(2)
