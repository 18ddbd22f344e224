"""Options of the source: read strictly, by names without case, each mistake an error that helps."""

import datetime as dt
import json

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual, StringContains
from pyspark.sql.types import StructType

from hastore.errors import ConfigError
from hastore.pipeline.source.batch_reader import PushingLogReader, make_reader
from hastore.pipeline.source.data_source import HaStoreDataSource
from hastore.pipeline.source.options import ReadOptions, find_stores
from hastore.pipeline.source.table_schema import columns_of, table_ddl
from hastore.pipeline.spark.table import read
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


def test_options_are_read(tmp_path):
    """Names without case; times as ms or ISO 8601, UTC where no zone is named."""
    options = ReadOptions.parse(
        {
            "PATH": str(tmp_path),
            "startoffset": "5",
            "startTime": "2023-11-14T22:13:20",
            "endTime": "2023-11-14T23:13:20+01:00",
            "mode": "failfast",
            "failOnDataLoss": "FALSE",
        }
    )
    assert options.stores == (str(tmp_path),)
    assert options.start_offset == 5
    assert options.start_time_ms == options.end_time_ms == FIRST_MS
    assert options.mode == "FAILFAST"
    assert not options.fail_on_data_loss
    assert ReadOptions.parse({"path": "/x", "startTime": "17"}).start_time_ms == 17


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ofset": "1"}, "no option 'ofset'"),
        ({"startOffset": "-1"}, "option startOffset: '-1' is not a number from 0"),
        ({"endOffset": "9" * 5_000}, "option endOffset"),
        ({"endOffset": str(2**63)}, "option endOffset"),
        ({"queueId": "two"}, "option queueId"),
        ({"queueId": str(2**31)}, "option queueId"),
        ({"tasks": "0"}, "option tasks: '0' is not a number from 1"),
        ({"maxBytesPerTrigger": "64m"}, "option maxBytesPerTrigger"),
        ({"startTime": "yesterday"}, "option startTime"),
        ({"startTime": "9" * 30}, "option startTime"),
        ({"mode": "DROPMALFORMED"}, "option mode"),
        ({"filterPushdown": "maybe"}, "option filterPushdown"),
        ({"startOffset": "500", "endOffset": "10"}, "startOffset 500 is after endOffset 10"),
        ({"startTime": "2024-01-01", "endTime": "7"}, "startTime 2024-01-01 is after endTime 7"),
        ({"paths": "/data/n1"}, "option paths"),
        ({"paths": "[1]"}, "option paths"),
        ({"paths": "[]"}, "no path is given"),
        ({"path": "/nowhere/*"}, "/nowhere/* matches no directory"),
    ],
)
def test_a_wrong_option_is_named(wrong, said):
    """The option, what it was given, and in the hint what it takes."""
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse({"path": "/data/n1"} | wrong)
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_path_is_needed():
    """Without one there is nothing to read."""
    with pytest.raises(ConfigError, match="needs a path"):
        ReadOptions.parse({})
    with pytest.raises(ConfigError, match="needs a path"):
        HaStoreDataSource({}).schema()


def test_a_schema_names_columns_and_their_types(spark):
    """Any order; another type than the column's is refused, with the one to give."""
    schema = StructType.fromDDL(table_ddl(["body", "properties", "store_timestamp"]))
    assert columns_of(schema) == ["body", "properties", "store_timestamp"]
    with pytest.raises(ConfigError, match="column size is int, not bigint"):
        columns_of(StructType.fromDDL("size BIGINT"))
    with pytest.raises(ConfigError, match="no column is named 'nothing'"):
        columns_of(StructType.fromDDL("nothing INT"))


def test_pushed_filters_narrow_what_is_read(spark, tmp_path):
    """Every filter stays with Spark too; the tighter of option and filter counts."""
    builder = LogBuilder().fill(200)
    path = str(builder.write(tmp_path))
    given = {"path": path, "filterPushdown": "true", "topic": "orders", "endOffset": "20000"}
    reader = make_reader(ReadOptions.parse(given), StructType.fromDDL("physic_offset BIGINT"))
    assert isinstance(reader, PushingLogReader)
    moment = dt.datetime.fromtimestamp(FIRST_MS / 1000 + 0.1505, dt.UTC)
    filters = [
        GreaterThan(("physic_offset",), 10_000),
        LessThanOrEqual(("physic_offset",), 2**63 - 1),
        LessThanOrEqual(("store_timestamp",), moment),
        EqualTo(("topic",), "another"),
        EqualTo(("queue_id",), 3),
        StringContains(("tags",), "x"),
    ]
    assert list(reader.pushFilters(filters)) == filters
    options = reader.options
    assert (options.start_offset, options.end_offset) == (10_000, 20_000)
    assert options.end_time_ms in range(FIRST_MS + 150, FIRST_MS + 152)
    assert (options.topic, options.queue_id) == ("orders", 3)
    segments = {r.segment for partition in reader.partitions() for r in partition.ranges}
    assert segments == {f"{offset:020d}" for offset in (8_192, 12_288, 16_384)}
    plain = make_reader(
        ReadOptions.parse({"paths": json.dumps([path])}), StructType.fromDDL("body BINARY")
    )
    assert not isinstance(plain, PushingLogReader)


def test_a_directory_with_the_signs_of_a_glob_is_itself(tmp_path):
    """Also where a glob has found it, and it is looked for by its name once more."""
    for name in ("[a]", "a"):
        (tmp_path / name).mkdir()
    odd, plain = str(tmp_path / "[a]"), str(tmp_path / "a")
    assert find_stores([odd]) == (odd,)
    assert find_stores(find_stores([f"{tmp_path}/*"])) == (odd, plain)
    assert find_stores([f"{tmp_path}/[b-z[]a[]]", f"{tmp_path}/[a-z]"]) == (odd, plain)


def test_a_log_that_is_named_twice_is_read_once(tmp_path):
    """By its root, its commitlog, a slash more or a link; the first name stays."""
    one = LogBuilder().fill(10).write(tmp_path / "one")
    two = LogBuilder().fill(10).write(tmp_path / "two")
    (tmp_path / "link").symlink_to(one)
    given = [f"{one}/", str(one), str(one / "commitlog"), str(tmp_path / "*")]
    assert find_stores(given) == (f"{one}/", str(two))
    assert find_stores([str(one / "commitlog"), str(one)]) == (str(one / "commitlog"),)
    assert find_stores([str(tmp_path / "none")]) == (str(tmp_path / "none"),)


@pytest.mark.parametrize("name", ["startingOffset", "maxBytesPerTrigger", "failOnDataLoss"])
def test_a_batch_takes_no_option_of_streams(name):
    """One name away from startOffset; it would be ignored."""
    source = HaStoreDataSource({"path": "/data/n1", name.lower(): "7"})
    with pytest.raises(ConfigError, match=f"option {name} is for streams only"):
        source.reader(StructType())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["topic", "size", "topic"], "column topic is asked for twice"),
        ("topic", "columns is 'topic', not a list"),
        (["topik"], "no column is named 'topik'"),
        ([], "no column is asked for"),
    ],
)
def test_wrong_columns_are_named(columns, said):
    """Before Spark plans anything."""
    with pytest.raises(ConfigError, match=said):
        table_ddl(columns)


def test_an_option_that_is_none_is_not_given(spark, tmp_path):
    """Not a topic of that name."""
    store = str(LogBuilder().fill(5).write(tmp_path / "n"))
    assert read(spark, store, ["topic"], topic=None, startOffset=None).count() == 5
