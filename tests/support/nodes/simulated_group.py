"""A replica group whose nodes decide their roles by a model of etcd, in virtual time, for a test.

Nodes, network, disks and etcd are the simulator's, without faults; a test stops, cuts off and
starts what it wants to, and says what becomes of single requests to etcd (``ScriptedStore``)::

    group.stores[1].next("commit", "leader", Fate.ANSWER_LOST)
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, TypeVar

import attrs
import trio

from hastore.access.signature import AccessKey
from hastore.broker.node.master import Master
from hastore.broker.node.slave import Slave
from hastore.client.remoting_client import RemotingClient, open_remoting_client
from hastore.cluster.cluster_routes import ClusterRoutes
from hastore.cluster.group_records import GroupConfig, GroupView, Keys, read_group
from hastore.cluster.key_value_store import Lease, Outcome, Put, ServerTime, Snapshot
from hastore.cluster.operations import Change
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import RoleService
from hastore.cluster.route_records import RouteKeys
from hastore.config import AccessConfig
from hastore.env.interface import Env
from hastore.errors import (
    CoordinatorNoSpaceError,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
)
from hastore.message import Message
from hastore.sim.cluster import CLIENT_PORT, SimNode
from hastore.sim.coordinator.etcd_model import EtcdModel
from hastore.sim.coordinator.model_client import ModelClient
from hastore.sim.group.etcd_director import BootClient
from hastore.sim.group.group_cluster import Agent, GroupCluster, set_of
from hastore.sim.group.group_cluster import GroupConfig as SimConfig
from hastore.sim.network import Network
from hastore.sim.seams import run_by_seed
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory
from hastore.sim.trace import Trace
from hastore.status import FlushDiskType, PutMessageStatus

T = TypeVar("T")

TTL_S = 5
WITHIN_S = 60.0  # of virtual time


class Fate(Enum):
    """What becomes of one request."""

    LOST = "lost"  # it is not done, and not answered
    ANSWER_LOST = "answer lost"  # it is done, and not answered
    LATE = "late"  # its sender gives up; then it is done
    REFUSED = "refused"
    FILLS = "fills"  # it is done, and answered as if etcd had been full before


@attrs.define(eq=False, repr=False)
class ScriptedStore:
    """A ``KeyValueStore`` that records what is asked for, and lets a test choose its fate."""

    inner: BootClient
    model: EtcdModel
    asked: list[str] = attrs.field(factory=list)  # "commit leader state", "renew", "read", …
    late_s: float = 3.0
    _fates: list[tuple[str, str, Fate]] = attrs.field(factory=list)

    def next(self, method: str, key: str, *fates: Fate) -> None:
        """Let the next requests by ``method`` that write a key that ends so have these fates."""
        self._fates += [(method, key, fate) for fate in fates]

    def forget_fates(self) -> None:
        """Let all requests be done again."""
        self._fates.clear()

    async def _ask(self, method: str, keys: Sequence[str], ask: Callable[[], Awaitable[T]]) -> T:
        self.asked.append(" ".join((method, *keys)))
        for number, (wanted, key, fate) in enumerate(self._fates):
            if wanted == method and (not key or any(each.endswith(key) for each in keys)):
                del self._fates[number]
                return await self._meet(fate, ask)
        return await ask()

    async def _meet(self, fate: Fate, ask: Callable[[], Awaitable[T]]) -> T:
        if fate is Fate.REFUSED:
            raise CoordinatorRefusedError("etcd: permission denied")
        if fate is Fate.FILLS:
            await ask()
            self.model.fill()
            raise CoordinatorNoSpaceError("etcd: database space exceeded")
        if fate is Fate.ANSWER_LOST:
            await ask()
        elif fate is Fate.LATE:
            self.inner.client.faults = attrs.evolve(
                self.inner.client.faults, late=1.0, late_s=(self.late_s, self.late_s)
            )
            try:
                await ask()
            finally:
                self.inner.client.faults = attrs.evolve(self.inner.client.faults, late=0.0)
        raise CoordinatorUnreachableError("etcd: no answer")

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys below ``prefix``."""
        return await self._ask("read", (prefix,), lambda: self.inner.read(prefix))

    async def commit(self, comparisons: Sequence[Any], writes: Sequence[Any]) -> Outcome:
        """Make all writes if all comparisons hold."""
        keys = [write.key for write in writes]
        return await self._ask("commit", keys, lambda: self.inner.commit(comparisons, writes))

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        return await self._ask("grant", (), lambda: self.inner.grant(ttl_s))

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease."""
        return await self._ask("renew", (), lambda: self.inner.renew(lease_id))

    async def revoke(self, lease_id: int) -> None:
        """End a lease."""
        await self._ask("revoke", (), lambda: self.inner.revoke(lease_id))

    async def alarms(self) -> frozenset[str]:
        """Return what is wrong with etcd."""
        return await self._ask("alarms", (), self.inner.alarms)

    def clocks(self) -> Mapping[str, ServerTime]:
        """Return what the server's clock said last."""
        return self.inner.clocks()

    def changes(self, prefix: str, after_revision: int) -> AbstractAsyncContextManager[Any]:
        """Yield what changes."""
        return self.inner.changes(prefix, after_revision)


@attrs.define(eq=False, repr=False)  # a failed assert would print every byte of every disk
class SimulatedGroup:
    """The group; nodes are named by their ids."""

    cluster: GroupCluster
    model: EtcdModel
    nursery: trio.Nursery
    role_config: RoleConfig
    keys: Keys = attrs.field(factory=lambda: Keys.of("/test", "c1", "g1"))
    neighbour: SimulatedGroup | None = None  # another group of the cluster
    stores: dict[int, ScriptedStore] = attrs.field(factory=dict)  # of the newest processes
    roles: dict[int, RoleService] = attrs.field(factory=dict)
    ended: dict[int, BaseException | None] = attrs.field(factory=dict)  # by itself, and why
    terms: list[tuple[int, int]] = attrs.field(factory=list)  # node id, epoch
    before: Callable[[int, ScriptedStore], None] = lambda _node_id, _store: None

    # -- what the cluster asks -------------------------------------------------------------------

    def role_service_for(self, agent: Agent, env: Env) -> RoleService:
        """Return the part of a process that speaks to etcd."""
        client = BootClient(self.client(agent.node_id), agent.boot)
        store = ScriptedStore(client, self.model)
        self.before(agent.node_id, store)
        self.stores[agent.node_id] = store
        name = self.cluster.config.name
        routes = ClusterRoutes(store, RouteKeys.of(self.keys.base), name)
        neighbours = None if self.neighbour is None else routes
        key_file = self.cluster.config.access.key_file
        config = attrs.evolve(self.role_config, key_file=key_file)
        roles = RoleService(env, store, self.keys, config, neighbours)
        self.roles[agent.node_id] = roles
        return roles

    def serves(self, agent: Agent) -> None:
        """Do nothing."""

    def term_began(self, agent: Agent, master: Master) -> None:
        """Record who began which epoch."""
        self.terms.append((agent.node_id, set_of(master).entry.epoch))

    def role_began(self, agent: Agent, role_node: Master | Slave) -> None:
        """Do nothing."""

    def node_ended(self, node: SimNode, error: BaseException | None) -> None:
        """Record that a node ended by itself."""
        self.ended[self.cluster.id_of(node)] = error

    # -- what a test does ------------------------------------------------------------------------

    def node(self, node_id: int) -> SimNode:
        """Return a host."""
        return self.cluster.node(node_id)

    def start(self, *node_ids: int) -> None:
        """Start nodes; they serve later."""
        for node_id in node_ids:
            self.node(node_id).on_ended = self.node_ended
            self.node(node_id).start(self.nursery)

    def stop(self, node_id: int) -> None:
        """Ask a node to stop."""
        self.node(node_id).node.stop()

    def client(self, node_id: int) -> ModelClient:
        """Return a node's way to etcd."""
        return self.model.client(self.node(node_id).name, timeout_s=1.0)

    @contextlib.asynccontextmanager
    async def to_client_port(
        self, node_id: int, access_key: AccessKey | None = None
    ) -> AsyncIterator[RemotingClient]:
        """Connect to a node's client port, from another host."""
        HOST.set("10.0.0.99")
        async with open_remoting_client(
            (self.node(node_id).host, CLIENT_PORT), access_key=access_key
        ) as client:
            yield client

    def write(self, path: str, data: bytes) -> None:
        """Write a file on the disk of each node."""
        for node in self.cluster.nodes:
            node.live_disk.write_file(path, data)

    def commit(self, key: str, value: bytes) -> None:
        """Write a key, as another than the nodes."""
        self.model.take(lambda: self.model.state.commit([], [Put(key, value)]))

    def commit_change(self, change: Change) -> None:
        """Make a change of ``operations``."""
        self.model.take(lambda: self.model.state.commit(change.comparisons, change.writes))

    def configure(self, config: GroupConfig) -> None:
        """Wish something, as a person does."""
        self.commit(self.keys.config, config.encode())

    # -- what it sees ----------------------------------------------------------------------------

    @property
    def view(self) -> GroupView:
        """What etcd has now."""
        return read_group(self.keys, self.model.state.read(self.keys.base))

    @property
    def starts(self) -> Mapping[int, int]:
        """The start of each member of the SyncStateSet."""
        state = self.view.state
        return {} if state is None else {each.node_id: each.start for each in state.members}

    def masters(self) -> dict[int, Master]:
        """Return the nodes that are masters and have not stepped down."""
        return {
            agent.node_id: master
            for agent, master in self.cluster.masters()
            if not master.has_stepped_down
        }

    async def until(self, holds: Callable[[], object], what: str = "the condition") -> float:
        """Wait until something holds; return how long it took."""
        began = trio.current_time()
        with trio.move_on_after(WITHIN_S):
            while not holds():
                await trio.sleep(0.01)
            return trio.current_time() - began
        raise AssertionError(f"{what} did not come true: {self.view}")

    async def master(self, *, epoch: int = 1, members: int | None = None) -> tuple[int, Master]:
        """Wait for the master of an epoch, and until its set has so many members."""
        count = len(self.cluster.config.ids) if members is None else members

        def is_there() -> bool:
            state = self.view.state
            return (
                state is not None
                and state.epoch == epoch
                and len(state.members) == count
                and [set_of(each).entry.epoch for each in self.masters().values()] == [epoch]
                and all(
                    set_of(each).accepted == state.ids and not set_of(each).missing()
                    for each in self.masters().values()
                )
            )

        await self.until(is_there, f"a master of epoch {epoch} with {count} members")
        ((node_id, master),) = self.masters().items()
        return node_id, master

    async def put(self, master: Master, size: int = 4) -> PutMessageStatus:
        """Put a message of so many bytes; return its status."""
        with trio.fail_after(WITHIN_S):
            return (await master.put(Message("orders", b"b" * size, queue_id=0))).status


def run_group(
    test: Callable[[SimulatedGroup], Awaitable[None]],
    *,
    nodes: int = 3,
    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH,
    starts: bool = True,
    ttl_s: int = TTL_S,
    creates_itself: bool = True,
    listens: bool = False,
    has_neighbour: bool = False,
    mapped_file_size: int = 64 * 1024,
    access: AccessConfig | None = None,
    files: Mapping[str, bytes] | None = None,
    seed: int = 1,
    least: int | None = 1,
) -> None:
    """Run a test in virtual time, with nodes 1 to ``nodes``; blocks.

    ``has_neighbour``: another group like it is in the same cluster.  ``files`` are on the disk of
    each node, for ``access``.  ``least`` is ``min_in_sync_replicas``; None: not set.
    """

    async def main() -> None:
        choices = random.Random(seed)
        network = Network(choices)
        trio.socket.set_custom_socket_factory(SimSocketFactory(network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        config = SimConfig(
            flushes=(flush,) * nodes,
            name="g1",
            in_sync_replicas="all",
            min_in_sync_replicas=least,
            mapped_file_size=mapped_file_size,
            ha_transfer_batch_size=32_768,
            listens=listens,
            access=access or AccessConfig(),
        )
        model = EtcdModel(choices=choices)
        ids = frozenset(config.ids)
        roles = RoleConfig(
            ttl_s=ttl_s,
            initial_ids=ids if creates_itself else None,
            min_in_sync_replicas=least,
        )
        async with trio.open_nursery() as nursery:

            def make(config: SimConfig) -> SimulatedGroup:
                cluster = GroupCluster(config, network, choices, Trace())
                keys = Keys.of("/test", "c1", config.name)
                group = SimulatedGroup(cluster, model, nursery, roles, keys)
                cluster.role_services, cluster.watcher = group, group
                return group

            group = make(config)
            groups = [group]
            if has_neighbour:
                other = make(attrs.evolve(config, name="g2", net="10.0.1"))
                group.neighbour, other.neighbour = other, group
                groups.append(other)
            nursery.start_soon(model.run)
            for each in groups:
                for path, data in (files or {}).items():
                    each.write(path, data)
                if starts:
                    each.start(*config.ids)
            try:
                await test(group)
            finally:
                for each in groups:
                    for node in each.cluster.nodes:
                        if node.is_up:
                            node.kill()
                nursery.cancel_scope.cancel()

    run_by_seed(seed, main)
