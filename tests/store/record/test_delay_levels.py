"""The table of delay levels."""

import pytest

from hastore.config import DEFAULT_DELAY_LEVELS
from hastore.errors import ConfigError
from hastore.store.record.delay_levels import DELAY_MS_MAX, LEVELS_MAX, DelayLevels, parse_level

DEFAULT = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def test_default_table_equals_rocketmqs():
    """Eighteen levels, from one second to two hours."""
    assert DEFAULT.level_max == 18
    assert [DEFAULT.delay_ms(level) for level in (1, 2, 5, 14, 17, 18)] == [
        1_000, 5_000, 60_000, 600_000, 3_600_000, 7_200_000,
    ]  # fmt: skip


def test_level_outside_the_table_has_no_delay():
    """Levels start at 1 and end with the table."""
    assert [DEFAULT.delay_ms(level) for level in (-1, 0, 19)] == [None, None, None]


def test_level_above_the_table_means_the_highest():
    """As in RocketMQ. A level below the table is due after one second."""
    assert DEFAULT.deliver_time_ms(18, 1_000) == 7_201_000
    assert DEFAULT.deliver_time_ms(99, 1_000) == 7_201_000
    assert DEFAULT.deliver_time_ms(1, 1_000) == 2_000
    assert DEFAULT.deliver_time_ms(0, 1_000) == 2_000
    assert DEFAULT.clamp(99) == 18


def test_parses_all_time_units():
    """Seconds, minutes, hours and days."""
    assert DelayLevels.parse("0s 1s  2m 3h 4d").delays_ms == (
        0, 1_000, 120_000, 10_800_000, 345_600_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "0 entries"),
        ("1s 5", "'5' is not a delay"),
        ("1s -5s", "'-5s' is not a delay"),
        ("1S", "'1S' is not a delay"),
        ("1w", "'1w' is not a delay"),
        ("٣s", "is not a delay"),
        ("9999999999999999s", "is not a delay"),
        ("367d", "more than 366 days"),
        ("1s " * (LEVELS_MAX + 1), "1025 entries"),
    ],
)
def test_refuses_an_invalid_table(text, named):
    """The error names the invalid entry, or the number of entries."""
    with pytest.raises(ConfigError, match=named):
        DelayLevels.parse(text)


def test_accepts_the_longest_delay():
    """The limit is 366 days."""
    assert DelayLevels.parse("366d").delays_ms == (DELAY_MS_MAX,)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, 0), ("", 0), ("3", 3), ("+3", 3), ("-3", -3), ("0", 0), ("003", 3), ("3 ", 0),
        ("3.0", 0), ("٣", 0), ("2147483647", 2_147_483_647), ("2147483648", 0), ("9" * 30, 0),
    ],
)  # fmt: skip
def test_parses_a_level_like_a_java_int(text, level):
    """Text that is not a 32-bit number means no delay."""
    assert parse_level(text) == level
