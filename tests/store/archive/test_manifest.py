"""The manifest of an archive: written, read back, and refused if it is invalid."""

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


def test_parses_what_was_written():
    """All fields are preserved, and segments come in the log's order."""
    text = manifest_text([segment(4096), segment(0, is_complete=False, files=())])
    found = parse_manifest(text, "m")
    assert list(found.values()) == [segment(0, is_complete=False, files=()), segment(4096)]
    assert found[f"{4096:020d}"].physic_offset == 4096


def test_read_returns_none_without_a_manifest():
    """This is no error: every archive begins without one."""
    disk = FakeDisk()
    assert read_manifest(disk, "/a") is None
    disk.put("/a/manifest.json", manifest_text([segment(0)]))
    assert read_manifest(disk, "/a") == {f"{0:020d}": segment(0)}


def manifest_with(**fields):
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
        manifest_with(segment="7"),
        manifest_with(segment="x" * 20),
        manifest_with(segment=None),
        manifest_with(segment=5),
        manifest_with(size=-1),
        manifest_with(size="9"),
        manifest_with(unknown=1),
        manifest_with(files=[{"path": "data/x"}]),
        manifest_with(files=[{"path": "../x", "rows": 0, "size": 0, "sha256": ""}]),
        manifest_with(files=[{"path": "/etc/x", "rows": 0, "size": 0, "sha256": ""}]),
    ],
)
def test_refuses_an_invalid_manifest(data):
    """Every defect is one error with the path, and no file's path leads out of the archive."""
    with pytest.raises(StoreError, match=r"/a/manifest\.json is not a manifest") as caught:
        parse_manifest(data, "/a/manifest.json")
    assert "archive" in caught.value.hint


def test_error_names_a_newer_format():
    """A newer hastore wrote this manifest."""
    data = manifest_text([]).replace(b"archive/1", b"archive/2")
    with pytest.raises(StoreError, match=r"is of format 'hastore\.archive/2'"):
        parse_manifest(data, "m")


def test_manifest_may_exceed_the_limit_for_small_files(monkeypatch, tmp_path):
    """Years of segments with many topics make a large manifest."""
    monkeypatch.setattr(real, "_SMALL_FILE_SIZE_MAX", 100)
    disk = real.real_env().disk
    disk.write_file(f"{tmp_path}/manifest.json", manifest_text([segment(0), segment(4096)]))
    assert list(read_manifest(disk, str(tmp_path)).values()) == [segment(0), segment(4096)]


def test_refuses_a_file_path_that_is_not_a_string():
    """The error is about the manifest and contains the manifest's path."""
    text = manifest_text([segment(0)]).replace(b'"data/topic=a/x.parquet"', b"5")
    with pytest.raises(StoreError, match="m is not a manifest"):
        parse_manifest(text, "m")
