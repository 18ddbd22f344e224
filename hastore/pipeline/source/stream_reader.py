"""Follow logs as a stream, whose position is the offset of a record in each store's log.

    {"/data/n1": 1073741824, "/data/n2": 996147200}

A batch is the records that begin between two such positions, so the same positions yield the same
rows, also after a restart.  Only records below the node's confirm offset are read
(``log_follower``).  Spark uses one reader in one process while a query runs, so the reader
remembers how far it has walked each log.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from hastore.columnar.log_follower import StoreFollower
from hastore.columnar.log_position import min_offset, offset_at_time, record_at
from hastore.columnar.log_range import Bounds, find_ranges, group_ranges
from hastore.env.real import real_env
from hastore.errors import ConfigError, HastoreError
from hastore.pipeline.source.batch_reader import RangesPartition, read_ranges
from hastore.pipeline.source.options import ReadOptions, time_ms
from hastore.pipeline.source.plain_errors import plain_errors
from hastore.quantities import read_digits
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from hastore.columnar.log_range import LogRange


_log = logger("pipeline")


class OffsetsExpiredError(HastoreError):
    """Records expired before a stream had read them."""

    exit_code = 4


class LogReplacedError(HastoreError):
    """The log has been replaced or cut since a stream last read it."""

    exit_code = 4


@final
class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the stores that the options name."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = list(columns)
        disk = real_env().disk
        self._logs = {store: StoreFollower(disk, store) for store in options.stores}
        # With availableNow: where the logs ended at its start.
        self._target: dict[str, int] | None = None

    @plain_errors()
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where the query begins: option ``startingOffset``.  Raises ConfigError."""
        return {store: self._starting_offset(store) for store in self.options.stores}

    def _starting_offset(self, store: str) -> int:
        disk = real_env().disk
        wanted = self.options.starting_offset
        first = min_offset(disk, store)
        if wanted == "earliest":
            return first
        if wanted == "latest":
            return max(self._log(store).end(), first)
        if wanted.startswith("@"):
            return offset_at_time(disk, store, time_ms(wanted[1:], "startingOffset"))
        offset = read_digits(wanted)
        if offset is not None:
            return record_at(disk, store, offset)
        raise ConfigError(
            f"option startingOffset: {wanted!r} is not a position in a log",
            hint="use earliest, latest, an offset, or @ and a time",
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return option ``maxBytesPerTrigger``."""
        size_max = self.options.max_bytes_per_trigger
        return ReadAllAvailable() if size_max is None else ReadMaxBytes(size_max)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record where the logs end now; the query reads no further."""
        self._target = {store: log.end() for store, log in self._logs.items()}

    @plain_errors()
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far the next batch reaches.  Raises OffsetsExpiredError, LogReplacedError."""
        size_max = None
        if isinstance(limit, ReadMaxBytes):
            size_max = max(limit.max_bytes // max(len(self.options.stores), 1), 1)
        return {store: self._end(store, start, size_max) for store in self.options.stores}

    def _end(self, store: str, start: dict[str, int], size_max: int | None) -> int:
        begin = self._begin(store, start)
        target = None if self._target is None else self._target.get(store, begin)
        if target is not None and begin >= target:
            return begin
        end = self._log(store).end_after(begin, size_max)
        return end if target is None else min(end, target)

    def _begin(self, store: str, start: dict[str, int]) -> int:
        """Return where reading continues.  Raises OffsetsExpiredError, LogReplacedError."""
        first = min_offset(real_env().disk, store)
        begin = start.get(store)
        if begin is None:  # a store that the query did not have when it was started
            return first
        if begin < first:
            self._report_expired(store, begin, first)
            return first
        return self._checked(store, begin)

    def _checked(self, store: str, offset: int) -> int:
        """Return an earlier position if it is still in the same log.

        Otherwise raise LogReplacedError, or return the log's end if ``failOnDataLoss`` is false.
        """
        log = self._log(store)
        fault = log.fault_at(offset)
        if fault is None:
            return offset
        if self.options.fail_on_data_loss:
            raise LogReplacedError(
                f"{store} is not the log that was read before: {fault}",
                hint="start a new checkpoint; failOnDataLoss=false continues at the log's end",
            )
        end = log.end()
        _log.warning("log_replaced", store=store, offset=offset, fault=fault, end=end)
        return end

    def _log(self, store: str) -> StoreFollower:
        """Return a store's follower; make one for a store that only the checkpoint names."""
        if store not in self._logs:
            self._logs[store] = StoreFollower(real_env().disk, store)
        return self._logs[store]

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return where the logs end, for the query's progress."""
        return {store: log.end() for store, log in self._logs.items()}

    @plain_errors()
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Divide the records between two positions among tasks."""
        disk = real_env().disk
        ranges: list[LogRange] = []
        for store, stop in end.items():
            begin = self._begin(store, start)
            if stop <= begin:  # recorded before a restart, and expired since
                continue
            stop = self._checked(store, stop)  # noqa: PLW2901
            for log_range in find_ranges(disk, store, Bounds(start_offset=begin, end_offset=stop)):
                # A record begins at ``begin``, so the walk can start there.
                exact = max(begin, log_range.start_offset)
                written = log_range.end_offset - exact
                ranges.append(attrs.evolve(log_range, start_offset=exact, written=written))
        tasks = self.options.tasks or self.options.cores or os.cpu_count() or 1
        return [RangesPartition(group) for group in group_ranges(disk, ranges, tasks)]

    def _report_expired(self, store: str, begin: int, first: int) -> None:
        """Raise OffsetsExpiredError for a gap, or log it if ``failOnDataLoss`` is false."""
        if self.options.fail_on_data_loss:
            raise OffsetsExpiredError(
                f"{store}: offsets {begin} to {first} expired before they were read",
                hint="failOnDataLoss=false skips them; or start a new checkpoint",
            )
        _log.warning("offsets_expired", store=store, begin=begin, end=first)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        if isinstance(partition, RangesPartition):
            yield from read_ranges(self.options, self.columns, partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading removes nothing from the log."""

    def stop(self) -> None:
        """Do nothing: no file is open."""
