"""Stores are DataFrames with the rows of their logs; files that cannot match are not read."""

import json
import os

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from hastore.columnar.log_schema import COLUMNS
from hastore.errors import (
    ConfigError,
    DiskError,
    LogDamagedError,
    NotAStoreError,
)
from hastore.pipeline.source.batch_reader import make_reader, task_count
from hastore.pipeline.source.options import ReadOptions
from hastore.pipeline.spark.errors import own_error
from hastore.pipeline.spark.session import register
from hastore.pipeline.spark.table import read
from tests.support.store.expected_rows import check_manifest, plain, walked
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
GOLDEN = ["clean", "crashed", "crashed_torn", "crashed_torn_props", "propcrc", "replica_master"]


def rows_of(frame):
    """Return all rows, in the order of the log, with times in ms."""
    return plain(frame.toArrow().to_pylist(maps_as_pydicts="strict"))


def refused(call, kind):
    """Return our error, as found in the one that Spark raises."""
    with pytest.raises(PySparkException) as caught:
        call()
    error = own_error(caught.value)
    assert isinstance(error, kind), caught.value
    return error


def test_golden_stores_equal_their_manifests_row_by_row(spark, golden):
    """All stores are one table; a store without a manifest is compared with the walk."""
    frame = read(spark, [str(golden / name) for name in GOLDEN])
    assert frame.columns == list(COLUMNS)
    rows = rows_of(frame)
    for name in GOLDEN:
        own = [row for row in rows if row["store"] == str(golden / name)]
        assert own == walked(golden / name)
        manifest = golden / f"{name}.manifest.json"
        if manifest.exists():
            check_manifest(own, manifest)


def damaged_copies(golden_copy):
    """Copy a golden store with flips, cut or missing files, a torn tail, zeros, or random bytes."""
    names = {}

    def copy(name, file, change):
        path = golden_copy("clean", to=name)
        names[name] = path
        target = path / "commitlog" / f"{file * 65536:020d}"
        change(target)
        return path

    def overwrite(position, data):
        def change(target):
            with target.open("r+b") as file:
                file.seek(position)
                file.write(data)

        return change

    copy("flip", 1, overwrite(20_000, b"\xfe\xdc\xba"))
    copy("flip_head", 2, overwrite(0, b"\x7f"))
    copy("cut", 2, lambda target: os.truncate(target, 30_000))
    copy("missing", 3, lambda target: target.unlink())
    copy("zeros", 1, overwrite(10_000, bytes(5_000)))
    copy("rubbish", 4, overwrite(0, os.urandom(65_536)))
    copy("torn", 5, overwrite(0, b"\xff" * 300))
    return names


def test_damaged_copies_have_the_rows_and_flags_of_the_walk(spark, golden_copy):
    """No damage is skipped silently: each place is a row with offset, size and reason."""
    paths = damaged_copies(golden_copy)
    rows = rows_of(read(spark, [str(path) for path in paths.values()]))
    for name, path in paths.items():
        own = [row for row in rows if row["store"] == str(path)]
        assert own == walked(path), name
        bad = [row for row in own if not row["record_ok"]]
        assert bad, name
        assert rows_of(read(spark, str(path), damaged=True)) == bad
        assert all(row["fault"] for row in bad)
        if name == "missing":
            (gap,) = (row for row in bad if row["fault"].startswith("missing"))
            assert (gap["physic_offset"], gap["size"]) == (3 * 65_536, 65_536)


def test_frame_has_only_the_selected_columns(spark, tmp_path):
    """`columns=` selects them; an unknown name or a wrong type is one clear error."""
    path = str(LogBuilder().fill(30).write(tmp_path))
    frame = read(spark, path, columns=["crc_ok", "physic_offset"])
    assert frame.columns == ["crc_ok", "physic_offset"]
    assert rows_without_times(frame) == [
        {"crc_ok": True, "physic_offset": row["physic_offset"]} for row in walked(tmp_path)
    ]
    with pytest.raises(ConfigError, match="no column is named 'bdy'"):
        read(spark, path, columns=["bdy"])
    source = spark.read.format("hastore")
    error = refused(lambda: source.schema("queue_id STRING").load(path).count(), ConfigError)
    assert "column queue_id is int, not string" in str(error)
    error = refused(lambda: source.schema("que INT").load(path).count(), ConfigError)
    assert "no column is named 'que'" in str(error)
    error = refused(lambda: source.option("bogus", 1).load(path).count(), ConfigError)
    assert "no option 'bogus'" in str(error)
    assert "startOffset" in error.hint


def test_only_selected_columns_leave_the_worker(spark, tmp_path):
    """The batches that a task hands to Spark have no columns that only a filter needs."""
    assert spark  # the JVM parses the schema
    path = str(LogBuilder().fill(30).write(tmp_path))
    given = {"path": path, "topic": "orders", "startTime": "0", "mode": "FAILFAST"}
    schema = StructType.fromDDL("crc_ok BOOLEAN, tags STRING")
    reader = make_reader(ReadOptions.parse(given), schema)
    sent = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in sent) == 30
    assert {tuple(batch.schema.names) for batch in sent} == {("crc_ok", "tags")}
    assert sum(batch.nbytes for batch in sent) < 30 * 50


def test_changed_or_unreadable_file_is_one_clear_error(spark, tmp_path):
    """It is cut after the plan was made, deleted or unreadable; the error names its path."""
    builder = LogBuilder(file_size=1 << 16).fill(1_000)
    path = builder.write(tmp_path / "n1")
    target = path / "commitlog" / f"{1 << 16:020d}"
    frames = [read(spark, str(path), ["topic"], tasks=1) for _ in range(2)]
    for frame in frames:
        assert frame._jdf.queryExecution().toRdd().getNumPartitions() == 1  # planned by now
    os.truncate(target, 1 << 15)
    error = refused(frames[0].collect, DiskError)
    assert f"{target} was cut while it was read: 65536 bytes before, 32768 now" in str(error)
    assert error.hint
    target.unlink()
    error = refused(frames[1].collect, DiskError)
    assert str(target) in str(error)
    target.write_bytes(bytes(1 << 16))
    target.chmod(0)
    if os.geteuid():  # root may read everything
        error = refused(read(spark, str(path), ["topic"]).collect, DiskError)
        assert str(target) in str(error)


def rows_without_times(frame):
    """Return the rows of a table without time columns."""
    return frame.toArrow().to_pylist()


def test_files_that_cannot_match_are_not_read(spark, tmp_path):
    """A damaged file is an error under FAILFAST, unless a filter or an option excludes it."""
    builder = LogBuilder().fill(200)
    path = builder.write(tmp_path)
    files = sorted((path / "commitlog").iterdir())
    assert len(files) > 6
    files[1].write_bytes(b"\xee" * 4096)
    begin = int(files[3].name)
    wanted = [offset for offset in builder.offsets if offset >= begin]
    first_ms = FIRST_MS + builder.offsets.index(wanted[0])

    def offsets(*conditions, pushdown=False, **options):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushdown).lower())
        if pushdown:
            options["filterPushdown"] = True
        try:
            frame = read(
                spark,
                str(path),
                ["physic_offset", "store_timestamp", "topic"],
                mode="FAILFAST",
                **options,
            )
            for condition in conditions:
                frame = frame.where(condition)
            return [row["physic_offset"] for row in rows_without_times(frame)]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert offsets(startOffset=begin) == wanted
    assert offsets(startTime=first_ms) == wanted
    assert offsets(endOffset=builder.offsets[5]) == builder.offsets[:5]
    at = sf.col("physic_offset")
    late = at >= begin
    assert offsets(late, pushdown=True) == wanted
    assert offsets(at > begin, at < wanted[9], pushdown=True) == wanted[1:9]
    assert offsets(at == wanted[7], pushdown=True) == [wanted[7]]
    time = sf.timestamp_millis(sf.lit(first_ms))
    assert offsets(sf.col("store_timestamp") >= time, pushdown=True) == wanted
    assert offsets(late, sf.col("topic") == "none", pushdown=True) == []
    error = refused(lambda: offsets(late), LogDamagedError)
    assert f"{files[1]} is damaged at offset 4096" in str(error)
    assert "PERMISSIVE" in error.hint


def test_push_down_does_not_change_results(spark, tmp_path):
    """Filters that are pushed down, and others, select the same rows."""
    builder = LogBuilder().fill(60).fill(20, topic="other", queue_id=2).fill(40, queue_id=1)
    path = str(builder.write(tmp_path, data=builder.flipped(builder.offsets[70] + 95)))
    middle = builder.offsets[65]
    conditions = [
        "topic = 'other' AND queue_id = 2",
        f"physic_offset > {middle} OR topic = 'orders'",
        f"physic_offset BETWEEN {middle} AND {middle + 2000} AND record_ok",
        "NOT record_ok",
        "store_timestamp <= TIMESTAMP_MILLIS(1700000000050)",
        "topic IN ('other', 'x') AND physic_offset < 9e9",
        "physic_offset < 0 OR queue_id IS NULL",
        "physic_offset >= -5 AND physic_offset <= 9223372036854775807",
    ]
    columns = ["physic_offset", "topic", "queue_id", "record_ok", "store_timestamp"]
    frame = read(spark, path, columns)
    counts = list(frame.select(*(sf.count_if(sf.expr(some)) for some in conditions)).first())
    assert counts[0] == 20
    assert counts[3] == 1
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, count in zip(conditions, counts, strict=True):
            pushing = read(spark, path, columns, filterPushdown=True)
            assert pushing.where(condition).count() == count
        # Spark keeps what one query pushed in the frame, so a frame of many queries pushes nothing.
        both = frame.where(conditions[0]).unionAll(frame.where(conditions[1]))
        assert both.count() == counts[0] + counts[1]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_fail_fast_raises_an_error_with_file_and_offset(spark, tmp_path):
    """By default, with PERMISSIVE, damage is a row."""
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path, data=builder.flipped(builder.offsets[50] + 95))
    error = refused(
        lambda: read(spark, str(path), ["topic"], mode="failfast").count(), LogDamagedError
    )
    assert f"is damaged at offset {builder.offsets[50]}: bad-body-crc" in str(error)
    assert read(spark, str(path), ["record_ok"]).where("NOT record_ok").count() == 1


def test_reads_globs_and_lists_of_stores(spark, tmp_path):
    """Each store is read once, and named in a column; a glob skips what is not a directory."""
    for name in ("n1", "n2", "n3"):
        LogBuilder().fill(int(name[1]) * 10).write(tmp_path / name)
    (tmp_path / "n9").write_text("a file")
    expected = {str(tmp_path / f"n{number}"): number * 10 for number in (1, 2, 3)}

    def counted(frame):
        return {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()}

    register(spark)
    assert counted(read(spark, f"{tmp_path}/n*", ["store"])) == expected
    paths = [f"{tmp_path}/n[12]", f"{tmp_path}/n2", f"file://{tmp_path}/n3"]
    assert counted(read(spark, paths, ["store"])) == expected
    frame = spark.read.format("hastore").load([str(tmp_path / "n1"), str(tmp_path / "n2")])
    assert frame.count() == 30
    assert spark.read.format("hastore").option("startOffset", 1).load(f"{tmp_path}/n1").count() == 9
    error = refused(lambda: read(spark, f"{tmp_path}/x*").count(), ConfigError)
    assert "matches no directory" in str(error)
    error = refused(lambda: read(spark, f"{tmp_path}/n9").count(), (NotAStoreError, DiskError))
    assert f"{tmp_path}/n9" in str(error)
    error = refused(lambda: read(spark, f"{tmp_path}/gone").count(), NotAStoreError)
    assert "no such directory" in str(error)


def tasks_of(frame):
    """Return the number of rows of each task that has any."""
    counts = frame.groupBy(sf.spark_partition_id().alias("task")).count().collect()
    return {row["task"]: row["count"] for row in counts}


def test_small_files_share_tasks_and_a_large_one_is_split(spark, tmp_path):
    """There is one task for each core, whatever the file sizes; `tasks` sets another number."""
    many = LogBuilder(file_size=1024).fill(400).write(tmp_path / "many")
    assert len(list((many / "commitlog").iterdir())) > 80
    one = LogBuilder(file_size=1 << 20).fill(3_000).write(tmp_path / "one")
    for path, count in ((many, 400), (one, 3_000)):
        for tasks, options in ((2, {}), (4, {"cores": 4}), (7, {"tasks": 7}), (1, {"tasks": 1})):
            found = tasks_of(read(spark, str(path), ["physic_offset"], **options))
            assert len(found) == tasks
            assert sum(found.values()) == count
            assert max(found.values()) < 1.6 * count / tasks


@pytest.mark.parametrize(
    ("mib", "cores", "tasks"),
    [(0, 2, 2), (64, 2, 2), (1024, 1, 2), (1024, 2, 2), (1536, 2, 3), (9999, 2, 4), (9999, 64, 64)],
)
def test_large_logs_have_more_tasks_than_cores(mib, cores, tasks):
    """A task costs 50 ms, so it should read half a GiB."""
    assert task_count(mib << 20, cores) == tasks


def test_tasks_never_begin_inside_a_body(spark, tmp_path):
    """Each body holds a valid forged record with the physical offset at which it lies."""
    builder = LogBuilder(file_size=1 << 20)
    for _ in range(200):
        inner = LogBuilder(file_size=1 << 20).add(b"forged", physic_offset=builder.end + 88)
        builder.add(bytes(inner.data) + bytes(500))
    path = builder.write(tmp_path)
    frame = read(spark, str(path), ["physic_offset", "record_ok"], tasks=9)
    rows = rows_without_times(frame)
    assert rows == [{"physic_offset": offset, "record_ok": True} for offset in builder.offsets]


def test_empty_logs_have_no_rows_and_all_columns(spark, tmp_path):
    """Without `columns`, Spark's own reader returns the same table."""
    path = LogBuilder().write(tmp_path / "empty", data=bytes(4096))
    assert read(spark, str(path)).count() == 0
    (tmp_path / "none" / "commitlog").mkdir(parents=True)
    assert read(spark, str(tmp_path / "none")).collect() == []
    path = LogBuilder().fill(10).write(tmp_path / "n1")
    frame = spark.read.format("hastore").load(str(path))
    assert json.loads(frame.schema.json()) == json.loads(read(spark, str(path)).schema.json())
    assert rows_of(frame) == walked(path)
