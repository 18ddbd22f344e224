r"""``-F FORMAT``: what to print of a message, in the manner of kcat.

::

    %t topic        %p queue          %o queue offset      %O physical offset
    %k keys         %g tags           %s body              %S its size in bytes
    %i message id   %u unique key     %h all properties    %{NAME} one of them
    %T store time, ms since 1970      %B born time         %d store time as text
    %% a percent sign                 \n \t \r \\ \0 \xHH  as in C

No line end is added.  A body comes out byte for byte; for a terminal whoever renders asks for
``printable``, so that no message can move its cursor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.store.record.message_codec import message_id
from hastore_cli.app.terminal import time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.message import StoredMessage

FORMAT_HELP: Final = (
    "Formats (-F): %t topic, %p queue, %o queue offset, %O physical offset, %k keys, %g tags, %s"
    " body, %S its size, %T store time in ms, %d as text, %B born time, %i message id, %u unique"
    " key, %h properties, %{NAME} one of them, %% a percent sign, \\n \\t \\xHH as in C; no line"
    " end is added."
)

_TOKEN: Final = re.compile(r"%\{([^}]*)\}|%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0", '"': b'"'}


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _property(name: str) -> Callable[[StoredMessage], bytes]:
    return lambda message: _bytes(message.properties.get(name, ""))


def _number(name: str) -> Callable[[StoredMessage], bytes]:
    return lambda message: b"%d" % getattr(message, name)


def _all_properties(message: StoredMessage) -> bytes:
    return _bytes(",".join(f"{name}={value}" for name, value in message.properties.items()))


_FIELDS: Final[Mapping[str, Callable[[StoredMessage], bytes]]] = {
    "t": lambda message: _bytes(message.topic),
    "p": _number("queue_id"),
    "o": _number("queue_offset"),
    "O": _number("physic_offset"),
    "k": _property(PROPERTY_KEYS),
    "g": _property(PROPERTY_TAGS),
    "s": lambda message: message.body,
    "S": lambda message: b"%d" % len(message.body),
    "i": lambda message: message_id(message.store_host, message.physic_offset).encode(),
    "u": _property(PROPERTY_UNIQ_KEY),
    "h": _all_properties,
    "T": _number("store_timestamp_ms"),
    "B": _number("born_timestamp_ms"),
    "d": lambda message: time_text(message.store_timestamp_ms).encode(),
}


@final
@attrs.frozen
class MessageFormat:
    """A parsed format: bytes as they stand, and functions that give those of a field."""

    parts: tuple[bytes | Callable[[StoredMessage], bytes], ...]

    @classmethod
    def parse(cls, text: str) -> MessageFormat:
        """Read a format; ValueError names what it does not know."""
        return cls(tuple(_parse_token(match) for match in _TOKEN.finditer(text)))

    def render(self, message: StoredMessage, *, printable: bool = False) -> bytes:
        """Return a message's bytes; ``printable``: a field's control characters are escaped."""
        parts = []
        for part in self.parts:
            if isinstance(part, bytes):
                parts.append(part)
                continue
            value = part(message)
            parts.append(_printable(value) if printable else value)
        return b"".join(parts)


def _parse_token(match: re.Match[str]) -> bytes | Callable[[StoredMessage], bytes]:
    name, field, byte, escape = match.groups()
    if name is not None:
        if not name:
            raise ValueError("%{} names no property: write %{NAME}")
        return _property(name)
    if field is not None:
        if field == "%":
            return b"%"
        if field not in _FIELDS:
            known = " ".join(f"%{letter}" for letter in _FIELDS)
            raise ValueError(f"'%{field}' is no field; there are {known} %{{NAME}} %%")
        return _FIELDS[field]
    if byte is not None:
        return bytes.fromhex(byte)
    if escape is not None:
        if escape not in _ESCAPES:
            raise ValueError(f"'\\{escape}' is no escape; there are \\n \\t \\r \\0 \\xHH \\\\")
        return _ESCAPES[escape]
    return _bytes(match[0])


def _printable(value: bytes) -> bytes:
    """Text with its line ends and tabs, everything else that is no text escaped."""
    text = value.decode(errors="surrogateescape")
    if text.isprintable():
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text).encode()
