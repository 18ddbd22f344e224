"""The terminal: its width and colours, and the ways to print: data to stdout, messages to stderr.

Colour only on a terminal, never with ``NO_COLOR`` set (no-color.org), always with ``FORCE_COLOR``.
Off a terminal tables are as wide as their content, numbers are ungrouped, for ``awk``, and a line
stays a line, whatever its length.

Everything that a command prints leaves through this file, and is escaped on its way out: a node, a
log, etcd or a file may hold ``ESC [ 2 J``, a line end or a mark that reverses the text::

    tell, say            one line: line ends are escaped too, except those of ``folded``
    tell_text, say_text  several lines, such as a file: line ends and tabs stay
    make_console         what rich draws: line ends stay, so table cells are escaped before

Colours and folds therefore cannot be written as control characters.  ``style`` and ``folded``
mark them with a number that is drawn for each process, which no printed text can contain by design;
``rendered`` replaces the marks and escapes all else.  tests/tidy checks who else prints.

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
import re
import sys
from typing import IO, TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

LABEL_SIZE: Final = 9
_NOTED: Final = "hastore.noted"
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
# What precedes the colours and folds that this program has put into a text.
_MARK: Final = f"\x1b{os.urandom(8).hex()}"
_MARKED: Final = re.compile(rf"{_MARK}([0-9;]*m|n)")
_FOLD: Final = f"{_MARK}n"
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


def style(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Return ``text`` in a colour, which ``rendered`` shows where the stream may get colour."""
    begin, _, end = click.style("\0", fg=fg, bold=bold or None, dim=dim or None).partition("\0")
    return f"{_marked(begin)}{text}{_marked(end)}"


def _marked(codes: str) -> str:
    return codes.replace("\x1b[", _MARK)


def unstyled(text: str) -> str:
    """Return ``text`` without the colours of ``style``."""
    return _MARKED.sub("", text)


def rendered(text: str, *, colour: bool, keep: str = "") -> str:
    """Return what may be written to a stream: colours and folds real, and all else ``escaped``.

    The characters in ``keep`` stay as they are.
    """
    if _MARK not in text:
        return escaped(text, keep=keep)
    parts = _MARKED.split(text)  # text, mark, text, mark, …, text
    parts[::2] = [escaped(part, keep=keep) for part in parts[::2]]
    for at in range(1, len(parts), 2):
        mark = parts[at]
        parts[at] = "\n" if mark == "n" else f"\x1b[{mark}" if colour else ""
    return "".join(parts)


def make_console(*, stderr: bool = False) -> Console:
    """Return a rich console for stdout or stderr, without markup and highlighting.

    Texts are escaped as rich renders them; their line ends stay line ends.
    """
    from hastore_scenarios.escaping_console import EscapingConsole

    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(
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

    indent = cell_len(unstyled(head))
    room = max(_columns(stream) - indent - hang, _FOLDED_MIN)
    return head + f"{_FOLD}{' ' * (indent + hang)}".join(wrap(as_shown(text, stream), room))


def _columns(stream: IO[str]) -> int:
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["COLUMNS"])
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def tell(text: str = "") -> None:
    """Print one line of data to stdout."""
    _print(text, sys.stdout)


def tell_text(text: str) -> None:
    """Print a text of several lines to stdout, such as a file or a message's body."""
    _print(text, sys.stdout, keep="\n\t")


def say(text: str) -> None:
    """Print one line to stderr; a reader or a terminal that has gone is not an error."""
    _say(text)


def note(text: str) -> None:
    """Print ``note: …`` to stderr, once in a command."""
    context = click.get_current_context(silent=True)
    noted = set() if context is None else context.meta.setdefault(_NOTED, set())
    if text not in noted:
        noted.add(text)
        say(f"note: {text}")


def say_text(text: str) -> None:
    """Print a text of several lines to stderr, such as a traceback."""
    _say(text, keep="\n\t")


def say_in_place(text: str) -> None:
    """Print over the last line of stderr's terminal, without an end; an empty text clears it."""
    click.echo(f"\r\x1b[K{rendered(text, colour=False)}", nl=False, file=sys.stderr, color=True)


def _say(text: str, *, keep: str = "") -> None:
    try:
        _print(text, sys.stderr, keep=keep)
    except OSError as error:
        if error.errno not in {errno.EPIPE, errno.EIO}:
            raise


def _print(text: str, stream: IO[str], *, keep: str = "") -> None:
    # Not click's own stdout: it writes UTF-8 even to an ASCII stream.
    colour = use_colour(stream)
    click.echo(rendered(text, colour=colour, keep=keep), file=stream, color=colour)


def say_error(message: str, hint: str | None) -> None:
    """Print ``error: …``, folded on a terminal, and with a hint ``  next  …`` to stderr."""
    head = f"{style('error:', fg='red', bold=True)} "
    say(folded(head, one_line(message), sys.stderr))
    if hint:
        say_next(hint)


def say_next(hint: str) -> None:
    """Print the next step: what to type or do now."""
    say(f"  {style('next', fg='cyan')}  {one_line(hint)}")


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
    """Return a text on one line: blanks for line ends, and what is not printable escaped."""
    return escaped(" ".join(text.split()))


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


def escaped(text: str, *, keep: str = "") -> str:
    """Return a text on one line: what is not printable as backslash escapes, but for ``keep``.

    ``hastore.printable`` does it, and says what is not printable.
    """
    if text.isprintable():
        return text
    from hastore.printable import escaped as escape  # here: it imports all of hastore

    return escape(text, keep=keep)


def time_text(timestamp_ms: int) -> str:
    """Return ``2026-11-21T08:12:22.549Z``, or the number where the calendar has no such time."""
    try:
        time = dt.datetime.fromtimestamp(timestamp_ms // 1000, tz=dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def label_row(label: str, text: str) -> str:
    """Return one line of a report, a label and a text; folded on a terminal."""
    head = f"  {style(f'{label:<{LABEL_SIZE}}', fg=_COLOURS.get(label))}  "
    return folded(head, text, sys.stdout)


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterable[str]:
    """Yield the lines of a table: numbers to the right, the name, which may be long, last."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)]
        line = f"  {'  '.join(cells)}  {row[-1]}"
        yield style(line, dim=True) if row is head else line


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
