"""A SYNC_MASTER under steady load while its slave is killed and restarted repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.worlds.checked import checked_world

IN_FLIGHT = 64


async def put_while_the_slave_is_killed(
    directory: Path, *, messages: int, ok_between: int, mapped_file_size: int
) -> dict[str, int]:
    """Put 1 KiB messages with 64 in flight; kill the slave after each ``ok_between`` PUT_OKs."""
    async with checked_world(directory) as world:
        config = {"mapped_file_size": mapped_file_size, "slave_timeout_ms": 3_000}
        master = await world.start_master("a", **config)
        slave = await world.start_slave("b", master=master, direct=True, **config)
        await world.wait_healthy(slave)
        kills = ok = 0
        async with world.load(master, size=1024, in_flight=IN_FLIGHT) as load:
            while kills < 2 or len(load.operations) < messages:
                while load.counts.get("PUT_OK", 0) < ok + ok_between:
                    await trio.sleep(0.2)
                await world.kill(slave)
                kills += 1
                ok = load.counts["PUT_OK"]
                await world.restart(slave)
        assert set(load.counts) <= {"PUT_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
        return load.counts


@pytest.mark.soak
async def test_8000_messages_while_the_slave_is_killed_repeatedly(tmp_path: Path) -> None:
    """At the end every PUT_OK message is in both logs, once, and each status is correct."""
    counts = await put_while_the_slave_is_killed(
        tmp_path, messages=8_000, ok_between=2_000, mapped_file_size=4 * 1024 * 1024
    )
    assert sum(counts.values()) >= 8_000
    assert counts["PUT_OK"] >= 4_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_million_messages_while_the_slave_is_killed_repeatedly(tmp_path: Path) -> None:
    """There are 50,000 PUT_OKs between two kills."""
    counts = await put_while_the_slave_is_killed(
        tmp_path, messages=1_000_000, ok_between=50_000, mapped_file_size=64 * 1024 * 1024
    )
    assert sum(counts.values()) >= 1_000_000
    assert counts["PUT_OK"] >= 100_000
