"""What the plots of a report share: their width, the axis of time, labels beside a place."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib import dates

from hastore.pipeline.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from hastore.pipeline.report.buckets import TimeAxis

    Array = NDArray[np.float64]

WIDTH: Final = 9.6


def edges_of(axis: TimeAxis) -> Array:
    """Return where buckets begin, and the last one ends, in days as matplotlib has them."""
    seconds = np.array([*axis.buckets, axis.end_s], np.float64)
    return seconds / 86_400


def draw_time_axis(axes: Axes, axis: TimeAxis) -> None:
    """Show the times of the buckets."""
    axes.set_xlim(axis.begin_s / 86_400, axis.end_s / 86_400)
    locator = dates.AutoDateLocator(tz=dt.UTC, minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    form = dates.ConciseDateFormatter(locator, tz=dt.UTC, show_offset=False)  # type: ignore[no-untyped-call]
    # A second alone says little where there is no date beside the axis.
    form.formats[-1] = "%H:%M:%S.%f"
    axes.xaxis.set_major_formatter(form)
    axes.set_xlabel(time_axis_label(axis))


def time_axis_label(axis: TimeAxis) -> str:
    """Say of which days they are, and how wide a bucket is."""
    begin = dt.datetime.fromtimestamp(axis.begin_s, dt.UTC)
    end = dt.datetime.fromtimestamp(axis.end_s - 1, dt.UTC)
    days = (
        f"{begin:%Y-%m-%d}" if begin.date() == end.date() else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    )
    return f"time (UTC), {days}, by {axis.width_text}"


def draw_label(
    axes: Axes, x: float, y: float, text: str, *, gap_pt: float = 4, is_left: bool = False
) -> None:
    """Write beside a place; a gap of spaces would be lost in a page."""
    axes.annotate(
        text, (x, y), xytext=(-gap_pt if is_left else gap_pt, 0), textcoords="offset points",
        ha="right" if is_left else "left", va="center", color=INK, annotation_clip=False,
    )  # fmt: skip
