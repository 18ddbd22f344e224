"""Brings a node in line with its group's coordinator: registers, renews, decides, acts.

::

    coordinator ──GroupWatch──▶ GroupView ─┐
    node: log, epochs, role ───────────────┼──▶ decide ──▶ transactions, GroupNode.become_master,
    clock: lease, election ────────────────┘              follow, step_down

All rules are in ``decide``; this file carries out what it says, one action after the other.  Two
leases are renewed beside it: the session's, which keeps ``members/ID``, and that of the leader key.

Invariants: a campaign's lease is revoked, with an answer, before the next campaign; the master's
``Lease`` is renewed only for the lease that its leader key was written with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, assert_never, final

import attrs
import trio

from hastore.broker.group_directory import BrokerRoute, KnownNode
from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Promotion
from hastore.broker.observe.coordinator_status import CoordinatorStatus
from hastore.broker.request_target import PromiseWish
from hastore.cluster import decide as actions
from hastore.cluster.decide import (
    Action,
    Clock,
    Following,
    Knowledge,
    OwnNode,
    decide,
)
from hastore.cluster.failsafe import ask_all
from hastore.cluster.group_records import (
    EpochRecord,
    GroupConfig,
    GroupState,
    GroupView,
    Incarnation,
    Leader,
    Member,
    Registration,
)
from hastore.cluster.group_watch import RETRY_PAUSE_S, GroupWatch
from hastore.cluster.key_value_store import Absent, Delete, Put, Unchanged
from hastore.cluster.term_coordinator import TermCoordinator
from hastore.concurrency.lease import Lease
from hastore.concurrency.tcp import describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import (
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
    HastoreError,
    LeaseGoneError,
    ProtocolError,
    RequestFailedError,
    RoleChangedError,
    WrongNodeError,
)
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.group_ha_service import GroupHAService
from hastore.quantities import parse_address
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master_store import Term
    from hastore.broker.request_target import RoleWish
    from hastore.cluster.group_records import Keys
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.key_value_store import Lease as Grant
    from hastore.env.interface import Env

SIT_OUT_MAX_S: Final = 300.0  # after promotions that failed, one after the other
STOP_TIMEOUT_S: Final = 1.0  # for telling the coordinator that this node stops
_HANDOVER_TICK_S: Final = 0.01
# Of a switchover: for the tables, which are copied each second anyway, and until it serves.
_LAST_COPY_S: Final = 0.3
_SERVES_WITHIN_S: Final = 1.0
_HANDOVER = "this master hands over to node {}: ask it"

_log = logger("cluster")


@final
@attrs.frozen(kw_only=True)
class RoleConfig:
    """How a node takes part in elections."""

    ttl_s: int = 10
    priority: int = 0  # among members with equal logs the higher one becomes master
    # The ids of a group whose directories are all empty, which then creates itself; None: a person.
    initial_ids: frozenset[int] | None = None
    acks: str = "all"
    # Whether a master goes on while its coordinator is silent, and all members promise.
    failsafe: bool = True
    advertised_host: str | None = None  # for other nodes and clients; None: as it listens
    version: str = ""


@final
@attrs.define(eq=False)
class RoleService:
    """The part of a node that its coordinator speaks to; ``run`` serves until cancelled."""

    env: Env
    store: KeyValueStore
    keys: Keys
    config: RoleConfig
    watch: GroupWatch = attrs.field(init=False)
    action: Action | None = attrs.field(default=None, init=False)  # the last decision
    _heard_at: float | None = attrs.field(default=None, init=False)  # it said something last
    lease: Lease = attrs.field(init=False)
    _node: GroupNode = attrs.field(init=False)
    _me: Incarnation = attrs.field(init=False)
    _started_at: float = attrs.field(init=False)
    _nonce: str = attrs.field(init=False)  # of this process
    _is_running: bool = attrs.field(default=False, init=False)  # ``run`` has its node
    _held: Grant | None = attrs.field(default=None, init=False)  # of the leader key, or a campaign
    _is_given_up: bool = attrs.field(default=False, init=False)  # it is only to be revoked
    # When its last renewal was sent, and what was granted.
    _renewal: tuple[float, float] = attrs.field(default=(-math.inf, 0.0), init=False)
    _session: Grant | None = attrs.field(default=None, init=False)
    _published: Member | None = attrs.field(default=None, init=False)
    _published_revision: int = attrs.field(default=0, init=False)
    _publishing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _following: Following | None = attrs.field(default=None, init=False)
    _followed_id: int | None = attrs.field(default=None, init=False)
    _stands_in: int | None = attrs.field(default=None, init=False)
    _no_leader: tuple[int, float] | None = attrs.field(default=None, init=False)  # revision, since
    _unflushed: tuple[int, float] | None = attrs.field(default=None, init=False)  # offset, since
    # Until when it has promised a master not to stand, on its own clock.
    _promised_until: float = attrs.field(default=-math.inf, init=False)
    _sits_out_s: float = attrs.field(default=0.0, init=False)  # after a promotion that failed
    # Within which time it is to serve as master after a switchover; None: within a ttl.
    _serves_within_s: float | None = attrs.field(default=None, init=False)
    # Whether the successor may have been told that it can take over.
    _is_ready_sent: bool = attrs.field(default=False, init=False)
    _handover_since: float | None = attrs.field(default=None, init=False)
    _term: TermCoordinator | None = attrs.field(default=None, init=False)
    _term_scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _lease_wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # Until when it may decide by promises alone, on its own clock.
    promised_deadline: float = attrs.field(default=-math.inf, init=False)
    _is_failsafe: bool = attrs.field(default=False, init=False)  # leads by promises alone
    _nursery: trio.Nursery = attrs.field(init=False)
    _has_ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin without a lease."""
        self.watch = GroupWatch(self.env, self.store, self.keys, self._saw, self._wake.wakeup)
        self.lease = Lease(self.env.wall_clock.boot_s)
        self._started_at = self.env.wall_clock.boot_s()
        env = self.env
        self._nonce = f"{env.boot_id}/{env.process_id}/{env.wall_clock.now_ms()}"

    # -- what the node asks ----------------------------------------------------------------------

    def begin_term(self, term: Term) -> TermCoordinator:
        """Return the coordinator of a master that begins its term."""
        own = _incarnation_of(self._node)
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

    def _end_term(self) -> None:
        if self._term_scope is not None:
            self._term_scope.cancel()
            self._term_scope = None

    @property
    def takes_remote_roles(self) -> bool:
        """Any machine may say that there is news: roles come from the coordinator alone."""
        return True

    def coordinator_status(self) -> CoordinatorStatus:
        """Return what it does, for ``status``."""
        leads = self._is_running and self.lease.deadline > -math.inf
        leads = leads and isinstance(self._node.role_node, Master)
        config = None if self.view is None else self.view.config
        return CoordinatorStatus(
            is_reachable=self.is_reachable,
            doing="it starts" if self.action is None else str(self.action),
            lease_left_s=max(0.0, self.lease.deadline - self._now()) if leads else None,
            is_failsafe=self._is_failsafe,
            alarm=None if config is None else config.alarm,
            is_paused=config is not None and config.is_paused,
            epoch=None if self.view is None or self.view.state is None else self.view.state.epoch,
            last_contact_age_s=None if self._heard_at is None else self._now() - self._heard_at,
        )

    def promise(self, wish: PromiseWish) -> None:
        """Promise a master not to stand for a while, unless there may be a newer one."""
        if not self._is_running:
            raise RequestFailedError(
                "this node has just started, and promises nothing",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        now, identity = self._now(), self._node.identity
        seen_epoch = 0 if identity is None else identity.current.seen_epoch
        following, view = self._following, self.view
        reason = None
        if wish.group != self.broker_name:
            reason = f"it is of replica group {self.broker_name}"
        elif wish.ttl_s > self.config.ttl_s:
            reason = f"its ttl is {self.config.ttl_s} s"
        elif wish.master_id != self._followed_id:
            reason = f"it does not follow node {wish.master_id}"
        elif view is not None and view.state is not None and view.state.epoch > wish.epoch:
            reason = f"epoch {view.state.epoch} has begun"
        elif self._stands_in is not None or self._held is not None:
            reason = "it stands for election, or has won one"
        elif following is None or following.epoch != wish.epoch or seen_epoch > wish.epoch:
            reason = f"it follows no master of epoch {wish.epoch}"
        if reason is not None:
            raise RequestFailedError(
                f"{self._me} promises nothing to node {wish.master_id}: {reason}",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        self._promised_until = max(self._promised_until, now + wish.ttl_s)

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
            )
            for node_id, member in sorted(view.members.items())
            if member.client_address is not None
        )

    def other_groups(self) -> tuple[BrokerRoute, ...]:
        """Return nothing: each group answers for itself."""
        return ()

    # -- the run ---------------------------------------------------------------------------------

    async def run(
        self, node: GroupNode, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve a node until cancelled.

        Raises WrongNodeError if the group knows another directory, or a later start of it, by this
        node's id; CoordinatorRefusedError if the coordinator refuses the first request.
        """
        self._node, self._me = node, _incarnation_of(node)
        self._is_running = True
        self.watch.begin(lambda: node.identity)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await self._register()
                self.watch.start(nursery)
                nursery.start_soon(self._keep_session)
                nursery.start_soon(self._keep_lease)
                await self._act()
            finally:
                self._has_ended = True
                self.lease.end()
                await self._leave()

    async def _leave(self) -> None:
        """Let the others elect at once, as far as the coordinator answers soon."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
            for grant in (self._held, self._session):
                if grant is not None:
                    try:
                        await self.store.revoke(grant.lease_id)
                    except CoordinatorError as error:
                        _log.warning("lease_not_revoked", reason=str(error))

    def _now(self) -> float:
        return self.env.wall_clock.boot_s()

    # -- registration ----------------------------------------------------------------------------

    async def _register(self) -> None:
        """Claim the node's id for its directory; retry while the coordinator does not answer."""
        is_first = True
        while True:
            try:
                if await self._claim_id():
                    return
            except CoordinatorRefusedError:
                if is_first:
                    raise
            except (CoordinatorError, ProtocolError) as error:
                self.watch.failed(error)
            else:
                is_first = False
                continue
            is_first = False
            await trio.sleep(RETRY_PAUSE_S)

    async def _claim_id(self) -> bool:
        """Write this start to ``ids/ID``; return whether it is there.  Raises WrongNodeError."""
        me, key = self._me, self.keys.registration(self._me.node_id)
        item = (await self.store.read(self.keys.base)).items.get(key)
        own = Registration(uuid=me.uuid, start=me.start, nonce=self._nonce)
        put = [Put(key, own.encode())]
        if item is None:
            return (await self.store.commit([Absent(key)], put)).succeeded
        known = Registration.decode(key, item.value)
        if known == own:
            return True
        path = self._node.config.store.data_dir
        if known.uuid != me.uuid:
            raise WrongNodeError(
                f"{path} is another directory than the one that {self.keys.base} knows as {me}",
                path=path,
                hint=f"give this node another id; or, if the other directory is lost: hastore"
                f" cluster remove {me.node_id}, and start it again",
            )
        if known.start >= me.start:
            raise WrongNodeError(
                f"{path} is a copy, or an older state of its disk: {self.keys.base} has seen start"
                f" {known.start} of {me}, and this is start {me.start}",
                path=path,
                hint=f"it may lack acknowledged messages: hastore cluster remove {me.node_id}, then"
                " start it with an empty directory",
            )
        return (await self.store.commit([Unchanged(key, item.mod_revision)], put)).succeeded

    # -- what the coordinator says ---------------------------------------------------------------

    def _saw(self, view: GroupView, went_back: bool) -> None:  # noqa: FBT001 - a callback
        self._heard_at = self._now()
        if view.leader is not None or view.state is None:
            self._no_leader = None
        elif self._no_leader is None or self._no_leader[0] != view.state_revision:
            self._no_leader = view.state_revision, self._now()
        self._prolong()
        if self._term is not None:
            self._term.saw(view, went_back=went_back)
        self._wake.wakeup()

    @property
    def view(self) -> GroupView | None:
        """The newest that the coordinator has said; None: nothing yet."""
        return self.watch.view

    @property
    def is_reachable(self) -> bool:
        """Whether it answers, so that ``view`` is what it says now."""
        return self.watch.is_reachable

    # -- leases ----------------------------------------------------------------------------------

    @property
    def _pause_s(self) -> float:
        return self.config.ttl_s / 3

    async def _keep_lease(self) -> None:
        """Renew the lease of the leader key."""
        while True:
            held, sent_at = self._held, self._now()
            if self._flush_hangs(sent_at):
                await self._give_up_hanging()
                continue
            if held is None or self._is_given_up:
                await self._wait_without_lease()
                continue
            try:
                with trio.fail_after(self._pause_s / 2):  # then there is time to ask the members
                    granted_s = await self.store.renew(held.lease_id)
            except CoordinatorUnreachableError as error:
                await self._without_answer(error)
                continue
            except trio.TooSlowError:
                what = f"no answer within {self._pause_s / 2:g} s to the renewal of a lease"
                await self._without_answer(CoordinatorUnreachableError(what))
                continue
            except CoordinatorError as error:
                self.watch.failed(error)
                await trio.sleep(self._pause_s / 4)
                continue
            if held is not self._held:
                continue
            if granted_s is None:
                _log.warning("lease_gone", lease=held.lease_id)
                self._held = None
                self._wake.wakeup()
                continue
            self._renewal = sent_at, granted_s
            if self._prolong():
                self._is_failsafe = False
            with trio.move_on_after(self._pause_s):
                await self._lease_wake.wait_for_running()

    async def _wait_without_lease(self) -> None:
        """Wait for a lease; a master that lost its own asks the members, while etcd is silent."""
        if not self._leads:
            await self._lease_wake.wait_for_running()
            return
        if self.watch.is_silent:
            await self._ask_members()
        with trio.move_on_after(self._pause_s / 4):
            await self._lease_wake.wait_for_running()

    async def _without_answer(self, error: CoordinatorError) -> None:
        """Go on as master for as long as all members promise that none of them stands."""
        self.watch.failed(error)
        if self._leads:
            await self._ask_members()
        with trio.move_on_after(self._pause_s / 4):
            await self._lease_wake.wait_for_running()

    @property
    def _leads(self) -> bool:
        """Whether it is a master whose time is not over."""
        role_node = self._node.role_node
        is_master = isinstance(role_node, Master) and not role_node.has_stepped_down
        return is_master and not self.lease.is_over()

    async def _ask_members(self) -> None:
        """Prolong the deadline, if all other members of the set promise not to stand.

        The coordinator elects nobody meanwhile who has not stood; so nobody else is master before
        the oldest promise has run out.
        """
        master = self._node.role_node
        if not self.config.failsafe or not isinstance(master, Master):
            return
        if self._handover_since is not None and self._is_ready_sent:
            return  # the successor may begin the next epoch at any moment
        assert isinstance(master.ha_service, GroupHAService), "a master of a group"
        group = master.ha_service.sync_state_set
        asked, asked_at = group.needed - {self._me.node_id}, self._now()
        addresses = {
            known.node_id: known.client_address for known in self.nodes() if known.node_id in asked
        }
        if addresses.keys() != asked:
            return
        ttl_s = float(self.config.ttl_s)
        with trio.move_on_after(self._pause_s / 2):
            refusals = await ask_all(
                addresses,
                PromiseWish(
                    group=self.broker_name,
                    epoch=group.entry.epoch,
                    master_id=self._me.node_id,
                    ttl_s=ttl_s,
                ),
                nonce=f"{self.env.randomness.random():.17f}",
                timeout_s=self._pause_s / 2,
            )
            if not refusals and group.needed - {self._me.node_id} <= asked and self._leads:
                self.lease.renewed(asked_at, ttl_s, ttl_s)
                self.promised_deadline = self.lease.deadline
                if not self._is_failsafe:
                    _log.warning("failsafe", members=len(asked), ttl_s=self.config.ttl_s)
                self._is_failsafe = True
                return
            for node_id, reason in refusals.items():
                _log.warning("promise_refused", node_id=node_id, reason=reason)

    def _flush_hangs(self, now: float) -> bool:
        """Return whether this master's disk has synced nothing of what waits for too long."""
        role_node = self._node.role_node
        if not isinstance(role_node, Master):
            self._unflushed = None
            return False
        log = role_node.commit_log
        if log.flushed_offset >= log.max_offset:
            self._unflushed = None
        elif self._unflushed is None or self._unflushed[0] != log.flushed_offset:
            self._unflushed = log.flushed_offset, now
        # Few dirty pages wait for more, at most for that interval.
        thorough_s = role_node.config.store.flush_thorough_interval_ms / 1000
        limit_s = self.config.ttl_s + thorough_s
        return self._unflushed is not None and now - self._unflushed[1] > limit_s

    async def _give_up_hanging(self) -> None:
        """Let the lease end: another disk may be well."""
        _log.error("disk_hangs", ttl_s=self.config.ttl_s, next="look at this machine's disk")
        self._unflushed = None
        self._is_given_up = True
        self.lease.end()
        self._wake.wakeup()
        await self._lease_wake.wait_for_running()  # until it leads again

    def _prolong(self) -> bool:
        """Count the last renewal if the leader key goes with its lease; return whether it does."""
        held, view = self._held, self.view
        if held is None or self._is_given_up or view is None:
            return False
        if view.leader_lease != held.lease_id:
            return False
        sent_at, granted_s = self._renewal
        self.lease.renewed(sent_at, self.config.ttl_s, granted_s)
        return True

    async def _keep_session(self) -> None:
        """Renew the lease of what this node says of itself, and say it again where it changed."""
        while True:
            try:
                if self._session is not None:
                    granted_s = await self.store.renew(self._session.lease_id)
                    if granted_s is None:
                        self._session = None
                await self._publish(self._stands_in)
                await self.watch.refresh()  # a watch may be dead, and not know it
            except (CoordinatorError, ProtocolError) as error:
                self.watch.failed(error)
                await trio.sleep(RETRY_PAUSE_S)
                continue
            await trio.sleep(self._pause_s)

    async def _publish(self, election: int | None) -> None:
        """Write ``members/ID``, unless it says so already."""
        async with self._publishing:
            member = self._as_member(election)
            if self._session is None:
                self._session = await self.store.grant(self.config.ttl_s)
                self._published, self._published_revision = None, 0
            view = self.view
            is_there = view is None or view.members.get(self._me.node_id) is not None
            if member == self._published and is_there:
                return
            key = self.keys.member(self._me.node_id)
            put = Put(key, member.encode(), lease=self._session.lease_id)
            self._published = None
            while True:
                revision = self._published_revision
                comparison = Unchanged(key, revision) if revision else Absent(key)
                try:
                    outcome = await self.store.commit([comparison], [put])
                except LeaseGoneError:
                    self._session = None
                    raise
                if outcome.succeeded:
                    self._published, self._published_revision = member, outcome.revision
                    return
                item = (await self.store.read(key)).items.get(key)
                self._published_revision = 0 if item is None else item.mod_revision
                if item is not None:
                    self._check_is_own(key, item.value)

    def _check_is_own(self, key: str, data: bytes) -> None:
        """Raise WrongNodeError if another directory says that it is this node."""
        other = Member.decode(key, data).node
        if other.uuid != self._me.uuid:
            path = self._node.config.store.data_dir
            raise WrongNodeError(
                f"another directory than {path} runs as {self._me} of {self.keys.base}",
                path=path,
                hint="give one of the two another id, and an empty directory",
            )

    def _as_member(self, election: int | None) -> Member:
        own, node = self._own(), self._node
        role_node, link = node.role_node, None
        if not isinstance(role_node, Master):
            link_address = role_node.ha_client.link.local_address
            link = None if link_address is None else describe(link_address)
        return Member(
            node=own.node,
            kept_since=own.kept_since,
            role="master" if own.master_of is not None else "slave",
            last_epoch=own.last_epoch,
            end=own.end,
            ha_address=self._advertised(node.ha_address),
            client_address=None if node.address is None else self._advertised(node.address),
            priority=own.priority,
            link=link,
            election=election,
            version=self.config.version,
        )

    # -- decisions -------------------------------------------------------------------------------

    def _own(self) -> OwnNode:
        node, identity = self._node, self._node.identity
        assert identity is not None, "a node that serves has one"
        role_node, master_of = node.role_node, None
        if isinstance(role_node, Master):
            last_epoch = role_node.epoch or 0
            if not role_node.has_stepped_down:
                master_of = role_node.epoch
        else:
            framing = role_node.ha_client.framing
            assert isinstance(framing, AutoswitchFraming), "a slave of a group"
            last_epoch = framing.history.last_epoch or 0
        return OwnNode(
            node=self._me,
            kept_since=identity.current.kept_since,
            seen_epoch=identity.current.seen_epoch,
            last_epoch=last_epoch,
            end=role_node.max_offset,
            priority=self.config.priority,
            master_of=master_of,
            following=self._following,
            stands_in=self._stands_in,
            holds_lease=self._held is not None,
        )

    def _known(self) -> Knowledge:
        has_lease = self.lease.deadline > -math.inf
        return Knowledge(
            own=self._own(),
            clock=Clock(
                now=self._now(),
                # Promises of an earlier start have run out by then.
                may_stand_from=max(self._started_at + self.config.ttl_s, self._promised_until),
                deadline=self.lease.deadline if has_lease else None,
                no_leader_since=None if self._no_leader is None else self._no_leader[1],
                handover_since=self._handover_since,
                is_ready_sent=self._is_ready_sent,
            ),
            view=self.view,
            is_reachable=self.is_reachable,
            initial_ids=self.config.initial_ids,
            restored=self.watch.restored,
        )

    async def _act(self) -> None:
        """Decide and act, until cancelled."""
        while True:
            action = decide(self._known())
            if type(action) is not type(self.action):
                _log.info("decided", what=type(action).__name__, why=getattr(action, "why", None))
            self.action = action
            if isinstance(action, actions.Wait):
                await self._wait(action)
                continue
            try:
                await self._carry_out(action)
            except (CoordinatorError, ProtocolError) as error:
                self.watch.failed(error)
                await trio.sleep(RETRY_PAUSE_S)
            except RoleChangedError:
                await trio.sleep(RETRY_PAUSE_S)  # the node stops
            except HastoreError as error:  # it has no role now
                _log.error("role_not_changed", reason=str(error), next=error.hint)
                await trio.sleep(RETRY_PAUSE_S)

    async def _wait(self, action: actions.Wait) -> None:
        left_s = math.inf if action.until is None else max(0.0, action.until - self._now())
        wish = None if self.view is None else self.view.config.switchover
        leads = self.view is not None and self.view.leader is not None
        # Its own end may be there soon.
        if wish is not None and leads and wish.to_id == self._me.node_id:
            left_s = min(left_s, _HANDOVER_TICK_S)
        with trio.move_on_after(left_s):
            await self._wake.wait_for_running()

    async def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 - a table
        match action:
            case actions.Wait():
                raise AssertionError("waited for")
            case actions.StepDown():
                await self._step_down(action.why)
            case actions.Retake():
                await self._retake()
            case actions.Release():
                await self._release()
                await self.watch.refresh()
            case actions.HandOver():
                await self._hand_over(action.to_id)
            case actions.TakePuts():
                self._take_puts()
            case actions.VoidSwitchover():
                await self._void_switchover(action.why)
            case actions.TakeOver():
                await self._take_over(action.epoch)
            case actions.CreateState():
                await self._create(action.members)
            case actions.RaiseAlarm():
                await self._raise_alarm(action.why)
            case actions.BecomeMaster():
                await self._become_master(action)
            case actions.Follow():
                await self._follow(action.leader)
            case actions.Stand():
                await self._stand(action.election)
            case actions.Campaign():
                await self._campaign(action)
            case _:
                assert_never(action)

    # -- actions ---------------------------------------------------------------------------------

    async def _step_down(self, why: str) -> None:
        self._is_given_up = True
        self.lease.end()
        self._end_term()
        self._handover_since = self._following = None
        master = self._node.role_node
        if isinstance(master, Master):
            master.step_down(why)
        try:
            await self._release()  # before its disk is waited for, which may hang
        except CoordinatorError as error:
            self.watch.failed(error)
        await self._node.step_down(why)

    async def _release(self) -> None:
        """Give the leader key up, and any campaign that may still be answered."""
        held = self._held
        if held is None:
            return
        self._is_given_up = True
        self.lease.end()
        await self.store.revoke(held.lease_id)
        if self._held is held:
            self._held = None

    async def _new_lease(self) -> Grant:
        """Return a lease for the leader key; an earlier one is revoked first, with an answer."""
        if self._held is not None:
            await self.store.revoke(self._held.lease_id)
            self._held = None
        sent_at = self._now()
        grant = await self.store.grant(self.config.ttl_s)
        self._held, self._renewal = grant, (sent_at, grant.ttl_s)
        self._is_given_up = False
        self._lease_wake.wakeup()
        return grant

    def _advertised(self, address: tuple[str, int]) -> str:
        """Return an address of this node as others reach it."""
        host, port = address
        return describe((self.config.advertised_host or host, port))

    def _leader(self, epoch: int, grant: Grant) -> Put:
        node = self._node
        leader = Leader(
            holder=self._me,
            epoch=epoch,
            ha_address=self._advertised(node.ha_address),
            client_address=None if node.address is None else self._advertised(node.address),
        )
        return Put(self.keys.leader, leader.encode(), lease=grant.lease_id)

    async def _retake(self) -> None:
        """Write the leader key again; the state's revision moves with it, so elections are void."""
        view = self._agreed()
        state = view.state
        assert state is not None
        grant = await self._new_lease()
        await self.store.commit(
            [Absent(self.keys.leader), Unchanged(self.keys.state, view.state_revision)],
            [self._leader(state.epoch, grant), Put(self.keys.state, state.encode())],
        )
        await self.watch.refresh()

    def _agreed(self) -> GroupView:
        assert self.view is not None
        return self.view

    async def _create(self, members: tuple[Incarnation, ...]) -> None:
        state = GroupState(epoch=0, master=None, members=members, acks=self.config.acks)
        await self.store.commit([Absent(self.keys.state)], [Put(self.keys.state, state.encode())])
        await self.watch.refresh()

    async def _raise_alarm(self, why: str) -> None:
        await self.watch.refresh()  # a link may have been quicker than the coordinator's watch
        if not isinstance(decide(self._known()), actions.RaiseAlarm):
            return
        _log.error("alarm", reason=why)
        config = attrs.evolve(self._agreed().config, alarm=why)
        await self._write_config(config, [])
        await self.watch.refresh()

    async def _write_config(self, config: GroupConfig, others: Sequence[Unchanged]) -> bool:
        put = Put(self.keys.config, config.encode())
        return (await self.store.commit([self._same_config(), *others], [put])).succeeded

    def _same_config(self) -> Absent | Unchanged:
        revision = self._agreed().config_revision
        return Unchanged(self.keys.config, revision) if revision else Absent(self.keys.config)

    async def _stand(self, election: int) -> None:
        """Follow nobody, then publish the end."""
        if self._stands_in != election:
            if self._following is not None or self._node_follows():
                self._following = None
                await self._node.step_down("its group elects a master")
            self._stands_in = election
        await self._publish(election)
        await self.watch.refresh()

    def _node_follows(self) -> bool:
        role_node = self._node.role_node
        return isinstance(role_node, Master) or role_node.ha_client.state.value != "unassigned"

    async def _campaign(self, action: actions.Campaign) -> None:
        self._serves_within_s = None
        await self._win(action.epoch, action.members, [Absent(self.keys.leader)], "election", [])

    async def _take_over(self, epoch: int) -> None:
        await self._copy_tables()
        view = self._agreed()
        if decide(self._known()) != actions.TakeOver(epoch):
            return  # the wish was taken back meanwhile
        self._serves_within_s = min(_SERVES_WITHIN_S, self.config.ttl_s)
        assert view.state is not None
        comparisons = [Unchanged(self.keys.leader, view.leader_revision)]
        config = Put(self.keys.config, attrs.evolve(view.config, switchover=None).encode())
        await self._win(epoch, view.state.members, comparisons, "switchover", [config])

    async def _copy_tables(self) -> None:
        """Copy topics, groups and offsets a last time, while the former master still answers."""
        slave = self._node.role_node
        if isinstance(slave, Master) or slave.slave_synchronize is None:
            return
        if slave.slave_synchronize.address is not None:
            with trio.move_on_after(_LAST_COPY_S):
                await slave.slave_synchronize.copy_now()

    async def _win(
        self,
        epoch: int,
        members: tuple[Incarnation, ...],
        comparisons: Sequence[Absent | Unchanged],
        why: str,
        writes: Sequence[Put | Delete],
    ) -> None:
        """Write leader and state of an epoch of this node, if nothing has changed.

        All comparisons are of what it was decided on: there may be news while it gets a lease.
        """
        view = self._agreed()
        assert view.state is not None
        same_config = self._same_config()  # no alarm, no pause, the same wish
        former = view.state.master
        state = GroupState(epoch=epoch, master=self._me, members=members, acks=self.config.acks)
        record = EpochRecord(
            epoch=epoch,
            master_id=self._me.node_id,
            former_id=None if former is None else former.node_id,
            end=self._own().end,
            why=why,
            at_ms=self.env.wall_clock.now_ms(),
        )
        grant = await self._new_lease()
        outcome = await self.store.commit(
            [
                *comparisons,
                Unchanged(self.keys.state, view.state_revision),
                same_config,
            ],
            [
                self._leader(epoch, grant),
                Put(self.keys.state, state.encode()),
                Put(self.keys.history(epoch), record.encode()),
                *writes,
            ],
        )
        if not outcome.succeeded:
            await self._release()
        await self.watch.refresh()

    async def _become_master(self, action: actions.BecomeMaster) -> None:
        self._following = self._stands_in = self._handover_since = None
        promotion = Promotion(epoch=action.epoch, members=action.members)
        within_s, self._serves_within_s = self._serves_within_s or self.config.ttl_s, None
        try:
            with trio.move_on_after(within_s) as scope:
                await self._node.become_master(promotion)
        except RoleChangedError:
            raise
        except HastoreError as error:
            _log.error("role_not_changed", reason=str(error), next=error.hint)
            await self._sit_out()
            return
        if scope.cancelled_caught:
            _log.error("promotion_too_slow", epoch=action.epoch, within_s=within_s)
            await self._sit_out()
            return
        self._sits_out_s = 0.0
        await self._publish(None)

    async def _sit_out(self) -> None:
        """Give the key up, and let others stand: what has failed here may fail again."""
        self._sits_out_s = min(max(self.config.ttl_s, 2 * self._sits_out_s), SIT_OUT_MAX_S)
        self._promised_until = max(self._promised_until, self._now() + self._sits_out_s)
        await self._release()

    async def _follow(self, leader: Leader) -> None:
        self._stands_in = None
        await self._release()
        client = leader.client_address
        await self._node.follow(
            parse_address(leader.ha_address),
            leader.epoch,
            client_port=None if client is None else parse_address(client),
        )
        self._following = Following(ha_address=leader.ha_address, epoch=leader.epoch)
        self._followed_id = leader.holder.node_id
        await self._publish(None)

    # -- switchover ------------------------------------------------------------------------------

    async def _hand_over(self, to_id: int) -> None:
        """Take no puts, then write the log's end once the successor has acknowledged it."""
        master = self._node.role_node
        if not isinstance(master, Master) or not isinstance(master.ha_service, GroupHAService):
            return
        if self._handover_since is None:
            self._handover_since, self._is_ready_sent = self._now(), False
            master.put_message.hold(_HANDOVER.format(to_id))
            _log.info("handing_over", to=to_id, at=master.max_offset)
        service = master.ha_service
        node = service.sync_state_set.acks.get(to_id)
        end = master.max_offset
        is_there = node is not None and node.ack_offset == end
        if not is_there or len(service.group_transfer_service):
            with trio.move_on_after(_HANDOVER_TICK_S):
                await self._wake.wait_for_running()
            return
        view = self._agreed()
        wish = view.config.switchover
        if wish is None or wish.to_id != to_id:
            return
        config = attrs.evolve(view.config, switchover=attrs.evolve(wish, ready_end=end))
        self._is_ready_sent = True
        await self._write_config(config, [Unchanged(self.keys.leader, view.leader_revision)])
        await self.watch.refresh()

    async def _void_switchover(self, why: str) -> None:
        """Take the wish back, with an answer; only then take puts again."""
        config = self._agreed().config
        if config.switchover is not None:
            if not await self._write_config(attrs.evolve(config, switchover=None), []):
                await self.watch.refresh()
                return
            _log.warning("switchover_void", reason=why)
            await self.watch.refresh()
        self._take_puts()

    def _take_puts(self) -> None:
        """Take puts again after a handover that does not come about."""
        self._handover_since = None
        master = self._node.role_node
        if isinstance(master, Master):
            master.put_message.hold(None)


def _incarnation_of(node: GroupNode) -> Incarnation:
    identity = node.identity
    assert identity is not None, "a node that serves has one"
    current = identity.current
    return Incarnation(current.node_id, current.uuid, current.starts)
