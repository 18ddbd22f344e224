"""The pipeline's benchmarks compare like with like: all readers see the same messages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.log_schema import COLUMNS
from hastore.columnar.range_decoder import RangeDecoder
from hastore.env.real import real_env
from tests.bench_pipeline.bare_loop import audit_s, bare_s
from tests.bench_pipeline.decode_bench import bench_decode
from tests.bench_pipeline.log_files import damage, write_log
from tests.bench_pipeline.row_source import RowReader
from tests.support.store.expected_rows import plain

FILE_SIZE = 256 * 1024


@pytest.mark.parametrize("body_size", [100, 1024])
def test_all_readers_see_the_same_messages(tmp_path: Path, body_size: int) -> None:
    """The loops, the decoder and the plain source agree on the number of records and on rows."""
    count = write_log(tmp_path, 1 << 20, body_size, file_size=FILE_SIZE)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) == 4
    for checks_records in (False, True):
        found = [bare_s(file, checks_records=checks_records)[1] for file in files]
        assert sum(found) == count > 500
    assert audit_s(tmp_path)[2] == []
    disk = real_env().disk
    ranges = find_ranges(disk, str(tmp_path), Bounds())
    rows = [row for each in ranges for batch in RangeDecoder(disk).decode(each)
            for row in batch.to_pylist(maps_as_pydicts="strict")]  # fmt: skip
    reader = RowReader(str(tmp_path), len(files), list(COLUMNS))
    tuples = [row for part in reader.partitions() for row in reader.read(part)]
    assert plain([dict(zip(COLUMNS, row, strict=True)) for row in tuples]) == plain(rows)
    for row in bench_decode(tmp_path, "a few"):
        assert row.ratio > 0
    offsets = damage(tmp_path)
    assert audit_s(tmp_path)[2] == offsets == [index * FILE_SIZE for index in range(4)]


def test_bare_loop_detects_a_flipped_byte(tmp_path: Path) -> None:
    """Only the loop that checks whole records detects one in a topic."""
    write_log(tmp_path, FILE_SIZE, 100, file_size=FILE_SIZE)
    (file,) = (tmp_path / "commitlog").iterdir()
    intact = file.read_bytes()
    for position, loops in ((100, (False, True)), (190, (True,))):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        for checks_records in loops:
            with pytest.raises(AssertionError):
                bare_s(file, checks_records=checks_records)
