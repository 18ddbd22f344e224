"""Templates of reports: one look, every text escaped, and no name that is not there.

A package keeps its ``*.html.jinja`` beside its modules and extends ``base.html.jinja`` of this one;
``parts.html.jinja`` has cards, tables, tiles and figures.  A page needs nothing but itself: no
script, no file, no address.
"""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_KEPT = "\n\u202f"  # not printable to Python, and welcome in a page


def templates(package: str) -> Environment:
    """Return the environment that finds the templates of a package, and the shared ones."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in (package, "hastore.html")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _printable(value: Any) -> Any:
    """Take out of a text what no document may hold: control characters, halves of surrogates."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in _KEPT else " " for c in value)
