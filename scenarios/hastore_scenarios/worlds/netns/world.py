"""The World of network namespaces: real processes, and a network that really loses packets.

A `ProcessWorld` whose nodes each have a host of their own; see ``network``.  A story that refuses
connections or splits the stream is skipped: a router can do neither.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

import attrs
import trio

from hastore_scenarios.story.world import LinkMode, ScenarioSkipped
from hastore_scenarios.worlds.netns.network import AddressPair, NetnsNetwork, inside
from hastore_scenarios.worlds.process.coordinator import ProcessCoordinator, found_etcd
from hastore_scenarios.worlds.process.etcd_server import EtcdServer
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.status import BrokerRole, FlushDiskType
    from hastore_scenarios.judge.history import Event
    from hastore_scenarios.story.world import Link, Node


@final
@attrs.define(eq=False, kw_only=True)
class NetnsNode(ProcessNode):
    """A process in a namespace; its slaves find it at the same port after a restart."""

    number: int
    link: NetnsLink | None = None

    @property
    def link_mode(self) -> LinkMode:
        """The state of the link to its master."""
        return LinkMode.OPEN if self.link is None else self.link.mode


@final
@attrs.define(eq=False)
class NetnsLink:
    """The ways between a slave's host and its master's, through the router."""

    network: NetnsNetwork
    number: int  # the slave's
    slave: str
    master: str
    on_change: Callable[[LinkMode, str], None]
    mode: LinkMode = LinkMode.OPEN
    is_slow: bool = False

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Drop packets.  Raises ScenarioSkipped for REFUSE."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        if mode is LinkMode.REFUSE:
            raise ScenarioSkipped("a router refuses no connections")
        self._set(mode, "")

    def reset(self) -> None:
        """Kill the slave's connections in its kernel."""
        self.network.reset(self.number, self.master)
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate at which the slave receives."""
        self.network.shape(self.number, bytes_per_s)
        self.is_slow = True
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Raise ScenarioSkipped: only TCP decides how the stream is cut into packets."""
        raise ScenarioSkipped(f"a router does not cut streams into pieces of {chunk_size} bytes")

    def heal(self) -> None:
        """Let everything pass again."""
        if self.is_slow:
            self.network.shape(self.number, None)
            self.is_slow = False
        self._set(LinkMode.OPEN, "")

    @property
    def is_untouched(self) -> bool:
        """Whether everything passes at full speed."""
        return self.mode is LinkMode.OPEN and not self.is_slow

    def _set(self, mode: LinkMode, detail: str) -> None:
        self.mode = mode
        to_slave, to_master = (
            AddressPair(self.master, self.slave),
            AddressPair(self.slave, self.master),
        )
        dropped = {
            LinkMode.CUT: (to_slave, to_master),
            LinkMode.CUT_TO_SLAVE: (to_slave,),
            LinkMode.CUT_TO_MASTER: (to_master,),
        }.get(mode, ())
        for way in (to_slave, to_master):
            (self.network.drop if way in dropped else self.network.pass_again)(way)
        self.on_change(mode, detail)


def _ways_between(one: str, other: str) -> tuple[AddressPair, AddressPair]:
    return AddressPair(one, other), AddressPair(other, one)


@final
@attrs.define(eq=False, kw_only=True)
class NetnsCoordinator(ProcessCoordinator):
    """Etcd servers with a host each; a router between them and the nodes, and no proxy."""

    network: NetnsNetwork

    def endpoints_for(self, node: Node) -> tuple[str, ...]:  # noqa: ARG002 - the same for all
        """Return the URLs of the servers."""
        return tuple(server.endpoint for server in self.etcd)

    async def _cut_off(self, node: NetnsNode) -> None:
        await trio.lowlevel.checkpoint()
        for server in self.etcd:
            for way in _ways_between(node.host, server.host):
                self.network.drop(way)

    async def _reconnect(self, node: NetnsNode) -> None:
        await trio.lowlevel.checkpoint()
        for server in self.etcd:
            for way in _ways_between(node.host, server.host):
                self.network.pass_again(way)


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

    async def _make_coordinator(self, servers: int) -> ProcessCoordinator:
        binary, place = found_etcd(), self.directory / "etcd"
        etcd = []
        for number in range(1, servers + 1):
            namespace, host = await trio.to_thread.run_sync(self.network.add_host)
            name, prefix = f"e{number}", inside(namespace)
            etcd.append(
                EtcdServer(
                    binary=binary, name=name, directory=place / name, host=host, prefix=prefix
                )
            )
        own = NetnsCoordinator(
            servers=servers,
            history=self.history,
            directory=place,
            nursery=self._nursery,
            etcd=etcd,
            network=self.network,
        )
        await own.open()
        return own

    async def _part(self, one: ProcessNode, other: ProcessNode) -> None:
        await trio.lowlevel.checkpoint()
        for way in _ways_between(one.host, other.host):
            self.network.drop(way)

    async def _unite(self, one: ProcessNode, other: ProcessNode) -> None:
        await trio.lowlevel.checkpoint()
        for way in _ways_between(one.host, other.host):
            self.network.pass_again(way)

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
