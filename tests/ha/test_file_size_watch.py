"""How a slave finds out its master's file size."""

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
    """The end of the first BLANK is the file's end, at every split of the bytes."""
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
    """The own log is read in chunks; without a BLANK the finder waits for more."""
    finder = FirstBlankFinder(0)
    find_first_blank(finder, lambda at, size: LOG[at : at + size], len(LOG))
    assert finder.found == 1000
    finder = FirstBlankFinder(0)
    find_first_blank(finder, lambda at, size: LOG[at : at + size], 450)
    assert finder.found is None
    assert finder.feed(450, LOG[450:]) == 1000


def test_a_walk_goes_on_where_it_was(monkeypatch):
    """Each byte is read once, also where a read failed in between, and none behind the BLANK."""
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
    assert ends[-1] == 556  # of the chunk in which the BLANK begins


def test_what_was_found_stays_found():
    """What follows the first BLANK, another BLANK for example, changes nothing."""
    finder = FirstBlankFinder(0)
    assert finder.feed(0, LOG) == 1000
    assert finder.feed(len(LOG), blank(8) * 5) == 1000


def test_bytes_that_are_no_records_end_the_walk():
    """A size that no record has cannot be walked over."""
    finder = FirstBlankFinder(0)
    assert finder.feed(0, bytes(64)) is None
    assert finder.is_lost
    assert finder.feed(64, bytes(64)) is None


@pytest.mark.parametrize("size", [8, 9, 247, 248, 249, 255, 256, 257, 263, 264, 265, 500, 5000])
def test_a_body_that_ends_with_a_blank_is_noticed(size):
    """A BLANK with any filler at the end of a frame is the hint."""
    assert ends_with_blank(memoryview(RECORD + blank(size)))
    assert not ends_with_blank(memoryview(RECORD + blank(size) + b"\0"))
    assert not ends_with_blank(memoryview(RECORD))
    assert not ends_with_blank(memoryview(b""))
    assert not ends_with_blank(memoryview(bytes(40)))
