"""Reads stores as a table: a task for each core, or two where they are long.

Each task costs some 50 ms, whatever it reads, so many small files go into one.  Two a core even
out what one core is slower than another.
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

_TASKS_A_CORE_MAX: Final = 2
_TASK_SIZE: Final = 512 * 1024 * 1024  # of the second task of a core


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = list(ranges)


class LogReader(DataSourceReader):
    """Reads ``columns`` of the stores that the options name."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = list(columns)

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Share the ranges out.  Raises NotAStoreError, DiskError."""
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
        """Read what one task has to; a log without files has one task with nothing."""
        if not isinstance(partition, RangesPartition):
            return
        yield from read_ranges(self.options, self.columns, partition.ranges)


def task_count(size: int, cores: int) -> int:
    """Say in how many tasks ``size`` bytes are read."""
    return min(max(size // _TASK_SIZE, cores), _TASKS_A_CORE_MAX * cores)


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
    )
    with plain_errors():
        for log_range in ranges:
            yield from decoder.decode(log_range)


class PushingLogReader(LogReader):
    """Also takes what the query filters by, so that segments that cannot match are not read.

    Spark refuses a reader with ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled``
    is off, hence the class of its own.  Every filter is left to Spark as well.  It is to be asked
    for by option, since Spark 4.3 keeps a reader with what was pushed for the frame's next query,
    which need not push anything: one frame, one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the options by what is known of them."""
        for some in filters:
            self.options = _narrowed(self.options, some)
        return filters


def make_reader(options: ReadOptions, schema: StructType) -> LogReader:
    """Make the reader that the options ask for."""
    columns = columns_of(schema)
    if options.filter_pushdown:
        return PushingLogReader(options, columns)
    return LogReader(options, columns)


def _narrowed(options: ReadOptions, some: Filter) -> ReadOptions:
    """Return the options with one filter's limit, where it is one of ours."""
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
            # The greatest offset that there can be is no limit, and one more would be none at all.
            changes["end_offset"] = _least(min(value + 1, NUMBER_MAX), options.end_offset)
    elif column == ("store_timestamp",):
        if is_lower:
            changes["start_time_ms"] = max(_floor_ms(value), options.start_time_ms or 0)
        if is_upper:
            changes["end_time_ms"] = _least(_floor_ms(value) + 1, options.end_time_ms)
    # An option that says something else stays: Spark looks at what comes, and finds nothing.
    elif isinstance(some, EqualTo) and column == ("topic",) and options.topic is None:
        changes["topic"] = value
    elif isinstance(some, EqualTo) and column == ("queue_id",) and options.queue_id is None:
        changes["queue_id"] = value
    return attrs.evolve(options, **changes)


def _least(value: int, before: int | None) -> int:
    return value if before is None else min(value, before)


def _floor_ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000 // 1)
