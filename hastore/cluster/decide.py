"""What a node of a group with a coordinator does next: a pure decision, made again at each change.

The first row that fits decides.  "The leader" is the ``leader`` key, which is there while its
holder's lease lasts; "the state" is what the group has agreed on::

    a master of epoch e                                                   it
    -----------------------------------------------------------------------------------------
    its deadline has passed                                               steps down
    the coordinator does not answer, and it has handed over in vain       takes puts again
    the coordinator does not answer                                       goes on
    the coordinator has gone back in time                                 raises the alarm
    another is the leader, or the state's master, or has a later epoch    steps down
    a node has seen a later epoch, which the coordinator has forgotten    steps down
    the leader is gone                                                    takes the key again
    a switchover is wished that cannot be, or while elections are paused  voids the wish
    the coordinator has refused to void the wish                          voids the wish
    a switchover has taken too long                                       voids the wish
    a switchover is wished                                                hands over
    the wish is gone, and it hands over                                   takes puts again
    it cannot store, and a member has room                                asks that one to take over
    otherwise                                                             goes on

    any other node                                                        it
    -----------------------------------------------------------------------------------------
    the coordinator does not answer                                       stays what it is
    the alarm is raised                                                   waits
    the coordinator has gone back in time                                 raises the alarm
    no state, all nodes are there and empty                               creates it
    no state otherwise                                                    waits
    the state is behind what this node has seen                           raises the alarm
    it is the leader, in this start                                       becomes master
    it is the leader, in this start, and cannot begin the epoch           gives the key up
    it is the leader, in an earlier start                                 waits for the lease's end
    a switchover to it is requested, and it lacks a file that it needs    allocates it
    a switchover to it is ready, and its dispatch is behind               waits
    a switchover to it is ready, and it has all                           takes the key over
    another is the leader, in an earlier epoch than this node has seen    says so, and waits
    another is the leader                                                 follows it
    no leader, and elections are paused                                   waits
    no leader, and it is not of the set (below)                           waits
    no leader, and it has not stood in this election                      stands
    its log ends below the floor                                          waits
    it is not proven, and a proven one stands                             waits
    none that stands is proven, and a member of the set does not stand    waits
    none that stands is proven, and an unverified one has more            waits
    its last promotion has just failed                                    waits
    it waits for better ones                                              waits
    it is the best of those that may win, or the better ones do not come  campaigns

Of those that stand only *proven* ones may win, while there is one.  A node is proven if it has kept
all that it acknowledged since the start in which the state names it, as far as its start could
prove that, and if its log is verified.  Without a proven one the longest verified log wins, once
every member of the set stands: one that is missing may be the one that has all.  A directory that
the coordinator did not recognise says nothing about the member whose id it has, which is missing.
The winner is named in its present start only once it serves: if its victory proved it, a node that
cannot serve would be the only one that may win.

*Barred*, and never elected, is a node that is not in the set with this directory, or whose log ends
below the floor: the confirm offset that the state has.

*Stands*: closes its link to the former master for good, and publishes its end.  So no PUT_OK can
depend on a node that stands but by the epoch that is elected; that, and not the lease, is why
nothing acknowledged is lost.

Times are seconds of one clock of this node that does not stop while the machine sleeps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

from hastore.cluster.storage import Rounds, begins_with
from hastore.concurrency.group_commit_request import LEASE_OVER
from hastore.epoch_history import EPOCH_JUMP_MAX
from hastore.ha.set_rules import nodes_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.cluster.group_records import (
        GroupState,
        GroupView,
        Incarnation,
        Leader,
        Member,
        RoomRequests,
        Switchover,
    )
    from hastore.store.node_identity import Unverified

ELECTION_WAIT_S: Final = 1.0  # for others that may stand
# A member that is not proven, and further behind than this (bytes), is not in a new set where acks
# are a number: no floor bounds its lag, and what it lacks is not confirmed before it has copied it.
UNPROVEN_LAG_MAX: Final = 16 * 2**20
HANDOVER_S: Final = 3.0  # at most, from the first refused put to the successor's key


# -- what is known -------------------------------------------------------------------------------


@final
@attrs.frozen(kw_only=True)
class Following:
    """The master that a node follows, or is to follow."""

    ha_address: str
    epoch: int


@final
@attrs.frozen(kw_only=True)
class OwnNode:
    """The deciding node."""

    node: Incarnation
    kept_since: int  # the earliest start from which on it has lost nothing
    doubt: str | None = None  # why that is not an earlier start
    seen_epoch: int
    last_epoch: int  # of its log
    end: int  # of its log
    undispatched: int = 0  # bytes that are confirmed, and that consumers cannot read yet
    priority: int = 0
    master_of: int | None = None  # the epoch; None: it is no master
    following: Following | None = None
    # The election that it stands in, by the revision of its state: it follows nobody since.
    stands_in: int | None = None
    holds_lease: bool = False  # of a leader key that it has written, or tried to write
    unverified: Unverified | None = None  # a part of its log; None if all of it counts
    unable_since: float | None = None  # since when it cannot store; None if it can
    is_file_wanted: bool = False  # its last log file is half full, and there is no next one
    has_next_file: bool = True  # it has allocated the log file after its last one


@final
@attrs.frozen(kw_only=True)
class Clock:
    """The times that a decision depends on."""

    now: float
    # Nobody stands before: promises of an earlier start have to run out.
    may_stand_from: float
    may_campaign_from: float = -math.inf  # others come first after a promotion that failed
    deadline: float | None = None  # of its own leader key; None: it holds none
    no_leader_since: float | None = None
    handover_since: float | None = None  # None: it hands over to nobody
    is_ready_sent: bool = False  # the successor may have been told that it can take over
    void_due: str | None = None  # why the request for a switchover is removed; puts are taken
    # When the group's last round of requests for a successor began.
    round_began: float = -math.inf
    wall_ms: int = 0


@final
@attrs.frozen(kw_only=True)
class Knowledge:
    """All that a decision depends on."""

    own: OwnNode
    clock: Clock
    view: GroupView | None  # the newest; None: none yet
    is_reachable: bool  # whether the coordinator answers, and ``view`` is what it says now
    # Of a group that its nodes create; None: a person does.
    initial_ids: frozenset[int] | None = None
    restored: str | None = None  # how this node has seen the coordinator go back in time
    # Why it is not reachable although it answers, such as a damaged key; None: it is silent.
    unusable_because: str | None = None

    @property
    def silence(self) -> str:
        """Why nothing is decided by the coordinator now."""
        return self.unusable_because or "the coordinator does not answer"

    hand_over_after_s: float = 3.0  # for so long a master may be unable to store
    min_in_sync_replicas: int = 1


# -- what to do ----------------------------------------------------------------------------------


@final
@attrs.frozen
class Wait:
    """Change nothing; decide again at ``until`` at the latest.  ``why`` is for people."""

    why: str
    until: float | None = None

    def __str__(self) -> str:
        return self.why


@final
@attrs.frozen
class StepDown:
    """Cease to be master, and follow nobody."""

    why: str

    def __str__(self) -> str:
        return f"it steps down: {self.why}"


@final
@attrs.frozen
class Retake:
    """Write the leader key again, in the same epoch, if the state has not moved."""

    def __str__(self) -> str:
        return "it takes the leader key again"


@final
@attrs.frozen
class Release:
    """Give the leader key up: somebody else may begin the next epoch."""

    why: str

    def __str__(self) -> str:
        return f"it gives the leader key up: {self.why}"


@final
@attrs.frozen
class HandOver:
    """Take no puts, and name the end of the log once the successor has all of it."""

    to_id: int

    def __str__(self) -> str:
        return f"it hands over to node {self.to_id}"


@final
@attrs.frozen
class VoidSwitchover:
    """Take the wish back, so that the successor cannot act on it; then take puts again."""

    why: str

    def __str__(self) -> str:
        return f"it takes the wish for a switchover back: {self.why}"


@final
@attrs.frozen
class TakePuts:
    """Take puts again: the successor was not told that it can take over, and cannot be."""

    def __str__(self) -> str:
        return "it takes puts again"


@final
@attrs.frozen
class RequestSuccessor:
    """Ask a member to take over, because this master cannot store and that one can."""

    to_id: int
    requests: RoomRequests  # what the group is to remember of it

    def __str__(self) -> str:
        return f"it cannot store, and asks node {self.to_id} to take over"


@final
@attrs.frozen
class PrepareToTakeOver:
    """Allocate the next log file before taking over; void the request if there is no room."""

    def __str__(self) -> str:
        return "it allocates its next log file before it takes over"


@final
@attrs.frozen
class TakeOver:
    """Replace the leader key of a master that has handed over, and begin ``epoch``."""

    epoch: int

    def __str__(self) -> str:
        return f"it takes over, as master of epoch {self.epoch}"


@final
@attrs.frozen(kw_only=True)
class CreateState:
    """Write the first state: these members, and no master yet."""

    members: tuple[Incarnation, ...]

    def __str__(self) -> str:
        return "it creates the group"


@final
@attrs.frozen
class RaiseAlarm:
    """Write the alarm, which stops elections until a person has looked."""

    why: str

    def __str__(self) -> str:
        return f"it raises the alarm: {self.why}"


@final
@attrs.frozen
class TellEpoch:
    """Write the epoch that this node has seen, so that the next one is later."""

    epoch: int

    def __str__(self) -> str:
        return f"it says that it has seen epoch {self.epoch}"


@final
@attrs.frozen
class BecomeMaster:
    """Begin the epoch that was won."""

    epoch: int
    members: frozenset[int]

    def __str__(self) -> str:
        return f"it becomes master of epoch {self.epoch}"


@final
@attrs.frozen
class Follow:
    """Become a slave of the leader."""

    leader: Leader

    def __str__(self) -> str:
        return f"it turns to {self.leader.holder}"


@final
@attrs.frozen
class Stand:
    """Follow nobody, then publish the end for the election of the state of this revision."""

    election: int

    def __str__(self) -> str:
        return "it stands for election"


@final
@attrs.frozen(kw_only=True)
class Campaign:
    """Write leader and state, if there is no leader and the state has not moved."""

    epoch: int
    members: tuple[Incarnation, ...]
    is_proven: bool = True  # whether it has proved that it has all that was acknowledged

    def __str__(self) -> str:
        return f"it campaigns for epoch {self.epoch}"


Action = (
    Wait
    | StepDown
    | Retake
    | Release
    | HandOver
    | VoidSwitchover
    | TakePuts
    | RequestSuccessor
    | PrepareToTakeOver
    | TakeOver
    | CreateState
    | RaiseAlarm
    | TellEpoch
    | BecomeMaster
    | Follow
    | Stand
    | Campaign
)


def decide(known: Knowledge) -> Action:
    """Return what the node does next: the table in the module's docstring."""
    if known.own.master_of is not None:
        return _decide_as_master(known, known.own.master_of)
    return _decide_as_other(known)


# -- a master ------------------------------------------------------------------------------------


def _decide_as_master(known: Knowledge, epoch: int) -> Action:
    clock, view, own = known.clock, known.view, known.own
    if clock.deadline is None or clock.now >= clock.deadline:
        return StepDown(LEASE_OVER)
    if not known.is_reachable or view is None or view.state is None:
        return _decide_without_answer(known, clock.deadline)
    if known.restored is not None and view.config.alarm is None:
        return RaiseAlarm(known.restored)
    state, leader = view.state, view.leader
    if state.epoch != epoch or state.master != own.node:
        return StepDown(_successor_text(state))
    if leader is not None and (leader.holder != own.node or leader.epoch != epoch):
        return StepDown(f"{leader.holder} is master of epoch {leader.epoch}")
    if view.config.seen_epoch > epoch and not view.config.is_paused:
        return StepDown(
            f"a node has seen epoch {view.config.seen_epoch}, and follows only later ones"
        )
    if leader is None:
        return Retake()
    return _decide_on_switchover(known, view, state, epoch)


def _decide_without_answer(known: Knowledge, deadline: float) -> Action:
    clock = known.clock
    if clock.handover_since is None or clock.is_ready_sent:
        return Wait(known.silence, deadline)
    until = clock.handover_since + HANDOVER_S
    if clock.now >= until:
        return TakePuts()
    return Wait(known.silence, min(until, deadline))


def _successor_text(state: GroupState) -> str:
    return f"{state.master} is master of epoch {state.epoch}"


def _decide_on_switchover(
    known: Knowledge, view: GroupView, state: GroupState, epoch: int
) -> Action:
    clock, wish = known.clock, view.config.switchover
    if wish is None:
        if clock.handover_since is not None:
            return VoidSwitchover("the wish was taken back")
        return _decide_on_storage(known, view, state, clock.deadline)
    reason = _why_void(wish, view, state, epoch) or clock.void_due
    if reason is not None:
        return VoidSwitchover(reason)
    if clock.handover_since is None:
        return HandOver(wish.to_id)
    until = clock.handover_since + HANDOVER_S
    if clock.now >= until:
        return VoidSwitchover(f"node {wish.to_id} did not take over within {HANDOVER_S:g} s")
    if wish.ready_end is None:
        return HandOver(wish.to_id)
    return Wait(f"it hands over to node {wish.to_id}", until)


def _decide_on_storage(
    known: Knowledge, view: GroupView, state: GroupState, deadline: float | None
) -> Action:
    """Ask for a successor if this master cannot store, and the group has not asked lately."""
    own, clock = known.own, known.clock
    if own.unable_since is None or view.config.is_paused or view.config.alarm is not None:
        return Wait("it is master", deadline)
    rounds = Rounds(
        last=view.config.room_requests,
        began=clock.round_began,
        epoch=state.epoch,
        unable_since=own.unable_since,
    )
    ask_at = max(own.unable_since + known.hand_over_after_s, rounds.may_ask_from)
    if clock.now < ask_at:
        return Wait("it is master, and cannot store", _earlier(deadline, ask_at))
    own_id = own.node.node_id
    able = (
        each
        for each in view.members.values()
        if each.node.node_id != own_id
        and each.last_epoch == state.epoch
        and why_not_proven(each, state) is None
    )
    successor = rounds.choose_successor(able, clock.now)
    if successor is None:
        is_over = clock.now >= rounds.over_at
        until = deadline if is_over else _earlier(deadline, rounds.over_at)
        return Wait("it is master, cannot store, and no other member has room", until)
    to_id = successor.node.node_id
    requests = rounds.asked(own_id, to_id, now=clock.now, wall_ms=clock.wall_ms)
    return RequestSuccessor(to_id, requests)


def _earlier(deadline: float | None, time: float) -> float:
    return time if deadline is None else min(time, deadline)


def _why_void(wish: Switchover, view: GroupView, state: GroupState, epoch: int) -> str | None:
    if view.config.is_paused:
        return "elections are paused"
    if wish.from_epoch != epoch:
        return f"it was wished in epoch {wish.from_epoch}"
    master = state.master
    if (master is not None and wish.to_id == master.node_id) or wish.to_id not in state.ids:
        return f"node {wish.to_id} is not another member of the SyncStateSet"
    target = view.members.get(wish.to_id)
    return None if target is None else why_no_successor(target, state)


# -- any other node ------------------------------------------------------------------------------


def why_alarm(known: Knowledge) -> str | None:
    """Return why the alarm is to be raised; None: it is raised, or nothing is wrong."""
    view, own = known.view, known.own
    if view is None or view.config.alarm is not None:
        return None
    if known.restored is not None:
        return known.restored
    if view.state is not None and view.state.epoch < own.last_epoch:
        return (
            f"{own.node} has messages of epoch {own.last_epoch}, and the coordinator knows epoch"
            f" {view.state.epoch}: it was restored to the past, or this is another group's"
            " directory"
        )
    return None


def _decide_on_alarm(known: Knowledge, view: GroupView) -> Action | None:
    """Return what to do if nobody may be elected before a person has looked; None: go on."""
    if view.config.alarm is not None:
        return Wait(f"alarm: {view.config.alarm}")
    why = why_alarm(known)
    return None if why is None else RaiseAlarm(why)


def _decide_as_other(known: Knowledge) -> Action:
    view, own = known.view, known.own
    if not known.is_reachable or view is None:
        return Wait(known.silence)
    stopped = _decide_on_alarm(known, view)
    if stopped is not None:
        return stopped
    state = view.state
    if state is None:
        return _create(known, view)
    if view.leader is None:
        return _decide_on_election(known, view, state)
    if view.leader.holder.node_id == own.node.node_id:
        return _decide_as_leader(known, state, view.leader)
    if _is_successor(own, view, state, view.leader):
        return _decide_as_successor(own, view, state, view.leader)
    return _decide_to_follow(own, view, view.leader)


def _decide_as_leader(known: Knowledge, state: GroupState, leader: Leader) -> Action:
    own, clock = known.own, known.clock
    if leader.holder != own.node:
        return Wait("it waits for the end of the lease of its earlier start")
    is_agreed = state.master == own.node and state.epoch == leader.epoch
    if clock.deadline is None or clock.now >= clock.deadline:
        why = "its lease is over"
    elif not is_agreed or leader.epoch <= own.seen_epoch:
        why = f"it has seen epoch {own.seen_epoch}, and begins no epoch twice"
    else:
        return BecomeMaster(leader.epoch, state.ids)
    if own.holds_lease:
        return Release(why)
    return Wait("it waits for the end of a lease of its own")


def _is_successor(own: OwnNode, view: GroupView, state: GroupState, leader: Leader) -> bool:
    """Return whether a switchover to this node is requested, and may be."""
    wish = view.config.switchover
    return (
        wish is not None
        and not view.config.is_paused
        and wish.to_id == own.node.node_id
        and wish.from_epoch == leader.epoch == state.epoch == own.last_epoch
        and why_not_proven(own, state) is None
    )


def _decide_as_successor(
    own: OwnNode, view: GroupView, state: GroupState, leader: Leader
) -> Action:
    wish = view.config.switchover
    assert wish is not None, "it is to this node"
    if _lacks_room(own, wish):
        return PrepareToTakeOver()
    if wish.ready_end != own.end:
        return _decide_to_follow(own, view, leader)
    if own.undispatched:  # a master dispatches before it serves, and puts would wait for it
        return Wait(f"it dispatches {own.undispatched} bytes before it takes over")
    return TakeOver(_next_epoch(own, view, state))


def _lacks_room(own: OwnNode, wish: Switchover) -> bool:
    """Return whether a node has to allocate its next log file before it takes over."""
    if wish.is_forced:
        return False
    return own.is_file_wanted or (wish.for_room and not own.has_next_file)


def _decide_to_follow(own: OwnNode, view: GroupView, leader: Leader) -> Action:
    following = Following(ha_address=leader.ha_address, epoch=leader.epoch)
    if own.following == following:
        return Wait(f"it follows {leader.holder}")
    if leader.epoch < own.seen_epoch:
        seen = f"it has seen epoch {own.seen_epoch}"
        if own.seen_epoch > leader.epoch + EPOCH_JUMP_MAX:
            return Wait(f"{seen}, far above {leader.epoch}: is identity.json damaged?")
        if view.config.seen_epoch < own.seen_epoch:
            return TellEpoch(own.seen_epoch)
        return Wait(f"{seen}, and {leader.holder} leads {leader.epoch}")
    return Follow(leader)


def _next_epoch(own: OwnNode, view: GroupView, state: GroupState) -> int:
    return max(state.epoch, own.seen_epoch, view.config.seen_epoch) + 1


def _create(known: Knowledge, view: GroupView) -> Action:
    ids, members = known.initial_ids, view.members
    if ids is None:
        return Wait("the coordinator does not know the group: hastore cluster init")
    missing = ids - members.keys()
    if missing:
        return Wait(f"a new group waits for {nodes_text(missing)}")
    used = frozenset(
        node_id for node_id in ids if members[node_id].last_epoch or members[node_id].end
    )
    if used:
        return Wait(
            f"the coordinator does not know the group, and {nodes_text(used)} has a log:"
            " hastore cluster init"
        )
    return CreateState(members=tuple(members[node_id].node for node_id in sorted(ids)))


# -- elections -----------------------------------------------------------------------------------


class Candidate(Protocol):
    """A node as elections see it: what it says of itself, or knows of itself."""

    @property
    def node(self) -> Incarnation: ...  # noqa: D102 - see ``Member``
    @property
    def kept_since(self) -> int: ...  # noqa: D102
    @property
    def doubt(self) -> str | None: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102
    @property
    def unverified(self) -> Unverified | None: ...  # noqa: D102


def why_barred(candidate: Candidate, state: GroupState) -> str | None:
    """Return why a node must not win any election; None if it may."""
    node, member = candidate.node, state.member(candidate.node.node_id)
    if member is None:
        return f"{node} is not in the SyncStateSet"
    if member.uuid != node.uuid:
        return f"the directory of {node} is not the one that was in the SyncStateSet"
    if node.start < member.start:
        return f"{node} is an older state of its directory"
    if candidate.end < state.confirm_offset:
        return (
            f"the log of {node} ends at {candidate.end}, and the group had confirmed up to"
            f" {state.confirm_offset}"
        )
    return None


def why_not_proven(candidate: Candidate, state: GroupState) -> str | None:
    """Return why a node may lack what it acknowledged as a member; None if it has proved otherwise.

    An unverified log counts only in the start that an operator has chosen: a state whose only
    member and master it is, which ``hastore cluster failover --accept-loss`` writes.  Once that
    start serves, its log is the group's, and is verified.
    """
    barred = why_barred(candidate, state)
    if barred is not None:
        return barred
    node, member = candidate.node, state.member(candidate.node.node_id)
    assert member is not None, "else it is barred"
    unverified = candidate.unverified
    if unverified is not None and not (state.master == node and state.members == (node,)):
        return f"{node} has to compare its log with a master's first: {unverified}"
    if candidate.kept_since > member.start:
        return f"{node} may have lost messages" + (
            f": {candidate.doubt}" if candidate.doubt else ""
        )
    return None


def why_no_successor(member: Member, state: GroupState) -> str | None:
    """Return why a node that is up cannot take over from the master; None if it can.

    The end that it has published may be older than the confirm offset in the state; at the
    handover the master waits until the successor has all of its log.
    """
    end = max(member.end, state.confirm_offset)
    return why_not_proven(attrs.evolve(member, end=end), state)


def unable_ids(members: Iterable[Member], state: GroupState) -> frozenset[int]:
    """Return which nodes cannot store, and have proved that they have all they acknowledged."""
    return frozenset(
        each.node.node_id
        for each in members
        if not each.can_store and why_not_proven(each, state) is None
    )


def _decide_on_election(known: Knowledge, view: GroupView, state: GroupState) -> Action:
    own, election = known.own, view.state_revision
    waits = _why_not_standing(known, view, state)
    if waits is not None:
        return waits
    if own.stands_in != election or not _has_published(own, view, election):
        return Stand(election)
    return _decide_as_candidate(known, view, state)


def _why_not_standing(known: Knowledge, view: GroupView, state: GroupState) -> Wait | None:
    """Return why a node does not stand now; None if it does."""
    own, clock = known.own, known.clock
    if view.config.is_paused:
        return Wait("there is no master, and elections are paused")
    # Below the floor it stands, too: others have to know how far its log is.
    reason = why_barred(attrs.evolve(own, end=max(own.end, state.confirm_offset)), state)
    if reason is None and own.seen_epoch > state.epoch + EPOCH_JUMP_MAX:
        reason = (
            f"{own.node} has seen epoch {own.seen_epoch}, far above {state.epoch}: is identity.json"
            " damaged?"
        )
    if reason is not None:
        return Wait(f"there is no master: {reason}")
    if clock.now < clock.may_stand_from and state.epoch:
        return Wait(
            "it does not stand yet: it has just started, or has promised so", clock.may_stand_from
        )
    # The end of a log that is not proven may be needed to choose another one.
    return _resting(known, state) if why_not_proven(own, state) is None else None


def _way_out(view: GroupView, state: GroupState) -> str:
    """Return what an operator can do if no member that is up has all that was confirmed."""
    up = [each for each in view.members.values() if each.node.node_id in state.ids]
    if not up or any(why_barred(each, state) is None for each in up):
        return ""
    missing = state.ids - {each.node.node_id for each in up}
    start = f"start {nodes_text(missing)}; if lost" if missing else "if no other log has it"
    best = max(up, key=lambda each: each.log_rank).node.node_id
    return (
        f", as no member that is up has it: {start}, hastore cluster failover --to {best}"
        " --accept-loss"
    )


def _resting(known: Knowledge, state: GroupState) -> Wait | None:
    """Return that a node lets others win, because it could not serve; None if it need not."""
    until = known.clock.may_campaign_from
    if known.clock.now >= until or not state.epoch:
        return None
    return Wait("it lets others campaign: its last promotion failed", until)


def _decide_as_candidate(known: Knowledge, view: GroupView, state: GroupState) -> Action:
    """Return what a node does that stands."""
    own, clock = known.own, known.clock
    below_floor = why_barred(own, state)
    if below_floor is not None:
        return Wait(f"there is no master: {below_floor}{_way_out(view, state)}")
    standing = _standing(view, state)
    proven = [each for each in standing if why_not_proven(each, state) is None]
    candidates = proven or _unproven_candidates(standing, view, state)
    if isinstance(candidates, Wait):
        return candidates
    candidates.sort(key=lambda each: _rank(each, state))
    place = next((i for i, each in enumerate(candidates) if each.node == own.node), None)
    if place is None:
        reason = why_not_proven(own, state) or f"{candidates[0].node} has more"
        return Wait(f"there is no master: {reason}")
    resting = _resting(known, state)
    if resting is not None:
        return resting
    began = clock.now if clock.no_leader_since is None else clock.no_leader_since
    former = None if state.master is None else state.master.node_id
    expected = state.ids - {former}
    has_all = expected <= {each.node.node_id for each in standing}
    # A better one that does not campaign is passed over after as long again.
    waits = place if has_all else place + 1
    until = began + waits * ELECTION_WAIT_S
    if clock.now < until:
        return Wait("it stands for election", until)
    return Campaign(
        epoch=_next_epoch(own, view, state),
        members=begins_with(
            _next_members(own, standing, state),
            own.node.node_id,
            known.min_in_sync_replicas,
            unable=unable_ids(proven, state),
        ),
        is_proven=bool(proven),
    )


def _has_published(own: OwnNode, view: GroupView, election: int) -> bool:
    """Return whether this start has: what an earlier one has said is there until its lease ends."""
    published = view.members.get(own.node.node_id)
    if published is None or published.unverified != own.unverified:
        return False
    return (published.node, published.election) == (own.node, election)


def _standing(view: GroupView, state: GroupState) -> list[Member]:
    """Return those that stand in this election and are not barred, the best one first."""
    found = [
        member
        for member in view.members.values()
        if member.election == view.state_revision and why_barred(member, state) is None
    ]
    return sorted(found, key=lambda each: _rank(each, None))


def _unproven_candidates(
    standing: list[Member], view: GroupView, state: GroupState
) -> list[Member] | Wait:
    """Return the nodes with the longest verified log; Wait while another one may have more.

    Of the nodes that stand none is proven.  Each member of the set must stand, in its newest start,
    also one whose log ends below the floor: what it has is known then.
    """
    missing = frozenset(member.node_id for member in state.members if not _is_there(member, view))
    if missing:
        disowned = missing & {
            member.node_id for member in state.members if _is_disowned(member, view)
        }
        unknown = (
            f"; the directory of {nodes_text(disowned)} is one that the coordinator did not"
            " recognise: hastore cluster failover --to ID --accept-loss"
        )
        return Wait(
            f"there is no master: no node has proved that it has all that was acknowledged, and it"
            f" takes the ends of all logs to choose one; missing: {nodes_text(missing)}"
            + (unknown if disowned else "")
        )
    verified = [each for each in standing if each.unverified is None]
    others = [each for each in standing if each.unverified is not None]
    if not verified or (others and others[0].log_rank > verified[0].log_rank):
        return Wait(
            "there is no master: no node has proved that it has all that was acknowledged, and the"
            " longest log is not verified; an operator decides: hastore cluster failover --to ID"
            " --accept-loss"
        )
    return [each for each in verified if each.log_rank == verified[0].log_rank]


def _is_there(member: Incarnation, view: GroupView) -> bool:
    """Return whether a member of the set says, in its newest start, how far its log is now.

    What it said while it followed may be old, and end below a floor that was written since.
    """
    said, registered = view.members.get(member.node_id), view.registrations.get(member.node_id)
    if said is None or registered is None or said.node.uuid != member.uuid:
        return False
    if said.node.start != registered.start or _is_disowned(member, view):
        return False
    return said.election == view.state_revision


def _is_disowned(member: Incarnation, view: GroupView) -> bool:
    """Return whether a copy of a member's directory, or an older state of it, is up instead of it.

    Until the state names a start of that history, what the member has is not known.
    """
    said = view.members.get(member.node_id)
    if said is None or said.node.uuid != member.uuid:
        return False
    is_refused = said.disowned_in is not None and said.disowned_in > member.start
    return is_refused or said.node.start < member.start


def _next_members(
    own: OwnNode, standing: list[Member], state: GroupState
) -> tuple[Incarnation, ...]:
    """Return the set that an epoch begins with: the winner, and all members that stand.

    A node that is not proven stays in the set, in the start that the state names: without it one
    copy might acknowledge, and it becomes proven once it has all that the new master confirms, or
    serves as that master.  One that is far behind joins once it has caught up.
    """
    members = []
    for each in standing:
        if why_not_proven(each, state) is None:
            members.append(each.node)
        elif state.acks == "all" or own.end - each.end <= UNPROVEN_LAG_MAX:
            named = state.member(each.node.node_id)
            assert named is not None, "else it is barred"
            members.append(named)
    return tuple(sorted(members))


def _rank(member: Member, state: GroupState | None) -> tuple[bool | int, ...]:
    """Return the key by which the best candidate comes first; without a state the longest log.

    One that cannot store comes last.  With a number as ``in_sync_replicas`` not every member has
    all that was acknowledged, so the newest and longest log comes first then.
    """
    log = -member.end_epoch, -member.end
    cannot_store = not member.can_store
    least = -member.priority, member.node.node_id
    if state is not None and state.acks == "all":
        return cannot_store, *log, *least
    return *log, cannot_store, *least
