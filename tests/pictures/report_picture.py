"""The head of a scenario's report as one SVG: the headline figures above the drawn run.

An SVG in a README is an image: the styles of the page around it do not apply.  So the colours of
the report's light page are written into it, on a card that is readable on dark pages, too.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import hastore.html
from hastore_scenarios.judge.outage import find_outages
from hastore_scenarios.judge.result import ScenarioResult, held_text, loss_text, rto_text
from hastore_scenarios.registry import find
from hastore_scenarios.report.drawing import WIDTH, draw
from hastore_scenarios.report.lanes import Picture
from hastore_scenarios.runner import WorldKind, run_one

PAGE_STYLE = (Path(hastore.html.__file__).parent / "style.css").read_text()
SCENARIO = "promotion"
SEED = 7
COMMAND = f"hastore scenario run {SCENARIO} --world sim --seed {SEED}"

_MARGIN = 22
_HEAD = 140
_STYLES = {"strong": 'font-weight="700" fill="var(--ink)"', "pale": 'fill="var(--muted)"'}


def report_picture() -> str:
    """Run the scenario and draw it."""
    (scenario,) = find(SCENARIO)
    result = run_one(scenario, world=WorldKind.SIM, seed=SEED)
    assert result.passed, result.why
    assert result.history is not None
    outages = find_outages(result.history)
    run = draw(Picture.of(result.history), outages, COMMAND)
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', run)
    assert box is not None
    height = int(box[2])
    placed = run.replace("<svg ", f'<svg y="{_HEAD}" width="{WIDTH}" height="{height}" ', 1)
    width, full_height = WIDTH + 2 * _MARGIN, _HEAD + height + _MARGIN
    return _in_light_colours(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="{-_MARGIN} 0 {width} {full_height}" width="{width}" height="{full_height}"'
        ' font-family="var(--font)">\n'
        f"<title>The report of {html.escape(COMMAND)}</title>\n"
        f'<rect x="{1 - _MARGIN}" y="1" width="{width - 2}" height="{full_height - 2}" rx="10"'
        ' fill="var(--paper)" stroke="var(--grid)"/>\n'
        f"{_head(result)}\n{placed}\n</svg>\n"
    )


def _head(result: ScenarioResult) -> str:
    """Write the title and the tiles."""
    assert result.verdict is not None
    assert result.verdict.loss is not None
    rto, rto_more = rto_text(result.outages, result.unmeasured)
    gone, gone_more = loss_text(result.verdict.loss)
    tiles = (
        ("verdict", held_text(result), f"{result.verdict.records} records checked"),
        ("RTO", rto, rto_more),
        ("RPO", gone, gone_more),
        ("puts", str(sum(result.put_counts.values())), f"seed {result.seed} of the simulator"),
    )
    drawn = [_text(0, 40, f"{result.name}: {result.title}", 22, style="strong")]
    for x, (name, value, more) in zip((0, 190, 510, 790), tiles, strict=True):
        drawn += [
            _text(x, 68, name, 13, style="pale"),
            _text(x, 95, value, 24, style="strong"),
            _text(x, 116, more, 12, style="pale"),
        ]
    return "\n".join(drawn)


def _text(x: int, y: int, text: str, size: int, *, style: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" {_STYLES[style]}>{html.escape(text)}</text>'


def _in_light_colours(svg: str) -> str:
    """Replace the page's variables by colours: few programs but browsers know variables."""
    svg = re.sub(r"@media [^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}\n?", "", svg)
    variables: dict[str, str] = {}
    for style in (svg, PAGE_STYLE.partition("@media")[0]):
        variables |= dict(re.findall(r"(--[\w-]+):\s*([^;]+);", style))
    svg = re.sub(r"\.run \{ --[^}]*\}\n?", "", svg)
    return re.sub(r"var\((--[\w-]+)\)", lambda match: variables[match[1]].replace('"', "'"), svg)
