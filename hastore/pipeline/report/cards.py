"""The cards of a report about what is in the log: traffic, topics, queues, keys, copies, gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hastore.pipeline.report import plots
from hastore.pipeline.report.columns import count_column, name_column, size_column
from hastore.pipeline.report.data import LINES_MAX, SKEW_WORTH_A_NAME, with_others
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
    short_count,
    size_text,
    time_text,
)
from hastore.pipeline.report.svg import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.pipeline.report.data import Report, Rows

# -- traffic ---------------------------------------------------------------------------------------


def traffic_card(report: Report) -> str:
    """Show how much was stored when."""
    axis = report.axis
    assert axis is not None
    peak_s, peak = report.peak
    lead = f"Messages stored, by {axis.width_text}; the largest topics have a colour of their own."
    described = (
        f"Stacked areas of messages a second by topic, and bytes a second below, from "
        f"{time_text(report.first_ms)} to {time_text(report.last_ms)} UTC. The peak is "
        f"{short_count(peak / axis.width_s)} a second at {time_text(peak_s * 1000)}."
    )
    buckets: dict[int, dict[str, Any]] = {}
    for row in report.series:
        into = buckets.setdefault(
            row["bucket_s"],
            {"bucket_s": row["bucket_s"], "messages": 0, "bytes": 0, "lag": 0, "lag_max_ms": None},
        )
        into["messages"] += row["messages"]
        into["bytes"] += row["bytes"]
        into["lag"] += row["lag_sum_ms"] or 0
        into["lag_max_ms"] = max(
            (value for value in (into["lag_max_ms"], row["lag_max_ms"]) if value is not None),
            default=None,
        )
    columns = (
        Column("from (UTC)", lambda row: time_text(row["bucket_s"] * 1000), is_number=False),
        count_column("messages", "messages"),
        Column("messages / s", lambda row: short_count(row["messages"] / axis.width_s)),
        size_column("bytes", "bytes"),
        Column("mean born → stored", lambda row: duration_text(row["lag"] / row["messages"])),
        Column("longest", lambda row: duration_text(row["lag_max_ms"])),
    )
    rows = [buckets[key] for key in sorted(buckets)]
    return card(
        "traffic",
        "Traffic",
        lead,
        figure(draw("traffic", "Traffic over time", described, lambda: plots.traffic(report))),
        table_beside(f"By {axis.width_text}; without what is empty", columns, rows),
    )


def topics_card(report: Report) -> str:
    """Show who stored it."""
    rows = topic_lines(report)
    total = report.messages
    described = (
        "Bars of the messages and the bytes of each of the largest topics, then of all others."
    )
    columns = (
        name_column("topic", "topic"),
        count_column("messages", "messages"),
        Column("share", lambda row: share_text(row["messages"], total)),
        size_column("bytes", "bytes"),
        count_column("tags", "tags"),
        count_column("queues", "queues"),
        Column("median size", lambda row: _point(row, "size", "p50", size_text)),
        Column("99 % size", lambda row: _point(row, "size", "p99", size_text)),
        Column("median lag", lambda row: _point(row, "lag_ms", "p50", duration_text)),
        Column("99 % lag", lambda row: _point(row, "lag_ms", "p99", duration_text)),
    )
    tag_total = {"messages": total, "bytes": report.total("bytes")}
    tags = with_others(report.tags, tag_total, "topic", report.tag_count, LINES_MAX)
    tag_columns = (
        name_column("topic", "topic"),
        Column(
            "tag",
            lambda row: name_text(row.get("tag")) or ("" if row.get("is_others") else "–"),
            is_number=False,
        ),
        count_column("messages", "messages"),
        Column("share", lambda row: share_text(row["messages"], total)),
        size_column("bytes", "bytes"),
    )
    bars = plots.bar_rows(report)
    return card(
        "topics",
        "Topics and tags",
        f"{count_text(report.topic_count)} topics, "
        f"{count_text(report.tag_count)} pairs of topic and tag.",
        figure(draw("topics", "Largest topics", described, lambda: plots.topics(bars))),
        table_beside("Topics, largest first", columns, rows, is_open=True),
        table_beside("Tags, most frequent first (– is none)", tag_columns, tags),
    )


def _point(
    row: dict[str, Any], measure: str, point: str, text: Callable[[float | None], str]
) -> str:
    return text(row[measure][point]) if measure in row else ""


def topic_lines(report: Report) -> Rows:
    """Give the largest topics, and one line for all the others."""
    total = {"messages": report.messages, "bytes": report.total("bytes")}
    return with_others(report.topics, total, "topic", report.topic_count, LINES_MAX)


# -- queues, keys, duplicates, gaps ----------------------------------------------------------------


def queues_card(report: Report) -> str:
    """Show whether queues share alike."""
    worst = report.balance[0]
    for row in report.balance:
        if row["skew"] > worst["skew"]:
            worst = row
    lead = (
        "All queues share alike."
        if worst["skew"] < SKEW_WORTH_A_NAME
        else (
            f"Of the topics shown, {name_text(worst['topic'])} is the least even: its queue "
            f"{worst['fullest_queue']} has {worst['skew']:.1f} times the mean."
        )
    )
    columns = (
        name_column("topic", "topic"),
        name_column("store", "store"),
        count_column("queues", "queues"),
        count_column("least", "emptiest"),
        count_column("most", "fullest"),
        count_column("fullest_queue", "fullest queue"),
        Column("against the mean", lambda row: f"{row['skew']:.2f}×"),
    )
    described = f"A row a topic, a dot a queue: its messages against the mean of the topic. {lead}"
    return card(
        "queues",
        "Queues",
        lead,
        figure(draw("balance", "Balance of the queues", described, lambda: plots.balance(report))),
        table_beside(
            "Topics of a store, largest first; queues without a message are not seen",
            columns,
            report.balance,
        ),
    )


def keys_card(report: Report) -> str:
    """Show the keys that come most often; nothing where there are no keys."""
    if not report.keys:
        return ""
    columns = (
        name_column("key", "key"),
        name_column("topic", "topic"),
        count_column("messages", "messages"),
        size_column("bytes", "bytes"),
    )
    lead = f"The most frequent of {count_text(report.key_count)} pairs of topic and key."
    return card(
        "keys", "Hot keys", lead, table("Most frequent first", columns, report.keys[:LINES_MAX])
    )


def duplicates_card(report: Report) -> str:
    """Show what was stored more than once."""
    text = (
        "A UNIQ_KEY names a message: more than once in a topic means that it was sent again and "
        "stored again. Clients that make a new one for each try, as RocketMQ's C++ client does, "
        "leave duplicates that nobody can see here."
    )
    if not report.duplicates:
        return card("duplicates", "Duplicates", "No UNIQ_KEY comes twice in a topic.", note(text))
    columns = (
        name_column("uniq_key", "UNIQ_KEY"),
        name_column("topic", "topic"),
        count_column("copies", "copies"),
        count_column("first_offset", "first offset"),
        count_column("last_offset", "last offset"),
        Column("apart", lambda row: duration_text(row["last_ms"] - row["first_ms"])),
    )
    extra = report.duplicate_count
    lead = f"{count_text(extra)} {'copy is' if extra == 1 else 'copies are'} one too many."
    return card(
        "duplicates",
        "Duplicates",
        lead,
        table("Most copies first", columns, report.duplicates[:LINES_MAX]),
        note(text),
    )


def _times_text(count: int) -> str:
    return "Once" if count == 1 else f"{count_text(count)} times"


def gaps_card(report: Report) -> str:
    """Show when nothing was stored."""
    rule = "20 times the mean distance of a store's messages, and 2 s"
    if not report.gaps:
        return card("gaps", "Gaps", f"Nowhere was nothing stored for longer than {rule}.")
    columns = (
        Column("from (UTC)", lambda row: time_text(row["from_ms"]), is_number=False),
        Column("to (UTC)", lambda row: time_text(row["to_ms"]), is_number=False),
        Column("silent for", lambda row: duration_text(row["gap_ms"])),
        Column("a gap from", lambda row: duration_text(row["least_ms"])),
        name_column("store", "store"),
    )
    lead = f"{_times_text(report.gap_count)} nothing was stored for longer than {rule}."
    return card("gaps", "Gaps", lead, table("Longest first", columns, report.gaps[:LINES_MAX]))
