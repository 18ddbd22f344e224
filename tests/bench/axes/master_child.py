"""A child with a master and producer tasks in one process."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.bench.axes.child import Answer, options, serve
from tests.bench.axes.load import Load, check_stored, closed_loop
from tests.bench.nodes import master_here


async def main(path: str, load: Load) -> None:
    """Run the master; ``slaves`` waits until that many are in step, the rest are rounds."""
    messages = load.messages()
    async with master_here(
        Path(path), role=load.role, flush=load.flush, file_size=load.file_size
    ) as master:
        turn = 0

        async def put() -> None:
            nonlocal turn
            turn += 1
            result = await master.put(messages[turn % len(messages)])
            check_stored(result.status)

        async def act(
            slaves: int = 0, tasks: int = 0, seconds: float = 0.0, count_min: int = 0
        ) -> Answer:
            while slaves and not _are_in_step(master.status(), slaves):
                await trio.sleep(0.01)
            return await closed_loop(put, tasks, seconds, count_min) if tasks else {}

        await serve({"ha_address": list(master.ha_address)}, act)


def _are_in_step(status, slaves: int) -> bool:
    return len(status.slaves) == slaves and all(
        slave.ack_offset == status.max_offset for slave in status.slaves
    )


if __name__ == "__main__":
    given = options()
    trio.run(main, given["path"], Load(**given["load"]))
