"""The hashes of a block's keys, computed at once, equal Java's hash of each text."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hastore.columnar.key_hashes import values_of, words_of
from hastore.store.index.layout import key_hash, topic_hash

ascii_texts = st.one_of(st.none(), st.text(alphabet="abc XYZ09_-#", max_size=12))
any_texts = st.one_of(st.none(), st.text(alphabet="ab ä订\U0001f600", max_size=6))


def expected(texts, begun, split):
    words = [text.split(" ") if split and text else [text] for text in texts]
    return [(row, key_hash(begun[row], w)) for row, some in enumerate(words) for w in some if w]


@given(st.lists(ascii_texts, max_size=20), st.booleans(), st.integers(0, 3))
def test_block_hashes_equal_the_hash_of_each_text(texts, split, begin):
    """Values are hashed whole or word by word; sliced columns work, too."""
    begun = [topic_hash("ab"[row % 2]) for row in range(len(texts))]
    column = pa.array(["before"] * begin + texts, pa.string()).slice(begin)
    pieces = words_of(column) if split else values_of(column)
    hashes = pieces.hashes(np.array(begun, np.int64))
    found = list(zip(pieces.rows.tolist(), hashes.tolist(), strict=True))
    assert found == expected(texts, begun, split)
    assert pieces.odd_rows().tolist() == []


@given(st.lists(any_texts, max_size=20), st.booleans())
def test_rows_with_other_texts_are_listed(texts, split):
    """Exactly the rows that are not ASCII must be read one by one."""
    pieces = (words_of if split else values_of)(pa.array(["ä", *texts], pa.string()).slice(1))
    odd = [row for row, text in enumerate(texts) if text and not text.isascii()]
    assert pieces.odd_rows().tolist() == odd


def test_hash_of_min_value_is_zero():
    """Java's MIN_VALUE has no absolute value; hashes of long keys wrap like Java's int."""
    for key in ("polygenelubricants", "x" * 3000, "~" * 500):
        begun = np.zeros(1, np.int64)
        assert values_of(pa.array([key])).hashes(begun).tolist() == [key_hash(0, key)]
    assert key_hash(0, "polygenelubricants") == 0
