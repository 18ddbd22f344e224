"""``format("hastore_rebuild")``: the rows of ``rebuild.records`` from one store.

Every Python worker of Spark imports this module, so it imports little.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from hastore.pipeline.source.facts_source import WorkPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT: Final = "hastore_rebuild"
_DDL: Final = (
    "kind STRING, physic_offset BIGINT, last_offset BIGINT, end_offset BIGINT, topic BINARY,"
    " queue_id INT, queue_offset BIGINT, count INT, data BINARY"
)
TASKS_PER_CORE: Final = 2


@final
@attrs.frozen(kw_only=True)
class RebuildOptions:
    """What to read."""

    store: str
    tasks: int
    message_delay_level: str  # not written in a store
    with_units: bool
    with_keys: bool


def read_records(
    spark: SparkSession,
    store: str,
    *,
    message_delay_level: str,
    with_units: bool,
    with_keys: bool,
) -> DataFrame:
    """Return a store's packed units and keys, as asked for."""
    spark.dataSource.register(RebuildDataSource)
    options = RebuildOptions(
        store=store,
        tasks=TASKS_PER_CORE * spark.sparkContext.defaultParallelism,
        message_delay_level=message_delay_level,
        with_units=with_units,
        with_keys=with_keys,
    )
    reader = spark.read.format(_FORMAT).schema(_DDL)
    return reader.option("rebuild", json.dumps(attrs.asdict(options))).load()


@final
class RebuildDataSource(DataSource):
    """The source; only ``read_records`` uses it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return _FORMAT

    def schema(self) -> str:
        """Return the DDL of the columns."""
        return _DDL

    def reader(self, schema: StructType) -> RebuildReader:  # noqa: ARG002 - Spark's signature
        """Return the reader."""
        return RebuildReader(RebuildOptions(**json.loads(self.options["rebuild"])))


@final
class RebuildReader(DataSourceReader):
    """Divides a log among tasks, and reads."""

    def __init__(self, options: RebuildOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Divide the log into the tasks' ranges.  Raises NotAStoreError, DiskError."""
        from hastore.columnar.log_range import Bounds, find_ranges, group_ranges  # noqa: PLC0415
        from hastore.env.real import real_env  # noqa: PLC0415

        disk = real_env().disk
        ranges = find_ranges(disk, self.options.store, Bounds())
        return [WorkPartition(group) for group in group_ranges(disk, ranges, self.options.tasks)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges.  Raises DiskError."""
        if not isinstance(partition, WorkPartition):
            return
        from hastore.env.real import real_env  # noqa: PLC0415 - see above
        from hastore.pipeline.rebuild.records import RebuildRecords  # noqa: PLC0415
        from hastore.store.record.delay_levels import DelayLevels  # noqa: PLC0415
        from hastore.store.tools.log_directory import find_log  # noqa: PLC0415

        disk, options = real_env().disk, self.options
        levels = DelayLevels.parse(options.message_delay_level)
        log = find_log(disk, options.store)
        records = RebuildRecords(disk, log, levels, options.with_units, options.with_keys)
        for log_range in partition.work:
            yield from records.read(log_range)
