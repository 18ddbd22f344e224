"""Archives restore logs byte for byte, and archiving again adds nothing."""

import json
import os
import random
import subprocess

import pyarrow.parquet as pq
import pytest

from hastore.columnar.log_range import LogRange
from hastore.env.real import real_env
from hastore.errors import (
    ConfigError,
    DiskError,
    DiskFullError,
    LogDamagedError,
    NotAStoreError,
    StoreLockedError,
)
from hastore.pipeline.archive import files as archive_files
from hastore.pipeline.archive import folder as archive_folder
from hastore.pipeline.archive import job as archive_job
from hastore.pipeline.archive import restore_job
from hastore.pipeline.archive.files import partition_name
from hastore.pipeline.archive.folder import ArchiveConflictError, ArchiveFolder, SegmentStaging
from hastore.pipeline.archive.job import archive, read_archive
from hastore.pipeline.archive.restore import restore_one
from hastore.pipeline.archive.restore_job import restore
from hastore.store.archive.manifest import read_manifest
from hastore_cli.main import main
from tests.support.store.log_builder import FILE_SIZE, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
DISK = real_env().disk
GOLDEN = ("clean", "crashed", "crashed_torn", "crashed_torn_props", "propcrc", "replica_master")
ODD_TOPICS = (
    "%RETRY%x", "%DLQ%a b", "2024", "1e3", "true", "null", "=", "a=b", "a/b", "..", "a%2Fb", "a:b",
    "订单", "ünï", "'\"", "__HIVE_DEFAULT_PARTITION__", "tab\there", "\udcff\udcfe", "x" * 127,
)  # fmt: skip


def cmp(left, right):
    """Compare two logs with diff(1)."""
    done = subprocess.run(
        ["diff", "-r", str(left / "commitlog"), str(right / "commitlog")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def listing(path):
    """Return every file of a directory, with its bytes."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"
    }


@pytest.fixture
def in_process(monkeypatch):
    """Do the work of Spark's tasks in this process, and yield the segments they process."""
    calls = []

    def write_segments(_spark, rows, **options):
        for number, (segment, is_complete, modified_ms) in enumerate(rows):
            calls.append(segment)
            attempt = f"attempt{number}"
            if "restoreTo" in options:
                target = options["restoreTo"]
                restore_one(DISK, options["archive"], segment, target, attempt=attempt)
            else:
                known = {"is_complete": is_complete, "modified_ms": modified_ms}
                staging = SegmentStaging(DISK, options["store"], options["archive"])
                staging.stage(segment, **known, attempt=attempt)

    for module in (archive_job, restore_job):
        monkeypatch.setattr(module, "write_segments", write_segments)
    return calls


def odd_store(path):
    """Write a damaged log of several days, with topics that suit no file system or table."""
    log = LogBuilder()
    for number, topic in enumerate(ODD_TOPICS * 3):
        fields = {"store_timestamp_ms": 1_700_000_000_000 + number * 5_000_000}
        log.add(b"%d" % number * (1 + number * 7 % 90), topic=topic, **fields)
    log.add(b"", topic="empty").add(b"late", store_timestamp_ms=2**62)
    log.add(b"before", store_timestamp_ms=-5).fill(30)
    data = log.flipped(log.offsets[20] + 2)
    data[log.offsets[30] + 100] ^= 1
    return log.write(path, data=data), log


def test_golden_logs_are_restored_byte_for_byte(spark, golden, tmp_path):
    """So are fillers, a torn end, damage and zeros; a second run of both jobs changes nothing."""
    for name in ("clean", "crashed_torn"):
        kept, back = tmp_path / f"{name}.archive", tmp_path / name
        first = archive(spark, str(golden / name), out=str(kept), segments=["all"])
        assert first.summary["archived_now"] == len(list((golden / name / "commitlog").iterdir()))
        done = restore(spark, str(kept), out=str(back))
        assert done.summary["restored_now"] == first.summary["segments"]
        cmp(golden / name, back)
    before = listing(kept)
    again = archive(spark, str(golden / name), out=str(kept), segments=["all"])
    assert (again.summary["archived_now"], again.summary["archived_before"]) == (
        0,
        first.summary["segments"],
    )
    assert listing(kept) == before
    restored = restore(spark, str(kept), out=str(back))
    assert restored.summary["restored_now"] == 0
    assert again.files == restored.files == ()


def test_archive_is_a_table_of_all_messages(spark, golden, tmp_path):
    """Spark adds the columns topic and date; any Parquet reader can read a single file."""
    archive(spark, str(golden / "clean"), out=str(tmp_path / "a"), segments=["all"])
    table = read_archive(spark, str(tmp_path / "a"))
    rows = table.where("topic IS NOT NULL").orderBy("physic_offset").collect()
    manifest = json.loads((golden / "clean.manifest.json").read_text())
    wanted = [row for row in manifest["records"] if row["type"] == "MSG"]
    assert [(row.physic_offset, row.topic, row.queue_offset, row.keys) for row in rows] == [
        (row["physicalOffset"], row["topic"], row["queueOffset"], row["keys"] or None)
        for row in wanted
    ]
    for row in rows:
        whole = row.record_head + row.body + row.record_tail
        name = golden / "clean" / "commitlog" / row.segment
        at = row.physic_offset - int(row.segment)
        assert whole == name.read_bytes()[at : at + row.size]
        assert str(row.date) == row.store_timestamp.date().isoformat()
    segment = read_manifest(DISK, str(tmp_path / "a"))["00000000000000000000"]
    file = pq.ParquetFile(tmp_path / "a" / segment.files[0].path)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_odd_topics_and_damage_are_restored(spark, tmp_path):
    """The topics suit no path, and some times no calendar; the table still has the topics."""
    store, _ = odd_store(tmp_path / "d")
    archive(spark, str(store), out=str(tmp_path / "a"), segments=["all"])
    restore(spark, str(tmp_path / "a"), out=str(tmp_path / "back"))
    cmp(store, tmp_path / "back")
    table = read_archive(spark, str(tmp_path / "a"))
    topics = {row.topic for row in table.select("topic").distinct().collect()}
    assert topics >= set(ODD_TOPICS) - {"\udcff\udcfe", "__HIVE_DEFAULT_PARTITION__"} | {"empty"}
    assert None in topics
    assert all(".." not in path.parts for path in (tmp_path / "a").rglob("*"))


def test_commands_print_results_and_set_exit_codes(spark, golden, capsys, tmp_path):
    """They print a table or JSON, and refuse a changed file in at most three lines."""
    kept, store = str(tmp_path / "a"), str(golden / "clean")
    assert main(["pipeline", "run", "archive", store, "--out", kept, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["segments"] == 5
    assert {row["archived"] for row in document["rows"]} == {"now"}
    restoring = ["pipeline", "run", "restore", kept, "--out"]
    assert main([*restoring, str(tmp_path / "b"), "--segments", "0,65536"]) == 0
    assert "restored now" in capsys.readouterr().out
    names = sorted(file.name for file in (tmp_path / "b" / "commitlog").iterdir())
    assert names == [f"{0:020d}", f"{65_536:020d}"]
    file = next((tmp_path / "a" / "data").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert main([*restoring, str(tmp_path / "c")]) == 4
    printed = capsys.readouterr().err
    assert f"{file} has changed: its SHA-256 differs from the manifest's" in printed
    assert "restore the file" in printed
    assert len(printed.splitlines()) <= 3
    assert not (tmp_path / "c").exists()


# -- without Spark ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_logs_are_restored_in_process(in_process, golden, tmp_path, name):
    """It tests all golden logs, because this is fast."""
    archive(None, str(golden / name), out=str(tmp_path / "a"), segments=["all"])
    restore(None, str(tmp_path / "a"), out=str(tmp_path / "back"))
    cmp(golden / name, tmp_path / "back")


def random_log(generator, path):
    """Write a log with flips, holes of zeros, and sometimes a cut or a min offset above 0."""
    log = LogBuilder(min_offset=generator.choice([0, 3 * FILE_SIZE]))
    for _ in range(generator.randrange(1, 90)):
        size = generator.choice([0, 1, 30, 300, 1500])
        log.add(generator.randbytes(size), topic=generator.choice(["a", "b", "c/d"]))
    data = bytearray(log.data)
    for _ in range(generator.randrange(6)):
        at = generator.randrange(len(data))
        size = generator.choice([1, 1, 4, 200])
        data[at : at + size] = generator.choice([generator.randbytes(size), bytes(size)])
    data = data[: len(log.data)]
    if generator.random() < 0.5:
        del data[generator.randrange(len(data)) :]
    return log.write(path, data=data or b"\0")


def test_random_damaged_logs_are_restored(in_process, tmp_path):
    """The bytes are the same, no matter what the files hold."""
    generator = random.Random(11)
    for number in range(15):
        path = tmp_path / str(number)
        store = random_log(generator, path / "d")
        archive(None, str(store), out=str(path / "a"), segments=["all"])
        restore(None, str(path / "a"), out=str(path / "back"))
        cmp(store, path / "back")


def test_selects_segments_by_name_time_or_expiry(in_process, tmp_path):
    """By default it selects all but the last segment; two criteria at once are refused."""
    log = LogBuilder().fill(120)
    store = log.write(tmp_path / "d")
    names = sorted(file.name for file in (store / "commitlog").iterdir())
    assert len(names) >= 4
    default = archive(None, str(store), out=str(tmp_path / "a"))
    assert [row["segment"] for row in default.rows] == names[:-1]
    one = archive(None, str(store), out=str(tmp_path / "b"), segments=[str(FILE_SIZE)])
    assert [row["segment"] for row in one.rows] == names[1:2]
    first_of_third = next(at for at in log.offsets if at >= 2 * FILE_SIZE)
    time_ms = 1_700_000_000_000 + log.offsets.index(first_of_third)
    before = archive(None, str(store), out=str(tmp_path / "c"), before_ms=time_ms + 1)
    assert [row["segment"] for row in before.rows] == names[:2]
    before = archive(None, str(store), out=str(tmp_path / "c2"), before_ms=time_ms)
    assert [row["segment"] for row in before.rows] == names[:1]
    os.utime(store / "commitlog" / names[0], (1000, 1000))
    expired = archive(None, str(store), out=str(tmp_path / "e"), expired_before_ms=2_000_000)
    assert [row["segment"] for row in expired.rows] == names[:1]
    assert archive(None, str(store), out=str(tmp_path / "e"), expired_before_ms=1).rows == []
    with pytest.raises(ConfigError, match="not by two"):
        archive(None, str(store), out=str(tmp_path / "f"), segments=["all"], before_ms=1)
    for wrong in ("77", "x", ""):
        with pytest.raises(ConfigError, match="no segment begins at"):
            archive(None, str(store), out=str(tmp_path / "f"), segments=[wrong])
    assert not (tmp_path / "f").exists()


def test_grown_segment_is_archived_again(in_process, tmp_path):
    """The new version replaces the old one, whose files are deleted."""
    log = LogBuilder().fill(20)
    store = log.write(tmp_path / "d")
    archive(None, str(store), out=str(tmp_path / "a"), segments=["all"])
    assert not max(read_manifest(DISK, str(tmp_path / "a")).items())[1].is_complete
    log.fill(40)
    grown = log.write(tmp_path / "grown")
    in_process.clear()
    result = archive(None, str(grown), out=str(tmp_path / "a"), segments=["all"])
    manifest = read_manifest(DISK, str(tmp_path / "a"))
    assert result.summary["archived_now"] == len(in_process) == len(manifest) - 1
    named = {file.path for entry in manifest.values() for file in entry.files}
    assert named == {path for path in listing(tmp_path / "a") if path.startswith("data/")}
    restore(None, str(tmp_path / "a"), out=str(tmp_path / "back"))
    cmp(grown, tmp_path / "back")


def test_equal_copy_of_a_log_is_not_archived_again(in_process, tmp_path):
    """A copy, such as a slave's, has other modification times; only the bytes count."""
    log = LogBuilder().fill(80)
    store = log.write(tmp_path / "d")
    archive(None, str(store), out=str(tmp_path / "a"))
    copy = log.write(tmp_path / "copy")
    for file in (copy / "commitlog").iterdir():
        os.utime(file, (5000, 5000))
    in_process.clear()
    before = listing(tmp_path / "a")
    result = archive(None, str(copy), out=str(tmp_path / "a"))
    assert in_process == []
    assert result.summary["archived_now"] == 0
    assert listing(tmp_path / "a") == before


class Killed(BaseException):
    """Stands for a kill: no handler of ``Exception`` catches it."""


@pytest.mark.parametrize("step", range(12))
def test_next_run_completes_a_killed_one(in_process, monkeypatch, tmp_path, step):
    """The kill is at a rename or a write of the manifest; no file is duplicated or missing."""
    log = LogBuilder().fill(60)
    log.add(b"x", topic="other")
    store = log.write(tmp_path / "d")
    real = type(DISK)
    left = [step]
    for name in ("rename", "write_file"):
        method = getattr(real, name)

        def call(self, *arguments, method=method):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return method(self, *arguments)

        monkeypatch.setattr(real, name, call)
    with pytest.raises(Killed):
        archive(None, str(store), out=str(tmp_path / "a"), segments=["all"])
    manifest = read_manifest(DISK, str(tmp_path / "a")) or {}
    for entry in manifest.values():
        assert all((tmp_path / "a" / file.path).exists() for file in entry.files)
    left[0] = 10**6
    # A killed task leaves such a folder.
    (tmp_path / "a" / "_staging" / f"{0:020d}.dead").mkdir(parents=True)
    archive(None, str(store), out=str(tmp_path / "a"), segments=["all"])
    clean = archive(None, str(store), out=str(tmp_path / "clean"), segments=["all"])
    assert listing(tmp_path / "a") == listing(tmp_path / "clean")
    left[0] = step % 4
    with pytest.raises(Killed):
        restore(None, str(tmp_path / "a"), out=str(tmp_path / "back"))
    left[0] = 10**6
    restore(None, str(tmp_path / "a"), out=str(tmp_path / "back"))
    cmp(store, tmp_path / "back")
    assert not [file for file in (tmp_path / "back" / "commitlog").iterdir() if "part" in file.name]
    assert clean.summary["segments"] == 4


def test_next_run_succeeds_after_a_failed_task(spark, monkeypatch, tmp_path):
    """The first one raises one clear error, and writes no manifest."""
    store = LogBuilder().fill(80).write(tmp_path / "d")
    write_segments = archive_job.write_segments

    def one_too_many(spark, rows, **options):
        write_segments(spark, [*rows, (f"{99:020d}", True, 0)], **options)

    monkeypatch.setattr(archive_job, "write_segments", one_too_many)
    with pytest.raises(Exception, match=f"no longer has segment {99:020d}"):
        archive(spark, str(store), out=str(tmp_path / "a"))
    assert read_manifest(DISK, str(tmp_path / "a")) is None
    monkeypatch.setattr(archive_job, "write_segments", write_segments)
    archive(spark, str(store), out=str(tmp_path / "a"))
    archive(spark, str(store), out=str(tmp_path / "b"))
    assert listing(tmp_path / "a") == listing(tmp_path / "b")


def test_segment_that_changes_while_it_is_archived_is_refused(in_process, monkeypatch, tmp_path):
    """The job reads it twice, and archives nothing if the bytes differ."""
    log = LogBuilder().fill(80)
    store = log.write(tmp_path / "d")
    inner = archive_folder.archive_segment

    def write_between(disk, directory, log_range: LogRange, folder, **known):
        rows = inner.__globals__["segment_rows"]

        def changing(*arguments):
            yield from rows(*arguments)
            with (store / "commitlog" / log_range.segment).open("r+b") as file:
                file.seek(200)
                file.write(b"changed")

        monkeypatch.setitem(inner.__globals__, "segment_rows", changing)
        return inner(disk, directory, log_range, folder, **known)

    monkeypatch.setattr(archive_folder, "archive_segment", write_between)
    with pytest.raises(DiskError, match="changed at position") as caught:
        archive(None, str(store), out=str(tmp_path / "a"))
    assert "complete" in caught.value.hint
    assert read_manifest(DISK, str(tmp_path / "a")) is None


def test_full_disk_is_one_error_without_leftovers(in_process, monkeypatch, tmp_path):
    """Pyarrow's error becomes DiskFullError with a hint, and the partial file is deleted."""
    store = LogBuilder().fill(80).write(tmp_path / "d")
    writer = archive_files._parquet_writer
    monkeypatch.setattr(archive_files, "_parquet_writer", lambda _path: writer("/dev/full"))
    with pytest.raises(DiskFullError, match="No space left") as caught:
        archive(None, str(store), out=str(tmp_path / "a"))
    assert "free space" in caught.value.hint
    assert not list((tmp_path / "a" / "_staging").iterdir())
    monkeypatch.setattr(archive_files, "_parquet_writer", writer)
    archive(None, str(store), out=str(tmp_path / "a"))


@pytest.mark.parametrize(("writers", "is_one"), [(12, True), (5, False)])
def test_segment_has_one_file_for_each_topic(in_process, monkeypatch, tmp_path, writers, is_one):
    """Even if it is read in many chunks; with more topics than open files, some have several."""
    log = LogBuilder(file_size=65_536)
    for number in range(60):
        log.add(b"x", topic=f"t{number % 12}")
    store = log.write(tmp_path / "d")
    monkeypatch.setattr(archive_files, "_CHUNK_SIZE", 1)
    monkeypatch.setattr(archive_files, "_WRITERS_MAX", writers)
    inner = archive_files.segment_rows

    def in_pieces(*log):
        for batch in inner(*log):
            yield from (batch.slice(at, 20) for at in range(0, batch.num_rows, 20))

    monkeypatch.setattr(archive_files, "segment_rows", in_pieces)
    result = archive(None, str(store), out=str(tmp_path / "a"), segments=["all"])
    assert (result.summary["parquet_files"] == 12) is is_one
    restore(None, str(tmp_path / "a"), out=str(tmp_path / "back"))
    cmp(store, tmp_path / "back")


def test_segment_with_missing_rows_is_not_archived(in_process, monkeypatch, tmp_path):
    """Otherwise expiry would delete bytes that exist nowhere else."""
    store = LogBuilder().fill(80).write(tmp_path / "d")
    rows = archive_files.segment_rows
    monkeypatch.setattr(archive_files, "segment_rows", lambda *log: list(rows(*log))[1:])
    with pytest.raises(LogDamagedError, match="not archived"):
        archive(None, str(store), out=str(tmp_path / "a"))
    assert read_manifest(DISK, str(tmp_path / "a")) is None


def test_archive_of_another_broker_is_refused(in_process, tmp_path):
    """It has other bytes for the same segment, and nothing is written."""
    store = LogBuilder().fill(80).write(tmp_path / "d")
    other = LogBuilder().fill(80, topic="theirs").write(tmp_path / "other")
    for name in ("d", "other"):
        for file in (tmp_path / name / "commitlog").iterdir():
            os.utime(file, (len(name), len(name)))
    archive(None, str(store), out=str(tmp_path / "a"))
    before = listing(tmp_path / "a")
    with pytest.raises(ArchiveConflictError, match="holds other bytes for segment 0000") as caught:
        archive(None, str(other), out=str(tmp_path / "a"))
    assert "another broker" in caught.value.hint
    assert caught.value.exit_code == 6
    assert listing(tmp_path / "a") == before


def test_refuses_other_folders_missing_stores_and_locked_archives(in_process, tmp_path):
    """A folder of other files stays unchanged; without a store no archive is created."""
    store = LogBuilder().fill(80).write(tmp_path / "d")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ArchiveConflictError, match="is not an archive"):
        archive(None, str(store), out=str(tmp_path / "full"))
    assert sorted(file.name for file in (tmp_path / "full").iterdir()) == ["notes.txt"]
    with pytest.raises(NotAStoreError):
        archive(None, str(tmp_path / "full"), out=str(tmp_path / "a"))
    with pytest.raises(NotAStoreError, match="no such directory"):
        archive(None, str(tmp_path / "none"), out=str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    archive(None, str(store), out=str(tmp_path / "a"))
    lock = DISK.lock(str(tmp_path / "a" / "lock"))
    with pytest.raises(StoreLockedError):
        archive(None, str(store), out=str(tmp_path / "a"))
    lock.release()


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("%RETRY%x", "%25RETRY%25x"),
        ("a/b=c", "a%2Fb%3Dc"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("订单", "订单"),
    ],
)
def test_topic_is_escaped_in_a_path_like_spark_does(topic, name):
    """So Spark reads the same topic back."""
    assert partition_name(topic) == name


def test_long_topics_get_short_distinct_names():
    """These two differ only at the end."""
    left, right = (partition_name("%" * 100 + end) for end in "ab")
    assert left != right
    assert max(len(left), len(right)) < 200


def test_archive_without_a_manifest_can_be_continued(tmp_path):
    """A first run that was killed leaves such a folder."""
    (tmp_path / "a" / "_staging").mkdir(parents=True)
    assert ArchiveFolder.open(DISK, str(tmp_path / "a")).segments == {}
