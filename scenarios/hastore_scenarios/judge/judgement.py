"""Runs the checker on a history and the nodes' directories.

Used at the end of every run, and again offline: ``recheck`` needs only the directory of a run that
was kept.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from hastore.env.real import real_env
from hastore_scenarios.judge.checker import Checker, Verdict
from hastore_scenarios.judge.history import History, load_history
from hastore_scenarios.judge.log_image import (
    find_damage,
    first_difference,
    read_cut_keys,
    read_records,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HISTORY_FILE: Final = "history.jsonl"


def judge(history: History, directories: Mapping[str, Path]) -> Verdict:
    """Read every node's log and return the verdict; blocks, so off-load it.  No node may run."""
    disk = real_env().disk
    checker = Checker(history)
    whole_up_to: dict[str, float] = {}
    for node, directory in directories.items():
        checker.read_log(node, read_records(disk, str(directory)))
        checker.read_cut(node, read_cut_keys(disk, str(directory)))
        damage = find_damage(disk, str(directory))
        whole_up_to[node] = math.inf if damage is None else damage.physic_offset
        # A node that crashed or lost its master may end in half a record; the next start trims it.
        may_be_torn = node not in checker.account.whole_at_end
        if damage is not None and not (damage.is_torn_end and may_be_torn):
            checker.damaged(node, damage.text)
    for left, right in itertools.combinations(directories, 2):
        difference = first_difference(disk, str(directories[left]), str(directories[right]))
        if difference is not None and difference < min(whole_up_to[left], whole_up_to[right]):
            checker.compared(left, right, difference)
    return checker.verdict()


def recheck(directory: Path) -> Verdict:
    """Return the verdict on a run that was kept, from its history and its nodes' directories."""
    with (directory / HISTORY_FILE).open(encoding="utf-8") as lines:
        history = load_history(lines)
    names = dict.fromkeys(event.node for event in history.events if event.node is not None)
    return judge(history, {name: directory / name for name in names})
