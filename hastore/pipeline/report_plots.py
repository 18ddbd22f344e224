"""The plots of a report: one function each, from its numbers to a figure of matplotlib.

All are 9.6 inches wide or, for half a row, 4.8; the page scales them.  Colours are the marks of
``report_svg``; a topic has the same colour in every plot.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from hastore.pipeline.report_buckets import BIN_BASES, bin_edges
from hastore.pipeline.report_data import BARS_MAX, SKEW_WORTH_A_NAME, with_others
from hastore.pipeline.report_numbers import (
    duration_text,
    name_text,
    short_count,
    size_scale,
    size_text,
    size_unit,
)
from hastore.pipeline.report_svg import INK, MUTED, OTHER, PAPER, SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from hastore.pipeline.report_buckets import TimeAxis
    from hastore.pipeline.report_data import Answers, Report, Rows, SlaveLags

    Array = NDArray[np.float64]

WIDTH: Final = 9.6
# Where a logarithmic axis shows what is not above 0: a bar as wide as the others of lags are.
_ZERO_BAR: Final = (0.2, 0.2 * 10**0.25)
_ZERO_PLACE: Final = 0.2 * 10**0.125
_LAG_TICKS_MS: Final = (
    0, 1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000,
    8_640_000_000, 86_400_000_000, 864_000_000_000,
)  # fmt: skip


def series_names(report: Report) -> list[str | None]:
    """Give the topics with a colour of their own, and None where there are others."""
    names: list[str | None] = [row["topic"] for row in report.topics[: len(SERIES)]]
    return [*names, None] if report.topic_count > len(names) else names


def series_colour(place: int) -> str:
    """Give the colour of the topic at a place; behind the last all are others."""
    return SERIES[place] if place < len(SERIES) else OTHER


# -- traffic ---------------------------------------------------------------------------------------


def traffic(report: Report) -> Figure:
    """Draw messages a second by topic, and bytes a second below, over time."""
    assert report.axis is not None
    axis = report.axis
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    edges = _edges(axis)
    names = series_names(report)
    layers = np.array([_per_second(report, name, "messages") for name in names])
    colours = [OTHER if name is None else SERIES[place] for place, name in enumerate(names)]
    labels = [_series_label(report, name) for name in names]
    upper.stackplot(edges, _closed(layers), step="post", colors=colours, labels=labels, linewidth=0)
    upper.set_ylabel("messages / s")
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    if len(names) > 1:
        upper.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2,
            handlelength=0.9, handleheight=0.9, columnspacing=1.4,
        )  # fmt: skip
    total = sum(_per_second(report, name, "bytes") for name in names)
    unit = size_unit(float(np.max(total)))
    scaled = _closed(np.asarray(total) / size_scale(unit))
    lower.fill_between(edges, scaled, step="post", color=MUTED, alpha=0.35, linewidth=0)
    lower.step(edges, scaled, where="post", color=MUTED, linewidth=1.0)
    lower.set_ylabel(f"{unit} / s")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(4 if axes is upper else 2))
    _time_axis(lower, axis)
    return figure


def _series_label(report: Report, name: str | None) -> str:
    return f"{report.topic_count - len(SERIES)} others" if name is None else name_text(name)


def _edges(axis: TimeAxis) -> Array:
    seconds = np.array([*axis.buckets, axis.end_s], np.float64)
    return seconds / 86_400


def _closed(layers: Array) -> Array:
    """Repeat the last value, so that the last step has its width."""
    return np.concatenate([layers, layers[..., -1:]], axis=-1)


def _per_second(report: Report, topic: str | None, column: str) -> Array:
    assert report.axis is not None
    values = np.zeros(len(report.axis.buckets))
    for row in report.series:
        if row["topic"] == topic:
            values[(row["bucket_s"] - report.axis.begin_s) // report.axis.width_s] += row[column]
    return values / report.axis.width_s


def _time_axis(axes: Axes, axis: TimeAxis) -> None:
    axes.set_xlim(axis.begin_s / 86_400, axis.end_s / 86_400)
    locator = dates.AutoDateLocator(tz=dt.UTC, minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    form = dates.ConciseDateFormatter(locator, tz=dt.UTC, show_offset=False)  # type: ignore[no-untyped-call]
    # A second alone says little where there is no date beside the axis.
    form.formats[-1] = "%H:%M:%S.%f"
    axes.xaxis.set_major_formatter(form)
    axes.set_xlabel(_axis_label(axis))


def _axis_label(axis: TimeAxis) -> str:
    begin = dt.datetime.fromtimestamp(axis.begin_s, dt.UTC)
    end = dt.datetime.fromtimestamp(axis.end_s - 1, dt.UTC)
    days = (
        f"{begin:%Y-%m-%d}" if begin.date() == end.date() else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    )
    return f"time (UTC), {days}, by {axis.width_text}"


# -- bars ------------------------------------------------------------------------------------------


def bar_rows(report: Report) -> Rows:
    """Give the topics that have a bar, the last one for all the others."""
    total = {"messages": report.messages, "bytes": report.total("bytes")}
    return with_others(report.topics, total, "topic", report.topic_count, BARS_MAX)


def topics(shown: Rows) -> Figure:
    """Draw messages and bytes of the largest topics as bars."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.27 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(shown))
    colours = [
        OTHER if row.get("is_others") else series_colour(place) for place, row in enumerate(shown)
    ]
    for axes, column, text, title in (
        (left, "messages", short_count, "messages"),
        (right, "bytes", size_text, "bytes of the log"),
    ):
        values = [row[column] for row in shown]
        axes.barh(places, values, color=colours, height=0.66)
        for place, value in zip(places, values, strict=True):
            _label(axes, value, float(place), text(value))
        axes.set_title(title)
        axes.set_xlim(0, max([*values, 1]) * 1.22)
        axes.xaxis.set_major_locator(NullLocator())
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
    left.set_yticks(places, [_short(row["topic"]) for row in shown])
    left.tick_params(axis="y", labelcolor=INK, length=0)
    right.tick_params(axis="y", length=0)
    left.invert_yaxis()
    return figure


def _last_name(store: str) -> str:
    return store.rstrip("/").rpartition("/")[2]


def _label(
    axes: Axes, x: float, y: float, text: str, *, gap_pt: float = 4, is_left: bool = False
) -> None:
    """Write beside a place; a gap of spaces would be lost in a page."""
    axes.annotate(
        text, (x, y), xytext=(-gap_pt if is_left else gap_pt, 0), textcoords="offset points",
        ha="right" if is_left else "left", va="center", color=INK, annotation_clip=False,
    )  # fmt: skip


def _short(name: str, length: int = 26) -> str:
    text = name_text(name)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def balance(report: Report) -> Figure:
    """Draw each queue as a dot: its messages against the mean of its topic, the fullest named."""
    rows = report.balance[:BARS_MAX]
    figure = Figure(figsize=(WIDTH, 0.9 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color=MUTED, linewidth=1.0)
    for place, row in enumerate(rows):
        dots = [
            queue["to_mean"]
            for queue in report.queues
            if (queue["store"], queue["topic"]) == (row["store"], row["topic"])
        ]
        axes.hlines(place, min(dots), max(dots), color=MUTED, linewidth=0.8, alpha=0.5)
        axes.scatter(
            dots,
            [place] * len(dots),
            s=30,
            color=SERIES[0],
            edgecolors=PAPER,
            linewidths=0.8,
            zorder=3,
        )
        if row["skew"] > SKEW_WORTH_A_NAME:
            _label(axes, max(dots), place, f"queue {row['fullest_queue']}", gap_pt=7)
    many_stores = len({row["store"] for row in rows}) > 1
    labels = [
        _short(f"{row['topic']} · {_last_name(row['store'])}" if many_stores else row["topic"], 34)
        for row in rows
    ]
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, max(2.0, max(row["skew"] for row in rows) * 1.12))
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("messages of a queue, against the mean of its topic (1× is balanced)")
    return figure


# -- distributions ---------------------------------------------------------------------------------


def histogram(report: Report, measure: str) -> Figure:
    """Draw what share of the messages has which size or lag, with the median and 99 in 100."""
    is_size = measure == "size"
    figure = Figure(figsize=(WIDTH / 2, 2.7), layout="constrained")
    axes = figure.subplots()
    rows = [row for row in report.bins if row["measure"] == measure]
    total = sum(row["messages"] for row in rows)
    base = BIN_BASES[measure]
    for row in rows:
        # What is not above 0 stands left of 1.
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
        _label(axes, value, top * height, f"{label} {text(found[name])}", is_left=is_right)
    axes.set_ylim(0, top * 1.2)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_ylabel("share of messages")
    axes.set_xlabel("size of a message in the log" if is_size else "stored after born")
    return figure


def _log_axis(axes: Axes, rows: Rows, base: float, text: Callable[[float], str]) -> None:
    """Ticks at whole powers that a person knows, at most eight."""
    places = [row["bin"] for row in rows if row["bin"] is not None] or [0]
    low, high = bin_edges(base, min(places))[0], bin_edges(base, max(places))[1]
    # A single bar is not to fill the plot.
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
    middles = _edges(axis)[:-1] + axis.width_s / 172_800
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
    _time_axis(axes, axis)
    axes.set_xlabel(_axis_label(axis).replace("time (UTC), ", "UTC, "))
    axes.set_ylabel("stored after born")
    return figure


def _tick_duration(value: float) -> str:
    return "0" if not value else duration_text(value).replace("\u202f", " ")


def answers(found: Answers) -> Figure:
    """Draw how long puts took to be answered, a line for whom they waited for."""
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
    """Draw how many bytes each slave was behind: the worst of each bucket."""
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
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_duration(value * 1000)))
    axes.set_ylabel(f"{unit} behind")
    axes.set_xlabel("time since the first look at the master")
    if len(found.slaves) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)
    return figure
