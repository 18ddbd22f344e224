"""A world for a test: opened in the test's directory, judged at its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from scenarios.process_world import ProcessWorld


@contextlib.asynccontextmanager
async def judged_world(directory: Path) -> AsyncIterator[ProcessWorld]:
    """At the end of the block faults end, slaves catch up, nodes stop, and the checker looks."""
    async with ProcessWorld.open(directory) as world:
        yield world
        await world.settle()
        verdict = await world.judge()
        assert verdict.ok, "\n".join(map(str, verdict.violations))
        assert verdict.records > 0
