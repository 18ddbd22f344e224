"""The cards of a report about sizes and times: of the log, of histories, of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.pipeline.report import lag_plots as plots
from hastore.pipeline.report.columns import count_column, name_column
from hastore.pipeline.report.html import (
    Column,
    card,
    figure,
    note,
    table,
    table_beside,
)
from hastore.pipeline.report.numbers import (
    count_text,
    duration_text,
    name_text,
    share_text,
    size_text,
)
from hastore.pipeline.report.svg import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.pipeline.report.data import Answers, Report, SlaveLags

_POINTS: Final = {
    "least": "least", "p50": "half within", "mean": "mean", "p90": "90 %", "p99": "99 %",
    "p99_9": "99.9 %", "most": "most",
}  # fmt: skip


# -- sizes and lags --------------------------------------------------------------------------------


def sizes_card(report: Report) -> str:
    """Show how large messages are."""
    found = report.percentiles["size"]
    described = (
        f"Histogram of record sizes: half are at most {size_text(found['p50'])}, "
        f"99 in 100 at most {size_text(found['p99'])}, the largest is {size_text(found['most'])}."
    )
    svg = draw("sizes", "Message sizes", described, lambda: plots.histogram(report, "size"))
    return card(
        "sizes",
        "Message sizes",
        "A message with its header and properties, as it lies in the log.",
        _beside(figure(svg, is_wide=False), _points_table("Sizes", found, size_text)),
    )


def lag_card(report: Report) -> str:
    """Show how long after its birth a message was stored."""
    found = report.percentiles["lag_ms"]
    described = (
        f"Half of the messages are stored within {duration_text(found['p50'])} of being born, "
        f"99 in 100 within {duration_text(found['p99'])}, "
        f"the slowest after {duration_text(found['most'])}."
    )
    histogram = draw(
        "lag",
        "Born to stored",
        f"Histogram. {described}",
        lambda: plots.histogram(report, "lag_ms"),
    )
    over_time = draw(
        "lag-time",
        "Born to stored, over time",
        f"Lines of the mean and the longest of each time. {described}",
        lambda: plots.lag_over_time(report),
    )
    text = (
        "Born is when the producer made the message, by its clock; stored is when the master "
        "wrote it, by the master's. A delayed message, and one that a group sent back, counts from "
        "its first birth."
    )
    if found["least"] < 0:
        text += (
            f" Some were stored before they were born, by up to {duration_text(-found['least'])}: "
            "the clocks differ by at least that."
        )
    return card(
        "lag",
        "End-to-end lag",
        "From a message's birth at the producer to its place in the log.",
        _beside(figure(histogram, is_wide=False), figure(over_time, is_wide=False)),
        _points_line("Born → stored", found, duration_text),
        note(text),
    )


def _points_table(caption: str, found: dict[str, Any], text: Callable[[float | None], str]) -> str:
    rows = [{"name": title, "value": found[point]} for point, title in _POINTS.items()]
    columns = (
        Column("of all messages", lambda row: row["name"], is_number=False),
        Column("", lambda row: text(row["value"])),
    )
    return table(caption, columns, rows)


def _points_line(caption: str, found: dict[str, Any], text: Callable[[float | None], str]) -> str:
    columns = [
        Column(title, lambda row, point=point: text(row[point]))  # type: ignore[misc]
        for point, title in _POINTS.items()
    ]
    return table(caption, columns, [found])


def _beside(*parts: str) -> str:
    return f'<div class="pair">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


# -- histories and metrics -------------------------------------------------------------------------


def extra_cards(report: Report) -> str:
    """Show what histories and metrics tell, where some were given."""
    answers = "" if report.answers is None else _answers(report.answers)
    return answers + ("" if report.slave_lags is None else _slave_lags(report.slave_lags))


def _answers(found: Answers) -> str:
    puts = sum(row["puts"] for row in found.times)
    if not puts:
        return card("answers", "Put → answered", "No put in the histories says how long it took.")
    columns = (
        Column("waits for", lambda row: row["waited_for"], is_number=False),
        Column("answer", lambda row: name_text(row["status"]), is_number=False),
        count_column("puts", "puts"),
        Column("share", lambda row: share_text(row["puts"], puts)),
        *(
            Column(title, lambda row, point=point: duration_text(row[point]))  # type: ignore[misc]
            for title, point in (("half within", "p50"), ("99 %", "p99"), ("most", "most"))
        ),
    )
    lead = (
        "From a producer's call to its answer. A put that waits for a slave is answered when "
        "a slave has the message, so it shows replication too."
    )
    described = f"Histogram of {count_text(puts)} answers, a line for whom they waited for."
    drawn = draw("answers", "Put to answered", described, lambda: plots.answers(found))
    numbers = table_beside("By status", columns, found.times)
    return card("answers", "Put → answered", lead, figure(drawn), numbers)


def _slave_lags(found: SlaveLags) -> str:
    columns = (
        name_column("master", "master"),
        name_column("slave", "slave"),
        count_column("looks", "looks"),
        Column("looks behind", lambda row: share_text(row["looks_behind"], row["looks"])),
        *(
            Column(title, lambda row, point=point: size_text(row[point]))  # type: ignore[misc]
            for title, point in (("half within", "p50"), ("99 %", "p99"), ("most", "most"))
        ),
    )
    described = "A line a slave: the bytes of the master's log that it had not confirmed yet."
    drawn = (
        draw("slaves", "Replication lag", described, lambda: plots.slave_lags(found))
        if found.series
        else ""
    )
    return card(
        "replication",
        "Replication lag",
        "Bytes that a slave had not confirmed yet, at each look at its master's status.",
        figure(drawn) if drawn else note("No slave was connected at any look."),
        table_beside("By slave", columns, found.slaves) if found.slaves else "",
    )
