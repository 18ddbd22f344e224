"""Count the tables of a report once, and collect the report from them.

::

    read ─ stores ─┬ cells          persisted: a row per store, topic, tag, queue and minute
                   ├ distributions  persisted: a row per topic and value of three digits
                   ├ keys           persisted: a row per topic and key
                   └ duplicates     persisted: a row per UNIQ_KEY that occurs more than once

A log that grows meanwhile is read only up to its end when the stores were counted, so all figures
are of the same messages.  Nothing that grows with the log is collected.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import TYPE_CHECKING, Any, final

import attrs
from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as sf

from hastore.pipeline.job import ROWS_MAX
from hastore.pipeline.report import histories, transforms
from hastore.pipeline.report.buckets import BUCKETS_MAX, MINUTE_S, TimeAxis
from hastore.pipeline.report.data import (
    BALANCE_MAX,
    QUEUES_MAX,
    SERIES_MAX,
    Answers,
    Report,
    Rows,
    SlaveLags,
)
from hastore.pipeline.source.options import find_stores
from hastore.pipeline.spark.table import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

_EMPTY_STORE: dict[str, Any] = {
    "messages": 0,
    "bytes": 0,
    "damaged": 0,
    "without_time": 0,
    "first_ms": None,
    "last_ms": None,
    "min_offset": None,
    "end_offset": None,
}


@final
@attrs.frozen(kw_only=True)
class ReportTables:
    """The tables that a report is made from."""

    stores: Rows
    axis: TimeAxis | None  # None if there are no messages
    cells: DataFrame
    distributions: DataFrame
    keys: DataFrame
    duplicates: DataFrame
    answers: DataFrame | None = None
    slave_lags: DataFrame | None = None


@contextlib.contextmanager
def report_tables(
    spark: SparkSession,
    stores: Sequence[str],
    *,
    history: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Iterator[ReportTables]:
    """Read stores, histories and metrics for the length of the block.

    Raises ConfigError, NotAStoreError, DiskError.
    """
    with contextlib.ExitStack() as kept:

        def keep(table: DataFrame) -> DataFrame:
            held = table.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(held.unpersist)
            return held

        answers = slave_lags = None
        if history:
            lines = keep(histories.read_lines(spark, history, histories.HISTORY_SCHEMA))
            histories.check_history(lines, history)
            answers = keep(histories.answers(lines))
        if metrics:
            lines = keep(histories.read_lines(spark, metrics, histories.METRICS_SCHEMA))
            histories.check_metrics(lines, metrics)
            slave_lags = keep(histories.slave_lags(lines))
        names = find_stores(stores)
        counted = _count_stores(spark, names)
        times = [store for store in counted if store["messages"]]
        axis = None
        if times:
            axis = TimeAxis.covering(
                min(store["first_ms"] for store in times), max(store["last_ms"] for store in times)
            )
        ends = {store["store"]: store["end_offset"] for store in counted}
        base_s = MINUTE_S if axis is None else axis.base_s

        def messages(columns: Sequence[str]) -> DataFrame:
            return _read_until(spark, names, columns, ends)

        yield ReportTables(
            stores=counted,
            axis=axis,
            cells=keep(transforms.cells(messages(transforms.CELL_COLUMNS), base_s)),
            distributions=keep(transforms.distributions(messages(transforms.DISTRIBUTION_COLUMNS))),
            keys=keep(transforms.key_counts(messages(transforms.KEY_COLUMNS))),
            duplicates=keep(transforms.duplicates(messages(transforms.DUPLICATE_COLUMNS))),
            answers=answers,
            slave_lags=slave_lags,
        )


def _count_stores(spark: SparkSession, names: Sequence[str]) -> Rows:
    found = transforms.stores(read(spark, names, transforms.STORE_COLUMNS)).collect()
    by_name = {row["store"]: row.asDict() for row in found}
    return [by_name.get(name, {"store": name, **_EMPTY_STORE}) for name in names]


def _read_until(
    spark: SparkSession, names: Sequence[str], columns: Sequence[str], ends: dict[str, int | None]
) -> DataFrame:
    """Read each store up to its end when the stores were counted."""
    if len(names) == 1:
        return read(spark, names, columns, endOffset=ends[names[0]] or 0)
    needed = [*columns, *(name for name in ("store", "physic_offset") if name not in columns)]
    pairs: list[Column] = []
    for name in names:
        pairs += [sf.lit(name), sf.lit(ends[name] or 0).cast("bigint")]
    end = sf.element_at(sf.create_map(*pairs), sf.col("store"))
    return read(spark, names, needed).where(sf.col("physic_offset") < end)


# -- the report ------------------------------------------------------------------------------------


def collect_report(tables: ReportTables) -> Report:
    """Collect the report: all rows of small tables, the first rows and the count of large ones."""
    answers = None if tables.answers is None else collect_answers(tables.answers)
    slave_lags = None if tables.slave_lags is None else collect_lags(tables.slave_lags)
    if tables.axis is None:
        return Report(stores=tables.stores, axis=None, answers=answers, slave_lags=slave_lags)
    by_topic = transforms.by_topic(tables.cells)
    by_tag = transforms.by_tag(tables.cells)
    gaps = transforms.gaps(tables.cells)
    topics = _first(by_topic, sf.desc("messages"), sf.asc("topic"))
    _add_percentiles(topics, tables.distributions)
    queues = transforms.by_queue(tables.cells)
    balance = _first(
        transforms.balance(queues), sf.desc("messages"), "topic", "store", limit=BALANCE_MAX
    )
    named = [row["topic"] for row in topics[:SERIES_MAX]]
    counts = tables.cells.agg(
        sf.count_distinct("topic").alias("topics"),
        sf.count_distinct("topic", "tag").alias("tags"),
    ).first()
    copies = tables.duplicates.agg(sf.sum(sf.col("copies") - 1).alias("extra")).first()
    assert counts is not None, "a table without groups has one row"
    assert copies is not None, "likewise"
    series = transforms.by_bucket(tables.cells, tables.axis.width_s, named)
    return Report(
        stores=tables.stores,
        axis=tables.axis,
        topics=topics,
        topic_count=counts["topics"],
        tags=_first(by_tag, sf.desc("messages"), "topic", "tag"),
        tag_count=counts["tags"],
        series=_first(series, "bucket_s", limit=BUCKETS_MAX * (SERIES_MAX + 1)),
        percentiles={
            row["measure"]: row.asDict()
            for row in transforms.percentiles(tables.distributions).collect()
        },
        bins=_first(transforms.histogram(tables.distributions), "measure", "bin", limit=1000),
        balance=balance,
        queues=_queues_of(queues, balance),
        keys=_first(tables.keys, sf.desc("messages"), "topic", "key"),
        key_count=tables.keys.count(),
        duplicates=_first(tables.duplicates, sf.desc("copies"), "first_offset"),
        duplicate_count=copies["extra"] or 0,
        gaps=_first(gaps, sf.desc("gap_ms"), "from_ms"),
        gap_count=gaps.count(),
        copies=_first(transforms.same_messages(tables.cells), sf.desc("messages")),
        answers=answers,
        slave_lags=slave_lags,
    )


def _first(table: DataFrame, *order: Column | str, limit: int = ROWS_MAX) -> Rows:
    return [row.asDict() for row in table.orderBy(*order).limit(limit).collect()]


def _add_percentiles(topics: Rows, distributions: DataFrame) -> None:
    """Add to each topic's row its percentiles, under the measure's name."""
    own = {row["topic"]: row for row in topics}
    of_these = distributions.where(sf.col("topic").isin(*own))
    for row in transforms.percentiles(of_these, "topic").collect():
        own[row["topic"]][row["measure"]] = row.asDict()


def _queues_of(queues: DataFrame, balance: Rows) -> Rows:
    """Return the queues of the topics that are drawn, a limited number of each."""
    drawn = [
        (sf.col("store") == row["store"]) & (sf.col("topic") == row["topic"]) for row in balance
    ]
    fullest = Window.partitionBy("store", "topic").orderBy(sf.desc("messages"), "queue_id")
    shown = (
        queues.where(functools.reduce(operator.or_, drawn))
        .withColumn("place", sf.row_number().over(fullest))
        .where(sf.col("place") <= QUEUES_MAX)
    )
    return _first(shown, "store", "topic", "place", limit=BALANCE_MAX * QUEUES_MAX)


def collect_answers(table: DataFrame) -> Answers:
    """Return how long puts took."""
    times = _first(histories.answer_times(table), "waited_for", sf.desc("puts"), "status")
    bins = _first(histories.answer_histogram(table), "waited_for", "bin", limit=1000)
    return Answers(times=times, bins=bins)


def collect_lags(table: DataFrame) -> SlaveLags:
    """Return how far slaves were behind."""
    slaves = _first(histories.lag_summary(table), "master", "slave", limit=SERIES_MAX)
    span = table.agg(sf.max("at_s").alias("end_s")).first()
    end_s = 0.0 if span is None else float(span["end_s"] or 0.0)
    # Samples are at least a second apart.
    width_s = max(1.0, end_s / BUCKETS_MAX)
    series = histories.lag_series(table, width_s)
    limit = SERIES_MAX * (BUCKETS_MAX + 1)
    return SlaveLags(
        slaves=slaves,
        series=_first(series, "master", "slave", "place", limit=limit),
        width_s=width_s,
    )
