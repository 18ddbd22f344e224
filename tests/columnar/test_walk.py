"""The fast walk through small records finds the same records as following their sizes."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.columnar import record_block
from hastore.columnar.record_block import walk
from hastore.store.record.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, RECORD_SIZE_MIN
from tests.support.store.log_builder import LogBuilder

MAGICS = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)


def plain_walk(data, position, end):
    """Follow the sizes, one record after the other."""
    found = []
    while position < end and position + RECORD_SIZE_MIN <= len(data):
        size, magic = struct.unpack_from(">ii", data, position)
        if size < RECORD_SIZE_MIN or position + size > len(data) or magic not in MAGICS:
            break
        found.append(position)
        position += size
    return found, position


def forged(size):
    """Return bytes for a body that look like a record's header."""
    return struct.pack(">ii", size, MESSAGE_MAGIC_CODE)


@pytest.fixture(scope="module")
def small_records():
    """A log of 400 small records; some bodies hold magics, or whole records."""
    builder = LogBuilder(file_size=1 << 20)
    inner = bytes(LogBuilder(file_size=1 << 20).fill(1).data)
    bodies = {150: forged(91), 151: forged(-1) * 9, 220: inner, 221: inner[4:], 399: inner}
    for number in range(400):
        builder.add(bodies.get(number, b"x" * (number % 50)), topic="t")
    return bytes(builder.data), builder.offsets


@given(st.data())
def test_walk_equals_the_plain_walk(small_records, data):
    """It holds for any begin, end and cut, even if a few bytes are changed."""
    raw, offsets = small_records
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    start = data.draw(st.sampled_from(offsets[:300]))
    cut = data.draw(st.integers(start, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    expected = plain_walk(bytes(changed[:cut]), start, end)
    starts, next_position = walk(bytes(changed[:cut]), start, end)
    assert (starts.tolist(), next_position) == expected


def test_most_small_records_are_walked_at_once(small_records, monkeypatch):
    """After a sample, all records up to the first magic in a body are found in one step."""
    raw, offsets = small_records
    counts = []
    chained = record_block._chained

    def recorded(*arguments):
        starts, next_position = chained(*arguments)
        counts.append(len(starts))
        return starts, next_position

    monkeypatch.setattr(record_block, "_chained", recorded)
    starts, _ = walk(raw, 0, len(raw))
    assert np.array_equal(starts, offsets)
    assert 85 <= counts[0] <= 100
    assert len(walk(raw[: offsets[149]], 0, len(raw))[0]) == 149
