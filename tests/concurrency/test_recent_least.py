"""The least recent value, checked against a list of all values."""

from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.recent_least import PERIOD_S, RecentLeast


@given(st.lists(st.tuples(st.floats(0, 70), st.integers(-100, 100))), st.floats(0, 100))
def test_least_is_among_recent_values(steps, wait_s):
    """A value counts for at least one period, and for at most three."""
    least, added, now = RecentLeast(), [], 0.0
    for pause_s, value in steps:
        now += pause_s
        least.record(value, now)
        added.append((now, value))
    now += wait_s
    found = least.least(now)
    surely_recent = [value for time, value in added if now - time < PERIOD_S]
    perhaps_recent = [value for time, value in added if now - time <= 3 * PERIOD_S]
    if found is None:
        assert not surely_recent
    else:
        assert found in perhaps_recent
        assert not surely_recent or found <= min(surely_recent)


def test_least_is_none_without_values():
    """It is not 0."""
    assert RecentLeast().least(5.0) is None
