"""Hashes of keys, all of a block at once: the same as Java's, text by text."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hastore.pipeline.rebuild.keys import hashes_of_names, values_of, words_of
from hastore.store.index.layout import key_hash, topic_hash

ascii_texts = st.one_of(st.none(), st.text(alphabet="abc XYZ09_-#", max_size=12))
any_texts = st.one_of(st.none(), st.text(alphabet="ab ä订\U0001f600", max_size=6))


def expected(texts, begun, split):
    words = [text.split(" ") if split and text else [text] for text in texts]
    return [(row, key_hash(begun[row], w)) for row, some in enumerate(words) for w in some if w]


@given(st.lists(ascii_texts, max_size=20), st.booleans(), st.integers(0, 3))
def test_hashes_are_those_of_each_text(texts, split, begin):
    """Of whole values, and of the words in them; sliced columns too."""
    begun = [topic_hash("ab"[row % 2]) for row in range(len(texts))]
    column = pa.array(["before"] * begin + texts, pa.string()).slice(begin)
    pieces = words_of(column) if split else values_of(column)
    hashes = pieces.hashes(np.array(begun, np.int64))
    found = list(zip(pieces.rows.tolist(), hashes.tolist(), strict=True))
    assert found == expected(texts, begun, split)
    assert pieces.odd_rows().tolist() == []


@given(st.lists(any_texts, max_size=20), st.booleans())
def test_rows_with_other_texts_are_named(texts, split):
    """Those, and no others, have to be read one by one."""
    pieces = (words_of if split else values_of)(pa.array(["ä", *texts], pa.string()).slice(1))
    odd = [row for row, text in enumerate(texts) if text and not text.isascii()]
    assert pieces.odd_rows().tolist() == odd


def test_the_number_that_has_no_absolute_value_is_0():
    """Java's MIN_VALUE; a long key wraps as Java's int does."""
    for key in ("polygenelubricants", "x" * 3000, "~" * 500):
        begun = np.zeros(1, np.int64)
        assert values_of(pa.array([key])).hashes(begun).tolist() == hashes_of_names(0, [key])
    assert hashes_of_names(0, ["polygenelubricants", ""]) == [0]
