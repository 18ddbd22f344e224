"""Read stores as a table, with one task per core, or two per core for large stores.

Each task costs some 50 ms, whatever it reads, so small files share one.  Two tasks per core balance
cores of different speed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from hastore.columnar.log_range import find_ranges, group_ranges
from hastore.columnar.range_decoder import RangeDecoder
from hastore.env.real import real_env
from hastore.pipeline.source.options import FAILFAST, NUMBER_MAX, ReadOptions
from hastore.pipeline.source.plain_errors import plain_errors
from hastore.pipeline.source.table_schema import columns_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from hastore.columnar.log_range import LogRange

_TASKS_PER_CORE_MAX: Final = 2
_TASK_SIZE: Final = 512 * 1024 * 1024  # at least, before a core gets a second task


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = list(ranges)


class LogReader(DataSourceReader):
    """Reads ``columns`` from the stores that the options name."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = list(columns)

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Divide the ranges among tasks.  Raises NotAStoreError, DiskError."""
        options = self.options
        disk = real_env().disk
        ranges = [
            log_range
            for store in options.stores
            for log_range in find_ranges(disk, store, options.bounds)
        ]
        tasks = options.tasks or task_count(
            sum(log_range.size for log_range in ranges), options.cores or os.cpu_count() or 1
        )
        return [RangesPartition(group) for group in group_ranges(disk, ranges, tasks)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges; a log without files has one task without ranges."""
        if not isinstance(partition, RangesPartition):
            return
        yield from read_ranges(self.options, self.columns, partition.ranges)


def task_count(size: int, cores: int) -> int:
    """Return the number of tasks in which ``size`` bytes are read."""
    return min(max(size // _TASK_SIZE, cores), _TASKS_PER_CORE_MAX * cores)


def read_ranges(
    options: ReadOptions, columns: Sequence[str], ranges: Sequence[LogRange]
) -> Iterator[pa.RecordBatch]:
    """Decode ranges one after the other."""
    decoder = RangeDecoder(
        real_env().disk,
        columns,
        options.row_filter,
        fail_fast=options.mode == FAILFAST,
        fillers=options.fillers,
        unconfirmed=options.unconfirmed,
        raw_bodies=options.raw_bodies,
    )
    with plain_errors():
        for log_range in ranges:
            yield from decoder.decode(log_range)


class PushingLogReader(LogReader):
    """A LogReader that uses the query's filters to skip segments that cannot match.

    A separate class, since Spark refuses a reader with ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is off.  Spark applies every filter as well.  An
    option turns it on, since Spark 4.3 reuses the reader, with the filters of one query, for the
    frame's next query, which may have none: use such a frame for one query only.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the options by the filters that are understood; return all filters."""
        for some in filters:
            self.options = _narrowed(self.options, some)
        return filters


def make_reader(options: ReadOptions, schema: StructType) -> LogReader:
    """Return the reader that the options ask for."""
    columns = columns_of(schema)
    if options.filter_pushdown:
        return PushingLogReader(options, columns)
    return LogReader(options, columns)


def _narrowed(options: ReadOptions, some: Filter) -> ReadOptions:
    """Return the options narrowed by one filter, if it is on one of their columns."""
    if not isinstance(
        some, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return options
    column, value = some.attribute, some.value
    is_lower = isinstance(some, EqualTo | GreaterThan | GreaterThanOrEqual)
    is_upper = isinstance(some, EqualTo | LessThan | LessThanOrEqual)
    changes: dict[str, Any] = {}
    if column == ("physic_offset",):
        if is_lower:
            changes["start_offset"] = max(value, options.start_offset or 0)
        if is_upper:
            # One more than the greatest possible offset would overflow.
            changes["end_offset"] = _least(min(value + 1, NUMBER_MAX), options.end_offset)
    elif column == ("store_timestamp",):
        if is_lower:
            changes["start_time_ms"] = max(_floor_ms(value), options.start_time_ms or 0)
        if is_upper:
            changes["end_time_ms"] = _least(_floor_ms(value) + 1, options.end_time_ms)
    # A contradicting option stays: Spark applies the filter to those rows, and keeps none.
    elif isinstance(some, EqualTo) and column == ("topic",) and options.topic is None:
        changes["topic"] = value
    elif isinstance(some, EqualTo) and column == ("queue_id",) and options.queue_id is None:
        changes["queue_id"] = value
    return attrs.evolve(options, **changes)


def _least(value: int, before: int | None) -> int:
    return value if before is None else min(value, before)


def _floor_ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000 // 1)
