"""When the log's end passed which offset, against a list of every append there was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.ha.log_end_history import MARKS_MAX, PERIOD_S, LogEndHistory


def played(steps):
    """A history and the list that it stands for, of (pause, size) steps."""
    history = LogEndHistory(0.0, 1_000)
    now, end, all_appends = 0.0, 1_000, []
    for pause, size in steps:
        now += pause
        history.mark(now, end, end + size)
        end += size
        all_appends.append((now, end))
    return history, all_appends, now, end


@given(
    st.lists(st.tuples(st.sampled_from((0.0, 0.01, 0.09, 0.2, 30.0)), st.integers(1, 500))),
    st.data(),
)
def test_a_lag_in_seconds_is_right_within_the_period(steps, data):
    """Bursts, pauses and trickles: it is the time since the first append beyond the offset."""
    history, all_appends, now, end = played(steps)
    offset = data.draw(st.integers(1_000, end))
    now += 5.0
    lag = history.lag(offset, now, end)
    if offset == end:
        assert lag == (0.0, False)
        return
    passed = next(time for time, appended_end in all_appends if appended_end > offset)
    assert now - passed - 1e-6 <= lag.seconds <= now - passed + PERIOD_S + 1e-6


def test_what_was_there_at_the_start_is_older_than_the_start():
    """How much older, nobody knows: so it is a least value."""
    history, _, now, end = played([(1.0, 100)])
    assert history.lag(500, now + 2, end) == (3.0, True)
    assert history.lag(1_000, now + 2, end) == (2.0, False)


def test_days_of_appends_take_bounded_room_and_stay_nearly_right():
    """Old marks are thinned out again and again: wrong by a small part, and upwards."""
    history, all_appends, now, end = played([(0.25, 10)] * 20_000)
    assert len(history) <= MARKS_MAX
    for back in (1, 40, 1_000, 10_000, 19_000):
        time, appended_end = all_appends[-back]
        lag = history.lag(appended_end - 1, now, end).seconds
        assert now - time - 0.001 <= lag <= (now - time) * 1.05 + 0.3, back


def test_the_rate_is_that_of_the_last_seconds():
    """Not that of the whole run, and 0 where nothing came of late."""
    history, _, now, end = played([(1.0, 10)] * 100 + [(0.1, 1_000)] * 100)
    assert history.bytes_per_s(now, end) == pytest.approx(10_000, rel=0.05)
    assert history.bytes_per_s(now + 60, end) == 0
    assert LogEndHistory(5.0, 7).bytes_per_s(5.0, 7) == 0
