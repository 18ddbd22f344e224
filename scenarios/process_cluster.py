"""The nodes of the process world: starting, stopping, freezing, linking and asking them.

Every action is written into the history when it has certainly taken effect, with the time at which
it began.  A slave reaches its master through a `Proxy` in this process, unless it is started with
``direct=True`` (a million messages need no interference).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from hastore.broker.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.status import BrokerRole, FlushDiskType, SlaveStart
from scenarios.history import EventKind, History
from scenarios.log_image import log_end
from scenarios.node_process import NodeProcess
from scenarios.process_node import ProcessNode
from scenarios.proxy import Proxy
from scenarios.world import LinkMode, Node, NodeFailed

if TYPE_CHECKING:
    from pathlib import Path

_CLEAN_STOPS: Final = (0, 143)


class ProcessCluster:
    """The nodes; the base of `ProcessWorld`."""

    def __init__(self, directory: Path, nursery: trio.Nursery, history: History) -> None:
        self.directory = directory
        self.history = history
        self.nodes: dict[str, ProcessNode] = {}
        self._nursery = nursery
        self._disk = real_env().disk

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
        **config: Any,
    ) -> ProcessNode:
        """Start a new node as a master."""
        node = self._new_node(name, role, flush, config)
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
        **config: Any,
    ) -> ProcessNode:
        """Start a new node as a slave; ``direct``: without a link that can be interfered with."""
        node = self._new_node(name, BrokerRole.SLAVE, flush, config)
        node.slave_from = slave_from
        await self._attach(node, self._node(master), direct=direct)
        await self._start(node, log_end_matters=False)
        return node

    async def stop(self, node: Node) -> None:
        """Stop it with SIGTERM."""
        own, process = self._running(node)
        begun_s = self._disturb(own)
        code = await process.stop()
        self._ended(
            own, EventKind.STOP, f"{own.name}: stopped (SIGTERM), exit {code}", begun_s, code
        )
        if code not in _CLEAN_STOPS:
            raise NodeFailed(f"{own.name} ended with {code} on SIGTERM", output=own.output())

    async def kill(self, node: Node) -> None:
        """End it with SIGKILL."""
        own, process = self._running(node)
        begun_s = self._disturb(own)
        code = await process.kill()
        self._ended(own, EventKind.KILL, f"{own.name}: killed (SIGKILL)", begun_s, code)

    async def pause(self, node: Node) -> None:
        """Freeze it with SIGSTOP."""
        own, process = self._running(node)
        begun_s = self._disturb(own)
        await process.pause()
        own.is_paused = True
        self.history.event(
            EventKind.PAUSE, own.name, f"{own.name}: frozen (SIGSTOP)", begun_s=begun_s
        )

    async def resume(self, node: Node) -> None:
        """Let it run on with SIGCONT."""
        own, process = self._running(node)
        begun_s = self._disturb(own)
        await process.resume()
        own.is_paused = False
        self.history.event(
            EventKind.RESUME, own.name, f"{own.name}: runs on (SIGCONT)", begun_s=begun_s
        )

    async def restart(self, node: Node) -> None:
        """Start it again as what it was."""
        await self._start(self._node(node), log_end_matters=False)

    async def promote(
        self, slave: Node, *, role: BrokerRole = BrokerRole.SYNC_MASTER, **config: Any
    ) -> None:
        """Start a slave's directory as a master."""
        own = self._node(slave)
        if own.is_running:
            await self.stop(own)
        self._detach(own)
        own.role, own.config = role, {**own.config, **config}
        await self._start(own, log_end_matters=True)

    async def follow(self, node: Node, *, master: Node, **config: Any) -> None:
        """Start a node's directory as a slave of ``master``."""
        own = self._node(node)
        if own.is_running:
            await self.stop(own)
        self._detach(own)
        own.role, own.config = BrokerRole.SLAVE, {**own.config, **config}
        await self._attach(own, self._node(master), direct=False)
        await self._start(own, log_end_matters=True)

    def link(self, slave: Node) -> Proxy:
        """Give the proxy between a slave and its master."""
        proxy = self._node(slave).proxy
        assert proxy is not None, f"{slave.name} has no link: a master, or started with direct=True"
        return proxy

    async def status(self, node: Node) -> NodeStatus:
        """Ask a node what it is doing; UnreachableError where it does not answer."""
        own, process = self._running(node)
        disturbed = {each.name: each.disturbances for each in self.nodes.values()}
        async with AdminClient.connect(process.address, connect_timeout_s=2.0) as admin:
            status = NodeStatus.from_dict((await admin.ha_status())["hastore"])
        if own.is_master:
            for slave in self._healthy_slaves(own, status):
                if (
                    slave.healthy_at != slave.disturbances
                    and slave.disturbances == disturbed[slave.name]
                    and own.disturbances == disturbed[own.name]
                ):
                    slave.healthy_at = slave.disturbances
                    self.history.event(
                        EventKind.HEALTHY, slave.name, f"{slave.name}: in step with {own.name}"
                    )
        return status

    # -- inside

    def _new_node(
        self, name: str, role: BrokerRole, flush: FlushDiskType, config: dict[str, Any]
    ) -> ProcessNode:
        assert name not in self.nodes, f"there is a node {name} already"
        node = ProcessNode(
            name=name, directory=self.directory / name, role=role, flush=flush, config=config
        )
        self.nodes[name] = node
        return node

    async def _start(self, node: ProcessNode, *, log_end_matters: bool) -> None:
        assert not node.is_running, f"{node.name} runs already"
        end = None
        if log_end_matters:
            end = await trio.to_thread.run_sync(lambda: log_end(self._disk, str(node.directory)))
        begun_s = self._disturb(node)
        node.process = await NodeProcess.start(
            node.name, node.arguments(), data_dir=node.directory, output_path=node.output_path
        )
        node.is_paused = False
        if node.is_master:
            node.ha_port = node.ha_address()[1]
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

    def _ended(
        self, node: ProcessNode, kind: EventKind, text: str, begun_s: float, code: int
    ) -> None:
        node.is_paused = False
        if node.stream is not None:
            node.stream.hang_up()
        if node.is_master:
            self._retarget(node)
        self.history.event(kind, node.name, text, begun_s=begun_s, returncode=code)

    async def _attach(self, node: ProcessNode, master: ProcessNode, *, direct: bool) -> None:
        node.master = master
        if direct:
            return

        def changed(mode: LinkMode, detail: str) -> None:
            node.disturbed()
            self.history.event(
                EventKind.LINK,
                node.name,
                f"link {node.name} to {master.name}: {mode.value}" + (detail and f", {detail}"),
                mode=mode.value,
                flows=mode is LinkMode.OPEN,
            )

        node.proxy = Proxy(master.ha_address() if master.is_running else None, changed)
        node.proxy.listen()
        node.proxy_scope = await self._nursery.start(_run_proxy, node.proxy)

    def _detach(self, node: ProcessNode) -> None:
        if node.proxy_scope is not None:
            node.proxy_scope.cancel()
        node.proxy = node.proxy_scope = node.master = None

    def _retarget(self, master: ProcessNode) -> None:
        """Have its slaves' links lead to where it listens now."""
        for node in self.nodes.values():
            if node.master is master and node.proxy is not None:
                node.proxy.target = master.ha_address() if master.is_running else None

    def _healthy_slaves(self, master: ProcessNode, status: NodeStatus) -> list[ProcessNode]:
        """Give the slaves that a master's status shows with all that was written acknowledged."""
        in_step = {
            row.address for row in status.slaves if row.state == "streaming" and row.lag_bytes == 0
        }
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
            and node.proxy.master_side & in_step
        ]
        known = {
            address
            for node in linked
            if node.proxy is not None
            for address in node.proxy.master_side
        }
        return healthy + direct if len(in_step - known) == len(direct) else healthy

    def _node(self, node: Node) -> ProcessNode:
        own = self.nodes[node.name]
        assert own is node, "a node of another world"
        return own

    def _running(self, node: Node) -> tuple[ProcessNode, NodeProcess]:
        own = self._node(node)
        assert own.process is not None, f"{own.name} was never started"
        self._check_not_dead(own)
        return own, own.process

    def _check_not_dead(self, node: ProcessNode) -> None:
        if not node.is_running:
            code = None if node.process is None else node.process.process.returncode
            raise NodeFailed(f"{node.name} does not run (exit {code})", output=node.output())

    def _disturb(self, node: ProcessNode) -> float:
        """Note that something is about to be done to a node, and give the time."""
        node.disturbed()
        for other in self.nodes.values():
            if other.master is node:
                other.disturbed()
        return self.now_s

    async def _end_processes(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                await node.process.process.end()


async def _run_proxy(
    proxy: Proxy, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await proxy.run()
