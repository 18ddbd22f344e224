"""Which nodes must have a message before it is acknowledged, and which have all that was.

No clock, no socket: the master of one epoch passes in what happens on its links, and passes the
proposals that come back on to the coordinator::

             has reached the confirm offset                accepted
    LEARNER ────────────────────────────────▶ PENDING ────────────────▶ MEMBER
       ▲  ▲                                      │                        │ its link is closed,
       │  └─────────────── voided ───────────────┘                        │ or it has stalled
       │                          accepted                                ▼
       └────────────────────────────────────────────────────────── MEMBER, leaving

What the answers to a proposal do; S is the accepted set, P the proposed one::

    event                      accepted   pending   puts wait for
    nothing is proposed        S          -         S
    P is proposed              S          P         S and P
    no answer                  S          P         S and P
    answered ACCEPTED          P          -         P
    answered VOIDED            S          -         S
    the state has moved to T   T          -         T

A proposal may be in force before its answer arrives, or without one.  So a node that joins is
awaited as soon as it is proposed, and one that leaves until that is accepted.  Awaited are the
nodes of these sets *now*, not those of the time of the put.

When members leave::

    its link closed                                   at once, if the rest without all absent nodes
                                                      is a majority of the configured ids
    likewise, < CLOSE_TOGETHER_S after another one's  CLOSE_TOGETHER_S later, on the same condition
    its link is closed, or it has stalled             after sync_state_timeout_s, if SetRules allow
    (``node_acks`` defines it)                        it of all such members together
    the master hands over                             never

A log under load moves on before a learner's ack of its end arrives, and a set of one confirms the
end: such a learner would never join (KAFKA-4485).  So one that is near is *held*: the confirm
offset waits for it, HOLD_S at most, until it is proposed.

Invariants: the master is in every set; the confirm offset never falls; it rises only to what all
awaited nodes have acknowledged, and only while min_in_sync_replicas members are accepted; at most
one proposal is unanswered.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.ha.node_acks import NodeAcks
from hastore.ha.set_proposal import Answer, Proposal
from hastore.ha.set_rules import MEMBERS_MAX, nodes_text

if TYPE_CHECKING:
    from hastore.config import InSyncReplicas
    from hastore.epoch_history import EpochEntry
    from hastore.ha.node_acks import NodeAck
    from hastore.ha.set_rules import SetRules

CLOSE_TOGETHER_S: Final = 1.0
HOLD_S: Final = 1.0
VOIDED_PAUSE_S: Final = 1.0  # from a voided proposal to the next one


@final
@attrs.define(eq=False, kw_only=True)
class SyncStateSet:
    """One epoch's set, seen by its master; offsets in bytes, times are trio's.

    Any call may change ``ack_limit`` and ``confirm_offset``, and return a proposal: its members
    are awaited from then on.
    """

    rules: SetRules
    own_id: int
    entry: EpochEntry  # the epoch; its start is the log's end when it began
    began: float
    accepted: frozenset[int]  # as the coordinator has it
    min_offset: int  # the first byte of the master's log
    # Consumers may read what is below.  <= the log's end.
    confirm_offset: int
    in_sync_replicas: InSyncReplicas = "all"
    # The ids of the group as the coordinator or, without one, the configuration has them, and all
    # members of this epoch; some may never have connected.
    group_ids: frozenset[int] = frozenset()
    # Nodes that may be elected although they left: the set has fewer than min_in_sync_replicas.
    eligible: frozenset[int] = frozenset()
    # Nodes that cannot store, by what they say: none of them joins while the set is large enough.
    unable: frozenset[int] = frozenset()
    # Puts that end here or below may be answered PUT_OK now; 0 while none may.  May fall.
    ack_limit: int = attrs.field(default=0, init=False)
    # The change that is not answered yet.
    proposal: Proposal | None = attrs.field(default=None, init=False)
    proposed_at: float = attrs.field(default=0.0, init=False)  # when ``proposal`` was made
    needed: frozenset[int] = attrs.field(init=False)  # accepted and proposed members
    acks: NodeAcks = attrs.field(init=False)
    _awaited: list[NodeAck] = attrs.field(init=False)  # ``needed`` and ``_held``, but the master
    _awaited_ids: frozenset[int] = attrs.field(init=False)
    _counted: list[NodeAck] = attrs.field(init=False)  # whose acks suffice with a number
    # The awaited node with the lowest ack, or with none; None: the master is alone.
    _slowest: NodeAck | None = attrs.field(default=None, init=False)
    _held: NodeAck | None = attrs.field(default=None, init=False)  # a learner
    _held_until: float = attrs.field(default=0.0, init=False)
    _no_hold_before: float = attrs.field(init=False)
    # Why former members of this epoch left, until they join again.
    _left: dict[int, str] = attrs.field(factory=dict, init=False)
    _must_ack: set[int] = attrs.field(factory=set, init=False)  # of ``_left``: no new ack since
    _proposals: int = attrs.field(default=0, init=False)
    _not_before: float = attrs.field(init=False)  # the next proposal
    _last_close: float | None = attrs.field(default=None, init=False)  # of an awaited link
    _settled_at: float = attrs.field(init=False)  # links that closed are looked at
    _looked_at: float = attrs.field(init=False)  # when all conditions were checked last
    # Whether members were late by then: one that is not any more may let the others leave.
    _has_late: bool = attrs.field(default=False, init=False)
    # With "all" everything below was written while a number may have been enough.
    _all_from: int = attrs.field(init=False)
    _confirmed_before: int = attrs.field(init=False)  # the confirm offset that the epoch began with
    _is_handing_over: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Expect the members, whose links are all closed."""
        assert self.own_id in self.accepted, f"{self.own_id} is not in {self.accepted}"
        assert self.in_sync_replicas == "all" or self.in_sync_replicas >= 1, self.in_sync_replicas
        assert self.confirm_offset <= self.entry.start_offset, self
        self._confirmed_before = self.confirm_offset
        self._all_from = self.entry.start_offset  # what earlier masters waited for is not known
        self.acks = NodeAcks(self.entry.start_offset)
        self._no_hold_before = self._not_before = self._settled_at = self.began
        self._looked_at = self.began
        for node_id in self.accepted - {self.own_id}:
            self.acks.expect(node_id, self.began)
        self._take_ids(self.group_ids)
        self._regroup()

    # -- what happens ----------------------------------------------------------------------------

    def advance(self, end_offset: int) -> bool:
        """Take the log's new end if it decides nothing; return False if ``appended`` must take it.

        It takes most ends at a third of the cost, and without a look at the clock.
        """
        acks = self.acks
        if acks.in_step or self._slowest is None or self.in_sync_replicas == 1:
            return False
        acks.end_offset = end_offset
        return True

    def appended(self, end_offset: int, now: float) -> bool:
        """Take the log's new end; return whether ``next_deadline`` may be earlier than before."""
        has_stalled = self.acks.appended(end_offset, now)
        if self._slowest is None or self.in_sync_replicas == 1:
            self._recount()
        return has_stalled

    def connected(
        self, node_id: int, connection_id: int, now: float, *, is_observer: bool = False
    ) -> Proposal | None:
        """Count a node's acks on this connection only, from now on.

        The connection's handshake has been answered in this epoch.  Ids of connections never
        return.  ``is_observer``: the node asked never to count (``asyncLearner``).
        """
        assert node_id != self.own_id, f"node {node_id} is this master"
        if is_observer:
            replaced = self.acks.observed(node_id, connection_id, now)
            return None if replaced is None else self._closed(replaced, now)
        node = self.acks.connected(node_id, connection_id, now)
        if node is self._held:
            self._release_held(now)
        if node_id in self._awaited_ids:
            self._recount()
            return self._look(now)
        return None

    def log_begins(self, connection_id: int, log_begin_offset: int, now: float) -> Proposal | None:
        """Take where the log of the node on this connection begins."""
        node = self.acks.on_connection(connection_id)
        if node is None:
            return None
        node.log_begin_offset = log_begin_offset
        return self._look(now)

    def acknowledged(self, connection_id: int, offset: int, now: float) -> Proposal | None:
        """Take an ack; ``offset`` never falls on a connection, and is <= the log's end."""
        node = self.acks.acknowledged(connection_id, offset, now)
        if node is None:
            return self._repeated(connection_id, now) if self._must_ack else None
        if node.node_id not in self._awaited_ids:
            return self._learner_acknowledged(node, now)
        if node is self._slowest or self.in_sync_replicas != "all":
            self._recount()
        if self._has_late or (node is self._held and offset >= self.confirm_offset):
            return self._look(now)
        return None

    def disconnected(self, connection_id: int, now: float) -> Proposal | None:
        """Forget a connection; it need not be one that counts."""
        node = self.acks.disconnected(connection_id, now)
        return None if node is None else self._closed(node, now)

    def expired(self, min_offset: int, now: float) -> Proposal | None:
        """Take the new first byte of the master's log."""
        self.min_offset = min_offset
        return self._look(now)

    def tick(self, now: float) -> Proposal | None:
        """Do what is due by now; to be called at ``next_deadline``."""
        return self._look(now)

    def next_deadline(self) -> float | None:
        """Return when to call ``tick``; None while only an event can change anything."""
        times = [self._not_before]
        if self._held is not None:
            times.append(self._held_until)
        if self.proposal is None and not self._is_handing_over:
            times.append(self._settled_at)
            times += (
                node.stalled_since + self.rules.sync_state_timeout_s
                for node in self._awaited
                if node.stalled_since is not None and node is not self._held
            )
        return min((time for time in times if time > self._looked_at), default=None)

    # -- the coordinator -------------------------------------------------------------------------

    def answer(self, proposal: Proposal, answer: Answer, now: float) -> Proposal | None:
        """Take the coordinator's answer to the proposal that is pending."""
        assert proposal is self.proposal, f"{proposal} is not pending"
        if answer is Answer.ACCEPTED:
            return self._accept(proposal.members, proposal.left, now)
        self.proposal = None
        self._not_before = now + VOIDED_PAUSE_S
        self._regroup()
        return self._look(now)

    def moved(
        self, members: frozenset[int], eligible: frozenset[int], now: float
    ) -> Proposal | None:
        """Take a set that was not proposed here; a pending proposal is void by it."""
        assert self.own_id in members, f"{self.own_id} is not in {members}"
        self.eligible = eligible
        left = dict.fromkeys(self.accepted - members, "was taken out of the set")
        return self._accept(members, left, now)

    def registered(self, ids: frozenset[int], now: float) -> Proposal | None:
        """Take the ids of the group as the coordinator has them: nodes were added or removed."""
        self._take_ids(ids)
        self._recount()
        return self._look(now)

    def _take_ids(self, ids: frozenset[int]) -> None:
        self.group_ids = ids | self.accepted
        self.rules = self.rules.for_ids(self.group_ids, self.in_sync_replicas)

    def hand_over(self) -> None:
        """Propose nothing from now on: this master stops, or hands over to another."""
        self._is_handing_over = True
        if self._held is not None:
            self._held = None
            self._regroup()

    def resume(self, now: float) -> Proposal | None:
        """Go on after ``hand_over``."""
        self._is_handing_over = False
        return self._look(now)

    def change_in_sync_replicas(self, in_sync_replicas: InSyncReplicas) -> None:
        """Decide puts by another level, those that wait included."""
        if in_sync_replicas == "all" != self.in_sync_replicas:
            self._all_from = self.acks.end_offset
        self.in_sync_replicas = in_sync_replicas
        self._take_ids(self.group_ids)
        self._recount()

    @property
    def is_all_in_force(self) -> bool:
        """Whether every message that was answered PUT_OK is on all members.

        Once they have what was in the log when the epoch began, or when a number became "all".
        """
        return self.in_sync_replicas == "all" and self.confirm_offset >= self._all_from

    @property
    def kept_offset(self) -> int | None:
        """Up to where all members have the log by their acks in this epoch, under "all".

        None before that: the confirm offset of an earlier master may have meant less.
        """
        if self.in_sync_replicas != "all" or self.confirm_offset <= self._confirmed_before:
            return None
        return self.confirm_offset

    # -- puts ------------------------------------------------------------------------------------

    def refused_because(self) -> str | None:
        """Return why no put may be written now; None if puts may be."""
        if self.rules.is_enough(self.accepted):
            return None
        return (
            f"the SyncStateSet is {nodes_text(self.accepted)} only, fewer than"
            f" {self.rules.least_text}"
        )

    def is_acknowledged(self, next_offset: int) -> bool:
        """Return whether a put that ends at ``next_offset`` may be answered PUT_OK now."""
        return next_offset <= self.ack_limit

    def acknowledged_by(self, next_offset: int) -> frozenset[int]:
        """Return the needed nodes that have a message which ends at ``next_offset``."""
        having = {
            node.node_id
            for node in self._awaited
            if node.ack_offset is not None and node.ack_offset >= next_offset
        }
        return self.needed & (having | {self.own_id})

    @property
    def held_id(self) -> int | None:
        """The learner for which the confirm offset waits until it is proposed."""
        return None if self._held is None else self._held.node_id

    def missing(self) -> frozenset[int]:
        """Return the needed nodes whose links are closed."""
        return frozenset(
            node.node_id
            for node in self._awaited
            if node.connection_id is None and node.node_id in self.needed
        )

    def unavailable_because(self) -> str | None:
        """Return why a put that waits now would wait in vain (SLAVE_NOT_AVAILABLE).

        None if all links are up that it needs, or if the set may shrink to those.
        """
        missing = self.missing()
        wanted = self.in_sync_replicas
        if wanted == "all":
            absent = missing & self.accepted
            reason = self._may_not_shrink_because(absent)
            if not absent or reason is None:
                return None
            return f"{nodes_text(absent)} not connected, and the set may not shrink: {reason}"
        up = 1 + sum(node.connection_id is not None for node in self._counted)
        if up >= wanted:
            return None
        return f"in_sync_replicas = {wanted}, and {up} of the SyncStateSet connected"

    def _may_not_shrink_because(self, absent: frozenset[int]) -> str | None:
        """Return why the set may not lose these members; None if it may."""
        if self._is_handing_over:
            proposed = self.accepted if self.proposal is None else self.proposal.members
            return "this master hands over" if absent & proposed else None
        return self.rules.may_not_remain_because(self.accepted - absent)

    # -- decisions -------------------------------------------------------------------------------

    def _recount(self) -> None:
        """Bring ``ack_limit`` and ``confirm_offset`` up to the acks."""
        least, slowest = self.acks.end_offset, None
        for node in self._awaited:
            ack_offset = node.ack_offset
            if ack_offset is None:
                least, slowest = 0, node
                break
            if ack_offset <= least:
                least, slowest = ack_offset, node
        self._slowest = slowest
        if len(self.accepted) < self.rules.min_in_sync_replicas:
            self.ack_limit = 0
            return
        self.confirm_offset = max(self.confirm_offset, least)
        wanted = self.in_sync_replicas
        self.ack_limit = least if wanted == "all" else self._limit_of(wanted)

    def _limit_of(self, wanted: int) -> int:
        """Return up to where ``wanted`` nodes have the log, the master included."""
        if wanted == 1:
            return self.acks.end_offset
        acks = [node.ack_offset for node in self._counted if node.ack_offset is not None]
        if len(acks) < wanted - 1:
            return 0
        return heapq.nlargest(wanted - 1, acks)[-1]

    def _regroup(self) -> None:
        """Find who is awaited, after a change of the sets; forget nodes that nothing needs."""
        proposed = self.accepted if self.proposal is None else self.proposal.members
        self.needed = self.accepted | proposed
        others = [self.acks.node(node_id) for node_id in sorted(self.needed - {self.own_id})]
        # Either set may be in force, so only an ack of a node in both suffices.
        self._counted = [node for node in others if node.node_id in self.accepted & proposed]
        self._awaited = others if self._held is None else [*others, self._held]
        self._awaited_ids = frozenset(node.node_id for node in self._awaited)
        for node in list(self.acks):
            if node.connection_id is None and node.node_id not in self.needed:
                self.acks.forget(node.node_id)
        self._recount()

    def _closed(self, node: NodeAck, now: float) -> Proposal | None:
        """Handle the end of a link that counted."""
        if node is self._held:
            self._release_held(now)
            return None
        if node.node_id not in self.needed:
            self.acks.forget(node.node_id)
            return None
        last = self._last_close
        is_together = last is not None and now - last < CLOSE_TOGETHER_S
        self._last_close = now
        self._settled_at = now + CLOSE_TOGETHER_S if is_together else now
        self._recount()
        return self._look(now)

    def _repeated(self, connection_id: int, now: float) -> Proposal | None:
        """Take a repeated ack: a former member that has all of the log has nothing newer."""
        node = self.acks.on_connection(connection_id)
        if node is None or node.node_id not in self._must_ack:
            return None
        has_all = node.ack_offset == self.acks.end_offset
        return self._learner_acknowledged(node, now) if has_all else None

    def _learner_acknowledged(self, node: NodeAck, now: float) -> Proposal | None:
        """Propose a learner that has all it needs, or hold the confirm offset for it."""
        assert node.ack_offset is not None
        self._must_ack.discard(node.node_id)
        is_near = node.is_near(self.acks.end_offset, now)
        if node.ack_offset >= self.confirm_offset:
            return None if self._barred_because(node) else self._look(now)
        is_busy = self._held is not None or self.proposal is not None or self._is_handing_over
        if not is_near or is_busy or now < max(self._no_hold_before, self._not_before):
            return None
        if self.rules.is_enough(self.accepted) and not self._barred_because(node):
            self._held, self._held_until = node, now + HOLD_S
            self._regroup()
        return None

    def _release_held(self, now: float) -> None:
        """Hold the confirm offset no longer, and for nobody else for a while."""
        self._held = None
        self._no_hold_before = now + self.rules.sync_state_timeout_s
        self._regroup()

    def _look(self, now: float) -> Proposal | None:
        """Check all conditions; propose what they ask for."""
        self._looked_at = now
        if self._held is not None and self._held_until <= now:
            self._release_held(now)
        if self.proposal is not None or self._is_handing_over or now < self._not_before:
            return None
        joined = self._joining()
        left = self._leaving(now)
        if not joined and not left:
            return None
        self._proposals += 1
        self.proposal = Proposal(
            number=self._proposals,
            members=(self.accepted | joined) - left.keys(),
            joined=joined,
            left=left,
        )
        self.proposed_at = now
        if self._held is not None and self._held.node_id in joined:
            self._held = None
        self._regroup()
        return self.proposal

    def _joining(self) -> frozenset[int]:
        """Return the learners to propose."""
        room = MEMBERS_MAX - len(self.accepted)
        ready = [
            node.node_id
            for node in self.acks
            if node.node_id not in self.accepted
            and node.ack_offset is not None
            and node.ack_offset >= self.confirm_offset
            and self._barred_because(node) is None
        ]
        return frozenset(ready[:room])

    def _barred_because(self, node: NodeAck) -> str | None:  # noqa: PLR0911 - a list of reasons
        """Return why a learner could not join even if it had reached the confirm offset."""
        ids, start_offset = self.rules.configured_ids, self.entry.start_offset
        if ids is not None and node.node_id not in ids:
            return f"the ids of the group are {', '.join(map(str, sorted(ids)))}"
        if node.node_id in self.unable and self.rules.is_enough(self.accepted):
            return "it cannot store: hastore check of that node says why"
        if node.ack_offset is None:
            return "it has acknowledged nothing on this connection"
        if node.ack_offset < start_offset:
            lacking = start_offset - node.ack_offset
            return f"it lacks {lacking} bytes below the start of epoch {self.entry.epoch}"
        if node.node_id in self._must_ack:
            return f"it {self._left[node.node_id]}, and has acknowledged nothing new since"
        if node.log_begin_offset is None:
            return "where its log begins is not known"
        if node.log_begin_offset > self.min_offset:
            begin = node.log_begin_offset
            return f"its log begins at {begin}, this master's at {self.min_offset}"
        if len(self.accepted) >= MEMBERS_MAX:
            return f"the set has {MEMBERS_MAX} members, which is the limit"
        return None

    def _leaving(self, now: float) -> dict[int, str]:
        """Return the members that are to leave, and why: the table in the module's docstring."""
        rules, accepted = self.rules, self.accepted
        members = [node for node in self._awaited if node.node_id in accepted]
        late = {
            node.node_id: (
                f"was not connected for {rules.sync_state_timeout_s:g} s"
                if node.connection_id is None
                else f"acknowledged nothing new for {rules.sync_state_timeout_s:g} s"
            )
            for node in members
            if node.stalled_since is not None
            and node.stalled_since + rules.sync_state_timeout_s <= now
        }
        self._has_late = bool(late)
        absent = {node.node_id for node in members if node.connection_id is None}
        if self._settled_at <= now and rules.is_majority(accepted - absent - late.keys()):
            closed = {
                node.node_id: "closed its link"
                for node in members
                if node.connection_id is None and node.has_connected
            }
            if rules.may_remain(accepted - closed.keys() - late.keys()):
                return closed | late
        return late if rules.may_remain(accepted - late.keys()) else {}

    def _accept(self, members: frozenset[int], left: dict[int, str], now: float) -> Proposal | None:
        """Put a set in force; nothing is pending after that."""
        for node_id in members - self.needed:
            self.acks.expect(node_id, now).restart(now)
        kept = {**self._left, **left}
        self._left = {node_id: kept[node_id] for node_id in list(kept)[-MEMBERS_MAX:]}
        for node_id in members & self._left.keys():
            del self._left[node_id]
        self._must_ack = (self._must_ack | left.keys()) & self._left.keys()
        self.accepted, self.proposal = members, None
        self._take_ids(self.group_ids)
        if self._held is not None and self._held.node_id in members:
            self._held = None
        if self.rules.is_enough(members):
            self.eligible = frozenset()
        self._regroup()
        return self._look(now)

    # -- status ----------------------------------------------------------------------------------

    def known_ids(self) -> list[int]:
        """Return the ids of all nodes but the master and the observers."""
        known = {node.node_id for node in self.acks} | self._left.keys()
        return sorted((known | (self.rules.configured_ids or set())) - {self.own_id})

    def why_not(self, node_id: int) -> str | None:
        """Return why a node is not in the set, or is to leave it; None for a member."""
        if node_id in self.needed:
            return self._why_pending(node_id)
        node = self.acks.get(node_id)
        if node is None:
            left = self._left.get(node_id)
            return "it has not connected in this epoch" if left is None else f"it {left}"
        barred = self._barred_because(node)
        if barred is not None:
            return barred
        assert node.ack_offset is not None
        if node.ack_offset < self.confirm_offset:
            lacking = self.confirm_offset - node.ack_offset
            waits = "; that waits for it" if node is self._held else ""
            return f"it lacks {lacking} bytes below the confirm offset{waits}"
        if self._is_handing_over:
            return "this master hands over"
        if self.proposal is not None:
            return f"proposal {self.proposal.number} is not answered yet"
        return "its proposal was voided; the next one follows"

    def _why_pending(self, node_id: int) -> str | None:
        if node_id not in self.accepted:
            return "it is proposed, and not accepted yet"
        if self.proposal is None or node_id not in self.proposal.left:
            return None
        return f"it {self.proposal.left[node_id]}; its removal is not accepted yet"
