"""Points in time and time windows, in all accepted notations."""

import datetime as dt

import pytest

from hastore_cli.app.times import ALWAYS, TimeWindow, parse_time_ms, parse_window

NOW_MS = 1_795_248_742_549  # 2026-11-21T08:12:22.549Z


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2026-11-21T08:12:22.549Z", NOW_MS),
        ("2026-11-21T09:12:22.549+01:00", NOW_MS),
        ("1795248742549", NOW_MS),
        ("now", NOW_MS),
        ("0", 0),
        ("15min", NOW_MS - 900_000),
        ("-15min", NOW_MS - 900_000),
        ("3d", NOW_MS - 3 * 86_400_000),
    ],
)
def test_time_is_parsed_in_each_notation(text, expected_ms):
    """With a zone, in milliseconds, as `now`, and as an age."""
    assert parse_time_ms(text, NOW_MS) == expected_ms


def test_time_without_a_zone_is_local():
    """A date alone is the start of the local day."""
    local = dt.datetime(2026, 11, 21, 8, 12).astimezone()
    assert parse_time_ms("2026-11-21 08:12", NOW_MS) == round(local.timestamp() * 1000)
    midnight = dt.datetime(2026, 11, 21).astimezone()
    assert parse_time_ms("2026-11-21", NOW_MS) == round(midnight.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yesterday", "'yesterday' is not a time: write 2026-"),
        ("2026-13-01", "is not a time"),
        ("1795248742", "looks like seconds: times are milliseconds, 1795248742000"),
        ("", "is not a time"),
        ("9" * 27, "further from now than any message"),
        ("9" * 17 + "d", "further from now than any message"),
    ],
)
def test_invalid_time_is_refused_with_a_reason(text, reason):
    """The calendar's own exceptions never reach the user."""
    with pytest.raises(ValueError, match=reason):
        parse_time_ms(text, NOW_MS)


def test_window_is_half_open_and_may_lack_a_side():
    """The beginning belongs to it, the end does not."""
    window = parse_window("15min..now", NOW_MS)
    assert window == TimeWindow(NOW_MS - 900_000, NOW_MS)
    assert window.holds(NOW_MS - 1)
    assert not window.holds(NOW_MS)
    assert not window.holds(NOW_MS - 900_001)
    assert parse_window("15min..", NOW_MS).end_ms is None
    assert parse_window("..now", NOW_MS).begin_ms is None
    assert ALWAYS.holds(0)


@pytest.mark.parametrize("text", ["", "..", "now", "now..15min", "now..now", "a..b"])
def test_invalid_window_is_refused(text):
    """No dots, no side, or an end that is not after the beginning."""
    with pytest.raises(ValueError, match="'"):
        parse_window(text, NOW_MS)
