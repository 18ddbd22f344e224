"""The wall clock: when it is in doubt, what a master writes then, and what a node says about it."""

import json

import attrs
import pytest
import trio

from hastore.broker.clock.clock_readings import ClockReadings
from hastore.broker.clock.clock_status import ClockStatus
from hastore.broker.clock.clock_verdict import ClockReading, Trust, TrustedTime, judge
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.env.real import real_env
from hastore.store.log.store_directory import CLOCK_FILE
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import TrioClock, fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.nodes.clocks import HOUR_MS, a_clock, agreeing, reading
from tests.support.nodes.statuses import MASTER
from tests.support.store.open_log import FILE_SIZE, append, append_data, flush, open_log

DAY_MS = 24 * HOUR_MS
KEEP_MS = 72 * HOUR_MS
MINUTE_MS = 60_000
WALL_MS = START_MS


def other(ahead_ms, host, *, age_ms=0.0, is_own_machine=False):
    """Another machine's reading while our boot clock says 0 and our wall clock WALL_MS."""
    return ClockReading(
        who=host,
        host=host,
        offset_ms=WALL_MS + ahead_ms,
        error_ms=1_000.0,
        boot_ms=-age_ms,
        is_own_machine=is_own_machine,
    )


def own_by_all_addresses(ahead_ms):
    """What etcd and a node of this machine said of its clock, each asked by another address."""
    return [other(ahead_ms, host, is_own_machine=True) for host in ("127.0.0.1", "::1", "10.0.0.1")]


def verdict(*readings, trusted=None, wall_ms=WALL_MS, boot_ms=0.0):
    return judge(trusted, readings, wall_ms=wall_ms, boot_ms=boot_ms, keep_ms=KEEP_MS)


# -- other machines' clocks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "trust", "is_corrected"),
    [
        ([other(0, "b")], Trust.CONFIRMED, False),
        ([other(9 * MINUTE_MS, "b")], Trust.CONFIRMED, False),
        ([other(-4 * DAY_MS, "b")], Trust.CONTRADICTED, False),
        ([other(-4 * DAY_MS, "b"), other(0, "c")], Trust.CONFIRMED, False),
        ([other(-4 * DAY_MS, "b"), other(-4 * DAY_MS, "c")], Trust.CONTRADICTED, True),
        ([other(-4 * DAY_MS, "b"), other(4 * DAY_MS, "c")], Trust.CONTRADICTED, False),
        ([other(-DAY_MS, "b"), other(-DAY_MS, "c"), other(0, "d")], Trust.CONTRADICTED, True),
        ([other(0, "a", is_own_machine=True)], Trust.PLAUSIBLE, False),
        ([other(-DAY_MS, "a", is_own_machine=True)], Trust.CONTRADICTED, False),
        (
            [other(-DAY_MS, "a", is_own_machine=True), other(-DAY_MS, "b")],
            Trust.CONTRADICTED,
            False,
        ),
        (
            [*own_by_all_addresses(HOUR_MS), other(0, "b")],  # ours was an hour ahead until now
            Trust.CONFIRMED,
            False,
        ),
        ([*own_by_all_addresses(0), other(-DAY_MS, "b")], Trust.CONTRADICTED, False),
        (
            [*own_by_all_addresses(-DAY_MS), other(0, "a1", is_own_machine=True, age_ms=-9)],
            Trust.PLAUSIBLE,
            False,
        ),
        ([other(-DAY_MS, "b", age_ms=61_000)], Trust.PLAUSIBLE, False),
        ([other(-DAY_MS, "b", age_ms=9), other(0, "b")], Trust.CONFIRMED, False),
        ([], Trust.PLAUSIBLE, False),
    ],
)
def test_most_machines_clocks_decide_and_each_machine_has_one_vote(readings, trust, is_corrected):
    """An old reading and our own machine's other view of its clock do not confirm it."""
    found = verdict(*readings)
    assert (found.trust, found.is_corrected) == (trust, is_corrected)


def test_a_contradicted_clock_is_described_with_the_others_names():
    """The lead is the median of those that differ."""
    found = verdict(other(-4 * DAY_MS, "b"), other(-4 * DAY_MS - 20, "c"))
    assert found.in_doubt
    assert found.reason == "this machine's clock is 4 days ahead of b, c"
    assert verdict(other(2 * HOUR_MS, "b")).reason == "this machine's clock is 2.0 h behind b"


# -- without other clocks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slack_h", "wall_h", "boot_h", "in_doubt"),
    [
        (0, 5, 5, False),
        (0, 5.1, 5, False),
        (0, 101, 5, True),  # 4 days ahead
        (0, 4, 5, True),  # an hour back
        (0, -480_000, 0, True),  # 1970
        (36, 30, 0, False),  # a reboot that took 30 hours
        (36, 100, 0, True),
        (36, -1, 0, True),
    ],
)
def test_a_clock_alone_is_compared_with_the_time_since_boot(slack_h, wall_h, boot_h, in_doubt):
    """It may be later than expected only by the time that a reboot may have taken."""
    trusted = TrustedTime(boot_id="b", boot_ms=0, wall_ms=WALL_MS, slack_ms=slack_h * HOUR_MS)
    wall_ms, boot_ms = WALL_MS + wall_h * HOUR_MS, boot_h * HOUR_MS
    found = verdict(trusted=trusted, wall_ms=wall_ms, boot_ms=boot_ms)
    assert found.trust is (Trust.UNCONFIRMED if in_doubt else Trust.PLAUSIBLE)
    again = attrs.evolve(trusted, doubted_ms=KEEP_MS)
    assert not verdict(trusted=again, wall_ms=wall_ms, boot_ms=boot_ms).in_doubt


# -- the watch -------------------------------------------------------------------------------------


@attrs.define(slots=False)
class Bench:
    """A node's log and the watch of its clock; ``restart`` is another process."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    clock: TrioClock = attrs.field(factory=TrioClock)
    readings: list = attrs.field(factory=list)
    boot_id: str = "boot-1"
    is_synchronised: bool = False

    def __attrs_post_init__(self):
        self.start()

    def start(self):
        self.env = attrs.evolve(
            fake_env(self.disk, self.clock),
            boot_id=self.boot_id,
            is_clock_synchronised=lambda: self.is_synchronised,
        )
        self.log = open_log(self.env)
        others = lambda: [each() for each in self.readings]  # noqa: E731
        self.watch = a_clock(self.env, self.log, others=others)
        self.log.correct_time = self.watch.store_time_ms
        self.log.on_file_end = self.watch.check

    def restart(self):
        flush(self.log)
        self.log.close(clean=True)
        self.start()

    async def run(self, seconds=11.0):
        with trio.move_on_after(seconds):
            await self.watch.run()

    def sees(self, ahead_ms, host="10.0.0.2"):
        """Let another machine's clock, read now, be known from now on, ``ahead_ms`` of ours now."""
        boot_ms = self.clock.boot_s() * 1000
        offset_ms = self.clock.now_ms() + ahead_ms - boot_ms

        def read():
            now_ms = self.clock.boot_s() * 1000
            return ClockReading(
                who=host, host=host, offset_ms=offset_ms, error_ms=1.0, boot_ms=now_ms
            )

        self.readings.append(read)

    def put(self):
        """Return the store time of one more message."""
        append(self.log)
        return self.log.store_timestamp_ms

    @property
    def stored(self):
        return json.loads(self.disk.read_file(f"/d/{CLOCK_FILE}"))


@pytest.fixture
def events(caplog):
    """Return what was logged since the last call."""
    caplog.set_level("INFO", logger="hastore")

    def take():
        lines = [record.msg for record in caplog.records]
        caplog.clear()
        return [line for line in lines if line["part"] == "broker"]

    return take


async def test_a_step_ahead_is_a_doubt_until_the_clock_is_set_back(events, autojump_clock):
    """Logged once each; a restart in between does not end it."""
    bench = Bench()
    await bench.run()
    assert not bench.watch.check().in_doubt
    bench.clock.off_by_ms += 4 * DAY_MS
    events()
    await bench.run()
    assert bench.watch.verdict.trust is Trust.UNCONFIRMED
    (line,) = events()
    assert line["event"] == "clock_in_doubt"
    assert "4 days ahead of the time that this node expects" in line["reason"]
    bench.restart()
    await bench.run()
    assert bench.watch.verdict.in_doubt
    bench.clock.off_by_ms -= 4 * DAY_MS
    events()
    await bench.run()
    assert not bench.watch.verdict.in_doubt
    assert [line["event"] for line in events()] == ["clock_trusted"]


async def test_a_doubt_without_other_clocks_ends_after_the_time_that_files_are_kept(
    autojump_clock,
):
    """By the boot clock; restarts do not lengthen it by more than five minutes each."""
    bench = Bench()
    await bench.run()
    bench.clock.off_by_ms += 4 * DAY_MS
    for _ in range(2 * 8):
        await bench.run(1_800)
        bench.restart()
    await bench.run(63 * 3_600)
    assert bench.watch.verdict.in_doubt
    await bench.run(3 * 3_600)
    assert not bench.watch.verdict.in_doubt
    assert bench.stored["inDoubt"] is False


async def test_a_machine_that_starts_in_1970_doubts_its_clock_until_it_is_right(autojump_clock):
    """What it wrote meanwhile is dated too early, so it counts as written when the clock is set."""
    bench = Bench()
    await bench.run()
    bench.boot_id = "boot-2"
    bench.clock.off_by_ms = -START_MS
    bench.restart()
    await bench.run()
    assert bench.watch.verdict.in_doubt
    assert bench.watch.verdict.lead_ms < -50 * 365 * DAY_MS
    for _ in range(3):
        bench.put()
    bench.clock.off_by_ms = 1 * HOUR_MS  # the reboot took an hour
    assert not bench.watch.check().in_doubt
    floor = bench.watch.date_floor
    assert (floor.physic_offset, floor.date_ms) == (bench.log.max_offset, bench.clock.now_ms())
    await bench.run()
    bench.restart()
    await bench.run()
    assert bench.watch.date_floor == floor


async def test_a_machine_that_was_off_for_long_is_by_ntp(autojump_clock):
    """Its clock is later than a reboot alone explains; files from before it stay once more."""
    bench = Bench()
    bench.put()
    await bench.run()
    bench.boot_id = "boot-2"
    bench.clock.off_by_ms = 62 * HOUR_MS
    bench.restart()
    await bench.run()
    assert bench.watch.verdict.trust is Trust.UNCONFIRMED
    assert bench.watch.date_floor is None
    bench.is_synchronised = True
    await bench.run()
    assert bench.watch.verdict.trust is Trust.PLAUSIBLE
    floor = bench.watch.date_floor
    assert floor.physic_offset == bench.log.max_offset
    assert floor.date_ms == pytest.approx(bench.clock.now_ms(), abs=11_000)


@pytest.mark.parametrize(
    ("boot_id", "off_by_ms"),
    [("boot-1", 4 * DAY_MS), ("boot-2", -4 * DAY_MS)],
)
async def test_ntp_does_not_confirm_a_step_nor_a_clock_that_went_back(
    autojump_clock, boot_id, off_by_ms
):
    """A daemon that slews a clock for weeks tells the kernel meanwhile that it is right."""
    bench = Bench()
    bench.is_synchronised = True
    await bench.run()
    bench.boot_id = boot_id
    bench.clock.off_by_ms = off_by_ms
    bench.restart()
    await bench.run()
    assert bench.watch.verdict.trust is Trust.UNCONFIRMED


def test_the_kernel_can_be_asked():
    """Whatever it says here."""
    assert real_env().is_clock_synchronised() in {True, False}


async def test_a_new_node_without_others_learns_later_that_its_clock_was_behind(autojump_clock):
    """It took the year 1970 for right; what it has copied then is as old as the clock's setting."""
    bench = Bench()
    bench.clock.off_by_ms = -START_MS
    await bench.run()
    assert not bench.watch.verdict.in_doubt
    bench.clock.off_by_ms = 0
    assert bench.watch.check().trust is Trust.UNCONFIRMED
    assert bench.watch.date_floor is None
    bench.sees(0)
    assert bench.watch.check().trust is Trust.CONFIRMED
    assert bench.watch.date_floor.date_ms == bench.clock.now_ms()


async def test_a_clock_that_was_behind_and_then_ahead_has_been_behind_too(autojump_clock):
    """What it wrote while behind has dates that are too early, whatever came after."""
    bench = Bench()
    await bench.run()
    bench.clock.off_by_ms = -4 * DAY_MS
    assert bench.watch.check().trust is Trust.UNCONFIRMED
    bench.put()
    bench.clock.off_by_ms = 4 * DAY_MS
    await bench.run()
    assert bench.watch.verdict.trust is Trust.UNCONFIRMED
    bench.restart()
    await bench.run()
    bench.clock.off_by_ms = 0
    assert not bench.watch.check().in_doubt
    assert bench.watch.date_floor.physic_offset == bench.log.max_offset
    assert bench.watch.date_floor.date_ms == bench.clock.now_ms()


@pytest.mark.parametrize("is_master", [True, False])
async def test_a_file_that_ends_while_the_clock_is_behind_is_as_old_as_its_setting(
    autojump_clock, is_master
):
    """However short that was: between two looks at the clock, too."""
    bench = Bench()
    await bench.run()
    bench.put()
    bench.clock.off_by_ms = -4 * DAY_MS
    if is_master:
        while bench.log.max_offset < FILE_SIZE:
            bench.put()
    else:
        end = bench.log.max_offset
        append_data(bench.log, end, bytes(FILE_SIZE - end))
    bench.clock.off_by_ms = 0
    assert not bench.watch.check().in_doubt
    floor = bench.watch.date_floor
    assert floor.physic_offset >= FILE_SIZE
    assert floor.date_ms == bench.clock.now_ms()


async def test_a_doubt_is_stored_as_soon_as_it_is_seen(autojump_clock):
    """The next role's watch knows it, though this one ends before it would look again."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.watch.run)
        await trio.sleep(1.0)
        bench.clock.off_by_ms = -4 * DAY_MS
        bench.watch.check()
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert bench.stored["isBehind"] is True
    bench.clock.off_by_ms = 0
    bench.restart()
    await bench.run()
    assert bench.watch.date_floor.physic_offset == bench.log.max_offset


async def test_a_directory_of_an_earlier_version_is_judged_by_its_last_store_time(autojump_clock):
    """A log whose last message is a week old may have been at rest, or the clock is ahead."""
    for hours, in_doubt in ((30, False), (24 * 7, True), (-2, True)):
        bench = Bench()
        bench.put()
        bench.clock.off_by_ms += hours * HOUR_MS
        bench.restart()
        await bench.run()
        assert bench.watch.verdict.in_doubt == in_doubt


async def test_another_clock_ends_a_doubt_or_begins_one(autojump_clock):
    """Whatever this node expected itself."""
    bench = Bench()
    await bench.run()
    bench.clock.off_by_ms += 4 * DAY_MS
    assert bench.watch.check().trust is Trust.UNCONFIRMED
    bench.sees(0)
    assert bench.watch.check().trust is Trust.CONFIRMED
    bench.clock.off_by_ms += 4 * DAY_MS
    assert bench.watch.check().trust is Trust.CONTRADICTED


async def test_a_doubt_of_another_kind_is_logged(events, autojump_clock):
    """First the clock is not as expected, then another machine's contradicts it."""
    bench = Bench()
    await bench.run()
    events()
    bench.clock.off_by_ms += 4 * DAY_MS
    await bench.run()
    bench.sees(-4 * DAY_MS)
    await bench.run()
    reasons = [line["reason"] for line in events()]
    assert ["the time that this node expects" in each for each in reasons] == [True, False]
    assert reasons[1].endswith("4 days ahead of 10.0.0.2")
    await bench.run()
    assert not events()


async def test_a_full_disk_does_not_stop_the_watch(events, autojump_clock):
    """The file is written later; the reason is logged once."""
    bench = Bench()
    bench.disk.fail("write_file", disk_full("/d"), times=3)
    events()
    await bench.run(30)
    assert [line["event"] for line in events()] == ["clock_file_not_written"]
    assert bench.stored["inDoubt"] is False


# -- store times -----------------------------------------------------------------------------------


async def test_a_message_gets_no_time_of_next_week_where_two_clocks_contradict_it(autojump_clock):
    """From the first message after the step on, and in the other direction, too."""
    bench = Bench()
    await bench.run()
    for host in ("10.0.0.2", "10.0.0.3"):
        bench.sees(0, host)
    bench.watch.check()
    before = bench.put()
    right_ms = bench.clock.now_ms()
    bench.clock.off_by_ms += 4 * DAY_MS
    assert before <= bench.put() <= right_ms + 10
    status = bench.watch.status()
    assert status.corrected_by_s == pytest.approx(-4 * 86_400, abs=1)
    assert status.store_time_lead_s < 1
    await trio.sleep(3_600)
    assert bench.put() == pytest.approx(right_ms + HOUR_MS, abs=10)
    bench.clock.off_by_ms -= 8 * DAY_MS
    await trio.sleep(3_600)
    assert bench.put() == pytest.approx(right_ms + HOUR_MS, abs=10)  # not looked at yet
    assert bench.watch.status().corrected_by_s == pytest.approx(4 * 86_400, abs=1)
    assert bench.put() == pytest.approx(right_ms + 2 * HOUR_MS, abs=10)
    await trio.sleep(3_600)
    assert bench.put() == pytest.approx(right_ms + 3 * HOUR_MS, abs=10)
    bench.clock.off_by_ms += 4 * DAY_MS
    await trio.sleep(3_600)
    assert bench.put() == pytest.approx(right_ms + 4 * HOUR_MS, abs=10)
    assert bench.watch.status().corrected_by_s == 0
    await trio.sleep(3_600)
    assert bench.put() == pytest.approx(right_ms + 5 * HOUR_MS, abs=10)


async def test_one_other_clock_puts_it_in_doubt_but_does_not_set_store_times(autojump_clock):
    """Which of two clocks is wrong is not known."""
    bench = Bench()
    await bench.run()
    bench.sees(0)
    bench.clock.off_by_ms += 4 * DAY_MS
    assert bench.put() == bench.clock.now_ms()
    assert bench.watch.verdict.trust is Trust.CONTRADICTED


async def test_a_store_time_ahead_of_the_clock_is_logged_and_shown(events, autojump_clock):
    """A clock that was ahead once: each message gets its time until the clock has reached it."""
    bench = Bench()
    await bench.run()
    bench.clock.off_by_ms += 4 * DAY_MS
    future_ms = bench.put()
    bench.clock.off_by_ms -= 4 * DAY_MS
    assert bench.put() == future_ms
    events()
    await bench.run()
    assert [line["event"] for line in events()] == ["store_time_ahead"]
    assert bench.watch.status().store_time_lead_s == pytest.approx(4 * 86_400, abs=30)
    bench.sees(0)
    events()
    await bench.run(4 * 86_400)
    assert [line["event"] for line in events()] == ["store_time_reached"]


# -- readings --------------------------------------------------------------------------------------


async def test_readings_are_taken_from_valid_fields_only(autojump_clock):
    """One per machine, and at most sixteen machines."""
    clock = TrioClock()
    readings = ClockReadings(clock)
    for value in (None, 5, "", "-1", "x", "1" * 40, "١"):
        fields = {} if value is None else {"wallTimeMs": value}
        readings.hear("b", "10.0.0.2", fields, own_host="10.0.0.1")
    assert readings() == ()
    for number in range(40):
        host = f"10.0.0.{number}"
        readings.hear(host, host, readings.fields(), own_host="10.0.0.1")
        readings.hear(host, f"::ffff:{host}", readings.fields(), own_host="10.0.0.1")
    assert len(readings()) == 16
    asked_at_ms = clock.boot_s() * 1000
    fields = readings.fields()
    await trio.sleep(0.4)
    readings.hear("b", "10.0.0.1", fields, own_host="10.0.0.1", asked_at_ms=asked_at_ms)
    newest = readings()[-1]
    assert newest.is_own_machine
    assert newest.error_ms == pytest.approx(200)
    assert clock.now_ms() - clock.boot_s() * 1000 - newest.offset_ms == pytest.approx(200, abs=1)


# -- findings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "levels", "text"),
    [
        ({}, [Level.OK], "no other machine's clock is known"),
        ({"leads_s": {"b": 1.0}}, [Level.OK], "agrees with b"),
        ({"leads_s": {"b": 61.0}}, [Level.NOTICE], "61.0 s ahead of b"),
        ({"in_doubt_because": "x", "trust": "unconfirmed"}, [Level.WARNING], "in doubt"),
        ({"in_doubt_because": "x", "trust": "contradicted"}, [Level.FAULT], "in doubt"),
        (
            {"store_time_lead_s": 345_600.0},
            [Level.WARNING, Level.OK],
            "last store time is 4 days ahead of the clock",
        ),
        ({"store_time_lead_s": 3.0}, [Level.OK], "no other"),
    ],
)
def test_a_node_says_what_is_wrong_with_its_clock(clock, levels, text):
    """Nothing of it is critical: the node serves."""
    status = ClockStatus(**{"trust": "plausible", "in_doubt_because": None, "hint": None, **clock})
    found = list(findings(attrs.evolve(MASTER, clock=status), Limits()))
    found = [each for each in found if each.subject == "time"]
    assert [each.level for each in found] == levels
    assert text in found[0].sentence
    assert not [each for each in findings(MASTER, Limits()) if each.subject == "time"]


def test_helpers_agree():
    """The reading of an agreeing machine has no lead."""
    clock = type("Clock", (), {"now_ms": lambda _: WALL_MS, "boot_s": lambda _: 5.0})()
    (same,) = agreeing(clock)
    assert same.offset_ms == WALL_MS - 5_000
    assert reading(clock, ahead_ms=7).offset_ms == WALL_MS - 4_993
