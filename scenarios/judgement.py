"""From a history and the directories that are left to a verdict: reads, then asks the checker.

Used at the end of every run, and again offline: ``recheck`` needs nothing but the directory in
which a run was kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.env.real import real_env
from scenarios.checker import Checker, Verdict
from scenarios.history import History, load_history
from scenarios.log_image import LogImage, first_difference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HISTORY_FILE: Final = "history.jsonl"


def judge(history: History, directories: Mapping[str, Path]) -> Verdict:
    """Read every node's log and judge; blocks, so off-load it.  The nodes must not run."""
    disk = real_env().disk
    checker = Checker(history)
    ends: dict[str, int] = {}
    for node, directory in directories.items():
        image = LogImage(disk, str(directory))
        checker.read_log(node, image.records())
        ends[node] = image.end_offset
        # A node that crashed or lost its master may end in half a record; the next start cuts it.
        if not image.torn_end or node in checker.account.whole_at_end:
            checker.verified(node, image.damage)
    nodes = list(directories)
    for index, left in enumerate(nodes):
        for right in nodes[index + 1 :]:
            end_offset = min(ends[left], ends[right])
            difference = first_difference(
                disk, str(directories[left]), str(directories[right]), end_offset
            )
            checker.compared(left, right, difference)
    return checker.verdict()


def recheck(directory: Path) -> Verdict:
    """Judge a run that was kept, from its history and its nodes' directories."""
    with (directory / HISTORY_FILE).open(encoding="utf-8") as lines:
        history = load_history(lines)
    names = dict.fromkeys(event.node for event in history.events if event.node is not None)
    return judge(history, {name: directory / name for name in names})
