"""A node does what the table of ``decide`` says, and never what would cost a message."""

import copy
import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.cluster import decide as module
from hastore.cluster.decide import (
    ELECTION_WAIT_S,
    HANDOVER_S,
    UNPROVEN_LAG_MAX,
    BecomeMaster,
    Campaign,
    Clock,
    CreateState,
    Follow,
    Following,
    HandOver,
    Knowledge,
    PrepareToTakeOver,
    RaiseAlarm,
    Release,
    RequestSuccessor,
    Retake,
    Stand,
    StepDown,
    TakeOver,
    TakePuts,
    TellEpoch,
    VoidSwitchover,
    Wait,
    decide,
    why_barred,
    why_not_proven,
)
from hastore.cluster.group_records import (
    GroupConfig,
    Incarnation,
    RoomRequests,
    Switchover,
)
from hastore.concurrency.group_commit_request import LEASE_OVER
from hastore.epoch_history import EPOCH_JUMP_MAX, EPOCH_MAX
from tests.cluster.knowledge import (
    FILLED,
    NOW,
    ONE,
    STATE_REVISION,
    THREE,
    TWO,
    incarnation,
    known,
    leader,
    own,
    published,
    state,
    view,
)

MASTER = own(ONE, master_of=5, holds_lease=True)
AGREED = view(state(), leader())
NO_LEADER = view(state(), None)
EMPTY = tuple(published(node, end=0, last_epoch=0) for node in (ONE, TWO, THREE))
ALL_STAND = tuple(published(node, election=STATE_REVISION) for node in (ONE, TWO, THREE))
STANDING = own(TWO, stands_in=STATE_REVISION)
# Nodes 1 and 3 were killed with their machines before their present starts, and node 2, too.
WHY = "its log ends at 7"
IN_DOUBT = tuple(
    attrs.evolve(
        published(incarnation(node_id, 2), election=STATE_REVISION, kept_since=2), doubt=WHY
    )
    for node_id in (1, 2, 3)
)
DOUBTFUL = own(incarnation(2, 2), kept_since=2, doubt=WHY, stands_in=STATE_REVISION)


def wished(**changes):
    """Return a group in which node 2 is wished to become master, with changes of the wish."""
    wish = attrs.evolve(Switchover(from_epoch=5, to_id=2), **changes)
    return attrs.evolve(AGREED, config=GroupConfig(switchover=wish))


def with_target(node, *, floor=0, **changes):
    """Return such a group, with what node 2 says of itself."""
    wish = wished().config
    return view(state(confirm_offset=floor), leader(), (published(node, **changes),), wish)


ROOM = {"can_store": True, "has_room": True, "link": "10.0.0.2:4000"}
MASTER_WITHOUT_ROOM = own(ONE, master_of=5, unable_since=NOW - 3)
FOLLOWS = {"following": Following(ha_address="10.0.0.1:10912", epoch=5)}


def with_room(*others):
    """Return a group whose master cannot store, with other nodes in it."""
    return view(state(), leader(), (published(ONE, can_store=False), *others))


def asked(*tried, epoch=5, pause_s=60):
    """Return a round of requests for a successor."""
    return RoomRequests(epoch=epoch, at_ms=0, pause_s=pause_s, tried=frozenset(tried))


def with_requests(seen, requests):
    """Return a group in which a master has asked for a successor before."""
    return attrs.evolve(seen, config=attrs.evolve(seen.config, room_requests=requests))


ROOMY = with_room(published(TWO, **ROOM), published(THREE, **ROOM))


def told(seen, epoch):
    """Return a group of which a node has said that it has seen an epoch."""
    return attrs.evolve(seen, config=attrs.evolve(seen.config, seen_epoch=epoch))


def paused(seen):
    """Return a group whose elections are paused."""
    return attrs.evolve(seen, config=attrs.evolve(seen.config, is_paused=True))


def elected(winner=TWO, epoch=6):
    """Return a group whose new master has the leader key."""
    return view(state(epoch, winner), leader(winner, epoch))


# By row of the table: what is known, and what is done.  The first case of a row is its plain one.
MASTERS_ROWS = {
    "its deadline has passed": [
        (known(MASTER, AGREED, deadline=NOW), StepDown(LEASE_OVER)),
        (known(MASTER, AGREED, deadline=None), StepDown(LEASE_OVER)),
        (known(MASTER, None, deadline=NOW, is_reachable=False), StepDown(LEASE_OVER)),
    ],
    "the coordinator does not answer, and it has handed over in vain": [
        (
            known(MASTER, AGREED, is_reachable=False, handover_since=NOW - HANDOVER_S),
            TakePuts(),
        ),
    ],
    "the coordinator does not answer": [
        (
            known(MASTER, AGREED, is_reachable=False, handover_since=NOW - 1),
            Wait("the coordinator does not answer", NOW - 1 + HANDOVER_S),
        ),
        # The successor may have been told: it may be master by now.
        (
            known(
                MASTER,
                AGREED,
                is_reachable=False,
                handover_since=NOW - HANDOVER_S,
                is_ready_sent=True,
            ),
            Wait("the coordinator does not answer", NOW + 5),
        ),
        (
            known(MASTER, AGREED, is_reachable=False),
            Wait("the coordinator does not answer", NOW + 5),
        ),
        (known(MASTER, None), Wait("the coordinator does not answer", NOW + 5)),
        (known(MASTER, view(None, None)), Wait("the coordinator does not answer", NOW + 5)),
        # What was known before it fell silent counts no more.
        (
            known(MASTER, elected(), is_reachable=False),
            Wait("the coordinator does not answer", NOW + 5),
        ),
    ],
    "the coordinator has gone back in time": [
        (known(MASTER, AGREED, restored="it went back"), RaiseAlarm("it went back")),
    ],
    "another is the leader, or the state's master, or has a later epoch": [
        (known(MASTER, elected()), StepDown("node 2 is master of epoch 6")),
        (known(MASTER, view(state(5, TWO), leader())), StepDown("node 2 is master of epoch 5")),
        (
            known(MASTER, view(state(), leader(TWO, 6))),
            StepDown("node 2 is master of epoch 6"),
        ),
        (known(MASTER, view(state(), leader(ONE, 6))), StepDown("node 1 is master of epoch 6")),
        (
            known(MASTER, view(state(5, incarnation(1, 2)), leader())),
            StepDown("node 1 is master of epoch 5"),
        ),
        (
            known(MASTER, view(state(), leader(incarnation(1, 2)))),
            StepDown("node 1 is master of epoch 5"),
        ),
        (known(MASTER, view(state(6, ONE), None)), StepDown("node 1 is master of epoch 6")),
        (known(MASTER, view(state(6, TWO), None)), StepDown("node 2 is master of epoch 6")),
    ],
    "a node has seen a later epoch, which the coordinator has forgotten": [
        (
            known(MASTER, told(AGREED, 6)),
            StepDown("a node has seen epoch 6, and follows only later ones"),
        ),
        (
            known(MASTER, told(NO_LEADER, 6)),
            StepDown("a node has seen epoch 6, and follows only later ones"),
        ),
        (known(MASTER, told(AGREED, 5)), Wait("it is master", NOW + 5)),
        # Nobody could be elected.
        (known(MASTER, paused(told(AGREED, 6))), Wait("it is master", NOW + 5)),
    ],
    "the leader is gone": [(known(MASTER, NO_LEADER), Retake())],
    "a switchover is wished that cannot be, or while elections are paused": [
        (
            known(MASTER, wished(to_id=1)),
            VoidSwitchover("node 1 is not another member of the SyncStateSet"),
        ),
        (
            known(MASTER, wished(to_id=4)),
            VoidSwitchover("node 4 is not another member of the SyncStateSet"),
        ),
        (known(MASTER, wished(from_epoch=4)), VoidSwitchover("it was wished in epoch 4")),
        (known(MASTER, paused(wished())), VoidSwitchover("elections are paused")),
        (
            known(MASTER, paused(wished(ready_end=1_000)), handover_since=NOW - 1),
            VoidSwitchover("elections are paused"),
        ),
        (
            known(MASTER, wished(from_epoch=4), handover_since=NOW - 1),
            VoidSwitchover("it was wished in epoch 4"),
        ),
        # Started again since, and not proven: it would not take over, and puts would wait for it.
        (
            known(MASTER, with_target(incarnation(2, 2), kept_since=2)),
            VoidSwitchover("node 2 may have lost messages"),
        ),
        (
            known(MASTER, with_target(TWO, unverified=FILLED), handover_since=NOW - 1),
            VoidSwitchover(
                "node 2 has to compare its log with a master's first: the log is not verified from"
                " 100 to 200: log repair filled it"
            ),
        ),
    ],
    "the coordinator has refused to void the wish": [
        (known(MASTER, wished(), void_due="too late"), VoidSwitchover("too late"))
    ],
    "a switchover has taken too long": [
        (
            known(MASTER, wished(), handover_since=NOW - HANDOVER_S),
            VoidSwitchover("node 2 did not take over within 3 s"),
        ),
        (
            known(MASTER, wished(ready_end=1_000), handover_since=NOW - HANDOVER_S),
            VoidSwitchover("node 2 did not take over within 3 s"),
        ),
    ],
    "a switchover is wished": [
        (known(MASTER, wished()), HandOver(2)),
        (known(MASTER, wished(), handover_since=NOW - 1), HandOver(2)),
        (
            known(MASTER, wished(ready_end=1_000), handover_since=NOW - 1),
            Wait("it hands over to node 2", NOW + 2),
        ),
        # Its end was published some time ago; the master waits until it has all.
        (known(MASTER, with_target(TWO, end=900, floor=950)), HandOver(2)),
        # What an earlier handover has said is not true of puts that came since.
        (known(MASTER, wished(ready_end=1_000)), HandOver(2)),
    ],
    "the wish is gone, and it hands over": [
        (known(MASTER, AGREED, handover_since=NOW - 1), VoidSwitchover("the wish was taken back"))
    ],
    "it cannot store, and a member has room": [
        (known(MASTER_WITHOUT_ROOM, ROOMY), RequestSuccessor(2, asked(1, 2))),
        # The longest log first, then the priority.
        (
            known(MASTER_WITHOUT_ROOM, with_room(published(THREE, end=1_001, **ROOM))),
            RequestSuccessor(3, asked(1, 3)),
        ),
        # Not before it could not for so long.
        (
            known(own(ONE, master_of=5, unable_since=NOW - 1), ROOMY),
            Wait("it is master, and cannot store", NOW + 2),
        ),
        # Nor soon after an earlier master has handed over.
        (
            known(
                MASTER_WITHOUT_ROOM,
                with_requests(ROOMY, asked(3, 1, epoch=4)),
                round_began=NOW - 56,
            ),
            Wait("it is master, and cannot store", NOW + 4),
        ),
        # A member that has voided the request is not asked again in the same round, but the next.
        (
            known(
                MASTER_WITHOUT_ROOM,
                with_requests(with_room(published(TWO, **ROOM)), asked(1, 2)),
                round_began=NOW - 56,
            ),
            Wait("it is master, cannot store, and no other member has room", NOW + 4),
        ),
        (
            known(
                MASTER_WITHOUT_ROOM,
                with_requests(ROOMY, asked(1, 2)),
                round_began=NOW - 5,
            ),
            RequestSuccessor(3, asked(1, 2, 3)),
        ),
        (
            known(MASTER_WITHOUT_ROOM, with_requests(ROOMY, asked(1, 2, 3)), round_began=NOW - 60),
            RequestSuccessor(2, asked(1, 2, pause_s=120)),
        ),
        (
            known(MASTER_WITHOUT_ROOM, with_room(published(TWO, can_store=True))),
            Wait("it is master, cannot store, and no other member has room", NOW + 5),
        ),
        (
            known(MASTER_WITHOUT_ROOM, with_room(published(TWO, **ROOM | {"link": None}))),
            Wait("it is master, cannot store, and no other member has room", NOW + 5),
        ),
        (  # it has not begun to follow yet
            known(MASTER_WITHOUT_ROOM, with_room(published(TWO, last_epoch=4, **ROOM))),
            Wait("it is master, cannot store, and no other member has room", NOW + 5),
        ),
        (  # not of the set, so it may lack what was acknowledged
            known(MASTER_WITHOUT_ROOM, with_room(published(incarnation(4), **ROOM))),
            Wait("it is master, cannot store, and no other member has room", NOW + 5),
        ),
        (known(MASTER_WITHOUT_ROOM, paused(ROOMY)), Wait("it is master", NOW + 5)),
    ],
    "otherwise": [(known(MASTER, AGREED), Wait("it is master", NOW + 5))],
}
OTHERS_ROWS = {
    "the coordinator does not answer": [
        (known(own(TWO), NO_LEADER, is_reachable=False), Wait("the coordinator does not answer")),
        (known(own(TWO), None), Wait("the coordinator does not answer")),
    ],
    "the alarm is raised": [
        (
            known(STANDING, view(state(), None, ALL_STAND, GroupConfig(alarm="restored"))),
            Wait("alarm: restored"),
        )
    ],
    "the coordinator has gone back in time": [
        (known(own(TWO), AGREED, restored="it went back"), RaiseAlarm("it went back")),
    ],
    "no state, all nodes are there and empty": [
        (
            known(own(TWO), view(None, None, EMPTY), initial_ids=frozenset({1, 2, 3})),
            CreateState(members=(ONE, TWO, THREE)),
        ),
        (  # others do not matter
            known(own(TWO), view(None, None, EMPTY), initial_ids=frozenset({1, 2})),
            CreateState(members=(ONE, TWO)),
        ),
    ],
    "no state otherwise": [
        (
            known(own(TWO), view(None, None, EMPTY)),
            Wait("the coordinator does not know the group: hastore cluster init"),
        ),
        (
            known(own(TWO), view(None, None, EMPTY[1:2]), initial_ids=frozenset({1, 2, 3})),
            Wait("a new group waits for nodes 1, 3"),
        ),
        (
            known(
                own(TWO),
                view(None, None, (*EMPTY[:2], published(THREE, last_epoch=0))),
                initial_ids=frozenset({1, 2, 3}),
            ),
            Wait(
                "the coordinator does not know the group, and node 3 has a log:"
                " hastore cluster init"
            ),
        ),
        (
            known(
                own(TWO),
                view(None, None, (*EMPTY[:2], published(THREE, end=0))),
                initial_ids=frozenset({1, 2, 3}),
            ),
            Wait(
                "the coordinator does not know the group, and node 3 has a log:"
                " hastore cluster init"
            ),
        ),
    ],
    "the state is behind what this node has seen": [
        (
            known(own(TWO, last_epoch=6, seen_epoch=6), AGREED),
            RaiseAlarm(
                "node 2 has messages of epoch 6, and the coordinator knows epoch 5: it was"
                " restored to the past, or this is another group's directory"
            ),
        )
    ],
    "it is the leader, in this start": [
        (known(own(TWO), elected(), deadline=NOW + 5), BecomeMaster(6, frozenset({1, 2, 3})))
    ],
    "it is the leader, in this start, and cannot begin the epoch": [
        (
            known(own(TWO, seen_epoch=6, holds_lease=True), elected(), deadline=NOW + 5),
            Release("it has seen epoch 6, and begins no epoch twice"),
        ),
        (
            known(own(TWO, holds_lease=True), elected(), deadline=NOW),
            Release("its lease is over"),
        ),
        (known(own(TWO, holds_lease=True), elected()), Release("its lease is over")),
        (
            known(
                own(TWO, holds_lease=True),
                view(state(7, THREE), leader(TWO, 6)),
                deadline=NOW + 5,
            ),
            Release("it has seen epoch 5, and begins no epoch twice"),
        ),
        (
            known(
                own(TWO, holds_lease=True),
                view(state(7, TWO), leader(TWO, 6)),
                deadline=NOW + 5,
            ),
            Release("it has seen epoch 5, and begins no epoch twice"),
        ),
        (known(own(TWO), elected()), Wait("it waits for the end of a lease of its own")),
    ],
    "it is the leader, in an earlier start": [
        (
            known(own(incarnation(2, 2)), elected(), deadline=NOW + 5),
            Wait("it waits for the end of the lease of its earlier start"),
        )
    ],
    "a switchover to it is requested, and it lacks a file that it needs": [
        (known(own(TWO, has_next_file=False), wished(for_room=True)), PrepareToTakeOver()),
        (
            known(own(TWO, has_next_file=False), wished(for_room=True, ready_end=1_000)),
            PrepareToTakeOver(),
        ),
        # Without a next file it can go on for a while, unless its last one is half full.
        (known(own(TWO, has_next_file=False, **FOLLOWS), wished()), Wait("it follows node 1")),
        (known(own(TWO, is_file_wanted=True), wished()), PrepareToTakeOver()),
        # An operator has said that it may take over without.
        (
            known(own(TWO, is_file_wanted=True), wished(is_forced=True, ready_end=1_000)),
            TakeOver(6),
        ),
    ],
    "a switchover to it is ready, and its dispatch is behind": [
        (
            known(own(TWO, undispatched=90), wished(ready_end=1_000)),
            Wait("it dispatches 90 bytes before it takes over"),
        ),
    ],
    "a switchover to it is ready, and it has all": [
        (known(own(TWO), wished(ready_end=1_000)), TakeOver(6)),
        (known(own(TWO, seen_epoch=8), wished(ready_end=1_000)), TakeOver(9)),
        (known(own(TWO), told(wished(ready_end=1_000), 8)), TakeOver(9)),
    ],
    "another is the leader, in an earlier epoch than this node has seen": [
        (known(own(TWO, seen_epoch=6), AGREED), TellEpoch(6)),
        (known(own(TWO, seen_epoch=7), told(AGREED, 6)), TellEpoch(7)),
        (
            known(own(TWO, seen_epoch=6), told(AGREED, 6)),
            Wait("it has seen epoch 6, and node 1 leads 5"),
        ),
        (  # told, it would be the last epoch of the group
            known(own(TWO, seen_epoch=EPOCH_MAX), AGREED),
            Wait("it has seen epoch 2147483647, far above 5: is identity.json damaged?"),
        ),
        (known(own(TWO, seen_epoch=5 + EPOCH_JUMP_MAX), AGREED), TellEpoch(5 + EPOCH_JUMP_MAX)),
    ],
    "another is the leader": [
        (known(own(TWO), AGREED), Follow(leader())),
        (
            known(own(TWO, following=Following(ha_address="10.0.0.1:10912", epoch=5)), AGREED),
            Wait("it follows node 1"),
        ),
        (
            known(own(TWO, following=Following(ha_address="10.0.0.1:10912", epoch=4)), AGREED),
            Follow(leader()),
        ),
        # A successor that is not that far, or may not stand, follows on.
        (known(own(TWO, end=999), wished(ready_end=1_000)), Follow(leader())),
        (known(own(TWO), wished()), Follow(leader())),
        (known(own(TWO, last_epoch=4), wished(ready_end=1_000)), Follow(leader())),
        (known(own(TWO, kept_since=2), wished(ready_end=1_000)), Follow(leader())),
        (known(own(TWO, unverified=FILLED), wished(ready_end=1_000)), Follow(leader())),
        (known(own(TWO), wished(from_epoch=4, ready_end=1_000)), Follow(leader())),
        (known(own(THREE), wished(ready_end=1_000)), Follow(leader())),
        (known(own(TWO), paused(wished(ready_end=1_000))), Follow(leader())),
    ],
    "no leader, and elections are paused": [
        (
            known(STANDING, view(state(), None, ALL_STAND, GroupConfig(is_paused=True))),
            Wait("there is no master, and elections are paused"),
        )
    ],
    "no leader, and it is not of the set (below)": [
        (
            known(own(TWO), view(state(members=(ONE, THREE)), None)),
            Wait("there is no master: node 2 is not in the SyncStateSet"),
        ),
        (
            known(own(Incarnation(2, "other", 9)), NO_LEADER),
            Wait(
                "there is no master: the directory of node 2 is not the one that was in the"
                " SyncStateSet"
            ),
        ),
        (
            known(own(TWO), view(state(members=(ONE, incarnation(2, 2))), None)),
            Wait("there is no master: node 2 is an older state of its directory"),
        ),
        (
            known(own(TWO, seen_epoch=EPOCH_MAX), NO_LEADER),
            Wait(
                "there is no master: node 2 has seen epoch 2147483647, far above 5: is"
                " identity.json damaged?"
            ),
        ),
        (
            known(own(TWO), NO_LEADER, may_stand_from=NOW + 3),
            Wait("it does not stand yet: it has just started, or has promised so", NOW + 3),
        ),
    ],
    "no leader, and it has not stood in this election": [
        (known(own(TWO), NO_LEADER), Stand(STATE_REVISION)),
        (known(own(incarnation(2, 3)), NO_LEADER), Stand(STATE_REVISION)),
        # Below the floor, not proven, or not verified: others have to know how far its log is.
        (known(own(TWO, end=999), view(state(confirm_offset=1_000), None)), Stand(STATE_REVISION)),
        (known(own(incarnation(2, 3), kept_since=2), NO_LEADER), Stand(STATE_REVISION)),
        (known(own(TWO, unverified=FILLED), NO_LEADER), Stand(STATE_REVISION)),
        (known(own(TWO, stands_in=39), view(state(), None, ALL_STAND)), Stand(STATE_REVISION)),
        (known(STANDING, NO_LEADER), Stand(STATE_REVISION)),
        (
            known(STANDING, view(state(), None, (published(TWO, election=39),))),
            Stand(STATE_REVISION),
        ),
        # What it says of itself has to name the present state of its log.
        (
            known(
                STANDING,
                view(state(), None, (published(TWO, election=STATE_REVISION, unverified=FILLED),)),
            ),
            Stand(STATE_REVISION),
        ),
        # An operator has chosen it, in this start, by failover --accept-loss.
        (
            known(own(TWO, unverified=FILLED), view(state(master=TWO, members=(TWO,)), None)),
            Stand(STATE_REVISION),
        ),
        # Before the first epoch nothing was promised to anybody.
        (
            known(
                own(TWO, seen_epoch=0, last_epoch=0, end=0),
                view(state(0, None), None),
                may_stand_from=NOW + 3,
            ),
            Stand(STATE_REVISION),
        ),
    ],
    "its log ends below the floor": [
        (
            known(
                attrs.evolve(STANDING, end=999),
                view(state(confirm_offset=1_000), None, ALL_STAND),
            ),
            Wait(
                "there is no master: the log of node 2 ends at 999, and the group had confirmed up"
                " to 1000"
            ),
        ),
    ],
    "it is not proven, and a proven one stands": [
        (
            known(DOUBTFUL, view(state(), None, (ALL_STAND[0], IN_DOUBT[1]))),
            Wait("there is no master: node 2 may have lost messages: its log ends at 7"),
        ),
        (
            known(
                attrs.evolve(STANDING, unverified=FILLED),
                view(
                    state(),
                    None,
                    (published(TWO, election=STATE_REVISION, unverified=FILLED), ALL_STAND[2]),
                ),
            ),
            Wait(
                "there is no master: node 2 has to compare its log with a master's first: the log"
                " is not verified from 100 to 200: log repair filled it"
            ),
        ),
    ],
    "none that stands is proven, and a member of the set does not stand": [
        (
            known(DOUBTFUL, view(state(), None, IN_DOUBT[:2])),
            Wait(
                "there is no master: no node has proved that it has all that was acknowledged, and"
                " it takes the ends of all logs to choose one; missing: node 3"
            ),
        ),
        # Up, but it has not said how far it is in this election.
        (
            known(
                DOUBTFUL,
                view(state(), None, (*IN_DOUBT[:2], attrs.evolve(IN_DOUBT[2], election=39))),
            ),
            Wait(
                "there is no master: no node has proved that it has all that was acknowledged, and"
                " it takes the ends of all logs to choose one; missing: node 3"
            ),
        ),
        # What it said as it followed, some seconds ago: its log may end above the floor now.
        (
            known(
                DOUBTFUL,
                view(state(confirm_offset=950), None, (*IN_DOUBT[:2], published(THREE, end=940))),
            ),
            Wait(
                "there is no master: no node has proved that it has all that was acknowledged, and"
                " it takes the ends of all logs to choose one; missing: node 3"
            ),
        ),
        # A copy that the coordinator did not recognise stands instead of it.
        (
            known(
                DOUBTFUL,
                view(state(), None, (*IN_DOUBT[:2], attrs.evolve(IN_DOUBT[2], disowned_in=2))),
            ),
            Wait(
                "there is no master: no node has proved that it has all that was acknowledged, and"
                " it takes the ends of all logs to choose one; missing: node 3; the directory of"
                " node 3 is one that the coordinator did not recognise: hastore cluster failover"
                " --to ID --accept-loss"
            ),
        ),
    ],
    "none that stands is proven, and an unverified one has more": [
        (
            known(
                DOUBTFUL,
                view(
                    state(),
                    None,
                    (
                        IN_DOUBT[0],
                        IN_DOUBT[1],
                        published(THREE, election=STATE_REVISION, end=1_001, unverified=FILLED),
                    ),
                ),
            ),
            Wait(
                "there is no master: no node has proved that it has all that was acknowledged, and"
                " the longest log is not verified; an operator decides: hastore cluster failover"
                " --to ID --accept-loss"
            ),
        ),
    ],
    "its last promotion has just failed": [
        # Its log's end is known all the same: without it nobody could be chosen.
        (
            known(
                DOUBTFUL,
                view(state(), None, IN_DOUBT),
                may_campaign_from=NOW + 9,
                no_leader_since=NOW - 60,
            ),
            Wait("it lets others campaign: its last promotion failed", NOW + 9),
        ),
        (
            known(attrs.evolve(DOUBTFUL, stands_in=None), NO_LEADER, may_campaign_from=NOW + 9),
            Stand(STATE_REVISION),
        ),
        # Proven ones do not need it, and the next set is better off without it.
        (
            known(own(TWO), NO_LEADER, may_campaign_from=NOW + 9),
            Wait("it lets others campaign: its last promotion failed", NOW + 9),
        ),
    ],
    "it waits for better ones": [
        (
            known(STANDING, view(state(), None, ALL_STAND[1:2]), no_leader_since=NOW),
            Wait("it stands for election", NOW + ELECTION_WAIT_S),
        ),
        (
            known(STANDING, view(state(), None, ALL_STAND), no_leader_since=NOW),
            Wait("it stands for election", NOW + ELECTION_WAIT_S),
        ),
        (
            known(STANDING, view(state(), None, ALL_STAND[:2]), no_leader_since=NOW),
            Wait("it stands for election", NOW + 2 * ELECTION_WAIT_S),
        ),
        (
            known(STANDING, view(state(), None, ALL_STAND[1:2])),
            Wait("it stands for election", NOW + ELECTION_WAIT_S),
        ),
    ],
    "it is the best of those that may win, or the better ones do not come": [
        # Nobody is proven, all are there: the longest log, which is loudly said.
        (
            known(
                DOUBTFUL,
                view(
                    state(),
                    None,
                    (
                        attrs.evolve(IN_DOUBT[0], end=999),
                        IN_DOUBT[1],
                        published(THREE, election=STATE_REVISION, end=1_000, unverified=FILLED),
                    ),
                ),
                no_leader_since=NOW,
            ),
            # Its victory does not prove it: the set names its present start once it serves.
            Campaign(epoch=6, members=(ONE, TWO, THREE), is_proven=False),
        ),
        # One whose log ends below the floor is there, and cannot win.
        (
            known(
                DOUBTFUL,
                view(
                    state(confirm_offset=1_000),
                    None,
                    (attrs.evolve(IN_DOUBT[0], end=999), *IN_DOUBT[1:]),
                ),
                no_leader_since=NOW - ELECTION_WAIT_S,
            ),
            Campaign(epoch=6, members=(TWO, THREE), is_proven=False),
        ),
        (
            known(STANDING, view(state(), None, ALL_STAND[1:]), no_leader_since=NOW),
            Campaign(epoch=6, members=(TWO, THREE)),
        ),
        (
            known(STANDING, view(state(), None, ALL_STAND), no_leader_since=NOW - ELECTION_WAIT_S),
            Campaign(epoch=6, members=(ONE, TWO, THREE)),
        ),
        (
            known(
                STANDING, view(state(), None, ALL_STAND[1:2]), no_leader_since=NOW - ELECTION_WAIT_S
            ),
            Campaign(epoch=6, members=(TWO,)),
        ),
        (
            known(
                attrs.evolve(STANDING, seen_epoch=8),
                view(state(), None, ALL_STAND[1:]),
                no_leader_since=NOW,
            ),
            Campaign(epoch=9, members=(TWO, THREE)),
        ),
    ],
}


def table():
    """Return the rows of the two tables in the module's docstring, in order."""
    _, masters, others = re.split(r" {4}.+? {5,}it\n {4}-+\n", module.__doc__)
    return [
        [line[4:74].strip() for line in part.split("\n\n")[0].splitlines() if line.strip()]
        for part in (masters, others)
    ]


def test_the_table_has_the_rows_that_are_tested():
    """In its order; a row that is added is tested."""
    assert table() == [list(MASTERS_ROWS), list(OTHERS_ROWS)]


def cases(rows):
    """Return the cases of a table, each named by its row."""
    return [
        pytest.param(knowledge, action, id=row + (f" ({number})" if number else ""))
        for row, found in rows.items()
        for number, (knowledge, action) in enumerate(found)
    ]


@pytest.mark.parametrize(("knowledge", "action"), cases(MASTERS_ROWS))
def test_a_master(knowledge, action):
    """It does what its row says."""
    assert decide(knowledge) == action


@pytest.mark.parametrize(("knowledge", "action"), cases(OTHERS_ROWS))
def test_any_other_node(knowledge, action):
    """It does what its row says."""
    assert decide(knowledge) == action


# -- elections ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"last_epoch": 5, "end": 1}, {"last_epoch": 4, "end": 9, "priority": 9}),
        ({"end": 1_001}, {"end": 1_000, "priority": 9}),
        ({"priority": 1}, {"priority": 0}),
    ],
)
def test_the_best_log_wins_then_the_priority(better, worse):
    """Whatever their ids are."""
    for first, second in ((TWO, THREE), (THREE, TWO)):
        candidates = (
            published(first, election=STATE_REVISION, **better),
            published(second, election=STATE_REVISION, **worse),
        )
        seen = view(state(), None, candidates)
        assert campaigns(seen, NOW) == {first: True, second: False}
        assert campaigns(seen, NOW + ELECTION_WAIT_S) == {first: True, second: True}


def test_who_cannot_store_comes_last():
    """Among those that have all that was acknowledged; with a number the log counts first."""
    candidates = (
        published(TWO, election=STATE_REVISION, end=1_001, priority=9, can_store=False),
        published(THREE, election=STATE_REVISION),
    )
    assert campaigns(view(state(), None, candidates), NOW) == {TWO: False, THREE: True}
    numbered = attrs.evolve(state(), acks="2")
    assert campaigns(view(numbered, None, candidates), NOW) == {TWO: True, THREE: False}
    alone = view(state(members=(TWO,)), None, candidates[:1])
    assert campaigns(alone, NOW) == {TWO: True}


def test_among_equals_the_lowest_id_wins():
    """So that two nodes never wait for each other."""
    assert campaigns(view(state(), None, ALL_STAND[1:]), NOW) == {TWO: True, THREE: False}


def campaigns(seen, now):
    """Return which of those that stand campaign, if the leader has been gone since ``NOW``."""
    return {
        each.node: isinstance(
            decide(
                Knowledge(
                    own=own(
                        each.node,
                        last_epoch=each.last_epoch,
                        end=each.end,
                        priority=each.priority,
                        stands_in=seen.state_revision,
                    ),
                    clock=Clock(now=now, may_stand_from=0, no_leader_since=NOW),
                    view=seen,
                    is_reachable=True,
                )
            ),
            Campaign,
        )
        for each in seen.members.values()
    }


def test_the_new_set_has_those_that_stand_now():
    """One that is not proven stays in the start that the state names, and proves nothing by it."""
    agreed = state(members=(ONE, TWO, THREE, incarnation(4), incarnation(5)))
    members = (
        published(ONE, election=STATE_REVISION - 1),
        published(TWO, election=STATE_REVISION),
        published(incarnation(3, 4), election=STATE_REVISION, kept_since=3),
        published(incarnation(4, 2), election=STATE_REVISION),
        published(incarnation(5), election=STATE_REVISION, unverified=FILLED),
        published(incarnation(6), election=STATE_REVISION),
    )
    later = known(STANDING, view(agreed, None, members), no_leader_since=NOW - ELECTION_WAIT_S)
    expected = (TWO, THREE, incarnation(4, 2), incarnation(5))
    assert decide(later) == Campaign(epoch=6, members=expected)


def test_an_unproven_copy_that_is_far_behind_joins_later_where_acks_are_a_number():
    """Nothing would be confirmed before it has copied all; under "all" the floor bounds its lag."""
    far = UNPROVEN_LAG_MAX + 1
    for lag, acks, stays in ((far, "2", False), (far - 1, "2", True), (far, "all", True)):
        others = (
            published(TWO, election=STATE_REVISION, end=far),
            published(incarnation(3, 2), election=STATE_REVISION, kept_since=2, end=far - lag),
        )
        seen = view(attrs.evolve(state(), acks=acks), None, others)
        own_node = attrs.evolve(STANDING, end=far)
        members = (TWO, THREE) if stays else (TWO,)
        assert decide(known(own_node, seen, no_leader_since=NOW)) == Campaign(
            epoch=6, members=members
        )


def test_an_unverified_member_stands_and_is_passed_over():
    """However long its log is."""
    others = (
        ALL_STAND[1],
        published(THREE, election=STATE_REVISION, end=2_000, unverified=FILLED),
    )
    now = known(STANDING, view(state(), None, others), no_leader_since=NOW)
    assert decide(now) == Campaign(epoch=6, members=(TWO, THREE))


def test_the_longest_of_unproven_logs_wins_alone():
    """A shorter one does not pass it over, however long it does not campaign."""
    longer = attrs.evolve(IN_DOUBT[0], end=1_001)
    late = known(
        DOUBTFUL, view(state(), None, (longer, *IN_DOUBT[1:])), no_leader_since=NOW - 1_000
    )
    assert isinstance(decide(late), Wait)


def test_a_disowned_log_counts_again_once_the_set_names_it():
    """A master has seen that it has all that is confirmed, or an operator has chosen it."""
    copy_of_3 = attrs.evolve(
        IN_DOUBT[2], node=incarnation(3, 4), kept_since=4, disowned_in=3, end=999
    )
    for named, is_there in ((incarnation(3, 2), False), (incarnation(3, 3), True)):
        seen = view(state(members=(ONE, TWO, named)), None, (*IN_DOUBT[:2], copy_of_3))
        action = decide(known(DOUBTFUL, seen, no_leader_since=NOW - 1_000))
        assert isinstance(action, Campaign) is is_there
    for start, is_there in ((5, False), (3, True)):  # an older state, whose key ids/3 is gone
        seen = view(
            state(members=(ONE, TWO, incarnation(3, start))),
            None,
            (*IN_DOUBT[:2], attrs.evolve(copy_of_3, disowned_in=None)),
        )
        action = decide(known(DOUBTFUL, seen, no_leader_since=NOW - 1_000))
        assert isinstance(action, Campaign) is is_there


@pytest.mark.parametrize(
    ("others", "way_out"),
    [
        ((IN_DOUBT[0], IN_DOUBT[2]), ", as no member that is up has it: if no other log has it,"),
        ((IN_DOUBT[0],), ", as no member that is up has it: start node 3; if lost,"),
        ((IN_DOUBT[0], attrs.evolve(IN_DOUBT[2], end=2_000)), None),
    ],
)
def test_where_all_members_lack_what_was_confirmed_the_command_is_named(others, way_out):
    """They are up, and wait for one another: a power cut took it from all of them."""
    said = attrs.evolve(IN_DOUBT[1], end=1_001)
    seen = view(state(confirm_offset=1_500), None, (said, *others))
    action = decide(known(attrs.evolve(DOUBTFUL, end=1_001), seen))
    why = (
        "there is no master: the log of node 2 ends at 1001, and the group had confirmed up to 1500"
    )
    if way_out is not None:
        why += f"{way_out} hastore cluster failover --to 2 --accept-loss"
    assert action == Wait(why)


def test_an_epoch_without_a_byte_does_not_make_a_log_newer():
    """A power cut took the end of epoch 5, and left the start of epoch 6, which was on the disk."""
    cut = attrs.evolve(IN_DOUBT[0], last_epoch=6, end_epoch=5, end=900)
    agreed = state(6, members=(ONE, TWO))
    seen = view(agreed, None, (cut, IN_DOUBT[1]))
    other = own(
        cut.node, kept_since=2, last_epoch=6, seen_epoch=6, end=900, stands_in=STATE_REVISION
    )
    assert isinstance(decide(known(DOUBTFUL, seen, no_leader_since=NOW - 1)), Campaign)
    assert isinstance(decide(known(other, seen, no_leader_since=NOW - 1_000)), Wait)


def test_an_unproven_winner_that_cannot_serve_lets_another_one_win():
    """One with an equal log, in the next epoch; one with a shorter log waits for it."""
    winner = own(incarnation(1, 2), kept_since=2, doubt=WHY, stands_in=STATE_REVISION)
    seen = view(state(), None, IN_DOUBT)
    won = decide(known(winner, seen, no_leader_since=NOW - 1_000))
    assert isinstance(won, Campaign)
    # It gave the key up: the state is of its epoch now.
    seen = view(state(won.epoch, winner.node, won.members), None, IN_DOUBT)
    assert why_not_proven(IN_DOUBT[0], seen.state) is not None
    rests = known(winner, seen, no_leader_since=NOW - 60, may_campaign_from=NOW + 300)
    assert isinstance(decide(rests), Wait)
    other = decide(known(DOUBTFUL, seen, no_leader_since=NOW - ELECTION_WAIT_S))
    assert other == Campaign(epoch=7, members=(ONE, TWO, THREE), is_proven=False)
    seen = view(seen.state, None, (attrs.evolve(IN_DOUBT[0], end=1_001), *IN_DOUBT[1:]))
    assert isinstance(decide(known(DOUBTFUL, seen, no_leader_since=NOW - 1_000)), Wait)


def test_an_unverified_start_that_an_operator_has_chosen_is_elected():
    """The state that ``hastore cluster failover --accept-loss`` writes names it alone."""
    own_node = own(TWO, unverified=FILLED, stands_in=STATE_REVISION)
    said = published(TWO, election=STATE_REVISION, unverified=FILLED)
    chosen = state(master=TWO, members=(TWO,))
    now = known(own_node, view(chosen, None, (said,)), no_leader_since=NOW)
    assert decide(now) == Campaign(epoch=6, members=(TWO,))
    later = attrs.evolve(own_node, node=incarnation(2, 2))
    said = attrs.evolve(said, node=later.node)
    assert isinstance(decide(known(later, view(chosen, None, (said,)))), Wait)


def test_what_an_earlier_start_has_said_is_not_said_by_this_one():
    """Its key lasts as long as its lease, with an end that may not be the log's any more."""
    early = own(incarnation(2, 2), end=900, stands_in=STATE_REVISION)
    assert decide(known(early, view(state(), None, ALL_STAND))) == Stand(STATE_REVISION)


# -- what always holds ----------------------------------------------------------------------------

IDS = range(1, 4)
EPOCHS = st.integers(4, 7)
ENDS = st.integers(998, 1_001)
TIMES = st.integers(96, 104)
STANDS_IN = st.sampled_from((None, STATE_REVISION - 1, STATE_REVISION))
STARTS = st.builds(
    Incarnation,
    st.sampled_from(IDS),
    st.sampled_from(("uuid-1", "uuid-2", "uuid-3")),
    st.integers(1, 3),
)
OWN_CHANGES = {
    "node": STARTS,
    "kept_since": st.integers(1, 3),
    "seen_epoch": EPOCHS,
    "last_epoch": EPOCHS,
    "end": ENDS,
    "undispatched": st.sampled_from((0, 90)),
    "priority": st.integers(0, 1),
    "master_of": st.none() | EPOCHS,
    "following": st.none()
    | st.builds(Following, ha_address=st.just("10.0.0.1:10912"), epoch=EPOCHS),
    "stands_in": STANDS_IN,
    "unverified": st.sampled_from((None, FILLED)),
    "holds_lease": st.booleans(),
}
CLOCK_CHANGES = {
    "now": TIMES,
    "may_stand_from": TIMES,
    "may_campaign_from": TIMES,
    "deadline": st.none() | TIMES,
    "no_leader_since": st.none() | st.integers(90, 96),
    "handover_since": st.none() | st.integers(90, 96),
}
STATE_CHANGES = {
    "confirm_offset": ENDS,
    "epoch": EPOCHS,
    "master": STARTS,
    "members": st.lists(STARTS, unique_by=lambda each: each.node_id, max_size=3).map(tuple),
}
LEADER_CHANGES = {"holder": STARTS, "epoch": EPOCHS}
WISHES = st.builds(
    Switchover,
    from_epoch=EPOCHS,
    to_id=st.sampled_from(IDS),
    ready_end=st.none() | st.just(1_000),
)
CONFIG_CHANGES = {
    "is_paused": st.booleans(),
    "switchover": st.none() | WISHES,
    "alarm": st.sampled_from((None, "restored")),
    "seen_epoch": st.just(0) | EPOCHS,
}
PUBLISHED_CHANGES = {
    "node": STARTS,
    "kept_since": st.integers(1, 3),
    "last_epoch": EPOCHS,
    "end_epoch": EPOCHS,
    "disowned_in": st.none() | st.integers(1, 3),
    "end": ENDS,
    "priority": st.integers(0, 1),
    "election": STANDS_IN,
    "unverified": st.sampled_from((None, FILLED)),
}
KNOWN = [knowledge for rows in (MASTERS_ROWS, OTHERS_ROWS) for row in rows.values()
         for knowledge, _ in row]  # fmt: skip


def changed(draw, value, changes):
    """Change one field of a value."""
    name = draw(st.sampled_from(sorted(changes)))
    return attrs.evolve(value, **{name: draw(changes[name])})


def changed_view(draw, seen):
    """Change one thing of a group as a coordinator has it."""
    what = draw(st.sampled_from(("state", "leader", "config", "members")))
    if what == "state":
        agreed = draw(st.sampled_from((None, seen.state, seen.state, seen.state)))
        if agreed is not None:
            agreed = changed(draw, agreed, STATE_CHANGES)
        revision = 0 if agreed is None else STATE_REVISION
        return attrs.evolve(seen, state=agreed, state_revision=revision)
    if what == "leader":
        holder = changed(draw, seen.leader or leader(), LEADER_CHANGES)
        return attrs.evolve(seen, leader=draw(st.sampled_from((holder, None))))
    if what == "config":
        return attrs.evolve(seen, config=changed(draw, seen.config, CONFIG_CHANGES))
    node = draw(st.sampled_from((ONE, TWO, THREE)))
    said = seen.members.get(node.node_id) or published(node)
    said = changed(draw, said, PUBLISHED_CHANGES)
    return attrs.evolve(seen, members={**seen.members, said.node.node_id: said})


def true_of_itself(node, seen):
    """Let a node say of its present start what is true; it has seen the epochs of its log."""
    node = attrs.evolve(
        node,
        kept_since=min(node.kept_since, node.node.start),
        seen_epoch=max(node.seen_epoch, node.last_epoch),
    )
    said = seen.members.get(node.node.node_id)
    if said is None or said.node != node.node:
        return node, seen
    said = attrs.evolve(
        said,
        kept_since=node.kept_since,
        last_epoch=node.last_epoch,
        end_epoch=min(said.end_epoch, node.last_epoch),
        end=node.end,
        priority=node.priority,
        unverified=node.unverified if said.election is not None else said.unverified,
    )
    return node, attrs.evolve(seen, members={**seen.members, said.node.node_id: said})


@st.composite
def knowledges(draw):
    """Return what a node knows in a case of the tables, with up to four changes."""
    base = draw(st.sampled_from(KNOWN))
    node, clock, seen = base.own, base.clock, base.view
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.sampled_from(("own", "clock", "view", "view")))
        if what == "own":
            node = changed(draw, node, OWN_CHANGES)
        elif what == "clock":
            clock = changed(draw, clock, CLOCK_CHANGES)
        elif seen is not None:
            seen = changed_view(draw, seen)
    if seen is not None:
        node, seen = true_of_itself(node, seen)
    is_reachable = base.is_reachable and draw(st.integers(0, 9)) > 0
    return attrs.evolve(base, own=node, clock=clock, view=seen, is_reachable=is_reachable)


def is_leaderless(seen):
    """Return whether an election is open: nobody leads, and no person has stopped it."""
    config = seen.config
    return seen.leader is None and config.alarm is None and not config.is_paused


@given(knowledges())
def test_a_master_whose_deadline_has_passed_steps_down(knowledge):
    """Whatever else it knows; and nobody but a master steps down."""
    own_node, clock = knowledge.own, knowledge.clock
    is_over = clock.deadline is None or clock.now >= clock.deadline
    action = decide(knowledge)
    if own_node.master_of is not None and is_over:
        assert isinstance(action, StepDown)
    if isinstance(action, StepDown):
        assert own_node.master_of is not None


@given(knowledges())
def test_nobody_acts_on_a_coordinator_that_does_not_answer(knowledge):
    """What is known of it may be long over: a master goes on, or its lease ends."""
    if knowledge.view is None or not knowledge.is_reachable:
        assert isinstance(decide(knowledge), Wait | StepDown | TakePuts)


@given(knowledges())
def test_nobody_campaigns_who_may_not_stand_or_has_not_published(knowledge):
    """Nor in an epoch that was seen; and all that it elects may stand, too."""
    action, own_node, seen = decide(knowledge), knowledge.own, knowledge.view
    if not isinstance(action, Campaign):
        return
    agreed = seen.state
    assert is_leaderless(seen)
    assert why_barred(own_node, agreed) is None
    is_proven = why_not_proven(own_node, agreed) is None
    assert is_proven is action.is_proven
    standing = {
        each.node.node_id: each
        for each in seen.members.values()
        if each.election == seen.state_revision and why_barred(each, agreed) is None
    }
    if not is_proven:
        assert own_node.unverified is None
        assert not any(why_not_proven(each, agreed) is None for each in standing.values())
        for member in agreed.members:
            said = seen.members[member.node_id]
            assert (said.node.uuid, said.election) == (member.uuid, seen.state_revision)
            assert said.disowned_in is None or said.disowned_in <= member.start
        longest = max(each.log_rank for each in standing.values() if each.unverified is None)
        assert standing[own_node.node.node_id].log_rank == longest
    assert knowledge.clock.now >= knowledge.clock.may_stand_from or not agreed.epoch
    assert own_node.stands_in == seen.state_revision
    assert knowledge.clock.now >= knowledge.clock.may_campaign_from or not agreed.epoch
    assert own_node.node.node_id in {each.node_id for each in action.members}
    seen_epoch = max(own_node.seen_epoch, seen.config.seen_epoch)
    assert action.epoch > max(seen_epoch, own_node.last_epoch, agreed.epoch)
    for member in action.members:
        said = standing[member.node_id]
        is_counted = why_not_proven(said, agreed) is None
        assert member == (said.node if is_counted else agreed.member(member.node_id))


@given(knowledges())
def test_nobody_takes_over_but_a_ready_successor(knowledge):
    """It was wished in this epoch, may stand, and has all that the master has."""
    action, own_node, seen = decide(knowledge), knowledge.own, knowledge.view
    if not isinstance(action, TakeOver):
        return
    wish, agreed = seen.config.switchover, seen.state
    assert wish.to_id == own_node.node.node_id != seen.leader.holder.node_id
    assert wish.from_epoch == seen.leader.epoch == agreed.epoch == own_node.last_epoch
    assert wish.ready_end == own_node.end
    assert not own_node.undispatched
    assert why_not_proven(own_node, agreed) is None
    assert action.epoch > max(own_node.seen_epoch, seen.config.seen_epoch, agreed.epoch)
    assert seen.config.alarm is None
    assert not seen.config.is_paused


@given(knowledges())
def test_nobody_becomes_master_but_of_a_new_epoch_that_it_has_won(knowledge):
    """In this start, and while its lease lasts."""
    action, own_node, seen = decide(knowledge), knowledge.own, knowledge.view
    if not isinstance(action, BecomeMaster):
        return
    assert (seen.leader.holder, seen.state.master) == (own_node.node, own_node.node)
    assert seen.leader.epoch == seen.state.epoch == action.epoch > own_node.seen_epoch
    assert action.members == seen.state.ids
    assert knowledge.clock.now < knowledge.clock.deadline
    assert seen.config.alarm is None


@given(knowledges())
def test_nobody_takes_the_key_again_after_its_epoch(knowledge):
    """Only while no other master was elected, and nobody has the key."""
    action, own_node, seen = decide(knowledge), knowledge.own, knowledge.view
    if isinstance(action, Retake):
        assert seen.leader is None
        assert (seen.state.epoch, seen.state.master) == (own_node.master_of, own_node.node)
        assert knowledge.clock.now < knowledge.clock.deadline


@given(knowledges())
def test_nobody_follows_itself_or_an_older_epoch(knowledge):
    """A master of an older epoch may still have its key."""
    action, own_node = decide(knowledge), knowledge.own
    if isinstance(action, Follow):
        assert action.leader.holder.node_id != own_node.node.node_id
        assert action.leader.epoch >= own_node.seen_epoch


@given(knowledges())
def test_nobody_creates_a_group_that_has_a_log(knowledge):
    """All nodes that are to be in it are there, and empty."""
    action, seen = decide(knowledge), knowledge.view
    if isinstance(action, CreateState):
        assert seen.state is None
        assert {each.node_id for each in action.members} == knowledge.initial_ids
        said = [seen.members[each.node_id] for each in action.members]
        assert not any(each.end or each.last_epoch for each in said)


@given(knowledges())
def test_a_wait_ends_later(knowledge):
    """A node that waits for a time that has passed would spin."""
    action = decide(knowledge)
    if isinstance(action, Wait) and action.until is not None:
        assert action.until > knowledge.clock.now


@given(knowledges())
def test_equal_knowledge_leads_to_equal_decisions(knowledge):
    """It depends on nothing else."""
    assert decide(copy.deepcopy(knowledge)) == decide(knowledge)


@st.composite
def groups(draw):
    """Return what three nodes know that see the same, and whose clocks show the same."""
    seen = draw(st.sampled_from([each.view for each in KNOWN if each.view is not None]))
    for _ in range(draw(st.integers(0, 3))):
        seen = changed_view(draw, seen)
    masters = st.sampled_from((None, None, 5, 6))
    nodes = []
    for node in (ONE, TWO, THREE):
        said = seen.members.get(node.node_id)
        one = own(
            node,
            stands_in=STATE_REVISION,
            master_of=draw(masters),
            end=1_000 if said is None else said.end,
            last_epoch=5 if said is None else said.last_epoch,
            priority=0 if said is None else said.priority,
        )
        if draw(st.booleans()):
            one = changed(draw, one, {**OWN_CHANGES, "node": st.just(node)})
        one, seen = true_of_itself(one, seen)
        nodes.append(one)
    began = draw(TIMES)
    clock = Clock(now=NOW, may_stand_from=0, deadline=NOW + 5, no_leader_since=began)
    return [Knowledge(own=each, clock=clock, view=seen, is_reachable=True) for each in nodes]


@given(groups())
def test_of_nodes_that_see_the_same_one_at_most_is_or_becomes_master(group):
    """And one at most takes over: whom the master hands over to.

    Without a state there is nothing to go by, and each master goes on until its lease ends.
    """
    if group[0].view.state is None:
        return
    actions = [decide(each) for each in group]
    goes_on = [
        each.own.master_of is not None and not isinstance(action, StepDown)
        for each, action in zip(group, actions, strict=True)
    ]
    assert sum(goes_on) + sum(isinstance(each, BecomeMaster) for each in actions) <= 1
    assert sum(isinstance(each, TakeOver) for each in actions) <= 1


@given(groups())
def test_of_nodes_that_see_the_same_each_campaigns_at_a_time_of_its_own(group):
    """The best log first, each next one a wait later: so it wins, if its node comes at all."""
    began = group[0].clock.no_leader_since
    places = []
    for each in group:
        for wait in range(len(IDS) + 1):
            clock = attrs.evolve(each.clock, now=began + wait * ELECTION_WAIT_S)
            if isinstance(decide(attrs.evolve(each, clock=clock)), Campaign):
                end_epoch = each.view.members[each.own.node.node_id].end_epoch
                places.append((wait, -end_epoch, -each.own.end))
                break
    assert len({wait for wait, _, _ in places}) == len(places)
    logs = [log for _, *log in sorted(places)]
    assert logs == sorted(logs)  # equal ones in the order of priorities and ids


@given(knowledges())
def test_nobody_tells_of_an_epoch_but_one_that_the_leader_does_not_know(knowledge):
    """It is written once."""
    action, own_node, seen = decide(knowledge), knowledge.own, knowledge.view
    if isinstance(action, TellEpoch):
        assert own_node.master_of is None
        assert action.epoch == own_node.seen_epoch
        assert action.epoch > max(seen.leader.epoch, seen.config.seen_epoch)
        assert seen.config.alarm is None
