"""The World on real processes: every node is ``python -m hastore_cli …`` on a directory of its own.

::

    directory/  a/  a.log  a.toml   b/  b.log  b.toml   history.jsonl

A slave reaches its master through a `Proxy` in this process, unless it is started with
``direct=True``, which is faster.  All processes end with the world.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import trio

from hastore_scenarios.judge.history import History
from hastore_scenarios.judge.judgement import HISTORY_FILE, judge
from hastore_scenarios.story.world import LinkMode, ScenarioSkipped
from hastore_scenarios.worlds.cluster import in_step
from hastore_scenarios.worlds.process.coordinator import ProcessCoordinator, found_etcd
from hastore_scenarios.worlds.process.disk import ProcessDisk
from hastore_scenarios.worlds.process.etcd_server import EtcdServer
from hastore_scenarios.worlds.process.faulty_node import NodeFaults
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.proxy import Proxy
from hastore_scenarios.worlds.staged_world import StagedWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import MasterLink, NodeStatus
    from hastore.status import BrokerRole, FlushDiskType
    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.history import Event
    from hastore_scenarios.story.world import CutStep, DiskFaults, Link, Node


class ProcessWorld(StagedWorld[ProcessNode]):
    """A `World`; made by ``ProcessWorld.open``."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, directory: Path, *, on_event: Callable[[Event], None] | None = None
    ) -> AsyncIterator[Self]:
        """Make a world in ``directory``; its processes end with the block.

        ``on_event`` is called with every event of the history as it happens.
        """
        directory.mkdir(parents=True, exist_ok=True)
        began_s = trio.current_time()
        with (directory / HISTORY_FILE).open("w", encoding="utf-8") as sink:
            history = History(
                now_s=lambda: trio.current_time() - began_s,
                wall_ms=lambda: time.time_ns() // 1_000_000,
                sink=sink,
                on_event=on_event,
            )
            async with trio.open_nursery() as nursery:
                key_prefix = time.time_ns() // 1000
                world = cls(directory, nursery, history, key_prefix=key_prefix)
                try:
                    yield world
                finally:
                    await world._close()
                    nursery.cancel_scope.cancel()

    async def _close(self) -> None:
        for node in self.nodes.values():
            await node.end()
        if isinstance(self._coordinator, ProcessCoordinator):
            await self._coordinator.close()
        for peer in self._peers:
            peer.sock.close()

    def link(self, slave: Node) -> Link:
        """Return the proxy between a slave and its master."""
        proxy = self._node(slave).proxy
        assert proxy is not None, f"{slave.name} has no link: a master, or started with direct=True"
        return proxy

    def disk(self, node: Node) -> DiskFaults:
        """Return the faults of a directory's disk."""
        own = self._node(node)
        return ProcessDisk(own, partial(self._disk_changed, own))

    async def judge(self) -> Verdict:
        """Stop all nodes and let the checker compare their logs with the history."""
        await self._stop_all()
        directories = {node.name: node.directory for node in self.nodes.values()}
        return await trio.to_thread.run_sync(lambda: judge(self.history, directories))

    # -- inside

    async def _make_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> ProcessNode:
        return ProcessNode(
            name=name, directory=self.directory / name, role=role, flush=flush, config=config
        )

    def _expect_faults(self, node: ProcessNode) -> None:
        node.faults = NodeFaults(self.directory / f"{node.name}.faults")

    def _kill_before(self, node: ProcessNode, step: CutStep | None) -> None:
        assert node.faults is not None, f"{node.name} was not started with faulty_disk=True"
        node.faults.heal()
        if step is not None:
            node.faults.set(dies_before=step.value, data_dir=str(node.directory))

    async def _make_coordinator(self, servers: int) -> ProcessCoordinator:
        binary, place = found_etcd(), self.directory / "etcd"
        names = [f"e{number}" for number in range(1, servers + 1)]
        own = ProcessCoordinator(
            servers=servers,
            history=self.history,
            directory=place,
            nursery=self._nursery,
            etcd=[EtcdServer(binary=binary, name=name, directory=place / name) for name in names],
        )
        await own.open()
        return own

    async def _part(self, one: ProcessNode, other: ProcessNode) -> None:
        raise ScenarioSkipped(
            f"{one.name} and {other.name} have one network: --world netns, or sim, can part them"
        )

    async def _unite(self, one: ProcessNode, other: ProcessNode) -> None:
        raise AssertionError((one.name, other.name))  # nothing parts them

    async def _connect(self, node: ProcessNode, master: ProcessNode, *, direct: bool) -> None:
        if direct:
            return
        node.proxy = Proxy(
            master.port_for_slaves() if master.is_running else None,
            lambda mode, detail: self._link_changed(node, mode, detail),
        )
        node.proxy.listen()
        node.proxy_scope = await self._nursery.start(_run_proxy, node.proxy)

    def _disconnect(self, node: ProcessNode) -> None:
        if node.proxy_scope is not None:
            node.proxy_scope.cancel()
        node.proxy = node.proxy_scope = None

    def _retarget(self, master: ProcessNode) -> None:
        """Direct its slaves' proxies to its current address."""
        for node in self.nodes.values():
            if node.master is master and node.proxy is not None:
                node.proxy.target = master.port_for_slaves() if master.is_running else None

    def _heal_link(self, node: ProcessNode) -> None:
        if node.proxy is not None and not node.proxy.is_untouched:
            node.proxy.heal()

    def _healthy_slaves(self, master: ProcessNode, status: NodeStatus) -> list[ProcessNode]:
        shown = in_step(status)
        slaves = [
            node
            for node in self.nodes.values()
            if node.master is master and node.is_running and not node.is_paused
        ]
        linked = [node for node in slaves if node.proxy is not None]
        direct = [node for node in slaves if node.proxy is None]
        healthy = [
            node
            for node in linked
            if node.proxy is not None
            and node.proxy.mode is LinkMode.OPEN
            and node.proxy.master_side & shown
        ]
        known = {
            address
            for node in linked
            if node.proxy is not None
            for address in node.proxy.master_side
        }
        return healthy + direct if len(shown - known) == len(direct) else healthy

    def _shows(self, status: NodeStatus, slave: ProcessNode, link: MasterLink) -> bool:
        """Whether it shows this link; behind a proxy, the slave's end has another address."""
        return slave.proxy is not None or super()._shows(status, slave, link)


async def _run_proxy(
    proxy: Proxy, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await proxy.run()
