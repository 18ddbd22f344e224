"""Histories and metrics as DataFrames: how long puts took, and how far slaves were behind.

::

    history   {"type": "invoke", "op": 3, "time_s": 1.25, "wait": true, …}      hastore scenario run
              {"type": "ok", "op": 3, "time_s": 1.26, "status": "PUT_OK", …}
              {"schema": "hastore.produce/1", "messages": [{"status": …, "latency_ms": 4.1}, …]}
    metrics   {"schema": "hastore.status/1", "uptime_s": 12.5, "slaves": [{"lag_bytes": 0, …}], …}
                                                        hastore status -w -o json, a line per sample
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as sf

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.report.buckets import BIN_EPSILON, BINS_PER_FACTOR
from hastore.pipeline.spark.table_file import source_uri

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

HISTORY_SCHEMA: Final = (
    "schema STRING, type STRING, op BIGINT, time_s DOUBLE, wait BOOLEAN, status STRING, "
    "messages ARRAY<STRUCT<status: STRING, latency_ms: DOUBLE>>, broken STRING"
)
METRICS_SCHEMA: Final = (
    "schema STRING, name STRING, uptime_s DOUBLE, process_id BIGINT, max_offset BIGINT, "
    "slaves ARRAY<STRUCT<address: STRING, state: STRING, lag_bytes: BIGINT>>, broken STRING"
)
_ANSWERS: Final = ("ok", "fail", "unknown")


def read_lines(spark: SparkSession, files: Sequence[str], schema: str) -> DataFrame:
    """Read JSON lines with their file's name; an invalid line is kept in ``broken``.

    Raises ConfigError if a file does not exist.
    """
    refuse_missing(files)
    reader = spark.read.schema(schema).option("columnNameOfCorruptRecord", "broken")
    paths = [file if "://" in file else source_uri(file) for file in files]
    return reader.json(paths).withColumn("file", sf.col("_metadata.file_path"))


def refuse_missing(files: Sequence[str]) -> None:
    """Raise ConfigError if a local file does not exist; other URIs are left to Spark."""
    for file in files:
        if "://" not in file and not real_env().disk.exists(file):
            raise ConfigError(f"there is no file {file}", hint="check the path")


def check_history(lines: DataFrame, files: Sequence[str]) -> None:
    """Raise ConfigError, with the line, if a file is not a history."""
    is_put = (sf.col("type") == "invoke") | sf.col("messages").isNotNull()
    _check(lines, files, is_put, "history", "hastore scenario run, or hastore produce -o json")


def check_metrics(lines: DataFrame, files: Sequence[str]) -> None:
    """Raise ConfigError, with the line, if a file is not a list of statuses."""
    is_status = sf.col("schema").startswith("hastore.status/")
    _check(lines, files, is_status, "status of a node", "hastore status -w -o json")


def _check(
    lines: DataFrame, files: Sequence[str], is_useful: Column, what: str, made_by: str
) -> None:
    useful = sf.count_if(is_useful).alias("useful")
    broken = sf.count("broken").alias("broken")
    found = {row["file"]: row for row in lines.groupBy("file").agg(useful, broken).collect()}
    for file in files:
        rows = [row for name, row in found.items() if _is_file(file, name)]
        if any(row["broken"] for row in rows):
            _refuse_broken(file, sum(row["broken"] for row in rows), what)
        if not any(row["useful"] for row in rows):
            raise ConfigError(f"{file} has no {what} in it", hint=f"name what {made_by} wrote")


def _is_file(file: str, url: str) -> bool:
    """Whether Spark's name of a file means the caller's ``file``."""
    if "://" in file:
        return url == file
    return unquote(urlsplit(url).path) == str(Path(file).absolute())


def _refuse_broken(file: str, count: int, what: str) -> None:
    """Raise ConfigError with the first line that is not a JSON object, unless cut off."""
    lines = real_env().disk.read_file(file).split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            is_object = not line.strip() or isinstance(json.loads(line), dict)
        except ValueError:
            is_object = False
        if not is_object:
            start = line[:60].decode(errors="replace")
            raise ConfigError(
                f"{file}, line {number} is not a JSON object: {start}",
                hint=f"repair or remove that line, or name another {what}",
            )
    was_cut_off = bool(lines[-1].strip())
    if count > was_cut_off:
        raise ConfigError(
            f"{file}: {count} lines are JSON, but not as in a {what}",
            hint=f"name a {what} as it was written",
        )


def answers(lines: DataFrame) -> DataFrame:
    """Return each answered put: its status, whom it waited for, and its latency."""
    puts = lines.where(sf.col("type") == "invoke").select(
        "file", "op", sf.col("time_s").alias("put_s"), "wait"
    )
    sent = sf.when(sf.col("type") == "fail", "NOT_SENT").otherwise("NO_ANSWER")
    ends = lines.where(sf.col("type").isin(*_ANSWERS)).select(
        "file", "op", sf.coalesce("status", sent).alias("status"), "time_s"
    )
    timed = puts.join(ends, ["file", "op"]).select(
        "status",
        sf.when(sf.col("wait"), "slave").otherwise("master").alias("waited_for"),
        ((sf.col("time_s") - sf.col("put_s")) * 1000).alias("latency_ms"),
    )
    produced = (
        lines.where(sf.col("messages").isNotNull())
        .select(sf.explode("messages").alias("one"))
        .where(sf.col("one.latency_ms").isNotNull())
        .select("one.status", sf.lit("as asked").alias("waited_for"), "one.latency_ms")
    )
    return timed.unionByName(produced)


def answer_times(answers: DataFrame) -> DataFrame:
    """Return percentiles of latency by status and by whom puts waited for."""
    return answers.groupBy("waited_for", "status").agg(
        sf.count("*").alias("puts"),
        sf.percentile("latency_ms", sf.lit(0.5)).alias("p50"),
        sf.percentile("latency_ms", sf.lit(0.99)).alias("p99"),
        sf.max("latency_ms").alias("most"),
    )


def answer_histogram(answers: DataFrame) -> DataFrame:
    """Count answers by logarithmic bin of microseconds, 4 bins per factor of ten."""
    micros = sf.greatest(sf.col("latency_ms") * 1000, sf.lit(1.0))
    place = sf.floor(sf.log10(micros) * BINS_PER_FACTOR + BIN_EPSILON)
    return answers.groupBy("waited_for", place.alias("bin")).agg(sf.count("*").alias("puts"))


def slave_lags(lines: DataFrame) -> DataFrame:
    """Return each sample of each slave: seconds since the master's first sample, bytes behind."""
    samples = lines.where(sf.col("schema").startswith("hastore.status/"))
    begun = samples.groupBy("file", "process_id").agg(sf.min("uptime_s").alias("begun_s"))
    return (
        samples.join(begun, ["file", "process_id"])
        .select(
            sf.concat_ws(" ", "name", sf.col("process_id").cast("string")).alias("master"),
            (sf.col("uptime_s") - sf.col("begun_s")).alias("at_s"),
            sf.explode("slaves").alias("slave"),
        )
        .select(
            "master",
            "at_s",
            sf.col("slave.address").alias("slave"),
            "slave.lag_bytes",
        )
        .where(sf.col("lag_bytes").isNotNull())
    )


def lag_summary(lags: DataFrame) -> DataFrame:
    """Return how far behind each slave was: the median, the 99th percentile and the maximum."""
    return lags.groupBy("master", "slave").agg(
        sf.count("*").alias("looks"),
        sf.count_if(sf.col("lag_bytes") > 0).alias("looks_behind"),
        sf.percentile("lag_bytes", sf.lit(0.5)).alias("p50"),
        sf.percentile("lag_bytes", sf.lit(0.99)).alias("p99"),
        sf.max("lag_bytes").alias("most"),
    )


def lag_series(lags: DataFrame, width_s: float) -> DataFrame:
    """Return the worst lag of each slave in each bucket of a plot."""
    place = sf.floor(sf.col("at_s") / width_s)
    return lags.groupBy("master", "slave", place.alias("place")).agg(
        sf.max("lag_bytes").alias("lag_bytes")
    )
