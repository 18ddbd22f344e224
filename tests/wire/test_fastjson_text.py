"""The texts that fastjson 1.2.83 reads, and what is said of others."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ProtocolError
from hastore.wire.fastjson_text import DEPTH_MAX, FastjsonError, loads_object

TABLE = {"offsetTable": {"T@g": {"0": 5}}}


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff{"offsetTable":{"T@g":{0:5}}}',
        '{"offsetTable":{"T@g":{0:5,}}}',
        '{"offsetTable":{"T@g":{0:5,,},,},}',
        "{'offsetTable':{'T@g':{'0':5}}}",
        '{offsetTable:{"T@g":{0:5}}}',
        '/* a */{"offsetTable": // b\n{"T@g":{0:/* c */5}}} // d',
        '{"offsetTable":{"T@g":{0:5L}}}',
        '{"offsetTable":{"T@g":{0:5.0}}}',
        '{"offsetTable":{"T\\u0040g":{0:5}}}\n',
        '{"offsetTable":{"T\\x40g":{0:5}}}',
    ],
)
def test_reads_what_fastjson_reads(text):
    """A byte order mark, comments, commas, quotes, names and numbers beyond JSON."""
    assert loads_object(text.encode(), "t") == TABLE


def test_reads_all_kinds_of_values():
    """Values of plain JSON stay what they are, and a number in quotes stays a text."""
    value = {"a": [1, -2.5e3, True, False, None, {}, []], "b$_1": "ü\n\"' \U0001f600", "c": "7"}
    assert loads_object(json.dumps(value).encode(), "t") == value
    assert loads_object(json.dumps(value, ensure_ascii=False).encode(), "t") == value


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('{"a": 1} x', "line 1, column 10", "more after the end"),
        ('{\n "a": 1 "b": 2}', "line 2, column 9", "neither , nor } after a value"),
        ('{\n\n  # no comment\n "a": 1}', "line 3, column 3", "no name"),
        ("{T@g: 1}", "line 1, column 3", "no : after a name"),
        ('{"a": yes, "b": 1}', "line 1, column 7", "no value"),
        ('{"a": "\\q", "b": 1}', "line 1, column 9", "no escape sequence"),
        ('{"a": "b, "c": 1}\n', "line 1, column 12", "neither , nor } after a value"),
        ('{"a": "b}\n', "line 1, column 7", "a text without its end"),
        ("[1]", "line 1, column 1", "not an object"),
    ],
)
def test_says_where_a_whole_text_is_wrong(text, place, reason):
    """Somebody has to correct the file, so the error has line and column."""
    with pytest.raises(FastjsonError) as caught:
        loads_object(text.encode(), "topics.json")
    assert str(caught.value) == f"topics.json: {place}: {reason}"
    assert not caught.value.is_torn


WHOLE = (
    "\ufeff /* a */ {'ü\\u00e4\\n': [1, -2.5e+3, true,, null], b: {0: 5L, -1: 'x'}, // c\n }"
).encode()


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_text_that_is_torn_off_is_known_as_such(size):
    """A crash leaves such a file, whatever its last byte is."""
    with pytest.raises(FastjsonError) as caught:
        loads_object(WHOLE[:size], "t")
    assert caught.value.is_torn


@pytest.mark.parametrize("begin", range(len(WHOLE)))
def test_a_text_with_zeros_is_known_as_torn(begin):
    """A power cut leaves blocks of zeros, at the end or before it, perhaps inside of one text."""
    for end in (begin + 1, (begin + len(WHOLE)) // 2 + 1, len(WHOLE)):
        with pytest.raises(FastjsonError) as caught:
            loads_object(WHOLE[:begin] + bytes(end - begin) + WHOLE[end:], "t")
        assert caught.value.is_torn


@given(st.binary(max_size=60) | st.text("{}[]\"':,/*-1aetru\\ \n", max_size=60).map(str.encode))
def test_any_bytes_yield_an_object_or_a_protocol_error(data):
    """Nothing else is raised, whatever a file holds."""
    with contextlib.suppress(ProtocolError):
        assert isinstance(loads_object(data, "t"), dict)


def test_values_within_one_another_have_a_limit():
    """A text of brackets does not exhaust the stack."""
    with pytest.raises(FastjsonError, match="values within one another"):
        loads_object(b'{"a":' + b"[" * (DEPTH_MAX + 10) + b"]", "t")
