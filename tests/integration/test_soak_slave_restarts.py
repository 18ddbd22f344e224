"""A SYNC_MASTER under steady load while its slave is killed and restarted again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.integration.judged import judged_world

IN_FLIGHT = 64


async def put_while_the_slave_is_killed(
    directory: Path, *, messages: int, every_s: float, mapped_file_size: int
) -> dict[str, int]:
    """Put 1 KiB messages with 64 in flight; kill and restart the slave every ``every_s``."""
    async with judged_world(directory) as world:
        config = {"mapped_file_size": mapped_file_size, "slave_timeout_ms": 3_000}
        master = await world.start_master("a", **config)
        slave = await world.start_slave("b", master=master, direct=True, **config)
        await world.wait_healthy(slave)
        kills = 0
        async with trio.open_nursery() as nursery:

            async def kill_and_restart() -> None:
                nonlocal kills
                while True:
                    await trio.sleep(every_s)
                    await world.kill(slave)
                    kills += 1
                    await world.restart(slave)

            nursery.start_soon(kill_and_restart)
            tally = await world.put_many(master, messages, size=1024, in_flight=IN_FLIGHT)
            nursery.cancel_scope.cancel()
        if not slave.is_running:
            await world.restart(slave)
        assert kills >= 2
        assert set(tally.counts) <= {"PUT_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
        return tally.counts


async def test_fifty_thousand_messages_while_the_slave_comes_and_goes(tmp_path: Path) -> None:
    """Every PUT_OK message is in both logs at the end, none twice, and each status is honest."""
    counts = await put_while_the_slave_is_killed(
        tmp_path, messages=50_000, every_s=0.8, mapped_file_size=4 * 1024 * 1024
    )
    assert sum(counts.values()) == 50_000
    assert counts["PUT_OK"] > 5_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_million_messages_while_the_slave_comes_and_goes(tmp_path: Path) -> None:
    """The same with 1,000,000 messages and a kill every 5 s."""
    counts = await put_while_the_slave_is_killed(
        tmp_path, messages=1_000_000, every_s=5.0, mapped_file_size=64 * 1024 * 1024
    )
    assert sum(counts.values()) == 1_000_000
    assert counts["PUT_OK"] > 500_000
