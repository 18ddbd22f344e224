"""Jobs write and read local files, no matter which file system is Spark's default."""

import pytest

pytest.importorskip("pyspark")

from hastore.pipeline.archive.job import archive, read_archive
from hastore.pipeline.report.histories import read_lines
from hastore.pipeline.transfer.export_job import export
from hastore.pipeline.transfer.import_rows import find_files, read_rows
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def hdfs(spark):
    """Make an unreachable HDFS the file system of paths without a scheme, as on YARN."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    yield
    hadoop.set("fs.defaultFS", before)


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_export_is_a_local_file(spark, hdfs, tmp_path, file_format):
    """Spark writes the parts and hastore joins them, both in the same directory."""
    store = LogBuilder().fill(30).write(tmp_path / "n1")
    to = tmp_path / f"all.{file_format}"
    export(spark, str(store), str(to))
    assert len(list(read_rows(find_files(str(to))))) == 30


def test_archives_and_histories_are_read_as_local_files(spark, hdfs, tmp_path):
    """Their names look like globs, but are taken literally."""
    store = LogBuilder().fill(60).write(tmp_path / "n1")
    folder = tmp_path / "a[1]{x}*"
    archive(spark, str(store), out=str(folder))
    table = read_archive(spark, str(folder))
    assert {row["topic"] for row in table.select("topic").distinct().collect()} == {None, "orders"}
    history = tmp_path / "h[1].jsonl"
    history.write_text('{"type": "ok", "op": 3}\n')
    (row,) = read_lines(spark, [str(history)], "type STRING, op INT, broken STRING").collect()
    assert (row["type"], row["op"], row["broken"]) == ("ok", 3, None)
