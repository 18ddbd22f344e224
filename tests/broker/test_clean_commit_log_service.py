"""Expiry of log files: the oldest first, one at a time, and how long a reader can hold one."""

import hashlib

import attrs
import pytest
import trio

from hastore.broker.expiry.clean_commit_log_service import CleanCommitLogService
from hastore.concurrency.store_health import StoreHealth
from hastore.config import StoreConfig
from hastore.env.interface import DiskSpace
from hastore.errors import DiskError
from hastore.store.archive.manifest import ArchivedSegment, manifest_text
from hastore.store.log.cleaning import DateFloor, Hold, Reason
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import TrioClock, fake_env
from tests.support.nodes.clocks import a_clock, reading
from tests.support.store.open_log import FILE_SIZE, append, flush, open_log

HOUR_MS = 3_600_000
FILES = 6
# START_MS is 22:13:20 UTC; the clock is set to 04:00 of the next day.
AT_FOUR_MS = 5 * HOUR_MS + 46 * 60_000 + 40_000


@attrs.define(slots=False)
class Bench:
    """A log of six full, expired files and a seventh that is in use, at four o'clock."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    config: StoreConfig = attrs.field(factory=lambda: StoreConfig(data_dir="/d"))
    holds: list[Hold] = attrs.field(factory=list)
    readings: list = attrs.field(factory=list)  # of other machines' clocks
    calls: list[object] = attrs.field(factory=list)
    health: StoreHealth = attrs.field(factory=StoreHealth)

    def __attrs_post_init__(self):
        self.clock = TrioClock()
        self.env = fake_env(self.disk, self.clock)
        self.log = open_log(self.env)
        while self.log.max_offset < FILES * FILE_SIZE:
            append(self.log, body=bytes(1000))
        flush(self.log)
        self.disk.set_modified_ms(self.paths()[:FILES], START_MS - 72 * HOUR_MS)
        self.clock.off_by_ms = AT_FOUR_MS
        self.service = CleanCommitLogService(
            env=self.env,
            config=self.config,
            commit_log=self.log,
            clock=a_clock(self.env, self.log, others=lambda: self.readings),
            holds=lambda: self.holds,
            refuse_expired=lambda: self.calls.append(("refuse expired", self.log.min_offset)),
            on_removed=lambda: self.calls.append(("removed", self.log.min_offset)),
            on_disk_full=self.calls.append,
            health=self.health,
        )

    def paths(self):
        return sorted(f"/d/commitlog/{name}" for name in self.disk.files())

    def at(self, index):
        return index * FILE_SIZE


async def test_expired_files_are_removed_in_order_except_the_last(autojump_clock):
    """The directory and the log's min offset agree, and the bytes of the last file are intact."""
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
    """As in RocketMQ. A round removes at most delete_file_batch_max files, 100 ms apart."""
    bench = Bench(config=StoreConfig(data_dir="/d", delete_file_batch_max=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        for until, gone in ((59.9, 0), (60.05, 1), (60.15, 2), (69.9, 2), (70.5, 4)):
            await trio.sleep_until(until)
            assert bench.log.min_offset == bench.at(gone)
        nursery.cancel_scope.cancel()


async def test_nothing_is_removed_at_another_hour_if_there_is_room(autojump_clock):
    """Files expire at four o'clock only; here it is five."""
    bench = Bench()
    bench.clock.off_by_ms += HOUR_MS
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_THE_HOUR


async def test_nothing_expires_while_the_clock_is_in_doubt_but_a_full_disk_is_cleaned(
    autojump_clock,
):
    """A clock four days ahead would delete every full file."""
    bench = Bench()
    bench.disk.set_modified_ms(bench.paths(), START_MS)
    bench.clock.off_by_ms += 96 * HOUR_MS
    bench.readings = [reading(bench.clock, ahead_ms=-96 * HOUR_MS)]
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.CLOCK_IN_DOUBT
    bench.disk.used = 0.80
    assert await bench.service.clean() == 0
    bench.disk.used = 0.86
    bench.disk.after("remove", lambda _removal: setattr(bench.disk, "used", 0.85))
    assert await bench.service.clean() == 1
    bench.readings = [reading(bench.clock)]
    assert await bench.service.clean() == FILES - 1


async def test_files_dated_in_the_future_expire_with_the_next_one_that_is_not(autojump_clock):
    """The clock was ahead while they were written; all ages are counted from its next date."""
    bench = Bench()
    ahead_ms = START_MS + 10_000 * HOUR_MS
    bench.disk.set_modified_ms(bench.paths()[1:4], ahead_ms)
    assert await bench.service.clean() == FILES
    bench = Bench()
    bench.disk.set_modified_ms(bench.paths()[1:], ahead_ms)
    assert await bench.service.clean() == 1
    assert bench.service.last_decision.stopped_because is Reason.NOT_EXPIRED


async def test_files_written_while_the_clock_was_behind_are_as_old_as_its_end(autojump_clock):
    """A machine that started in 1970: their own dates would delete them at once."""
    bench = Bench()
    bench.disk.set_modified_ms(bench.paths()[:FILES], 1_000)
    now_ms = bench.clock.now_ms()
    bench.service.clock.date_floor = DateFloor(physic_offset=bench.at(4), date_ms=now_ms)
    assert await bench.service.clean() == 0
    bench.service.clock.date_floor = DateFloor(
        physic_offset=bench.at(4), date_ms=now_ms - 72 * HOUR_MS
    )
    assert await bench.service.clean() == FILES


async def test_younger_files_are_removed_only_above_the_disk_limit(autojump_clock):
    """Above 85 % they are removed one by one, until the usage is back at 85 %."""
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
    """From above 90 % down to 85 %; the reason names the usage, and the first check is at once."""
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
        reported = len(bench.calls)
        await trio.sleep(100)
        assert len(bench.calls) == reported
        nursery.cancel_scope.cancel()


async def test_a_hold_keeps_a_file_for_two_minutes_then_lapses(autojump_clock):
    """The file is then removed alone in its round; ``refuse_expired`` is called as it leaves."""
    bench = Bench()
    bench.holds = [Hold(physic_offset=bench.at(1) + 5, who="slave a")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        await trio.sleep_until(179.9)
        assert bench.log.min_offset == bench.at(1)
        assert bench.service.last_decision.holders == ("slave a",)
        await trio.sleep_until(180.2)
        assert bench.log.min_offset == bench.at(2)
        assert ("refuse expired", bench.at(2)) in bench.calls
        bench.holds.clear()
        await trio.sleep_until(191)
        assert bench.log.min_offset == bench.at(FILES)
        nursery.cancel_scope.cancel()


async def test_a_holder_that_makes_progress_is_never_cut_off(autojump_clock):
    """Each file has its own two minutes, so a slow slave keeps its link."""
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
    assert not [call for call in bench.calls if call[0] == "refuse expired"]


async def test_a_removed_file_is_closed_after_its_last_read(autojump_clock):
    """A file removed while it is read is unlinked, but stays readable until then."""
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


async def test_a_view_of_the_map_only_delays_the_close_of_a_file(autojump_clock):
    """A map cannot be closed while a view of it exists; a later round closes it."""
    bench = Bench()
    first = bench.log.mapped_file_queue.files[0]
    view = first.view[0:4]
    assert await bench.service.clean() == FILES
    assert not first.disk_file.is_closed
    view.release()
    await bench.service.clean()
    assert first.disk_file.is_closed


async def test_a_file_that_cannot_be_removed_stays_in_the_log(autojump_clock):
    """The files after it stay too, so there is no hole; the next round tries again."""
    bench = Bench()
    bench.disk.fail("remove", DiskError("cannot remove F: Input/output error", path="F"))
    assert await bench.service.clean() == 0
    assert bench.log.min_offset == 0
    assert bench.log.read(0, 4) != b""
    bench.disk.heal()
    assert await bench.service.clean() == FILES


async def test_a_file_that_is_unlinked_already_leaves_the_log(autojump_clock):
    """Its directory could not be synced after the removal: the next round finishes it."""
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


async def test_unflushed_files_are_kept(autojump_clock):
    """Their age does not matter."""
    bench = Bench()
    bench.log.mapped_file_queue.files[0].flushed_position -= 1
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_FLUSHED


async def test_a_disk_that_was_too_full_still_is_in_the_next_role(autojump_clock):
    """A change of roles does not make 86 % enough; and it has no room while nothing is known."""
    health = StoreHealth()
    first = Bench(health=health)
    first.disk.used = 0.95
    await first.service.clean()
    assert not health.can_store
    second = Bench(health=health)
    second.disk.used = 0.86
    await second.service.clean()
    assert "disk is 86 % full" in second.calls[0]
    assert not health.can_store
    second.disk.used = 0.80
    await second.service.clean()
    assert health.can_store
    assert health.has_room_for_two_files
    second.disk.fail("space", DiskError("cannot look: Input/output error", path="/d"))
    await second.service.clean()
    assert not health.has_room_for_two_files


async def test_a_next_file_that_was_made_early_is_one_of_the_two():
    """Else making it would take the room that the master asks for."""
    bench = Bench()
    queue = bench.log.mapped_file_queue
    space = DiskSpace(device=1, used_ratio=0.5, free_bytes=2 * FILE_SIZE - 1)
    assert not bench.service._has_room(space)
    queue.wants_next_file = True
    queue.offer(queue.create_file(queue.wanted_file_offset()))
    assert bench.service._has_room(space)


@pytest.mark.parametrize("broken", ["space", "list_dir"])
async def test_nothing_is_removed_if_the_disk_cannot_be_checked(autojump_clock, broken):
    """Files are kept while the usage or the files' times are unknown."""
    bench = Bench()

    bench.disk.fail(broken, DiskError("cannot look: Input/output error", path="/d"))
    if broken == "space":
        bench.clock.off_by_ms += HOUR_MS
    assert await bench.service.clean() == 0
    assert bench.log.min_offset == 0


async def test_a_kill_during_removal_leaves_no_hole_in_the_log(autojump_clock):
    """Only files at the front are missing, before and after each removal."""
    bench = Bench()
    disks = []
    for around in (bench.disk.before, bench.disk.after):
        around("remove", lambda _removal: disks.append(bench.disk.kill()))
    await bench.service.clean()
    starts = [open_log(fake_env(disk)).min_offset // FILE_SIZE for disk in disks]
    assert starts == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


class ArchivedBench(Bench):
    """A bench that removes a file only if the archive ``/a`` has it."""

    def __init__(self):
        super().__init__(config=StoreConfig(data_dir="/d", delete_only_archived="/a"))

    def archive(self, *indexes):
        """Write an archive manifest that lists these files with their present bytes."""
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
                    # Every second entry has another time than its file, so the bytes are compared.
                    modified_ms=self.disk.inodes[path].modified_ms + index % 2,
                    rows=0,
                    messages=0,
                    damaged=0,
                    files=(),
                )
            )
        self.disk.put("/a/manifest.json", manifest_text(entries))


async def test_delete_only_archived_keeps_unarchived_files(autojump_clock, caplog):
    """The first file that has to wait is reported once, with the command that archives it."""
    bench = ArchivedBench()
    assert await bench.service.clean() == 0
    assert bench.service.last_decision.stopped_because is Reason.NOT_ARCHIVED
    await bench.service.clean()
    reported = [r.msg for r in caplog.records if r.msg["event"] == "expired_file_not_archived"]
    assert len(reported) == 1
    assert reported[0]["reason"] == "/a has no manifest.json"
    assert reported[0]["next"] == "hastore pipeline run archive /d --out /a"
    bench.archive(0, 1, 3)
    assert await bench.service.clean() == 2
    assert bench.log.min_offset == bench.at(2)
    assert bench.service.last_decision.stopped_because is Reason.NOT_ARCHIVED
    bench.archive(2, 3, 4, 5)
    assert await bench.service.clean() == 4
    assert bench.service.last_decision.stopped_because is Reason.LAST_FILE


async def test_a_full_disk_refuses_puts_but_keeps_unarchived_files(autojump_clock):
    """They stay at every usage, and the reason names ``delete_only_archived``."""
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


async def test_a_round_without_the_directories_says_so(caplog):
    """They were removed under the node: the round ends with an error that names the directory."""
    bench = Bench()
    bench.disk.remove_tree("/d/commitlog")
    assert await bench.service.clean() == 0
    (event,) = [record.msg for record in caplog.records]
    assert event["event"] == "cleaning_failed"
    assert event["reason"] == "/d has neither commitlog/ nor consumequeue/: nothing can be cleaned"


class TwoDisks:
    """A disk whose ``directory`` is on a file system of its own, which is 92 % full."""

    def __init__(self, disk, directory):
        self.disk = disk
        self.directory = directory

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def space(self, path):
        if path == f"/d/{self.directory}":
            return DiskSpace(device=2, used_ratio=0.92, free_bytes=1 << 20)
        return DiskSpace(device=1, used_ratio=0.4, free_bytes=1 << 30)


@pytest.mark.parametrize("directory", ["commitlog", "consumequeue", "index", "config"])
async def test_the_fullest_disk_of_a_directory_refuses_puts(autojump_clock, directory):
    """Files that have not expired are deleted for it only where that makes room on it."""
    bench = Bench()
    bench.disk.set_modified_ms(bench.paths()[:FILES], AT_FOUR_MS + START_MS)
    bench.disk.make_dirs(f"/d/{directory}")
    bench.service.env = attrs.evolve(bench.env, disk=TwoDisks(bench.disk, directory))
    removed = await bench.service.clean()
    (reason,) = {call for call in bench.calls if isinstance(call, str)}
    assert f"the disk of {directory} is 92 % full" in reason
    assert removed == (0 if directory == "config" else FILES)
