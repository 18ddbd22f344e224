"""A slave's process that is killed while it cuts its log; a program of its own.

``python -m tests.integration.killed_slave SETTINGS PARENT MODE``: as
``hastore.testing.node_main``, with one cut that MODE, a JSON object, makes end badly::

    {"changes": PATH}     append each change of the disk by the cut to a file: METHOD PATH
    {"dies_at": N}        SIGKILL before change N of the disk, or at the end of a cut of N changes
    {"after_s": S}        SIGALRM, which ends it as a kill does, S seconds after the cut began
    {"after_start_s": S}  likewise, after the process began, whether or not it cuts
    {}                    nothing: cut, and follow
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from hastore.broker.node import slave
from hastore.env.interface import Env
from hastore.store.recovery.log_cut import LogCut
from hastore.testing import node_main
from tests.support.env.scripted_disk import Operation, ScriptedDisk


@attrs.define(eq=False)
class CountingDisk(ScriptedDisk):
    """Calls ``on_change`` before each change, with its number."""

    on_change: Callable[[int, Operation], None] = lambda _number, _operation: None
    changes_seen: int = 0

    def check(self, operation: Operation) -> None:
        """Count changes."""
        if operation.is_change:
            self.on_change(self.changes_seen, operation)
            self.changes_seen += 1


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def watched(mode: dict[str, Any]) -> Callable[..., LogCut | None]:
    """Return ``cut_slave_store`` with what ``mode`` says."""
    cut_slave_store = slave.cut_slave_store

    def on_change(number: int, operation: Operation) -> None:
        if "changes" in mode:
            with Path(mode["changes"]).open("a") as file:
                file.write(f"{operation.name} {operation.path}\n")
        if number == mode.get("dies_at"):
            die()

    def cut(env: Env, *arguments: Any) -> LogCut | None:
        if "after_s" in mode:
            signal.setitimer(signal.ITIMER_REAL, mode["after_s"])
        disk = CountingDisk(env.disk, on_change=on_change)
        done = cut_slave_store(attrs.evolve(env, disk=disk), *arguments)
        if disk.changes_seen == mode.get("dies_at"):
            die()
        return done

    return cut


if __name__ == "__main__":
    its_mode = json.loads(sys.argv.pop())
    if "after_start_s" in its_mode:
        signal.setitimer(signal.ITIMER_REAL, its_mode["after_start_s"])
    slave.cut_slave_store = watched(its_mode)
    sys.exit(node_main.main())
