"""The nodes of a simulated replica group, and how orders reach them.

::

    controller ──order──▶ Agent (in the node's process) ──▶ GroupNode.follow, become_master, …

An agent is part of its node's process: stopped, it acts later; killed, it forgets its orders.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.broker.node.group_node import GroupNode, run_group_node
from hastore.broker.node.master import Master
from hastore.cluster.cluster_node import run_cluster_node
from hastore.config import AccessConfig, GroupNodeConfig, HAConfig, StoreConfig
from hastore.ha.client_port import asker_of
from hastore.ha.group_ha_service import GroupHAService
from hastore.sim.cluster import CLIENT_PORT, DATA_DIR, HA_PORT, SimNode
from hastore.sim.disk import SimDisk
from hastore.sim.host import SimWallClock
from hastore.status import FlushDiskType, HAProtocol

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from hastore.broker.node.master_store import Term
    from hastore.broker.node.slave import Slave
    from hastore.cluster.role_service import RoleService
    from hastore.config import InSyncReplicas
    from hastore.env.interface import Env
    from hastore.ha.set_proposal import Coordinator
    from hastore.ha.sync_state_set import SyncStateSet
    from hastore.sim.cluster import Boot
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

GROUP: Final = "g1"
OBSERVER_PORT: Final = 10_913
RESERVE_SIZE: Final = 512 * 1024  # copied at each kill, so not more than what a cut needs


@attrs.frozen(kw_only=True)
class GroupConfig:
    """The settings of a group, chosen by the seed; ``flushes`` by node."""

    flushes: tuple[FlushDiskType, ...]
    in_sync_replicas: InSyncReplicas
    min_in_sync_replicas: int | None  # None: not set
    mapped_file_size: int
    ha_transfer_batch_size: int
    listens: bool = False  # the nodes have client ports, and copy tables from their master's
    has_observer: bool = False  # a classic slave reads from the masters
    has_delays: bool = False  # some messages are delayed
    slave_timeout_ms: int = 3_000
    access: AccessConfig = attrs.field(factory=AccessConfig)  # files on each node's disk
    name: str = GROUP
    net: str = "10.0.0"  # of its hosts: another group on the same network has another

    @property
    def ids(self) -> range:
        """The node ids."""
        return range(1, len(self.flushes) + 1)

    @property
    def is_all(self) -> bool:
        """Whether a put waits for every member of the set: only then P13 is promised."""
        return self.in_sync_replicas == "all"

    def is_sync(self, node_id: int) -> bool:
        """Whether a node acknowledges only what it has flushed."""
        return self.flushes[node_id - 1] is FlushDiskType.SYNC_FLUSH

    def store(self, flush: FlushDiskType) -> StoreConfig:
        """Return a node's store settings."""
        return StoreConfig(
            data_dir=DATA_DIR,
            mapped_file_size=self.mapped_file_size,
            flush_disk_type=flush,
            mapped_file_size_consume_queue=2_000,
            delete_when=";".join(f"{hour:02d}" for hour in range(24)),
            clean_resource_interval_ms=2_000,
            reserve_size=RESERVE_SIZE,
            max_hash_slot_num=64,
            max_index_num=512,
        )

    def of_node(self, node_id: int, host: str) -> GroupNodeConfig:
        """Return a node's configuration."""
        return GroupNodeConfig(
            store=self.store(self.flushes[node_id - 1]),
            node_id=node_id,
            replica_group=self.name,
            group_ids=tuple(self.ids),
            listen=(host, CLIENT_PORT) if self.listens else None,
            ha_listen=(host, HA_PORT),
            observer_listen=(host, OBSERVER_PORT) if self.has_observer else None,
            access=self.access,
            ha=HAConfig(
                protocol=HAProtocol.AUTOSWITCH,
                in_sync_replicas=self.in_sync_replicas,
                min_in_sync_replicas=self.min_in_sync_replicas,
                slave_timeout_ms=self.slave_timeout_ms,
                ha_transfer_batch_size=self.ha_transfer_batch_size,
            ),
        )


@final
@attrs.define(eq=False, repr=False)
class Agent:
    """What carries out orders on one boot of one node."""

    node_id: int
    sim_node: SimNode
    boot: Boot
    began_at: float = attrs.field(factory=trio.current_time)
    newest_epoch: int = 0  # of all orders so far
    master: Master | None = None  # the newest of this boot
    _node: GroupNode | None = None
    _orders: deque[Callable[[], Awaitable[None]]] = attrs.field(factory=deque)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self.boot.is_over

    @property
    def node(self) -> GroupNode:
        """The node, which serves."""
        assert self._node is not None, "orders come once it serves"
        return self._node

    @property
    def serving_master(self) -> Master | None:
        """The node as a master, None while it is none."""
        role_node = self.node.role_node
        is_open = not role_node.commit_log.mapped_file_queue.is_closed
        return role_node if isinstance(role_node, Master) and is_open else None

    @property
    def open_master(self) -> Master | None:
        """The newest master, even before it serves; None once its log is closed."""
        master = self.master
        if master is None or self.is_over or master.commit_log.mapped_file_queue.is_closed:
            return None
        return master

    @property
    def epoch(self) -> int | None:
        """The epoch in which it is master; None if it is none."""
        master = self.serving_master
        return None if master is None else epoch_of(master)

    def post(self, order: Callable[[], Awaitable[None]]) -> None:
        """Let the node's process carry out an order; it may be lost with the process."""
        if not self.is_over:
            self._orders.append(order)
            self._wake.set()

    def serves(self, node: GroupNode) -> None:
        """Take the node, which serves."""
        self._node = node

    async def run(self) -> None:
        """Carry out orders, side by side, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while self._orders:
                    nursery.start_soon(self._orders.popleft())
                self._wake = trio.Event()
                await self._wake.wait()


class GroupWatcher(Protocol):
    """Who is called as the nodes of a group change their roles."""

    def term_began(self, agent: Agent, master: Master) -> None:
        """Take a new master: its store is open, and none of its services runs."""

    def role_began(self, agent: Agent, role_node: Master | Slave) -> None:
        """Take a node that serves in a new role."""


class Coordinators(Protocol):
    """Where masters get their coordinators."""

    def coordinator_for(self, agent: Agent, term: Term) -> Coordinator:
        """Return the coordinator of a master that begins its term."""


class RoleServices(Protocol):
    """Where nodes whose roles a coordinator decides get what speaks to it."""

    def role_service_for(self, agent: Agent, env: Env) -> RoleService:
        """Return that of one process of a node."""

    def serves(self, agent: Agent) -> None:
        """Take a process whose node serves."""


@final
@attrs.define(eq=False, repr=False)
class GroupCluster:
    """The nodes of one group; ``agents`` has one for each node that serves."""

    config: GroupConfig
    network: Network
    choices: random.Random
    trace: Trace
    nodes: list[SimNode] = attrs.field(factory=list, init=False)
    agents: dict[int, Agent] = attrs.field(factory=dict, init=False)  # by node id
    watcher: GroupWatcher = attrs.field(init=False)
    coordinators: Coordinators = attrs.field(init=False)
    # Who decides roles: the nodes themselves, by a coordinator; None: orders do.
    role_services: RoleServices | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Set up the hosts."""
        for node_id in self.config.ids:
            clock = SimWallClock()
            host = f"{self.config.net}.{node_id}"
            disk = SimDisk(clock.now_ms)
            group = "" if self.config.name == GROUP else f"{self.config.name}-"
            name = f"{group}node-{node_id}"
            self.nodes.append(SimNode(self, name, host, False, disk, clock))

    def node(self, node_id: int) -> SimNode:
        """Return the host of a node."""
        return self.nodes[node_id - 1]

    def id_of(self, node: SimNode) -> int:
        """Return the id of a host's node."""
        return self.nodes.index(node) + 1

    def agent(self, node_id: int) -> Agent | None:
        """Return the agent of a node that serves, stopped or not; None while it is down."""
        agent = self.agents.get(node_id)
        return None if agent is None or agent.is_over else agent

    def masters(self) -> list[tuple[Agent, Master]]:
        """Return all that take themselves for masters."""
        found = []
        for node_id in self.config.ids:
            agent = self.agent(node_id)
            master = None if agent is None else agent.serving_master
            if agent is not None and master is not None:
                found.append((agent, master))
        return found

    def main_of(self, node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return what a boot runs: a node of the group and its agent."""
        return partial(self._run_node, node)

    async def _run_node(
        self, sim_node: SimNode, env: Env, *, task_status: trio.TaskStatus[GroupNode]
    ) -> None:
        node_id, boot = self.id_of(sim_node), sim_node.boot
        if boot is None:
            await trio.sleep_forever()  # killed before it ran
        agent = Agent(node_id, sim_node, boot)

        services = self.role_services
        run_node = partial(
            run_group_node,
            coordinator=lambda term: self.coordinators.coordinator_for(agent, term),
        )
        if services is not None:
            run_node = partial(run_cluster_node, roles=services.role_service_for(agent, env))

        async def run(*, task_status: trio.TaskStatus[GroupNode]) -> None:
            config = self.config.of_node(node_id, sim_node.host)
            await run_node(
                config,
                env,
                ask_client_port=asker_of(config.access, env) if self.config.listens else None,
                on_master=lambda master: self._term_began(agent, master),
                on_role=lambda role_node: self._role_began(agent, role_node),
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()  # it was asked to stop

        async with trio.open_nursery() as nursery:
            agent.serves(await nursery.start(run))
            if services is not None:
                services.serves(agent)
            self.agents[node_id] = agent
            nursery.start_soon(agent.run)
            task_status.started(agent.node)

    def _term_began(self, agent: Agent, master: Master) -> None:
        if not agent.is_over:
            agent.master = master
            self.watcher.term_began(agent, master)

    def _role_began(self, agent: Agent, role_node: Master | Slave) -> None:
        if not agent.is_over:
            self.watcher.role_began(agent, role_node)


def epoch_of(master: Master) -> int:
    """Return the epoch of a group's master."""
    return set_of(master).entry.epoch


def set_of(master: Master) -> SyncStateSet:
    """Return the SyncStateSet of a group's master."""
    return service_of(master).sync_state_set


def service_of(master: Master) -> GroupHAService:
    """Return the replication service of a group's master."""
    service = master.ha_service
    assert isinstance(service, GroupHAService), "a master of a group"
    return service
