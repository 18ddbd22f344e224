"""Carries out the plan of faults on a cluster.

Each fault begins, and ends some time later; nodes that were taken down are started again.  Limits
keep recovery possible: the master's disk is never wiped or damaged, and a fault on a process that
is already stopped or down has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.client_producer import PRODUCER
from hastore.sim.consumer import CONSUMER
from hastore.sim.log_bytes import flip_durable_bit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from random import Random

    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.fault_plan import FaultPlan, PlannedFault
    from hastore.sim.oracle import Oracle

KINDS: Final = (
    "kill",
    "power",
    "stop",
    "freeze",
    "partition",
    "one-way",
    "reset",
    "slow-link",
    "slow-disk",
    "fsync",
    "read",
    "flip",
    "full",
    "clock",
    "bytes",
    "wipe",
)
_DOWN_MAX_S: Final = 6.0
_CUT_MAX_S: Final = 25.0
_CUTS_MAX_S: Final = (4.0, 15.0, 60.0)
# A silent peer is disconnected after 20 s: shorter than that, and up to three times as long.
_FREEZES_MAX_S: Final = (3.0, 20.0, 60.0, 60.0)
_SLOW_DISK_S: Final = 1.0
_JUMP_MAX_MS: Final = 3_600_000
_HALF: Final = 0.5


@attrs.frozen
class ClientEnd:
    """A client of the master."""

    name: str
    host: str


_CLIENTS: Final = (ClientEnd("consumer", CONSUMER), ClientEnd("producer", PRODUCER))


@final
@attrs.define(eq=False)
class Faults:
    """The faults of one run; those with a number in ``left_out`` do not happen."""

    cluster: SimCluster
    oracle: Oracle
    nursery: trio.Nursery
    plan: FaultPlan
    choices: Random  # for how long a node that ended by itself stays down
    left_out: Collection[int] = ()
    fired: list[int] = attrs.field(factory=list)  # the numbers of those that had an effect
    _over: trio.Event = attrs.field(factory=trio.Event)  # all faults end, nodes that are down start

    async def run(self) -> None:
        """Start each fault of the plan at its time."""
        carry_out: dict[str, Callable[[PlannedFault, SimNode, Random], Awaitable[None]]] = {
            "kill": self._kill,
            "power": self._cut_power,
            "stop": self._stop,
            "freeze": self._freeze,
            "partition": self._partition,
            "one-way": self._cut_one_way,
            "reset": self._reset,
            "slow-link": self._slow_link,
            "slow-disk": self._slow_disk,
            "fsync": self._fail_sync,
            "read": self._fail_read,
            "flip": self._flip_bit,
            "full": self._fill_disk,
            "clock": self._jump_clock,
            "bytes": self._one_byte,
            "wipe": self._wipe,
        }
        assert tuple(carry_out) == KINDS
        for fault in self.plan.faults:
            if fault.number in self.left_out:
                continue
            await trio.sleep_until(fault.at)
            node = self.cluster.nodes[fault.node]
            self.nursery.start_soon(carry_out[fault.kind], fault, node, fault.choices())

    def _begins(self, fault: PlannedFault, who: str, what: str) -> None:
        """Record that a fault has an effect."""
        self.fired.append(fault.number)
        self.cluster.trace.add(who, f"fault {fault.number}: {what}")

    def end(self) -> None:
        """End all faults."""
        self._over.set()
        cluster = self.cluster
        cluster.trace.add("world", "heals")
        cluster.network.heal()
        cluster.network.one_byte = False
        for node in cluster.nodes:
            node.thaw()
            node.set_slow_disk(0.0)
            for disk in (node.disk, node.live_disk):
                disk.sync_failures = disk.read_failures = 0
                disk.is_full = False
                disk.on_fault.clear()

    # -- crashes -----------------------------------------------------------------------------------

    async def _kill(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up:
            self._begins(fault, node.name, "kill -9")
            if node.is_master:
                self.oracle.master_crashed(lost_power=False)
            node.kill()
            await self._come_back(node, choices)

    async def _cut_power(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up:
            self._begins(fault, node.name, "power cut")
            if node.is_master:
                self.oracle.master_crashed(lost_power=True)
            node.cut_power(choices)
            await self._come_back(node, choices)

    async def _stop(self, fault: PlannedFault, node: SimNode, _choices: Random) -> None:
        """Ask for a clean stop; ``on_ended`` starts it again."""
        await trio.lowlevel.checkpoint()
        if node.node is not None:
            self._begins(fault, node.name, "asked to stop")
            assert node.boot is not None
            node.boot.is_asked_to_stop = True
            node.node.stop()

    async def _freeze(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up and node.frozen is None:
            self._begins(fault, node.name, "SIGSTOP")
            node.freeze()
            frozen = node.frozen
            await self._wait(choices, choices.choice(_FREEZES_MAX_S))
            node.thaw(frozen)

    async def _come_back(self, node: SimNode, choices: Random) -> None:
        await self._wait(choices, _DOWN_MAX_S)
        if not node.is_up:
            node.start(self.nursery)

    def restart(self, node: SimNode, _error: BaseException | None) -> None:
        """Start a node that ended by itself, some time later, as a supervisor does."""
        self.nursery.start_soon(self._come_back, node, self.choices)

    async def _wipe(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Lose a slave's disk."""
        if node.is_up and not node.is_master:
            self._begins(fault, node.name, "its disk is lost")
            node.kill()
            node.wipe()
            self.oracle.rotten.pop(node.name, None)
            await self._come_back(node, choices)

    # -- the network -------------------------------------------------------------------------------

    async def _partition(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self._other(node, choices)
        self._begins(fault, "network", f"cut {node.name} <> {other.name}")
        await self._cut([(node, other), (other, node)], choices)

    async def _cut_one_way(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self._other(node, choices)
        source, target = (node, other) if choices.random() < _HALF else (other, node)
        self._begins(fault, "network", f"cut {source.name} > {target.name}")
        await self._cut([(source, target)], choices)

    async def _cut(
        self, ways: list[tuple[SimNode | ClientEnd, SimNode | ClientEnd]], choices: Random
    ) -> None:
        network = self.cluster.network
        for source, target in ways:
            network.cut(source.host, target.host)
        await self._wait(choices, choices.choice(_CUTS_MAX_S))
        for source, target in ways:
            self.cluster.trace.add("network", f"repair {source.name} > {target.name}")
            network.repair(source.host, target.host)

    def _other(self, node: SimNode, choices: Random) -> SimNode | ClientEnd:
        """Return one of its peers."""
        if not node.is_master:
            return self.cluster.master
        others: list[SimNode | ClientEnd] = [*self.cluster.slaves]
        if self.cluster.config.listens:
            others += _CLIENTS
        return choices.choice(others)

    async def _reset(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        other = self._other(node, choices)
        if self.cluster.network.reset_between(node.host, other.host):
            self._begins(fault, "network", f"reset {node.name} - {other.name}")

    async def _slow_link(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self._other(node, choices)
        extra_s = choices.uniform(0.01, 1.0)
        self._begins(fault, "network", f"slow {node.name} > {other.name} {extra_s:.3f} s")
        self.cluster.network.slow(node.host, other.host, extra_s)
        await self._wait(choices, _CUT_MAX_S)
        self.cluster.network.slow(node.host, other.host, 0.0)

    async def _one_byte(self, fault: PlannedFault, _node: SimNode, _choices: Random) -> None:
        """Let each receive return one byte, for a moment only: each costs a pass of the loop."""
        self._begins(fault, "network", "single bytes")
        self.cluster.network.one_byte = True
        await trio.sleep(0.02)
        self.cluster.network.one_byte = False

    # -- the disk ----------------------------------------------------------------------------------

    async def _slow_disk(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        extra_s = choices.uniform(0.01, _SLOW_DISK_S)
        self._begins(fault, node.name, f"slow disk {extra_s:.3f} s")
        node.set_slow_disk(extra_s)
        await self._wait(choices, _CUT_MAX_S)
        node.set_slow_disk(0.0)

    async def _fail_sync(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let an fsync fail: mostly one of the log, on which the promises depend."""
        await trio.lowlevel.checkpoint()
        if node.is_up:
            what = "/commitlog/" if choices.random() < 0.8 else ""  # noqa: PLR2004
            text = f"an fsync{' of the log' if what else ''} fails"
            node.live_disk.on_fault["sync"] = lambda: self._begins(fault, node.name, text)
            node.live_disk.sync_failures = 1
            node.live_disk.sync_failures_in = what

    async def _fail_read(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let a read fail: in half of the cases one of the next start."""
        if node.is_up and choices.random() < _HALF:
            self._begins(fault, node.name, "kill -9, and its next read fails")
            if node.is_master:
                self.oracle.master_crashed(lost_power=False)
            node.kill()
            node.disk.read_failures = 1
            await self._come_back(node, choices)
        elif node.is_up:
            node.live_disk.on_fault["read"] = lambda: self._begins(fault, node.name, "a read fails")
            node.live_disk.read_failures = 1

    async def _flip_bit(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Flip a bit of what a slave has acknowledged, while the slave is down."""
        if node.is_up and not node.is_master:
            node.lost_disks.append(node.live_disk.after_kill())
            node.kill()
            flipped = flip_durable_bit(node.disk, choices)
            self._begins(fault, node.name, f"kill -9, and a bit flips: {flipped}")
            if flipped is not None:
                self.oracle.rotten[node.name] = flipped
            await self._come_back(node, choices)

    async def _fill_disk(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        node.live_disk.on_fault["full"] = lambda: self._begins(fault, node.name, "disk full")
        node.live_disk.is_full = True
        await self._wait(choices, _CUT_MAX_S)
        for disk in (node.disk, node.live_disk):
            disk.is_full = False
            disk.on_fault.pop("full", None)

    async def _jump_clock(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        node.wall_clock.jump_ms = choices.randint(-_JUMP_MAX_MS, _JUMP_MAX_MS)
        self._begins(fault, node.name, f"clock {node.wall_clock.jump_ms:+d} ms")

    async def _wait(self, choices: Random, max_s: float) -> None:
        """Wait up to ``max_s``, but not beyond the end of the faults."""
        with trio.move_on_after(choices.uniform(0.05, max_s)):
            await self._over.wait()
