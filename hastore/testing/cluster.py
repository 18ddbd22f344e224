"""A master and its slaves, or a replica group, for synchronous tests.

::

    with Cluster(tmp_path) as cluster:                  # or the fixture ``hastore_cluster``
        cluster.start(slaves=2)                         # or start_group(nodes=3): ``hastore_group``
        cluster.master.put("orders", b"hello")

Invariant: after ``close`` no task, thread, process, socket or port of it is left; the directories
stay.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from hastore.errors import ConfigError, HastoreError
from hastore.status import BrokerRole, FlushDiskType
from hastore.testing.group import ReplicaGroup
from hastore.testing.loop_thread import LoopThread
from hastore.testing.node import ClusterNode
from hastore.testing.node_settings import check_names, one_of
from hastore.testing.process_runner import ProcessRunner
from hastore.testing.runner import NodeDiedError
from hastore.testing.task_runner import TaskRunner

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from hastore.testing.runner import NodeRunner

START_WITHIN_S = 120.0


@final
class Cluster:
    """Nodes in directories below ``directory``: ``a``, the first master, then ``b`` and so on.

    ``processes``: each node is a process of its own, for real SIGKILL and SIGSTOP; otherwise all of
    them are tasks in a thread of this process.
    """

    def __init__(self, directory: str | os.PathLike[str], *, processes: bool = False) -> None:
        self.directory = Path(directory)
        self.nodes: list[ClusterNode] = []
        self._group: ReplicaGroup[ClusterNode] | None = None
        self._processes = processes
        self._loop = LoopThread()

    def start(
        self,
        slaves: int = 1,
        *,
        role: BrokerRole | str = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType | str = FlushDiskType.ASYNC_FLUSH,
        slave_flush: FlushDiskType | str | None = None,
        **config: Any,
    ) -> Self:
        """Start a master and wait until ``slaves`` slaves are in step with it.

        ``slave_flush`` None: as ``flush``.  ``config``: fields of hastore's StoreConfig, HAConfig
        and RemotingConfig by name, for all nodes.  Raises ConfigError.
        """
        if slaves < 0:
            msg = f"slaves {slaves} must not be negative"
            raise ConfigError(msg, hint="slaves=0 starts a master without slaves")
        check_names(config)
        role_there = one_of(BrokerRole, role, "role")
        flush_here = one_of(FlushDiskType, flush, "flush")
        flush_there = one_of(FlushDiskType, slave_flush or flush, "slave_flush")
        self.directory.mkdir(parents=True, exist_ok=True)
        master = self._new(role_there, flush_here, config, None)
        for _ in range(slaves):
            self._new(BrokerRole.SLAVE, flush_there, config, master)

        async def act() -> None:
            for node in self.nodes:
                await node.started()
            await master.acknowledged(START_WITHIN_S, count=slaves)

        self._loop.call(act)
        return self

    def start_group(
        self,
        nodes: int = 3,
        *,
        role: BrokerRole | str = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType | str = FlushDiskType.ASYNC_FLUSH,
        **config: Any,
    ) -> Self:
        """Start a replica group, with the first node as its master, and wait until it is in step.

        Its nodes speak autoswitch: their logs have epochs, and a put waits for every node of the
        SyncStateSet (``in_sync_replicas``, ``min_in_sync_replicas``).  ``role``: of each master.
        ``config``: as for ``start``.  Raises ConfigError.
        """
        if nodes < 1:
            raise ConfigError(f"a replica group has nodes, not {nodes}", hint="nodes=1 or more")
        check_names(config)
        role_here = one_of(BrokerRole, role, "role")
        if role_here is BrokerRole.SLAVE:
            raise ConfigError("role is that of the masters, not SLAVE", hint='role="SYNC_MASTER"')
        flush_here = one_of(FlushDiskType, flush, "flush")
        self.directory.mkdir(parents=True, exist_ok=True)
        group = self._group = ReplicaGroup[ClusterNode](
            role=role_here, min_in_sync_replicas=config.get("min_in_sync_replicas") or 1
        )
        for _ in range(nodes):
            group.nodes.append(self._new(BrokerRole.SLAVE, flush_here, config, None, group))

        async def act() -> None:
            for node in group.nodes:
                await node.started()
            await group.promote(group.nodes[0], within_s=START_WITHIN_S)

        self._loop.call(act)
        return self

    def add_slave(self, flush: FlushDiskType | str | None = None, **config: Any) -> ClusterNode:
        """Start one more slave of the current master, and wait until it has caught up."""
        if self._group is not None:
            raise ConfigError(
                "a replica group keeps the nodes that it was started with",
                hint="start_group(nodes=...)",
            )
        check_names(config)
        master = self.master
        flush_there = one_of(FlushDiskType, flush or master.flush, "flush")
        node = self._new(BrokerRole.SLAVE, flush_there, {**master.config, **config}, master)
        self._loop.call(node.started)
        node.wait_caught_up()
        return node

    @property
    def master(self) -> ClusterNode:
        """The master; of several, a running one, and of those the last that was promoted.

        Raises HastoreError if no node is a master.
        """
        masters = [node for node in self.nodes if node.is_master]
        if not masters:
            raise HastoreError("no node of this cluster is a master", hint="promote() one")
        return max(masters, key=lambda node: (node.is_running, node.promotion))

    @property
    def slaves(self) -> list[ClusterNode]:
        """The nodes that are slaves, running or not."""
        return [node for node in self.nodes if not node.is_master]

    @property
    def in_sync(self) -> list[ClusterNode]:
        """The SyncStateSet of a replica group: those that may be promoted, running or not."""
        stored = None if self._group is None else self._group.sync_state_set()
        members = frozenset[int]() if stored is None else stored.members
        return [node for node in self.nodes if node.node_id in members]

    def wait_caught_up(self, *, within_s: float = 60.0) -> None:
        """Wait until every running slave has stored and acknowledged all that its master has.

        Those of a replica group are in its SyncStateSet then.
        """
        if self._group is not None:
            self._loop.call(partial(self._group.caught_up, within_s))
            return
        running = [node for node in self.slaves if node.is_running]
        for node in running:
            node.wait_caught_up(within_s=within_s)
        masters = dict.fromkeys(node.master for node in running)
        for master in masters:
            assert master is not None, "a slave has a master"
            count = sum(node.master is master for node in running)
            self._loop.call(partial(master.acknowledged, within_s, count=count))

    def close(self) -> None:
        """End everything; idempotent.  Raises NodeDiedError if a node had ended by itself."""
        deaths = [f"{node.name} ended by itself: {node.death}" for node in self.nodes if node.death]
        try:
            if self.nodes:
                self._loop.call(self._close_nodes)
                self.nodes.clear()
        finally:
            self._loop.close()
        if deaths:
            raise NodeDiedError("; ".join(deaths))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _new(
        self,
        role: BrokerRole,
        flush: FlushDiskType,
        config: dict[str, Any],
        master: ClusterNode | None,
        group: ReplicaGroup[ClusterNode] | None = None,
    ) -> ClusterNode:
        name = chr(ord("a") + len(self.nodes)) if len(self.nodes) < 26 else f"n{len(self.nodes)}"
        node = ClusterNode(
            name=name,
            data=self.directory / name,
            role=role,
            flush=flush,
            config=config,
            master=master,
            group=group,
            node_id=0 if group is None else len(self.nodes) + 1,
            loop=self._loop,
            make_runner=partial(self._runner, name),
        )
        self.nodes.append(node)
        return node

    def _runner(self, name: str) -> NodeRunner:
        if self._processes:
            return ProcessRunner(self.directory / f"{name}.log")
        return TaskRunner(self._loop.nursery)

    async def _close_nodes(self) -> None:
        # Slaves first: a slave without its master would try to reconnect, and log it.
        for node in sorted(self.nodes, key=lambda node: node.is_master):
            await node.closed()
