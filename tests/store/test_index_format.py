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
    """Unit by unit, as the Java documentation writes it; then ``Math.abs``, 0 for MIN_VALUE."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed)


@given(topic=TEXTS, key=TEXTS)
def test_a_keys_hash_is_that_of_topic_and_key_joined(topic, key):
    """The topic's part is hashed once and the key's on top of it: Java's hash of the whole."""
    assert key_hash(topic_hash(topic), key) == hash_as_java_does(f"{topic}#{key}")


def test_the_number_without_an_absolute_value_is_0():
    """``polygenelubricants`` has the hash -2^31, of which Java's abs is negative."""
    key = "polygenelubricants"
    assert hash_as_java_does(key) == 0
    assert key_hash(0, key) == 0  # as if the topic were nothing at all


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [("GoldenA", "000000000000000000000000000003E8", 783203135), ("GoldenA", "K0", 964574576)],
)
def test_hashes_of_rocketmqs_own_files(topic, key, expected):
    """The first two entries of a golden index."""
    assert key_hash(topic_hash(topic), key) == expected


@given(
    st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 19), st.integers(1, 255)
)
def test_a_mark_is_read_back_and_half_of_one_is_none(index_count, offset, at, flip):
    """Whatever byte of it is another one, there is no mark."""
    data = pack_mark(IndexMark(index_count, offset))
    assert len(data) == 20
    assert unpack_mark(data) == IndexMark(index_count, offset)
    damaged = bytearray(data)
    damaged[at] ^= flip
    assert unpack_mark(bytes(damaged)) is None


def test_an_entry_0_that_was_never_used_is_no_mark():
    """Zeros, and a file's end that cuts it off."""
    assert unpack_mark(bytes(20)) is None
    assert unpack_mark(b"") is None


def test_a_header_that_was_never_written_is_an_empty_files():
    """The entries begin at 1."""
    assert unpack_header(bytes(40)) == IndexHeader(0, 0, 0, 0, 0, 1)


def test_the_layout_at_rocketmqs_defaults():
    """420,000,040 bytes."""
    layout = IndexLayout(5_000_000, 20_000_000)
    assert layout.file_size == 420_000_040
    assert layout.entry_position(1) == 40 + 20_000_000 + 20
