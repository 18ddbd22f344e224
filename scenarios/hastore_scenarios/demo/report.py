"""The demo's report: the histories of its producers and the actions on nodes, as one history.

Each ``hastore produce --history FILE`` counts seconds from its own first message; the wall times in
it place them in the demo.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import trio

from hastore_scenarios.judge.history import (
    History,
    Operation,
    complete_line,
    event_line,
    invoke_line,
    load_history,
)
from hastore_scenarios.judge.judgement import HISTORY_FILE, judge
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.judge.timeline import Timeline
from hastore_scenarios.report.run_folder import write_run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hastore_scenarios.demo.place import DemoPlace
    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.result import Act

NAME: Final = "demo"
_TITLE: Final = "a master, a slave, and faults"
_PROVES: Final = "no acknowledged message is lost, whichever node is killed, frozen or promoted"


def take_puts(history: History, path: Path, *, node: str, began_wall_s: float) -> None:
    """Add the puts of a producer's history; ``history`` began at ``began_wall_s``."""
    with path.open(encoding="utf-8") as lines:
        puts = load_history(lines).operations
    if not puts:
        return
    # Wall times are rounded down to milliseconds: the latest possible beginning is the best.
    began_s = max(put.invoked_wall_ms / 1000 - put.invoked_s for put in puts) - began_wall_s
    for put in puts:
        put.op = len(history.operations)
        put.node = node
        put.invoked_s += began_s
        if put.completed_s is not None:
            put.completed_s += began_s
        history.operations.append(put)


async def judge_demo(history: History, directory: Path, nodes: Iterable[str]) -> Verdict:
    """Compare every answer with the directories; return the verdict.  No node may run."""
    directories = {node: directory / node for node in nodes}
    # It only reads, so Ctrl-C may abandon it.
    return await trio.to_thread.run_sync(judge, history, directories, abandon_on_cancel=True)


def write_report(
    history: History,
    place: DemoPlace,
    *,
    verdict: Verdict | None,
    acts: Iterable[Act],
    failures: list[str],
    outputs: dict[str, str],
    duration_s: float,
    again: str,
) -> Path:
    """Write the folder of the run; return the page's path.  Raises OSError."""
    write_history(history, place.directory / HISTORY_FILE)
    result = ScenarioResult(
        name=NAME,
        title=_TITLE,
        proves=_PROVES,
        failure="\n".join(failures) or None,
        verdict=verdict,
        timeline=tuple(Timeline.of(history).entries),
        put_counts=history.put_counts,
        duration_s=duration_s,
        directory=str(place.directory),
        outputs=outputs if failures else {},
        history=history,
        later_acts=tuple(acts),
    )
    return write_run(result, place.folder, keeps_world=place.keeps, again=again)


def write_history(history: History, path: Path) -> None:
    """Write a history in order of time, with its puts numbered in the order of their calls."""
    history.operations.sort(key=lambda put: put.invoked_s)
    lines: list[tuple[float, dict[str, Any]]] = []
    for number, put in enumerate(history.operations):
        put.op = number
        lines.append((put.invoked_s, invoke_line(put)))
        if put.completed_s is not None:
            lines.append((put.completed_s, complete_line(put, _completed_wall_ms(put))))
    lines += [(event.done_s, event_line(event)) for event in history.events]
    lines.sort(key=lambda line: line[0])
    with path.open("w", encoding="utf-8") as sink:
        sink.writelines(json.dumps(line, separators=(",", ":")) + "\n" for _, line in lines)


def _completed_wall_ms(put: Operation) -> int:
    assert put.completed_s is not None
    return put.invoked_wall_ms + round(1000 * (put.completed_s - put.invoked_s))
