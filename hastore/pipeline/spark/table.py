"""Stores as DataFrames, with the columns that are wanted and no others."""

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
    """Read one or many stores (directories, or globs of them) as a table, one row a message.

    ``columns``: only these are decoded and sent to the JVM; Spark cannot tell a Python source which
    columns a query needs.  ``options``: those of ``format("hastore")``, such as ``startOffset`` or
    ``topic``: files that cannot match are not read; None is none.  ``filterPushdown=True``, with
    Spark's conf ``spark.sql.python.filterPushdown.enabled``, takes such limits from the query's own
    filters, but only for a frame that one query uses: Spark 4.3 keeps what one query pushed in the
    frame, and another query of it would silently get too few rows.  Raises AnalysisException for a
    directory that is no store.
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

    ``options``: ``startingOffset`` (earliest, latest, an offset, @ and a time),
    ``maxBytesPerTrigger``, ``failOnDataLoss``.
    """
    register(spark)
    paths = [stores] if isinstance(stores, str) else list(stores)
    reader = spark.readStream.format("hastore").schema(table_ddl(columns))
    return reader.options(**_texts(options)).option("paths", json.dumps(paths)).load()


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as Spark takes them; None is none."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
