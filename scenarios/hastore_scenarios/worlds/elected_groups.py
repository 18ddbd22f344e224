"""Replica groups of a world whose coordinator decides on roles; the world records what it decides.

::

    etcd ──leader key──▶ a new master ──its status: it serves──▶ history: START_SLAVE of the others,
                                                                 START_MASTER

The coordinator names a master, and the node that was named says where its epoch begins.  All other
nodes that run are recorded as its slaves at that moment, which is early: they follow once they have
heard of it.  So the times in which they *could* acknowledge are outer bounds, as the checker needs
them.  A node that is frozen, or does not run, is recorded when it goes on.
"""

from __future__ import annotations

import abc
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, final

import attrs
import trio

from hastore.client.admin import AdminClient
from hastore.cluster import operations
from hastore.concurrency.tcp import describe
from hastore.errors import ConfigError, HastoreError
from hastore.ha.set_rules import default_min_in_sync_replicas
from hastore.status import BrokerRole, FlushDiskType
from hastore.testing.runner import NodeDiedError
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.story.world import GROUP_NAME, STORY_TOPIC, LinkMode, ScenarioFailed
from hastore_scenarios.worlds.cluster import N
from hastore_scenarios.worlds.groups import StagedGroups
from hastore_scenarios.worlds.node_config import ELECTED_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.group_records import GroupView, Leader
    from hastore.config import InSyncReplicas
    from hastore.testing.group import ReplicaGroup
    from hastore_scenarios.story.world import Node
    from hastore_scenarios.worlds.coordinator import StagedCoordinator

_SETTLES_WITHIN_S: Final = 120.0  # for a very busy machine
_ASK_AGAIN_S: Final = 0.1


@final
@attrs.define(eq=False)
class Elections(Generic[N]):
    """What the coordinator has decided for one group."""

    name: str
    group: ReplicaGroup[N]
    epoch: int = attrs.field(default=0, init=False)  # of the newest master that was recorded
    master_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    watching: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def changed(self) -> None:
        """Wake all that wait for another master."""
        changed, self.master_changed = self.master_changed, trio.Event()
        changed.set()


class ElectedGroups(StagedGroups[N]):
    """The nodes, those among them whose roles a coordinator decides; the base of `StagedWorld`."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._coordinator: StagedCoordinator | None = None
        self._elections: dict[str, Elections[N]] = {}  # by the group's name

    @property
    def coordinator(self) -> StagedCoordinator:
        """The etcd that decides on the roles of the groups."""
        assert self._coordinator is not None, "start_group(3, coordinator=1) has one"
        return self._coordinator

    async def start_group(
        self,
        count: int = 3,
        *,
        name: str = GROUP_NAME,
        coordinator: int = 0,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        faulty_disk: bool = False,
        **config: Any,
    ) -> Sequence[N]:
        """Start a replica group, and wait until it is in step; its master is the first."""
        self._check_has_same_coordinator(coordinator)
        if not coordinator:
            return await super().start_group(
                count, name=name, role=role, flush=flush, faulty_disk=faulty_disk, **config
            )
        settings = {**ELECTED_DEFAULTS, **config}
        group = await self._new_group(
            count, settings, name=name, role=role, flush=flush, faulty_disk=faulty_disk
        )
        if config.get("min_in_sync_replicas") is None:
            level: InSyncReplicas = config.get("in_sync_replicas", "all")
            group.min_in_sync_replicas = default_min_in_sync_replicas(frozenset(group.ids), level)
        if self._coordinator is None:
            self._coordinator = await self._make_coordinator(coordinator)
        for node in group.nodes:
            node.coordinator = self._coordinator
        elections = self._elections[name] = Elections(name, group)
        self._nursery.start_soon(self._watch_elections, elections)
        async with trio.open_nursery() as nursery:
            for node in group.nodes:
                nursery.start_soon(self._boot, node)
        master = await self.wait_master(of=group.nodes[0])
        others = [node for node in group.nodes if node is not master]
        for node in others:
            await self.wait_healthy(node)
        return (master, *others)

    def _check_has_same_coordinator(self, servers: int) -> None:
        """Raise ConfigError for a group whose roles another etcd than the others' would decide."""
        if not any(node.group is not None for node in self.nodes.values()):
            return
        known = 0 if self._coordinator is None else self._coordinator.servers
        if servers != known:
            raise ConfigError(
                "the groups of a world have one coordinator, or none",
                hint=f"start_group(3, coordinator={known}, name=…)",
            )

    # -- what a story asks for -------------------------------------------------------------------

    async def wait_master(
        self, epoch: int = 1, *, of: Node | None = None, within_s: float = 60.0
    ) -> N:
        """Wait until a node serves as master of ``epoch``, or of a later one."""
        elections = self._elections_of(of)
        group = elections.group
        with trio.move_on_after(within_s):
            while True:
                master = group.master
                if master is not None and elections.epoch >= epoch:
                    return master
                await elections.master_changed.wait()
        raise ScenarioFailed(
            f"no master of epoch {epoch} within {within_s:g} s; {await self._what_nodes_do(group)}"
        )

    async def wait_routes(
        self, *masters: Node, topic: str = STORY_TOPIC, within_s: float = 60.0
    ) -> None:
        """Wait until every node names these masters, one of each group, to a topic's clients."""
        wanted = {own.group_name: own for own in map(self._node, masters)}
        for node in self.nodes.values():
            if node.coordinator is None or not node.is_reachable:
                continue
            named: dict[str, N | None] = {}
            with trio.move_on_after(within_s):
                while named != wanted:
                    with contextlib.suppress(HastoreError, OSError):
                        named = await self._masters_named(node, topic)
                    await trio.sleep(_ASK_AGAIN_S)
            if named != wanted:
                seen = {group: master and master.name for group, master in named.items()}
                raise ScenarioFailed(f"{node.name}: not within {within_s:g} s; its route: {seen}")

    async def _masters_named(self, node: N, topic: str) -> dict[str, N | None]:
        """Return the master of each group in a node's route, by the group's name."""
        by_address = {describe(each.address()): each for each in self.nodes.values()}
        async with AdminClient.connect(node.clients_at(), connect_timeout_s=5.0) as admin:
            route = await admin.route(topic)
        return {
            broker["brokerName"]: by_address.get(broker["brokerAddrs"].get("0", ""))
            for broker in route["brokerDatas"]
        }

    async def while_master(
        self, act: Callable[[N], Awaitable[None]], *, of: Node | None = None
    ) -> None:
        """Do something with the master until it is done, or there is another master."""
        elections = self._elections_of(of)
        group, changed = elections.group, elections.master_changed
        master = group.master
        if master is None:
            await changed.wait()
            return
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await changed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await act(master)
            nursery.cancel_scope.cancel()

    async def restart(self, node: Node) -> None:
        """Start a node again."""
        own = self._node(node)
        if own.coordinator is None:
            await super().restart(node)
            return
        if own.is_master:
            own.role, own.master = BrokerRole.SLAVE, None  # a start never continues an epoch
        record = self._role_changes(own)
        await self._boot(own)
        if not own.is_master:
            epoch = self._elections_of(own).epoch
            own.told = own.master, epoch
            record(epoch=epoch)

    async def resume(self, node: Node) -> None:
        """Let a node run on: it hears of what it has missed."""
        await super().resume(node)
        own = self._node(node)
        if own.coordinator is not None and not own.is_master:
            self._record_slave(own)

    async def promote(self, slave: Node, **how: Any) -> None:
        """Make a node master, unless a coordinator decides."""
        self._check_decides(slave)
        await super().promote(slave, **how)

    async def follow(self, node: Node, **how: Any) -> None:
        """Let a node follow a master, unless a coordinator decides."""
        self._check_decides(node)
        await super().follow(node, **how)

    async def demote(self, node: Node) -> None:
        """Let a master step down, unless a coordinator decides."""
        self._check_decides(node)
        await super().demote(node)

    def _check_decides(self, node: Node) -> None:
        if self._node(node).coordinator is not None:
            raise ConfigError(
                f"a coordinator decides on the role of {node.name}",
                hint="world.coordinator.change(operations.switchover, …)",
            )

    async def cut_off(self, node: Node, *others: Node) -> None:
        """Let nothing pass between a node of a group and others."""
        own = self._node(node)
        for each in others:
            other = self._node(each)
            await self._part(own, other)
            own.cut_from.add(other.name)
            other.cut_from.add(own.name)
            self._pair_changed(own, other, LinkMode.CUT)

    async def reconnect(self, node: Node) -> None:
        """Let everything pass again between a node and all others."""
        own = self._node(node)
        for name in sorted(own.cut_from):
            other = self.nodes[name]
            await self._unite(own, other)
            own.cut_from.discard(other.name)
            other.cut_from.discard(own.name)
            self._pair_changed(own, other, LinkMode.OPEN)

    def _pair_changed(self, one: N, other: N, mode: LinkMode) -> None:
        one.disturbed()
        other.disturbed()
        if other.master is one:
            one, other = other, one
        text = f"link {one.name} to {other.name}: {mode.value}"
        if one.master is not other:
            self.say(text)
            return
        self.history.event(
            EventKind.LINK, one.name, text, mode=mode.value, flows=mode is LinkMode.OPEN
        )

    async def wait_healthy(self, slave: Node, *, within_s: float = 60.0) -> None:
        """Wait until a node follows a master, and has all that it has."""
        own = self._node(slave)
        if own.coordinator is not None:
            elections = self._elections_of(own)
            with trio.move_on_after(within_s):
                while own.master is None:
                    await elections.master_changed.wait()
        await self._wait_in_step(own, within_s=within_s)

    @abc.abstractmethod
    def say(self, text: str) -> None:
        """Add a sentence to the timeline."""

    @abc.abstractmethod
    async def _wait_in_step(self, slave: N, *, within_s: float) -> None:
        """Wait until a slave is in step with its master."""

    # -- what the coordinator decides ------------------------------------------------------------

    async def _watch_elections(self, elections: Elections[N]) -> None:
        """Record each master that the coordinator names, once it serves."""
        known_epoch = 0
        seen_s = self.now_s  # when the next master was not known yet
        asking = trio.CancelScope()
        with elections.watching:
            async with (
                trio.open_nursery() as nursery,
                contextlib.aclosing(self.coordinator.views(elections.name)) as views,
            ):
                async for view in views:
                    leader = view.leader
                    if leader is not None and leader.epoch > known_epoch:
                        known_epoch = leader.epoch
                        asking.cancel()
                        asking = trio.CancelScope()
                        record = partial(self._record_when_it_serves, elections, leader, seen_s)
                        nursery.start_soon(record, asking)
                    seen_s = self.now_s

    async def _record_when_it_serves(
        self, elections: Elections[N], leader: Leader, seen_s: float, scope: trio.CancelScope
    ) -> None:
        group = elections.group
        node = next(each for each in group.nodes if each.node_id == leader.holder.node_id)

        def serves(status: NodeStatus) -> bool:
            is_master = status.role == group.role.value and status.state == "serving"
            return is_master and status.epoch == leader.epoch and status.sync_state is not None

        with scope, contextlib.suppress(NodeDiedError, TimeoutError):
            what = f"it is master of epoch {leader.epoch}"
            status = await node.waited(serves, what, within_s=_SETTLES_WITHIN_S)
            self._record_elected(elections, node, status, seen_s)

    def _record_elected(
        self, elections: Elections[N], master: N, status: NodeStatus, seen_s: float
    ) -> None:
        assert status.epoch is not None, "it serves"
        assert status.sync_state is not None, "it serves"
        group = elections.group
        elections.epoch = status.epoch
        for node in group.nodes:
            if node is not master:
                node.role, node.master = BrokerRole.SLAVE, master
                if node.is_reachable:
                    self._record_slave(node, seen_s)
        master.role, master.master, master.told = group.role, None, None
        self._disturb(master)
        self._record_master(
            master,
            seen_s,
            epoch=status.epoch,
            epoch_start=status.epoch_start_offset or 0,
            members=frozenset(status.sync_state.members),
        )
        elections.changed()

    def _record_slave(self, node: N, begun_s: float | None = None) -> None:
        """Record that a node which runs follows the master, unless that is known."""
        epoch = self._elections_of(node).epoch
        if node.told == (node.master, epoch):
            return
        node.told = node.master, epoch
        self._role_changes(node, begun_s)(epoch=epoch)

    def _nodes_in_step(self, master: N, status: NodeStatus) -> list[N]:
        found = super()._nodes_in_step(master, status)
        if master.coordinator is None:
            return found
        return [
            node for node in found if node.master is master and master.name not in node.cut_from
        ]

    # -- the end ---------------------------------------------------------------------------------

    async def _rejoin_all(self) -> None:
        """Let all nodes of groups that run follow their masters."""
        if self._coordinator is None:
            await super()._rejoin_all()
            return
        for node in self.nodes.values():
            await self.reconnect(node)
        await self.coordinator.heal()
        for elections in self._elections.values():
            if any(node.is_running for node in elections.group.nodes):
                await self.coordinator.change(operations.resume, group=elections.name)
                await self._settle_elections(elections)
        for elections in self._elections.values():
            elections.watching.cancel()

    async def _settle_elections(self, elections: Elections[N]) -> None:
        """Wait until all nodes that run are in step with a master.  Raises ScenarioFailed."""

        def leads(view: GroupView) -> bool:
            return view.leader is not None and self._leads(elections, view.leader)

        await self.coordinator.wait_until(
            "a master that runs", leads, group=elections.name, within_s=_SETTLES_WITHIN_S
        )
        for node in elections.group.nodes:
            if node.is_running and not node.is_master:
                await self.wait_healthy(node, within_s=_SETTLES_WITHIN_S)

    def _leads(self, elections: Elections[N], leader: Leader) -> bool:
        master = elections.group.master
        return (
            master is not None
            and master.node_id == leader.holder.node_id
            and leader.epoch == elections.epoch
            and master.is_running
        )

    # -- inside ----------------------------------------------------------------------------------

    def _elections_of(self, node: Node | None) -> Elections[N]:
        """Return those of a node's group; None: of the first group."""
        if node is not None:
            return self._elections[self._node(node).group_name]
        for first in self._elections.values():
            return first
        raise ConfigError("no coordinator decides here", hint="start_group(3, coordinator=1)")

    async def _what_nodes_do(self, group: ReplicaGroup[N]) -> str:
        found = []
        for node in group.nodes:
            doing = "does not run"
            if node.is_running:
                with trio.move_on_after(1.0), contextlib.suppress(HastoreError, OSError):
                    status = await node.asked()
                    doing = "" if status.coordinator is None else status.coordinator.doing
            found.append(f"{node.name}: {doing}")
        return "; ".join(found)

    @abc.abstractmethod
    async def _make_coordinator(self, servers: int) -> StagedCoordinator:
        """Return a coordinator that runs.  Raises ScenarioSkipped where there is none."""

    @abc.abstractmethod
    async def _part(self, one: N, other: N) -> None:
        """Let nothing pass between two nodes.  Raises ScenarioSkipped where that cannot be."""

    @abc.abstractmethod
    async def _unite(self, one: N, other: N) -> None:
        """Let everything pass between two nodes."""
