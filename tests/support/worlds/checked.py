"""A world for a test: opened in the test's directory and checked at its end."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from hastore_scenarios.worlds.process.child_process import child_environment, hastore_command
from hastore_scenarios.worlds.process.world import ProcessWorld


@contextlib.asynccontextmanager
async def checked_world(directory: Path) -> AsyncIterator[ProcessWorld]:
    """At the end of the block faults end, slaves catch up, nodes stop, and the checker runs."""
    async with ProcessWorld.open(directory) as world:
        yield world
        await world.settle()
        verdict = await world.judge()
        assert verdict.ok, "\n".join(map(str, verdict.violations))
        assert verdict.records > 0


def verified(directory: Path) -> None:
    """Assert that `hastore log verify` finds log, consume queues and index intact."""
    done = subprocess.run(
        hastore_command("log", "verify", str(directory)),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
