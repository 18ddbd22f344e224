"""Properties of uniform records have the same columns as when each record is decoded alone."""

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.columnar.property_columns import PropertyPairs, property_pairs
from hastore.columnar.text_columns import first_words
from hastore.columnar.uniform_pairs import UniformPairs
from hastore.store.record.message_codec import decode_properties

ROWS = [
    b"TAGS\x01a\x02KEYS\x01k 1\x02",
    b"TAGS\x01bb\x02KEYS\x01k\x02",
    b"TAGS\x01c\x02KEYS\x01k 3\x02",
]


@attrs.define
class Block:
    """The part of a RecordBlock that properties need: texts with other bytes between them."""

    data: bytes
    properties_starts: np.ndarray
    properties_sizes: np.ndarray

    @property
    def count(self):
        return len(self.properties_sizes)


def block_of(rows):
    sizes = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(sizes + 3) - sizes
    return Block(b"".join(b"\x01x\x02" + row for row in rows), starts, sizes)


def check(rows):
    """Read rows in both ways, compare them with each row decoded alone, and return the pairs."""
    expected = [decode_properties(row) for row in rows]
    for of_all in (False, True):
        pairs = property_pairs(block_of(rows), of_all=of_all)
        for name in ("TAGS", "KEYS", "none"):
            column = pairs.column(name)
            column.validate(full=True)
            assert column.to_pylist() == [row.get(name) for row in expected]
        found = pairs.map_column()
        found.validate(full=True)
        assert found.to_pylist(maps_as_pydicts="strict") == expected
    return pairs


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20
)
uniform = st.lists(texts | st.sampled_from(["TAGS", "KEYS"]), min_size=1, max_size=4).flatmap(
    lambda names: st.lists(
        st.lists(texts, min_size=len(names), max_size=len(names)).map(
            lambda values: "".join(
                f"{name}\x01{value}\x02" for name, value in zip(names, values, strict=True)
            ).encode()
        ),
        min_size=1,
        max_size=6,
    )
)
anything = st.text(st.sampled_from("\x01\x02ab日TAGSKEYS"), max_size=30).map(str.encode)


@given(rows=uniform)
def test_reads_rows_with_the_same_names(rows):
    """The names and values are random."""
    check(rows)


@given(rows=uniform, other=anything, place=st.integers(0, 6))
def test_reads_rows_of_which_one_differs(rows, other, place):
    """The other row is at any place, and holds anything."""
    check([*rows[:place], other, *rows[place:]])


@pytest.mark.parametrize("count", [1, 3])
def test_messages_of_one_producer_are_uniform(count):
    """This makes them fast to read; the limit is names of 16 bytes."""
    assert type(check(ROWS[:count])) is UniformPairs
    long = [b"0123456789abcdef\x01v\x02" + row for row in ROWS[:count]]
    assert type(check(long)) is UniformPairs


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"TAGS\x01a\x02",
        b"TAGS\x01a\x02KEYS\x01k",
        b"TAGS\x01a\x02KEYS\x01\x02",
        b"TAGS\x01a\x02\x01k 1\x02",
        b"TAGS\x01a\x02KEYs\x01k 1\x02",
        b"TAG\x01a\x02SKEYS\x01k 1\x02",
        b"TAGS\x01a\x02TAGS\x01k 1\x02",
        b"TAGS\x02a\x01KEYS\x01k 1\x02",
        b"TAGS\x01a\x02KEYS\x01k 1\x02KEYS\x01k 2\x02",
        b"TAGS\x01a\x02KEYS\x01k 1\x02AB\x01C\x02",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_different_row_makes_the_block_non_uniform(other, place):
    """It has fewer or more pairs, other names, none, or separators in another order."""
    pairs = check([*ROWS[:place], other, *ROWS[place:]])
    assert type(pairs) is PropertyPairs


@pytest.mark.parametrize("name", [b"0123456789abcdefg", b"0123456789abc", b"\xff\xfe", b"TAGS"])
def test_some_names_make_the_block_non_uniform(name):
    """They are too long, differ in the middle, are not UTF-8, or occur twice."""
    rows = [name + b"\x01v\x02TAGS\x01" + value + b"\x02" for value in (b"a", b"b")]
    if len(name) == 13:
        rows[1] = rows[1].replace(b"0123456789abc", b"01234567x9abc")
        rows[0] = rows[0].replace(b"0123456789abc", b"01234567y9abc")
    block = block_of(rows)
    pairs = property_pairs(block, of_all=True)
    assert type(pairs) is PropertyPairs
    assert pairs.column("TAGS").to_pylist() == ["a", "b"]
    if b"\xff" not in name:
        check(rows)
    else:
        assert pairs.map_column().to_pylist()[0][0] == ("\ufffd\ufffd", "v")


def test_invalid_utf8_in_values_is_replaced():
    """Every text column does the same."""
    pairs = property_pairs(block_of([b"TAGS\x01\xff\x02", b"TAGS\x01a\x02"]), of_all=True)
    assert type(pairs) is UniformPairs
    assert pairs.column("TAGS").to_pylist() == ["\ufffd", "a"]


@given(data=st.binary(min_size=1, max_size=40))
def test_first_words_reads_eight_bytes_at_each_place(data):
    """Bytes after the end count as zeros."""
    places = np.arange(len(data))
    words = first_words(np.frombuffer(data, np.uint8), places)
    expected = [int.from_bytes(data[place : place + 8], "little") for place in places]
    assert words.tolist() == expected
    assert pa.array(words).type == pa.uint64()
