"""Sizes, durations, addresses, topics: accepted notations and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.quantities import (
    format_address,
    format_count,
    format_duration,
    format_exact_duration,
    format_exact_size,
    format_size,
    parse_address,
    parse_duration_ms,
    parse_size,
    parse_whole_number,
)
from hastore.setting import Kind
from hastore.topic import check_topic
from hastore_cli.consume.run import parse_start
from hastore_cli.settings.kinds import parse_value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("64 KiB", 65_536),
        ("1GiB", 1 << 30),
        ("1.5MiB", 1_572_864),
        ("10MB", 10_000_000),
        ("4K", 4096),
        ("2t", 2 << 40),
        ("7B", 7),
    ],
)
def test_size_is_bytes_or_a_number_with_a_unit(text, size):
    """Units of 1024 and 1000 differ; case does not matter; no unit means bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "KiB", "-1", "1 XB", "1e3", "0.1", "1.0001KiB", "12x", "\N{ARABIC-INDIC DIGIT ONE}"],
)
def test_invalid_size_is_refused(text):
    """A sign, an unknown unit, a fraction of a byte, or digits other than 0 to 9."""
    with pytest.raises(ValueError, match=r"size|whole"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("500ms", 500), ("3s", 3_000), ("1.5S", 1_500), ("2min", 120_000)]
)
def test_duration_has_a_unit(text, duration_ms):
    """Milliseconds, seconds and minutes are accepted."""
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["3", "s", "1us", "0.5ms", "-3s"])
def test_duration_without_a_known_unit_is_refused(text):
    """A bare number could mean seconds or milliseconds."""
    with pytest.raises(ValueError, match=r"duration|whole"):
        parse_duration_ms(text)


@given(st.integers(0, 1 << 63))
def test_count_round_trips(count):
    """A number printed in groups of three is parsed again, also as a size."""
    assert parse_whole_number(format_count(count)) == parse_size(format_count(count)) == count
    assert parse_start(format_count(count), 0).value == count
    assert parse_value(Kind.COUNT_OR_ZERO, format_count(count)) == count


@pytest.mark.parametrize(
    "text", ["1 00", "1,000", "1  000", "12 3456", "", "1 000 x", "\u0661 000", "1_000"]
)
def test_invalid_grouping_is_refused(text):
    """Groups have three digits; commas mean fractions in some countries."""
    with pytest.raises(ValueError, match=r"not a valid integer: write 1000 or '1 000'$"):
        parse_whole_number(text)
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@given(st.integers(1, 1 << 45))
def test_exact_size_round_trips(size):
    """So the output of --check-config can be read back."""
    assert parse_size(format_exact_size(size)) == size


@given(st.integers(1, 10**9))
def test_exact_duration_round_trips(duration_ms):
    """So the output of --check-config is read back exactly."""
    assert parse_duration_ms(format_exact_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10911", ("127.0.0.1", 10911)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_address_is_host_and_port(text, address):
    """IPv4, names and bracketed IPv6 are parsed and formatted."""
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize(
    "text", ["", "10911", "host", "host:", ":1", "h:x", "h:65536", "::1:10911"]
)
def test_invalid_address_is_refused(text):
    """A missing or impossible port, a missing host, or IPv6 without brackets."""
    with pytest.raises(ValueError, match=r"address|above 65535|brackets"):
        parse_address(text)


def test_topic_that_rocketmq_would_refuse_is_refused():
    """The error names each invalid character once."""
    assert check_topic("%RETRY%a-b_C|9") == "%RETRY%a-b_C|9"
    with pytest.raises(ValueError, match=r"' ' '!'; allowed"):
        check_topic("or ders! !")
    with pytest.raises(ValueError, match="the topic is empty"):
        check_topic("")
    with pytest.raises(ValueError, match="at most 127"):
        check_topic("a" * 128)


def test_numbers_for_people_have_readable_units():
    """Counts are grouped."""
    assert [format_size(n) for n in (0, 1023, 1024, 134_397_312, 1 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "128.2 MiB",
        "1.0 TiB",
    ]
    assert [format_duration(s) for s in (84e-6, 0.0041, 3.14, 750, 10_000)] == [
        "84 µs",
        "4.1 ms",
        "3.1 s",
        "12 min",
        "2.8 h",
    ]
    assert format_count(1_073_921_408) == "1 073 921 408"
