"""The terminal: its width and colours, and the ways to print: data to stdout, messages to stderr.

Colour only on a terminal, never with ``NO_COLOR`` set (no-color.org), always with ``FORCE_COLOR``.
Off a terminal tables are as wide as their content, numbers are ungrouped, for ``awk``, and a line
stays a line, whatever its length.  Texts from a log are printed on one line, their control
characters escaped.

A character that the stream's encoding lacks becomes a simpler one, or an escape::

    0 … 17 × 3 — 84 µs    on an ASCII terminal    0 ... 17 x 3 - 84 us
    grüße, 日本, \\udcff                           gr\\xfc\\xdfe, \\u65e5\\u672c, \\udcff

The last is how Python carries a byte that is not UTF-8: every encoding needs this for it.  The text
may grow, so code that lays text out calls ``as_shown`` first.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime as dt
import errno
import os
import sys
from typing import IO, TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


LABEL_SIZE: Final = 9
_COLOURS: Final = {
    "ok": "green",
    "damage": "red",
    "warning": "yellow",
    "note": "cyan",
    "equal": "green",
    "prefix": "yellow",
    "different": "red",
    "disjoint": "red",
}
_PLAIN_WIDTH = 1_000
_COLUMNS = 80  # of a terminal that does not report its width
_FOLDED_MIN = 20


def use_colour(stream: IO[str]) -> bool:
    """Whether ``stream`` may get colour."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def make_console(*, stderr: bool = False) -> Console:
    """Return a rich console for stdout or stderr, without markup and highlighting."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        width=None if stream.isatty() else _PLAIN_WIDTH,
        no_color=not use_colour(stream),
        highlight=False,
        markup=False,
        emoji=False,
    )


def fitted(text: str) -> str:
    """Cut ``text`` to one line of stdout's terminal, ending with an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    text = as_shown(text, sys.stdout)
    width = _columns(sys.stdout)
    if cell_len(text) <= width:
        return text
    ellipsis = as_shown("…", sys.stdout)
    return set_cell_size(text, max(width - len(ellipsis), 0)).rstrip() + ellipsis


def folded(head: str, text: str, stream: IO[str], *, hang: int = 0) -> str:
    """Return ``head + text``, on a terminal folded at words below where the text began.

    Not for commands: one that is folded cannot be copied.
    """
    if not stream.isatty():
        return head + text
    from rich.cells import cell_len

    indent = cell_len(click.unstyle(head))
    room = max(_columns(stream) - indent - hang, _FOLDED_MIN)
    return head + f"\n{' ' * (indent + hang)}".join(wrap(as_shown(text, stream), room))


def _columns(stream: IO[str]) -> int:
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["COLUMNS"])
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def tell(text: str = "") -> None:
    """Print one line of data to stdout."""
    # Not click's own stdout: it writes UTF-8 even to an ASCII stream.
    click.echo(text, file=sys.stdout, color=use_colour(sys.stdout))


def say(text: str) -> None:
    """Print one line to stderr; a reader or a terminal that has gone is not an error."""
    try:
        click.echo(text, file=sys.stderr, color=use_colour(sys.stderr))
    except OSError as error:
        if error.errno not in {errno.EPIPE, errno.EIO}:
            raise


def say_error(message: str, hint: str | None) -> None:
    """Print ``error: …``, folded on a terminal, and with a hint ``  next  …`` to stderr."""
    head = f"{click.style('error:', fg='red', bold=True)} "
    say(folded(head, one_line(message), sys.stderr))
    if hint:
        say_next(hint)


def say_next(hint: str) -> None:
    """Print the next step: what to type or do now."""
    say(f"  {click.style('next', fg='cyan')}  {one_line(hint)}")


def wrap(text: str, width: int) -> list[str]:
    """Fold ``text`` to lines of ``width`` columns; a word, path or number is never broken."""
    from textwrap import TextWrapper

    wrapper = TextWrapper(max(width, 1), break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text) or [""]


def packed(parts: Sequence[str], width: int, *, hang: int) -> list[str]:
    """Put ``parts`` side by side on as few lines as possible; none is broken."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len("  ") + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(" " * hang + part)
    return lines


def one_line(text: str) -> str:
    """Replace line ends and control characters by blanks."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


# -- sentences -----------------------------------------------------------------------------------


def fold(text: str, *, hang: int) -> list[str]:
    """Return the lines of a text; all but the first begin with ``hang`` blanks.

    A word is never broken, such as a path that is longer than the terminal is wide.
    """
    if not sys.stdout.isatty():
        return [text]
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * min(hang, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [text]


# -- numbers, rows, tables -----------------------------------------------------------------------


def number(value: int) -> str:
    """Format a number: in groups of three on a terminal, plain for ``awk``."""
    if not sys.stdout.isatty():
        return str(value)
    from hastore.quantities import format_count  # here: it imports all of hastore

    return format_count(value)


def counted(count: int, noun: str) -> str:
    """Return ``1 file``, ``2 files``."""
    return f"{number(count)} {noun}{'s' * (count != 1)}"


def escaped(text: str) -> str:
    """Return a text on one line: control characters and non-UTF-8 bytes as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def time_text(timestamp_ms: int) -> str:
    """Return ``2026-11-21T08:12:22.549Z``, or the number where the calendar has no such time."""
    try:
        time = dt.datetime.fromtimestamp(timestamp_ms // 1000, tz=dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def label_row(label: str, text: str) -> str:
    """Return one line of a report, a label and a text; folded on a terminal."""
    head = f"  {click.style(f'{label:<{LABEL_SIZE}}', fg=_COLOURS.get(label))}  "
    return folded(head, text, sys.stdout)


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterable[str]:
    """Yield the lines of a table: numbers to the right, the name, which may be long, last."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)]
        line = f"  {'  '.join(cells)}  {row[-1]}"
        yield click.style(line, dim=True) if row is head else line


# -- characters that an encoding lacks -----------------------------------------------------------


_NAME: Final = "hastore_simpler_text"
_SIMPLER: Final = {
    **dict.fromkeys("\u2010\u2011\u2012–—―−─━═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╞╡╪╔╗╚╝╠╣╦╩╬", "+"),
    **dict.fromkeys("‘’‚", "'"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
    **dict.fromkeys("·•", "*"),
    **dict.fromkeys("▏▎▍▌▋▊▉█", "#"),
    "…": "...",
    "×": "x",
    "µ": "u",
    "μ": "u",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "←": "<-",
    "✓": "ok",
    "✔": "ok",
    "✗": "x",
    "✘": "x",
}


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wanted = error.object[error.start : error.end]
    return "".join(_SIMPLER.get(c) or ascii(c)[1:-1] for c in wanted), error.end


def show_all_text(stream: IO[str]) -> None:
    """Let ``stream`` take any text, whatever its encoding."""
    codecs.register_error(_NAME, _simpler)
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_NAME)


def as_shown(text: str, stream: IO[str]) -> str:
    """Return ``text`` as ``stream`` will show it."""
    if text.isascii():
        return text
    codecs.register_error(_NAME, _simpler)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, _NAME).decode(encoding)
