"""kill -9 of a master at random instants under load, each followed by a restart.

A SIGKILL keeps the page cache, so what is attacked here is the start behind it: a torn last
record, an unfinished file end, a prepared next file, queue offsets that must go on where they were.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from hastore.status import BrokerRole, FlushDiskType
from tests.integration.judged import judged_world

FILE_SIZE = 256 * 1024


async def kill_and_restart(directory: Path, kills: int, seed: int) -> int:
    """Put without pause while the master is killed again and again; gives the PUT_OKs."""
    rng = random.Random(seed)
    async with judged_world(directory) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=FlushDiskType.SYNC_FLUSH,
            mapped_file_size=FILE_SIZE,
        )
        async with world.load(master, size=1_000, in_flight=32) as load:
            for _ in range(kills):
                await trio.sleep(rng.uniform(0.0, 0.3))
                await world.kill(master)
                await world.restart(master)
            done = len(load.operations)
            await world.wait_until(
                master, "puts succeed", lambda _: len(load.operations) > done + 100
            )
        return load.counts.get("PUT_OK", 0)


async def test_every_put_ok_survives_ten_kills(tmp_path: Path) -> None:
    """After 10 kills of a SYNC_FLUSH master, every PUT_OK message is there, once."""
    assert await kill_and_restart(tmp_path, 10, seed=1) > 100


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_every_put_ok_survives_two_hundred_kills(tmp_path: Path) -> None:
    """The same after 200 kills."""
    assert await kill_and_restart(tmp_path, 200, seed=2) > 2_000


async def kill_anybody(directory: Path, faults: int, seed: int) -> None:
    """Faults of every kind on a master and two slaves, one after the other, under load."""
    rng = random.Random(seed)
    async with judged_world(directory) as world:
        master = await world.start_master("a", mapped_file_size=FILE_SIZE, slave_timeout_ms=400)
        slaves = [
            await world.start_slave(name, master=master, mapped_file_size=FILE_SIZE)
            for name in "bc"
        ]
        for slave in slaves:
            await world.wait_healthy(slave)
        async with world.load(master, size=1_000, in_flight=16):
            for _ in range(faults):
                node = rng.choice([master, *slaves])
                kind = rng.choice(["kill", "pause", "cut", "reset", "split"])
                await trio.sleep(rng.uniform(0.0, 0.2))
                if kind == "kill" or (node is master and kind != "pause"):
                    await world.kill(node)
                    await trio.sleep(rng.uniform(0.0, 0.2))
                    await world.restart(node)
                elif kind == "pause":
                    await world.pause(node)
                    await trio.sleep(rng.uniform(0.0, 0.6))
                    await world.resume(node)
                else:
                    link = world.link(node)
                    {"cut": link.cut, "reset": link.reset, "split": lambda: link.split(7)}[kind]()  # noqa: B023
                    await trio.sleep(rng.uniform(0.0, 0.6))
                    link.heal()


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_whoever_fails(tmp_path: Path, seed: int) -> None:
    """Kills, freezes, cuts, resets and splits of anybody: no acknowledged loss, no lie."""
    await kill_anybody(tmp_path, 12, seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_nothing_is_lost_whoever_fails_for_long(tmp_path: Path, seed: int) -> None:
    """The same with a hundred faults a run."""
    await kill_anybody(tmp_path, 100, seed)
