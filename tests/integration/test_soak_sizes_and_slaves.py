"""Messages of every size, one to five slaves, and a slave that reads very slowly."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hastore.status import PutMessageStatus
from tests.support.worlds.checked import checked_world

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize("slaves", [1, pytest.param(5, marks=pytest.mark.soak)])
async def test_every_size_reaches_every_slave(tmp_path: Path, slaves: int) -> None:
    """Bodies from 1 KiB to the largest, in 32 KiB batches, across files, to 1 and to 5 slaves."""
    async with checked_world(tmp_path) as world:
        config = {"mapped_file_size": 12 * MIB, "slave_timeout_ms": 10_000}
        master = await world.start_master("a", **config)
        nodes = [
            await world.start_slave(f"s{n}", master=master, direct=True, **config)
            for n in range(slaves)
        ]
        for node in nodes:
            await world.wait_healthy(node)
        for size, count in ((KIB, 200), (32 * KIB, 40), (200 * KIB, 10), (MIB, 6), (4 * MIB, 5)):
            tally = await world.put_many(master, count, size=size, in_flight=8)
            assert tally.all_are(PutMessageStatus.PUT_OK), f"{size} bytes: {tally}"


async def test_a_body_above_the_limit_is_refused_and_not_stored(tmp_path: Path) -> None:
    """4 MiB are accepted, one byte more is MESSAGE_ILLEGAL."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", mapped_file_size=12 * MIB)
        taken = await world.put(master, bytes(4 * MIB))
        refused = await world.put(master, bytes(4 * MIB + 1))
        assert taken.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL


@pytest.mark.soak
async def test_slave_that_hardly_reads_does_not_delay_puts(tmp_path: Path) -> None:
    """It reads one byte a second; the other slave confirms puts as fast as before."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", ha_housekeeping_interval_ms=30_000)
        slow = await world.start_slave("slow", master=master, ha_housekeeping_interval_ms=30_000)
        good = await world.start_slave("good", master=master, direct=True)
        await world.wait_healthy(slow)
        await world.wait_healthy(good)

        async def took_s() -> float:
            began = trio.current_time()
            tally = await world.put_many(master, 3_000, in_flight=16)
            assert tally.all_are(PutMessageStatus.PUT_OK), str(tally)
            return trio.current_time() - began

        before_s = await took_s()
        world.link(slow).slow(1)
        during_s = min(await took_s(), await took_s())
        status = await world.status(master)
        assert len(status.slaves) == 2
        assert max(row.lag_bytes or 0 for row in status.slaves) > MIB
        assert during_s < 2 * before_s + 0.5
