"""Which files of a log may go: RocketMQ's rules, and those that keep a log whole."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import StoreConfig
from hastore.errors import ConfigError
from hastore.store.log.cleaning import (
    CleaningRules,
    DiskLevel,
    Hold,
    OldFile,
    Reason,
    decide,
    parse_hours,
    used_percent,
)

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
SIZE = 1_000
RULES = CleaningRules.of(StoreConfig(data_dir="/d"))
EXPIRED = Reason.EXPIRED


def log(*ages_h, **changes):
    """Files of these ages in hours, oldest first; the last one is being written."""
    return [
        OldFile(
            start=index * SIZE,
            end=index * SIZE + SIZE,
            modified_ms=NOW_MS - round(age_h * HOUR_MS),
            **changes,
        )
        for index, age_h in enumerate(ages_h)
    ]


def ask(files, *, hour=4, level=DiskLevel.ROOM, holds=(), held_ms=0, rules=RULES):
    return decide(rules, files, now_ms=NOW_MS, hour=hour, level=level, holds=holds, held_ms=held_ms)


def going(decision):
    return [(removal.start, removal.reason) for removal in decision.removals]


def test_expired_files_go_in_the_hour_and_the_first_that_has_not_expired_ends_it():
    """A younger file keeps all behind it, also an older one."""
    decision = ask(log(100, 72, 71.9, 100, 0))
    assert going(decision) == [(0, EXPIRED), (SIZE, EXPIRED)]
    assert decision.stopped_because is Reason.NOT_EXPIRED


def test_nothing_goes_at_another_hour():
    """The whole hour of delete_when is the time, no other."""
    decision = ask(log(100, 100, 0), hour=5)
    assert (decision.removals, decision.stopped_because) == ((), Reason.NOT_THE_HOUR)


def test_above_75_per_cent_expired_files_go_at_any_hour():
    """Too little room makes it always the hour, but does not change what has expired."""
    assert RULES.level(75) is DiskLevel.ROOM
    assert RULES.level(76) is DiskLevel.CLEAN_EXPIRED
    decision = ask(log(100, 1, 0), hour=5, level=DiskLevel.CLEAN_EXPIRED)
    assert going(decision) == [(0, EXPIRED)]


def test_above_85_per_cent_files_go_whatever_their_age():
    """The oldest go first, and each says whether it had expired."""
    assert RULES.level(85) is DiskLevel.CLEAN_EXPIRED
    assert RULES.level(86) is DiskLevel.CLEAN_ANY
    decision = ask(log(100, 1, 0), hour=5, level=DiskLevel.CLEAN_ANY)
    assert going(decision) == [(0, EXPIRED), (SIZE, Reason.NO_ROOM)]
    assert decision.stopped_because is Reason.LAST_FILE


@pytest.mark.parametrize("level", list(DiskLevel))
def test_a_file_that_has_to_be_archived_first_stays_at_every_level(level):
    """No age, no full disk and no time that it was held makes it go, nor what stands behind it."""
    files = log(100, 100, 100, 0)
    files[1] = attrs.evolve(files[1], is_archived=False)
    decision = ask(files, level=level, held_ms=10**9)
    assert going(decision) == [(0, EXPIRED)]
    assert decision.stopped_because is Reason.NOT_ARCHIVED


def test_a_node_that_may_not_clean_forcibly_keeps_what_has_not_expired():
    """clean_file_forcibly_enable = false: age is never disregarded."""
    config = StoreConfig(data_dir="/d", clean_file_forcibly_enable=False)
    assert CleaningRules.of(config).level(99) is DiskLevel.CLEAN_EXPIRED


def test_puts_are_refused_above_90_and_taken_again_at_85():
    """As in RocketMQ: in between it stays as it was."""
    assert [RULES.is_full(n, was_full=False) for n in (85, 90, 91)] == [False, False, True]
    assert [RULES.is_full(n, was_full=True) for n in (85, 86, 90, 91)] == [False, True, True, True]


def test_ratios_stay_within_rocketmqs_limits():
    """A configured ratio outside them is taken to the nearest."""
    config = StoreConfig(
        data_dir="/d",
        disk_max_used_space_ratio=3,
        disk_space_clean_forcibly_ratio=99,
        disk_space_warning_level_ratio=99,
    )
    rules = CleaningRules.of(config)
    assert (rules.max_used, rules.forcibly, rules.warning) == (10, 85, 90)


def test_use_is_whole_per_cent_rounded_up():
    """75.01 % is above 75 %, and what a float makes of 0.29 is 29 %."""
    assert [used_percent(r) for r in (0, 0.29, 0.75, 0.7501, 1)] == [0, 29, 75, 76, 100]


def test_a_round_takes_ten_files():
    """delete_file_batch_max bounds it."""
    decision = ask(log(*[100] * 20))
    assert len(decision.removals) == 10
    assert decision.stopped_because is Reason.BATCH_ENDS


def test_a_log_of_one_file_keeps_it():
    """The file being written stays, whatever its age and the disk."""
    for files in ([], log(1000)):
        decision = ask(files, level=DiskLevel.CLEAN_ANY)
        assert (decision.removals, decision.stopped_because) == ((), Reason.LAST_FILE)


def test_what_is_not_flushed_stays():
    """Bytes that only memory has are never given up."""
    decision = ask(log(100, 0, is_flushed=False))
    assert (decision.removals, decision.stopped_because) == ((), Reason.NOT_FLUSHED)


def test_a_hold_keeps_the_file_it_is_in_and_none_before_it():
    """A slave at the start of a file needs that file, and not the one before."""
    hold = Hold(physic_offset=SIZE, who="slave a")
    decision = ask(log(100, 100, 100, 0), holds=[hold])
    assert going(decision) == [(0, EXPIRED)]
    assert (decision.stopped_because, decision.holders) == (Reason.HELD, ("slave a",))


@pytest.mark.parametrize("level", list(DiskLevel))
def test_a_hold_ends_at_its_limit_at_every_level_of_the_disk(level):
    """Before it the file stays; at it the file goes, alone, and who held it is named."""
    holds = [Hold(physic_offset=5, who="slave a"), Hold(physic_offset=SIZE, who="slave b")]
    files = log(100, 100, 0)
    assert ask(files, level=level, holds=holds, held_ms=119_999).stopped_because is Reason.HELD
    decision = ask(files, level=level, holds=holds, held_ms=120_000)
    assert [(r.start, r.holders) for r in decision.removals] == [(0, ("slave a",))]


def test_the_limit_of_the_first_file_is_not_that_of_the_next():
    """Each file has its own time to be held."""
    hold = Hold(physic_offset=SIZE, who="slave a")
    decision = ask(log(100, 100, 0), holds=[hold], held_ms=10**9)
    assert going(decision) == [(0, EXPIRED)]
    assert decision.stopped_because is Reason.HELD


def test_reads_under_way_hold_their_file():
    """They are counted, and named as what they are."""
    decision = ask(log(100, 0, readers=2))
    assert decision.holders == ("2 reads under way",)


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("2; 14;", {2, 14}), ("00;23", {0, 23}), ("", set())]
)
def test_hours_are_read(text, hours):
    """Separated by semicolons, with or without a leading zero."""
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1", "4h", "04:00", "٤"])
def test_what_is_no_hour_is_named(text):
    """The error says which."""
    with pytest.raises(ConfigError, match="no hour of the day"):
        parse_hours(text)


@given(
    files=st.lists(
        st.tuples(st.floats(0, 200), st.booleans(), st.integers(0, 1)), min_size=0, max_size=15
    ),
    hour=st.integers(0, 23),
    level=st.sampled_from(list(DiskLevel)),
    holds=st.lists(st.integers(0, 15 * SIZE), max_size=3),
    held_ms=st.sampled_from([0, 119_999, 120_000]),
)
def test_whatever_the_facts_the_log_stays_whole(files, hour, level, holds, held_ms):
    """A prefix goes, never the last file, at most ten, each with every right to; no hold is broken
    before its time, and at most one is.
    """
    log_files = [
        OldFile(
            start=index * SIZE,
            end=index * SIZE + SIZE,
            modified_ms=NOW_MS - round(age_h * HOUR_MS),
            is_flushed=is_flushed,
            readers=readers,
        )
        for index, (age_h, is_flushed, readers) in enumerate(files)
    ]
    decision = ask(
        log_files,
        hour=hour,
        level=level,
        holds=[Hold(physic_offset=offset, who=f"at {offset}") for offset in holds],
        held_ms=held_ms,
    )
    gone = len(decision.removals)
    assert [removal.start for removal in decision.removals] == [n * SIZE for n in range(gone)]
    assert gone <= min(10, max(len(files) - 1, 0))
    broken = 0
    for removal, file in zip(decision.removals, log_files, strict=False):
        has_expired = file.modified_ms + 72 * HOUR_MS <= NOW_MS
        assert has_expired or level is DiskLevel.CLEAN_ANY
        assert removal.reason is (EXPIRED if has_expired else Reason.NO_ROOM)
        assert hour == 4 or level is not DiskLevel.ROOM
        assert file.is_flushed
        is_held = file.readers or any(offset < file.end for offset in holds)
        assert bool(is_held) == bool(removal.holders)
        broken += bool(is_held)
    assert broken <= (held_ms >= 120_000)
    if decision.stopped_because is Reason.LAST_FILE:
        assert gone == max(len(files) - 1, 0)
