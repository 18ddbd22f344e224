"""An incomplete or damaged archive is not restored, and one line says why."""

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
from hastore.pipeline.archive.folder import SegmentStaging
from hastore.pipeline.archive.job import archive
from hastore.pipeline.archive.restore import RestoreConflictError, restore_one
from hastore.pipeline.archive.restore_job import restore
from hastore.store.archive.manifest import manifest_text, read_manifest
from hastore.store.store_lock import StoreLock
from tests.support.store.log_builder import FILE_SIZE, LogBuilder

DISK = real_env().disk


def write_segments(_spark, rows, **options):
    """Do the work of Spark's tasks in this process."""
    for number, (segment, is_complete, modified_ms) in enumerate(rows):
        attempt = f"attempt{number}"
        if "restoreTo" in options:
            target = options["restoreTo"]
            restore_one(DISK, options["archive"], segment, target, attempt=attempt)
        else:
            known = {"is_complete": is_complete, "modified_ms": modified_ms}
            staging = SegmentStaging(DISK, options["store"], options["archive"])
            staging.stage(segment, **known, attempt=attempt)


@pytest.fixture
def archived(monkeypatch, tmp_path):
    """Archive a store and return the archive; the store is beside it, as ``d``."""
    for module in (archive_job, restore_job):
        monkeypatch.setattr(module, "write_segments", write_segments)
    log = LogBuilder().fill(80).add(b"x" * 900, topic="big")
    archive(None, str(log.write(tmp_path / "d")), out=str(tmp_path / "a"), segments=["all"])
    return tmp_path / "a"


def a_file(archived):
    """Return a Parquet file of the last segment, so that other segments are written before it."""
    segments = read_manifest(DISK, str(archived))
    return archived / segments[max(segments)].files[0].path


def refused(archived, error, match):
    """Check that restoring raises and writes nothing; return the hint."""
    out = archived.parent / "back"
    with pytest.raises(error, match=match) as caught:
        restore(None, str(archived), out=str(out))
    assert not out.exists()
    return caught.value.hint


def test_flipped_byte_in_a_file_is_detected(archived):
    """It is in the data, the footer or the magic; the error names the file."""
    path = a_file(archived)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        data = bytearray(whole)
        data[at] ^= 4
        path.write_bytes(data)
        hint = refused(archived, LogDamagedError, f"{path.name} has changed")
        assert "copy of the archive" in hint


@pytest.mark.parametrize("removal", ["remove", "remove_tree"])
def test_first_error_is_raised_even_if_the_clean_up_fails(archived, monkeypatch, tmp_path, removal):
    """A task that still writes may keep its directory from being removed; a disk may fail."""
    path = a_file(archived)
    path.write_bytes(path.read_bytes()[:-1])

    def refuse(_self, path):
        raise DiskError(f"cannot remove {path}: Directory not empty", path=path)

    monkeypatch.setattr(RealDisk, removal, refuse)
    with pytest.raises(LogDamagedError, match="bytes, not"):
        restore(None, str(archived), out=str(tmp_path / "new"))


def test_missing_or_truncated_file_is_named(archived):
    """The error about a truncated file has both sizes."""
    path = a_file(archived)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(archived, LogDamagedError, f"has {len(whole) - 1} bytes, not {len(whole)}")
    path.unlink()
    refused(archived, LogDamagedError, f"{path.name} is missing")


def test_wrong_hash_in_the_manifest_is_detected(archived):
    """The restored rows must have the segment's SHA-256."""
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
        (b"", "is not a manifest"),
        (b"{}", "is not a manifest"),
        (b'{"format": "hastore.archive/9", "segments": []}', "is of format"),
        (b'{"format": "hastore.archive/1", "segments": [{"segment": "x"}]}', "is not a manifest"),
        (b'{"format": "hastore.archive/1", "segments": 7}', "is not a manifest"),
    ],
)
def test_invalid_manifest_is_one_error_with_a_hint(archived, text, match):
    """It is empty, lacks fields, or has another format."""
    (archived / "manifest.json").write_bytes(text)
    assert refused(archived, StoreError, match)


def test_refuses_paths_that_are_not_archives(archived, tmp_path):
    """A store, a missing path, and a segment that the archive does not have."""
    for path in (tmp_path / "d", tmp_path / "none"):
        with pytest.raises(NotAStoreError, match=r"is not an archive: it has no manifest\.json"):
            restore(None, str(path), out=str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()
    with pytest.raises(ConfigError, match="no segment begins at '7'"):
        restore(None, str(archived), out=str(tmp_path / "back"), segments=["7"])
    assert not (tmp_path / "back").exists()


def test_existing_files_stay_if_equal_and_are_refused_if_not(archived, tmp_path):
    """If one is refused, nothing else is written."""
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


def test_late_task_of_a_failed_run_writes_nothing(archived, tmp_path):
    """The run has removed the directory; the task must not make it again."""
    out = tmp_path / "back"
    with pytest.raises(DiskError, match="cannot open"):
        restore_one(DISK, str(archived), f"{0:020d}", str(out), attempt="late")
    assert not out.exists()


def test_store_of_a_running_node_is_refused(archived, tmp_path):
    """The node holds the lock."""
    out = tmp_path / "back"
    out.mkdir()
    lock = StoreLock.take(DISK, str(out))
    with pytest.raises(StoreLockedError):
        restore(None, str(archived), out=str(out))
    assert [file.name for file in out.iterdir()] == ["lock"]
    lock.release(clean=False)
