"""The drawn timeline of a run: one inline SVG, no script, colours by the reader's light or dark.

::

      name │ ▓▓▓▓ lanes of nodes: their states, with faults as bars
      link │ ──▓▓▓── the state of the network
     story │  ● ●  expectations and sentences
    PUT_OK │ ▁▂█▂▁ puts by outcome, one row each
           └──┴──┴── seconds

Outages are shaded through all rows, with their length above.  Text is text, so it can be searched
and read aloud; a span that is too narrow for its label has a tooltip only.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Final

from hastore_scenarios.report.lanes import BINS, CUT, OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_scenarios.judge.outage import Outage
    from hastore_scenarios.report.lanes import Lane, LaneSpan, Mark, Picture, PutRow

WIDTH: Final = 1040
_LEFT: Final = 186
_RIGHT: Final = 14
_TOP: Final = 30
_NODE_HEIGHT: Final = 24
_LINK_HEIGHT: Final = 15
_PUT_HEIGHT: Final = 26
_GAP: Final = 7
# The approximate width of letters of 11 px in the widest of usual fonts (DejaVu Sans).
_LARGE_LETTER: Final = 7.4
_LETTER: Final = 6.6
_TICKS_MAX: Final = 9

# CSS classes of outcomes; others count as unknown.
_STATUS_CLASSES: Final = {
    "PUT_OK": "good",
    "FLUSH_SLAVE_TIMEOUT": "late",
    "FLUSH_DISK_TIMEOUT": "late",
    "SLAVE_NOT_AVAILABLE": "weak",
    "NOT_SENT": "never",
    "SERVICE_NOT_AVAILABLE": "never",
    "OS_PAGE_CACHE_BUSY": "never",
    "CREATE_MAPPED_FILE_FAILED": "never",
    "IN_SYNC_REPLICAS_NOT_ENOUGH": "never",
}

STYLE: Final = """
.run { --good: #1a8f63; --bad: #c8352f; --late: #d08a00; --weak: #c65d1e; --never: #6b7684;
  --unsure: #8650b8; --master: #2f6fd0; --slave: #7fa9e3; --on-slave: #10243f; --ice: #5f6b7a; }
@media (prefers-color-scheme: dark) { .run { --good: #3ec28e; --bad: #f0706a; --late: #f0b54a;
  --weak: #f09459; --never: #97a3b2; --unsure: #bd93ea; --master: #4f8be8; --slave: #2f4f7c;
  --on-slave: #dce8fa; --ice: #a5b1c0; } }
.run text { font: 12px var(--font); fill: var(--ink); }
.run .axis, .run .small { font-size: 11px; fill: var(--muted); }
.run .name { text-anchor: end; font-weight: 600; }
.run .link-name { text-anchor: end; font-size: 11px; fill: var(--muted); }
.run .grid { stroke: var(--grid); stroke-width: 1; }
.run .outage { fill: var(--bad); fill-opacity: 0.1; }
.run .outage-line { stroke: var(--bad); stroke-width: 1.2; fill: none; }
.run .outage-text { fill: var(--bad); font-weight: 650; }
.run .master { fill: var(--master); } .run .slave { fill: var(--slave); }
.run .down { fill: var(--bad); fill-opacity: 0.16; stroke: var(--bad); stroke-dasharray: 4 3; }
.run .frozen { fill: url(#ice); stroke: var(--ice); }
.run .sick { fill: var(--late); fill-opacity: 0.55; stroke: var(--late); }
.run .cut { fill: var(--bad); }
.run .open { fill: var(--good); fill-opacity: 0.5; }
.run .on-master, .run .on-cut { fill: #ffffff; } .run .on-slave { fill: var(--on-slave); }
.run .on-down { fill: var(--bad); }
.run .on-frozen, .run .on-sick { fill: var(--ink); stroke: var(--paper); stroke-width: 3px;
  paint-order: stroke; }
@media (prefers-color-scheme: dark) { .run .on-cut { fill: #23090a; } }
.run .good { fill: var(--good); } .run .late { fill: var(--late); }
.run .weak { fill: var(--weak); } .run .never { fill: var(--never); }
.run .unsure { fill: var(--unsure); } .run .bad { fill: var(--bad); }
.run .said { fill: var(--muted); }
"""


def draw(
    picture: Picture, outages: Sequence[Outage], description: str, *, name: str = "run"
) -> str:
    """Return the ``<svg>``; ``description`` is its text for screen readers.

    ``name`` is what its ids begin with, which differ where a page has several.
    """
    rows: list[str] = []
    y = _TOP
    for lane in picture.lanes:
        rows.append(_lane(lane, picture.end_s, y))
        y += (_LINK_HEIGHT if lane.is_link else _NODE_HEIGHT) + _GAP
    if picture.marks:
        rows.append(_marks_row(picture.marks, picture.end_s, y))
        y += _LINK_HEIGHT + _GAP
    highest = max((max(row.bins) for row in picture.puts), default=0)
    for row in picture.puts:
        rows.append(_put_row(row, highest, y))
        y += _PUT_HEIGHT + _GAP
    bottom = y
    body = (
        "".join(_shade(outage, picture.end_s, bottom) for outage in outages)
        + _grid(picture.end_s, bottom)
        + _brackets(outages, picture.end_s, bottom)
        + "".join(rows)
    )
    return (
        f'<svg class="run" role="img" viewBox="0 0 {WIDTH} {bottom + 22}"'
        f' aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">Timeline</title>'
        f'<desc id="{name}-text">{_safe(description)}</desc>'
        f"<style>{STYLE}</style>{_ICE}{body}</svg>"
    )


_ICE: Final = (
    '<defs><pattern id="ice" width="7" height="7" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect width="7" height="7" fill="var(--paper)"/>'
    '<rect width="3" height="7" fill="var(--ice)" fill-opacity="0.45"/></pattern></defs>'
)


def _safe(text: str) -> str:
    """Escape a text; characters that a document may not contain become blanks."""
    return html.escape("".join(c if c.isprintable() else " " for c in text))


def _x(time_s: float, end_s: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, time_s / end_s))


def _rect(
    x: float, y: float, width: float, height: float, *, kind: str, tip: str, radius: int = 0
) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"'
        f' class="{kind}"><title>{_safe(tip)}</title></rect>'
    )


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{_safe(text)}</text>'


def _lane(lane: Lane, end_s: float, y: float) -> str:
    height = _LINK_HEIGHT if lane.is_link else _NODE_HEIGHT
    kind = "link-name" if lane.is_link else "name"
    drawn = [_text(_LEFT - 10, y + height / 2 + 4, kind, _shortened(lane.name, _LEFT - 20))]
    for place, span in enumerate(lane.spans):
        over = [
            max(other.begin_s, span.begin_s)
            for other in lane.spans[place + 1 :]
            if other.begin_s < span.end_s and other.end_s > span.begin_s
        ]
        free_until = _x(min(over, default=span.end_s), end_s)
        drawn.append(_span(span, end_s, y, height, free_until=free_until))
    return "".join(drawn)


def _span(span: LaneSpan, end_s: float, y: float, height: float, *, free_until: float) -> str:
    """Draw a span, and its label if there is room before the next span covers it."""
    x = _x(span.begin_s, end_s)
    width = max(2.5, _x(span.end_s, end_s) - x)
    top, bar = y, height
    if span.kind == OPEN:  # the ordinary state of a link is a line
        top, bar = y + height / 2 - 1.5, 3
    tip = f"{span.text} ({span.begin_s:.3f} to {span.end_s:.3f} s)"
    drawn = _rect(
        x, top, width, bar, kind=span.kind, tip=tip, radius=1 if span.kind in {OPEN, CUT} else 4
    )
    room = min(width, free_until - x) - 12
    label = span.label if span.kind != OPEN else ""
    if label and _width(label) <= room:
        drawn += _text(x + 6, y + height / 2 + 4, f"small on-{span.kind}", label)
    return drawn


def _width(text: str) -> float:
    return sum(_LARGE_LETTER if letter.isupper() else _LETTER for letter in text)


def _shortened(text: str, room: float) -> str:
    if _width(text) <= room:
        return text
    while text and _width(text + "…") > room:
        text = text[:-1]
    return text + "…"


def _marks_row(marks: Sequence[Mark], end_s: float, y: float) -> str:
    middle = y + _LINK_HEIGHT / 2
    drawn = [_text(_LEFT - 10, middle + 4, "link-name", "expected, said")]
    for mark in marks:
        kind = "said" if mark.is_good is None else "good" if mark.is_good else "bad"
        x, radius = _x(mark.time_s, end_s), 6 if mark.is_good is False else 4
        tip = f"<title>{mark.time_s:.3f} s: {_safe(mark.text)}</title>"
        if mark.is_good is None:
            drawn.append(
                f'<rect x="{x - 1:.1f}" y="{y + 2:.1f}" width="2" height="11" class="{kind}">{tip}'
                "</rect>"
            )
        else:
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="{radius}" class="{kind}">{tip}</circle>'
            )
    return "".join(drawn)


def _put_row(row: PutRow, highest: int, y: float) -> str:
    """Draw how many ended in each bin; heights grow with the square root, so one put is visible."""
    kind = _STATUS_CLASSES.get(row.label, "unsure")
    number = f" {row.count}"  # never shortened
    name = _shortened(row.label, _LEFT - 10 - _width(number)) + number
    drawn = [_text(_LEFT - 10, y + _PUT_HEIGHT - 5, "link-name", name)]
    width = (WIDTH - _LEFT - _RIGHT) / BINS
    floor = y + _PUT_HEIGHT
    drawn.append(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{floor}" y2="{floor}" class="grid"/>'
    )
    for place, count in enumerate(row.bins):
        if count:
            height = max(4.0, _PUT_HEIGHT * math.sqrt(count / highest))
            x = _LEFT + place * width
            drawn.append(
                _rect(
                    x,
                    floor - height,
                    max(2.5, width),
                    height,
                    kind=kind,
                    tip=f"{count} {row.label}",
                )
            )
    return "".join(drawn)


def _shade(outage: Outage, end_s: float, bottom: float) -> str:
    x, right = _ends(outage, end_s)
    tip = f"{outage.fault}: {_rto(outage)}, {outage.puts} puts without PUT_OK"
    return _rect(x, _TOP - 8, right - x, bottom - _TOP + 8, kind="outage", tip=tip)


def _brackets(outages: Sequence[Outage], end_s: float, bottom: float) -> str:
    """Label each shade; a label that would overlap the last one is in the tooltip only."""
    drawn = []
    free_from = 0.0
    for outage in outages:
        x, right = _ends(outage, end_s)
        label = _rto(outage)
        width = len(label) * _LARGE_LETTER
        begin = x if x + width <= WIDTH else right - width
        drawn.append(
            f'<path d="M{x:.1f} {bottom} V{_TOP - 8} H{right:.1f} V{_TOP - 2}"'
            ' class="outage-line"/>'
        )
        if begin >= free_from:
            drawn.append(_text(begin, _TOP - 13, "outage-text", label))
            free_from = begin + width
    return "".join(drawn)


def _ends(outage: Outage, end_s: float) -> tuple[float, float]:
    x = _x(outage.begin_s, end_s)
    return x, max(x + 1.5, _x(end_s if outage.ok_s is None else outage.ok_s, end_s))


def _rto(outage: Outage) -> str:
    return "no PUT_OK again" if outage.rto_s is None else f"RTO {outage.rto_s:.3f} s"


def _grid(end_s: float, bottom: float) -> str:
    step = _tick_step(end_s)
    drawn = []
    for number in range(math.floor(end_s / step + 1e-9) + 1):
        time_s = number * step
        x = _x(time_s, end_s)
        drawn.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" class="grid"/>'
            f'<text x="{x:.1f}" y="{bottom + 15}" class="axis" text-anchor="middle">'
            f"{time_s:g}{' s' if number == 0 else ''}</text>"
        )
    return "".join(drawn)


def _tick_step(end_s: float) -> float:
    """Return the seconds between two ticks: 1, 2 or 5 times a power of ten."""
    rough = end_s / _TICKS_MAX
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
