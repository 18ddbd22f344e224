"""The coordinator of a world of processes: real etcd servers, and a proxy from each node to each.

::

    node a ──► proxy a/e1 ──► etcd e1        --etcd of a node: the proxies' addresses
    node b ──► proxy b/e1 ──► etcd e1
    story  ─────────────────► etcd e1
"""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastore.cluster.connecting import open_coordinator
from hastore.config import CoordinatorConfig
from hastore.errors import CoordinatorError
from hastore.testing.etcd_binary import etcd_binary
from hastore_scenarios.story.world import NodeFailed, ScenarioSkipped
from hastore_scenarios.worlds.coordinator import StagedCoordinator
from hastore_scenarios.worlds.process.etcd_server import etcd_version
from hastore_scenarios.worlds.process.node_process import tail
from hastore_scenarios.worlds.process.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from hastore.cluster.key_value_store import KeyValueStore
    from hastore_scenarios.story.world import Node
    from hastore_scenarios.worlds.process.etcd_server import EtcdServer

SERVES_WITHIN_S: Final = 120.0  # for a very busy machine; usually it takes a second
_ASK_AGAIN_S: Final = 0.05


@attrs.define(eq=False, kw_only=True)
class ProcessCoordinator(StagedCoordinator):
    """Etcd servers, which end with the world."""

    directory: Path
    nursery: trio.Nursery
    etcd: list[EtcdServer]
    _store: KeyValueStore | None = None
    _ways: dict[str, list[Proxy]] = attrs.field(factory=dict)  # by node
    _closing: trio.Event = attrs.field(factory=trio.Event)

    async def open(self) -> None:
        """Start the servers, and wait until they serve."""
        version = await etcd_version(self.etcd[0].binary)
        self._changed(f"version {version}", self.history.now_s())
        self.directory.mkdir()
        try:
            for server in self.etcd:
                server.members = ",".join(f"{each.name}={each.peer_url}" for each in self.etcd)
                server.start()
            await self.nursery.start(self._run)
            await self._serves()
        except BaseException:
            await self.close()
            raise

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the story's way to the servers open."""
        endpoints = tuple(server.endpoint for server in self.etcd)
        async with open_coordinator(CoordinatorConfig(endpoints=endpoints)) as self._store:
            task_status.started()
            await self._closing.wait()

    async def _serves(self) -> None:
        """Wait until the servers answer.  Raises NodeFailed."""
        with trio.move_on_after(SERVES_WITHIN_S):
            while True:
                for server in self.etcd:
                    server.check_runs()
                with contextlib.suppress(CoordinatorError):
                    await self.view()
                    return
                await trio.sleep(_ASK_AGAIN_S)
        output = tail(self.etcd[0].output_path)
        raise NodeFailed(f"etcd did not serve within {SERVES_WITHIN_S:g} s", output=output)

    async def close(self) -> None:
        """End all servers."""
        self._closing.set()
        with trio.CancelScope(shield=True):
            for server in self.etcd:
                await server.end()

    @property
    def store(self) -> KeyValueStore:
        """The story's own way to it."""
        assert self._store is not None, "it is open"
        return self._store

    def endpoints_for(self, node: Node) -> tuple[str, ...]:
        """Return the URLs by which a node reaches the servers."""
        if node.name not in self._ways:
            self._ways[node.name] = [Proxy(server.address) for server in self.etcd]
            for proxy in self._ways[node.name]:
                proxy.listen()
                self.nursery.start_soon(proxy.run)
        return tuple("http://{}:{}".format(*proxy.address) for proxy in self._ways[node.name])

    # -- faults ----------------------------------------------------------------------------------

    async def backup(self) -> Path:
        """Return a copy of its directories, as a machine's snapshot has them."""
        place = self.directory / f"backup-{len(list(self.directory.glob('backup-*')))}"
        for server in self.etcd:
            server.freeze()
        try:
            for server in self.etcd:
                copy = partial(shutil.copytree, server.directory, place / server.name)
                await trio.to_thread.run_sync(copy)
        finally:
            for server in self.etcd:
                server.thaw()
        return place

    async def _stop(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for server in self.etcd[:count]:
                nursery.start_soon(server.stop)

    async def _start(self) -> None:
        for server in self.etcd:
            if server.process is None:
                server.start()
        await self._serves()

    async def _cut_off(self, node: Any) -> None:
        await trio.lowlevel.checkpoint()
        for proxy in self._ways[node.name]:
            proxy.cut()

    async def _reconnect(self, node: Any) -> None:
        await trio.lowlevel.checkpoint()
        for proxy in self._ways[node.name]:
            proxy.heal()

    async def _restore(self, backup: Path) -> None:
        await self._stop(self.servers)
        for server in self.etcd:
            shutil.rmtree(server.directory)
            shutil.copytree(backup / server.name, server.directory)
        await self._start()


def found_etcd() -> str:
    """Return the path of an etcd.  Raises ScenarioSkipped where there is none."""
    binary = etcd_binary()
    if binary is None:
        raise ScenarioSkipped("no etcd here: Debian's etcd-server has one, and the extra cluster")
    return binary
