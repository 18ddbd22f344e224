"""The buckets of a report: of time, and of sizes and lags.  Pure.

::

    time    ├──────┼──────┼──────┤        one width per page, such that at most 240 buckets cover it
    value   1 … 2047 exact, above that 11 leading bits: the error is at most 0.1 %
    bins    1   1.78   3.16   5.62   10   a logarithmic axis: 4 bins per factor of 10; sizes: of 2
"""

from __future__ import annotations

from typing import Final

import attrs

BUCKETS_MAX: Final = 240
MINUTE_S: Final = 60
# Later times come from clocks that were never set, or from damage that no checksum covers.
TIME_END_S: Final = 7_258_118_400  # the year 2200
VALUE_BITS: Final = 11
BIN_BASES: Final = {"size": 2, "lag_ms": 10}
BINS_PER_FACTOR: Final = 4
BIN_EPSILON: Final = 1e-9
GAP_LEAST_MS: Final = 2000
GAP_TO_MEAN: Final = 20  # a gap is this many times the mean interval between messages

_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_WIDTHS_S: Final = (
    1, 5, 15,
    MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S,
    _HOUR_S, 6 * _HOUR_S,
    _DAY_S, 7 * _DAY_S, 30 * _DAY_S, 365 * _DAY_S,
)  # fmt: skip


@attrs.frozen(kw_only=True)
class TimeAxis:
    """The buckets that cover a log: ``[begin_s, end_s)``, each ``width_s``; seconds since 1970."""

    begin_s: int
    end_s: int
    width_s: int

    @classmethod
    def covering(cls, first_ms: int, last_ms: int) -> TimeAxis:
        """Return the axis with the finest width whose buckets still fit a plot."""
        first_s, last_s = first_ms // 1000, last_ms // 1000
        axes = [
            cls(
                begin_s=first_s // width_s * width_s,
                end_s=(last_s // width_s + 1) * width_s,
                width_s=width_s,
            )
            for width_s in _WIDTHS_S
        ]
        fitting = (axis for axis in axes if axis.end_s - axis.begin_s <= BUCKETS_MAX * axis.width_s)
        return next(fitting, axes[-1])

    @property
    def base_s(self) -> int:
        """The width counted on the cluster: a minute, or a second for buckets of less than that."""
        return 1 if self.width_s < MINUTE_S else MINUTE_S

    @property
    def buckets(self) -> list[int]:
        """The begin of each bucket."""
        return list(range(self.begin_s, self.end_s, self.width_s))

    @property
    def width_text(self) -> str:
        """The width in words: ``second``, ``15 minutes``."""
        for unit_s, name in (
            (_DAY_S, "day"),
            (_HOUR_S, "hour"),
            (MINUTE_S, "minute"),
            (1, "second"),
        ):
            if self.width_s % unit_s == 0:
                count = self.width_s // unit_s
                return name if count == 1 else f"{count} {name}s"
        raise AssertionError(self.width_s)


def bin_edges(base: float, index: int) -> tuple[float, float]:
    """Return ``[low, high)`` of a bin of a logarithmic axis."""
    return base ** (index / BINS_PER_FACTOR), base ** ((index + 1) / BINS_PER_FACTOR)
