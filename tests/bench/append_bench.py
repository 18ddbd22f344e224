"""In-process append of 1 KiB messages, against a bare loop that does nothing else.

The bare loop writes the same bytes (tests/bench/test_bench.py reads them back): it packs the fixed
fields with the time, takes zlib's CRC32 of the body and of the record for ``__CRC32#``, and copies
the record into a map.  It creates no objects, counts no queue offsets, checks nothing, and has
topic and properties as bytes.  Both write to a fresh, allocated file and take its page faults.
"""

from __future__ import annotations

import gc
import mmap
import os
import struct
import time
import zlib
from pathlib import Path

from hastore.config import MIB, StoreConfig
from hastore.env.real import real_env
from hastore.status import AppendMessageStatus
from hastore.store.commit_log import CommitLog
from tests.bench.nodes import BODY, PROPERTIES, TOPIC, message, scratch
from tests.support.bench.bound import Bound, Row

PAIRS = 5
COUNT = 150_000
FILE_SIZE = 512 * MIB
FILE_NAME = "00000000000000000000"
FIXED = struct.Struct(">iiiiiqqiq8sq8siqi")

BOUND = Bound(
    key="append",
    work="in-process append, 1 KiB",
    text="≤ 1.5 × bare loop",
    limit=1.5,
)


def bench_append(directory: Path) -> Row:
    """Measure microseconds a message."""
    pairs = []
    for _ in range(PAIRS):
        with scratch(directory, "append") as path:
            ours = append_us(path)
        with scratch(directory, "bare") as path:
            bare = bare_us(path / FILE_NAME)
        pairs.append((ours, bare))
    return Row.of_pairs(
        BOUND,
        pairs,
        "µs/message",
        note="with __CRC32#; reference: the same bytes, with zlib",
    )


def append_us(path: Path, count: int = COUNT) -> float:
    """Append through the commit log; return µs a message."""
    log = CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path), mapped_file_size=FILE_SIZE),
        store_host=("127.0.0.1", 10911),
        needs_queue_offsets=True,
    )
    queue = log.mapped_file_queue
    if not queue.files:
        queue.offer(queue.create_file(0))
    each = message()
    append = log.append_message
    gc.collect()
    began = time.perf_counter()
    for _ in range(count):
        append(each)
    took_s = time.perf_counter() - began
    result = append(each)
    assert result.status is AppendMessageStatus.PUT_OK
    assert result.queue_offset == count
    log.close(clean=False)
    return took_s / count * 1e6


def bare_us(path: Path, count: int = COUNT) -> float:
    """Write the same records in a bare loop; return µs a message."""
    topic = TOPIC.encode()
    properties = b"".join(f"{k}\x01{v}\x02".encode() for k, v in PROPERTIES.items())
    tail = bytes([len(topic)]) + topic + struct.pack(">h", len(properties) + 20) + properties
    tail += b"__CRC32#\x01"
    size = FIXED.size + len(BODY) + len(tail) + 11
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, FILE_SIZE)
    with mmap.mmap(descriptor, FILE_SIZE) as mapped, memoryview(mapped) as view:
        pack, crc32, body, time_ns = FIXED.pack, zlib.crc32, BODY, time.time_ns
        position = 0
        gc.collect()
        began = time.perf_counter()
        for index in range(count):
            now_ms = time_ns() // 1_000_000
            record = pack(
                size, -626843481, crc32(body) & 0x7FFFFFFF, 0, 0, index, position, 0, now_ms, host,
                now_ms, host, 0, 0, len(body),
            ) + body + tail  # fmt: skip
            digits = b"%010d\x02" % (crc32(record[:-9]) & 0x7FFFFFFF)
            view[position : position + size] = record + digits[9::-1] + b"\x02"
            position += size
        took_s = time.perf_counter() - began
    os.close(descriptor)
    return took_s / count * 1e6
