"""Logs are streams: a query has a start, continues after restarts, and notices lost records."""

import json
import shutil

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from hastore.env.real import real_env
from hastore.errors import ConfigError, LogDamagedError
from hastore.pipeline.source.options import ReadOptions
from hastore.pipeline.source.stream_reader import (
    LogReplacedError,
    LogStreamReader,
    OffsetsExpiredError,
)
from hastore.pipeline.spark.errors import own_error
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.pipeline.stream_sink import COLUMNS, StreamSink
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


def write_until(path, builder, end):
    """Write a log as it was when it ended at ``end``, padded by zeros; deleted files stay so."""
    log = path / "commitlog"
    log.mkdir(parents=True, exist_ok=True)
    size = builder.file_size
    first = min((int(file.name) for file in log.iterdir()), default=0)
    for start in range(first, end, size):
        data = bytes(builder.data[start : min(start + size, end)]).ljust(size, b"\0")
        (log / f"{start:020d}").write_bytes(data)
    return path


def confirm(path, offset):
    """Write a checkpoint with this confirm offset, as a node does."""
    checkpoint = StoreCheckpoint.open(real_env().disk, str(path))
    checkpoint.confirm_offset = offset
    checkpoint.physic_msg_timestamp = FIRST_MS
    checkpoint.flush()
    checkpoint.close()


def reader_of(*paths, **options):
    """Return the reader that Spark would use, in this process."""
    given = {"paths": json.dumps([str(path) for path in paths])} | options
    return LogStreamReader(ReadOptions.parse(given), COLUMNS)


def read_on(reader, start, *, limit=None):
    """Read a batch from ``start``; return the offsets of its rows, and where the next begins."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    offsets = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            offsets += batch["physic_offset"].to_pylist()
    return offsets, end


# -- the reader, called as Spark calls it ----------------------------------------------------------


def test_stream_begins_at_the_starting_offset(tmp_path):
    """It is earliest, latest, an offset or a time; inside a record it means the next one."""
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path / "n1")
    offsets = builder.offsets
    places = {
        "earliest": offsets,
        "latest": [],
        str(offsets[40]): offsets[40:],
        str(offsets[40] + 1): offsets[41:],
        str(builder.end): [],
        f"@{FIRST_MS + 70}": offsets[70:],
        "@2023-11-14T22:13:20.090": offsets[90:],
        f"@{FIRST_MS + 100}": [],
    }
    for place, expected in places.items():
        reader = reader_of(path, startingOffset=place)
        assert read_on(reader, reader.initialOffset())[0] == expected, place
    for wrong in ("first", str(builder.end + 1), "@noon", "-1"):
        with pytest.raises(ConfigError) as caught:
            reader_of(path, startingOffset=wrong).initialOffset()
        assert caught.value.hint


def test_batch_has_a_size_limit_but_at_least_one_record(tmp_path):
    """Batches end where records end; several stores share the limit."""
    builder = LogBuilder(file_size=1 << 16).fill(1_000)
    path = builder.write(tmp_path / "n1")
    for size_max in (1, 1_000, 30_000, 1 << 20):
        reader = reader_of(path, maxBytesPerTrigger=str(size_max))
        found, place, batches = [], reader.initialOffset(), 0
        while True:
            offsets, end = read_on(reader, place)
            if end == place:
                break
            size = end[str(path)] - place[str(path)]
            assert size <= size_max or len(offsets) <= 1
            found, place, batches = found + offsets, end, batches + 1
            if size_max == 1 and batches == 50:
                break
        assert found == builder.offsets[: len(found)]
        assert len(found) == (50 if size_max == 1 else 1_000)
    other = LogBuilder(file_size=1 << 16).fill(10).write(tmp_path / "n2")
    reader = reader_of(path, other, maxBytesPerTrigger="2000")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert 500 < end[str(path)] <= 1_000
    assert 500 < end[str(other)] <= 1_000


def test_nothing_above_the_confirm_offset_is_read(tmp_path):
    """Messages that no slave has may be lost with the master; a torn record waits, too."""
    builder = LogBuilder().fill(200)
    path = builder.write(tmp_path / "n1")
    reader = reader_of(path)
    confirm(path, builder.offsets[150] + 10)
    first, place = read_on(reader, reader.initialOffset())
    assert first == builder.offsets[:150]
    assert reader.reportLatestOffset() == place
    confirm(path, builder.end)
    assert read_on(reader, place)[0] == builder.offsets[150:]


def test_damage_is_a_row_of_the_stream(tmp_path):
    """It occurs once; FAILFAST raises an error, and a filter can exclude it."""
    builder = LogBuilder().fill(100)
    bad = builder.offsets[50]
    path = builder.write(tmp_path / "n1", data=builder.flipped(bad + 95))
    reader = reader_of(path)
    assert read_on(reader, reader.initialOffset())[0] == builder.offsets
    reader = reader_of(path, mode="FAILFAST")
    with pytest.raises(LogDamagedError, match=f"damaged at offset {bad}"):
        read_on(reader, reader.initialOffset())
    reader = reader_of(path, startTime=str(FIRST_MS + 60))
    assert read_on(reader, reader.initialOffset())[0] == builder.offsets[60:]


def test_restarted_reader_reads_the_same_rows_again(tmp_path):
    """Spark repeats a recorded batch with a new reader, although the log has grown since."""
    builder = LogBuilder().fill(200)
    path = write_until(tmp_path / "n1", builder, builder.offsets[120] + 7)
    reader = reader_of(path)
    start = reader.initialOffset()
    offsets, end = read_on(reader, start)
    write_until(path, builder, builder.end)
    again = reader_of(path)
    parts = again.partitions(start, end)
    rows = [batch for part in parts for batch in again.read(part)]
    assert [offset for row in rows for offset in row["physic_offset"].to_pylist()] == offsets
    assert read_on(again, end)[0] == builder.offsets[120:]


def test_recorded_batch_that_expired_has_no_rows(tmp_path):
    """Spark repeats it after a restart; later records follow in the next batches, once."""
    builder = LogBuilder(file_size=1 << 14).fill(300)
    path = builder.write(tmp_path / "n1")
    options = {"maxBytesPerTrigger": "3000", "failOnDataLoss": "false"}
    reader = reader_of(path, **options)
    start = reader.initialOffset()
    planned = reader.latestOffset(start, reader.getDefaultReadLimit())
    (path / "commitlog" / f"{0:020d}").unlink()
    again = reader_of(path, **options)
    assert again.partitions(start, planned) == []
    found, place = read_on(again, planned)
    while (batch := read_on(again, place))[1] != place:
        found, place = found + batch[0], batch[1]
    assert found == [offset for offset in builder.offsets if offset >= 1 << 14]
    with pytest.raises(OffsetsExpiredError):
        reader_of(path).partitions(start, planned)


# -- through Spark ---------------------------------------------------------------------------------


def refused(sink, kind, **options):
    """Return our error with which a query ends."""
    with pytest.raises(StreamingQueryException) as caught:
        sink.run(**options)
    error = own_error(caught.value)
    assert isinstance(error, kind), caught.value
    return error


def test_growing_log_is_read_once_across_query_restarts(spark, tmp_path):
    """Files roll, the query ends and starts again, and batches have a size limit."""
    builder = LogBuilder(file_size=1 << 16).fill(3_000)
    path = tmp_path / "n1"
    sink = StreamSink(spark, tmp_path / "out", [path])
    write_until(path, builder, builder.offsets[1_300] + 40)  # a record is half written
    sink.run()
    assert sink.offsets() == builder.offsets[:1_300]
    write_until(path, builder, builder.end)
    before = sink.begun
    rows = sink.run(maxBytesPerTrigger=200_000)
    assert [row["physic_offset"] for row in rows] == builder.offsets
    assert [row["queue_offset"] for row in rows] == list(range(3_000))
    least = -(-(builder.end - builder.offsets[1_300]) // 200_000)
    assert least <= sink.begun - before <= least + 1
    assert sink.run() == rows


def test_expired_or_replaced_log_is_an_error(spark, tmp_path):
    """With failOnDataLoss=false a gap is skipped; another log is always refused."""
    builder = LogBuilder(file_size=1 << 16).fill(3_000)
    path = tmp_path / "n1"
    sink = StreamSink(spark, tmp_path / "out", [path])
    write_until(path, builder, builder.offsets[900])
    sink.run()
    write_until(path, builder, builder.end)
    for number in range(4):
        (path / "commitlog" / f"{number << 16:020d}").unlink()
    first = 4 << 16
    error = refused(sink, OffsetsExpiredError)
    gap = f"offsets {builder.offsets[900]} to {first} expired"
    assert f"{path}: {gap} before they were read" in str(error)
    assert "failOnDataLoss=false" in error.hint
    sink.run(failOnDataLoss=False)
    left = [offset for offset in builder.offsets if offset >= first]
    assert sink.offsets() == builder.offsets[:900] + left
    shutil.rmtree(path)
    LogBuilder(file_size=1 << 16).fill(200).write(path)
    error = refused(sink, LogReplacedError)
    assert f"{path} is not the log that was read before" in str(error)
