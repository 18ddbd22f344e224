"""Templates of HTML reports: one style, every text escaped, undefined names an error.

A package keeps its ``*.html.jinja`` beside its modules and extends this package's
``base.html.jinja``; ``parts.html.jinja`` has cards, tables, tiles and figures.  A page is
self-contained: no script, no other file, no network address.
"""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_KEPT = "\n\u202f"  # characters that a page may contain, though ``isprintable`` says no


def templates(package: str) -> Environment:
    """Return an environment that loads the templates of a package and the shared ones."""
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
    """Replace control characters and lone surrogates, which no document may contain."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in _KEPT else " " for c in value)
