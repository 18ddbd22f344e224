"""Carries out the plan of faults on a cluster.

Each fault begins, and ends some time later; nodes that were taken down are started again.  Limits
keep recovery possible: a ``FaultTarget`` refuses what would lose its last copy, and a fault on a
process that is already stopped or down has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

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
    from hastore.sim.network import Network
    from hastore.sim.oracle import Oracle
    from hastore.sim.trace import Trace

    FaultAction = Callable[[PlannedFault, SimNode, Random], Awaitable[None]]

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
_RESTARTS_AFTER_S: Final = 0.5
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


class FaultTarget(Protocol):
    """What faults do their work on: a cluster, and what its oracles record about them."""

    @property
    def nodes(self) -> list[SimNode]:
        """All nodes; a planned fault names one by its index."""

    @property
    def network(self) -> Network:
        """The network between them."""

    @property
    def trace(self) -> Trace:
        """The trace of the run."""

    def peer_of(self, node: SimNode, choices: Random) -> SimNode | ClientEnd:
        """Return one of those with which a node has links."""

    def crashing(self, node: SimNode, *, lost_power: bool) -> None:
        """Record that a node that is up crashes now."""

    def starting(self, node: SimNode) -> None:
        """Do what an operator does before a node that is down is started again."""

    def may_lose_power(self, node: SimNode) -> bool:
        """Whether a power cut of a node is survivable."""

    def may_lose_disk(self, node: SimNode) -> bool:
        """Whether the loss of a node's disk is survivable."""

    def lost_disk(self, node: SimNode) -> None:
        """Record that a node that is down has an empty disk now."""

    def bit_flipped(self, node: SimNode, physic_offset: int) -> None:
        """Record that a bit of a node that is down has flipped, at an offset of its log."""


@final
@attrs.frozen
class ClassicTarget:
    """A master and its slaves: the master's disk is never wiped or damaged."""

    cluster: SimCluster
    oracle: Oracle

    @property
    def nodes(self) -> list[SimNode]:
        """The master first."""
        return self.cluster.nodes

    @property
    def network(self) -> Network:
        """The cluster's."""
        return self.cluster.network

    @property
    def trace(self) -> Trace:
        """The cluster's."""
        return self.cluster.trace

    def peer_of(self, node: SimNode, choices: Random) -> SimNode | ClientEnd:
        """Return a slave's master, or one of the master's slaves and clients."""
        if not node.is_master:
            return self.cluster.master
        others: list[SimNode | ClientEnd] = [*self.cluster.slaves]
        if self.cluster.config.listens:
            others += _CLIENTS
        return choices.choice(others)

    def crashing(self, node: SimNode, *, lost_power: bool) -> None:
        """Record what a master may lose."""
        if node.is_master:
            self.oracle.master_crashed(lost_power=lost_power)

    def starting(self, node: SimNode) -> None:
        """Do nothing."""

    def may_lose_power(self, node: SimNode) -> bool:  # noqa: ARG002 - the same for all
        """Return True."""
        return True

    def may_lose_disk(self, node: SimNode) -> bool:
        """Whether it is a slave."""
        return not node.is_master

    def lost_disk(self, node: SimNode) -> None:
        """Forget its flipped bit."""
        self.oracle.rotten.pop(node.name, None)

    def bit_flipped(self, node: SimNode, physic_offset: int) -> None:
        """Record where."""
        self.oracle.rotten[node.name] = physic_offset


@final
@attrs.define(eq=False)
class Faults:
    """The faults of one run; those with a number in ``left_out`` do not happen."""

    target: FaultTarget
    nursery: trio.Nursery
    plan: FaultPlan
    choices: Random  # for how long a node that ended by itself stays down
    left_out: Collection[int] = ()
    # Kinds that only this run has, by name.
    more: dict[str, FaultAction] = attrs.field(factory=dict)
    fired: list[int] = attrs.field(factory=list)  # the numbers of those that had an effect
    _over: trio.Event = attrs.field(factory=trio.Event)  # all faults end, nodes that are down start

    async def run(self) -> None:
        """Start each fault of the plan at its time, counted from now."""
        began_at = trio.current_time()
        carry_out: dict[str, FaultAction] = {
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
        carry_out |= self.more
        for fault in self.plan.faults:
            if fault.number in self.left_out:
                continue
            await trio.sleep_until(began_at + fault.at)
            node = self.target.nodes[fault.node]
            self.nursery.start_soon(carry_out[fault.kind], fault, node, fault.choices())

    @property
    def is_over(self) -> bool:
        """Whether all faults have ended."""
        return self._over.is_set()

    def begins(self, fault: PlannedFault, who: str, what: str) -> None:
        """Record that a fault has an effect."""
        self.fired.append(fault.number)
        self.target.trace.add(who, f"fault {fault.number}: {what}")

    def end(self) -> None:
        """End all faults."""
        self._over.set()
        target = self.target
        target.trace.add("world", "heals")
        target.network.heal()
        target.network.one_byte = False
        for node in target.nodes:
            node.thaw()
            node.set_slow_disk(0.0)
            for disk in (node.disk, node.live_disk):
                disk.sync_failures = disk.read_failures = 0
                disk.make_room()
                disk.on_fault.clear()

    # -- crashes -----------------------------------------------------------------------------------

    async def _kill(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up:
            self.begins(fault, node.name, "kill -9")
            self.target.crashing(node, lost_power=False)
            node.kill()
            await self.come_back(node, choices)

    async def _cut_power(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up and self.target.may_lose_power(node):
            self.begins(fault, node.name, "power cut")
            self.target.crashing(node, lost_power=True)
            node.cut_power(choices)
            await self.come_back(node, choices)

    async def _stop(self, fault: PlannedFault, node: SimNode, _choices: Random) -> None:
        """Ask for a clean stop; ``on_ended`` starts it again."""
        await trio.lowlevel.checkpoint()
        if node.node is not None:
            self.begins(fault, node.name, "asked to stop")
            assert node.boot is not None
            node.boot.is_asked_to_stop = True
            node.node.stop()

    async def _freeze(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        if node.is_up and node.frozen is None:
            self.begins(fault, node.name, "SIGSTOP")
            node.freeze()
            frozen = node.frozen
            await self.wait(choices, choices.choice(_FREEZES_MAX_S))
            node.thaw(frozen)

    async def come_back(self, node: SimNode, choices: Random) -> None:
        """Start a node that is down, some time later."""
        await self.wait(choices, _DOWN_MAX_S)
        self.restart_now(node)

    def restart_now(self, node: SimNode) -> None:
        """Start a node, unless it runs."""
        if not node.is_up:
            self.target.starting(node)
            node.start(self.nursery)

    def restart(self, node: SimNode, error: BaseException | None) -> None:
        """Start a node that ended by itself, some time later, as a supervisor does."""
        self.nursery.start_soon(self._restart_after, node, error)

    async def _restart_after(self, node: SimNode, error: BaseException | None) -> None:
        if error is not None and self.is_over:
            await trio.sleep(_RESTARTS_AFTER_S)
        await self.come_back(node, self.choices)

    async def _wipe(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Lose a node's disk."""
        if node.is_up and self.target.may_lose_disk(node):
            self.begins(fault, node.name, "its disk is lost")
            node.kill()
            node.wipe()
            self.target.lost_disk(node)
            await self.come_back(node, choices)

    # -- the network -------------------------------------------------------------------------------

    async def _partition(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self.target.peer_of(node, choices)
        self.begins(fault, "network", f"cut {node.name} <> {other.name}")
        await self._cut([(node, other), (other, node)], choices)

    async def _cut_one_way(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self.target.peer_of(node, choices)
        source, target = (node, other) if choices.random() < _HALF else (other, node)
        self.begins(fault, "network", f"cut {source.name} > {target.name}")
        await self._cut([(source, target)], choices)

    async def _cut(
        self, ways: list[tuple[SimNode | ClientEnd, SimNode | ClientEnd]], choices: Random
    ) -> None:
        network = self.target.network
        for source, target in ways:
            network.cut(source.host, target.host)
        await self.wait(choices, choices.choice(_CUTS_MAX_S))
        for source, target in ways:
            self.target.trace.add("network", f"repair {source.name} > {target.name}")
            network.repair(source.host, target.host)

    async def _reset(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        other = self.target.peer_of(node, choices)
        if self.target.network.reset_between(node.host, other.host):
            self.begins(fault, "network", f"reset {node.name} - {other.name}")

    async def _slow_link(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        other = self.target.peer_of(node, choices)
        extra_s = choices.uniform(0.01, 1.0)
        self.begins(fault, "network", f"slow {node.name} > {other.name} {extra_s:.3f} s")
        self.target.network.slow(node.host, other.host, extra_s)
        await self.wait(choices, _CUT_MAX_S)
        self.target.network.slow(node.host, other.host, 0.0)

    async def _one_byte(self, fault: PlannedFault, _node: SimNode, _choices: Random) -> None:
        """Let each receive return one byte, for a moment only: each costs a pass of the loop."""
        self.begins(fault, "network", "single bytes")
        self.target.network.one_byte = True
        await trio.sleep(0.02)
        self.target.network.one_byte = False

    # -- the disk ----------------------------------------------------------------------------------

    async def _slow_disk(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        extra_s = choices.uniform(0.01, _SLOW_DISK_S)
        self.begins(fault, node.name, f"slow disk {extra_s:.3f} s")
        node.set_slow_disk(extra_s)
        await self.wait(choices, _CUT_MAX_S)
        node.set_slow_disk(0.0)

    async def _fail_sync(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let an fsync fail: mostly one of the log, on which the promises depend."""
        await trio.lowlevel.checkpoint()
        if node.is_up:
            what = "/commitlog/" if choices.random() < 0.8 else ""  # noqa: PLR2004
            text = f"an fsync{' of the log' if what else ''} fails"
            node.live_disk.on_fault["sync"] = lambda: self.begins(fault, node.name, text)
            node.live_disk.sync_failures = 1
            node.live_disk.sync_failures_in = what

    async def _fail_read(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let a read fail: in half of the cases one of the next start."""
        if node.is_up and choices.random() < _HALF:
            self.begins(fault, node.name, "kill -9, and its next read fails")
            self.target.crashing(node, lost_power=False)
            node.kill()
            node.disk.read_failures = 1
            await self.come_back(node, choices)
        elif node.is_up:
            node.live_disk.on_fault["read"] = lambda: self.begins(fault, node.name, "a read fails")
            node.live_disk.read_failures = 1

    async def _flip_bit(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Flip a bit of what a node has acknowledged, while it is down."""
        if node.is_up and self.target.may_lose_disk(node):
            node.lost_disks.append(node.live_disk.after_kill())
            node.kill()
            flipped = flip_durable_bit(node.disk, choices)
            self.begins(fault, node.name, f"kill -9, and a bit flips: {flipped}")
            if flipped is not None:
                self.target.bit_flipped(node, flipped)
            await self.come_back(node, choices)

    async def _fill_disk(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        node.live_disk.on_fault["full"] = lambda: self.begins(fault, node.name, "disk full")
        node.live_disk.fill()
        await self.wait(choices, _CUT_MAX_S)
        for disk in (node.disk, node.live_disk):
            disk.make_room()
            disk.on_fault.pop("full", None)

    async def _jump_clock(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        node.wall_clock.jump_ms = choices.randint(-_JUMP_MAX_MS, _JUMP_MAX_MS)
        self.begins(fault, node.name, f"clock {node.wall_clock.jump_ms:+d} ms")

    async def wait(self, choices: Random, max_s: float) -> None:
        """Wait up to ``max_s``, but not beyond the end of the faults."""
        with trio.move_on_after(choices.uniform(0.05, max_s)):
            await self._over.wait()
