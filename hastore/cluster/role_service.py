"""Brings a node in line with its group's coordinator; answers what the node asks about the group.

::

    NodeRegistration ──▶ ids/ID, once
    GroupWatch       ◀── what the coordinator says ──┐
    LeaderLease      ──▶ leader, by a lease ─────────┴─ wake ──▶ RoleActions: decides, and acts
    OwnMember        ──▶ members/ID, by another
    ClusterRoutes    ◀─▶ @routes/: the other groups of the cluster

Here the parts are put together; each of them says what it does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.access.own_key import OwnKey
from hastore.broker.group_directory import BrokerRoute, KnownNode, TopicTable
from hastore.broker.node.master import Master
from hastore.broker.observe.coordinator_status import UNLISTED_HINT, CoordinatorStatus
from hastore.cluster.abstention import Abstention, Promiser, why_not_promising
from hastore.cluster.failsafe import Failsafe
from hastore.cluster.group_watch import GroupWatch
from hastore.cluster.group_writer import GroupWriter
from hastore.cluster.handover import Handover
from hastore.cluster.key_value_store import Unchanged
from hastore.cluster.leader_lease import LeaderLease
from hastore.cluster.node_facts import NodeFacts, incarnation_of
from hastore.cluster.own_member import OwnMember
from hastore.cluster.registration import NodeRegistration
from hastore.cluster.role_actions import RoleActions
from hastore.cluster.route_records import RouteNode
from hastore.cluster.server_clocks import server_clocks
from hastore.cluster.term_coordinator import TermCoordinator
from hastore.concurrency.lease import Lease
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.concurrency.watched_files import FilesStatus, ReloadedFiles
from hastore.errors import CoordinatorError, ProtocolError, RequestFailedError, WrongNodeError
from hastore.ha.set_rules import nodes_text
from hastore.quantities import parse_address
from hastore.store.store_lock import LOCK_FILE
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from hastore.broker.clock.clock_verdict import ClockReading
    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master_store import Term
    from hastore.broker.request_target import PromiseWish, RoleWish
    from hastore.cluster.cluster_routes import ClusterRoutes
    from hastore.cluster.decide import Action
    from hastore.cluster.group_records import GroupView, Keys
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.role_config import RoleConfig
    from hastore.env.interface import Env
    from hastore.errors import HastoreError
    from hastore.store.node_identity import NodeIdentity

STOP_TIMEOUT_S: Final = 1.0  # for telling the coordinator that this node stops

_log = logger("cluster")


@final
@attrs.frozen
class CoordinatorFilesStatus(FilesStatus):
    """Also what an operator should look at although the files are in force."""

    warning: str | None = None


class ReloadedCoordinatorFiles(ReloadedFiles, Protocol):
    """What [cluster] names, read again when it changes."""

    def status(self) -> CoordinatorFilesStatus:
        """Return why the present version is not in force, and what is to be looked at."""


@final
@attrs.define(eq=False, repr=False)
class RoleService:
    """The part of a node that its coordinator speaks to; ``run`` serves until cancelled."""

    env: Env
    store: KeyValueStore
    keys: Keys
    config: RoleConfig
    neighbours: ClusterRoutes | None = None  # the other groups; None: it asks for none
    # Certificates and password for the coordinator, if they are watched.
    coordinator_files: ReloadedCoordinatorFiles | None = None
    watch: GroupWatch = attrs.field(init=False)
    lease: Lease = attrs.field(init=False)
    _started_at: float = attrs.field(init=False)
    _heard_at: float | None = attrs.field(default=None, init=False)  # it said something last
    _no_leader: tuple[int, float] | None = attrs.field(default=None, init=False)  # revision, since
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _term: TermCoordinator | None = attrs.field(default=None, init=False)
    _term_scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    # Of a run.
    _is_running: bool = attrs.field(default=False, init=False)
    _unlisted: str | None = attrs.field(default=None, init=False)  # as logged
    _is_recognised: trio.Event = attrs.field(factory=trio.Event, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _facts: NodeFacts = attrs.field(init=False)
    _abstention: Abstention = attrs.field(init=False)
    _registration: NodeRegistration | None = attrs.field(default=None, init=False)  # once made
    # Set once another process has claimed this node's id.
    _is_replaced: trio.Event = attrs.field(factory=trio.Event, init=False)
    _member: OwnMember = attrs.field(init=False)
    _leader: LeaderLease = attrs.field(init=False)
    _failsafe: Failsafe = attrs.field(init=False)
    _actions: RoleActions = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin without a lease."""
        self.watch = GroupWatch(self.env, self.store, self.keys, self._saw, self._wake.wakeup)
        self.lease = Lease(self._now)
        self._started_at = self._now()

    def _now(self) -> float:
        return self.env.wall_clock.boot_s()

    # -- what the node asks ----------------------------------------------------------------------

    def begin_term(self, term: Term) -> TermCoordinator:
        """Return the coordinator of a master that begins its term."""
        own = self._facts.me
        self._term = TermCoordinator(self.store, self.keys, own, term.entry.epoch, self.lease)
        return self._term

    def master_built(self, master: Master) -> None:
        """Let a new master's coordinator work."""
        term = self._term
        assert term is not None, "it has begun its term"
        self._end_term()
        if self._has_ended:
            return  # the node is about to: without a lease this master decides nothing
        self._term_scope = scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await term.run(master)

        self._nursery.start_soon(run)
        if self.view is not None:
            term.saw(self.view)

    def _term_serves(self) -> None:
        if self._term is not None:
            self._term.serves()

    def _end_term(self) -> None:
        if self._term_scope is not None:
            self._term_scope.cancel()
            self._term_scope = None

    async def recognised(self) -> None:
        """Wait until this start is registered, or the coordinator does not answer."""
        await self._is_recognised.wait()

    def _not_registered(self, error: HastoreError) -> None:
        self.watch.failed(error, "registration")
        self._is_recognised.set()

    @property
    def takes_remote_roles(self) -> bool:
        """Any machine may say that there is news: roles come from the coordinator alone."""
        return True

    def coordinator_status(self) -> CoordinatorStatus:
        """Return what it does, for ``status``."""
        leads = self._is_running and self.lease.deadline > -math.inf
        leads = leads and isinstance(self._facts.node.role_node, Master)
        action, config = self.action, None if self.view is None else self.view.config
        files = None if self.coordinator_files is None else self.coordinator_files.status()
        return CoordinatorStatus(
            is_reachable=self.is_reachable,
            doing=self._start_text() if action is None else str(action),
            lease_left_s=max(0.0, self.lease.deadline - self._now()) if leads else None,
            is_failsafe=self._is_running and self._failsafe.is_active,
            alarm=None if config is None else config.alarm,
            is_paused=config is not None and config.is_paused,
            unproven_epoch=None if config is None else config.unproven_epoch,
            epoch=None if self.view is None or self.view.state is None else self.view.state.epoch,
            last_contact_age_s=None if self._heard_at is None else self._now() - self._heard_at,
            etcd_alarms=tuple(sorted(self.watch.alarms)),
            unusable_because=self.watch.unusable_because,
            unlisted_because=None if self.view is None else self._why_unlisted(self.view),
            files_fault=None if files is None else files.fault,
            files_hint=None if files is None else files.hint,
            files_warning=None if files is None else files.warning,
        )

    def _why_unlisted(self, view: GroupView) -> str | None:
        """Return which nodes the group has that this node's ``group_ids`` lacks; None: none.

        By a group's name that is used twice a new group would copy the log of an old one.
        """
        ids, state = self.config.initial_ids, view.state
        others = frozenset[int]() if ids is None or state is None else state.registered - ids
        if not others or ids is None:
            return None
        return (
            f"{self.keys.base} has {nodes_text(others)}, and [node] group_ids of this node names"
            f" {', '.join(map(str, sorted(ids)))}"
        )

    def _start_text(self) -> str:
        trouble = self.watch.trouble
        return "it starts" if trouble is None else f"it waits before it takes part: {trouble}"

    def coordinator_clocks(self) -> tuple[ClockReading, ...]:
        """Return what the clocks of the coordinator's servers said last."""
        return server_clocks(self.store.clocks())

    @property
    def promised_deadline(self) -> float:
        """Until when it may decide by promises alone, on its own clock."""
        return self._failsafe.promised_deadline if self._is_running else -math.inf

    @property
    def promised_by(self) -> frozenset[int]:
        """Which nodes have promised that; empty if no node need."""
        return self._failsafe.promised_by if self._is_running else frozenset()

    def promise(self, wish: PromiseWish) -> None:
        """Promise a master not to stand for a while, unless there may be a newer one."""
        if not self._is_running:
            raise RequestFailedError(
                "this node has just started, and promises nothing",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        facts, identity, view = self._facts, self._facts.node.identity, self.view
        known = Promiser(
            group=self.broker_name,
            ttl_s=self.config.ttl_s,
            seen_epoch=0 if identity is None else identity.current.seen_epoch,
            state_epoch=None if view is None or view.state is None else view.state.epoch,
            following=facts.following,
            followed_id=facts.followed_id,
            is_candidate=facts.stands_in is not None or self._leader.held is not None,
        )
        reason = why_not_promising(known, wish)
        if reason is not None:
            raise RequestFailedError(
                f"{facts.me} promises nothing to node {wish.master_id}: {reason}",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        self._abstention.promise(self._now(), wish.ttl_s)

    async def change_role(self, wish: RoleWish) -> None:  # noqa: ARG002 - the coordinator's counts
        """Decide again: the request means that the coordinator has news."""
        self._wake.wakeup()
        await trio.lowlevel.checkpoint()

    # -- what routes say -------------------------------------------------------------------------

    @property
    def broker_name(self) -> str:
        """The group's name: the same on all of its nodes, and after a failover."""
        return self.keys.base.rstrip("/").rpartition("/")[2]

    def nodes(self) -> tuple[KnownNode, ...]:
        """Return the nodes that are up, as the coordinator knows them."""
        view = self.view
        if view is None:
            return ()
        leader = None if view.leader is None else view.leader.holder.node_id
        return tuple(
            KnownNode(
                node_id=node_id,
                client_address=parse_address(member.client_address),
                is_master=node_id == leader,
                is_own=node_id == self._facts.me.node_id,
            )
            for node_id, member in sorted(view.members.items())
            if member.client_address is not None
        )

    def other_groups(self) -> tuple[BrokerRoute, ...]:
        """Return the other groups of the cluster, as they say they are."""
        return () if self.neighbours is None else self.neighbours.groups()

    def serves(self, topics: TopicTable) -> None:
        """Tell the other groups of the topics of this node, which begins to serve as a master."""
        if self.neighbours is not None:
            self.neighbours.serves(topics)

    # -- what it says to other groups ------------------------------------------------------------

    def route_node(self) -> tuple[int, RouteNode] | None:
        """Return its id, and where clients reach it; None: nowhere."""
        member = self._facts.member(None)
        if member.client_address is None:
            return None
        epoch = member.last_epoch if member.role == "master" else None
        return self._facts.me.node_id, RouteNode(member.client_address, epoch)

    def session(self) -> int | None:
        """Return the lease of what it says of itself; None: it has none now."""
        session = self._member.session
        return None if session is None else session.lease_id

    def leader_key(self) -> Unchanged | None:
        """Return its own leader key, unchanged; None: it is not the group's master."""
        view = self.view
        if view is None or view.leader is None or view.leader.holder != self._facts.me:
            return None
        return Unchanged(self.keys.leader, view.leader_revision)

    # -- the run ---------------------------------------------------------------------------------

    async def run(
        self, node: GroupNode, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve a node until cancelled.

        Raises WrongNodeError if the group knows another directory, or a later start of it, by this
        node's id; CoordinatorRefusedError if the coordinator refuses to register it.
        """
        identity = node.identity
        assert identity is not None, "a node that serves has one"
        place = self._place_of(node.config.store.data_dir)
        self._set_up(node, place)
        self._is_running = True
        node.store_health.subscribe(self._wake.wakeup)
        self.watch.begin(lambda: node.identity)
        registration = NodeRegistration(
            store=self.store,
            keys=self.keys,
            identity=identity,
            env=self.env,
            ttl_s=self.config.ttl_s,
            place=place,
            has_taken_part=identity.current.coordinator is not None,
        )
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await registration.register(self._not_registered)
                self._is_recognised.set()
                self._facts.me = registration.me
                self._registration = registration
                self.watch.start(nursery)
                nursery.start_soon(self._member.keep)
                nursery.start_soon(self._leader.keep)
                nursery.start_soon(self._keep_promises, identity)
                nursery.start_soon(registration.keep, self.watch)
                nursery.start_soon(self._end_once_replaced)
                if self.neighbours is not None:
                    nursery.start_soon(self.neighbours.run, self)
                await self._actions.run()
            finally:
                self._has_ended = True
                self.lease.end()
                await self._leave()

    def _place_of(self, data_dir: str) -> str | None:
        """Return what tells this directory on this machine from others; None if unknown."""
        if self.env.boot_id is None:
            return None
        lock = self.env.disk.stamp(f"{data_dir}/{LOCK_FILE}")
        return f"{self.env.boot_id}/{lock.device}/{lock.inode}"

    async def _keep_promises(self, identity: NodeIdentity) -> None:
        """Record how long promises last, now and once those of earlier starts have run out."""
        longest_s = max(self.config.ttl_s, self._abstention.promise_ttl_s)
        await self.env.offload.run(partial(identity.promises_last, longest_s))
        await trio.sleep(max(0.0, self._abstention.earlier_until - self._now()))
        await self.env.offload.run(partial(identity.promises_last, self.config.ttl_s))

    async def _end_once_replaced(self) -> None:
        """End the node once another process has claimed its id: what it acknowledges is unknown.

        Raises WrongNodeError.
        """
        await self._is_replaced.wait()
        self.lease.end()
        path = self._facts.node.config.store.data_dir
        raise WrongNodeError(
            f"another process runs as {self._facts.me} of {self.keys.base} since this one was cut"
            f" off from the coordinator: {path}, or the directory of the other one, is a copy",
            path=path,
            hint="give one of the two another id, and an empty directory",
        )

    def _set_up(self, node: GroupNode, place: str | None) -> None:
        """Make the parts that work for a node."""
        ttl_s, identity = self.config.ttl_s, node.identity
        assert identity is not None, "a node that serves has one"
        self._abstention = Abstention(self._started_at, ttl_s, identity.current.promise_ttl_s)
        self._facts = facts = NodeFacts(node, incarnation_of(node), self.config, place)
        now_ms = self.env.wall_clock.now_ms
        self._member = OwnMember(
            store=self.store, keys=self.keys, watch=self.watch, facts=facts, now_ms=now_ms
        )
        writer = GroupWriter(
            store=self.store,
            keys=self.keys,
            watch=self.watch,
            facts=facts,
            now_ms=now_ms,
        )
        handover = Handover(
            node=node, watch=self.watch, writer=writer, wake=self._wake, clock=self._now
        )
        self._failsafe = Failsafe(
            node=node,
            own_id=facts.me.node_id,
            group=self.broker_name,
            lease=self.lease,
            ttl_s=ttl_s,
            randomness=self.env.randomness,
            may_ask=lambda: self.config.failsafe and not handover.is_offered,
            nodes=self.nodes,
            own_key=OwnKey(self.env, self.config.key_file),
        )
        self._leader = LeaderLease(
            node=node,
            store=self.store,
            watch=self.watch,
            lease=self.lease,
            ttl_s=ttl_s,
            failsafe=self._failsafe,
            on_change=self._wake.wakeup,
        )
        self._actions = RoleActions(
            facts=facts,
            watch=self.watch,
            writer=writer,
            leader=self._leader,
            member=self._member,
            handover=handover,
            abstention=self._abstention,
            wake=self._wake,
            clock=self._now,
            no_leader_since=lambda: None if self._no_leader is None else self._no_leader[1],
            end_term=self._end_term,
            term_serves=self._term_serves,
        )

    async def _leave(self) -> None:
        """Let the others elect at once, as far as the coordinator answers soon.

        But if it has gone back in time, and this node alone knows, nobody may be elected.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
            try:
                while not await self._actions.raise_alarm():
                    pass
            except (CoordinatorError, ProtocolError) as error:
                _log.warning("alarm_not_raised", reason=str(error))
            for grant in (self._leader.held, self._member.session):
                if grant is not None:
                    try:
                        await self.store.revoke(grant.lease_id)
                    except CoordinatorError as error:
                        _log.warning("lease_not_revoked", reason=str(error))

    # -- what is known ---------------------------------------------------------------------------

    def _saw(self, view: GroupView, went_back: bool) -> None:  # noqa: FBT001 - a callback
        self._heard_at = self._now()
        unlisted = self._why_unlisted(view)
        if unlisted not in {None, self._unlisted}:
            _log.warning("group_ids_differ", reason=unlisted, next=UNLISTED_HINT)
        self._unlisted = unlisted
        if self._is_foreign(view):
            self._is_replaced.set()
        if view.leader is not None or view.state is None:
            self._no_leader = None
        elif self._no_leader is None or self._no_leader[0] != view.state_revision:
            self._no_leader = view.state_revision, self._now()
        if not self._has_ended:  # it may still read, to raise the alarm
            self._leader.prolong()
        if self._term is not None:
            self._term.saw(view, went_back=went_back)
        self._wake.wakeup()
        if self.neighbours is not None:
            self.neighbours.changed()

    def _is_foreign(self, view: GroupView) -> bool:
        """Return whether another process has claimed this node's id since this one did.

        Not if the coordinator has gone back in time: then it has an earlier claim of this node.
        """
        own, me = self._registration, self._facts.me
        known = view.registrations.get(me.node_id)
        if own is None or known is None or self.watch.restored is not None:
            return False
        if known.uuid != me.uuid:
            return True
        return known.nonce != own.token and known.start >= me.start

    @property
    def action(self) -> Action | None:
        """The last decision; None: it has made none."""
        return self._actions.action if self._is_running else None

    @property
    def view(self) -> GroupView | None:
        """The newest that the coordinator has said; None: nothing yet."""
        return self.watch.view

    @property
    def is_reachable(self) -> bool:
        """Whether it answers, so that ``view`` is what it says now."""
        return self.watch.is_reachable
