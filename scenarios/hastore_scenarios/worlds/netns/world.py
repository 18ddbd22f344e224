"""The World of network namespaces: real processes, and a network that really loses packets.

A `ProcessWorld` whose nodes each have a host of their own; see ``network``.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

import trio

from hastore_scenarios.worlds.netns.network import NetnsNetwork, inside
from hastore_scenarios.worlds.netns.node import NetnsLink, NetnsNode
from hastore_scenarios.worlds.process.world import ProcessWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.status import BrokerRole, FlushDiskType
    from hastore_scenarios.judge.history import Event
    from hastore_scenarios.story.world import Link, Node
    from hastore_scenarios.worlds.process.node import ProcessNode


@final
class NetnsWorld(ProcessWorld):
    """A `World`; ``NetnsWorld.open`` raises ScenarioSkipped if there are no namespaces."""

    network: NetnsNetwork

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, directory: Path, *, on_event: Callable[[Event], None] | None = None
    ) -> AsyncIterator[Self]:
        """Make a world with its network; both end with the block."""
        network = await trio.to_thread.run_sync(NetnsNetwork.make)
        try:
            async with super().open(directory, on_event=on_event) as world:
                world.network = network
                yield world
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(network.remove)

    def link(self, slave: Node) -> Link:
        """Return the network between a slave and its master."""
        own = self._node(slave)
        assert isinstance(own, NetnsNode)
        assert own.link is not None, f"{slave.name} has no link: a master"
        return own.link

    # -- inside

    async def _make_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> NetnsNode:
        namespace, host = await trio.to_thread.run_sync(self.network.add_host)
        return NetnsNode(
            name=name,
            directory=self.directory / name,
            role=role,
            flush=flush,
            config=config,
            host=host,
            prefix=inside(namespace),
            number=self.network.hosts,
        )

    async def _connect(self, node: ProcessNode, master: ProcessNode, *, direct: bool) -> None:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        assert isinstance(node, NetnsNode)
        changed = partial(self._link_changed, node)
        node.link = NetnsLink(self.network, node.number, node.host, master.host, changed)

    def _disconnect(self, node: ProcessNode) -> None:
        assert isinstance(node, NetnsNode)
        self._heal_link(node)
        node.link = None

    def _heal_link(self, node: ProcessNode) -> None:
        assert isinstance(node, NetnsNode)
        if node.link is not None and not node.link.is_untouched:
            node.link.heal()

    def _healthy_slaves(self, master: ProcessNode, status: NodeStatus) -> list[ProcessNode]:
        return self._in_step_by_host(master, status)
