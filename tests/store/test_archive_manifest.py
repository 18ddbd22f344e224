"""The manifest of an archive: what was written is read, and what is none is refused."""

import json

import pytest

from hastore.env import real
from hastore.errors import StoreError
from hastore.store.archive.manifest import (
    ArchivedFile,
    ArchivedSegment,
    manifest_text,
    parse_manifest,
    read_manifest,
)
from tests.support.env.fake_disk import FakeDisk


def segment(offset, **fields):
    known = {
        "segment": f"{offset:020d}",
        "size": 4096,
        "sha256": "ab" * 32,
        "end": 4000,
        "is_complete": True,
        "modified_ms": 7,
        "rows": 3,
        "messages": 2,
        "damaged": 0,
        "files": (ArchivedFile(path="data/topic=a/x.parquet", rows=3, size=9, sha256="cd"),),
    }
    return ArchivedSegment(**{**known, **fields})


def test_what_was_written_is_read():
    """All fields, in the log's order."""
    text = manifest_text([segment(4096), segment(0, is_complete=False, files=())])
    found = parse_manifest(text, "m")
    assert list(found.values()) == [segment(0, is_complete=False, files=()), segment(4096)]
    assert found[f"{4096:020d}"].physic_offset == 4096


def test_a_directory_without_a_manifest_has_none():
    """Not an error: an archive begins so."""
    disk = FakeDisk()
    assert read_manifest(disk, "/a") is None
    disk.put("/a/manifest.json", manifest_text([segment(0)]))
    assert read_manifest(disk, "/a") == {f"{0:020d}": segment(0)}


def changed(**fields):
    document = json.loads(manifest_text([segment(0)]))
    document["segments"][0].update(fields)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"null",
        manifest_text([segment(0)])[:-9],
        changed(segment="7"),
        changed(segment="x" * 20),
        changed(segment=None),
        changed(segment=5),
        changed(size=-1),
        changed(size="9"),
        changed(unknown=1),
        changed(files=[{"path": "data/x"}]),
        changed(files=[{"path": "../x", "rows": 0, "size": 0, "sha256": ""}]),
        changed(files=[{"path": "/etc/x", "rows": 0, "size": 0, "sha256": ""}]),
    ],
)
def test_what_is_no_manifest_is_refused(data):
    """Whatever is wrong with it: one error with the path; no path leads out of the archive."""
    with pytest.raises(StoreError, match=r"/a/manifest\.json is no manifest") as caught:
        parse_manifest(data, "/a/manifest.json")
    assert "archive" in caught.value.hint


def test_a_later_format_says_so():
    """It was written by a newer hastore."""
    data = manifest_text([]).replace(b"archive/1", b"archive/2")
    with pytest.raises(StoreError, match=r"is of format 'hastore\.archive/2'"):
        parse_manifest(data, "m")


def test_a_manifest_may_be_larger_than_a_small_file(monkeypatch, tmp_path):
    """Segments of years with many topics: what was written is read again, whatever its size."""
    monkeypatch.setattr(real, "_SMALL_FILE_SIZE_MAX", 100)
    disk = real.real_env().disk
    disk.write_file(f"{tmp_path}/manifest.json", manifest_text([segment(0), segment(4096)]))
    assert list(read_manifest(disk, str(tmp_path)).values()) == [segment(0), segment(4096)]


def test_a_path_that_is_no_text_is_no_manifest():
    """A number where a file's path should be is an error of the manifest, with its path."""
    text = manifest_text([segment(0)]).replace(b'"data/topic=a/x.parquet"', b"5")
    with pytest.raises(StoreError, match="m is no manifest"):
        parse_manifest(text, "m")
