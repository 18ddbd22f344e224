"""Tables have the bodies that producers compressed as they were sent."""

import zlib

import pyarrow as pa
import pytest

from hastore.columnar import record_columns
from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.range_decoder import RangeDecoder
from hastore.columnar.row_filter import RowFilter
from hastore.env.real import real_env
from hastore.store.record.body_compression import BODY_SIZE_MAX
from tests.support.store.expected_rows import plain, walked
from tests.support.store.log_builder import LogBuilder

DISK = real_env().disk
TEXT = b"a body of some kilobytes " * 200
PACKED = zlib.compress(TEXT)
ZLIB = 1 | 3 << 8
STORED = [(b"first", 0), (PACKED, ZLIB), (b"", 0), (PACKED[:-9], ZLIB), (PACKED, 1), (b"last", 0)]


@pytest.fixture
def store(tmp_path):
    """A log with compressed, plain and damaged bodies."""
    builder = LogBuilder()
    for body, sys_flag in STORED:
        builder.add(body, sys_flag=sys_flag)
    return builder.write(tmp_path / "D1")


def rows_of(store, columns=None, **options):
    decoder = RangeDecoder(DISK, columns, **options)
    return [
        row
        for log_range in find_ranges(DISK, str(store), Bounds())
        for batch in decoder.decode(log_range)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


def test_bodies_are_decoded_and_a_fault_says_which_are_not(store):
    """``sys_flag``, ``crc_ok`` and ``record_ok`` are about what is stored."""
    rows = rows_of(store)
    fault = "its zlib data ends too early"
    assert [(row["body"], row["body_fault"]) for row in rows] == [
        (b"first", None),
        (TEXT, None),
        (b"", None),
        (PACKED[:-9], fault),
        (TEXT, None),
        (b"last", None),
    ]
    assert [row["sys_flag"] for row in rows] == [flag for _, flag in STORED]
    assert all(row["crc_ok"] and row["record_ok"] for row in rows)
    assert plain(rows) == walked(store)


@pytest.mark.parametrize("column", ["body", "body_fault"])
def test_each_of_the_two_columns_can_be_read_alone(store, column):
    """It has the same values as beside the other."""
    both = rows_of(store, ["body", "body_fault"])
    assert rows_of(store, [column]) == [{column: row[column]} for row in both]


def test_raw_bodies_are_those_of_the_records(store):
    """None is at fault."""
    rows = rows_of(store, ["body", "body_fault"], raw_bodies=True)
    assert [row["body"] for row in rows] == [body for body, _ in STORED]
    assert {row["body_fault"] for row in rows} == {None}


def test_a_block_that_decodes_to_much_comes_in_several_batches(store, monkeypatch):
    """No row is lost or left compressed, whatever the others decode to."""
    one_batch = rows_of(store)
    monkeypatch.setattr(record_columns, "DECODED_SIZE_MAX", 1)
    decoder = RangeDecoder(DISK)
    (log_range,) = find_ranges(DISK, str(store), Bounds())
    batches = list(decoder.decode(log_range))
    assert [batch.num_rows for batch in batches] == [3, 1, 2]
    assert rows_of(store) == one_batch


def test_bodies_that_fail_at_the_limit_come_in_several_batches():
    """They cost as much as those that are decoded."""
    bomb = zlib.compress(bytes(BODY_SIZE_MAX + 1))
    columns = {
        "sys_flag": pa.array([1, 1], pa.int32()),
        "body": pa.array([bomb, bomb], pa.binary()),
        "body_fault": pa.nulls(2, pa.string()),
    }
    batches = list(record_columns.with_decoded_bodies(pa.RecordBatch.from_pydict(columns)))
    assert [batch["body"].to_pylist() for batch in batches] == [[bomb], [bomb]]
    assert all("more than" in batch["body_fault"][0].as_py() for batch in batches)


def test_rows_that_a_filter_leaves_out_are_not_decoded(store, monkeypatch):
    """Only those of the topic that is asked for cost anything."""
    decoded = []
    decode = record_columns.decode_body

    def counting(body, sys_flag):
        decoded.append(body)
        return decode(body, sys_flag)

    monkeypatch.setattr(record_columns, "decode_body", counting)
    assert rows_of(store, ["body"], row_filter=RowFilter(topic="another")) == []
    assert decoded == []
