"""Restoring: an archive that is not whole gives nothing, and says in one line why."""

import pytest

from hastore.env.real import RealDisk, real_env
from hastore.errors import (
    ConfigError,
    DiskError,
    LogDamagedError,
    NotAStoreError,
    StoreError,
    StoreLockedError,
)
from hastore.pipeline.archive import job as archive_job
from hastore.pipeline.archive import restore_job
from hastore.pipeline.archive.folder import stage
from hastore.pipeline.archive.job import archive
from hastore.pipeline.archive.restore import RestoreConflictError, restore_one
from hastore.pipeline.archive.restore_job import restore
from hastore.store.archive.manifest import manifest_text, read_manifest
from hastore.store.store_lock import StoreLock
from tests.support.store.log_builder import FILE_SIZE, LogBuilder

DISK = real_env().disk


def write_segments(_spark, rows, **options):
    """What tasks do, done here: these tests are not about Spark."""
    for number, (segment, is_complete, modified_ms) in enumerate(rows):
        attempt = f"attempt{number}"
        if "restoreTo" in options:
            target = options["restoreTo"]
            restore_one(DISK, options["archive"], segment, target, attempt=attempt)
        else:
            known = {"is_complete": is_complete, "modified_ms": modified_ms}
            stage(DISK, options["store"], options["archive"], segment, **known, attempt=attempt)


@pytest.fixture
def archived(monkeypatch, tmp_path):
    """Give a store's archive; the store is beside it, as ``d``."""
    for module in (archive_job, restore_job):
        monkeypatch.setattr(module, "write_segments", write_segments)
    log = LogBuilder().fill(80).add(b"x" * 900, topic="big")
    archive(None, str(log.write(tmp_path / "d")), out=str(tmp_path / "a"), segments=["all"])
    return tmp_path / "a"


def a_file(archived):
    """Give one of its Parquet files: of the last segment, so that others are written before."""
    segments = read_manifest(DISK, str(archived))
    return archived / segments[max(segments)].files[0].path


def refused(archived, error, match):
    """Restoring raises, and leaves nothing; gives the hint."""
    out = archived.parent / "back"
    with pytest.raises(error, match=match) as caught:
        restore(None, str(archived), out=str(out))
    assert not out.exists()
    return caught.value.hint


def test_a_flipped_byte_is_found_wherever_it_is(archived):
    """In data, in the footer, in the magic: the file is named, nothing is written."""
    path = a_file(archived)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        data = bytearray(whole)
        data[at] ^= 4
        path.write_bytes(data)
        hint = refused(archived, LogDamagedError, f"{path.name} has changed")
        assert "copy of the archive" in hint


def test_the_first_error_is_told_where_cleaning_up_fails_too(archived, monkeypatch, tmp_path):
    """A task that still writes keeps a directory from being removed: that is not what was wrong."""
    path = a_file(archived)
    path.write_bytes(path.read_bytes()[:-1])

    def refuse(_self, path):
        raise DiskError(f"cannot remove {path}: Directory not empty", path=path)

    monkeypatch.setattr(RealDisk, "remove_tree", refuse)
    with pytest.raises(LogDamagedError, match="bytes, not"):
        restore(None, str(archived), out=str(tmp_path / "new"))


def test_a_missing_or_shorter_file_is_named(archived):
    """And what it should have been."""
    path = a_file(archived)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(archived, LogDamagedError, f"has {len(whole) - 1} bytes, not {len(whole)}")
    path.unlink()
    refused(archived, LogDamagedError, f"{path.name} is missing")


def test_a_manifest_that_lies_is_found_out(archived):
    """Rows that do not give the segment's SHA-256 are not restored."""
    import attrs

    segments = read_manifest(DISK, str(archived))
    name = max(segments)
    wrong = attrs.evolve(segments[name], sha256="0" * 64)
    (archived / "manifest.json").write_bytes(manifest_text([*segments.values(), wrong][-1:]))
    refused(archived, LogDamagedError, f"the rows of segment {name} differ from its bytes")
    other = attrs.evolve(segments[name], segment=f"{5:020d}")
    (archived / "manifest.json").write_bytes(manifest_text([other]))
    refused(archived, LogDamagedError, "differ from its bytes")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "is no manifest"),
        (b"{}", "is no manifest"),
        (b'{"format": "hastore.archive/9", "segments": []}', "is of format"),
        (b'{"format": "hastore.archive/1", "segments": [{"segment": "x"}]}', "is no manifest"),
        (b'{"format": "hastore.archive/1", "segments": 7}', "is no manifest"),
    ],
)
def test_a_manifest_that_is_none_is_one_error(archived, text, match):
    """With its path and what to do."""
    (archived / "manifest.json").write_bytes(text)
    assert refused(archived, StoreError, match)


def test_what_is_no_archive_is_said(archived, tmp_path):
    """A store, or nothing at all."""
    for path in (tmp_path / "d", tmp_path / "none"):
        with pytest.raises(NotAStoreError, match=r"is not an archive: it has no manifest\.json"):
            restore(None, str(path), out=str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()
    with pytest.raises(ConfigError, match="no segment begins at '7'"):
        restore(None, str(archived), out=str(tmp_path / "back"), segments=["7"])
    assert not (tmp_path / "back").exists()


def test_files_that_are_there_are_left_or_refused(archived, tmp_path):
    """The same bytes stay; others are an error, and nothing is written beside them."""
    out = tmp_path / "back"
    first, second = f"{0:020d}", f"{FILE_SIZE:020d}"
    assert restore(None, str(archived), out=str(out), segments=[first]).rows[0]["restored"] == "now"
    before = (out / "commitlog" / first).stat().st_mtime_ns
    result = restore(None, str(archived), out=str(out), segments=[first, second])
    assert [row["restored"] for row in result.rows] == ["before", "now"]
    assert (out / "commitlog" / first).stat().st_mtime_ns == before
    (out / "commitlog" / second).write_bytes(b"mine")
    with pytest.raises(RestoreConflictError, match="has other bytes than the archive") as caught:
        restore(None, str(archived), out=str(out))
    assert caught.value.exit_code == 6
    assert sorted(file.name for file in (out / "commitlog").iterdir()) == [first, second]
    assert (out / "commitlog" / second).read_bytes() == b"mine"


def test_a_store_that_a_node_has_open_is_left_alone(archived, tmp_path):
    """Its lock says so."""
    out = tmp_path / "back"
    out.mkdir()
    lock = StoreLock.take(DISK, str(out))
    with pytest.raises(StoreLockedError):
        restore(None, str(archived), out=str(out))
    assert [file.name for file in out.iterdir()] == ["lock"]
    lock.release(clean=False)
