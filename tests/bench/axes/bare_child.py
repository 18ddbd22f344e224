"""A child with tasks that put bare messages: the reference beside a master, or beside a client.

Options: ``load``, and either ``path`` and ``slaves`` (their addresses), or ``relay`` (its address).
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import trio

from tests.bench.axes.bare_log import BareLog, BareQueues
from tests.bench.axes.child import Answer, options, serve
from tests.bench.axes.load import Load, closed_loop


async def main(given: dict[str, Any]) -> None:
    """Connect to each peer, then run rounds."""
    load = Load(**given["load"])
    if load.over_tcp:
        log, queues = BareLog(None), None
        addresses = [given["relay"]]
    else:
        path = Path(given["path"])
        log = BareLog(
            path / "log", is_flushed=load.is_master_flushed, waits_for_peer=load.waits_for_slave
        )
        queues = BareQueues(path / "queues", load.queues)
        addresses = given["slaves"]
    data = bytes(load.record_size)

    async def put() -> None:
        await log.put(data)
        if queues is not None:
            queues.add(1)

    async def act(tasks: int, seconds: float, count_min: int) -> Answer:
        return await closed_loop(put, tasks, seconds, count_min)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            log.connect(socket.create_connection(tuple(address)), nursery)
        nursery.start_soon(log.flush)
        await serve({}, act)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, options())
