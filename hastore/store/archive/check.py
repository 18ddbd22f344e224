"""Checks which files of a log are in an archive, so that they may be deleted.

    manifest names it ─► complete, the same size ─► its Parquet files exist, with their sizes
                                                 ─► it was not written since

Not written since: its modification time is the one in the manifest, or else its SHA-256 is (a slave
has the same bytes with another time), which is computed once for each file and time.  The Parquet
files are not read: ``restore`` verifies them.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, final

import attrs

from hastore.errors import StoreError
from hastore.store.archive.file_digest import file_digest
from hastore.store.archive.manifest import MANIFEST_FILE, read_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk
    from hastore.store.archive.manifest import ArchivedSegment


@attrs.frozen(kw_only=True)
class LogFileState:
    """A file of the log as it is now."""

    name: str
    path: str
    size: int
    modified_ms: int


@attrs.frozen(kw_only=True)
class ArchiveFindings:
    """``archived``: names of files, from the first on; ``reason``: why the next one is not."""

    archived: frozenset[str]
    reason: str | None = None


@final
@attrs.define(eq=False)
class ArchiveCheck:
    """Checks one archive; may be used in any thread, by one at a time."""

    disk: Disk
    archive: str
    _digests: dict[LogFileState, str] = attrs.field(factory=dict, init=False)

    def find_archived(self, files: Sequence[LogFileState]) -> ArchiveFindings:
        """Return which of ``files`` are archived, up to the first that is not; blocks.

        If archive or file cannot be read, the file counts as not archived.
        """
        archived: set[str] = set()
        self._digests = {file: self._digests[file] for file in files if file in self._digests}
        try:
            segments = read_manifest(self.disk, self.archive)
            for file in files:
                reason = (
                    f"{self.archive} has no {MANIFEST_FILE}"
                    if segments is None
                    else self._why_not(segments.get(file.name), file)
                )
                if reason is not None:
                    return ArchiveFindings(archived=frozenset(archived), reason=reason)
                archived.add(file.name)
        except StoreError as error:  # DiskError too
            return ArchiveFindings(archived=frozenset(archived), reason=str(error))
        return ArchiveFindings(archived=frozenset(archived))

    def _why_not(self, entry: ArchivedSegment | None, file: LogFileState) -> str | None:
        if entry is None:
            return f"{self.archive} has no segment {file.name}"
        if not entry.is_complete:
            return f"{self.archive} has segment {file.name} as it was while it grew"
        if entry.size != file.size:
            return f"{self.archive} has {entry.size} bytes of {file.path}, not {file.size}"
        missing = self._missing_file(entry)
        if missing is not None:
            return f"{self.archive}/{missing} is missing, or of another size"
        if entry.modified_ms != file.modified_ms and entry.sha256 != self._digest(file):
            return f"{self.archive} has other bytes of {file.path}"
        return None

    def _missing_file(self, entry: ArchivedSegment) -> str | None:
        folders: dict[str, dict[str, int]] = collections.defaultdict(dict)
        for file in entry.files:
            folder, _, name = file.path.rpartition("/")
            folders[folder][name] = file.size
        for folder, wanted in folders.items():
            sizes = {e.name: e.size for e in self.disk.list_dir(f"{self.archive}/{folder}")}
            for name, size in wanted.items():
                if sizes.get(name) != size:
                    return f"{folder}/{name}"
        return None

    def _digest(self, file: LogFileState) -> str:
        digest = self._digests.get(file)
        if digest is None:
            digest = file_digest(self.disk, file.path, file.size)
            self._digests[file] = digest
        return digest
