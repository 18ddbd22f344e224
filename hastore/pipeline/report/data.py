"""What a report shows: numbers only, few enough for one page, whatever the size of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs

if TYPE_CHECKING:
    from hastore.pipeline.report.buckets import TimeAxis

Rows = list[dict[str, Any]]

LINES_MAX: Final = 20  # of a table on the page; Parquet has all
SERIES_MAX: Final = 7  # topics with a colour of their own; the rest is one more
BARS_MAX: Final = 12
SKEW_WORTH_A_NAME: Final = 1.2  # a fifth above the mean
BALANCE_MAX: Final = 12  # topics of which each queue is a dot
QUEUES_MAX: Final = 64  # of each of them


@final
@attrs.frozen(kw_only=True)
class Answers:
    """How long puts took, from histories."""

    times: Rows  # waited_for, status, puts, p50, p99, most (ms)
    bins: Rows  # waited_for, bin, puts

    @property
    def puts(self) -> int:
        """All of them."""
        return sum(row["puts"] for row in self.times)


@final
@attrs.frozen(kw_only=True)
class SlaveLags:
    """How far slaves were behind, from looks at the status of their master."""

    slaves: Rows  # master, slave, looks, looks_behind, p50, p99, most (bytes)
    series: Rows  # master, slave, place, lag_bytes
    width_s: float


@final
@attrs.frozen(kw_only=True)
class Report:
    """One report.  A list has the first of many; its count is of all."""

    stores: Rows
    axis: TimeAxis | None  # None where there is no message
    topics: Rows = attrs.field(factory=list)
    topic_count: int = 0
    tags: Rows = attrs.field(factory=list)
    tag_count: int = 0
    series: Rows = attrs.field(factory=list)
    percentiles: dict[str, dict[str, Any]] = attrs.field(factory=dict)  # by measure
    bins: Rows = attrs.field(factory=list)
    balance: Rows = attrs.field(factory=list)
    queues: Rows = attrs.field(factory=list)
    keys: Rows = attrs.field(factory=list)
    key_count: int = 0
    duplicates: Rows = attrs.field(factory=list)
    duplicate_count: int = 0  # copies beyond the first of each
    gaps: Rows = attrs.field(factory=list)
    gap_count: int = 0
    copies: Rows = attrs.field(factory=list)  # stores that hold the same messages
    answers: Answers | None = None
    slave_lags: SlaveLags | None = None

    def total(self, column: str) -> int:
        """Sum one column of the stores."""
        return sum(int(store[column] or 0) for store in self.stores)

    @property
    def messages(self) -> int:
        """All that are whole."""
        return self.total("messages")

    @property
    def first_ms(self) -> int:
        """When the oldest was stored."""
        return min(int(store["first_ms"]) for store in self.stores if store["messages"])

    @property
    def last_ms(self) -> int:
        """When the youngest was stored."""
        return max(int(store["last_ms"]) for store in self.stores if store["messages"])

    @property
    def messages_per_s(self) -> float:
        """The mean rate; a log of one instant is taken as one second."""
        return self.messages / max((self.last_ms - self.first_ms) / 1000, 1.0)

    @property
    def peak(self) -> tuple[int, int]:
        """The busiest bucket: its begin in seconds, and its messages."""
        sums: dict[int, int] = {}
        for row in self.series:
            sums[row["bucket_s"]] = sums.get(row["bucket_s"], 0) + row["messages"]
        return max(sums.items(), key=lambda item: (item[1], -item[0]))


def with_others(rows: Rows, total: dict[str, int], name: str, count: int, limit: int) -> Rows:
    """Return the first rows, and one for all that are left where some are; ``count`` is of all."""
    shown = rows[:limit]
    if count <= len(shown):
        return shown
    left = {column: value - sum(row[column] for row in shown) for column, value in total.items()}
    return [*shown, {name: f"{count - len(shown)} others", **left, "is_others": True}]
