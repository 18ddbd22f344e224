"""Roles by a coordinator: what the simulator sees of them, and the faults of the coordinator.

::

    RoleService of each node ──▶ BootClient ──▶ EtcdModel ──▶ ``state``, as the oracles read it

Unlike the ``Controller`` it decides nothing: the nodes do.  A person is played here: who removes a
node from the set, or wishes a switchover.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import attrs
import trio

from hastore.cluster import operations
from hastore.cluster.group_records import (
    EpochRecord,
    GroupConfig,
    Keys,
    Leader,
    Registration,
    Switchover,
    read_group,
)
from hastore.cluster.group_records import GroupState as AgreedState
from hastore.cluster.key_value_store import Absent, Delete, Put, Unchanged
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import RoleService
from hastore.concurrency.lease import margin_s
from hastore.errors import CoordinatorUnreachableError, OperationRefusedError
from hastore.ha.set_rules import default_min_in_sync_replicas
from hastore.sim.coordinator.etcd_model import EtcdModel
from hastore.sim.coordinator.model_client import LinkFaults
from hastore.sim.group.controller import GroupState, Member
from hastore.sim.group.group_cluster import GROUP, epoch_of
from hastore.sim.host import START_MS
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from hastore.broker.node.master import Master
    from hastore.broker.node.master_store import Term
    from hastore.cluster.group_records import GroupView, Incarnation
    from hastore.cluster.group_records import Member as Published
    from hastore.cluster.key_value_store import Lease, Outcome, ServerTime, Snapshot
    from hastore.env.interface import Env
    from hastore.ha.set_proposal import Coordinator
    from hastore.sim.coordinator.etcd_state import EtcdState
    from hastore.sim.coordinator.model_client import ModelClient
    from hastore.sim.group.group_cluster import Agent, GroupCluster

T = TypeVar("T")

_TTLS_S: Final = (3, 5, 10)
_DRIFT: Final = 0.01  # of a clock
_HALF: Final = 0.5
_PATIENCE_S: Final = 10.0  # with an election in which nobody may stand
_LOOKS_S: Final = 3.0  # at a group in which nobody may stand before somebody has looked
_BACKUP_EVERY_S: Final = 2.0
_BACKUPS_MAX: Final = 8
_KNOWN_AFTER_S: Final = 1.0
_NO_BOOT: Final = 0  # the number of a process that is none of the node's


class Process(Protocol):
    """What runs a node: a boot of a simulated host."""

    @property
    def is_over(self) -> bool:
        """Whether it is dead."""


@final
@attrs.frozen(eq=False)
class BootClient:
    """The coordinator as one process of a node reaches it: not at all, once the process is dead."""

    client: ModelClient
    boot: Process
    # Called with a lease that was granted or renewed, when that was asked for, and its time.
    on_renewed: Callable[[int, float, float], None] = lambda *_renewal: None
    # Called with the writes of a transaction before it is sent.
    on_commit: Callable[[Sequence[Put | Delete]], None] = lambda _writes: None
    # Called with what was read, and when that was asked for.
    on_read: Callable[[Snapshot, float], None] = lambda *_read: None

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self.boot.is_over:
            raise CoordinatorUnreachableError("this process is dead")
        return await ask()

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys below ``prefix``."""
        asked_at = trio.current_time()
        snapshot = await self._ask(lambda: self.client.read(prefix))
        self.on_read(snapshot, asked_at)
        return snapshot

    async def commit(self, comparisons: Sequence[Any], writes: Sequence[Any]) -> Outcome:
        """Make all writes if all comparisons hold."""
        self.on_commit(writes)
        return await self._ask(lambda: self.client.commit(comparisons, writes))

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        asked_at = trio.current_time()
        lease = await self._ask(lambda: self.client.grant(ttl_s))
        self.on_renewed(lease.lease_id, asked_at, lease.ttl_s)
        return lease

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease."""
        asked_at = trio.current_time()
        granted_s = await self._ask(lambda: self.client.renew(lease_id))
        if granted_s is not None:
            self.on_renewed(lease_id, asked_at, granted_s)
        return granted_s

    async def revoke(self, lease_id: int) -> None:
        """End a lease."""
        await self._ask(lambda: self.client.revoke(lease_id))

    async def alarms(self) -> frozenset[str]:
        """Return what is wrong with etcd itself."""
        return await self._ask(self.client.alarms)

    def clocks(self) -> Mapping[str, ServerTime]:
        """Return what the server's clock said last."""
        return self.client.clocks()

    def changes(self, prefix: str, after_revision: int) -> AbstractAsyncContextManager[Any]:
        """Yield what changes."""
        return self.client.changes(prefix, after_revision)


@final
@attrs.define(eq=False)
class EtcdDirector:
    """The coordinator of a simulated group, and what it says."""

    cluster: GroupCluster
    choices: Random
    # Called before an epoch's state is given up, with what nodes had published by then.
    on_deposed: Callable[[int, GroupState, Mapping[int, tuple[int, int]]], None]
    on_loss: Callable[[int], None]  # a person has elected a node that may lack something
    has_lost: Callable[[int], bool]  # whether a node may lack what it acknowledged
    is_all_lost: Callable[[GroupState], bool]  # whether no member of a set has kept all
    is_foreign: Callable[[int], bool]  # whether a node has another group's log
    is_edited: Callable[[int], bool]  # whether a repair has put other bytes into its log
    failsafe: bool = True  # whether masters ask for promises while etcd is silent
    model: EtcdModel = attrs.field(init=False)
    keys: Keys = attrs.field(init=False)
    is_calm: bool = attrs.field(default=False, init=False)  # all heals
    is_joining: bool = attrs.field(default=False, init=False)  # a fault lets a node join late
    is_out: bool = attrs.field(default=False, init=False)  # it stays down until ``end_outage``
    # The members of changes that are on their way; unknown here.
    flying: list[frozenset[int]] = attrs.field(factory=list, init=False)
    roles: dict[int, RoleService] = attrs.field(factory=dict, init=False)  # by node id, the newest
    # Nodes whose directories are not those that etcd knows: a set.
    may_be_refused: dict[int, None] = attrs.field(factory=dict, init=False)
    # Nodes whose tokens a fault has made void, with their newest boot by then: a start of one that
    # the state does not name yet may not be recognised.
    _void_since: dict[int, int] = attrs.field(factory=dict, init=False)
    ttl_s: int = attrs.field(init=False)  # the longest of all nodes
    ttls_s: dict[int, int] = attrs.field(factory=dict, init=False)  # of nodes with another one
    _broken_rule: tuple[str, str] | None = attrs.field(default=None, init=False)
    _boots: dict[tuple[int, str, int], int] = attrs.field(factory=dict, init=False)
    _state: GroupState = attrs.field(factory=GroupState, init=False)
    _state_value: tuple[int, int] = attrs.field(
        default=(0, 0), init=False
    )  # its revision, the key's
    _leases: dict[int, set[int]] = attrs.field(factory=dict, init=False)  # of the key, by epoch
    # Until when their holders may decide, on their own clocks, by lease.
    _deadlines: dict[int, float] = attrs.field(factory=dict, init=False)
    # Revision, and the node's newest process, as a person last removed it; by node id.
    _removed: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _backups: deque[EtcdState] = attrs.field(factory=lambda: deque(maxlen=_BACKUPS_MAX), init=False)
    # Whether etcd has gone back in time, and no person has put it right since.
    _is_restored: bool = attrs.field(default=False, init=False)
    _restored_at: float = attrs.field(default=0.0, init=False)  # when it last did
    # Whether a process that had seen it later has read it since.
    _is_noticed: bool = attrs.field(default=False, init=False)
    # Cluster id and revision: the newest that a process has read, or that its directory knew.
    _newest: dict[Process, tuple[int, int]] = attrs.field(factory=dict, init=False)
    # What the group had agreed on before, until what etcd has names nobody else as a member, or has
    # a later epoch: its master's log is held against what was acknowledged, as ever.
    _before_restore: GroupState | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Choose the coordinator's ways."""
        self.ttl_s = self.choices.choice(_TTLS_S)
        self.model = EtcdModel(
            choices=self.choices, clock_rate=self.choices.uniform(1 - _DRIFT, 1 + _DRIFT)
        )
        self.keys = Keys.of("/sim", "c1", GROUP)
        for node in self.cluster.nodes:
            node.wall_clock.rate = self.choices.uniform(1 - _DRIFT, 1 + _DRIFT)

    # -- the nodes' side -------------------------------------------------------------------------

    def role_service_for(self, agent: Agent, env: Env) -> RoleService:
        """Return the part of a node's process that its coordinator speaks to."""
        roles = self.roles[agent.node_id] = self._role_service(
            agent, env, lambda _writes: self._knows(agent, agent.boot.number)
        )
        return roles

    def role_service_of_copy(
        self, agent: Agent, env: Env, on_commit: Callable[[Sequence[Put | Delete]], None]
    ) -> RoleService:
        """Return the same for a second process on a copy of a node's directory.

        ``on_commit`` is called with the writes of each transaction before it is sent.
        """

        def commits(writes: Sequence[Put | Delete]) -> None:
            self._knows(agent, _NO_BOOT)
            on_commit(writes)

        return self._role_service(agent, env, commits)

    def _role_service(
        self, agent: Agent, env: Env, on_commit: Callable[[Sequence[Put | Delete]], None]
    ) -> RoleService:
        client = self.model.client(agent.sim_node.name)
        config, clock = self.cluster.config, agent.sim_node.wall_clock
        client.now = clock.boot_s
        own_ttl_s = self.ttls_s.get(agent.node_id, self.ttl_s)

        def renewed(lease_id: int, asked_at: float, granted_s: float) -> None:
            ttl_s = min(float(own_ttl_s), granted_s)
            until = asked_at * clock.rate + ttl_s - margin_s(ttl_s)
            self._deadlines[lease_id] = max(self._deadlines.get(lease_id, -math.inf), until)

        def read(snapshot: Snapshot, asked_at: float) -> None:
            self._read_by(agent.boot, snapshot, asked_at)

        return RoleService(
            env,
            BootClient(client, agent.boot, on_renewed=renewed, on_commit=on_commit, on_read=read),
            self.keys,
            RoleConfig(
                ttl_s=own_ttl_s,
                initial_ids=frozenset(config.ids),
                acks=str(config.in_sync_replicas),
                failsafe=self.failsafe,
                min_in_sync_replicas=config.min_in_sync_replicas,
            ),
        )

    def serves(self, agent: Agent) -> None:
        """Record what the directory of a process knows of the coordinator."""
        identity = agent.node.identity
        assert identity is not None
        mark = identity.current.coordinator
        if mark is not None:
            self._newest.setdefault(agent.boot, (mark.cluster_id, mark.revision))

    def _knows(self, agent: Agent, boot: int) -> None:
        """Record which process a start of a directory is, before etcd is told of it."""
        identity = agent.node.identity
        assert identity is not None, "it serves"
        current = identity.current
        self._boots[current.node_id, current.uuid, current.starts] = boot

    def coordinator_for(self, agent: Agent, term: Term) -> Coordinator:
        """Do nothing: the role services make them."""
        raise AssertionError((agent, term))

    def term_began(self, agent: Agent, master: Master) -> None:
        """Do nothing: the nodes see to it."""

    def _read_by(self, process: Process, snapshot: Snapshot, asked_at: float) -> None:
        """Record what a process has read."""
        newest = self._newest.get(process)
        if newest is not None and self._is_restored and asked_at >= self._restored_at:
            cluster_id, revision = newest
            self._is_noticed |= snapshot.cluster_id != cluster_id or snapshot.revision < revision
        if newest is None or snapshot.cluster_id != newest[0] or snapshot.revision > newest[1]:
            self._newest[process] = snapshot.cluster_id, snapshot.revision

    @property
    def is_unnoticed(self) -> bool:
        """Whether etcd has gone back in time, and who knew it later has not read it since."""
        return self._is_restored and not self._is_noticed

    # -- what it says ----------------------------------------------------------------------------

    @property
    def view(self) -> GroupView:
        """What the coordinator has now."""
        return read_group(self.keys, self.model.state.read(self.keys.base))

    @property
    def state(self) -> GroupState:
        """What the group has agreed on, as the oracles read it."""
        items = self.model.state.items
        state, leader = items.get(self.keys.state), items.get(self.keys.leader)
        revision = 0 if state is None else state.mod_revision
        value = revision, 0 if leader is None else leader.mod_revision
        if value != self._state_value:
            self._state_value = value
            if leader is not None and leader.lease is not None:
                epoch = Leader.decode(leader.key, leader.value).epoch
                self._leases.setdefault(epoch, set()).add(leader.lease)
            before = self._before_restore
            if before is not None and (self._is_within(before) or self._is_later(before)):
                self._before_restore = None
            if self._before_restore is not None:
                return self._before_restore
            former, data = self._state, None if state is None else state.value
            self._state = self._read(data, revision, is_electing=leader is None)
            if former.epoch != self._state.epoch and former.epoch:
                self._check_promises(self._state)
                self._check_kept_members(former)
                self.on_deposed(former.epoch, former, self._ranks_in(former.revision))
        return self._before_restore or self._state

    def promised_s(self, node_id: int) -> float:
        """Return for how long a node may decide by promises alone; negative: not any more."""
        now = self.cluster.node(node_id).wall_clock.boot_s()
        return self.roles[node_id].promised_deadline - now

    def _check_promises(self, state: GroupState) -> None:
        """Note that a node was elected while all members had promised its predecessor to wait.

        But not one that has joined since then, and has promised nothing, if its predecessor's lease
        was to last as long: etcd has ended that lease early.
        """
        if self._why_began(state.epoch) != "election" or self._is_restored:
            return
        for agent, master in self.cluster.masters():
            left_s = self.promised_s(agent.node_id)
            is_other = agent.node_id != state.master and not master.has_stepped_down
            is_bound = state.master in self.roles[agent.node_id].promised_by
            is_bound |= self._lease_left_s(agent, epoch_of(master)) < left_s
            if is_other and left_s > 0 and is_bound:
                detail = f"node-{state.master} was elected, and {agent.sim_node.name} may decide"
                self._broken_rule = ("promise", f"{detail} by promises for {left_s:.3f} s")

    def _why_began(self, epoch: int) -> str | None:
        """Return how an epoch began; None if etcd does not say."""
        item = self.model.state.items.get(self.keys.history(epoch))
        return None if item is None else EpochRecord.decode(item.key, item.value).why

    def _check_kept_members(self, former: GroupState) -> None:
        """Note that an election has left a member out of the set that stood in it.

        Only where the winner must have known: its way to etcd was well, also when it asked to be
        elected.  A person who accepts a loss names one member alone.
        """
        state, election, winner = self._state, former.revision, self._state.master
        if winner is None or self._is_restored:
            return
        now, seen, view = trio.current_time(), self.roles[winner].view, self.view
        client, elected_at = self.client_of(f"node-{winner}"), self.model.applied_at
        if client.is_troubled or client.slow_at >= elected_at.get(state.revision, now):
            return
        if self._why_began(state.epoch) != "election":
            return
        for node_id, named in former.members.items():
            item = self.model.state.items.get(self.keys.member(node_id))
            member = view.members.get(node_id)
            if item is None or member is None or node_id in state.members or seen is None:
                continue
            is_known = seen.revision >= item.mod_revision
            is_known &= now >= self.model.applied_at.get(item.mod_revision, now) + _KNOWN_AFTER_S
            is_same = member.node.uuid == named.uuid and member.node.start >= named.start
            if self._may_be_left_out(member, named):
                continue
            if is_known and is_same and member.election == election and member.end >= self.floor:
                self._broken_rule = (
                    "dropped",
                    f"node-{winner} was elected without node-{node_id}, a member that stood",
                )

    def _may_be_left_out(self, member: Published, named: Member) -> bool:
        """Whether a set is better without a member: it cannot store, and enough others are in it.

        Only if it has proved that it has all that it acknowledged.
        """
        config = self.cluster.config
        least = config.min_in_sync_replicas
        if least is None:
            least = default_min_in_sync_replicas(self.registered, config.in_sync_replicas)
        is_proven = member.kept_since <= named.start and member.unverified is None
        return not member.can_store and is_proven and len(self._state.members) >= least

    def check_step(self) -> None:
        """Check that promises were kept, and members.  Raises ViolationError."""
        if self._broken_rule is not None:
            raise ViolationError(*self._broken_rule)

    def _ranks_in(self, election: int) -> dict[int, tuple[int, int]]:
        """Return last epoch and end of each log that was published for an election."""
        return {
            node_id: member.log_rank
            for node_id, member in self.view.members.items()
            if member.election == election
        }

    def _is_within(self, before: GroupState) -> bool:
        """Whether etcd has the same term, and no members but those of ``before``."""
        item = self.model.state.items.get(self.keys.state)
        if item is None:
            return False
        agreed = AgreedState.decode(item.key, item.value)
        master = None if agreed.master is None else agreed.master.node_id
        is_same_term = (agreed.epoch, master) == (before.epoch, before.master)
        return is_same_term and agreed.ids <= before.members.keys()

    def _is_later(self, before: GroupState) -> bool:
        """Whether etcd has a later epoch than ``before``."""
        item = self.model.state.items.get(self.keys.state)
        return item is not None and AgreedState.decode(item.key, item.value).epoch > before.epoch

    def _read(self, data: bytes | None, revision: int, *, is_electing: bool) -> GroupState:
        if data is None:
            return GroupState()
        agreed, former = AgreedState.decode(self.keys.state, data), self._state.members
        return GroupState(
            revision=revision,
            epoch=agreed.epoch,
            master=None if agreed.master is None else agreed.master.node_id,
            members={each.node_id: self._member(each, former) for each in agreed.members},
            is_electing=is_electing,
        )

    def _member(self, named: Incarnation, former: Mapping[int, Member]) -> Member:
        """Return a member that the state names: the same process as long as it names it.

        A copy of a directory may begin the same start once more, as another process.
        """
        known = former.get(named.node_id)
        if known is not None and (known.uuid, known.start) == (named.uuid, named.start):
            return known
        boot = self._boots[named.node_id, named.uuid, named.start]
        return Member(named.uuid, named.start, boot)

    def _lease_left_s(self, agent: Agent, epoch: int) -> float:
        """Return for how long a master may decide by its leases of the leader key alone."""
        now, leases = agent.sim_node.wall_clock.boot_s(), self._leases.get(epoch, set())
        return (
            max((self._deadlines.get(each, -math.inf) for each in leases), default=-math.inf) - now
        )

    def why_not_deciding(self, agent: Agent, epoch: int) -> str | None:
        """Return why the master of an epoch may decide nothing; None if it may.

        It may while it has the leader key, and its deadline has not passed.  The deadline counts
        from the moment before a renewal was sent.  None, too, if etcd has not kept what it said of
        a lease of that key, or while the members have promised and nobody has the key.
        """
        now = agent.sim_node.wall_clock.boot_s()
        promised_until = self.roles[agent.node_id].promised_deadline
        leases = self._leases.get(epoch, set())
        left_s = max(promised_until - now, self._lease_left_s(agent, epoch))
        if left_s <= 0:
            return f"its deadline has passed by {-left_s:.3f} s"
        if self._is_restored:
            return None
        item = self.model.state.items.get(self.keys.leader)
        leader = None if item is None else Leader.decode(item.key, item.value)
        holder = None if leader is None else leader.holder
        if holder is not None and leader is not None and leader.epoch == epoch:
            number = self._boots.get((holder.node_id, holder.uuid, holder.start))
            if (holder.node_id, number) == (agent.node_id, agent.boot.number):
                return None
        if not leases.isdisjoint(self.model.broken_leases):
            return None
        if leader is None and now < promised_until:
            return None
        return "its lease is over" if leader is None else f"{holder} leads epoch {leader.epoch}"

    # -- a person --------------------------------------------------------------------------------

    def want_election(self) -> bool:
        """Wish another master, by a switchover or by ending the lease of this one."""
        view = self.view
        state, leader = view.state, view.leader
        if state is None or leader is None or view.leader_lease is None or self.is_out:
            return False
        others = sorted(state.ids - {leader.holder.node_id})
        if self.choices.random() < _HALF and others:
            wish = Switchover(from_epoch=leader.epoch, to_id=self.choices.choice(others))
            self._write_config(view, attrs.evolve(view.config, switchover=wish))
        else:
            self.model.end_lease_early(view.leader_lease)
        return True

    def _write_config(self, view: GroupView, config: GroupConfig) -> None:
        key, revision = self.keys.config, view.config_revision
        comparison = Unchanged(key, revision) if revision else Absent(key)
        self.model.take(lambda: self.model.state.commit([comparison], [Put(key, config.encode())]))

    @property
    def registered(self) -> frozenset[int]:
        """The ids of the group, as the coordinator has them."""
        item = self.model.state.items.get(self.keys.state)
        return frozenset() if item is None else AgreedState.decode(item.key, item.value).registered

    def remove(self, node_id: int) -> None:
        """Take a node out of the set, before its directory is emptied, and forget the directory."""
        self._backups.clear()  # they know another directory by this id
        view, keys = self.view, self.keys
        writes: list[Put | Delete] = [Delete(keys.registration(node_id))]
        if node_id in view.members:
            writes.append(Delete(keys.member(node_id)))
        state = view.state
        if state is not None and node_id in state.registered:
            members = tuple(each for each in state.members if each.node_id != node_id)
            ids = state.registered - {node_id}
            changed = attrs.evolve(state, members=members, proposal=None, registered=ids)
            writes.append(Put(keys.state, changed.encode()))
        self.model.make_room()
        self.model.state.commit([], writes)
        self.model.take(lambda: None)
        self._removed[node_id] = self.model.state.revision, self.cluster.node(node_id).boots

    def was_registered_late(self, node_id: int) -> bool:
        """Whether what a dead process had asked registered a node after it was removed."""
        item = self.model.state.items.get(self.keys.registration(node_id))
        if item is None or node_id not in self._removed:
            return False
        known, (revision, boots) = Registration.decode(item.key, item.value), self._removed[node_id]
        boot = self._boots.get((node_id, known.uuid, known.start), math.inf)
        return item.create_revision > revision and boot <= boots

    def went_back(self, node_id: int) -> None:
        """Record that an older copy of a node's directory is in its place.

        Each start of it may be refused from now on, as long as an earlier one may run.
        """
        self._backups.clear()  # they know the copy's past as the present
        self.may_be_refused[node_id] = None
        self._void_token(node_id)

    def lost_id(self, node_id: int) -> None:
        """Record that another process than the node's has its id now."""
        self.may_be_refused[node_id] = None
        self._void_token(node_id)

    def _void_token(self, node_id: int) -> None:
        self._void_since[node_id] = self.cluster.node(node_id).boots

    def lose_claim(self, node_id: int) -> None:
        """Let etcd lose the claim of a node's id, and nothing else, as by ``etcdctl del``."""
        self.model.make_room()
        self.model.state.commit([], [Delete(self.keys.registration(node_id))])
        self.model.take(lambda: None)

    def is_registered(self, node_id: int, values: Collection[bytes]) -> bool:
        """Whether a node's id is claimed by one of the processes that would write ``values``."""
        item = self.model.state.items.get(self.keys.registration(node_id))
        return item is not None and item.value in values

    @property
    def floor(self) -> int:
        """The confirm offset in the state: no log that ends below it has all that counts."""
        item = self.model.state.items.get(self.keys.state)
        return 0 if item is None else AgreedState.decode(item.key, item.value).confirm_offset

    @property
    def is_trusted(self) -> bool:
        """Whether etcd has not gone back in time, or a person has put that right."""
        return not self._is_restored and self.view.config.alarm is None

    # -- etcd goes back in time ------------------------------------------------------------------

    def restorable(self) -> list[EtcdState]:
        """Return the backups to which etcd can be restored so that a node knows better.

        None before a person has put an earlier one right.
        """
        is_well = self.model.is_running and self.view.config.alarm is None
        if not is_well or self._is_restored or self.is_calm:
            return []
        known = [
            roles.view.revision
            for node_id, roles in self.roles.items()
            if self._is_well(node_id) and roles.is_reachable and roles.view is not None
        ]
        newest = max(known, default=0)
        return [each for each in self._backups if each.revision < newest]

    def _is_well(self, node_id: int) -> bool:
        """Whether a node serves, is not stopped, and reaches etcd."""
        node, agent = self.cluster.node(node_id), self.cluster.agent(node_id)
        return (
            agent is not None and node.frozen is None and not self.client_of(node.name).is_troubled
        )

    def restore(self, backup: EtcdState, *, as_other_cluster: bool) -> None:
        """Put a backup in place of what etcd has; it is stopped."""
        before = attrs.evolve(self.state, is_electing=False)
        self._is_restored, self._is_noticed = True, False
        self._restored_at = trio.current_time()
        for leases in self._leases.values():
            self.model.broken_leases |= leases
        self.model.restore(backup, as_other_cluster=as_other_cluster)
        self._backups.clear()
        for node_id in self.cluster.config.ids:
            self._void_token(node_id)
        # A backup that has what the group had agreed on is not in the past for anybody.
        self._before_restore = None if self._is_within(before) else before

    async def _look_after_alarms(self) -> None:
        """Put a group right in which nobody may stand: the newest log of all nodes counts."""
        since: float | None = None
        while True:
            await trio.sleep(0.5)
            view, ids = self.view, self.cluster.config.ids
            if view.config.alarm is None or not self.model.is_running or self.model.is_full:
                since = None
                continue
            is_whole = view.members.keys() == set(ids) and all(map(self._is_well, ids))
            is_led = view.leader is not None
            has_master = bool(self.cluster.masters())
            if not is_whole or is_led is not has_master:
                since = None
            elif since is None:
                since = trio.current_time()
            elif trio.current_time() >= since + _LOOKS_S:
                since = None
                if not is_led:
                    is_all_lost = self.is_all_lost(self._before_restore or self.state)
                    own = [each for each in ids if not self.is_foreign(each)]
                    change = self._begin_with_newest(view, own, is_all_lost=is_all_lost)
                    ask = partial(self.model.state.commit, change.comparisons, change.writes)
                    self.model.take(ask)
                    begun = self.view.state
                    if is_all_lost and begun is not None and len(begun.members) == 1:
                        self.on_loss(begun.members[0].node_id)  # the best that is left
                self.cluster.trace.add("world", f"somebody has looked: {view.config.alarm}")
                self._before_restore, self._is_restored = None, False
                self._state_value = (-1, -1)  # read it again
                self._write_config(self.view, GroupConfig())

    def _begin_with_newest(
        self, view: GroupView, ids: Sequence[int], *, is_all_lost: bool
    ) -> operations.Change:
        """Return the state with the newest log, or, if it is not verified, with that of others.

        ``is_all_lost``: no member has kept all, so the best that is left may lack something.
        """
        try:
            return operations.init(self.keys, view, ids, force=True)
        except OperationRefusedError:
            ranks = {node_id: view.members[node_id].log_rank for node_id in ids}
            verified = [each for each in ids if view.members[each].unverified is None]
            newest = {each for each in ids if ranks[each] == max(ranks.values())}
            if newest <= {*verified}:
                raise  # it is refused for another reason
            best = max(verified or ids, key=ranks.__getitem__)
            if is_all_lost:
                self.on_loss(best)
            return operations.init(self.keys, view, verified or [best], force=True)

    async def _back_up(self) -> None:
        while True:
            await trio.sleep(_BACKUP_EVERY_S)
            if self.model.is_running and self.state.epoch and not self._is_restored:
                self._backups.append(self.model.backup())

    # -- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.model.run)
            nursery.start_soon(self._watch_over)
            nursery.start_soon(self._back_up)
            nursery.start_soon(self._look_after_alarms)

    async def _watch_over(self) -> None:
        """Elect a node that may lack something, where no member is left that has kept all."""
        since: float | None = None
        while True:
            await trio.sleep(1.0)
            state = self.state
            members = state.members
            # With a member that is not recognised none that is unproven is elected, even if it has
            # kept everything.
            disowned = [each for each, named in members.items() if self._is_disowned(each, named)]
            is_stuck = state.is_electing and all(
                self.has_lost(each) or each in disowned or (disowned and self._is_unproven(each))
                for each in members
            )
            nodes = [self.cluster.agent(node_id) for node_id in members]
            if not members or not is_stuck or None in nodes or self.model.is_full:
                since = None
            elif since is None:
                since = trio.current_time()
            elif trio.current_time() > since + _PATIENCE_S:
                since = None
                self._accept_loss()

    def _is_unproven(self, node_id: int) -> bool:
        """Whether a member itself says that it may lack something since the state named it."""
        view = self.view
        said = view.members.get(node_id)
        named = None if view.state is None else view.state.member(node_id)
        return said is not None and named is not None and said.kept_since > named.start

    def _is_disowned(self, node_id: int, named: Member) -> bool:
        """Whether a member is not recognised because of a fault: only an operator names it.

        Not if its token is good as far as the world knows, whatever the member says.
        """
        said = self.view.members.get(node_id)
        if said is None or said.disowned_in is None or node_id not in self._void_since:
            return False
        return said.disowned_in > named.start and named.boot <= self._void_since[node_id]

    def _accept_loss(self) -> None:
        """Name the node with the newest log, as an operator does; at best one not repaired."""
        view, state = self.view, self.state
        present = [view.members[each] for each in state.members if each in view.members]
        if len(present) < len(state.members) or view.state is None:
            return
        best = max(present, key=lambda e: (not self.is_edited(e.node.node_id), *e.log_rank))
        change = operations.failover(
            self.keys, view, best.node.node_id, at_ms=START_MS, accept_loss=True
        )
        self.on_loss(best.node.node_id)
        self.model.take(partial(self.model.state.commit, change.comparisons, change.writes))

    async def proposed(self, node_id: int) -> None:
        """Wait until a master proposes that a node joins its set."""
        raise AssertionError(node_id)

    def calm_down(self) -> None:
        """Let the coordinator be reached by all from now on."""
        self.is_calm = True
        self.start_again(0.0)
        self.model.make_room()
        for node in self.cluster.nodes:
            self.client_of(node.name).heal()

    def start_again(self, extend_s: float) -> None:
        """Start the coordinator, if it is stopped, and no outage lasts longer."""
        if not self.model.is_running and not self.is_out:
            self.model.start(extend_s=extend_s)

    def begin_outage(self) -> None:
        """Stop the coordinator; no fault starts it again."""
        self.is_out = True
        self.model.stop()

    def end_outage(self) -> None:
        """Start the coordinator again."""
        self.is_out = False
        self.start_again(0.0)

    def client_of(self, name: str) -> ModelClient:
        """Return a node's way to the coordinator."""
        return self.model.client(name)

    def lossy(self) -> LinkFaults:
        """Return faults of a bad network."""
        choices = self.choices
        return LinkFaults(
            delay_s=(0.001, choices.choice((0.01, 0.5, 3.0))),
            watch_delay_s=(0.001, choices.choice((0.01, 2.0, 10.0))),
            request_lost=choices.choice((0.0, 0.2, 0.5)),
            answer_lost=choices.choice((0.0, 0.2, 0.5)),
            late=choices.choice((0.0, 0.2, 0.5)),
        )
