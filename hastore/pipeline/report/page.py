"""The page of a report: headline figures, then a card a question.

The same report gives the same bytes.  A question to which the log has no answer (no keys, no
history given) has no card, or a sentence instead of a plot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.pipeline.report.columns import count_column, name_column, size_column
from hastore.pipeline.report.html import (
    Column,
    card,
    escaped,
    page,
    table,
    tile,
    tiles,
    warning,
)
from hastore.pipeline.report.numbers import (
    count_text,
    duration_text,
    name_text,
    short_count,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from hastore.pipeline.report.data import Report

from hastore.pipeline.report.cards import (
    duplicates_card,
    gaps_card,
    keys_card,
    queues_card,
    topics_card,
    traffic_card,
)
from hastore.pipeline.report.lag_cards import extra_cards, lag_card, sizes_card


def render_page(report: Report) -> str:
    """Give the page as text."""
    names = ", ".join(name_text(store["store"]) for store in report.stores[:4])
    more = f" and {len(report.stores) - 4} more" if len(report.stores) > 4 else ""  # noqa: PLR2004
    head = f'<h1>What the log holds</h1>\n<p class="lead">{escaped(names + more)}</p>\n'
    if report.messages == 0:
        lead = "There is no whole message in it, so there is nothing to draw."
        content = card("empty", "No messages", lead, _stores_table(report))
        extra = extra_cards(report)
        return page("hastore report", head + _damage(report) + content + extra)
    content = "".join(
        (
            head,
            _tiles(report),
            _damage(report),
            _copies(report),
            traffic_card(report),
            topics_card(report),
            sizes_card(report),
            lag_card(report),
            extra_cards(report),
            queues_card(report),
            keys_card(report),
            duplicates_card(report),
            gaps_card(report),
            card("stores", "Stores", "What was read.", _stores_table(report)),
        )
    )
    return page("hastore report", content + _foot())


# -- headline --------------------------------------------------------------------------------------


def _tiles(report: Report) -> str:
    assert report.axis is not None
    peak_s, peak = report.peak
    span_ms = report.last_ms - report.first_ms
    size, lag = report.percentiles["size"], report.percentiles["lag_ms"]
    extra = report.duplicate_count
    return tiles(
        [
            tile(
                "messages",
                short_count(report.messages),
                f"in {count_text(report.topic_count)} topics",
            ),
            tile(
                "bytes",
                size_text(report.total("bytes")),
                f"{size_text(size['p50'])} the median message",
            ),
            tile(
                "from first to last",
                duration_text(span_ms),
                f"{time_text(report.first_ms, seconds=False)} UTC on",
            ),
            tile("messages a second", short_count(report.messages_per_s), "on average"),
            tile(
                f"in the busiest {report.axis.width_text}",
                f"{short_count(peak / report.axis.width_s)}\u202f/\u202fs",
                f"{time_text(peak_s * 1000)} UTC",
            ),
            tile(
                "born → stored, 99 in 100",
                duration_text(lag["p99"]),
                f"half within {duration_text(lag['p50'])}",
            ),
            tile(
                "duplicates",
                short_count(extra),
                "same UNIQ_KEY again" if extra else "no UNIQ_KEY comes twice",
                is_wrong=extra > 0,
            ),
            tile(
                "damaged places",
                short_count(report.total("damaged")),
                "not counted here" if report.total("damaged") else "all checksums hold",
                is_wrong=report.total("damaged") > 0,
            ),
        ]
    )


def _damage(report: Report) -> str:
    damaged, without = report.total("damaged"), report.total("without_time")
    if not damaged and not without:
        return ""
    parts = []
    if damaged:
        parts.append(
            f"{count_text(damaged)} places are damaged. They are left out of every figure here; "
            "hastore pipeline run verify names them."
        )
    if without:
        parts.append(f"{count_text(without)} messages have a store time that cannot be one.")
    return warning("Not all of it could be counted", " ".join(parts))


def _copies(report: Report) -> str:
    if not report.copies:
        return ""
    groups = "; ".join(
        ", ".join(name_text(name) for name in row["stores"]) for row in report.copies
    )
    return warning(
        "Copies are counted twice",
        f"These stores hold the same messages: {groups}. "
        "Give one of each for figures of what was sent.",
    )


def _stores_table(report: Report) -> str:
    columns = (
        name_column("store", "store"),
        count_column("messages", "messages"),
        size_column("bytes", "bytes"),
        count_column("damaged", "damaged"),
        Column("first (UTC)", lambda row: time_text(row["first_ms"])),
        Column("last (UTC)", lambda row: time_text(row["last_ms"])),
        count_column("min_offset", "from offset"),
        count_column("end_offset", "to offset"),
    )
    return table("Offsets are bytes of the log", columns, report.stores)


def _foot() -> str:
    return (
        "<footer>Made by hastore. All times are UTC. Percentiles are right to 0.1 %; "
        "counts are exact.</footer>\n"
    )
