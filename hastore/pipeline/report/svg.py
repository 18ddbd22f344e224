"""Draw a matplotlib figure as SVG for a page, with the page's colours and font.

matplotlib draws with marks as colours, which become variables of the page's style sheet, which has
values for light and dark.  Text stays text: it can be selected, found and read aloud.  The same
figure yields the same bytes: ids are hashes, and there is no date.
"""

from __future__ import annotations

import html
import io
import logging
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

# Marks: colours that no figure uses otherwise.
INK, MUTED, GRID, PAPER, OTHER = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
SERIES: Final = ("#100001", "#100002", "#100003", "#100004", "#100005", "#100006", "#100007")
_VARIABLES: Final = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    OTHER: "other",
    **{mark: f"s{place}" for place, mark in enumerate(SERIES)},
}
_STYLE: Final[dict[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8.5,
    "ytick.left": False,
    "ytick.minor.left": False,
}


def draw(name: str, title: str, description: str, make: Callable[[], Figure]) -> str:
    """Return the figure that ``make`` draws as an ``<svg>``; ``name`` makes its ids unique."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with warnings.catch_warnings(), mpl.rc_context(style):
        # A name may have characters that only the browser's font has, not matplotlib's.
        warnings.simplefilter("ignore", UserWarning)
        figure = make()
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    return _inlined(buffer.getvalue(), name, title, description)


def _inlined(text: str, name: str, title: str, description: str) -> str:
    """Remove what only an SVG file needs: prolog, XML namespaces, metadata, sizes."""
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None, "matplotlib writes a viewBox"
    body = text[text.index(">", box.end()) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font: \1px var(--font)", body)
    body = re.sub(r"font: (bold|700) ([\d.]+)px [^;\"]+", r"font: 600 \2px var(--font)", body)
    body = re.sub(r"font-family: [^;\"]+", "font-family: var(--font)", body)
    body = re.sub(
        r'id="(figure|patch|axes|matplotlib|xtick|ytick|line2d|text|legend)[^"]*"', "", body
    )
    for mark, variable in _VARIABLES.items():
        body = body.replace(mark, f"var(--{variable})")
    head = (
        f'<svg role="img" viewBox="{box[1]}" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-text">{html.escape(description)}</desc>'
    )
    return head + re.sub(r"\s*\n\s*", "\n", body).strip()
