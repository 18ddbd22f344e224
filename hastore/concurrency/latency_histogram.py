"""Counts of latencies in 34 buckets, each twice as wide as the one before.

::

    bucket   0        1        2          3          …   33
             < 1 µs   < 2 µs   < 4 µs     < 8 µs         all longer ones (2^32 µs are 71 minutes)

``observe`` costs almost a microsecond: cheap enough for a batch, while messages are counted by
their batch (``observe_batch``).
"""

from __future__ import annotations

from typing import Final, TypedDict, final

BUCKETS: Final = 34


class HistogramRow(TypedDict):
    """The JSON form: ``buckets[i]`` counts latencies below 2^i µs, not below 2^(i-1)."""

    count: int
    sum_s: float
    max_s: float
    buckets: list[int]


@final
class LatencyHistogram:
    """Latencies since the start: their number, sum, maximum and buckets."""

    __slots__ = ("buckets", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count a latency ``count`` times; one below 0 counts as 0."""
        if seconds < 0:
            seconds = 0.0
        bucket = int(seconds * 1e6).bit_length()
        self.buckets[bucket if bucket < BUCKETS else -1] += count
        self.count += count
        self.sum_s += seconds * count
        if seconds > self.max_s:  # noqa: PLR1730 - max costs three times as much
            self.max_s = seconds

    def observe_batch(self, oldest_s: float, newest_s: float, count: int) -> None:
        """Count ``count`` latencies that ended together, of which only two are known.

        Half of them count as the longest, the others as the shortest: the sum is right if they
        began at an even pace.
        """
        self.observe(oldest_s, count - count // 2)
        if count > 1:
            self.observe(newest_s, count // 2)

    def quantile_s(self, share: float) -> float | None:
        """Return the quantile ``share`` (0 to 1), within a factor of 2; None without latencies.

        Interpolates within a bucket.
        """
        if not self.count:
            return None
        wanted = share * self.count
        below = 0
        for bucket, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low_us = 0 if bucket == 0 else 1 << (bucket - 1)
                high_us = 1 << bucket
                inside = (wanted - below) / count
                return min((low_us + (high_us - low_us) * inside) / 1e6, self.max_s)
            below += count
        return self.max_s

    def to_dict(self) -> HistogramRow:
        """Return the JSON form, without the empty buckets at the end."""
        used = max((i + 1 for i, count in enumerate(self.buckets) if count), default=0)
        return {
            "count": self.count,
            "sum_s": self.sum_s,
            "max_s": self.max_s,
            "buckets": self.buckets[:used],
        }

    @classmethod
    def from_dict(cls, data: HistogramRow) -> LatencyHistogram:
        """Return the histogram of a JSON form."""
        histogram = cls()
        histogram.count = data["count"]
        histogram.sum_s = data["sum_s"]
        histogram.max_s = data["max_s"]
        counts = data["buckets"][:BUCKETS]
        histogram.buckets[: len(counts)] = counts
        return histogram
