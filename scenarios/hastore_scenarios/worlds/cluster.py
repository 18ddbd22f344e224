"""The nodes of a world: start, stop, freeze, link them, and ask for their status.

Every action is written into the history once it has certainly taken effect, with the time at which
it began.  Each world decides how a node is run and what the network between two nodes is.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.errors import ConfigError, HastoreError
from hastore.status import BrokerRole, FlushDiskType, SlaveStart
from hastore_scenarios.judge.history import DISK_HEALED, LASTING_DISK_FAULTS, EventKind, History
from hastore_scenarios.story.world import LinkMode, NodeFailed, ScenarioFailed
from hastore_scenarios.worlds.node_config import expect_kind, with_defaults
from hastore_scenarios.worlds.staged_node import StagedNode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hastore.broker.observe.node_status import MasterLink
    from hastore_scenarios.story.world import DiskFaults, Link, Node

N = TypeVar("N", bound=StagedNode)


class StagedCluster(abc.ABC, Generic[N]):
    """The nodes; the base of `StagedGroups`."""

    def __init__(self, directory: Path, nursery: trio.Nursery, history: History) -> None:
        self.directory = directory
        self.history = history
        self.nodes: dict[str, N] = {}
        self._nursery = nursery

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""
        return self.history.now_s()

    async def start_master(
        self,
        name: str,
        *,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        faulty_disk: bool = False,
        **config: Any,
    ) -> N:
        """Start a new node as a master."""
        node = await self._new_node(name, role, flush, config)
        if faulty_disk:
            self._expect_faults(node)
        await self._start(node, log_end_matters=False)
        return node

    async def start_slave(
        self,
        name: str,
        *,
        master: Node,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        slave_from: SlaveStart = SlaveStart.EARLIEST,
        direct: bool = False,
        faulty_disk: bool = False,
        **config: Any,
    ) -> N:
        """Start a new node as a slave; ``direct``: without a link that can be disturbed."""
        expect_kind("slave_from", slave_from, SlaveStart)
        node = await self._new_node(name, BrokerRole.SLAVE, flush, config)
        node.slave_from = slave_from
        if faulty_disk:
            self._expect_faults(node)
        await self._attach(node, self._node(master), direct=direct)
        await self._start(node, log_end_matters=False)
        return node

    async def stop(self, node: Node) -> None:
        """Stop a node with SIGTERM.  Raises NodeFailed for another exit code than 0."""
        own = self._running(node)
        begun_s = self._disturb(own)
        code = await own.terminate()
        how = f", exit {code}" if code else ""
        self._ended(own, EventKind.STOP, f"{own.name}: stopped (SIGTERM){how}", begun_s, code)
        if code:
            raise NodeFailed(f"{own.name} ended with {code} on SIGTERM", output=own.output())

    async def kill(self, node: Node) -> None:
        """Kill a node with SIGKILL."""
        own = self._running(node)
        begun_s = self._disturb(own)
        code = await own.slay()
        self._ended(own, EventKind.KILL, f"{own.name}: killed (SIGKILL)", begun_s, code)

    async def pause(self, node: Node) -> None:
        """Freeze a node with SIGSTOP."""
        own = self._running(node)
        begun_s = self._disturb(own)
        await own.freeze()
        own.is_paused = True
        self.history.event(
            EventKind.PAUSE, own.name, f"{own.name}: frozen (SIGSTOP)", begun_s=begun_s
        )

    async def resume(self, node: Node) -> None:
        """Let a node run on with SIGCONT."""
        own = self._running(node)
        begun_s = self._disturb(own)
        await own.thaw()
        own.is_paused = False
        self.history.event(
            EventKind.RESUME, own.name, f"{own.name}: runs on (SIGCONT)", begun_s=begun_s
        )

    async def wait_exit(self, node: Node, *, within_s: float = 60.0) -> int:
        """Wait until a node has ended by itself; return its exit code.  Raises ScenarioFailed."""
        own = self._node(node)
        begun_s = self._disturb(own)
        code: int | None = None
        with trio.move_on_after(within_s):
            code = await own.wait_gone()
        if code is None:
            raise ScenarioFailed(f"{own.name} has not ended by itself within {within_s:g} s")
        self._ended(own, EventKind.EXIT, f"{own.name}: ended by itself, exit {code}", begun_s, code)
        return code

    async def restart(self, node: Node) -> None:
        """Start a node again in its last role."""
        await self._start(self._node(node), log_end_matters=False)

    async def promote(
        self,
        slave: Node,
        *,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        members: Sequence[Node] | None = None,
        force: bool = False,
        **config: Any,
    ) -> None:
        """Start a slave's directory as a master."""
        if members is not None or force:
            raise ConfigError("members and force are for the nodes of a replica group")
        own = self._node(slave)
        expect_kind("role", role, BrokerRole)
        with_defaults(config)
        if own.is_running:
            await self.stop(own)
        self._detach(own)
        own.role, own.config = role, {**own.config, **config}
        await self._start(own, log_end_matters=True)

    async def follow(self, node: Node, *, master: Node, **config: Any) -> None:
        """Start a node's directory as a slave of ``master``."""
        own = self._node(node)
        with_defaults(config)
        if own.is_running:
            await self.stop(own)
        self._detach(own)
        own.role, own.config = BrokerRole.SLAVE, {**own.config, **config}
        await self._attach(own, self._node(master), direct=False)
        await self._start(own, log_end_matters=True)

    async def status(self, node: Node) -> NodeStatus:
        """Return a node's status.  Raises UnreachableError if it does not answer."""
        own = self._running(node)
        disturbed = {each.name: each.disturbances for each in self.nodes.values()}
        status = await _ask(own)
        if own.is_master:
            for slave in self._nodes_in_step(own, status):
                if (
                    slave.disk_fault is None
                    and slave.healthy_at != slave.disturbances
                    and await self._is_linked(slave, status)
                    and slave.healthy_at != slave.disturbances
                    and slave.disturbances == disturbed[slave.name]
                    and own.disturbances == disturbed[own.name]
                ):
                    slave.healthy_at = slave.disturbances
                    self.history.event(
                        EventKind.HEALTHY, slave.name, f"{slave.name}: in step with {own.name}"
                    )
        return status

    # -- what each world implements

    @abc.abstractmethod
    def link(self, slave: Node) -> Link:
        """Return the network between a slave and its master."""

    @abc.abstractmethod
    def disk(self, node: Node) -> DiskFaults:
        """Return the faults of a node's disk."""

    @abc.abstractmethod
    async def _make_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> N:
        """Return a new node that does not run yet."""

    @abc.abstractmethod
    async def _connect(self, node: N, master: N, *, direct: bool) -> None:
        """Make the link between a slave and its master."""

    @abc.abstractmethod
    def _disconnect(self, node: N) -> None:
        """Remove the link between a slave and its master."""

    def _expect_faults(self, node: N) -> None:
        """Prepare a node for disk faults before it starts."""

    def _retarget(self, master: N) -> None:
        """Direct its slaves' links to its current address."""

    @abc.abstractmethod
    def _healthy_slaves(self, master: N, status: NodeStatus) -> list[N]:
        """Return the slaves that a master's status shows as in step."""

    def _nodes_in_step(self, master: N, status: NodeStatus) -> list[N]:
        """Return the nodes that a master's status shows as in step."""
        return self._healthy_slaves(master, status)

    def _shows(self, status: NodeStatus, slave: N, link: MasterLink) -> bool:
        """Whether a master's status shows this link of a slave as in step."""
        assert slave.master is not None
        return link.local_address in in_step(status)

    # -- inside

    async def _is_linked(self, slave: N, status: NodeStatus) -> bool:
        """Whether a slave has the link that its master's status shows.

        A master that was frozen also shows links that its slaves have closed meanwhile.
        """
        try:
            link = (await _ask(slave)).master_link
        except (HastoreError, OSError):
            return False
        return link is not None and link.state == "streaming" and self._shows(status, slave, link)

    async def _new_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> N:
        assert name not in self.nodes, f"there is a node {name} already"
        expect_kind("role", role, BrokerRole)
        expect_kind("flush", flush, FlushDiskType)
        with_defaults(config)
        node = self.nodes[name] = await self._make_node(name, role, flush, config)
        return node

    async def _start(self, node: N, *, log_end_matters: bool) -> None:
        assert not node.is_running, f"{node.name} runs already"
        end = await node.log_end() if log_end_matters else None
        begun_s = self._disturb(node)
        await node.boot()
        node.is_paused = False
        if node.is_master:
            self._retarget(node)
        kind = EventKind.START_MASTER if node.is_master else EventKind.START_SLAVE
        following = "" if node.master is None else f" of {node.master.name}"
        self.history.event(
            kind,
            node.name,
            f"{node.name}: started as {node.role.value}{following}, {node.flush.value}",
            begun_s=begun_s,
            log_end=end,
            **node.facts(),
        )

    def _ended(self, node: N, kind: EventKind, text: str, begun_s: float, code: int) -> None:
        node.is_paused = False
        if node.stream is not None:
            node.stream.hang_up()
        if node.is_master:
            self._retarget(node)
        self.history.event(kind, node.name, text, begun_s=begun_s, returncode=code)

    async def _attach(self, node: N, master: N, *, direct: bool) -> None:
        node.master = master
        await self._connect(node, master, direct=direct)

    def _detach(self, node: N) -> None:
        if node.master is not None:
            self._disconnect(node)
        node.master = None

    def _link_changed(self, node: N, mode: LinkMode, detail: str) -> None:
        """Record a change of a link."""
        assert node.master is not None
        node.disturbed()
        self.history.event(
            EventKind.LINK,
            node.name,
            f"link {node.name} to {node.master.name}: {mode.value}" + (detail and f", {detail}"),
            mode=mode.value,
            flows=mode is LinkMode.OPEN,
        )

    def _disk_changed(self, node: N, fault: str, text: str, **details: Any) -> None:
        """Record a disk fault, or its end."""
        self._disturb(node)
        if fault in LASTING_DISK_FAULTS:
            node.disk_fault = fault
        elif fault == DISK_HEALED:
            node.disk_fault = None
        self.history.event(
            EventKind.DISK, node.name, f"disk of {node.name}: {text}", fault=fault, **details
        )

    def _node(self, node: Node) -> N:
        own = self.nodes[node.name]
        assert own is node, "a node of another world"
        return own

    def _running(self, node: Node) -> N:
        own = self._node(node)
        self._check_not_dead(own)
        return own

    def _check_not_dead(self, node: N) -> None:
        if not node.is_running:
            code = node.exit_code
            raise NodeFailed(f"{node.name} does not run (exit {code})", output=node.output())

    def _disturb(self, node: N) -> float:
        """Record that a node is about to be disturbed; return the time in seconds."""
        node.disturbed()
        for other in self.nodes.values():
            if other.master is node:
                other.disturbed()
        return self.now_s


def in_step(status: NodeStatus) -> set[str]:
    """Return the addresses of the slaves that have acknowledged all that their master has."""
    rows = (*status.slaves, *status.observers)
    return {row.address for row in rows if row.state == "streaming" and row.lag_bytes == 0}


async def _ask(node: StagedNode) -> NodeStatus:
    address = node.address()
    assert address is not None
    async with AdminClient.connect(address, connect_timeout_s=5.0) as admin:
        return NodeStatus.from_dict((await admin.ha_status())["hastore"])
