"""What befalls a cluster: kinds of faults, each with a weight from the seed (swarm testing).

Each fault begins, and ends some time later; what was taken down comes up again.  Limits keep
recovery possible: the master's disk is never taken away, nor more slaves than there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from hastore.sim.cluster import Cluster, SimNode
    from hastore.sim.oracle import Oracle

_DOWN_MAX_S: Final = 6.0
_CUT_MAX_S: Final = 25.0
_SLOW_DISK_S: Final = 1.0
_JUMP_MAX_MS: Final = 3_600_000


@final
@attrs.define(eq=False)
class Faults:
    """The faults of one run."""

    cluster: Cluster
    oracle: Oracle
    nursery: trio.Nursery
    choices: random.Random
    weights: dict[str, float] = attrs.field(init=False)
    count: int = 0
    _over: trio.Event = attrs.field(factory=trio.Event)  # nothing begins, what is down comes up

    def __attrs_post_init__(self) -> None:
        """Choose how likely each kind is; some do not happen at all."""
        self.weights = {
            kind: self.choices.choice((0.0, 0.3, 1.0, 1.0, 3.0)) for kind in self._kinds()
        }
        if not any(self.weights.values()):
            self.weights["kill"] = 1.0

    def _kinds(self) -> dict[str, Callable[[SimNode], Awaitable[None]]]:
        return {
            "kill": self._kill,
            "power": self._cut_power,
            "stop": self._stop,
            "partition": self._partition,
            "one-way": self._cut_one_way,
            "reset": self._reset,
            "slow-link": self._slow_link,
            "slow-disk": self._slow_disk,
            "fsync": self._fail_sync,
            "full": self._fill_disk,
            "clock": self._jump_clock,
            "bytes": self._one_byte,
            "wipe": self._wipe,
        }

    async def run(self, mean_s: float) -> None:
        """Let something happen again and again."""
        kinds = self._kinds()
        names, weights = list(kinds), list(self.weights.values())
        while True:
            await trio.sleep(self.choices.expovariate(1 / mean_s))
            kind = self.choices.choices(names, weights)[0]
            node = self.choices.choice(self.cluster.nodes)
            self.count += 1
            self.nursery.start_soon(kinds[kind], node)

    def end(self) -> None:
        """Let everything heal."""
        self._over.set()
        cluster = self.cluster
        cluster.trace.add("world", "heals")
        cluster.network.heal()
        cluster.network.one_byte = False
        for node in cluster.nodes:
            node.set_slow_disk(0.0)
            node.disk.sync_failures = node.live_disk.sync_failures = 0
            node.disk.is_full = node.live_disk.is_full = False

    # -- crashes -----------------------------------------------------------------------------------

    async def _kill(self, node: SimNode) -> None:
        if node.is_up:
            if node.is_master:
                self.oracle.master_crashed(lost_power=False)
            node.kill()
            await self._come_back(node)

    async def _cut_power(self, node: SimNode) -> None:
        if node.is_up:
            if node.is_master:
                self.oracle.master_crashed(lost_power=True)
            node.cut_power()
            await self._come_back(node)

    async def _stop(self, node: SimNode) -> None:
        """Ask for a clean stop; ``on_ended`` starts it again."""
        await trio.lowlevel.checkpoint()
        if node.node is not None:
            self.cluster.trace.add(node.name, "is asked to stop")
            node.node.stop()

    async def _come_back(self, node: SimNode) -> None:
        await self._wait(_DOWN_MAX_S)
        if not node.is_up:
            node.start(self.nursery)

    def restart(self, node: SimNode, _error: BaseException | None) -> None:
        """Start what ended by itself, some time later: a supervisor's work."""
        self.nursery.start_soon(self._come_back, node)

    async def _wipe(self, node: SimNode) -> None:
        """Lose a slave's disk."""
        if node.is_up and not node.is_master:
            node.kill()
            node.wipe()
            await self._come_back(node)

    # -- the network -------------------------------------------------------------------------------

    async def _partition(self, node: SimNode) -> None:
        other = self._other(node)
        await self._cut([(node, other), (other, node)])

    async def _cut_one_way(self, node: SimNode) -> None:
        other = self._other(node)
        way = (node, other) if self.choices.random() < 0.5 else (other, node)  # noqa: PLR2004
        await self._cut([way])

    async def _cut(self, ways: list[tuple[SimNode, SimNode]]) -> None:
        network = self.cluster.network
        for source, target in ways:
            self.cluster.trace.add("network", f"cut {source.name} > {target.name}")
            network.cut(source.host, target.host)
        await self._wait(_CUT_MAX_S)
        for source, target in ways:
            self.cluster.trace.add("network", f"mend {source.name} > {target.name}")
            network.mend(source.host, target.host)

    def _other(self, node: SimNode) -> SimNode:
        """Give who it talks to."""
        return self.choices.choice(self.cluster.slaves) if node.is_master else self.cluster.master

    async def _reset(self, node: SimNode) -> None:
        await trio.lowlevel.checkpoint()
        other = self._other(node)
        if self.cluster.network.reset_between(node.host, other.host):
            self.cluster.trace.add("network", f"reset {node.name} - {other.name}")

    async def _slow_link(self, node: SimNode) -> None:
        other = self._other(node)
        extra_s = self.choices.uniform(0.01, 1.0)
        self.cluster.trace.add("network", f"slow {node.name} > {other.name} {extra_s:.3f} s")
        self.cluster.network.slow(node.host, other.host, extra_s)
        await self._wait(_CUT_MAX_S)
        self.cluster.network.slow(node.host, other.host, 0.0)

    async def _one_byte(self, _node: SimNode) -> None:
        """Let each receive give a byte, for a moment: it costs a pass of the loop each."""
        self.cluster.network.one_byte = True
        await trio.sleep(0.02)
        self.cluster.network.one_byte = False

    # -- the disk ----------------------------------------------------------------------------------

    async def _slow_disk(self, node: SimNode) -> None:
        self.cluster.trace.add(node.name, "slow disk")
        node.set_slow_disk(self.choices.uniform(0.01, _SLOW_DISK_S))
        await self._wait(_CUT_MAX_S)
        node.set_slow_disk(0.0)

    async def _fail_sync(self, node: SimNode) -> None:
        await trio.lowlevel.checkpoint()
        if node.is_up:
            self.cluster.trace.add(node.name, "the next fsync fails")
            node.live_disk.sync_failures = 1

    async def _fill_disk(self, node: SimNode) -> None:
        self.cluster.trace.add(node.name, "disk full")
        node.live_disk.is_full = True
        await self._wait(_CUT_MAX_S)
        node.disk.is_full = node.live_disk.is_full = False

    async def _jump_clock(self, node: SimNode) -> None:
        await trio.lowlevel.checkpoint()
        node.wall_clock.jump_ms = self.choices.randint(-_JUMP_MAX_MS, _JUMP_MAX_MS)
        self.cluster.trace.add(node.name, f"clock {node.wall_clock.jump_ms} ms")

    async def _wait(self, max_s: float) -> None:
        """Wait a while, but not beyond the end of the faults."""
        with trio.move_on_after(self.choices.uniform(0.05, max_s)):
            await self._over.wait()
