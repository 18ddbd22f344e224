"""An archive's directory: choose segments, stage them, and name them in the manifest.

    ARCHIVE/_staging/SEGMENT.3f2a…   being written by a task; useless once the task has ended
    ARCHIVE/_staging/SEGMENT         written and compared; segment.json in it is its entry
    ARCHIVE/data/topic=…/date=…      moved here by ``publish``, file by file
    ARCHIVE/manifest.json            then replaced
    ARCHIVE/lock                     held while a job runs

Invariant: at any point of a kill, the manifest names only files that are there.  The next run uses
staged segments that have not changed, moves the remaining files, and removes those that the
manifest does not name, so no row is there twice.  Spark ignores names that begin with ``_``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.errors import ConfigError, DiskError, StoreError
from hastore.pipeline.archive.files import STAGED_ENTRY, archive_segment
from hastore.quantities import read_digits
from hastore.store.archive.file_digest import file_digest
from hastore.store.archive.manifest import (
    MANIFEST_FILE,
    manifest_text,
    read_manifest,
    segment_from_json,
)
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.tools.log_directory import find_log, is_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hastore.env.interface import Disk
    from hastore.store.archive.manifest import ArchivedSegment
    from hastore.store.tools.log_directory import LogDirectory, LogFile

STAGING_DIR: Final = "_staging"
LOCK_FILE: Final = "lock"
_DATA_DIR: Final = "data"
_OWN_FILE: Final = re.compile(r"[0-9]{20}-[0-9a-f]{8}-[0-9]+\.parquet")


class ArchiveConflictError(StoreError):
    """The archive holds other bytes of a segment: those of another log."""

    exit_code = 6


@attrs.frozen(kw_only=True)
class Candidate:
    """A segment of the log."""

    file: LogFile
    is_complete: bool  # whether the log continues in the next segment
    modified_ms: int  # when the file was last written, since 1970


# -- choose ----------------------------------------------------------------------------------------


def candidates(disk: Disk, log: LogDirectory) -> list[Candidate]:
    """Return all segments of a log.  Raises DiskError."""
    modified_ms = {entry.name: entry.modified_ms for entry in disk.list_dir(log.path)}
    written = [is_written(disk, file) for file in log.files]
    last = max((index for index, has in enumerate(written) if has), default=-1)
    return [
        Candidate(
            file=file,
            is_complete=index < last,
            modified_ms=modified_ms.get(file.name, 0),
        )
        for index, file in enumerate(log.files)
    ]


def named(found: Sequence[Candidate], names: Iterable[str]) -> list[Candidate]:
    """Return the segments with these names or start offsets; ``all`` selects every one.

    Raises ConfigError for an unknown name.
    """
    wanted = list(names)
    if "all" in wanted:
        return list(found)
    by_offset = {candidate.file.physic_offset: candidate for candidate in found}
    return [by_offset[offset] for offset in segment_offsets(wanted, by_offset)]


def segment_offsets(names: Iterable[str], known: Iterable[int]) -> list[int]:
    """Return the offsets that names stand for, sorted.  Raises ConfigError if one is not known."""
    there = sorted(known)
    offsets = []
    for name in names:
        offset = read_digits(name)
        if offset is None or offset not in there:
            span = f"{there[0]} to {there[-1]}" if there else "none"
            raise ConfigError(
                f"no segment begins at {name!r}",
                hint=f"a segment is named by its offset; here: {span}",
            )
        offsets.append(offset)
    return sorted(set(offsets))


def stored_before(disk: Disk, found: Sequence[Candidate], time_ms: int) -> Iterator[Candidate]:
    """Yield the complete segments whose records were all stored before a time.  Raises DiskError.

    Store times do not fall along a log, so the next segment's first record decides.
    """
    log_ranges = {}
    if found:
        store = found[0].file.path.rpartition("/")[0]
        bounds = Bounds(end_time_ms=time_ms - 1)
        log_ranges = {entry.file_offset: entry for entry in find_ranges(disk, store, bounds)}
    for candidate, later in itertools.pairwise(found):
        if candidate.is_complete and later.file.physic_offset in log_ranges:
            yield candidate


def expired(found: Sequence[Candidate], before_ms: int) -> Iterator[Candidate]:
    """Yield the complete segments that were last written before a time."""
    for candidate in found:
        if candidate.is_complete and candidate.modified_ms <= before_ms:
            yield candidate


# -- archive ---------------------------------------------------------------------------------------


@final
@attrs.define(eq=False)
class SegmentStaging:
    """Writes one task's segments into the staging directory of an archive."""

    disk: Disk
    store: str
    archive: str
    _confirmed_by: ConfirmedRecords | None = attrs.field(default=None, init=False)

    def _confirmed(self, log: LogDirectory) -> ConfirmedRecords:
        """Return what the consume queues confirm: read once for all segments."""
        if self._confirmed_by is None:
            self._confirmed_by = ConfirmedRecords(self.disk, log.root)
        return self._confirmed_by

    def stage(self, segment: str, *, is_complete: bool, modified_ms: int, attempt: str) -> None:
        """Write one segment, unless it is there; ``attempt`` is unique.

        Raises NotAStoreError, ConfigError if the segment has expired, DiskError.
        """
        log = find_log(self.disk, self.store)
        staged = f"{self.archive}/{STAGING_DIR}/{segment}"
        log_range = next(
            (
                entry
                for entry in find_ranges(self.disk, self.store, Bounds())
                if entry.segment == segment
            ),
            None,
        )
        if log_range is None:
            raise ConfigError(
                f"{self.store} no longer has segment {segment}", hint="has it expired meanwhile?"
            )
        before = _staged_entry(self.disk, self.archive, segment)
        if before is not None:
            digest = file_digest(self.disk, log_range.path, log_range.file_size)
            if (before.size, before.sha256) == (log_range.file_size, digest):
                return
        self.disk.remove_tree(staged)
        folder = f"{staged}.{attempt}"
        self.disk.make_dirs(folder)
        known = {"is_complete": is_complete, "modified_ms": modified_ms}
        try:
            archive_segment(
                self.disk, log, log_range, folder, confirmed=self._confirmed(log), entry=known
            )
        except BaseException:
            with contextlib.suppress(DiskError):  # report the first error
                self.disk.remove_tree(folder)
            raise
        if self.disk.exists(staged):  # another attempt at the same task was faster
            self.disk.remove_tree(folder)
        else:
            self.disk.rename(folder, staged)


def _staged_entry(disk: Disk, archive: str, segment: str) -> ArchivedSegment | None:
    """Return a staged segment's entry, if all of its files are there or already moved."""
    folder = f"{archive}/{STAGING_DIR}/{segment}"
    path = f"{folder}/{STAGED_ENTRY}"
    if not disk.exists(path):
        return None
    entry = segment_from_json(json.loads(disk.read_file(path)))
    for file in entry.files:
        if not any(disk.exists(f"{root}/{file.path}") for root in (folder, archive)):
            return None
    return entry


@final
@attrs.define(eq=False)
class ArchiveFolder:
    """One archive while a job holds its lock."""

    disk: Disk
    path: str
    segments: dict[str, ArchivedSegment]

    @classmethod
    def open(cls, disk: Disk, path: str) -> ArchiveFolder:
        """Read the manifest, if there is one.

        Raises ArchiveConflictError if the directory holds something else, StoreError, DiskError.
        """
        segments = read_manifest(disk, path)
        if segments is None:
            own = {_DATA_DIR, STAGING_DIR, LOCK_FILE, f"{MANIFEST_FILE}.tmp"}
            foreign = [entry.name for entry in disk.list_dir(path) if entry.name not in own]
            if foreign:
                raise ArchiveConflictError(
                    f"{path} is not an archive: it holds {foreign[0]}, and no {MANIFEST_FILE}",
                    path=path,
                    hint="name a new directory or an archive",
                )
        return cls(disk, path, segments or {})

    def is_archived(self, candidate: Candidate) -> bool:
        """Whether the archive holds a segment with the same bytes.

        Its bytes are read unless it is complete and its time of writing is unchanged.  Raises
        ArchiveConflictError if the archive holds a complete segment with other bytes.
        """
        file = candidate.file
        entry = self.segments.get(file.name)
        if entry is None:
            return False
        is_same_size = entry.size == file.size
        if entry.is_complete and is_same_size and entry.modified_ms == candidate.modified_ms:
            return True
        if is_same_size and entry.sha256 == file_digest(self.disk, file.path, file.size):
            return entry.is_complete or not candidate.is_complete
        if entry.is_complete:
            raise self._conflict(entry)
        return False

    def remove_attempts(self) -> None:
        """Remove the files of killed tasks."""
        for entry in self.disk.list_dir(f"{self.path}/{STAGING_DIR}"):
            if "." in entry.name:
                self.disk.remove_tree(f"{self.path}/{STAGING_DIR}/{entry.name}")

    def publish(self, log: LogDirectory, names: Sequence[str]) -> list[ArchivedSegment]:
        """Move the staged segments to their place, name them in the manifest, return their entries.

        Raises ArchiveConflictError or StoreError before anything is moved, DiskError.
        """
        entries = []
        paths = {file.name: file.path for file in log.files}
        for name in names:
            entry = _staged_entry(self.disk, self.path, name)
            if entry is None:
                raise StoreError(
                    f"{self.path}: segment {name} is not staged",
                    path=self.path,
                    hint="run the job again: does every worker see the same directory?",
                )
            self._check_same_log(entry, paths[name])
            entries.append(entry)
        for entry in entries:
            self._move(entry)
        segments = self.segments | {entry.segment: entry for entry in entries}
        if segments != self.segments or not self.disk.exists(f"{self.path}/{MANIFEST_FILE}"):
            self.disk.write_file(f"{self.path}/{MANIFEST_FILE}", manifest_text(segments.values()))
        self.segments = segments
        self._tidy()
        return entries

    def _check_same_log(self, entry: ArchivedSegment, path: str) -> None:
        """Raise ArchiveConflictError if a segment would replace one that it did not grow from."""
        old = self.segments.get(entry.segment)
        if old is None or old.sha256 == entry.sha256:
            return
        if old.size == entry.size and not old.is_complete:
            digest = file_digest(self.disk, path, entry.size, zero_from=old.end)
            if digest == old.sha256:
                return
        raise self._conflict(entry)

    def _conflict(self, entry: ArchivedSegment) -> ArchiveConflictError:
        return ArchiveConflictError(
            f"{self.path} holds other bytes for segment {entry.segment}",
            path=self.path,
            hint="is this another broker's archive, or was the log repaired? name a new directory",
        )

    def _move(self, entry: ArchivedSegment) -> None:
        folder = f"{self.path}/{STAGING_DIR}/{entry.segment}"
        for file in entry.files:
            target = f"{self.path}/{file.path}"
            if self.disk.exists(f"{folder}/{file.path}"):
                self.disk.make_dirs(target.rpartition("/")[0])
                self.disk.rename(f"{folder}/{file.path}", target)

    def _tidy(self) -> None:
        """Remove the staging directory, and old files of segments that have grown since."""
        self.disk.remove_tree(f"{self.path}/{STAGING_DIR}")
        known = {file.path for entry in self.segments.values() for file in entry.files}
        for path in _own_files(self.disk, self.path):
            if path not in known:
                self.disk.remove(f"{self.path}/{path}")


def _own_files(disk: Disk, archive: str) -> Iterator[str]:
    for topic in disk.list_dir(f"{archive}/{_DATA_DIR}"):
        if not topic.is_dir:
            continue
        for date in disk.list_dir(f"{archive}/{_DATA_DIR}/{topic.name}"):
            if not date.is_dir:
                continue
            folder = f"{_DATA_DIR}/{topic.name}/{date.name}"
            for file in disk.list_dir(f"{archive}/{folder}"):
                if _OWN_FILE.fullmatch(file.name):
                    yield f"{folder}/{file.name}"


def chosen_archived(
    segments: Mapping[str, ArchivedSegment], names: Iterable[str] | None
) -> list[ArchivedSegment]:
    """Return an archive's segments with these names, or all.  Raises ConfigError."""
    if names is None:
        return sorted(segments.values(), key=lambda entry: entry.physic_offset)
    by_offset = {entry.physic_offset: entry for entry in segments.values()}
    return [by_offset[offset] for offset in segment_offsets(names, by_offset)]
