"""Read stores as DataFrames, with only the requested columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hastore.pipeline.source.options import PERMISSIVE
from hastore.pipeline.source.table_schema import table_ddl
from hastore.pipeline.spark.session import register

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    stores: str | Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    mode: str = PERMISSIVE,
    **options: object,
) -> DataFrame:
    """Read one or many stores (directories, or globs of them) as a table, one row per message.

    Only ``columns`` are decoded and sent to the JVM; Spark cannot tell a Python source which
    columns a query needs.  ``options`` are those of ``format("hastore")``, such as ``startOffset``
    or ``topic``; files that cannot match are not read, and None counts as absent.
    ``filterPushdown=True``, with Spark's conf ``spark.sql.python.filterPushdown.enabled``, takes
    such limits from the query's own filters.  Use such a frame for one query only: Spark 4.3 keeps
    the pushed filters in the frame, and a second query would silently get too few rows.  Raises
    AnalysisException for a directory that is not a store.
    """
    register(spark)
    paths = [stores] if isinstance(stores, str) else list(stores)
    options.setdefault("cores", spark.sparkContext.defaultParallelism)
    reader = spark.read.format("hastore").schema(table_ddl(columns)).option("mode", mode)
    return reader.options(**_texts(options)).option("paths", json.dumps(paths)).load()


def read_stream(
    spark: SparkSession,
    stores: str | Sequence[str],
    columns: Sequence[str] | None = None,
    **options: object,
) -> DataFrame:
    """Follow one or many stores as a stream.

    ``options``: ``startingOffset`` (earliest, latest, an offset, or @ and a time),
    ``maxBytesPerTrigger``, ``failOnDataLoss``.
    """
    register(spark)
    paths = [stores] if isinstance(stores, str) else list(stores)
    reader = spark.readStream.format("hastore").schema(table_ddl(columns))
    return reader.options(**_texts(options)).option("paths", json.dumps(paths)).load()


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as text for Spark, without those that are None."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
