"""kill -9 of a master at random instants under load, each followed by a restart.

A SIGKILL keeps the page cache, so these tests attack the next start: a torn last record, an
unfinished file end, a prepared next file, queue offsets that must continue.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from hastore.status import BrokerRole, FlushDiskType
from hastore_scenarios.story.world import LinkMode
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.support.worlds.checked import checked_world

FILE_SIZE = 256 * 1024
KINDS = ["kill", "pause", "cut", "half cut", "refuse", "reset", "split"]
SEEDS = [1, pytest.param(2, marks=pytest.mark.soak)]


async def kill_and_restart(directory: Path, kills: int, seed: int) -> int:
    """Put without pause while the master is killed repeatedly; return the number of PUT_OKs."""
    rng = random.Random(seed)
    async with checked_world(directory) as world:
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


async def test_every_put_ok_survives_three_kills(tmp_path: Path) -> None:
    """The master has SYNC_FLUSH; each message is there once."""
    assert await kill_and_restart(tmp_path, 3, seed=1) > 60


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_every_put_ok_survives_two_hundred_kills(tmp_path: Path) -> None:
    """The long form of the three kills."""
    assert await kill_and_restart(tmp_path, 200, seed=2) > 2_000


async def break_node(world: ProcessWorld, node: ProcessNode, kind: str) -> None:
    """Break a node in one way."""
    match kind:
        case "kill":
            await world.kill(node)
        case "pause":
            await world.pause(node)
        case "cut":
            world.link(node).cut()
        case "half cut":
            world.link(node).cut(LinkMode.CUT_TO_MASTER)
        case "refuse":
            world.link(node).cut(LinkMode.REFUSE)
        case "reset":
            world.link(node).reset()
        case "split":
            world.link(node).split(7)


async def repair_node(world: ProcessWorld, node: ProcessNode) -> None:
    """Undo every fault of a node."""
    if not node.is_running:
        await world.restart(node)
    if node.is_paused:
        await world.resume(node)
    if node.proxy is not None:
        node.proxy.heal()


async def break_random_nodes(directory: Path, faults: int, seed: int) -> None:
    """Under load, break and repair a master and two slaves; several may be broken at a time."""
    rng = random.Random(seed)
    async with checked_world(directory) as world:
        master = await world.start_master("a", mapped_file_size=FILE_SIZE, slave_timeout_ms=400)
        nodes = [master]
        for name in "bc":
            slave = await world.start_slave(name, master=master, mapped_file_size=FILE_SIZE)
            await world.wait_healthy(slave)
            nodes.append(slave)
        broken: list[ProcessNode] = []
        async with world.load(master, size=1_000, in_flight=16) as load:
            for _ in range(faults):
                whole = [node for node in nodes if node not in broken]
                if broken and (not whole or rng.random() < 0.5):
                    await repair_node(world, broken.pop(rng.randrange(len(broken))))
                else:
                    node = rng.choice(whole)
                    kinds = ["kill", "pause"] if node is master else KINDS
                    await break_node(world, node, rng.choice(kinds))
                    broken.append(node)
                await trio.sleep(rng.uniform(0.0, 0.4))
            for node in broken:
                await repair_node(world, node)
            done = load.counts.get("PUT_OK", 0)
            await world.wait_until(
                master, "puts succeed again", lambda _: load.counts.get("PUT_OK", 0) > done
            )


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_faults_lose_no_acknowledged_message(tmp_path: Path, seed: int) -> None:
    """Kills, freezes, cuts and resets, several at a time; each status is correct too."""
    await break_random_nodes(tmp_path, 20, seed)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_many_random_faults_lose_no_acknowledged_message(tmp_path: Path, seed: int) -> None:
    """150 faults a run."""
    await break_random_nodes(tmp_path, 150, seed)
