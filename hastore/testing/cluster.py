"""A master and its slaves for synchronous tests.

::

    with Cluster(tmp_path) as cluster:                  # or the fixture ``hastore_cluster``
        cluster.start(slaves=2)
        cluster.master.put("orders", b"hello")

Invariant: after ``close`` no task, thread, process, socket or port of it is left; the directories
stay.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType
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

    def add_slave(self, flush: FlushDiskType | str | None = None, **config: Any) -> ClusterNode:
        """Start one more slave of the current master, and wait until it has caught up."""
        check_names(config)
        master = self.master
        flush_there = one_of(FlushDiskType, flush or master.flush, "flush")
        node = self._new(BrokerRole.SLAVE, flush_there, {**master.config, **config}, master)
        self._loop.call(node.started)
        node.wait_caught_up()
        return node

    @property
    def master(self) -> ClusterNode:
        """The master; of several, a running one, and of those the last that was promoted."""
        masters = [node for node in self.nodes if node.is_master]
        return max(masters, key=lambda node: (node.is_running, node.promotion))

    @property
    def slaves(self) -> list[ClusterNode]:
        """The nodes that are slaves, running or not."""
        return [node for node in self.nodes if not node.is_master]

    def wait_caught_up(self, *, within_s: float = 60.0) -> None:
        """Wait until every running slave has stored and acknowledged all that its master has."""
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
    ) -> ClusterNode:
        name = chr(ord("a") + len(self.nodes)) if len(self.nodes) < 26 else f"n{len(self.nodes)}"
        node = ClusterNode(
            name=name,
            data=self.directory / name,
            role=role,
            flush=flush,
            config=config,
            master=master,
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
