"""The bytes of an index file, and the hash of a key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.store.index.layout import (
    IndexHeader,
    IndexLayout,
    IndexMark,
    key_hash,
    pack_mark,
    topic_hash,
    unpack_header,
    unpack_mark,
)

TEXTS = st.text(max_size=40) | st.text(alphabet="abc0", min_size=200, max_size=600)


def hash_as_java_does(text):
    """Hash unit by unit, as Java's documentation defines it; then ``Math.abs``, 0 for MIN_VALUE."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed)


@given(topic=TEXTS, key=TEXTS)
def test_key_hash_equals_javas_hash_of_topic_and_key_joined(topic, key):
    """The topic is hashed once, and each key's hash continues from there."""
    assert key_hash(topic_hash(topic), key) == hash_as_java_does(f"{topic}#{key}")


def test_hash_without_an_absolute_value_becomes_0():
    """``polygenelubricants`` has the hash -2^31, for which Java's abs is negative."""
    key = "polygenelubricants"
    assert hash_as_java_does(key) == 0
    assert key_hash(0, key) == 0  # without a topic


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [("GoldenA", "000000000000000000000000000003E8", 783203135), ("GoldenA", "K0", 964574576)],
)
def test_hashes_equal_those_in_rocketmqs_files(topic, key, expected):
    """They are the first two entries of a golden index."""
    assert key_hash(topic_hash(topic), key) == expected


@given(
    st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 19), st.integers(1, 255)
)
def test_intact_mark_is_read_and_a_damaged_one_ignored(index_count, offset, at, flip):
    """A change of any byte invalidates the mark."""
    data = pack_mark(IndexMark(index_count, offset))
    assert len(data) == 20
    assert unpack_mark(data) == IndexMark(index_count, offset)
    damaged = bytearray(data)
    damaged[at] ^= flip
    assert unpack_mark(bytes(damaged)) is None


def test_unused_entry_0_is_not_a_mark():
    """It is all zeros, or cut off by the end of the file."""
    assert unpack_mark(bytes(20)) is None
    assert unpack_mark(b"") is None


def test_unwritten_header_is_that_of_an_empty_file():
    """Entries begin at 1."""
    assert unpack_header(bytes(40)) == IndexHeader(0, 0, 0, 0, 0, 1)


def test_layout_has_rocketmqs_default_size():
    """A file has 420,000,040 bytes."""
    layout = IndexLayout(5_000_000, 20_000_000)
    assert layout.file_size == 420_000_040
    assert layout.entry_position(1) == 40 + 20_000_000 + 20
