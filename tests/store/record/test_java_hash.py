"""String.hashCode against a loop over UTF-16 code units, and known values from Java."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.store.record.java_hash import java_hash_code, tags_code


def naive(text):
    """Hash one code unit after the other, as Java's documentation defines it."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for start in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[start : start + 2], "big")) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("Aa", 2112),
        ("BB", 2112),
    ],
)
def test_hash_equals_javas_for_known_values(text, code):
    """The smallest 32-bit number is among them."""
    assert java_hash_code(text) == code


@given(
    st.text(max_size=80)
    | st.text(st.characters(max_codepoint=127), max_size=1200)
    | st.text(st.characters(min_codepoint=0xD800), max_size=600)
)
@example("\ud800")  # half a surrogate pair, which a Java string may contain
@example("x" * 255)
@example("x" * 256)
@example("x" * 257)
@example("\U0001f600" * 128)
@example("é" * 512)
def test_hash_of_any_text_is_that_of_its_utf_16_code_units(text):
    """ASCII, other planes, lone surrogates, and texts longer than the table of powers."""
    assert java_hash_code(text) == naive(text)


@given(st.text(max_size=300), st.text(max_size=300))
@example("", "")
@example("Bench#", "")
def test_hash_continues_from_the_hash_of_a_prefix(before, text):
    """The index hashes a topic once and continues with each key."""
    assert java_hash_code(text, java_hash_code(before)) == naive(before + text)


def test_missing_and_empty_tags_have_code_0():
    """RocketMQ leaves tagsCode 0 for a message without tags."""
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)
