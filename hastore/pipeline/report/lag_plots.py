"""The plots of a report about sizes and times: distributions, lags, answers, slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
    NullLocator,
)

from hastore.pipeline.report.buckets import BIN_BASES, bin_edges
from hastore.pipeline.report.numbers import (
    duration_text,
    name_text,
    size_scale,
    size_text,
    size_unit,
)
from hastore.pipeline.report.plots import (
    WIDTH,
    draw_label,
    draw_time_axis,
    edges_of,
    series_colour,
    time_axis_label,
)
from hastore.pipeline.report.svg import INK, PAPER, SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from hastore.pipeline.report.data import Answers, Report, Rows, SlaveLags

    Array = NDArray[np.float64]

# On a logarithmic axis, values ≤ 0 are shown here: a bar as wide as the other bars of lags.
_ZERO_BAR: Final = (0.2, 0.2 * 10**0.25)
_ZERO_PLACE: Final = 0.2 * 10**0.125
# The first of these that covers an axis with at most eight steps is chosen.
_STEPS_S: Final = (
    1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 14_400, 43_200, 86_400, 864_000,
    8_640_000,
)  # fmt: skip
_LAG_TICKS_MS: Final = (
    0, 1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000,
    8_640_000_000, 86_400_000_000, 864_000_000_000,
)  # fmt: skip


def histogram(report: Report, measure: str) -> Figure:
    """Draw a histogram of sizes or lags, with the median and the 99th percentile."""
    is_size = measure == "size"
    figure = Figure(figsize=(WIDTH / 2, 2.7), layout="constrained")
    axes = figure.subplots()
    rows = [row for row in report.bins if row["measure"] == measure]
    total = sum(row["messages"] for row in rows)
    base = BIN_BASES[measure]
    for row in rows:
        # Values ≤ 0 are left of 1.
        low, high = _ZERO_BAR if row["bin"] is None else bin_edges(base, row["bin"])
        share = 100 * row["messages"] / total
        axes.bar(
            low, share, high - low, align="edge", color=SERIES[0], edgecolor=PAPER, linewidth=0.6
        )
    text = size_text if is_size else duration_text
    found = report.percentiles[measure]
    _log_axis(axes, rows, base, text)
    top = axes.get_ylim()[1]
    for name, label, height in (("p50", "median", 1.13), ("p99", "99 %", 1.04)):
        value = max(float(found[name]), _ZERO_PLACE)
        axes.axvline(value, color=INK, linewidth=1.0, linestyle=(0, (3, 2)), ymax=height / 1.2)
        is_right = value > np.sqrt(np.prod(axes.get_xlim()))
        draw_label(axes, value, top * height, f"{label} {text(found[name])}", is_left=is_right)
    axes.set_ylim(0, top * 1.2)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_ylabel("share of messages")
    axes.set_xlabel("size of a message in the log" if is_size else "stored after born")
    return figure


def _log_axis(axes: Axes, rows: Rows, base: float, text: Callable[[float], str]) -> None:
    """Set at most eight ticks, at whole powers or at familiar durations."""
    places = [row["bin"] for row in rows if row["bin"] is not None] or [0]
    low, high = bin_edges(base, min(places))[0], bin_edges(base, max(places))[1]
    # Keep a single bar from filling the plot.
    low, high = low / base**0.75, high * base**0.75
    if any(row["bin"] is None for row in rows):
        low = _ZERO_BAR[0] * 0.75
    first, last = int(np.ceil(np.log(low) / np.log(base))), int(np.log(high) / np.log(base))
    step = max(1, -(-(last - first + 1) // 7))
    ticks = [float(base) ** power for power in range(first, last + 1, step)]
    if base == BIN_BASES["lag_ms"]:
        ticks = [float(tick) for tick in _LAG_TICKS_MS if low <= tick <= high]
        ticks = ticks[:: max(1, -(-len(ticks) // 7))]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(
        FixedLocator([*([_ZERO_PLACE] if low < _ZERO_BAR[0] else []), *ticks])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: "≤ 0" if value == _ZERO_PLACE else text(value).replace("\u202f", " ")
        )
    )


def lag_over_time(report: Report) -> Figure:
    """Draw the mean and the longest lag of each bucket."""
    assert report.axis is not None
    axis = report.axis
    figure = Figure(figsize=(WIDTH / 2, 2.7), layout="constrained")
    axes = figure.subplots()
    counts, sums, most = (np.full(len(axis.buckets), value) for value in (0.0, 0.0, np.nan))
    for row in report.series:
        place = (row["bucket_s"] - axis.begin_s) // axis.width_s
        counts[place] += row["messages"]
        sums[place] += row["lag_sum_ms"]
        most[place] = np.fmax(most[place], row["lag_max_ms"])
    mean = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    middles = edges_of(axis)[:-1] + axis.width_s / 172_800
    marker = "o" if len(middles) < 40 else None  # noqa: PLR2004 - a line of one point is not seen
    for values, colour, label in ((most, SERIES[1], "longest"), (mean, SERIES[0], "mean")):
        axes.plot(middles, values, color=colour, label=label, marker=marker, markersize=3)
    axes.set_yscale("symlog", linthresh=1)
    highest = max(float(np.nanmax(most)), 1.0)
    lowest = min(float(np.nanmin(mean)), 0.0)
    axes.set_ylim(lowest * 1.5, highest * 3)
    ticks = [tick for tick in _LAG_TICKS_MS if tick <= highest * 3]
    ticks = ticks[:: max(1, -(-len(ticks) // 6))]
    lower = [-tick for tick in ticks if tick and -tick >= lowest * 1.5]
    axes.yaxis.set_major_locator(FixedLocator([*lower, *ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_duration(value)))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)
    draw_time_axis(axes, axis)
    axes.set_xlabel(time_axis_label(axis).replace("time (UTC), ", "UTC, "))
    axes.set_ylabel("stored after born")
    return figure


def _tick_duration(value: float) -> str:
    return "0" if not value else duration_text(value).replace("\u202f", " ")


def answers(found: Answers) -> Figure:
    """Draw how long puts took to be answered, one line per kind of wait."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    names = sorted({row["waited_for"] for row in found.bins})
    for place, name in enumerate(names):
        rows = {row["bin"]: row["puts"] for row in found.bins if row["waited_for"] == name}
        total = sum(rows.values())
        bins = range(min(rows), max(rows) + 1)
        edges = [bin_edges(10, index)[0] / 1000 for index in [*bins, bins[-1] + 1]]
        shares = [100 * rows.get(index, 0) / total for index in bins]
        axes.stairs(shares, edges, color=SERIES[place], label=_waited_text(name), linewidth=1.6)
        axes.stairs(shares, edges, color=SERIES[place], fill=True, alpha=0.15, linewidth=0)
    _latency_axis(axes)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_ylabel("share of puts")
    axes.set_xlabel("put → answered")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    return figure


def _waited_text(name: str) -> str:
    return {"slave": "waits for a slave", "master": "waits for the master only"}.get(name, name)


def _latency_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    axes.xaxis.set_major_locator(FixedLocator([10.0**power for power in powers]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_duration(value)))
    axes.set_xlim(low, high)


def slave_lags(found: SlaveLags) -> Figure:
    """Draw how many bytes each slave was behind, at most, in each bucket."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    unit = size_unit(max((row["lag_bytes"] for row in found.series), default=0))
    for place, slave in enumerate(found.slaves):
        name = (slave["master"], slave["slave"])
        rows = [row for row in found.series if (row["master"], row["slave"]) == name]
        axes.step(
            [row["place"] * found.width_s for row in rows],
            [row["lag_bytes"] / size_scale(unit) for row in rows],
            where="post", color=series_colour(place), label=name_text(slave["slave"]),
            marker="o" if len(rows) < 3 else None,  # noqa: PLR2004 - two points are hardly a line
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    end_s = max([row["place"] * found.width_s for row in found.series] or [0.0])
    step_s = next((step for step in _STEPS_S if end_s <= 8 * step), _STEPS_S[-1])
    axes.set_xlim(0, max(end_s * 1.02, 1.0))
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_duration(value * 1000)))
    axes.set_ylabel(f"{unit} behind")
    axes.set_xlabel("time since the first sample of the master")
    if len(found.slaves) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)
    return figure
