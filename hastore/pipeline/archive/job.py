"""``archive``: write segments of a log as Parquet, from which the same files can be restored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.archive.folder import (
    LOCK_FILE,
    ArchiveFolder,
    candidates,
    expired,
    named,
    stored_before,
)
from hastore.pipeline.archive.rows import FILE_SCHEMA, PARTITION_COLUMNS
from hastore.pipeline.archive.segment_sink import write_segments
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.store.archive.manifest import MANIFEST_FILE
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from hastore.env.interface import Disk
    from hastore.pipeline.archive.folder import Candidate
    from hastore.store.archive.manifest import ArchivedSegment
    from hastore.store.tools.log_directory import LogDirectory

INFO: Final = JobInfo(
    name="archive",
    summary="Keep segments as Parquet, by topic and date; restore makes the same files again.",
    description="""
    Writes segments (files of the commit log) to ARCHIVE/data as Parquet with zstd, one file for
    each segment, topic and day (UTC, of the store time). A row is a whole message: record_head,
    body and record_tail, joined, are its bytes; a row without a topic is a filler or a damaged
    place. By default all complete segments are archived. A segment is archived once: a second run,
    also after a kill, adds only missing ones. Files are compared with the log before manifest.json
    names them. Columns: segment, messages, damaged (damaged records), size, parquet (bytes),
    archived (now, or before).
    """,
    examples=(
        "hastore pipeline run archive D1 --out /archive/n1",
        "hastore pipeline run archive D1 --out /archive/n1 --expired",
        "hastore pipeline run archive D1 --out /archive/n1 --before 2026-11-01",
        "hastore pipeline run archive D1 --out /archive/n1 --segments 00000000001073741824",
    ),
)


def archive(
    spark: SparkSession,
    store: str,
    *,
    out: str,
    segments: Sequence[str] | None = None,
    before_ms: int | None = None,
    expired_before_ms: int | None = None,
) -> JobResult:
    """Archive a store's segments into ``out``: by default all that are complete.

    Or those in ``segments`` (names, which are offsets, or ``all``), those stored before
    ``before_ms``, or those last written before ``expired_before_ms``; times in ms since 1970.
    Raises NotAStoreError, ConfigError, StoreError, DiskError.
    """
    disk = real_env().disk
    store, out = (str(Path(path).absolute()) for path in (store, out))  # for tasks elsewhere
    log = find_log(disk, store)
    chosen = _choose(disk, log, segments, before_ms, expired_before_ms)
    ArchiveFolder.open(disk, out)  # raises before anything is created
    disk.make_dirs(out)
    lock = disk.lock(f"{out}/{LOCK_FILE}")
    try:
        folder = ArchiveFolder.open(disk, out)
        folder.remove_attempts()
        todo = [candidate for candidate in chosen if not folder.is_archived(candidate)]
        if todo:
            rows = [(entry.file.name, entry.is_complete, entry.modified_ms) for entry in todo]
            write_segments(spark, rows, store=store, archive=out)
        added = {entry.segment for entry in folder.publish(log, [row.file.name for row in todo])}
        entries = [folder.segments[candidate.file.name] for candidate in chosen]
    finally:
        lock.release()
    return _result(entries, added, out)


def read_archive(spark: SparkSession, out: str) -> DataFrame:
    """Read the files that an archive's manifest names as a table.

    ``topic`` is null for fillers and damage; ``body`` is as stored, also if it is compressed.
    Raises NotAStoreError if there is no archive.
    """
    from hastore.pipeline.archive.restore import open_manifest  # noqa: PLC0415
    from hastore.pipeline.source.table_schema import table_ddl  # noqa: PLC0415
    from hastore.pipeline.spark.table_file import local_uri, source_uri  # noqa: PLC0415

    manifest = open_manifest(real_env().disk, out)
    raw = ("record_head", "record_tail")
    names = [name for name in FILE_SCHEMA.names if name not in raw]
    # Without a schema, Spark would take a topic named 2024 for a number.
    ddl = f"{table_ddl(names)}, {', '.join(f'{name} BINARY' for name in raw)}"
    ddl = f"{ddl}, {PARTITION_COLUMNS[0]} STRING, {PARTITION_COLUMNS[1]} DATE"
    files = [
        source_uri(f"{out}/{file.path}") for entry in manifest.values() for file in entry.files
    ]
    reader = spark.read.schema(ddl)
    if not files:
        return spark.createDataFrame([], ddl)
    return reader.option("basePath", local_uri(f"{out}/data")).parquet(*files)


def _choose(
    disk: Disk,
    log: LogDirectory,
    segments: Sequence[str] | None,
    before_ms: int | None,
    expired_before_ms: int | None,
) -> list[Candidate]:
    choices = (segments, before_ms, expired_before_ms)
    if sum(choice is not None for choice in choices) > 1:
        raise ConfigError(
            "segments are chosen by name, by time or by expiry, not by two of them",
            hint="use one of --segments, --before and --expired",
        )
    found = candidates(disk, log)
    if segments is not None:
        return named(found, segments)
    if before_ms is not None:
        return list(stored_before(disk, found, before_ms))
    if expired_before_ms is not None:
        return list(expired(found, expired_before_ms))
    return [candidate for candidate in found if candidate.is_complete]


def _result(entries: Sequence[ArchivedSegment], added: set[str], out: str) -> JobResult:
    rows = [
        {
            "segment": entry.segment,
            "messages": entry.messages,
            "damaged": entry.damaged,
            "size": entry.size,
            "parquet": sum(file.size for file in entry.files),
            "archived": "now" if entry.segment in added else "before",
        }
        for entry in entries[:ROWS_MAX]
    ]
    new = [entry for entry in entries if entry.segment in added]
    return JobResult(
        name=INFO.name,
        columns=("segment", "messages", "damaged", "size", "parquet", "archived"),
        rows=rows,
        summary={
            "segments": len(entries),
            "archived_now": len(new),
            "archived_before": len(entries) - len(new),
            "messages": sum(entry.messages for entry in new),
            "damaged": sum(entry.damaged for entry in new),
            "size": sum(entry.size for entry in new),
            "parquet_files": sum(len(entry.files) for entry in new),
            "parquet_size": sum(file.size for entry in new for file in entry.files),
        },
        files=(f"{out}/{MANIFEST_FILE}",) if new else (),
    )
