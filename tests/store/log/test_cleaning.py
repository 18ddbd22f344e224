"""Which log files may be deleted: RocketMQ's rules, and those that keep a log whole."""

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
    """Return files of these ages in hours, oldest first; the last one is being written."""
    return [
        OldFile(
            start=index * SIZE,
            end=index * SIZE + SIZE,
            date_ms=NOW_MS - round(age_h * HOUR_MS),
            **changes,
        )
        for index, age_h in enumerate(ages_h)
    ]


def plan(files, *, hour=4, level=DiskLevel.ROOM, holds=(), held_ms=0, rules=RULES):
    return decide(rules, files, now_ms=NOW_MS, hour=hour, level=level, holds=holds, held_ms=held_ms)


def removed(decision):
    return [(removal.start, removal.reason) for removal in decision.removals]


def test_deletes_expired_files_in_the_hour_up_to_the_first_unexpired_one():
    """An unexpired file keeps all files after it, even older ones."""
    decision = plan(log(100, 72, 71.9, 100, 0))
    assert removed(decision) == [(0, EXPIRED), (SIZE, EXPIRED)]
    assert decision.stopped_because is Reason.NOT_EXPIRED


def test_deletes_nothing_at_another_hour():
    """``delete_when`` means the whole of that hour and no other time."""
    decision = plan(log(100, 100, 0), hour=5)
    assert (decision.removals, decision.stopped_because) == ((), Reason.NOT_THE_HOUR)


def test_deletes_expired_files_at_any_hour_above_75_percent():
    """A lack of room overrides the hour, but not the age."""
    assert RULES.level(75) is DiskLevel.ROOM
    assert RULES.level(76) is DiskLevel.CLEAN_EXPIRED
    decision = plan(log(100, 1, 0), hour=5, level=DiskLevel.CLEAN_EXPIRED)
    assert removed(decision) == [(0, EXPIRED)]


def test_deletes_files_of_any_age_above_85_percent():
    """The oldest files go first, and each removal says whether the file had expired."""
    assert RULES.level(85) is DiskLevel.CLEAN_EXPIRED
    assert RULES.level(86) is DiskLevel.CLEAN_ANY
    decision = plan(log(100, 1, 0), hour=5, level=DiskLevel.CLEAN_ANY)
    assert removed(decision) == [(0, EXPIRED), (SIZE, Reason.NO_ROOM)]
    assert decision.stopped_because is Reason.LAST_FILE


@pytest.mark.parametrize("level", list(DiskLevel))
def test_keeps_an_unarchived_file_at_every_disk_level(level):
    """Neither age, a full disk nor an overdue hold deletes it or any file after it."""
    files = log(100, 100, 100, 0)
    files[1] = attrs.evolve(files[1], is_archived=False)
    decision = plan(files, level=level, held_ms=10**9)
    assert removed(decision) == [(0, EXPIRED)]
    assert decision.stopped_because is Reason.NOT_ARCHIVED


def test_keeps_unexpired_files_without_forcible_cleaning():
    """With ``clean_file_forcibly_enable = false``, no disk level overrides the age."""
    config = StoreConfig(data_dir="/d", clean_file_forcibly_enable=False)
    assert CleaningRules.of(config).level(99) is DiskLevel.CLEAN_EXPIRED


def test_refuses_puts_above_90_percent_until_85_percent():
    """As in RocketMQ, the state does not change between the two."""
    assert [RULES.is_full(n, was_full=False) for n in (85, 90, 91)] == [False, False, True]
    assert [RULES.is_full(n, was_full=True) for n in (85, 86, 90, 91)] == [False, True, True, True]


def test_ratios_stay_within_rocketmqs_limits():
    """A configured ratio outside its limits is set to the nearest one."""
    config = StoreConfig(
        data_dir="/d",
        disk_max_used_space_ratio=3,
        disk_space_clean_forcibly_ratio=99,
        disk_space_warning_level_ratio=99,
    )
    rules = CleaningRules.of(config)
    assert (rules.max_used, rules.forcibly, rules.warning) == (10, 85, 90)


def test_used_percent_is_rounded_up():
    """75.01 % is above 75 %, but the float 0.29 is exactly 29 %."""
    assert [used_percent(r) for r in (0, 0.29, 0.75, 0.7501, 1)] == [0, 29, 75, 76, 100]


def test_one_round_deletes_at_most_ten_files():
    """The limit is ``delete_file_batch_max``."""
    decision = plan(log(*[100] * 20))
    assert len(decision.removals) == 10
    assert decision.stopped_because is Reason.BATCH_ENDS


def test_never_deletes_the_last_file():
    """It is being written, so neither its age nor the disk matters."""
    for files in ([], log(1000)):
        decision = plan(files, level=DiskLevel.CLEAN_ANY)
        assert (decision.removals, decision.stopped_because) == ((), Reason.LAST_FILE)


def test_keeps_an_unflushed_file():
    """Some of its bytes are only in memory."""
    decision = plan(log(100, 0, is_flushed=False))
    assert (decision.removals, decision.stopped_because) == ((), Reason.NOT_FLUSHED)


def test_hold_keeps_its_file_but_none_before_it():
    """A slave at the first byte of a file needs that file, and not the one before."""
    hold = Hold(physic_offset=SIZE, who="slave a")
    decision = plan(log(100, 100, 100, 0), holds=[hold])
    assert removed(decision) == [(0, EXPIRED)]
    assert (decision.stopped_because, decision.holders) == (Reason.HELD, ("slave a",))


@pytest.mark.parametrize("level", list(DiskLevel))
def test_hold_ends_at_its_time_limit_at_every_disk_level(level):
    """Then only the held file is deleted, and the removal names its holders."""
    holds = [Hold(physic_offset=5, who="slave a"), Hold(physic_offset=SIZE, who="slave b")]
    files = log(100, 100, 0)
    assert plan(files, level=level, holds=holds, held_ms=119_999).stopped_because is Reason.HELD
    decision = plan(files, level=level, holds=holds, held_ms=120_000)
    assert [(r.start, r.holders) for r in decision.removals] == [(0, ("slave a",))]


def test_time_limit_of_holds_counts_per_file():
    """A long hold of the first file does not release the next one."""
    hold = Hold(physic_offset=SIZE, who="slave a")
    decision = plan(log(100, 100, 0), holds=[hold], held_ms=10**9)
    assert removed(decision) == [(0, EXPIRED)]
    assert decision.stopped_because is Reason.HELD


def test_reads_in_progress_hold_their_file():
    """The decision gives their number in place of a name."""
    decision = plan(log(100, 0, readers=2))
    assert decision.holders == ("2 reads under way",)


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("2; 14;", {2, 14}), ("00;23", {0, 23}), ("", set())]
)
def test_parses_hours(text, hours):
    """Hours are separated by semicolons, with or without a leading zero."""
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1", "4h", "04:00", "٤"])
def test_refuses_an_invalid_hour(text):
    """Valid hours are 0 to 23, in ASCII digits."""
    with pytest.raises(ConfigError, match=f"{text!r} is not an hour of the day"):
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
def test_deletes_only_an_allowed_prefix_for_any_input(files, hour, level, holds, held_ms):
    """At most ten files are deleted, never the last one, and each only if a rule allows it.

    No hold ends before its time, and at most one ends in a round.
    """
    log_files = [
        OldFile(
            start=index * SIZE,
            end=index * SIZE + SIZE,
            date_ms=NOW_MS - round(age_h * HOUR_MS),
            is_flushed=is_flushed,
            readers=readers,
        )
        for index, (age_h, is_flushed, readers) in enumerate(files)
    ]
    decision = plan(
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
        has_expired = file.date_ms + 72 * HOUR_MS <= NOW_MS
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
