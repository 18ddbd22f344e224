"""``restore``: restore segments of an archive as the log files that they were."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.pipeline.archive.folder import chosen_archived
from hastore.pipeline.archive.restore import (
    PART,
    missing,
    open_manifest,
    remove_parts,
    rename_parts,
)
from hastore.pipeline.archive.segment_sink import write_segments
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.store_lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

INFO: Final = JobInfo(
    name="restore",
    summary="Restore segments of an archive as log files, byte for byte.",
    description="""
    Reads ARCHIVE/manifest.json and writes DIR/commitlog. Each Parquet file and each segment is
    checked against its SHA-256 in the manifest before a file gets its name. A segment that is
    already there stays if it has the same bytes, and is an error if not. Consume queues and index
    are not archived: rebuild, or the start of a node, makes them. Columns: segment, size,
    messages, restored (now, or before).
    """,
    examples=(
        "hastore pipeline run restore /archive/n1 --out D2",
        "hastore pipeline run restore /archive/n1 --out D2 --segments 00000000001073741824",
    ),
)


def restore(
    spark: SparkSession, archive: str, *, out: str, segments: Sequence[str] | None = None
) -> JobResult:
    """Restore all segments of an archive, or those named, into ``out``/commitlog.

    Raises StoreLockedError if a node runs on ``out``, NotAStoreError, ConfigError,
    LogDamagedError, StoreError, DiskError.
    """
    disk = real_env().disk
    archive, out = (str(Path(path).absolute()) for path in (archive, out))  # for tasks elsewhere
    chosen = chosen_archived(open_manifest(disk, archive), segments)
    is_new = not disk.exists(out)
    disk.make_dirs(out)
    lock = StoreLock.take(disk, out)
    try:
        disk.make_dirs(f"{out}/{COMMIT_LOG_DIR}")
        todo = missing(disk, chosen, out)
        remove_parts(disk, out)
        if todo:
            rows = [(entry.segment, entry.is_complete, entry.modified_ms) for entry in todo]
            write_segments(spark, rows, archive=archive, restoreTo=out)
            rename_parts(disk, todo, out)
    except BaseException:
        with contextlib.suppress(DiskError):  # report the first error
            if is_new:
                # Tasks may still write: by its old name they add no file to what is removed.
                disk.rename(out, f"{out}{PART}")
                disk.remove_tree(f"{out}{PART}")
            else:
                remove_parts(disk, out)
        raise
    finally:
        lock.release(clean=False)
    now = {entry.segment for entry in todo}
    rows_shown = [
        {
            "segment": entry.segment,
            "size": entry.size,
            "messages": entry.messages,
            "restored": "now" if entry.segment in now else "before",
        }
        for entry in chosen[:ROWS_MAX]
    ]
    return JobResult(
        name=INFO.name,
        columns=("segment", "size", "messages", "restored"),
        rows=rows_shown,
        summary={
            "segments": len(chosen),
            "restored_now": len(todo),
            "restored_before": len(chosen) - len(todo),
            "messages": sum(entry.messages for entry in todo),
            "size": sum(entry.size for entry in todo),
        },
        files=(f"{out}/{COMMIT_LOG_DIR}",) if todo else (),
    )
