"""How a slave learns its master's file size."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.ha import file_size_watch
from hastore.ha.file_size_watch import FirstBlankFinder, ends_with_blank, find_first_blank
from hastore.store.record.layout import BLANK_MAGIC_CODE

RECORD = struct.pack(">ii", 100, -626843481) + bytes(range(92))


def blank(size):
    return struct.pack(">ii", size, BLANK_MAGIC_CODE) + bytes(size - 8)


LOG = RECORD * 5 + blank(500) + RECORD * 3


@given(st.lists(st.integers(1, 300), min_size=1))
def test_the_first_blank_is_found_however_the_stream_is_cut(cuts):
    """The end of the first BLANK is the end of the file."""
    finder = FirstBlankFinder(0)
    position, found = 0, None
    index = 0
    while found is None and position < len(LOG):
        size = cuts[index % len(cuts)]
        index += 1
        found = finder.feed(position, LOG[position : position + size])
        position += size
    assert found == 1000


def test_a_walk_over_a_log_stops_at_its_first_blank_or_its_end():
    """The slave reads its own log in chunks; without a BLANK the finder waits for more bytes."""
    finder = FirstBlankFinder(0)
    find_first_blank(finder, lambda at, size: LOG[at : at + size], len(LOG))
    assert finder.found == 1000
    finder = FirstBlankFinder(0)
    find_first_blank(finder, lambda at, size: LOG[at : at + size], 450)
    assert finder.found is None
    assert finder.feed(450, LOG[450:]) == 1000


def test_of_large_records_only_the_start_is_read():
    """Small ones among them are read as ever; the log may end inside a large one."""
    size = 4 * 1024 * 1024
    large = struct.pack(">ii", size, -626843481) + bytes(size - 8)
    log = large + RECORD * 300 + large + blank(500)
    reads = []

    def read(at, size):
        reads.append(size)
        return log[at : at + size]

    end = 2 * size + 30_000
    finder = FirstBlankFinder(0)
    for until in (end - size, end - 1, end + 4, end + 500):
        find_first_blank(finder, read, until)
        assert finder.fed_until >= min(until, end)
        assert finder.fed_until <= until
    assert finder.found == end + 500
    assert sum(reads) < size


def test_walk_continues_where_the_last_one_stopped(monkeypatch):
    """Only a failed read is repeated, and nothing is read after the BLANK's chunk."""
    monkeypatch.setattr(file_size_watch, "_WALK_CHUNK_SIZE", 64)
    reads = []

    def read(at, size):
        reads.append((at, at + size))
        if len(reads) == 4:
            raise OSError(5, "the disk")
        return LOG[at : at + size]

    finder = FirstBlankFinder(0)
    find_first_blank(finder, read, 100)
    with pytest.raises(OSError, match="the disk"):
        find_first_blank(finder, read, 300)
    for end in (300, 300, 600, 700, len(LOG)):
        find_first_blank(finder, read, end)
    assert finder.found == 1000
    begins, ends = zip(*reads[:3], *reads[4:], strict=True)
    assert begins == (0, *ends[:-1])
    assert ends[-1] == 556  # the end of the chunk in which the BLANK begins


def test_first_blank_stays_found():
    """Later bytes change nothing, even another BLANK."""
    finder = FirstBlankFinder(0)
    assert finder.feed(0, LOG) == 1000
    assert finder.feed(len(LOG), blank(8) * 5) == 1000


def test_walk_ends_at_bytes_that_are_not_records():
    """The walk cannot step over an impossible size."""
    finder = FirstBlankFinder(0)
    assert finder.feed(0, bytes(64)) is None
    assert finder.is_lost
    assert finder.feed(64, bytes(64)) is None


@pytest.mark.parametrize("size", [8, 9, 247, 248, 249, 255, 256, 257, 263, 264, 265, 500, 5000])
def test_frame_body_that_ends_with_a_blank_is_detected(size):
    """A BLANK of any size counts, but only at the very end of the body."""
    assert ends_with_blank(memoryview(RECORD + blank(size)))
    assert not ends_with_blank(memoryview(RECORD + blank(size) + b"\0"))
    assert not ends_with_blank(memoryview(RECORD))
    assert not ends_with_blank(memoryview(b""))
    assert not ends_with_blank(memoryview(bytes(40)))
