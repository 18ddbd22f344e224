"""The pieces of a report's page: tiles, cards, tables, figures.  Every text in them is escaped.

A page needs nothing but itself: no script, no file, no address; ``page`` is where that is true.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.pipeline.report.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ROWS_OPEN_MAX: Final = 10  # a longer table is folded away below its plot


@attrs.frozen
class Column:
    """A column of a table: its title, and the text of a row in it."""

    title: str
    text: Callable[[dict[str, Any]], str]
    is_number: bool = True


def escaped(text: str) -> str:
    """Make a text fit for a page."""
    return html.escape(text)


def table(caption: str, columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> str:
    """Give a table; a row with ``is_others`` is paler."""
    heads = "".join(
        f'<th scope="col"{_class(column)}>{escaped(column.title)}</th>' for column in columns
    )
    lines = []
    for row in rows:
        cells = "".join(
            f"<td{_class(column)}>{escaped(column.text(row))}</td>" for column in columns
        )
        lines.append(
            f'<tr class="others">{cells}</tr>' if row.get("is_others") else f"<tr>{cells}</tr>"
        )
    return (
        f'<div class="scroll"><table><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{chr(10).join(lines)}</tbody></table></div>"
    )


def _class(column: Column) -> str:
    return ' class="number"' if column.is_number else ' class="name"'


def folded(title: str, content: str) -> str:
    """Put content where a click opens it; no script is needed for that."""
    return f"<details><summary>{escaped(title)}</summary>{content}</details>"


def table_beside(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[dict[str, Any]],
    *,
    is_open: bool = False,
) -> str:
    """Give the numbers of a plot: open where they are few."""
    made = table(caption, columns, rows)
    if is_open or len(rows) <= _ROWS_OPEN_MAX:
        return made
    return folded(f"The numbers as a table ({len(rows)} rows)", made)


def figure(svg: str, caption: str = "", *, is_wide: bool = True) -> str:
    """Give a plot with a line below; a wide one is scrolled sideways on a phone."""
    below = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    kind = ' class="wide"' if is_wide else ""
    return f"<figure{kind}>{svg}{below}</figure>"


def tile(name: str, value: str, more: str = "", *, is_wrong: bool = False) -> str:
    """Give one headline figure."""
    kind = ' class="wrong"' if is_wrong else ""
    below = f'<span class="more">{escaped(more)}</span>' if more else ""
    return (
        f'<li{kind}><span class="name">{escaped(name)}</span>'
        f'<span class="value">{escaped(value)}</span>{below}</li>'
    )


def tiles(content: Sequence[str]) -> str:
    """Give the row of headline figures."""
    return f'<ul class="tiles">{"".join(content)}</ul>'


def card(name: str, title: str, lead: str, *content: str) -> str:
    """Give one section."""
    return (
        f'<section class="card" id="{name}" aria-labelledby="{name}-head">'
        f'<h2 id="{name}-head">{escaped(title)}</h2>'
        f'<p class="lead">{escaped(lead)}</p>{"".join(content)}</section>\n'
    )


def note(text: str) -> str:
    """Give a line that explains."""
    return f'<p class="note">{escaped(text)}</p>'


def warning(title: str, text: str) -> str:
    """Give a box that is not to be missed."""
    return (
        f'<section class="card warning" role="note"><h2>{escaped(title)}</h2>'
        f"<p>{escaped(text)}</p></section>\n"
    )


def page(title: str, content: str) -> str:
    """Give the whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="hastore report">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{content}</main>\n</body>\n</html>\n"
    )
