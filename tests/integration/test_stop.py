"""A clean stop answers every waiting put, whatever the slaves do."""

from __future__ import annotations

from pathlib import Path

import trio

from hastore.status import PutMessageStatus
from tests.support.worlds.checked import checked_world


async def test_stop_answers_puts_that_wait_for_a_frozen_slave(tmp_path: Path) -> None:
    """They get FLUSH_SLAVE_TIMEOUT long before their deadline, and the stop is quick."""
    async with checked_world(tmp_path) as world:
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
        assert took_s < 30.0  # the puts would wait for 60
        await world.restart(master)


async def test_slave_stops_cleanly_while_it_catches_up(tmp_path: Path) -> None:
    """SIGTERM comes in the middle of the stream; each restart continues where the slave stopped."""
    async with checked_world(tmp_path) as world:
        config = {"mapped_file_size": 16 * 1024 * 1024}
        master = await world.start_master("a", **config)
        await world.put_many(master, 200, size=200_000, wait=False, in_flight=16)
        slave = await world.start_slave("b", master=master, **config)
        world.link(slave).slow(4_000_000)
        end = (await world.status(master)).max_offset
        copied = 0
        for _ in range(3):
            status = await world.wait_until(slave, "copies", lambda s, at=copied: s.max_offset > at)
            copied = status.max_offset
            assert copied < end
            await world.stop(slave)
            await world.restart(slave)
        world.link(slave).heal()
        await world.wait_healthy(slave)
