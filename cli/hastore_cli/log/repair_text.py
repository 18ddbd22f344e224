"""What ``log repair`` says, ``hastore.log-repair/1`` as JSON: the plan, and what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.quantities import format_size
from hastore_cli.app.terminal import counted, escaped, label_row, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.store.tools.repair.log_repair import RepairPlan, RepairReport

SCHEMA: Final = "hastore.log-repair/1"


def plan_lines(plan: RepairPlan) -> Iterable[str]:
    """What would be done."""
    for part in plan.parts:
        extent = f"{number(part.start)} to {number(part.stop)}"
        what = f"{counted(part.stop - part.start, 'byte')}, {escaped(part.reason)}"
        yield label_row(part.action.value, f"{extent} ({what}): {part.outcome}")
    for path in plan.resized:
        yield label_row(
            "resize", f"{escaped(path)} to {number(plan.file_size)} bytes, as the others"
        )
    if plan.torn_at is not None:
        at = number(plan.torn_at)
        yield label_row(
            "note", f"a torn end at {at}: the node's next start trims it, no repair needed"
        )


def lost_size(plan: RepairPlan) -> int:
    """Bytes of the log whose messages are lost."""
    return sum(lost.stop - lost.start for lost in plan.lost)


def done_lines(plan: RepairPlan, report: RepairReport) -> Iterable[str]:
    """What was done."""
    for path in report.saved_paths:
        yield label_row("saved", escaped(path))
    if report.units_blanked:
        text = f"{counted(report.units_blanked, 'unit')} of lost messages taken out"
        yield label_row("queues", text)
    places = counted(len(plan.parts) + len(plan.resized), "place")
    lost = lost_size(plan)
    how = f"; the messages of {format_size(lost)} are lost" if lost else "; nothing is lost"
    yield label_row("ok", f"{places} mended{how}")


def repair_json(plan: RepairPlan, report: RepairReport | None) -> dict[str, Any]:
    """The plan, and with a report what was done."""
    return {
        "schema": SCHEMA,
        "path": plan.data_dir,
        "done": report is not None,
        "parts": [
            {
                "offset": part.start,
                "size": part.stop - part.start,
                "reason": part.reason,
                "action": part.action.value,
            }
            for part in plan.parts
        ],
        "resized": list(plan.resized),
        "lost_bytes": lost_size(plan),
        "torn_at": plan.torn_at,
        "saved_paths": [] if report is None else list(report.saved_paths),
        "units_blanked": 0 if report is None else report.units_blanked,
    }
