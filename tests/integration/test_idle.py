"""Nothing polls: idle nodes use almost no CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.support.worlds.checked import checked_world

IDLE_S = 5.0


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, with all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def idle_shares(world: ProcessWorld) -> dict[str, float]:
    """Return the share of a CPU that each node uses while it has nothing to do."""
    pids = {
        name: node.process.process.pid
        for name, node in world.nodes.items()
        if node.process is not None and node.is_running
    }
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    began = trio.current_time()
    await trio.sleep(IDLE_S)
    passed = trio.current_time() - began
    return {name: (cpu_s(pid) - before[name]) / passed for name, pid in pids.items()}


async def test_idle_nodes_use_less_than_one_percent(tmp_path: Path) -> None:
    """A master with two slaves and default heartbeats; the limit is for each node."""
    async with checked_world(tmp_path) as world:
        config = {"ha_send_heartbeat_interval_ms": 5_000, "ha_housekeeping_interval_ms": 20_000}
        master = await world.start_master("a", **config)
        for name in "bc":
            slave = await world.start_slave(name, master=master, direct=True, **config)
        await world.wait_healthy(slave)
        await world.put_many(master, 100)
        await trio.sleep(1.0)  # the last flush, the next file
        shares = await idle_shares(world)
    assert max(shares.values()) < 0.01, shares


@pytest.mark.parametrize("fate", ["gone", "frozen"])
async def test_a_slave_without_its_master_does_not_spin(tmp_path: Path, fate: str) -> None:
    """Reconnecting backs off: a slave whose master is gone or frozen stays below 5 % of a CPU."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a")
        slave = await world.start_slave("b", master=master)
        await world.wait_healthy(slave)
        await world.put_many(master, 10)
        await (world.kill(master) if fate == "gone" else world.pause(master))
        shares = await idle_shares(world)
    assert shares["b"] < 0.05, shares
