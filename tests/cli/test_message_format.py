"""``-F``: each field, each escape, and what it refuses."""

import pytest

from hastore.store.record.message_codec import decode
from hastore_cli.messages.printer import FORMAT_HELP, MessageFormat
from tests.support.store.log_builder import FIRST_MS, LogBuilder


@pytest.fixture
def message():
    """One message with keys, a tag, a unique key and a property of its own."""
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
def test_a_format_gives_the_bytes_it_says(message, text, expected):
    """Fields, properties by name, escapes as in C; a body byte for byte."""
    assert MessageFormat.parse(text).render(message) == expected


def test_positions_properties_and_the_id(message):
    """The physical offset, all properties, and the id that `get --id` takes."""
    rendered = MessageFormat.parse("%O %i %h").render(message).decode()
    offset, message_id, properties = rendered.split(" ", 2)
    assert int(offset) == message.physic_offset
    assert message_id == f"7F00000100002A9F{message.physic_offset:016X}"
    assert properties.startswith("KEYS=a b,TAGS=paid,UNIQ_KEY=U1,who=me")


def test_a_terminal_is_never_sent_a_messages_escapes(message):
    """Control characters of fields are shown as escapes, those of the format are kept."""
    shown = MessageFormat.parse(r"%s\x1b").render(message, printable=True)
    assert shown == b"b\\x1b[2J\\udcff\x1b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%z", "'%z' is not a field; there are %t %p"),
        ("50%", "'%' is not a field"),
        ("%{}", "names no property"),
        (r"\q", r"'\\q' is not an escape"),
        ("a\\", "is not an escape"),
    ],
)
def test_what_a_format_does_not_know_is_named(text, said):
    """Usage, not silence: a misspelt field is an error."""
    with pytest.raises(ValueError, match=said):
        MessageFormat.parse(text)


def test_the_help_names_every_field():
    """Whatever -F takes stands in the help."""
    with pytest.raises(ValueError, match="%t") as caught:
        MessageFormat.parse("%z")
    known = str(caught.value).partition("there are ")[2].split()
    assert all(field.split("{")[0] in FORMAT_HELP for field in known)
