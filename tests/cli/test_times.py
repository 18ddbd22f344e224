"""Points in time and windows as people write them."""

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
def test_a_time_is_read_in_each_of_its_forms(text, expected_ms):
    """With a zone, as a number, as now, and as so long ago."""
    assert parse_time_ms(text, NOW_MS) == expected_ms


def test_a_time_without_a_zone_is_local():
    """A date alone is the first instant of the local day."""
    local = dt.datetime(2026, 11, 21, 8, 12).astimezone()
    assert parse_time_ms("2026-11-21 08:12", NOW_MS) == round(local.timestamp() * 1000)
    midnight = dt.datetime(2026, 11, 21).astimezone()
    assert parse_time_ms("2026-11-21", NOW_MS) == round(midnight.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "'yesterday' is not a time: write 2026-"),
        ("2026-13-01", "is not a time"),
        ("1795248742", "looks like seconds: times are milliseconds, 1795248742000"),
        ("", "is not a time"),
        ("9" * 27, "further from now than any message"),
        ("9" * 17 + "d", "further from now than any message"),
    ],
)
def test_what_is_no_time_says_what_would_be(text, said):
    """A sentence, never an exception of the calendar."""
    with pytest.raises(ValueError, match=said):
        parse_time_ms(text, NOW_MS)


def test_a_window_is_half_open_and_may_lack_a_side():
    """Its beginning is in it, its end is not."""
    window = parse_window("15min..now", NOW_MS)
    assert window == TimeWindow(NOW_MS - 900_000, NOW_MS)
    assert window.holds(NOW_MS - 1)
    assert not window.holds(NOW_MS)
    assert not window.holds(NOW_MS - 900_001)
    assert parse_window("15min..", NOW_MS).end_ms is None
    assert parse_window("..now", NOW_MS).begin_ms is None
    assert ALWAYS.holds(0)


@pytest.mark.parametrize("text", ["", "..", "now", "now..15min", "now..now", "a..b"])
def test_what_is_no_window_is_refused(text):
    """No dots, nothing on either side, or an end that is not behind the beginning."""
    with pytest.raises(ValueError, match="'"):
        parse_window(text, NOW_MS)
