"""`hastore status` as one SVG: what the command prints for three nodes in the simulator."""

from __future__ import annotations

import html
import io
import re

from rich.console import Console, Group
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from hastore.broker.observe.node_status import NodeStatus
from hastore.status import FlushDiskType
from hastore_cli.status.table import StatusTable, merge, worth_a_table
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.story.scenario import Scenario
from hastore_scenarios.story.world import World

COLUMNS = 120
COMMAND = "hastore status a b c"

_CELL = 8.4  # the width of a letter in any font
_LINE = 20
_MARGIN = 18
_INK, _PALE, _PAPER = "#d7dde6", "#8b97a8", "#1b2330"
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def status_picture() -> str:
    """Ask three nodes in the middle of a story, and draw what the command prints."""
    table = StatusTable(grouped=True, width=COLUMNS)
    shown = Group(
        Text.assemble(("$ ", "dim"), (COMMAND, "bold")),
        *(table.render(status) for status in worth_a_table(merge(simulated_statuses()))),
    )
    console = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True)
    lines = console.render_lines(shown, pad=False)
    columns = max(sum(len(segment.text) for segment in line) for line in lines)
    width, height = round(columns * _CELL) + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    drawn = "\n".join(part for number, line in enumerate(lines) for part in _line(number, line))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="{_FONT}" font-size="14">\n'
        f"<title>{html.escape(COMMAND)}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>\n'
        f"{drawn}\n</svg>\n"
    )


def _line(number: int, segments: list[Segment]) -> list[str]:
    """Draw a line: each run of words at its own column, as wide as it has letters."""
    y = _MARGIN + number * _LINE + 15
    drawn = []
    column = 0
    for segment in segments:
        for words in re.finditer(r"\S+(?: \S+)*", segment.text):
            x = _MARGIN + (column + words.start()) * _CELL
            drawn.append(
                f'<text x="{x:.1f}" y="{y}" {_look(segment.style or Style.null())}'
                f' textLength="{len(words[0]) * _CELL:.1f}">{html.escape(words[0])}</text>'
            )
        column += len(segment.text)
    return drawn


def _look(style: Style) -> str:
    colour = _PALE if style.dim else _INK
    if style.color is not None and not style.color.is_default:
        colour = style.color.get_truecolor(SVG_EXPORT_THEME).hex
    return f'fill="{colour}"' + (' font-weight="bold"' if style.bold else "")


def simulated_statuses() -> list[NodeStatus]:
    """Return the statuses of a master and two slaves, the second of them lagging."""
    seen: list[NodeStatus] = []

    async def story(world: World) -> None:
        a = await world.start_master("a", flush=FlushDiskType.SYNC_FLUSH)
        b = await world.start_slave("b", master=a)
        c = await world.start_slave("c", master=a)
        await world.wait_healthy(b)
        await world.wait_healthy(c)
        await world.put_many(a, 500, size=1024)
        world.link(c).slow(100_000)
        await world.put_many(a, 1_500, size=1024)
        await world.wait_until(a, "b has it", lambda status: status.slaves[0].lag_bytes == 0)
        seen.extend([await world.status(node) for node in (a, b, c)])

    scenario = Scenario(
        name="status", number=0, title="", proves="", doc="", path=__file__, function=story
    )
    result = run_one(scenario, world=WorldKind.SIM, seed=1)
    assert result.passed, result.why
    return seen
