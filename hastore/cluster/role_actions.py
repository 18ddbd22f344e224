"""Carries out what ``decide`` says, one action after the other.

::

    coordinator ──GroupWatch──▶ GroupView ─┐
    node: log, epochs, role ───NodeFacts───┼──▶ decide ──▶ GroupWriter, Handover: transactions
    clock: LeaderLease, Abstention ────────┘          └──▶ GroupNode: its role

An action that fails is not repeated as such: it is decided again.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, assert_never, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Promotion
from hastore.cluster import decide as actions
from hastore.cluster.decide import Action, Clock, Following, Knowledge, decide, why_alarm
from hastore.cluster.group_records import Switchover
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.group_writer import Bid
from hastore.cluster.handover import HANDOVER_TICK_S
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.cluster.storage import RoundStart, begins_with
from hastore.errors import (
    CoordinatorError,
    DiskError,
    HastoreError,
    ProtocolError,
    RoleChangedError,
)
from hastore.ha.set_rules import default_min_in_sync_replicas
from hastore.quantities import parse_address
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.cluster.abstention import Abstention
    from hastore.cluster.group_records import GroupState, Leader
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.group_writer import GroupWriter
    from hastore.cluster.handover import Handover
    from hastore.cluster.leader_lease import LeaderLease
    from hastore.cluster.node_facts import NodeFacts
    from hastore.cluster.own_member import OwnMember
    from hastore.concurrency.wait_notify_object import WaitNotifyObject
    from hastore.config import InSyncReplicas

# Of a switchover: for the tables, which are copied each second anyway, and until it serves.
_LAST_COPY_S: Final = 0.3
_SERVES_WITHIN_S: Final = 1.0
_NAME: Final = "actions"  # of this part, for ``GroupWatch.failed``
_BYTES: Final = re.compile(r"[0-9]+ bytes")

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class RoleActions:
    """Decisions about one start of a node; ``run`` works until cancelled."""

    facts: NodeFacts
    watch: GroupWatch
    writer: GroupWriter
    leader: LeaderLease
    member: OwnMember
    handover: Handover
    abstention: Abstention
    wake: WaitNotifyObject  # something has changed: decide again
    clock: Callable[[], float]
    no_leader_since: Callable[[], float | None]
    end_term: Callable[[], None]  # of this node as master: its set is changed no more
    term_serves: Callable[[], None]  # this node, as master, takes puts
    action: Action | None = attrs.field(default=None, init=False)  # the last decision
    _logged: tuple[str, str | None] | None = attrs.field(default=None, init=False)
    # What the action says that is tried again and again; None once one was done.
    _announced: tuple[str, object] | None = attrs.field(default=None, init=False)
    _round: RoundStart = attrs.field(factory=RoundStart, init=False)
    # Within which time it is to serve as master after a switchover; None: within a ttl.
    _serves_within_s: float | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Decide and act, until cancelled."""
        while True:
            self._prepare_early()
            action = decide(self._known())
            self._log_decision(action)
            self.action = action
            if isinstance(action, actions.Wait):
                self._did()
                await self._wait(action)
                continue
            try:
                await self._carry_out(action)
                self._did()
            except (CoordinatorError, ProtocolError) as error:
                self.watch.failed(error, _NAME)
                await trio.sleep(RETRY_PAUSE_S)
            except RoleChangedError:
                await trio.sleep(RETRY_PAUSE_S)  # the node stops
            except HastoreError as error:  # it has no role now
                _log.error("role_not_changed", reason=str(error), next=error.hint)
                await trio.sleep(RETRY_PAUSE_S)

    def _did(self) -> None:
        """Take that what was decided is done: an action that fails is only repeated."""
        self.watch.succeeded(_NAME)
        self._announced = None

    def _is_news(self, event: str, what: object) -> bool:
        """Return whether to log what an action is about to write: not each time that it fails."""
        announced, self._announced = self._announced, (event, what)
        return announced != self._announced

    def _prepare_early(self) -> None:
        """Allocate the next log file while the master cannot store: it may ask this node next.

        So a file that takes seconds is there in time, and one that cannot be made shows before.
        """
        view = self.watch.view
        if view is None or view.leader is None:
            return
        master = view.members.get(view.leader.holder.node_id)
        if master is not None and not master.can_store:
            self.facts.node.want_next_file()

    def _log_decision(self, action: Action) -> None:
        """Log an action of another kind than the last one, or with another reason.

        A number of bytes that changes while it waits is not another reason.
        """
        what, why = type(action).__name__, getattr(action, "why", None)
        decision = what, None if why is None else _BYTES.sub("bytes", why)
        if decision != self._logged:
            self._logged = decision
            _log.info("decided", what=what, why=why)

    def _known(self) -> Knowledge:
        has_lease = self.leader.lease.deadline > -math.inf
        now, wall_ms = self.clock(), self.facts.node.env.wall_clock.now_ms()
        view = self.watch.view
        if view is not None:
            self._round.see(view.config.room_requests, now=now, wall_ms=wall_ms)
        return Knowledge(
            own=self.facts.own(holds_lease=self.leader.held is not None),
            clock=Clock(
                now=now,
                may_stand_from=self.abstention.stands_from,
                may_campaign_from=self.abstention.campaigns_from,
                deadline=self.leader.lease.deadline if has_lease else None,
                no_leader_since=self.no_leader_since(),
                handover_since=self.handover.since,
                is_ready_sent=self.handover.is_ready_sent,
                void_due=self.handover.void_due,
                round_began=self._round.began,
                wall_ms=wall_ms,
            ),
            view=view,
            is_reachable=self.watch.is_reachable,
            initial_ids=self.facts.config.initial_ids,
            restored=self.watch.restored,
            unusable_because=self.watch.unusable_because,
            hand_over_after_s=self.facts.config.hand_over_after_s,
            min_in_sync_replicas=self._members_min(),
        )

    def _members_min(self) -> int:
        """Return with how many members the sets of this node, as master, take puts."""
        config, view = self.facts.config, self.watch.view
        if config.min_in_sync_replicas is not None:
            return config.min_in_sync_replicas
        if view is None or view.state is None:
            return 1
        acks: InSyncReplicas = "all" if config.acks == "all" else int(config.acks)
        return default_min_in_sync_replicas(view.state.registered | view.state.ids, acks)

    async def _wait(self, action: actions.Wait) -> None:
        left_s = math.inf if action.until is None else max(0.0, action.until - self.clock())
        wish = None if self.watch.view is None else self.watch.view.config.switchover
        leads = self.watch.view is not None and self.watch.view.leader is not None
        # Its own end may be there soon.
        if wish is not None and leads and wish.to_id == self.facts.me.node_id:
            left_s = min(left_s, HANDOVER_TICK_S)
        with trio.move_on_after(left_s):
            await self.wake.wait_for_running()

    async def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 - a table
        match action:
            case actions.Wait():
                raise AssertionError("waited for")
            case actions.StepDown():
                await self._step_down(action.why)
            case actions.Retake():
                await self.writer.retake(self.leader)
            case actions.Release():
                await self.leader.release()
                await self.watch.refresh()
            case actions.HandOver():
                await self.handover.go_on(action.to_id)
            case actions.TakePuts():
                self.handover.take_puts()
            case actions.VoidSwitchover():
                await self.handover.void(action.why)
            case actions.RequestSuccessor():
                await self._request_successor(action.to_id)
            case actions.PrepareToTakeOver():
                await self._prepare_to_take_over()
            case actions.TakeOver():
                await self._take_over(action.epoch)
            case actions.CreateState():
                await self.writer.create(action.members)
            case actions.RaiseAlarm():
                await self.raise_alarm()  # if in vain, it decides so again
            case actions.TellEpoch():
                await self._tell_epoch()
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
        self.leader.give_up()
        self.end_term()
        self.handover.end()
        self.facts.following = None
        master = self.facts.node.role_node
        if isinstance(master, Master):
            master.step_down(why)
        try:
            await self.leader.release()  # before its disk is waited for, which may hang
        except CoordinatorError as error:
            self.watch.failed(error, _NAME)
        await self.facts.node.step_down(why)

    async def raise_alarm(self) -> bool:
        """Raise the alarm if that is due; return false if what it read has changed meanwhile."""
        if why_alarm(self._known()) is None:
            return True
        await self.watch.refresh()  # a link may have been quicker than the coordinator's watch
        why = why_alarm(self._known())
        if why is None:
            return True
        if self._is_news("alarm", why):
            _log.error("alarm", reason=why)
        config = attrs.evolve(self.watch.known.config, alarm=why)
        is_written = await self.writer.write_config(config, [])
        await self.watch.refresh()
        return is_written

    async def _tell_epoch(self) -> None:
        """Say which epoch this node has seen, unless the coordinator knows a later one by now."""
        await self.watch.refresh()
        action = decide(self._known())
        if not isinstance(action, actions.TellEpoch):
            return
        if self._is_news("epoch_forgotten", action.epoch):
            _log.warning("epoch_forgotten", epoch=action.epoch, next="the group begins a later one")
        config = attrs.evolve(self.watch.known.config, seen_epoch=action.epoch)
        await self.writer.write_config(config, [])
        await self.watch.refresh()

    async def _stand(self, election: int) -> None:
        """Follow nobody, then publish the end."""
        if self.facts.stands_in != election:
            if self.facts.following is not None or self._node_follows():
                self.facts.following = None
                await self.facts.node.step_down("its group elects a master")
            self.facts.stands_in = election
        await self.member.publish(election)
        await self.watch.refresh()

    def _node_follows(self) -> bool:
        role_node = self.facts.node.role_node
        return isinstance(role_node, Master) or role_node.ha_client.state.value != "unassigned"

    async def _campaign(self, action: actions.Campaign) -> None:
        self._serves_within_s = None
        writes: tuple[Put, ...] = ()
        if not action.is_proven:
            if self._is_news("no_member_was_proven", action.epoch):
                _log.warning(
                    "no_member_was_proven",
                    epoch=action.epoch,
                    next="acknowledged messages may be lost: hastore cluster history, then hastore"
                    " cluster clear-alarm",
                )
            config = attrs.evolve(self.watch.known.config, unproven_epoch=action.epoch)
            writes = (Put(self.writer.keys.config, config.encode()),)
        bid = Bid(
            epoch=action.epoch,
            members=action.members,
            why="election",
            leader=Absent(self.writer.keys.leader),
            is_proven=action.is_proven,
            writes=writes,
        )
        await self.writer.win(bid, self.leader)

    async def _request_successor(self, to_id: int) -> None:
        """Ask a member to take over from this master, which cannot store."""
        health, epoch = self.facts.node.store_health, self.facts.own(holds_lease=True).master_of
        await self.member.publish(None)  # first: the successor's set leaves this node out
        await self.watch.refresh()
        action = decide(self._known())
        if not isinstance(action, actions.RequestSuccessor) or action.to_id != to_id:
            return
        if epoch is None:
            return
        view = self.watch.known
        wish = Switchover(from_epoch=epoch, to_id=to_id, for_room=True)
        is_written = await self.writer.write_config(
            attrs.evolve(view.config, switchover=wish, room_requests=action.requests),
            [Unchanged(self.writer.keys.leader, view.leader_revision)],
        )
        if is_written:
            _log.error("successor_requested", to=to_id, epoch=epoch, reason=health.reason)
        await self.watch.refresh()

    async def _prepare_to_take_over(self) -> None:
        """Allocate what this node needs as master; without room the request is void."""
        try:
            with trio.fail_after(actions.HANDOVER_S):
                await self.facts.node.prepare_to_take_over()
        except (DiskError, trio.TooSlowError) as error:
            why = str(error) or "it took too long"
            await self.handover.void(f"{self.facts.me} cannot allocate its next log file: {why}")

    async def _take_over(self, epoch: int) -> None:
        await self._copy_tables()
        view = self.watch.known
        if decide(self._known()) != actions.TakeOver(epoch):
            return  # the wish was taken back meanwhile
        self._serves_within_s = min(_SERVES_WITHIN_S, self.facts.config.ttl_s)
        assert view.state is not None
        config = attrs.evolve(view.config, switchover=None)
        bid = Bid(
            epoch=epoch,
            members=begins_with(
                view.state.members,
                self.facts.me.node_id,
                self._members_min(),
                unable=actions.unable_ids(view.members.values(), view.state),
            ),
            why="switchover",
            leader=Unchanged(self.writer.keys.leader, view.leader_revision),
            writes=(Put(self.writer.keys.config, config.encode()),),
        )
        await self.writer.win(bid, self.leader)

    async def _copy_tables(self) -> None:
        """Copy topics, groups and offsets a last time, while the former master still answers."""
        slave = self.facts.node.role_node
        if isinstance(slave, Master) or slave.slave_synchronize is None:
            return
        if slave.slave_synchronize.address is not None:
            with trio.move_on_after(_LAST_COPY_S):
                await slave.slave_synchronize.copy_now()

    async def _become_master(self, action: actions.BecomeMaster) -> None:
        self.facts.following = self.facts.stands_in = None
        self.handover.end()
        state = self.watch.known.state
        promotion = Promotion(
            epoch=action.epoch,
            members=action.members,
            group_ids=None if state is None else state.registered,
        )
        within_s, self._serves_within_s = self._serves_within_s or self.facts.config.ttl_s, None
        try:
            with trio.move_on_after(within_s) as scope:
                await self.facts.node.become_master(promotion)
                await self._accept_log(state)
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
        self.abstention.served()
        self.term_serves()
        await self.member.publish(None)

    async def _accept_log(self, state: GroupState | None) -> None:
        """Let an unverified log count from now on if an operator has made it the group's.

        No other log is left that it could be compared with.  Raises DiskError.
        """
        identity, me = self.facts.node.identity, self.facts.me
        assert identity is not None, "a node that serves has one"
        found = identity.current.unverified
        if found is None or state is None or (state.master, state.members) != (me, (me,)):
            return
        if await self.facts.node.env.offload.run(lambda: identity.clear_unverified(found)):
            _log.warning(
                "unverified_log_accepted",
                begin=found.begin,
                end=found.end,
                reason=found.why,
                next="hastore cluster history names the failover",
            )

    async def _sit_out(self) -> None:
        """Give the key up, and let others win: what has failed here may fail again."""
        self.abstention.sit_out(self.clock())
        await self.leader.release()

    async def _follow(self, leader: Leader) -> None:
        self.facts.stands_in = None
        await self.leader.release()
        client = leader.client_address
        await self.facts.node.follow(
            parse_address(leader.ha_address),
            leader.epoch,
            client_port=None if client is None else parse_address(client),
        )
        self.facts.following = Following(ha_address=leader.ha_address, epoch=leader.epoch)
        self.facts.followed_id = leader.holder.node_id
        await self.member.publish(None)
