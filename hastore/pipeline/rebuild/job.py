"""``rebuild``: build consume queues and index from the log alone, in RocketMQ's bytes.

    records ┬ by queue, in the log's order ──► one task per queue
            └ keys counted by bucket ─► plan ─► by index file, in the log's order ──► one task each

The code that writes them is that of a node's dispatch.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import StorageLevel
from pyspark.sql import functions as sf

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, DiskError, NotAStoreError, StoreError
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.pipeline.rebuild.index import BucketKeys, bucket_size, plan_index, write_index_file
from hastore.pipeline.rebuild.records import KEYS, NO_RECORD, RECORDS, SET_ASIDE, UNITS
from hastore.pipeline.rebuild.sink import (
    INDEX,
    QUEUES,
    SinkOptions,
    keep_queues,
    take_parts,
    write_rows,
)
from hastore.pipeline.rebuild.source import TASKS_PER_CORE, read_records
from hastore.store.index.file import IndexFile
from hastore.store.index.layout import IndexLayout
from hastore.store.index.service import INDEX_DIR
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import file_size_of
from hastore.store.recovery.rebuilt_dirs import (
    REBUILD_DIR,
    refuse_immovable,
    remove_leftovers,
    restore_interrupted,
    swap,
)
from hastore.store.store_lock import StoreLock
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import SetAside
from hastore.store.tools.rebuild import record_index, refuse_loss

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from hastore.env.interface import Env
    from hastore.pipeline.rebuild.index import IndexPlan
    from hastore.store.tools.log_directory import LogDirectory

INFO: Final = JobInfo(
    name="rebuild",
    summary="Build consume queues and index again from the log.",
    description="""
        Reads a store's log and writes consumequeue/ and index/ as a node would: in the store
        itself, on which no node may run then, or with --out in another directory. New files are
        built in rebuild.tmp and replace the old ones at the end: killed at any point, the store has
        either the old files or the new ones. One task writes each queue and each index file.
        Checksums are not checked; damaged places are skipped and counted, and the exit code is then
        4. If there are unconfirmed messages behind damage, nothing changes without --accept-loss.
        A queue whose records have all expired is copied from the store. Columns: topic, queues,
        units; topics with most units first.
    """,
    examples=(
        "hastore pipeline run rebuild D1",
        "hastore pipeline run rebuild D1 --index -c /etc/hastore/hastore.toml",
        "hastore pipeline run rebuild D1 --out D2",
    ),
)


class RebuildConflictError(StoreError):
    """The rebuild would replace files in ``out``."""

    exit_code = 6


def rebuild(
    spark: SparkSession,
    store: str,
    *,
    consume_queues: bool = True,
    index: bool = True,
    config: StoreConfig | None = None,
    out: str | None = None,
    force: bool = False,
    accept_loss: bool = False,
) -> JobResult:
    """Build one or both again, in the store or in ``out``; ``force`` replaces files in ``out``.

    ``config`` has the files' sizes and the delay levels; existing consume queues keep their file
    size.  Raises StoreLockedError if a node runs on the target, ConfigError, NotAStoreError,
    RebuildConflictError, ImmovableDirectoryError, DiskError, and without ``accept_loss``
    LossRefusedError if records behind damage would be left out; nothing has changed then.
    """
    if not consume_queues and not index:
        raise ConfigError("nothing to build", hint="choose consume queues, the index, or both")
    env = real_env()
    store = str(Path(store).absolute())  # for tasks elsewhere
    log = find_log(env.disk, store)
    log.refuse_unfinished_cut()
    target = store if out is None else str(Path(out).absolute())
    if out is None and log.root != target:
        raise NotAStoreError(
            f"{store} is a log without a store around it",
            path=store,
            hint="name the store's directory, which holds commitlog/, or add --out",
        )
    built = tuple(
        name
        for name, is_built in ((CONSUME_QUEUE_DIR, consume_queues), (INDEX_DIR, index))
        if is_built
    )
    is_new = not env.disk.exists(target)
    env.disk.make_dirs(target)
    lock = StoreLock.take(env.disk, target)
    try:
        if out is not None and not force:
            _refuse_to_replace(env, target, built)
        refuse_immovable(env.disk, target, built)
        restore_interrupted(env.disk, target)
        remove_leftovers(env.disk, target)
        build = _Build(spark, env, store, log, target, config or StoreConfig(data_dir=store))
        try:
            result = build.run(built, accept_loss=accept_loss)
        except BaseException:
            with contextlib.suppress(DiskError):  # a task may still write; report the first error
                env.disk.remove_tree(f"{target}/{REBUILD_DIR}")
            raise
        now_ms = env.wall_clock.now_ms()
        for name in built:
            swap(env.disk, target, name, now_ms)
        if index:
            record_index(env.disk, target, build.index_end_ms)
        remove_leftovers(env.disk, target)
        return result
    except BaseException:
        if is_new:
            with contextlib.suppress(DiskError):
                env.disk.remove_tree(target)
        raise
    finally:
        lock.release(clean=False)


def _refuse_to_replace(env: Env, target: str, names: tuple[str, ...]) -> None:
    for name in names:
        if env.disk.list_dir(f"{target}/{name}"):
            raise RebuildConflictError(
                f"{target}/{name} is there already",
                path=f"{target}/{name}",
                hint="name another directory, or add --force to replace it",
            )


# -- transforms ------------------------------------------------------------------------------------


def queue_rows(records: DataFrame, task_count: int) -> DataFrame:
    """Return units with each queue in one partition, queue by queue, in the log's order."""
    units = records.where(sf.col("kind") == UNITS)
    columns = ("topic", "queue_id", "queue_offset", "physic_offset", "data")
    by_queue = units.select(*columns).repartition(task_count, "topic", "queue_id")
    return by_queue.sortWithinPartitions("topic", "queue_id", "physic_offset")


def keys_by_bucket(records: DataFrame, size: int) -> DataFrame:
    """Count the keys of each bucket of ``size`` bytes of the log, in order."""
    keys = sf.sum("count").alias("keys")
    return with_bucket(records, size).groupBy("bucket").agg(keys).orderBy("bucket")


def with_bucket(records: DataFrame, size: int) -> DataFrame:
    """Return the rows of keys with their bucket of the log."""
    keys = records.where(sf.col("kind") == KEYS)
    return keys.withColumn("bucket", sf.expr(f"cast(physic_offset div {size} AS INT)"))


def index_rows(records: DataFrame, shares: DataFrame, size: int, file_count: int) -> DataFrame:
    """Return keys with one partition per index file, in the log's order."""
    joined = with_bucket(records, size).join(sf.broadcast(shares), "bucket")
    rows = joined.select("file_number", "name", "bucket", "first_number", "physic_offset", "data")
    rows = rows.repartitionById(file_count, sf.col("file_number"))
    return rows.sortWithinPartitions("file_number", "physic_offset")


def measured(records: DataFrame) -> DataFrame:
    """Return one row with all counts and the last offsets."""

    def of(kind: str, column: str) -> Column:
        return sf.when(sf.col("kind") == kind, sf.col(column))

    return records.agg(
        sf.coalesce(sf.sum(of(RECORDS, "count")), sf.lit(0)).alias("messages"),
        sf.coalesce(sf.sum(of(NO_RECORD, "count")), sf.lit(0)).alias("unreadable"),
        sf.coalesce(sf.sum(of(SET_ASIDE, "count")), sf.lit(0)).alias("unconfirmed_records"),
        sf.coalesce(
            sf.sum(of(SET_ASIDE, "end_offset") - of(SET_ASIDE, "physic_offset")), sf.lit(0)
        ).alias("set_aside_bytes"),
        sf.max(of(RECORDS, "end_offset")).alias("end_offset"),
        sf.max(of(RECORDS, "last_offset")).alias("last_offset"),
        sf.max(of(KEYS, "last_offset")).alias("last_keyed"),
        sf.coalesce(sf.sum(of(UNITS, "count")), sf.lit(0)).alias("units"),
    )


def units_by_topic(records: DataFrame) -> DataFrame:
    """Count queues and units of each topic, those with most units first."""
    units = records.where(sf.col("kind") == UNITS).groupBy("topic")
    counted = units.agg(
        sf.count_distinct("queue_id").alias("queues"), sf.sum("count").alias("units")
    )
    return counted.orderBy(sf.desc("units"), "topic")


# -- build -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Build:
    """One build, below the target's rebuild.tmp."""

    spark: SparkSession
    env: Env
    store: str
    log: LogDirectory
    target: str
    config: StoreConfig
    index_end_ms: int = 0

    @property
    def _work(self) -> str:
        return f"{self.target}/{REBUILD_DIR}"

    def run(self, built: tuple[str, ...], *, accept_loss: bool) -> JobResult:
        """Read the log once, and write and sync all files."""
        records = read_records(
            self.spark,
            self.store,
            message_delay_level=self.config.message_delay_level,
            with_units=CONSUME_QUEUE_DIR in built,
            with_keys=INDEX_DIR in built,
        ).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = measured(records).collect()[0].asDict()
            last, last_keyed = counts.pop("last_offset"), counts.pop("last_keyed")
            found = SetAside(size=counts["set_aside_bytes"], records=counts["unconfirmed_records"])
            if found.records and not accept_loss:
                refuse_loss(self.store, found)
            summary: dict[str, Any] = {**counts, "end_offset": counts["end_offset"] or 0}
            if CONSUME_QUEUE_DIR in built:
                summary |= self._write_queues(records)
            if INDEX_DIR in built:
                ends_without_keys = last is not None and (last_keyed is None or last > last_keyed)
                plan = self._plan(records, last is not None, ends_without_keys)
                summary |= self._write_index(records, plan)
            rows = _by_topic(records) if CONSUME_QUEUE_DIR in built else []
        finally:
            records.unpersist()
        return JobResult(
            name=INFO.name,
            columns=("topic", "queues", "units"),
            rows=rows,
            summary=summary,
            found=bool(summary["unreadable"]),
            files=tuple(f"{self.target}/{name}" for name in built),
        )

    def _sink(self, kind: str, queue_file_size: int = 0) -> SinkOptions:
        return SinkOptions(
            kind=kind,
            work=self._work,
            queue_file_size=queue_file_size,
            index_slots=self.config.max_hash_slot_num,
            index_entries=self.config.max_index_num,
        )

    def _write_queues(self, records: DataFrame) -> dict[str, int]:
        disk = self.env.disk
        wanted = file_size_of(self.config.mapped_file_size_consume_queue)
        old_root = f"{self.log.root or self.target}/{CONSUME_QUEUE_DIR}"
        old = find_queues(disk, old_root, wanted)
        tasks = TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism
        write_rows(queue_rows(records, tasks), self._sink(QUEUES, old.file_size))
        new_root = f"{self._work}/{CONSUME_QUEUE_DIR}"
        disk.make_dirs(new_root)
        queues = take_parts(disk, self._work, QUEUES)
        # If the log's first records have expired, a queue without records would begin at 0 again.
        kept = keep_queues(disk, old_root, new_root, old) if self.log.min_offset else 0
        return {"queues": queues, "queues_kept": kept}

    def _plan(self, records: DataFrame, has_records: bool, ends_without_keys: bool) -> IndexPlan:  # noqa: FBT001 - private
        counts = keys_by_bucket(records, self._bucket_size).collect()  # at most BUCKETS_MAX
        return plan_index(
            self.env,
            self._layout,
            [BucketKeys(row["bucket"], row["keys"]) for row in counts],
            has_records=has_records,
            ends_without_keys=ends_without_keys,
        )

    @property
    def _layout(self) -> IndexLayout:
        return IndexLayout(self.config.max_hash_slot_num, self.config.max_index_num)

    @property
    def _bucket_size(self) -> int:
        return bucket_size(self.log.files[-1].next_offset if self.log.files else 0)

    def _write_index(self, records: DataFrame, plan: IndexPlan) -> dict[str, int]:
        disk = self.env.disk
        folder = f"{self._work}/{INDEX_DIR}"
        disk.make_dirs(folder)
        if plan.shares:
            ddl = "bucket INT, file_number INT, name STRING, first_number BIGINT"
            shares = self.spark.createDataFrame([tuple(share) for share in plan.shares], ddl)
            rows = index_rows(records, shares, self._bucket_size, len(plan.names))
            write_rows(rows, self._sink(INDEX))
            take_parts(disk, self._work, INDEX)
        elif plan.names:  # there are records, but no keys
            write_index_file(disk, f"{folder}/{plan.names[0]}", self._layout, 0, ())
        if plan.names:
            last = IndexFile.open(disk, f"{folder}/{plan.names[-1]}", self._layout)
            self.index_end_ms = last.end_timestamp_ms
            last.close()
        return {"keys": plan.keys, "index_files": len(plan.names)}


def _by_topic(records: DataFrame) -> list[dict[str, Any]]:
    found = units_by_topic(records).limit(ROWS_MAX).collect()
    return [{**row.asDict(), "topic": row["topic"].decode(errors="replace")} for row in found]
