"""``report``: describe a log's contents in a table, in Parquet and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.pipeline.report.numbers import time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from hastore.pipeline.report.data import Report
    from hastore.pipeline.report.tables import ReportTables

INFO: Final = JobInfo(
    name="report",
    summary="What a log holds: traffic, sizes, lags, hot keys, duplicates; also as a page.",
    description="""
    Reads one or many stores. The table is by topic: messages, their share, bytes of the log, tags
    and queues, and the median and 99th percentile of size (bytes) and lag (ms from a message's
    birth at the producer until it is stored); --by chooses another table. Damaged records are left
    out and counted. --html FILE writes one page with everything, with plots, which needs no
    network; --out DIR writes the tables as Parquet, and the page. A --history (of scenario run,
    produce --history or produce -o json) adds how long puts took to be answered, and --metrics
    (status -w -o json) how far slaves were behind. All times are UTC.
    """,
    examples=(
        "hastore pipeline run report D1 --html report.html",
        "hastore pipeline run report D1 --by key      # or tag, minute, queue, duplicate, gap",
        "hastore pipeline run report '/data/*' --out report -o json | jq .summary",
        "hastore status -w -o json > looks.jsonl      # while it runs",
        "hastore pipeline run report D1 --metrics looks.jsonl --html report.html",
    ),
)
BY: Final = ("topic", "tag", "minute", "queue", "key", "duplicate", "gap")
PAGE: Final = "report.html"
_TOPIC_COLUMNS: Final = (
    "topic", "messages", "share", "bytes", "tags", "queues",
    "size_p50", "size_p99", "lag_p50_ms", "lag_p99_ms",
)  # fmt: skip


def report(
    spark: SparkSession,
    stores: str | Sequence[str],
    *,
    by: str = "topic",
    history: Sequence[str] = (),
    metrics: Sequence[str] = (),
    html: str | None = None,
    out: str | None = None,
) -> JobResult:
    """Report on stores (directories, or globs of them).

    ``html`` is a file for the page, ``out`` a directory for the tables and the page.  Raises
    ConfigError, NotAStoreError, DiskError.
    """
    from hastore.pipeline.report.tables import (  # noqa: PLC0415 - INFO needs no Spark
        collect_report,
        report_tables,
    )

    if by not in BY:
        raise ConfigError(f"a report has no table by {by!r}", hint=f"one of {', '.join(BY)}")
    names = [stores] if isinstance(stores, str) else list(stores)
    with report_tables(spark, names, history=history, metrics=metrics) as tables:
        found = collect_report(tables)
        columns, rows = _topic_rows(found) if by == "topic" else _rows_by(tables, by)
        files = () if out is None else _write_tables(tables, out)
    pages = [path for path in (html, out and f"{out.rstrip('/')}/{PAGE}") if path]
    _write_pages(found, pages)
    return JobResult(
        name=INFO.name,
        columns=columns,
        rows=rows,
        summary=summarise(found),
        files=(*files, *pages),
    )


# -- summary and rows ------------------------------------------------------------------------------


def summarise(found: Report) -> dict[str, Any]:
    """Return the headline figures; those that a report lacks are None."""
    summary: dict[str, Any] = {
        "messages": found.messages,
        "bytes": found.total("bytes"),
        "topics": found.topic_count,
        "topic_tags": found.tag_count,
        "damaged": found.total("damaged"),
        "without_time": found.total("without_time"),
        "first": None,
        "last": None,
        "messages_per_s": None,
        "busiest": None,
        "size": None,
        "lag_ms": None,
        "topic_keys": found.key_count,
        "duplicates": found.duplicate_count,
        "gaps": found.gap_count,
        "same_messages": [row["stores"] for row in found.copies],
    }
    if found.axis is not None:
        peak_s, peak = found.peak
        summary |= {
            "first": time_text(found.first_ms),
            "last": time_text(found.last_ms),
            "messages_per_s": round(found.messages_per_s, 3),
            "busiest": {
                "from": time_text(peak_s * 1000),
                "seconds": found.axis.width_s,
                "messages": peak,
            },
            "size": _points(found.percentiles["size"]),
            "lag_ms": _points(found.percentiles["lag_ms"]),
        }
    if found.answers is not None:
        summary["answers_ms"] = [
            {
                name: round(value, 3) if isinstance(value, float) else value
                for name, value in row.items()
            }
            for row in found.answers.times
        ]
    if found.slave_lags is not None:
        summary["slaves_behind_bytes"] = found.slave_lags.slaves
    return summary


def _points(found: dict[str, Any]) -> dict[str, Any]:
    points = ("least", "mean", "p50", "p90", "p99", "p99_9", "most")
    return {point: round(found[point], 1) for point in points}


def _topic_rows(found: Report) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    rows = [
        {
            **{name: row[name] for name in ("topic", "messages", "bytes", "tags", "queues")},
            "share": round(row["messages"] / found.messages, 6),
            "size_p50": round(row["size"]["p50"], 1),
            "size_p99": round(row["size"]["p99"], 1),
            "lag_p50_ms": round(row["lag_ms"]["p50"], 1),
            "lag_p99_ms": round(row["lag_ms"]["p99"], 1),
        }
        for row in found.topics
    ]
    return _TOPIC_COLUMNS, rows


def _rows_by(tables: ReportTables, by: str) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Return the largest rows of a table; the busiest minutes are in order of time."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    name, *order = {
        "tag": ("tags", "messages", "topic", "tag"),
        "minute": ("traffic", "messages", "minute", "topic", "tag"),
        "queue": ("queues", "messages", "topic", "queue_id", "store"),
        "key": ("keys", "messages", "topic", "key"),
        "duplicate": ("duplicates", "copies", "first_offset"),
        "gap": ("gaps", "gap_ms", "from_ms"),
    }[by]
    table = _table(tables, name)
    if by == "minute":
        # ``collect`` would return timestamps in this machine's time zone.
        table = table.withColumn("minute", sf.unix_millis("minute"))
    largest, *ties = order
    rows = [
        row.asDict() for row in table.orderBy(sf.desc(largest), *ties).limit(ROWS_MAX).collect()
    ]
    if by == "minute":
        rows.sort(key=lambda row: (row["minute"], row["topic"], row["tag"]))
        rows = [{**row, "minute": time_text(row["minute"], seconds=False)} for row in rows]
    return tuple(table.columns), rows


# -- files -----------------------------------------------------------------------------------------


def _table(tables: ReportTables, name: str) -> DataFrame:
    """Return a whole table."""
    from hastore.pipeline.report import transforms  # noqa: PLC0415

    makers: dict[str, Callable[[], DataFrame]] = {
        "traffic": lambda: transforms.by_minute(tables.cells),
        "topics": lambda: transforms.by_topic(tables.cells),
        "tags": lambda: transforms.by_tag(tables.cells),
        "queues": lambda: transforms.by_queue(tables.cells),
        "distributions": lambda: tables.distributions,
        "keys": lambda: tables.keys,
        "duplicates": lambda: tables.duplicates,
        "gaps": lambda: transforms.gaps(tables.cells),
    }
    return makers[name]()


TABLES: Final = (
    "traffic", "topics", "tags", "queues", "distributions", "keys", "duplicates", "gaps",
)  # fmt: skip


def _write_tables(tables: ReportTables, out: str) -> tuple[str, ...]:
    from hastore.pipeline.spark.table_file import write_table  # noqa: PLC0415

    frames = {name: _table(tables, name) for name in TABLES}
    if tables.answers is not None:
        frames["answers"] = tables.answers
    if tables.slave_lags is not None:
        frames["slave_lags"] = tables.slave_lags
    return tuple(write_table(frame, out, f"{name}.parquet") for name, frame in frames.items())


def _write_pages(found: Report, paths: Sequence[str]) -> None:
    """Write the page to each path; draw the plots only if there is one."""
    if not paths:
        return
    from hastore.pipeline.report.page import render_page  # noqa: PLC0415

    page = render_page(found).encode(errors="replace")
    disk = real_env().disk
    for path in paths:
        folder, slash, _ = path.rpartition("/")
        if slash:
            disk.make_dirs(folder or "/")
        disk.write_file(path, page)
