"""Options of the source are parsed strictly; each mistake is an error with a hint."""

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


def test_options_are_parsed(tmp_path):
    """Names ignore case; times are ms or ISO 8601, in UTC unless a zone is named."""
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
    ("wrong", "message"),
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
def test_wrong_option_is_named(wrong, message):
    """The error has the option and its value, the hint what it accepts."""
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse({"path": "/data/n1"} | wrong)
    assert message in str(caught.value)
    assert caught.value.hint


def test_path_is_required():
    """The schema needs it, too."""
    with pytest.raises(ConfigError, match="needs a path"):
        ReadOptions.parse({})
    with pytest.raises(ConfigError, match="needs a path"):
        HaStoreDataSource({}).schema()


def test_schema_selects_columns_and_checks_their_types(spark):
    """Columns have any order; the error about a wrong type names the right one."""
    schema = StructType.fromDDL(table_ddl(["body", "properties", "store_timestamp"]))
    assert columns_of(schema) == ["body", "properties", "store_timestamp"]
    with pytest.raises(ConfigError, match="column size is int, not bigint"):
        columns_of(StructType.fromDDL("size BIGINT"))
    with pytest.raises(ConfigError, match="no column is named 'nothing'"):
        columns_of(StructType.fromDDL("nothing INT"))


def test_pushed_filters_narrow_the_read(spark, tmp_path):
    """Spark applies every filter as well; the narrower of option and filter counts."""
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


def test_directory_with_glob_characters_is_taken_literally(tmp_path):
    """Even if a glob found it, and its name is looked up a second time."""
    for name in ("[a]", "a"):
        (tmp_path / name).mkdir()
    odd, plain = str(tmp_path / "[a]"), str(tmp_path / "a")
    assert find_stores([odd]) == (odd,)
    assert find_stores(find_stores([f"{tmp_path}/*"])) == (odd, plain)
    assert find_stores([f"{tmp_path}/[b-z[]a[]]", f"{tmp_path}/[a-z]"]) == (odd, plain)


def test_log_that_is_named_twice_is_read_once(tmp_path):
    """By its root, its commitlog, with a slash or through a link; the first name is kept."""
    one = LogBuilder().fill(10).write(tmp_path / "one")
    two = LogBuilder().fill(10).write(tmp_path / "two")
    (tmp_path / "link").symlink_to(one)
    given = [f"{one}/", str(one), str(one / "commitlog"), str(tmp_path / "*")]
    assert find_stores(given) == (f"{one}/", str(two))
    assert find_stores([str(one / "commitlog"), str(one)]) == (str(one / "commitlog"),)
    assert find_stores([str(tmp_path / "none")]) == (str(tmp_path / "none"),)


@pytest.mark.parametrize("name", ["startingOffset", "maxBytesPerTrigger", "failOnDataLoss"])
def test_batch_read_refuses_options_of_streams(name):
    """They are easily mistaken for startOffset, and would be ignored."""
    source = HaStoreDataSource({"path": "/data/n1", name.lower(): "7"})
    with pytest.raises(ConfigError, match=f"option {name} is for streams only"):
        source.reader(StructType())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["topic", "size", "topic"], "column topic is asked for twice"),
        ("topic", "columns is 'topic', not a list"),
        (["topik"], "no column is named 'topik'"),
        ([], "no column is asked for"),
    ],
)
def test_wrong_columns_are_named(columns, message):
    """The error comes before Spark plans anything."""
    with pytest.raises(ConfigError, match=message):
        table_ddl(columns)


def test_option_that_is_none_is_ignored(spark, tmp_path):
    """It does not become a topic named None."""
    store = str(LogBuilder().fill(5).write(tmp_path / "n"))
    assert read(spark, store, ["topic"], topic=None, startOffset=None).count() == 5
