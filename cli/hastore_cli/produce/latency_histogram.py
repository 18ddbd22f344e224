"""Latencies of any number of messages in a few hundred counters.

Buckets grow by 2 %, so a quantile is right within 1 %.
"""

from __future__ import annotations

import math
from typing import Final, final

_STEPS_PER_E: Final = 50  # e^(1/50) = 1.0202


@final
class LatencySketch:
    """Counts of latencies in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one latency; anything below a microsecond is one."""
        bucket = round(math.log(max(seconds, 1e-6)) * _STEPS_PER_E)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The latency that ``share`` (0 to 1) of all do not exceed; None without any."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return math.exp(bucket / _STEPS_PER_E)
        return None
