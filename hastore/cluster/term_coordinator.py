"""The coordinator of one master's term: its set is what the group's ``state`` says.

::

    SyncStateSet ──proposal──▶ compare-and-swap of ``state`` ──▶ ACCEPTED, VOIDED
                                    ▲
    a later start of a member ──────┘    once it has acknowledged all that is confirmed,
                                         or, if it is the master, once it serves

A write without an answer may be made later, so it is sent again with the same comparison until an
answer or the state itself says what has become of it: the revision that it compares with moves
once, by it or by something else.

Invariant: a node is written into the set only in the start whose link has acknowledged; the master
in the start that serves.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.cluster.group_records import GroupState, Incarnation, read_group
from hastore.cluster.key_value_store import Put, Unchanged
from hastore.concurrency.tcp import describe, unmapped
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import CoordinatorError, ProtocolError
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.set_proposal import Answer
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.broker.node.master import Master
    from hastore.cluster.group_records import GroupView, Keys, Member
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.concurrency.lease import Lease
    from hastore.errors import HastoreError
    from hastore.ha.set_proposal import Proposal

RETRY_PAUSE_S: Final = 0.5  # after a request that was not answered
# From one write of the confirm offset to the next, while nothing else is written.
FLOOR_PAUSE_S: Final = 30.0

_log = logger("cluster")


@final
@attrs.frozen
class _Sent:
    """A write of a proposal, which may still be made while ``state`` has its revision."""

    proposal: Proposal
    members: tuple[Incarnation, ...]
    revision: int


@final
@attrs.define(eq=False)
class TermCoordinator:
    """Decides on the set of one master; ``run`` works until the term is over."""

    store: KeyValueStore
    keys: Keys
    own: Incarnation
    epoch: int
    lease: Lease | None
    _proposal: Proposal | None = attrs.field(default=None, init=False)
    _view: GroupView | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _sent: _Sent | None = attrs.field(default=None, init=False)  # the last attempt
    _failure: HastoreError | None = attrs.field(default=None, init=False)  # since the last answer
    _service: GroupHAService = attrs.field(init=False)
    _floor: Callable[[], int] = attrs.field(init=False)  # a record's end that all members have
    _floor_written_at: float = attrs.field(default=-math.inf, init=False)
    _serves: bool = attrs.field(default=False, init=False)

    def serves(self) -> None:
        """Let the state name the start of the master, which has all that its term confirms."""
        self._serves = True
        self._wake.wakeup()

    def propose(self, proposal: Proposal, /) -> Answer | None:
        """Ask for a change; the answer comes later, or not at all."""
        self._proposal = proposal
        self._wake.wakeup()
        return None

    def saw(self, view: GroupView, *, went_back: bool = False) -> None:
        """Take what the coordinator says now, unless something newer was read.

        ``went_back``: nothing newer is there any more, because it was restored to the past.
        """
        known = self._view
        is_same = known is not None and known.cluster_id == view.cluster_id
        if known is None or not is_same or went_back or view.revision >= known.revision:
            self._view = view
            self._wake.wakeup()

    async def run(self, master: Master) -> None:
        """Bring ``state`` and the set in line, until cancelled."""
        service = master.ha_service
        assert isinstance(service, GroupHAService), "a master of a group"
        self._service = service
        log, reput = master.message_store.commit_log, master.reput_message_service

        looks = deque([0], maxlen=2)  # what was dispatched then: flushed by now, as a rule

        def floor() -> int:
            # What is dispatched ends with a whole record.  The start of a file is not used: a
            # slave's log may end before the BLANK that precedes it.  What no disk has yet is not
            # used either: after a power cut of all nodes none could campaign.
            limit = min(service.confirm_offset(), log.flushed_offset)
            ends = (reput.committed_offset, *reversed(looks))
            return next((end for end in ends if end <= limit and end % log.file_size), 0)

        self._floor = floor
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wake_for_floor, lambda: looks.append(reput.committed_offset))
            await self._keep_in_line()

    async def _wake_for_floor(self, look: Callable[[], None]) -> None:
        while True:
            look()
            await trio.sleep(FLOOR_PAUSE_S)
            state = None if self._view is None else self._view.state
            if state is not None and self._with_floor(state) != state:
                self._wake.wakeup()

    async def _keep_in_line(self) -> None:
        while True:
            await self._wake.wait_for_running()
            self._tell_who_cannot_store()
            try:
                await self._write()
            except (CoordinatorError, ProtocolError) as error:
                await self._failed(error)
                self._wake.wakeup()

    async def _failed(self, error: CoordinatorError | ProtocolError) -> None:
        """Log a failure unless the last one was of its kind, and wait a moment."""
        if type(error) is not type(self._failure):
            _log.warning("set_not_written", reason=str(error), next=error.hint)
        self._failure = error
        await trio.sleep(RETRY_PAUSE_S)

    async def _write(self) -> None:
        group, proposal = self._service.sync_state_set, self._proposal
        self._take_registered()
        if proposal is not None and group.proposal is proposal:
            await self._write_proposal(proposal)
        elif self._view is not None and self._is_mine(self._view):
            await self._write_later_starts(self._view)

    def _take_registered(self) -> None:
        """Take the ids of the group, by which ``min_in_sync_replicas`` goes where it is not set."""
        view, group = self._view, self._service.sync_state_set
        if view is None or view.state is None or not self._is_mine(view):
            return
        if view.state.registered | group.accepted != group.group_ids:
            group.registered(view.state.registered, trio.current_time())
            self._service.set_changed()

    def _tell_who_cannot_store(self) -> None:
        """Let the set know which nodes say that they cannot store."""
        if self._view is None:
            return
        members = self._view.members.values()
        unable = frozenset(each.node.node_id for each in members if not each.can_store)
        if unable != self._service.sync_state_set.unable:
            self._service.sync_state_set.unable = unable
            self._service.set_changed()

    async def _read(self) -> GroupView:
        self._view = view = read_group(self.keys, await self.store.read(self.keys.base))
        return view

    def _is_mine(self, view: GroupView) -> bool:
        """Return whether this master's term goes on: nobody else writes the state meanwhile."""
        state, leader = view.state, view.leader
        return (
            state is not None
            and leader is not None
            and (state.epoch, state.master) == (self.epoch, self.own)
            and (leader.epoch, leader.holder) == (self.epoch, self.own)
        )

    # -- proposals -------------------------------------------------------------------------------

    async def _write_proposal(self, proposal: Proposal) -> None:
        """Write a proposal; return once it is answered, or the term is over."""
        group = self._service.sync_state_set
        while group.proposal is proposal:
            view = await self._read()
            if not self._is_mine(view):
                return  # an earlier attempt may have been made: it stays pending
            state = view.state
            assert state is not None, "it is mine"
            if state.proposal == proposal.number:
                await self._service.answer(proposal, Answer.ACCEPTED)
                return
            sent = self._sent
            if sent is None or (sent.proposal, sent.revision) != (proposal, view.state_revision):
                # Whatever was sent before is void.
                if state.ids != group.accepted:
                    await self._settle(view, state)
                    return
                members = self._members_of(proposal, view, state)
                if members is None:
                    await self._service.answer(proposal, Answer.VOIDED)
                    return
                self._sent = sent = _Sent(proposal, members, view.state_revision)
            change = attrs.evolve(state, members=sent.members, proposal=proposal.number)
            try:
                await self._swap(view, change)
            except CoordinatorError as error:
                await self._failed(error)

    def _members_of(
        self, proposal: Proposal, view: GroupView, state: GroupState
    ) -> tuple[Incarnation, ...] | None:
        """Return the members that a proposal asks for; None if a link's start is not known yet.

        None, too, while this master may decide by promises that the joining nodes have not made.
        """
        if proposal.joined and self.lease is not None and self.lease.rests_on_promises:
            return None
        found: list[Incarnation] = []
        for node_id in sorted(proposal.members):
            known = None if node_id in proposal.joined else state.member(node_id)
            if known is None:
                linked = self._linked(view, node_id)
                known = None if linked is None else linked.node
            if known is None:
                return None
            found.append(known)
        return tuple(found)

    async def _settle(self, view: GroupView, state: GroupState) -> None:
        """Bring the set and a state together that somebody else has written.

        A person removes nodes, and adds none.  So a state with another node is an older one, of a
        coordinator that was restored: a node in it may lack what was acknowledged since.
        """
        group = self._service.sync_state_set
        strange = state.ids - group.accepted
        if group.own_id not in state.ids:
            return
        if not strange:
            group.moved(state.ids, frozenset(), trio.current_time())
            self._service.set_changed()
            return
        _log.warning("set_restored", without=sorted(strange))
        kept = tuple(each for each in state.members if each.node_id not in strange)
        await self._swap(view, attrs.evolve(state, members=kept, proposal=None))

    # -- later starts ----------------------------------------------------------------------------

    async def _write_later_starts(self, view: GroupView) -> None:
        """Name the newest starts of members that have all that is confirmed.

        Until then they may stand only if they have lost nothing since the start that is named.
        """
        state, group = view.state, self._service.sync_state_set
        assert state is not None, "it is mine"
        if group.proposal is None and state.ids != group.accepted:
            await self._settle(view, state)
            return
        members = tuple(self._newest(view, member) for member in state.members)
        is_floor_due = trio.current_time() >= self._floor_written_at + FLOOR_PAUSE_S
        if members != state.members or (is_floor_due and self._with_floor(state) != state):
            await self._swap(view, attrs.evolve(state, members=members))

    def _with_floor(self, state: GroupState) -> GroupState:
        """Return a state with the confirm offset of now."""
        if self._service.sync_state_set.in_sync_replicas != "all":
            return state
        return attrs.evolve(state, confirm_offset=max(state.confirm_offset, self._floor()))

    def _newest(self, view: GroupView, member: Incarnation) -> Incarnation:
        if member.node_id == self.own.node_id:
            return self.own if self._serves else member
        linked = self._linked(view, member.node_id)
        if linked is None:
            return member
        # Another directory: a restored coordinator may name one that was thrown away since.
        is_newer = linked.node.uuid != member.uuid or linked.node.start > member.start
        return linked.node if is_newer else member

    def _linked(self, view: GroupView, node_id: int) -> Member | None:
        """Return what a node says of itself, if its acks are known to be of that start.

        They are on the link that it names, and it has acknowledged all that is confirmed, and all
        of the epochs before.
        """
        member, group = view.members.get(node_id), self._service.sync_state_set
        node = group.acks.get(node_id)
        if member is None or node is None or node.connection_id is None or node.ack_offset is None:
            return None
        connection = self._service.connections.get(node.connection_id)
        if connection is None or describe(unmapped(connection.address)) != member.link:
            return None
        # The confirm offset of a new term may be an old one; all that was acknowledged before it is
        # below its start.
        has_all = node.ack_offset >= max(group.confirm_offset, group.entry.start_offset)
        return member if has_all else None

    async def _swap(self, view: GroupView, change: GroupState) -> bool:
        self._floor_written_at = trio.current_time()
        put = Put(self.keys.state, self._with_floor(change).encode())
        outcome = await self.store.commit(self._unmoved(view), [put])
        self._failure = None
        return outcome.succeeded

    def _unmoved(self, view: GroupView) -> Sequence[Unchanged]:
        return [
            Unchanged(self.keys.state, view.state_revision),
            Unchanged(self.keys.leader, view.leader_revision),
        ]
