"""Messages a second, over the last five seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.message_rate import PERIOD_S, WINDOW_S, MessageRate


def test_rate_is_zero_without_messages():
    """Before the first message, and once the last one is older than the window."""
    rate = MessageRate()
    assert rate.per_s(7.0) == 0
    rate.mark(10.0)
    rate.count += 100
    assert rate.per_s(10.0) == 100  # counts as one second, not as none
    assert rate.per_s(12.0) == 50
    assert rate.per_s(10.0 + WINDOW_S) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=60), st.floats(0, 10))
def test_rate_covers_the_window_within_one_period(steps, later):
    """Messages that are at most a period too old may be missing from it."""
    rate, now, came = MessageRate(), 100.0, []
    for pause, count in steps:
        now += pause
        rate.mark(now)
        rate.count += count
        came.append((now, count))
    now += later
    at_least = sum(count for time, count in came if time > now - WINDOW_S + PERIOD_S)
    at_most = sum(count for time, count in came if time > now - WINDOW_S)
    seconds = min(max(now - came[0][0], 1.0), WINDOW_S) if came else 1.0
    assert at_least / seconds <= rate.per_s(now) + 1e-9
    assert rate.per_s(now) <= at_most / seconds + 1e-9
    assert rate.count == sum(count for _, count in came)


def test_number_of_marks_is_bounded():
    """It does not depend on how often ``mark`` is called."""
    rate = MessageRate()
    for tick in range(100_000):
        rate.mark(tick / 1000)
        rate.count += 1
    assert len(rate._marks) <= WINDOW_S / PERIOD_S + 2
    assert rate.per_s(100.0) == pytest.approx(1000, rel=0.03)
