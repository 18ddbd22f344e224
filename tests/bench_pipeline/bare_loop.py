"""The references outside Spark: loops that do the same checks, but make no table.

bare      read a chunk, go from record to record, compare each body with its CRC
checking  the same, and compare each record with its ``__CRC32#`` too, as the decoder does
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from isal import isal_zlib

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.range_decoder import RangeDecoder
from hastore.columnar.row_filter import RowFilter
from hastore.env.real import real_env
from hastore.store.record.layout import MESSAGE_MAGIC_CODE, PROP_CRC_SIZE

CHUNK_SIZE = 4 * 1024 * 1024
HEAD = struct.Struct(">iii72xi")
BODY_START = HEAD.size
DIGITS = slice(-2, -12, -1)  # of a record: __CRC32# 01 dddddddddd 02, the last digit first


def bare_s(path: Path, *, checks_records: bool = False) -> tuple[float, int]:
    """Read and check one file; return the CPU seconds and the number of records."""
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    crc32, unpack = isal_zlib.crc32, HEAD.unpack_from
    began = time.process_time()
    position = records = 0
    while position < size:
        data = os.pread(descriptor, CHUNK_SIZE, position)
        view = memoryview(data)
        at, last = 0, len(data) - BODY_START
        while at <= last:
            record_size, magic, stored, body_size = unpack(data, at)
            end = at + record_size
            if magic != MESSAGE_MAGIC_CODE or end > len(data):
                break
            body = at + BODY_START
            assert crc32(view[body : body + body_size]) & 0x7FFFFFFF == stored
            if checks_records:
                found = crc32(view[at : end - PROP_CRC_SIZE]) & 0x7FFFFFFF
                assert found == int(data[end - 20 : end][DIGITS])
            at = end
            records += 1
        if not at:
            break  # the BLANK, or zeros
        position += at
    took_s = time.process_time() - began
    os.close(descriptor)
    return took_s, records


def decode_s(store: Path, columns: Sequence[str] | None, start: int, end: int) -> tuple[float, int]:
    """Decode a part of a log; return the CPU seconds and the number of rows."""
    disk = real_env().disk
    decoder = RangeDecoder(disk, columns)
    ranges = find_ranges(disk, str(store), Bounds(start_offset=start, end_offset=end))
    began = time.process_time()
    rows = sum(batch.num_rows for each in ranges for batch in decoder.decode(each))
    return time.process_time() - began, rows


def audit_s(store: Path) -> tuple[float, float, list[int]]:
    """Find damaged records on one core; return seconds, CPU seconds and the offsets."""
    disk = real_env().disk
    decoder = RangeDecoder(disk, ["physic_offset"], RowFilter(damaged=True))
    ranges = find_ranges(disk, str(store), Bounds())
    began, began_cpu = time.perf_counter(), time.process_time()
    found: list[int] = []
    for each in ranges:
        for batch in decoder.decode(each):
            found += batch["physic_offset"].to_pylist()
    return time.perf_counter() - began, time.process_time() - began_cpu, found


def main() -> None:
    """Wait for the end of the input, audit the store named in argv, and print the seconds."""
    store = Path(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
    print(audit_s(store)[0])


if __name__ == "__main__":
    main()
