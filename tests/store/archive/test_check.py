"""What an archive must contain before a log file may be deleted."""

import hashlib

import attrs
import pytest

from hastore.errors import DiskError
from hastore.store.archive.check import ArchiveCheck, LogFileState
from hastore.store.archive.file_digest import digest_and_end, file_digest
from hastore.store.archive.manifest import ArchivedFile, ArchivedSegment, manifest_text
from tests.support.env.fake_disk import FakeDisk

SIZE = 4096


def bytes_of(number):
    return bytes([number + 1]) * 1000 + bytes(SIZE - 1000)


def state(number, **fields):
    name = f"{number * SIZE:020d}"
    known = {"name": name, "path": f"/d/commitlog/{name}", "size": SIZE, "modified_ms": 7}
    return LogFileState(**{**known, **fields})


def entry(number, **fields):
    name = f"{number * SIZE:020d}"
    known = {
        "segment": name,
        "size": SIZE,
        "sha256": hashlib.sha256(bytes_of(number)).hexdigest(),
        "end": 1000,
        "is_complete": True,
        "modified_ms": 7,
        "rows": 1,
        "messages": 1,
        "damaged": 0,
        "files": tuple(
            ArchivedFile(path=f"data/topic={topic}/{name}.parquet", rows=1, size=5, sha256="")
            for topic in "ab"
        ),
    }
    return ArchivedSegment(**{**known, **fields})


def archive_on(disk, entries):
    for number in range(4):
        disk.put(f"/d/commitlog/{number * SIZE:020d}", bytes_of(number))
    for each in entries:
        for file in each.files:
            disk.put(f"/a/{file.path}", b"PAR1.")
    disk.put("/a/manifest.json", manifest_text(entries))
    return ArchiveCheck(disk, "/a")


def names(*numbers):
    return frozenset(f"{number * SIZE:020d}" for number in numbers)


def test_files_count_as_archived_up_to_the_first_missing_one():
    """Archived files after the first missing one do not count."""
    check = archive_on(FakeDisk(), [entry(0), entry(1), entry(3)])
    found = check.find_archived([state(number) for number in range(4)])
    assert found.archived == names(0, 1)
    assert found.reason == f"/a has no segment {2 * SIZE:020d}"
    assert check.find_archived([state(0), state(1)]).reason is None
    assert check.find_archived([]).archived == frozenset()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"is_complete": False}, "as it was while it grew"),
        ({"size": SIZE - 1}, f"has {SIZE - 1} bytes of /d/commitlog/"),
        ({"modified_ms": 8, "sha256": "0" * 64}, "has other bytes of /d/commitlog/"),
    ],
)
def test_ignores_an_entry_that_does_not_match_the_file(fields, reason):
    """The file still grew then, has another size, or comes from another broker."""
    found = archive_on(FakeDisk(), [entry(0, **fields)]).find_archived([state(0)])
    assert found.archived == frozenset()
    assert reason in found.reason


def test_accepts_equal_bytes_with_another_mtime_and_reads_them_once():
    """Files of slaves and copies have other times. A file written since then is read again."""
    disk = FakeDisk()
    check = archive_on(disk, [entry(0), entry(1)])
    files = [state(0, modified_ms=99), state(1, modified_ms=98)]
    assert check.find_archived(files).archived == names(0, 1)
    reads = disk.reads
    assert check.find_archived(files).archived == names(0, 1)
    assert disk.reads == reads + 1  # the manifest
    disk.put(files[0].path, bytes_of(2))
    found = check.find_archived([attrs.evolve(files[0], modified_ms=100), files[1]])
    assert found.archived == frozenset()
    assert "other bytes" in found.reason


@pytest.mark.parametrize("left", [None, b"PAR1"])
def test_keeps_a_log_file_whose_parquet_file_is_missing_or_short(left):
    """A manifest alone cannot restore a message."""
    disk = FakeDisk()
    check = archive_on(disk, [entry(0)])
    path = f"/a/{entry(0).files[1].path}"
    disk.remove(path)
    if left is not None:
        disk.put(path, left)
    found = check.find_archived([state(0)])
    assert found.archived == frozenset()
    assert found.reason == f"{path} is missing, or of another size"


def test_keeps_all_files_if_the_archive_cannot_be_read():
    """A missing or invalid manifest is reported, and the next check reads it again."""
    disk = FakeDisk()
    check = ArchiveCheck(disk, "/a")
    assert check.find_archived([state(0)]).reason == "/a has no manifest.json"
    disk.put("/a/manifest.json", b"{")
    assert "is not a manifest" in check.find_archived([state(0)]).reason
    archive_on(disk, [entry(0)])
    assert check.find_archived([state(0)]).archived == names(0)


def test_digest_covers_all_bytes():
    """The file is read in pieces, and the end of its data is found.

    Bytes from ``zero_from`` on count as zeros; a file that is too short is an error.
    """
    disk = FakeDisk()
    data = b"x" * 5_000_000 + b"yz" + bytes(9)
    disk.put("/f", data)
    digest = hashlib.sha256(data).hexdigest()
    assert digest_and_end(disk, "/f", len(data)) == (digest, 5_000_002)
    cut = hashlib.sha256(data[:5_000_000] + bytes(11)).hexdigest()
    assert file_digest(disk, "/f", len(data), zero_from=5_000_000) == cut
    with pytest.raises(DiskError, match="ends at 5000011, not at 5000012"):
        file_digest(disk, "/f", len(data) + 1)
