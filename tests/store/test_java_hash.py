"""String.hashCode against a loop over UTF-16 code units, and values that Java gives."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.store.record.java_hash import java_hash_code, tags_code


def naive(text):
    """One code unit after the other, as the Java documentation defines it."""
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
def test_known_values(text, code):
    """Values that Java is known to give, the least of all 32-bit numbers among them."""
    assert java_hash_code(text) == code


@given(
    st.text(max_size=80)
    | st.text(st.characters(max_codepoint=127), max_size=1200)
    | st.text(st.characters(min_codepoint=0xD800), max_size=600)
)
@example("\ud800")  # half a pair, as a Java string may hold it
@example("x" * 255)
@example("x" * 256)
@example("x" * 257)
@example("\U0001f600" * 128)
@example("é" * 512)
def test_every_text_hashes_as_its_utf_16_code_units(text):
    """ASCII, other planes, lone surrogates, and texts longer than the table of powers."""
    assert java_hash_code(text) == naive(text)


@given(st.text(max_size=300), st.text(max_size=300))
@example("", "")
@example("Bench#", "")
def test_a_hash_is_begun_with_what_stands_before(before, text):
    """The index hashes a topic once, and its keys after it."""
    assert java_hash_code(text, java_hash_code(before)) == naive(before + text)


def test_no_tags_and_empty_tags_have_the_code_0():
    """RocketMQ leaves tagsCode 0 where a message has no tags."""
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)
