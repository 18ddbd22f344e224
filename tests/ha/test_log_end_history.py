"""When the log's end passed an offset, checked against a list of all appends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.ha.log_end_history import MARKS_MAX, PERIOD_S, LogEndHistory


def played(steps):
    """Play (pause, size) steps; return the history, the list of appends, the time and the end."""
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
def test_lag_is_exact_to_one_period(steps, data):
    """It is the time since the first append beyond the offset: in bursts, pauses and trickles."""
    history, all_appends, now, end = played(steps)
    offset = data.draw(st.integers(1_000, end))
    now += 5.0
    lag = history.lag(offset, now, end)
    if offset == end:
        assert lag == (0.0, False)
        return
    passed = next(time for time, appended_end in all_appends if appended_end > offset)
    assert now - passed - 1e-6 <= lag.seconds <= now - passed + PERIOD_S + 1e-6


def test_lag_of_bytes_from_before_the_start_is_a_minimum():
    """Their age at the start is unknown."""
    history, _, now, end = played([(1.0, 100)])
    assert history.lag(500, now + 2, end) == (3.0, True)
    assert history.lag(1_000, now + 2, end) == (2.0, False)


def test_history_of_many_appends_is_bounded_and_nearly_exact():
    """Old marks are thinned out; the lag becomes too large by a few percent."""
    history, all_appends, now, end = played([(0.25, 10)] * 20_000)
    assert len(history) <= MARKS_MAX
    for back in (1, 40, 1_000, 10_000, 19_000):
        time, appended_end = all_appends[-back]
        lag = history.lag(appended_end - 1, now, end).seconds
        assert now - time - 0.001 <= lag <= (now - time) * 1.05 + 0.3, back


def test_rate_covers_only_the_last_seconds():
    """It is 0 if nothing was appended lately."""
    history, _, now, end = played([(1.0, 10)] * 100 + [(0.1, 1_000)] * 100)
    assert history.bytes_per_s(now, end) == pytest.approx(10_000, rel=0.05)
    assert history.bytes_per_s(now + 60, end) == 0
    assert LogEndHistory(5.0, 7).bytes_per_s(5.0, 7) == 0
