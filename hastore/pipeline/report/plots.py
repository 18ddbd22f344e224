"""The plots of a log's traffic, topics and queues: each a function from numbers to a figure.

All are 9.6 inches wide or, for half a row, 4.8; the page scales them.  Colours are the marks of
``svg``; a topic has the same colour in every plot.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    MaxNLocator,
    NullLocator,
)

from hastore.pipeline.report.data import BARS_MAX, SKEW_WORTH_A_NAME, with_others
from hastore.pipeline.report.numbers import (
    name_text,
    short_count,
    size_scale,
    size_text,
    size_unit,
)
from hastore.pipeline.report.svg import INK, MUTED, OTHER, PAPER, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from hastore.pipeline.report.buckets import TimeAxis
    from hastore.pipeline.report.data import Report

    Array = NDArray[np.float64]

WIDTH: Final = 9.6


def series_names(report: Report) -> list[str | None]:
    """Return the topics with their own colour, and None for all others if there are any."""
    names: list[str | None] = [row["topic"] for row in report.topics[: len(SERIES)]]
    return [*names, None] if report.topic_count > len(names) else names


def series_colour(place: int) -> str:
    """Return the colour of the topic at a place in the order of size."""
    return SERIES[place] if place < len(SERIES) else OTHER


# -- traffic ---------------------------------------------------------------------------------------


def traffic(report: Report) -> Figure:
    """Draw messages per second by topic, and bytes per second below, over time."""
    assert report.axis is not None
    axis = report.axis
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    edges = edges_of(axis)
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
    draw_time_axis(lower, axis)
    return figure


def _series_label(report: Report, name: str | None) -> str:
    return f"{report.topic_count - len(SERIES)} others" if name is None else name_text(name)


def _closed(layers: Array) -> Array:
    """Repeat the last value, so that the last step has a width."""
    return np.concatenate([layers, layers[..., -1:]], axis=-1)


def _per_second(report: Report, topic: str | None, column: str) -> Array:
    assert report.axis is not None
    values = np.zeros(len(report.axis.buckets))
    for row in report.series:
        if row["topic"] == topic:
            values[(row["bucket_s"] - report.axis.begin_s) // report.axis.width_s] += row[column]
    return values / report.axis.width_s


# -- bars ------------------------------------------------------------------------------------------


def topics(report: Report) -> Figure:
    """Draw messages and bytes of the largest topics as bars, the last one for all others."""
    total = {"messages": report.messages, "bytes": report.total("bytes")}
    shown = with_others(report.topics, total, "topic", report.topic_count, BARS_MAX)
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
            draw_label(axes, value, float(place), text(value))
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
            draw_label(axes, max(dots), place, f"queue {row['fullest_queue']}", gap_pt=7)
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


# -- axes and labels -------------------------------------------------------------------------------


def edges_of(axis: TimeAxis) -> Array:
    """Return the begins of the buckets and the end of the last, in matplotlib's days."""
    seconds = np.array([*axis.buckets, axis.end_s], np.float64)
    return seconds / 86_400


def draw_time_axis(axes: Axes, axis: TimeAxis) -> None:
    """Show the times of the buckets."""
    axes.set_xlim(axis.begin_s / 86_400, axis.end_s / 86_400)
    locator = dates.AutoDateLocator(tz=dt.UTC, minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    form = dates.ConciseDateFormatter(locator, tz=dt.UTC, show_offset=False)  # type: ignore[no-untyped-call]
    # Seconds alone say little without a date beside the axis.
    form.formats[-1] = "%H:%M:%S.%f"
    axes.xaxis.set_major_formatter(form)
    axes.set_xlabel(time_axis_label(axis))


def time_axis_label(axis: TimeAxis) -> str:
    """Return the axis's label: its days, and the width of a bucket."""
    begin = dt.datetime.fromtimestamp(axis.begin_s, dt.UTC)
    end = dt.datetime.fromtimestamp(axis.end_s - 1, dt.UTC)
    days = (
        f"{begin:%Y-%m-%d}" if begin.date() == end.date() else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    )
    return f"time (UTC), {days}, by {axis.width_text}"


def draw_label(
    axes: Axes, x: float, y: float, text: str, *, gap_pt: float = 4, is_left: bool = False
) -> None:
    """Write text beside a point, at a distance in points: HTML would drop leading spaces."""
    axes.annotate(
        text, (x, y), xytext=(-gap_pt if is_left else gap_pt, 0), textcoords="offset points",
        ha="right" if is_left else "left", va="center", color=INK, annotation_clip=False,
    )  # fmt: skip
