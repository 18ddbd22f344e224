"""Latencies are counted in buckets that double, so quantiles are exact within a factor of two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.latency_histogram import BUCKETS, LatencyHistogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0, 0), (-1, 0), (9e-7, 0), (1e-6, 1), (1.9e-6, 1), (2e-6, 2), (0.001, 10), (1e9, 33)],
)
def test_latency_is_counted_in_the_bucket_of_its_microseconds(seconds, bucket):
    """Bucket i begins at 2^(i-1) µs and ends before 2^i; the first and the last one are open."""
    histogram = LatencyHistogram()
    histogram.observe(seconds)
    assert [i for i, count in enumerate(histogram.buckets) if count] == [bucket]
    assert len(histogram.buckets) == BUCKETS


@given(st.lists(st.floats(min_value=1e-6, max_value=100), min_size=1), st.floats(0.01, 1))
def test_quantile_is_within_a_factor_of_two(latencies, share):
    """It is compared with the exact quantile of a sorted list, and never exceeds the maximum."""
    histogram = LatencyHistogram()
    for each in latencies:
        histogram.observe(each)
    found = histogram.quantile_s(share)
    rank = max(-(-len(latencies) * share // 1), 1)
    exact = sorted(latencies)[min(int(rank), len(latencies)) - 1]
    assert exact / 2.01 <= found <= max(exact * 2.01, 2e-6)
    assert found <= max(latencies)


def test_empty_histogram_has_no_quantile():
    """It returns None, not 0."""
    assert LatencyHistogram().quantile_s(0.5) is None


@given(st.integers(1, 100), st.floats(0, 10), st.floats(0, 10))
def test_batch_counts_each_member_once(count, one, other):
    """The sum is estimated from the oldest and the newest latency."""
    histogram = LatencyHistogram()
    histogram.observe_batch(max(one, other), min(one, other), count)
    assert histogram.count == sum(histogram.buckets) == count
    assert min(one, other) * count * 0.999 <= histogram.sum_s <= max(one, other) * count * 1.001


@given(st.lists(st.floats(min_value=0, max_value=1e5)))
def test_dict_form_round_trips(latencies):
    """It keeps the buckets, the count, the sum and the maximum."""
    histogram = LatencyHistogram()
    for each in latencies:
        histogram.observe(each)
    back = LatencyHistogram.from_dict(histogram.to_dict())
    assert (back.buckets, back.count, back.sum_s) == (
        histogram.buckets,
        histogram.count,
        histogram.sum_s,
    )
    assert back.max_s == histogram.max_s
