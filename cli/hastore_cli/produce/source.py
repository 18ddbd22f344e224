"""The messages for ``hastore produce``: lines of a file or of stdin, or generated ones.

::

    bytes of a descriptor ── read in a thread ── lines, newline stripped ── batches ── channel ──►

One line is one message: an empty line is an empty body, a last line without a newline counts.  At
most ``_BATCHES_MAX`` batches of one read each wait in the channel; a line longer than
``LINE_SIZE_MAX`` is refused with its number.  What a line says is up to ``LineFormat``::

    TEXT   hello                                               body
    KEYED  o-17:hello                                          keys, separator, body
    JSON   {"body": "hello", "keys": "o-17", "properties": {"a": "b"}}
           as `consume -o jsonl` and an export print it; other fields are not used
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import stat
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, assert_never, final

import attrs
import trio

from hastore.errors import ConfigError
from hastore.message import PROPERTY_KEYS, Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LINE_SIZE_MAX: Final = 15 * 1024 * 1024  # the producer accepts no more
_READ_SIZE: Final = 256 * 1024
_BATCHES_MAX: Final = 4
_GENERATED_BATCH: Final = 256
_GENERATED_BATCH_SIZE: Final = 4 * 1024 * 1024
# Of a message as `consume -o jsonl` prints it, besides the columns of an export.
_PRINTED: Final = frozenset(
    {"schema", "offset", "id", "message_id", "body_size", "body_base64", "unconfirmed"}
)


class MessageSource(Protocol):
    """Yields bodies in batches until there are no more."""

    @property
    def name(self) -> str:
        """Where the messages come from, for errors."""

    @property
    def total(self) -> int | None:
        """How much there is in all, in ``unit``; None if unknown."""

    @property
    def done(self) -> int:
        """How much of ``total`` was fed."""

    @property
    def unit(self) -> str:
        """``messages`` or ``bytes``."""

    async def feed(self, channel: trio.MemorySendChannel[list[bytes]]) -> None:
        """Put all batches into ``channel``, then close it."""


@final
@attrs.define(eq=False)
class GeneratedSource:
    """``count`` bodies of ``size`` bytes, each beginning with its own number."""

    count: int
    size: int
    name: str = attrs.field(default="generated", init=False)
    done: int = attrs.field(default=0, init=False)
    unit: str = attrs.field(default="messages", init=False)

    @property
    def total(self) -> int | None:
        """The number of messages."""
        return self.count

    async def feed(self, channel: trio.MemorySendChannel[list[bytes]]) -> None:
        """Generate the bodies as they are taken."""
        batch = max(min(_GENERATED_BATCH, _GENERATED_BATCH_SIZE // max(self.size, 1)), 1)
        with channel:
            for first in range(0, self.count, batch):
                numbers = range(first, min(first + batch, self.count))
                await channel.send([_numbered_body(number, self.size) for number in numbers])
                self.done = numbers.stop


_FILLER: Final = b"the quick brown fox jumps over the lazy dog, "


def _numbered_body(number: int, size: int) -> bytes:
    head = b"message %010d " % number
    repeats = max(0, size - len(head)) // len(_FILLER) + 1
    return (head + _FILLER * repeats)[:size]


@final
@attrs.define(eq=False)
class LineSource:
    """The lines of a descriptor, at most ``count_max`` of them."""

    descriptor: int
    name: str
    total: int | None
    count_max: int | None = None
    done: int = attrs.field(default=0, init=False)
    unit: str = attrs.field(default="bytes", init=False)
    _lines: int = attrs.field(default=0, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)

    async def feed(self, channel: trio.MemorySendChannel[list[bytes]]) -> None:
        """Read to the end of the input, or ``count_max`` lines."""
        with channel:  # closes without a checkpoint, so that an error is seen before the end
            while data := await self._read():
                lines = (self._rest + data).split(b"\n")
                self._rest = lines.pop()
                if len(self._rest) > LINE_SIZE_MAX:
                    self._refuse(len(lines))
                if await self._send(channel, lines):
                    return
            if self._rest:
                await self._send(channel, [self._rest])

    async def _read(self) -> bytes:
        # In a thread, because reading blocks; abandoned at Ctrl-C.
        data = await trio.to_thread.run_sync(
            os.read, self.descriptor, _READ_SIZE, abandon_on_cancel=True
        )
        self.done += len(data)
        return data

    async def _send(self, channel: trio.MemorySendChannel[list[bytes]], lines: list[bytes]) -> bool:
        """Send lines; return whether there are enough."""
        if self.count_max is not None:
            del lines[self.count_max - self._lines :]
        if lines and max(map(len, lines)) > LINE_SIZE_MAX:
            self._refuse(next(i for i, line in enumerate(lines) if len(line) > LINE_SIZE_MAX))
        self._lines += len(lines)
        if lines:
            await channel.send(lines)
        return self._lines == self.count_max

    def _refuse(self, complete_lines: int) -> None:
        number = self._lines + complete_lines + 1
        raise ConfigError(
            f"{self.name}: line {number} is longer than {LINE_SIZE_MAX} bytes",
            hint="one line is one message; a broker takes bodies of up to 4 MiB (message_max)",
        )


# -- a line as a message ---------------------------------------------------------------------------


class LineFormat(enum.Enum):
    """What a line of the input says."""

    TEXT = "text"
    KEYED = "keyed"
    JSON = "json"


@attrs.frozen(kw_only=True)
class LineReader:
    """Makes messages of lines; ``properties`` count where a line has none of that name.

    ``name`` is the input's, for errors; ``separator`` is what follows the keys (KEYED).
    """

    topic: str
    properties: Mapping[str, str]
    name: str
    line_format: LineFormat = LineFormat.TEXT
    separator: bytes = b""

    def message(self, line: bytes, number: int) -> Message:
        """Return the message of a line, whose number counts from 1.  Raises ConfigError."""
        match self.line_format:
            case LineFormat.TEXT:
                return Message(self.topic, line, properties=self.properties)
            case LineFormat.KEYED:
                return self._keyed(line, number)
            case LineFormat.JSON:
                return self._of_json(line, number)
            case _:
                assert_never(self.line_format)

    def _keyed(self, line: bytes, number: int) -> Message:
        keys, separator, body = line.partition(self.separator)
        try:
            text = keys.decode()
        except UnicodeDecodeError:
            raise self._refused(number, "its keys are not UTF-8") from None
        if not separator:
            raise self._refused(number, f"it has no {self.separator.decode()!r} after its keys")
        own = {PROPERTY_KEYS: text} if text else {}
        return Message(self.topic, body, properties={**self.properties, **own})

    def _of_json(self, line: bytes, number: int) -> Message:
        from hastore.pipeline.transfer.import_rows import COLUMNS, sent_message

        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._refused(number, f"it is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise self._refused(number, "it is JSON, but not an object")
        unknown = sorted(fields.keys() - _PRINTED - set(COLUMNS))
        if unknown:
            raise self._refused(
                number, f"{unknown[0]!r} is none of body, body_base64, keys, tags, properties"
            )
        if "body_base64" in fields:
            fields |= {"body": fields["body_base64"], "body_encoding": "base64"}
        if "body" not in fields:
            raise self._refused(number, "it has neither body nor body_base64")
        try:
            message = sent_message(self.topic, fields)
        except ConfigError as error:
            raise self._refused(number, str(error)) from None
        own = message.properties or {}
        return attrs.evolve(message, properties={**self.properties, **own})

    def _refused(self, number: int, why: str) -> ConfigError:
        return ConfigError(
            f"{self.name}, line {number} is not a message: {why}",
            hint="the lines before it were sent; correct it, and send the rest",
        )


def has_unread_stdin() -> bool:
    """Whether bytes wait in a pipe that is the standard input."""
    if sys.stdin is None:
        return False
    try:
        descriptor = sys.stdin.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return False
    return int.from_bytes(count, sys.byteorder) > 0


def open_source(file: str | None, *, count: int | None, size: int | None) -> MessageSource:
    """Return the source for the arguments of ``hastore produce``.

    Raises ConfigError if the file cannot be read.
    """
    if file is None and (count is not None or size is not None):
        return GeneratedSource(1 if count is None else count, 1024 if size is None else size)
    if file is None or file == "-":
        return LineSource(sys.stdin.fileno(), "stdin", None, count)
    path = Path(file)
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "is a directory")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}", hint="name a file of lines, or - for stdin"
        ) from error
    size_of_file = os.fstat(descriptor).st_size
    return LineSource(descriptor, file, size_of_file or None, count)


async def read_ahead(
    channel: trio.MemoryReceiveChannel[list[bytes]], *, count: int, seconds: float
) -> tuple[list[bytes], bool]:
    """Take bodies until there are more than ``count``, or no more, or ``seconds`` have passed.

    Returns them, and whether these are all; nothing is lost when the time is up.
    """
    bodies: list[bytes] = []
    with trio.move_on_after(seconds):
        while len(bodies) <= count:
            try:
                bodies += await channel.receive()
            except trio.EndOfChannel:
                return bodies, True
    return bodies, False


def batches_channel() -> tuple[
    trio.MemorySendChannel[list[bytes]], trio.MemoryReceiveChannel[list[bytes]]
]:
    """Return the bounded channel between a source and the sender."""
    return trio.open_memory_channel[list[bytes]](_BATCHES_MAX)


def chunks(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Yield ``bodies`` as one batch, if there are any."""
    if bodies:
        yield bodies
