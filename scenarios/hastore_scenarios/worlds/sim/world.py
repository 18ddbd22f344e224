"""The World in the simulator: the same nodes in virtual time, decided by a seed.

Masters, slaves, producers and admin clients are the real code on simulated hosts; clients reach
the nodes by their client ports, through the simulated network.  The same seed and commit make the
same history, byte by byte.  A scenario's seconds are virtual: waiting costs nothing.

In the end each node's disk is written into the world's directory, so that the checker and all tools
find the same files as after a run of processes.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

import trio

from hastore.sim.coordinator.etcd_model import EtcdModel
from hastore.sim.disk import SimDisk
from hastore.sim.host import SimOffload, SimWallClock, sim_env
from hastore.sim.network import Network
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory
from hastore_scenarios.judge.history import History
from hastore_scenarios.judge.judgement import HISTORY_FILE, judge
from hastore_scenarios.worlds.sim.coordinator import SimCoordinator
from hastore_scenarios.worlds.sim.disk import SimDiskFaults, write_out
from hastore_scenarios.worlds.sim.node import SimLink, SimWorldNode
from hastore_scenarios.worlds.staged_world import StagedWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.status import BrokerRole, FlushDiskType
    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.history import Event
    from hastore_scenarios.story.world import CutStep, DiskFaults, Link, Node

_CLIENT_HOST = "10.0.9.9"


@final
class SimWorld(StagedWorld[SimWorldNode]):
    """A `World`; made by ``SimWorld.open`` in a run of ``hastore.sim.seams.run_by_seed``."""

    network: Network
    choices: random.Random

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, directory: Path, *, seed: int, on_event: Callable[[Event], None] | None = None
    ) -> AsyncIterator[Self]:
        """Make a world; ``seed`` is that of the run."""
        directory.mkdir(parents=True, exist_ok=True)
        choices = random.Random(seed)
        network = Network(choices)
        wall_clock = SimWallClock()
        trio.socket.set_custom_socket_factory(SimSocketFactory(network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        HOST.set(_CLIENT_HOST)
        network.boot(_CLIENT_HOST, 1)
        env = sim_env(SimDisk(wall_clock.now_ms), wall_clock, SimOffload(choices), 1)
        with (directory / HISTORY_FILE).open("w", encoding="utf-8") as sink:
            history = History(
                now_s=trio.current_time, wall_ms=wall_clock.now_ms, sink=sink, on_event=on_event
            )
            async with trio.open_nursery() as nursery:
                world = cls(directory, nursery, history, key_prefix=seed, env=env)
                world.network, world.choices = network, choices
                try:
                    yield world
                finally:
                    await world._close()
                    nursery.cancel_scope.cancel()

    async def _close(self) -> None:
        with trio.CancelScope(shield=True):
            for node in self.nodes.values():
                if node.is_running:
                    await node.slay()
        for peer in self._peers:
            peer.sock.close()

    def link(self, slave: Node) -> Link:
        """Return the network between a slave and its master."""
        link = self._node(slave).link
        assert link is not None, f"{slave.name} has no link: a master"
        return link

    def disk(self, node: Node) -> DiskFaults:
        """Return the faults of a simulated disk."""
        own = self._node(node)
        return SimDiskFaults(own, partial(self._disk_changed, own))

    async def judge(self) -> Verdict:
        """Stop all nodes and let the checker compare their logs with the history."""
        await self._stop_all()
        directories = {}
        for node in self.nodes.values():
            directories[node.name] = self.directory / node.name
            write_out(node.disk, directories[node.name])
        return judge(self.history, directories)

    # -- inside

    async def _make_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> SimWorldNode:
        await trio.lowlevel.checkpoint()
        return SimWorldNode(
            name=name,
            role=role,
            flush=flush,
            config=config,
            host=f"10.0.0.{len(self.nodes) + 1}",
            network=self.network,
            choices=self.choices,
            nursery=self._nursery,
        )

    def _kill_before(self, node: SimWorldNode, step: CutStep | None) -> None:
        node.dies_before = step

    async def _make_coordinator(self, servers: int) -> SimCoordinator:
        await trio.lowlevel.checkpoint()
        model = EtcdModel(choices=self.choices)
        self._nursery.start_soon(model.run)
        return SimCoordinator(servers=servers, history=self.history, model=model)

    async def _part(self, one: SimWorldNode, other: SimWorldNode) -> None:
        await trio.lowlevel.checkpoint()
        self.network.cut(one.host, other.host)
        self.network.cut(other.host, one.host)

    async def _unite(self, one: SimWorldNode, other: SimWorldNode) -> None:
        await trio.lowlevel.checkpoint()
        self.network.repair(one.host, other.host)
        self.network.repair(other.host, one.host)

    async def _connect(self, node: SimWorldNode, master: SimWorldNode, *, direct: bool) -> None:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        node.link = SimLink(self.network, node.host, master.host, partial(self._link_changed, node))

    def _disconnect(self, node: SimWorldNode) -> None:
        self._heal_link(node)
        node.link = None

    def _heal_link(self, node: SimWorldNode) -> None:
        if node.link is not None and not node.link.is_untouched:
            node.link.heal()

    def _healthy_slaves(self, master: SimWorldNode, status: NodeStatus) -> list[SimWorldNode]:
        return self._in_step_by_host(master, status)
