"""The manifest of an archive: ``ARCHIVE/manifest.json``, written after all that it names.

    {"format": "hastore.archive/1",
     "segments": [{"segment": "00000000000000000000", "size": 1073741824, "sha256": "…",
                   "end": 1073741216, "is_complete": true, "modified_ms": …,
                   "rows": …, "messages": …, "damaged": …,
                   "files": [{"path": "data/topic=…/date=…/….parquet", "rows": …,
                              "size": …, "sha256": "…"}]}]}

A segment is a file of the log, named by its offset.  ``end`` is the position after its last byte
that is not 0; ``is_complete`` says that the log has a later file, so this one no longer changes.
A node reads the manifest too if files may expire only once they are archived.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.errors import StoreError
from hastore.store.log.mapped_file_queue import is_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.env.interface import Disk

MANIFEST_FILE: Final = "manifest.json"
_FORMAT: Final = "hastore.archive/1"

_HINT: Final = "hastore pipeline run archive makes archives"


@attrs.frozen(kw_only=True)
class ArchivedFile:
    """A Parquet file; ``path`` is relative to the archive, ``size`` in bytes."""

    path: str
    rows: int
    size: int
    sha256: str


@attrs.frozen(kw_only=True)
class ArchivedSegment:
    """A file of the log: ``size`` and ``sha256`` are the original's."""

    segment: str
    size: int
    sha256: str
    end: int
    is_complete: bool
    modified_ms: int
    rows: int
    messages: int
    damaged: int
    files: tuple[ArchivedFile, ...]

    @property
    def physic_offset(self) -> int:
        """The segment's first offset in the log."""
        return int(self.segment)


def read_manifest(disk: Disk, archive: str) -> dict[str, ArchivedSegment] | None:
    """Return the segments of an archive by name; None if it has no manifest.

    Raises StoreError for an invalid manifest, DiskError.
    """
    path = f"{archive}/{MANIFEST_FILE}"
    if not disk.exists(path):
        return None
    # Of any size: it may list years of segments, each with a file for every topic.
    with contextlib.closing(disk.open_file(path, writable=False)) as file:
        data = file.pread(file.size, 0)
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str) -> dict[str, ArchivedSegment]:
    """Read a manifest's text.  Raises StoreError."""
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            msg = f"{path} is of format {document['format']!r}, not {_FORMAT}"
            raise StoreError(msg, path=path, hint="read it with the hastore that wrote it")
        segments = [segment_from_json(entry) for entry in document["segments"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is not a manifest: {type(error).__name__}: {error}"
        raise StoreError(msg, path=path, hint=_HINT) from error
    return {segment.segment: segment for segment in segments}


def segment_from_json(entry: dict[str, Any]) -> ArchivedSegment:
    """Read one entry.  Raises ValueError, KeyError, TypeError or AttributeError if invalid."""
    files = tuple(ArchivedFile(**file) for file in entry["files"])
    segment = ArchivedSegment(**{**entry, "files": files})
    name = segment.segment
    if not is_file_name(name) or segment.size < 0:
        raise ValueError(f"{name!r} is not a segment")
    for file in files:
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise ValueError(f"{file.path!r} lies outside the archive")
    return segment


def manifest_text(segments: Iterable[ArchivedSegment]) -> bytes:
    """Return a manifest of the segments, in the log's order."""
    ordered = sorted(segments, key=lambda segment: segment.segment)
    document = {"format": _FORMAT, "segments": [attrs.asdict(segment) for segment in ordered]}
    return json.dumps(document, indent=1).encode() + b"\n"
