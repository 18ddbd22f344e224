"""``-F``: each field, each escape, and errors."""

import pytest

from hastore.store.record.message_codec import decode
from hastore_cli.messages.printer import FORMAT_HELP, MessageFormat
from tests.support.store.log_builder import FIRST_MS, LogBuilder


@pytest.fixture
def message():
    """A message with keys, a tag, a unique key and a user property."""
    raw = b"KEYS\x01a b\x02TAGS\x01paid\x02UNIQ_KEY\x01U1\x02who\x01me\x02"
    builder = (
        LogBuilder()
        .add(b"first")
        .add(b"b\x1b[2J\xff", topic="orders", queue_id=3, properties_raw=raw)
    )
    return decode(bytes(builder.data), builder.offsets[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t/%p @ %o", b"orders/3 @ 0"),
        ("%k|%g|%u", b"a b|paid|U1"),
        ("%s", b"b\x1b[2J\xff"),
        ("%S", b"6"),
        (r"%T\t%B\n", b"%d\t%d\n" % (FIRST_MS + 1, FIRST_MS)),
        ("%d", b"2023-11-14T22:13:20.001Z"),
        ("%{who}%{none}%%", b"me%"),
        (r"\x00\\\r\"\0", b'\0\\\r"\0'),
        ("ü", "ü".encode()),
        ("", b""),
    ],
)
def test_format_renders_fields_and_escapes(message, text, expected):
    """Also properties by name; escapes are those of C, and bodies are kept byte for byte."""
    assert MessageFormat.parse(text).render(message) == expected


def test_format_of_offset_id_and_properties(message):
    """The id is the one that `get --id` accepts."""
    rendered = MessageFormat.parse("%O %i %h").render(message).decode()
    offset, message_id, properties = rendered.split(" ", 2)
    assert int(offset) == message.physic_offset
    assert message_id == f"7F00000100002A9F{message.physic_offset:016X}"
    assert properties.startswith("KEYS=a b,TAGS=paid,UNIQ_KEY=U1,who=me")


def test_printable_format_escapes_control_characters_of_fields(message):
    """Control characters of the format itself are kept."""
    shown = MessageFormat.parse(r"%s\x1b").render(message, printable=True)
    assert shown == b"b\\x1b[2J\\udcff\x1b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%z", "'%z' is not a field; there are %t %p"),
        ("50%", "'%' is not a field"),
        ("%{}", "names no property"),
        (r"\q", r"'\\q' is not an escape"),
        ("a\\", "is not an escape"),
    ],
)
def test_unknown_fields_and_escapes_are_errors(text, reason):
    """The error quotes the wrong part."""
    with pytest.raises(ValueError, match=reason):
        MessageFormat.parse(text)


def test_help_names_every_field():
    """The list of fields in the error message is compared with the help."""
    with pytest.raises(ValueError, match="%t") as caught:
        MessageFormat.parse("%z")
    known = str(caught.value).partition("there are ")[2].split()
    assert all(field.split("{")[0] in FORMAT_HELP for field in known)
