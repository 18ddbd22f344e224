"""Texts for people that several commands print: numbers, times, labelled rows, tables.

What comes from a log is on one line, its control characters escaped.
"""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING, Final

import click

from hastore.quantities import format_count
from hastore_cli.app.terminal import folded

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def number(value: int) -> str:
    """A number: in groups of three on a terminal, plain for ``awk``."""
    return format_count(value) if sys.stdout.isatty() else str(value)


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number(count)} {noun}{'s' * (count != 1)}"


def escaped(text: str) -> str:
    """A text on one line, control characters and what is no UTF-8 as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def time_text(timestamp_ms: int) -> str:
    """``2026-11-21T08:12:22.549Z``; the bare number where it is no time of our calendar."""
    try:
        time = dt.datetime.fromtimestamp(timestamp_ms // 1000, tz=dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def label_row(label: str, text: str) -> str:
    """One line of a report: what it is about, and what there is to say; folded on a terminal."""
    head = f"  {click.style(f'{label:<{LABEL_SIZE}}', fg=_COLOURS.get(label))}  "
    return folded(head, text, sys.stdout)


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterable[str]:
    """Lay out a table: numbers to the right, the name, which may be long, last."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)]
        line = f"  {'  '.join(cells)}  {row[-1]}"
        yield click.style(line, dim=True) if row is head else line
