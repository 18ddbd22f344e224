"""Restore segments of an archive as files of a log.

    DIR/commitlog/.SEGMENT.3f2a….part   being written by a task
    DIR/commitlog/.SEGMENT.part         complete: its SHA-256 is the original's
    DIR/commitlog/SEGMENT               renamed by ``rename_parts`` once all are written

Invariant: at any point of a kill, a file with a segment's name is complete.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from hastore.errors import DiskError, NotAStoreError, StoreError
from hastore.pipeline.archive.files import restore_segment
from hastore.store.archive.file_digest import file_digest
from hastore.store.archive.manifest import MANIFEST_FILE, read_manifest
from hastore.store.log.store_directory import COMMIT_LOG_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hastore.env.interface import Disk
    from hastore.store.archive.manifest import ArchivedSegment

PART: Final = ".part"


class RestoreConflictError(StoreError):
    """A file is there with other bytes than the archive's."""

    exit_code = 6


def open_manifest(disk: Disk, archive: str) -> dict[str, ArchivedSegment]:
    """Read the manifest of an archive.  Raises NotAStoreError, StoreError, DiskError."""
    segments = read_manifest(disk, archive)
    if segments is None:
        raise NotAStoreError(
            f"{archive} is not an archive: it has no {MANIFEST_FILE}",
            path=archive,
            hint="hastore pipeline run archive DIR --out ARCHIVE makes one",
        )
    return segments


def missing(disk: Disk, segments: Sequence[ArchivedSegment], out: str) -> list[ArchivedSegment]:
    """Return the segments that ``out`` lacks.

    Raises RestoreConflictError if it has other bytes of one, DiskError.
    """
    folder = f"{out}/{COMMIT_LOG_DIR}"
    sizes = {entry.name: entry.size for entry in disk.list_dir(folder)}
    wanted = []
    for segment in segments:
        size = sizes.get(segment.segment)
        if size is None:
            wanted.append(segment)
            continue
        path = f"{folder}/{segment.segment}"
        if size != segment.size or file_digest(disk, path, size) != segment.sha256:
            raise RestoreConflictError(
                f"{path} has other bytes than the archive",
                path=path,
                hint="name another directory, or move the file away",
            )
    return wanted


def restore_one(disk: Disk, archive: str, name: str, out: str, *, attempt: str) -> None:
    """Write one segment to its ``.part`` file in ``out``/commitlog; ``attempt`` is unique.

    Runs in a task.  Raises StoreError, LogDamagedError, DiskError.
    """
    segment = open_manifest(disk, archive)[name]
    folder = f"{out}/{COMMIT_LOG_DIR}"
    path = f"{folder}/.{name}.{attempt}{PART}"
    try:
        restore_segment(disk, archive, segment, path)
    except BaseException:
        with contextlib.suppress(DiskError):  # report the first error
            disk.remove(path)
        raise
    disk.rename(path, _part_path(out, name))


def _part_path(out: str, name: str) -> str:
    return f"{out}/{COMMIT_LOG_DIR}/.{name}{PART}"


def rename_parts(disk: Disk, segments: Iterable[ArchivedSegment], out: str) -> None:
    """Rename the complete parts to their segments' names.  Raises DiskError."""
    for segment in segments:
        disk.rename(_part_path(out, segment.segment), f"{out}/{COMMIT_LOG_DIR}/{segment.segment}")
    remove_parts(disk, out)


def remove_parts(disk: Disk, out: str) -> None:
    """Remove the files of killed tasks."""
    for entry in disk.list_dir(f"{out}/{COMMIT_LOG_DIR}"):
        if entry.name.startswith(".") and entry.name.endswith(PART):
            disk.remove(f"{out}/{COMMIT_LOG_DIR}/{entry.name}")
