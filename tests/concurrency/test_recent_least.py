"""The least of late, against a list of everything that was noted."""

from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.recent_least import PERIOD_S, RecentLeast


@given(st.lists(st.tuples(st.floats(0, 70), st.integers(-100, 100))), st.floats(0, 100))
def test_it_is_the_least_of_late(steps, wait_s):
    """It holds for half a minute, and for no more than one and a half."""
    least, noted, now = RecentLeast(), [], 0.0
    for pause_s, value in steps:
        now += pause_s
        least.note(value, now)
        noted.append((now, value))
    now += wait_s
    found = least.least(now)
    for_certain = [value for time, value in noted if now - time < PERIOD_S]
    at_most = [value for time, value in noted if now - time <= 3 * PERIOD_S]
    if found is None:
        assert not for_certain
    else:
        assert found in at_most
        assert not for_certain or found <= min(for_certain)


def test_nothing_noted_is_not_known():
    """Not 0."""
    assert RecentLeast().least(5.0) is None
