"""The page of a report: headline figures, then a card per question (``report.html.jinja``).

The same report yields the same bytes.  A question that the log cannot answer (no keys, no history
given) has no card, or a sentence instead of a plot.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hastore.html.templates import templates
from hastore.pipeline.report import lag_plots, plots
from hastore.pipeline.report.data import LINES_MAX, SKEW_WORTH_A_NAME, with_others
from hastore.pipeline.report.numbers import (
    count_text,
    duration_text,
    name_text,
    share_text,
    short_count,
    size_text,
    time_text,
)
from hastore.pipeline.report.svg import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from hastore.pipeline.report.data import Report, Rows

_TEMPLATES: Final = templates("hastore.pipeline.report")
_TEMPLATES.filters |= {
    "count": count_text,
    "duration": duration_text,
    "name": name_text,
    "share": share_text,
    "short": short_count,
    "size": size_text,
    "time": time_text,
}


def render_page(report: Report) -> str:
    """Return the page as text."""
    values: dict[str, Any] = {
        "report": report,
        "drawn": _draw_extras(report),
        "damaged": report.total("damaged"),
        "lines_max": LINES_MAX,
    }
    if report.messages:
        total = {"messages": report.messages, "bytes": report.total("bytes")}
        peak_s, peak = report.peak
        values |= {
            "peak_s": peak_s,
            "peak": peak,
            "traffic": _traffic(report),
            "topics": with_others(report.topics, total, "topic", report.topic_count, LINES_MAX),
            "tags": with_others(report.tags, total, "topic", report.tag_count, LINES_MAX),
            "balance_text": _balance_text(report),
            "drawn": values["drawn"] | _draw(report),
        }
    return _TEMPLATES.get_template("report.html.jinja").render(values)


def _traffic(report: Report) -> Rows:
    """Sum the series over topics: one row per bucket, in order of time."""
    buckets: dict[int, dict[str, Any]] = {}
    for row in report.series:
        empty = {"bucket_s": row["bucket_s"], "messages": 0, "bytes": 0, "lag": 0}
        into = buckets.setdefault(row["bucket_s"], {**empty, "lag_max_ms": None})
        into["messages"] += row["messages"]
        into["bytes"] += row["bytes"]
        into["lag"] += row["lag_sum_ms"] or 0
        longest = [lag for lag in (into["lag_max_ms"], row["lag_max_ms"]) if lag is not None]
        into["lag_max_ms"] = max(longest, default=None)
    return [buckets[key] for key in sorted(buckets)]


def _balance_text(report: Report) -> str:
    worst = max(report.balance, key=lambda row: row["skew"])
    if worst["skew"] < SKEW_WORTH_A_NAME:
        return "All queues have a similar number of messages."
    return (
        f"Of the topics shown, {name_text(worst['topic'])} is the least even: its queue "
        f"{worst['fullest_queue']} has {worst['skew']:.1f} times the mean."
    )


# -- plots, with descriptions for people who cannot see them ---------------------------------------


def _draw(report: Report) -> dict[str, str]:
    """Draw the plots of the log's contents."""
    assert report.axis is not None
    peak_s, peak = report.peak
    size, lag = report.percentiles["size"], report.percentiles["lag_ms"]
    traffic = (
        f"Stacked areas of messages a second by topic, and bytes a second below, from "
        f"{time_text(report.first_ms)} to {time_text(report.last_ms)} UTC. The peak is "
        f"{short_count(peak / report.axis.width_s)} a second at {time_text(peak_s * 1000)}."
    )
    topics = "Bars of the messages and the bytes of each of the largest topics, then of all others."
    sizes = (
        f"Histogram of record sizes: half are at most {size_text(size['p50'])}, "
        f"99 in 100 at most {size_text(size['p99'])}, the largest is {size_text(size['most'])}."
    )
    within = (
        f"Half of the messages are stored within {duration_text(lag['p50'])} of being born, "
        f"99 in 100 within {duration_text(lag['p99'])}, "
        f"the slowest after {duration_text(lag['most'])}."
    )
    over_time = f"Lines of the mean and the longest of each time. {within}"
    queues = (
        "A row per topic, a dot per queue: its messages against the mean of the topic. "
        f"{_balance_text(report)}"
    )
    size_plot = partial(lag_plots.histogram, measure="size")
    lag_plot = partial(lag_plots.histogram, measure="lag_ms")
    plotted: tuple[tuple[str, str, str, Callable[[Report], Figure]], ...] = (
        ("traffic", "Traffic over time", traffic, plots.traffic),
        ("topics", "Largest topics", topics, plots.topics),
        ("sizes", "Message sizes", sizes, size_plot),
        ("lag", "Born to stored", f"Histogram. {within}", lag_plot),
        ("lag-time", "Born to stored, over time", over_time, lag_plots.lag_over_time),
        ("balance", "Balance of the queues", queues, plots.balance),
    )
    return {
        name: draw(name, title, described, partial(plot, report))
        for name, title, described, plot in plotted
    }


def _draw_extras(report: Report) -> dict[str, str]:
    """Draw the plots of histories and metrics, if there are any."""
    answers, lags = report.answers, report.slave_lags
    drawn = {}
    if answers is not None and answers.puts:
        described = f"Histogram of {count_text(answers.puts)} answers, one line per kind of wait."
        drawn["answers"] = draw(
            "answers", "Put to answered", described, partial(lag_plots.answers, answers)
        )
    if lags is not None and lags.series:
        described = "A line per slave: the bytes of its master's log that it had not acknowledged."
        drawn["slaves"] = draw(
            "slaves", "Replication lag", described, partial(lag_plots.slave_lags, lags)
        )
    return drawn
