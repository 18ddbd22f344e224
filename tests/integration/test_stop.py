"""A clean stop: everybody who waits is answered, whatever the slaves do."""

from __future__ import annotations

from pathlib import Path

import trio

from hastore.status import PutMessageStatus
from tests.support.worlds.judged import judged_world


async def test_a_stopping_master_answers_the_puts_that_wait(tmp_path: Path) -> None:
    """Waits for a frozen slave are given up as FLUSH_SLAVE_TIMEOUT, the stop is quick."""
    async with judged_world(tmp_path) as world:
        config = {"slave_timeout_ms": 60_000, "ha_housekeeping_interval_ms": 60_000}
        master = await world.start_master("a", **config)
        slave = await world.start_slave("b", master=master, **config)
        await world.wait_healthy(slave)
        await world.pause(slave)
        async with trio.open_nursery() as nursery:
            tallies = []

            async def put() -> None:
                tallies.append(await world.put_many(master, 300, in_flight=300))

            nursery.start_soon(put)
            await world.wait_until(master, "all wait", lambda s: s.waiting_for_slave == 300)
            began = trio.current_time()
            await world.stop(master)
            took_s = trio.current_time() - began
        assert tallies[0].all_are(PutMessageStatus.FLUSH_SLAVE_TIMEOUT), str(tallies[0])
        assert took_s < 30.0  # of the 60 that the puts would wait
        await world.restart(master)


async def test_a_slave_stops_while_its_stream_flows(tmp_path: Path) -> None:
    """SIGTERM in the middle of a catch-up ends it cleanly; what it has is whole enough to go on."""
    async with judged_world(tmp_path) as world:
        config = {"mapped_file_size": 16 * 1024 * 1024}
        master = await world.start_master("a", **config)
        await world.put_many(master, 200, size=200_000, wait=False, in_flight=16)
        slave = await world.start_slave("b", master=master, **config)
        for _ in range(3):
            await world.stop(slave)
            await world.restart(slave)
        await world.wait_healthy(slave)
