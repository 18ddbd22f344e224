"""Where the names of segments are written to: each task archives or restores those it is given.

    segment, is_complete, modified_ms  ──►  format("hastore-segments")  ──►  ARCHIVE/_staging
                                                                     or  ──►  DIR/commitlog/….part

A segment is read, packed and written by the Python of one task; nothing of it goes by the JVM,
which would copy every body twice.  What tasks leave takes its place in the driver, all at once.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SEGMENTS_DDL: Final = "segment STRING, is_complete BOOLEAN, modified_ms BIGINT"
_FORMAT: Final = "hastore-segments"
_TASKS_A_CORE: Final = 2


def spread(segments: DataFrame, task_count: int) -> DataFrame:
    """Share segments out: a task gets whole ones."""
    return segments.repartition(task_count)


def write_segments(spark: SparkSession, rows: list[tuple[str, bool, int]], **options: str) -> None:
    """Have every segment archived, or restored, by the tasks of a cluster."""
    spark.dataSource.register(SegmentSink)
    tasks = min(len(rows), _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    writer = spread(spark.createDataFrame(rows, SEGMENTS_DDL), tasks).write.format(_FORMAT)
    writer.options(**options).mode("append").save()


@final
class SegmentSink(DataSource):
    """The sink; option ``restoreTo`` makes it restore."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is told."""
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Make the writer that is pickled into each task."""
        return SegmentWriter({name.lower(): value for name, value in self.options.items()})


@final
class SegmentWriter(DataSourceArrowWriter):
    """Does one task's share."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Archive or restore segment after segment."""
        from hastore.env.real import real_env  # noqa: PLC0415 - in the task
        from hastore.pipeline.archive.folder import stage  # noqa: PLC0415
        from hastore.pipeline.archive.restore import restore_one  # noqa: PLC0415

        disk = real_env().disk
        options = self.options
        attempt = uuid.uuid4().hex
        for batch in iterator:
            for row in batch.to_pylist():
                if "restoreto" in options:
                    target = options["restoreto"]
                    restore_one(disk, options["archive"], row["segment"], target, attempt=attempt)
                else:
                    stage(disk, options["store"], options["archive"], **row, attempt=attempt)
        return WriterCommitMessage()
