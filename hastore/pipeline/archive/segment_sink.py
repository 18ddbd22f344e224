"""A Spark sink for the names of segments: each task archives or restores those that it receives.

    segment, is_complete, modified_ms  ──►  format("hastore-segments")  ──►  ARCHIVE/_staging
                                                                     or  ──►  DIR/commitlog/….part

A task's Python reads, packs and writes whole segments, so no body passes through the JVM, which
would copy it twice.  The driver then moves the tasks' files to their place.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SEGMENTS_DDL: Final = "segment STRING, is_complete BOOLEAN, modified_ms BIGINT"
_FORMAT: Final = "hastore-segments"
_TASKS_PER_CORE: Final = 2


def write_segments(spark: SparkSession, rows: list[tuple[str, bool, int]], **options: str) -> None:
    """Archive or restore segments in tasks; a row is segment, is_complete and modified_ms."""
    spark.dataSource.register(SegmentSink)
    tasks = min(len(rows), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    segments = spark.createDataFrame(rows, SEGMENTS_DDL).repartition(tasks)
    segments.write.format(_FORMAT).options(**options).mode("append").save()


@final
class SegmentSink(DataSource):
    """The sink; it restores if it has the option ``restoreTo``, else it archives."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Return the writer, which Spark pickles into each task."""
        return SegmentWriter({name.lower(): value for name, value in self.options.items()})


@final
class SegmentWriter(DataSourceArrowWriter):
    """Archives or restores one task's segments."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Archive or restore segment by segment."""
        from hastore.env.real import real_env  # noqa: PLC0415 - in the task
        from hastore.pipeline.archive.folder import SegmentStaging  # noqa: PLC0415
        from hastore.pipeline.archive.restore import restore_one  # noqa: PLC0415

        disk = real_env().disk
        options = self.options
        attempt, staging = uuid.uuid4().hex, None
        for batch in iterator:
            for row in batch.to_pylist():
                if "restoreto" in options:
                    target = options["restoreto"]
                    restore_one(disk, options["archive"], row["segment"], target, attempt=attempt)
                else:
                    staging = staging or SegmentStaging(disk, options["store"], options["archive"])
                    staging.stage(**row, attempt=attempt)
        return WriterCommitMessage()
