"""The numbers that a report shows: few enough for one page, whatever the size of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs

if TYPE_CHECKING:
    from hastore.pipeline.report.buckets import TimeAxis

Rows = list[dict[str, Any]]

LINES_MAX: Final = 20  # of a table on the page; Parquet has all
SERIES_MAX: Final = 7  # topics with their own colour; the others share one
BARS_MAX: Final = 12
SKEW_WORTH_A_NAME: Final = 1.2  # the fullest queue's messages to the mean, above which it is named
BALANCE_MAX: Final = 12  # topics in the plot of queues
QUEUES_MAX: Final = 64  # of each of these topics


@final
@attrs.frozen(kw_only=True)
class Answers:
    """How long puts took, from histories."""

    times: Rows  # waited_for, status, puts, p50, p99, most (ms)
    bins: Rows  # waited_for, bin, puts

    @property
    def puts(self) -> int:
        """The number of puts with an answer."""
        return sum(row["puts"] for row in self.times)


@final
@attrs.frozen(kw_only=True)
class SlaveLags:
    """How far slaves were behind, from samples of their master's status."""

    slaves: Rows  # master, slave, looks, looks_behind, p50, p99, most (bytes)
    series: Rows  # master, slave, place, lag_bytes
    width_s: float


@final
@attrs.frozen(kw_only=True)
class Report:
    """One report.  Lists have the first rows only; counts are of all."""

    stores: Rows
    axis: TimeAxis | None  # None if there are no messages
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
        """The number of intact messages."""
        return self.total("messages")

    @property
    def first_ms(self) -> int:
        """When the first message was stored, since 1970."""
        return min(int(store["first_ms"]) for store in self.stores if store["messages"])

    @property
    def last_ms(self) -> int:
        """When the last message was stored, since 1970."""
        return max(int(store["last_ms"]) for store in self.stores if store["messages"])

    @property
    def messages_per_s(self) -> float:
        """The mean rate; a log of less than a second counts as one second."""
        return self.messages / max((self.last_ms - self.first_ms) / 1000, 1.0)

    @property
    def peak(self) -> tuple[int, int]:
        """The busiest bucket: its begin in seconds since 1970, and its messages."""
        sums: dict[int, int] = {}
        for row in self.series:
            sums[row["bucket_s"]] = sums.get(row["bucket_s"], 0) + row["messages"]
        return max(sums.items(), key=lambda item: (item[1], -item[0]))


def with_others(rows: Rows, total: dict[str, int], name: str, count: int, limit: int) -> Rows:
    """Return the first ``limit`` of ``count`` rows, and one that sums up any others."""
    shown = rows[:limit]
    if count <= len(shown):
        return shown
    left = {column: value - sum(row[column] for row in shown) for column, value in total.items()}
    return [*shown, {name: f"{count - len(shown)} others", **left, "is_others": True}]
