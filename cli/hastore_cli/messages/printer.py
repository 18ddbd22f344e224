r"""Prints messages one after the other, in the form that the options ask for.

One way for all commands that print messages (``log cat``, ``find``, ``tail``, ``consume``,
``get``): a line each for people, JSON with stable keys, or ``-F`` bytes as kcat prints them::

    %t topic        %p queue          %o queue offset      %O physical offset
    %k keys         %g tags           %s body              %S its size in bytes
    %i message id   %u unique key     %h all properties    %{NAME} one of them
    %T store time, ms since 1970      %B born time         %d store time as text
    %% a percent sign                 \n \t \r \\ \0 \xHH  as in C

Compressed bodies are decoded, unless ``--raw``.  A body that cannot be decoded is printed as it is
stored, and a note on stderr says why.  ``-F`` adds no line end, and prints a body byte for byte; on
a terminal control characters are escaped, so that no message can move the cursor.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import rich_click as click

from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.store.record.body_compression import decoded
from hastore.store.record.message_codec import message_id
from hastore_cli.app.output import json_text
from hastore_cli.app.terminal import as_shown, escaped, fitted, say, time_text
from hastore_cli.messages.detail import body_text, message_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.message import StoredMessage


@final
class MessagePrinter:
    """``output`` is table, json or jsonl; ``template`` overrides it.  ``shown`` counts messages.

    ``schema`` is that of the JSON document around the messages.  ``raw`` leaves compressed bodies
    as they are stored.  Use it in a ``with`` block: an error must not leave the document open.
    """

    def __init__(
        self,
        output: str,
        *,
        schema: str,
        template: MessageFormat | None = None,
        bodies: bool = True,
        raw: bool = False,
    ) -> None:
        if template is not None and output != "table":
            raise click.UsageError("-F says what to print: leave -o out")
        self.shown = 0
        self.closing: dict[str, Any] = {}  # more keys of the JSON document, after its messages
        self._output = output
        self._schema = schema
        self._template = template
        self._bodies = bodies
        self._raw = raw
        # A terminal gets one line of each body, without escape sequences.
        self._on_terminal = sys.stdout.isatty()

    def __enter__(self) -> MessagePrinter:
        if self._is_document:
            sys.stdout.write(f'{{"schema": {json.dumps(self._schema)}, "messages": [')
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None and issubclass(error_type, BrokenPipeError):
            return
        if self._is_document:
            more = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in self.closing.items())
            sys.stdout.write(f"\n]{more}}}\n")
        self.flush()

    @property
    def _is_document(self) -> bool:
        return self._output == "json" and self._template is None

    def show(self, message: StoredMessage, *, unconfirmed: bool = False) -> None:
        """Print one message without flushing; ``unconfirmed`` marks it, except with a template."""
        if not self._raw:
            message = decoded(message)
        # Not click.echo, which would flush each line.
        if self._template is not None:
            data = self._template.render(message, printable=self._on_terminal)
            if self._on_terminal:
                text = as_shown(data.decode(errors="surrogateescape"), sys.stdout)
                data = text.encode(sys.stdout.encoding)
            sys.stdout.buffer.write(data)
        elif self._output == "table":
            line = message_line(message, bodies=self._bodies, on_terminal=self._on_terminal)
            line = f"unconfirmed {line}" if unconfirmed else line
            sys.stdout.write(f"{fitted(line) if self._on_terminal else line}\n")
        else:
            more = {"unconfirmed": True} if unconfirmed else {}
            text = json_text(message_json(message, bodies=self._bodies) | more)
            sys.stdout.write(
                f"{',' * (self.shown > 0)}\n{text}" if self._is_document else f"{text}\n"
            )
        self.shown += 1
        if message.body_fault is not None and self._bodies:
            self.flush()  # so that a terminal shows it in order
            say(f"note: {fault_text(message)}")

    def flush(self) -> None:
        """Flush what was printed."""
        sys.stdout.flush()


def fault_text(message: StoredMessage) -> str:
    """Return why the body of a message is printed as it is stored."""
    return f"the body at {message.physic_offset} is still compressed: {message.body_fault}"


def raw_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--raw``."""
    return click.option("--raw", is_flag=True, help="Bodies as stored: compressed ones stay so.")(
        command
    )


def _parse_format(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> MessageFormat | None:
    if value is None:
        return None
    try:
        return MessageFormat.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-F``, passed to the command as ``template``."""
    return click.option(
        "-F",
        "--format",
        "template",
        metavar="FORMAT",
        callback=_parse_format,
        help=r"What to print of each message, such as '%o %k %s\n'; all fields: see below.",
    )(command)


def message_line(message: StoredMessage, *, bodies: bool, on_terminal: bool = False) -> str:
    """Return the line of one message; on a terminal it is indented less."""
    parts = [
        f"{message.physic_offset:>{12 if on_terminal else 20}}",
        time_text(message.store_timestamp_ms),
        f"{escaped(message.topic)}/{message.queue_id} @ {message.queue_offset}",
        f"{len(message.body)} B",
    ]
    for name, label in (("KEYS", "key"), ("TAGS", "tag")):
        if name in message.properties:
            parts.append(f"{label} {escaped(message.properties[name])}")
    if bodies and message.body:
        text = _utf8(message.body) if on_terminal else body_text(message.body)
        parts.append(f"({message.body[:16].hex()}…)" if text is None else escaped(text))
    return "  ".join(parts)


def _utf8(body: bytes) -> str | None:
    """Return a body as text if it is UTF-8, printable or not; else None."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


# -- -F FORMAT -----------------------------------------------------------------------------------


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
    """A parsed format: literal bytes, and functions that return the bytes of a field."""

    parts: tuple[bytes | Callable[[StoredMessage], bytes], ...]

    @classmethod
    def parse(cls, text: str) -> MessageFormat:
        """Parse a format.  Raises ValueError that names an unknown field or escape."""
        return cls(tuple(_parse_token(match) for match in _TOKEN.finditer(text)))

    def render(self, message: StoredMessage, *, printable: bool = False) -> bytes:
        """Return a message's bytes; with ``printable`` control characters in fields are escaped."""
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
            raise ValueError(f"'%{field}' is not a field; there are {known} %{{NAME}} %%")
        return _FIELDS[field]
    if byte is not None:
        return bytes.fromhex(byte)
    if escape is not None:
        if escape not in _ESCAPES:
            raise ValueError(f"'\\{escape}' is not an escape; there are \\n \\t \\r \\0 \\xHH \\\\")
        return _ESCAPES[escape]
    return _bytes(match[0])


def _printable(value: bytes) -> bytes:
    """Escape control characters and non-UTF-8 bytes; line ends and tabs stay."""
    return escaped(value.decode(errors="surrogateescape"), keep="\n\t").encode()
