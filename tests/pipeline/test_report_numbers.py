"""A report's numbers are short texts, and its buckets cover all values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.pipeline.report.buckets import BUCKETS_MAX, MINUTE_S, TimeAxis, bin_edges
from hastore.pipeline.report.data import with_others
from hastore.pipeline.report.numbers import (
    NAME_MAX,
    count_text,
    duration_text,
    name_text,
    share_text,
    short_count,
    size_text,
    time_text,
)

YEAR_2200_MS = 7_258_118_400_000


def spaced(text):
    """Replace narrow spaces by plain ones."""
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (count_text(1_073_921_408), "1 073 921 408"),
        (short_count(918), "918"),
        (short_count(12_400), "12.4 k"),
        (short_count(4_330_000), "4.33 M"),
        (short_count(0.5), "0.5"),
        (size_text(0), "0 B"),
        (size_text(812), "812 B"),
        (size_text(1024), "1 KiB"),
        (size_text(128 * 2**20), "128 MiB"),
        (size_text(None), "–"),
        (duration_text(0), "0 ms"),
        (duration_text(0.084), "84 µs"),
        (duration_text(4.1), "4.1 ms"),
        (duration_text(-4.1), "−4.1 ms"),
        (duration_text(3_100), "3.1 s"),
        (duration_text(720_000), "12 min"),
        (duration_text(9_000_000), "2.5 h"),
        (duration_text(259_200_000), "3 d"),
        (duration_text(None), "–"),
        (share_text(1, 3), "33.3 %"),
        (share_text(1, 100_000), "< 0.1 %"),
        (share_text(0, 7), "0.0 %"),
        (share_text(0, 0), "–"),
        (time_text(1_700_000_000_999), "2023-11-14 22:13:20"),
        (time_text(None), "–"),
        (name_text(None), ""),
    ],
)
def test_number_text_is_short_and_has_its_unit(made, text):
    """Three digits are enough for a person."""
    assert spaced(made) == text


@given(st.text())
def test_name_text_is_one_short_line(name):
    """A topic may have any bytes; control characters and changes of direction are not shown."""
    made = name_text(name)
    assert len(made) <= NAME_MAX
    assert made.encode().decode() == made  # no half of a surrogate pair
    assert not any(ord(one) < 32 or one in "\x7f\u202e\u2066" for one in made)


@given(st.integers(1, YEAR_2200_MS), st.integers(0, YEAR_2200_MS))
def test_time_buckets_cover_all_times_and_fit_a_plot(first_ms, span_ms):
    """A bucket is a whole number of the seconds or minutes that were counted."""
    last_ms = min(first_ms + span_ms, YEAR_2200_MS)
    axis = TimeAxis.covering(first_ms, last_ms)
    assert axis.begin_s <= first_ms // 1000
    assert last_ms // 1000 < axis.end_s
    assert 1 <= len(axis.buckets) <= BUCKETS_MAX
    assert (axis.end_s - axis.begin_s) % axis.width_s == axis.width_s % axis.base_s == 0
    assert axis.base_s in {1, MINUTE_S}
    assert axis.width_text


def test_size_bins_are_adjacent():
    """Four bins are a factor of two."""
    assert bin_edges(10, 3)[1] == bin_edges(10, 4)[0] == 10
    assert bin_edges(2, 40) == pytest.approx((1024, 1024 * 2**0.25))


def test_hidden_rows_are_summed_in_one_more_row():
    """Totals stay right, even if the hidden rows were not collected."""
    rows = [{"topic": f"t{number}", "messages": 10 - number} for number in range(5)]
    shown = with_others(rows, {"messages": 100}, "topic", 12, 3)
    assert [row["messages"] for row in shown] == [10, 9, 8, 73]
    assert (shown[-1]["topic"], shown[-1]["is_others"]) == ("9 others", True)
    assert with_others(rows, {"messages": 40}, "topic", 5, 9) == rows
