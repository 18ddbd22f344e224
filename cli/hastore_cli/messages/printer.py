"""Prints messages one after the other, in whichever form was asked for.

One way for all commands that give messages (``log cat``, ``find``, ``tail``, ``consume``,
``get``): a line each for people, JSON with stable keys, or ``-F`` bytes.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, final

import attrs
import rich_click as click

from hastore.client.received_messages import unpacked_body
from hastore_cli.app.simpler_text import as_shown
from hastore_cli.app.terminal import escaped, fitted, time_text
from hastore_cli.messages.detail import body_text, message_json
from hastore_cli.messages.format import MessageFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.message import StoredMessage


@final
class MessagePrinter:
    """``output`` is table, json or jsonl; ``template`` wins over it.  ``shown`` counts.

    ``schema`` is of the document around the messages (json only).  In a ``with`` block, so that the
    document is closed even where an error ends it early.
    """

    def __init__(
        self,
        output: str,
        *,
        schema: str,
        template: MessageFormat | None = None,
        bodies: bool = True,
    ) -> None:
        if template is not None and output != "table":
            raise click.UsageError("-F says what to print: leave -o out")
        self.shown = 0
        self._output = output
        self._schema = schema
        self._template = template
        self._bodies = bodies
        # Asked once: a terminal gets no escape sequence of a body, and one line of it.
        self._on_terminal = sys.stdout.isatty()

    def __enter__(self) -> MessagePrinter:
        if self._is_document:
            sys.stdout.write(f'{{"schema": {json.dumps(self._schema)}, "messages": [')
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None and issubclass(error_type, BrokenPipeError):
            return
        if self._is_document:
            sys.stdout.write("\n]}\n")
        self.flush()

    @property
    def _is_document(self) -> bool:
        return self._output == "json" and self._template is None

    def show(self, message: StoredMessage) -> None:
        """Print one message; not flushed."""
        message = unpacked(message)
        # Not click.echo, which would flush each line.
        if self._template is not None:
            data = self._template.render(message, printable=self._on_terminal)
            if self._on_terminal:
                text = as_shown(data.decode(errors="surrogateescape"), sys.stdout)
                data = text.encode(sys.stdout.encoding)
            sys.stdout.buffer.write(data)
        elif self._output == "table":
            line = message_line(message, bodies=self._bodies, on_terminal=self._on_terminal)
            sys.stdout.write(f"{fitted(line) if self._on_terminal else line}\n")
        else:
            text = json.dumps(message_json(message, bodies=self._bodies))
            sys.stdout.write(
                f"{',' * (self.shown > 0)}\n{text}" if self._is_document else f"{text}\n"
            )
        self.shown += 1

    def flush(self) -> None:
        """Let whoever reads see what was printed."""
        sys.stdout.flush()


def unpacked(message: StoredMessage) -> StoredMessage:
    """Return a message with the body that its producer had, where a client has compressed it."""
    body = unpacked_body(message)
    return message if body is None else attrs.evolve(message, body=body)


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
    """Add ``-F``, given to the command as ``template``."""
    return click.option(
        "-F",
        "--format",
        "template",
        metavar="FORMAT",
        callback=_parse_format,
        help=r"What to print of each message, such as '%o %k %s\n'; all fields: see below.",
    )(command)


def message_line(message: StoredMessage, *, bodies: bool, on_terminal: bool = False) -> str:
    """``hastore log cat``: one message; on a terminal with less space before it."""
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
    """Return a body as text where it is UTF-8, whatever characters it holds."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
