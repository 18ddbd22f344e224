"""``verify``: check a log, its consume queues and its index.

    records ┬ faults, odd fields, store times                              ┐
            ├ queue_breaks          queue offsets that count up            ├ findings
            ├ join_units    units   each record has its unit, and no more  │
            └ join_entries  entries each record has its keys, and no more  ┘

The records are decoded once and kept.  Units and keys of damaged records are not checked.  The
rules, and the kinds of findings, are those of ``hastore log verify``.
"""

from __future__ import annotations

import contextlib
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as sf

from hastore.columnar.index_files import find_index_files
from hastore.columnar.unit_files import find_unit_files
from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.pipeline.source.facts_source import ENTRIES, RECORDS, UNITS, read_facts
from hastore.pipeline.source.options import find_stores
from hastore.pipeline.spark.table_file import write_table
from hastore.pipeline.verify.derived_checks import (
    BEHIND,
    dangling_units,
    file_faults,
    join_entries,
    join_units,
    missing_entries,
    missing_units,
    tagged,
    wrong_entries,
    wrong_times,
    wrong_units,
)
from hastore.pipeline.verify.queue_breaks import QUEUE, queue_breaks, with_expected
from hastore.store.index.layout import IndexLayout
from hastore.store.queue.deleted_topics import load_deleted
from hastore.store.store_lock import ABORT_FILE
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import Finding, Severity
from hastore.store.tools.log_verify import check_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory
    from hastore.wire.config_tables import DeletedTopic

INFO: Final = JobInfo(
    name="verify",
    summary="Check logs, consume queues and index.",
    description="""
        Reads one or many stores: every record against its checksums, its place and its lengths,
        queue offsets that count up in each queue, store times that do not fall, topics and
        properties that make sense; then each record against its unit in the consume queue and its
        keys in the index, and both the other way round. A row is one finding: severity (damage,
        or a warning: odd, but it may have been written that way), kind (as hastore log verify has
        it), store, offset in the log, topic, queue_id, queue_offset, and the detail. Records that a
        running or killed node has not dispatched yet are counted as behind.
    """,
    examples=(
        "hastore pipeline run verify D1 D2",
        "hastore pipeline run verify '/data/*' --master spark://10.0.0.1:7077 -o json",
        "hastore pipeline run verify D1 --out found",
    ),
)
COLUMNS: Final = (
    "severity", "kind", "store", "offset", "topic", "queue_id", "queue_offset", "detail",
)  # fmt: skip
_SEVERITIES: Final = ("damage", "warning")
_FINDING_DDL: Final = (
    "store STRING, severity STRING, kind STRING, offset BIGINT, size BIGINT, topic STRING,"
    " queue_id INT, queue_offset BIGINT, detail STRING, count BIGINT"
)
_STORE_DDL: Final = (
    "store STRING, min_offset BIGINT, end_offset BIGINT, is_open BOOLEAN, has_queues BOOLEAN,"
    " has_index BOOLEAN"
)


@attrs.frozen(kw_only=True)
class _Store:
    """What the driver knows of a store: its files, not their contents."""

    name: str
    log: LogDirectory
    is_open: bool
    has_queues: bool
    has_index: bool
    findings: tuple[Finding, ...]
    deleted: Mapping[str, DeletedTopic]  # topics whose earlier records have no units


def verify(
    spark: SparkSession,
    stores: str | Sequence[str],
    *,
    log_only: bool = False,
    config: StoreConfig | None = None,
    out: str | None = None,
) -> JobResult:
    """Check stores (directories, or globs of them).

    ``config`` is that of the stores' nodes: the sizes of index files and the delay levels are not
    written in a store.  ``out`` is a directory for all findings, as Parquet.  Raises
    NotAStoreError, DiskError, ConfigError.
    """
    config = config or StoreConfig(data_dir=".")
    disk = real_env().disk
    names = find_stores([stores] if isinstance(stores, str) else stores)
    seen = [_inspect(disk, name, config, log_only=log_only) for name in names]
    if out is not None:  # raises now rather than after everything has been read
        disk.make_dirs(out)
    with_keys = any(store.has_index for store in seen)
    with contextlib.ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            """Cache a frame that several findings use; else Spark would compute it for each."""
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(frame.unpersist)
            return frame

        records = keep(read_facts(spark, RECORDS, names, config, with_keys=with_keys))
        measured = _measure(records)
        ends = {name: row["end"] for name, row in measured.items()}
        table = _store_table(spark, seen, ends)
        expected = with_expected(records)
        found = [
            _driver_findings(spark, seen, ends),
            log_findings(records),
            _queue_findings(expected, records, table),
        ]
        if any(store.has_queues for store in seen):
            units = read_facts(spark, UNITS, names, config)
            with_units = _without_deleted(spark, expected, seen)
            found += unit_findings(keep(join_units(with_units, units, table)), records)
        if with_keys:
            entries = keep(read_facts(spark, ENTRIES, names, config))
            joined = keep(join_entries(records, entries, table))
            found += index_findings(joined, records, entries)
        findings = keep(reduce(_union, found))
        return _result(findings, seen, measured.values(), out)


# -- transforms ------------------------------------------------------------------------------------


def log_findings(records: DataFrame) -> DataFrame:
    """Return the faults of single records, and of the order of their times."""
    pattern = r"(?s)^([\w-]+): (.*)$"
    faults = records.where("fault IS NOT NULL").select(
        *_place(),
        sf.lit("damage").alias("severity"),
        sf.regexp_extract("fault", pattern, 1).alias("kind"),
        sf.regexp_extract("fault", pattern, 2).alias("detail"),
    )
    odd = records.select(*_place(), sf.explode("odd").alias("text"))
    odd = tagged(odd, "text").drop("text")
    is_once = (sf.col("kind") == "topic") & (sf.col("severity") == "warning")
    once = odd.where(is_once).groupBy("store", "topic", "severity", "kind", "detail")
    topics = once.agg(sf.min("offset").alias("offset"))
    return reduce(_union, [faults, odd.where(~is_once), topics, _falling_times(records)])


def _falling_times(records: DataFrame) -> DataFrame:
    """Return the records with an earlier store time than the record before, also across ranges."""
    in_order = Window.partitionBy("store").orderBy("physic_offset")
    edges = records.where("is_edge").withColumn("earlier", sf.lag("store_ms").over(in_order))
    across = edges.where("prev_ms IS NULL").drop("prev_ms").withColumnRenamed("earlier", "prev_ms")
    within = records.where("prev_ms IS NOT NULL")
    found = _union(within, across).where("store_ms < prev_ms")
    detail = sf.format_string(
        "stored %d ms before the record before it", sf.col("prev_ms") - sf.col("store_ms")
    )
    return found.select(
        *_place(),
        sf.lit("warning").alias("severity"),
        sf.lit("store-time").alias("kind"),
        detail.alias("detail"),
    )


def _without_deleted(
    spark: SparkSession, expected: DataFrame, stores: Iterable[_Store]
) -> DataFrame:
    """Drop the records of deleted topics, as far as they begin before the deletion."""
    rows = [
        (store.name, topic, deletion.log_offset)
        for store in stores
        for topic, deletion in store.deleted.items()
    ]
    if not rows:
        return expected
    deletions = spark.createDataFrame(rows, "store STRING, topic STRING, deleted_at BIGINT")
    joined = expected.join(sf.broadcast(deletions), ["store", "topic"], "left")
    is_kept = sf.col("deleted_at").isNull() | (sf.col("physic_offset") >= sf.col("deleted_at"))
    return joined.where(is_kept).drop("deleted_at")


def _queue_findings(expected: DataFrame, records: DataFrame, stores: DataFrame) -> DataFrame:
    breaks = queue_breaks(expected, records.where("fault IS NOT NULL"), stores)
    return breaks.select(*_place(), "severity", sf.lit("queue-offset").alias("kind"), "detail")


def unit_findings(joined: DataFrame, records: DataFrame) -> list[DataFrame]:
    """Return where consume queues and log differ; ``joined`` is from ``join_units``."""
    damaged = records.where("fault IS NOT NULL")
    return [wrong_units(joined), missing_units(joined), dangling_units(joined, damaged)]


def index_findings(joined: DataFrame, records: DataFrame, entries: DataFrame) -> list[DataFrame]:
    """Return where index and log differ; ``joined`` is from ``join_entries``."""
    damaged = records.where("fault IS NOT NULL")
    return [
        wrong_entries(joined, damaged),
        wrong_times(joined),
        missing_entries(joined),
        file_faults(entries),
    ]


def _place() -> list[Any]:
    return [*QUEUE, "queue_offset", sf.col("physic_offset").alias("offset"), "size"]


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


# -- read ------------------------------------------------------------------------------------------


def _inspect(disk: Disk, name: str, config: StoreConfig, *, log_only: bool) -> _Store:
    log = find_log(disk, name)
    if log.root is None or log_only:
        return _Store(
            name=name,
            log=log,
            is_open=False,
            has_queues=False,
            has_index=False,
            findings=(),
            deleted={},
        )
    units = find_unit_files(disk, name, log.root, config.mapped_file_size_consume_queue)
    layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
    files = find_index_files(disk, name, log.root)
    odd = [file for file in files if file.size != layout.file_size]
    findings = [
        Finding(
            severity=Severity.WARNING,
            kind="index-header",
            physic_offset=0,
            next_offset=0,
            detail=f"{file.name} has {file.size} bytes, not the {layout.file_size} of"
            f" {layout.slot_count} slots and {layout.entry_count} entries: not read",
        )
        for file in odd
    ]
    return _Store(
        name=name,
        log=log,
        is_open=disk.exists(f"{log.root}/{ABORT_FILE}"),
        has_queues=units.is_there,
        has_index=len(files) > len(odd),
        findings=(*units.findings, *findings),
        deleted=load_deleted(disk, log.root),
    )


def _store_table(spark: SparkSession, stores: Iterable[_Store], ends: dict[str, int]) -> DataFrame:
    rows = [
        (
            store.name,
            store.log.min_offset,
            ends.get(store.name, 0),
            store.is_open,
            store.has_queues,
            store.has_index,
        )
        for store in stores
    ]
    return spark.createDataFrame(rows, _STORE_DDL)


def _measure(records: DataFrame) -> dict[str, Row]:
    """Return each store's end of intact records and fillers, and counts of its messages."""
    rows = (
        records.where("fault IS NULL")
        .groupBy("store")
        .agg(
            sf.max(sf.col("physic_offset") + sf.col("size")).alias("end"),
            sf.count("topic").alias("messages"),
            sf.count_if(~sf.col("has_crc")).alias("uncovered"),
        )
        .collect()
    )
    return {row["store"]: row for row in rows}


def _driver_findings(
    spark: SparkSession, stores: Iterable[_Store], ends: dict[str, int]
) -> DataFrame:
    """Return the few findings about whole files."""
    rows = [
        (
            store.name,
            finding.severity.value,
            finding.kind,
            finding.physic_offset,
            finding.next_offset - finding.physic_offset,
            finding.topic,
            finding.queue_id,
            None,
            finding.detail,
            None,
        )
        for store in stores
        for finding in (
            *store.findings,
            *check_files(store.log, ends.get(store.name, store.log.min_offset)),
        )
    ]
    return spark.createDataFrame(rows, _FINDING_DDL)


# -- write -----------------------------------------------------------------------------------------


def _result(
    findings: DataFrame, stores: Sequence[_Store], measured: Collection[Row], out: str | None
) -> JobResult:
    counts = {
        (row["severity"], row["kind"]): (row["findings"], row["records"])
        for row in findings.groupBy("severity", "kind")
        .agg(sf.count("*").alias("findings"), sf.sum("count").alias("records"))
        .collect()
    }
    real = findings.where(sf.col("severity") != BEHIND)
    shown = real.orderBy("severity", "store", "offset", "kind", "detail").limit(ROWS_MAX)
    of = {name: sum(n for (s, _), (n, _) in counts.items() if s == name) for name in _SEVERITIES}
    files: tuple[str, ...] = ()
    if out is not None:
        files = (write_table(real.select(*COLUMNS, "size"), out, "verify.parquet"),)
    return JobResult(
        name=INFO.name,
        columns=COLUMNS,
        rows=[row.asDict() for row in shown.select(*COLUMNS).collect()],
        summary={
            "verdict": "damaged" if of["damage"] else "whole",
            "stores": len(stores),
            "messages": sum(row["messages"] for row in measured),
            "messages_without_crc": sum(row["uncovered"] for row in measured),
            "stores_with_queues": sum(store.has_queues for store in stores),
            "stores_with_index": sum(store.has_index for store in stores),
            "damage": of["damage"],
            "warnings": of["warning"],
            "units_behind": counts.get((BEHIND, "unit-missing"), (0, 0))[1],
            "keys_behind": counts.get((BEHIND, "index-missing"), (0, 0))[1],
            "counts": {
                f"{severity} {kind}": n
                for (severity, kind), (n, _) in sorted(counts.items())
                if severity != BEHIND
            },
        },
        found=bool(of["damage"]),
        files=files,
    )
