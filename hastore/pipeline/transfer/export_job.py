"""``export``: write messages as JSON lines, CSV or Parquet, for people and other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hastore.errors import ConfigError
from hastore.pipeline.job import JobInfo, JobResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

INFO: Final = JobInfo(
    name="export",
    summary="Messages as JSON lines, CSV or Parquet.",
    description="""
    Reads one or many stores and writes one row per message, in the order of each log. A path that
    ends with its format is one file; any other is a directory of parts, written by all cores at
    once. body is text if body_encoding is utf-8, else base64; a compressed one is decoded (--raw:
    as stored), and body_fault says why one is not; properties has all of them (a JSON
    object; in CSV its text); times are ms since 1970; store, physic_offset and size name the
    record. Damaged records are left out and counted, and so is what looks like records behind
    damage that no consume queue names (--unconfirmed writes those, too). An export gets its name
    when it is complete; import reads it.
    """,
    examples=(
        "hastore pipeline run export D1 --to orders.jsonl --topic orders",
        "hastore pipeline run export D1 --to orders.csv --start 2026-11-21T10:00:00",
        "hastore pipeline run export '/data/*' --to all --format parquet",
        "jq -r .body orders.jsonl",
    ),
)


_SUMS: Final = ("bytes", "unconfirmed_records", "set_aside_bytes")


def check_export(
    stores: Sequence[str], to: str, file_format: str | None, limits: Mapping[str, object]
) -> str:
    """Return the format to write.  Raises ConfigError for mistakes that show without Spark."""
    from hastore.pipeline.source.options import ReadOptions, find_stores  # noqa: PLC0415
    from hastore.pipeline.transfer.export_files import FORMATS, format_of, refuse_existing  # noqa: PLC0415

    chosen = format_of(to, file_format)
    if chosen not in FORMATS:
        raise ConfigError(f"there is no format {chosen!r}", hint=f"one of {', '.join(FORMATS)}")
    refuse_existing(to)
    given = {name: str(value) for name, value in limits.items() if value is not None}
    ReadOptions.parse({"paths": json.dumps(find_stores(stores)), **given})
    return chosen


def export(
    spark: SparkSession,
    stores: str | Sequence[str],
    to: str,
    *,
    file_format: str | None = None,
    tag: str | None = None,
    unconfirmed: bool = False,
    raw_bodies: bool = False,
    **limits: object,
) -> JobResult:
    """Write the messages of stores (directories, or globs of them) to a file or a directory.

    ``limits`` are options of ``format("hastore")``: topic, queueId, startTime, endTime,
    startOffset, endOffset; None counts as absent.  ``unconfirmed``: also records behind damage that
    nothing confirms.  ``raw_bodies``: compressed bodies as stored.  Raises ConfigError,
    NotAStoreError, DiskError.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 - INFO needs no Spark
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from hastore.pipeline.source.options import PERMISSIVE, find_stores  # noqa: PLC0415
    from hastore.pipeline.spark.table import read  # noqa: PLC0415
    from hastore.pipeline.transfer.export_files import (  # noqa: PLC0415
        SOURCE_COLUMNS,
        UNCONFIRMED_COUNT,
        exported,
        write_export,
    )

    names = find_stores([stores] if isinstance(stores, str) else stores)
    chosen = check_export(names, to, file_format, limits)
    given = {name: value for name, value in limits.items() if value is not None}
    messages = read(
        spark,
        names,
        SOURCE_COLUMNS,
        mode=PERMISSIVE,
        unconfirmed=unconfirmed,
        rawBodies=raw_bodies,
        **given,
    )
    is_unconfirmed = sf.coalesce(sf.col("fault").startswith("unconfirmed: "), sf.lit(False))
    inside = sf.regexp_extract("fault", UNCONFIRMED_COUNT, 1)
    seen, written = Observation(), Observation()
    messages = messages.observe(
        seen,
        sf.count_if(~sf.col("record_ok") & ~is_unconfirmed).alias("damaged"),
        sf.sum(
            sf.when(is_unconfirmed, 1).when(inside != "", inside.cast("bigint")).otherwise(0)
        ).alias("unconfirmed_records"),
        sf.sum(
            sf.when(
                sf.col("topic").isNull() & ~sf.col("fault").startswith("missing: "), sf.col("size")
            )
            .otherwise(0)
            .cast("bigint")
        ).alias("set_aside_bytes"),
    )
    if tag is not None:
        messages = messages.where(sf.col("tags") == tag)
    wanted = messages.where(sf.col("record_ok") | is_unconfirmed)
    rows = exported(wanted, raw_bodies=raw_bodies).observe(
        written,
        sf.count("*").alias("messages"),
        sf.count_if(sf.col("body_encoding") == "base64").alias("bodies_as_base64"),
        sf.count("body_fault").alias("bodies_not_decoded"),
        sf.sum(sf.col("size").cast("bigint")).alias("bytes"),
    )
    path = write_export(rows, to, chosen)
    counts: dict[str, Any] = {**written.get, **seen.get}
    return JobResult(
        name=INFO.name,
        columns=(),
        rows=[],
        summary={
            "format": chosen,
            **counts,
            **{name: counts[name] or 0 for name in _SUMS},
            "unconfirmed_written": unconfirmed,
        },
        files=(path,),
    )
