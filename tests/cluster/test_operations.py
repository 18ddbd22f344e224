"""What a person may change in a group: row by row, what is written, compared and refused."""

import re

import attrs
import pytest

from hastore.cluster import operations
from hastore.cluster.decide import (
    BecomeMaster,
    Campaign,
    Clock,
    Knowledge,
    OwnNode,
    RaiseAlarm,
    Stand,
    StepDown,
    decide,
)
from hastore.cluster.group_records import (
    EpochRecord,
    GroupConfig,
    GroupState,
    GroupView,
    Incarnation,
    Leader,
    Registration,
    Switchover,
    read_group,
)
from hastore.cluster.key_value_store import Absent, Delete, KeyValue, Put, Snapshot, Unchanged
from hastore.cluster.operations import Change
from hastore.errors import OperationRefusedError, ProtocolError
from tests.cluster.knowledge import FILLED
from tests.support.nodes.group_views import END, KEYS, NO_LEADER, OUTSIDE, member, node, view_of

IDS = frozenset({1, 2, 3})


def applied(view: GroupView, change: Change) -> GroupView:
    """Return the group after a change, read from the keys it writes."""
    found = {}
    assert view.state is None or view.state_revision
    if view.state is not None:
        found[KEYS.state] = view.state.encode()
    if view.leader is not None:
        found[KEYS.leader] = view.leader.encode()
    found |= {KEYS.member(each.node.node_id): each.encode() for each in view.members.values()}
    found |= {KEYS.registration(at): each.encode() for at, each in view.registrations.items()}
    for write in change.writes:
        match write:
            case Put(key, value):
                found[key] = value
            case Delete(key):
                found.pop(key, None)
    items = {key: KeyValue(key, value, 101, 101, None) for key, value in found.items()}
    return read_group(KEYS, Snapshot(view.cluster_id, 101, items))


def refused(operation, *arguments, **named):
    """Return the refusal of an operation as ``message → hint``."""
    with pytest.raises(OperationRefusedError) as caught:
        operation(KEYS, *arguments, **named)
    assert caught.value.exit_code == 6
    return f"{caught.value} → {caught.value.hint}"


# -- wishes --------------------------------------------------------------------------------------


def test_pause_and_resume_change_the_wish_only_and_keep_the_others():
    """What is so already is nothing to do."""
    view = view_of(config=GroupConfig(alarm="a"), config_revision=40)
    change = operations.pause(KEYS, view)
    assert change.comparisons == (Unchanged(KEYS.config, 40),)
    assert applied(view, change).config == GroupConfig(is_paused=True, alarm="a")
    assert operations.resume(KEYS, view).writes == ()
    paused = view_of(config=GroupConfig(is_paused=True))
    assert operations.pause(KEYS, paused).writes == ()
    change = operations.resume(KEYS, paused)
    assert change.comparisons == (Absent(KEYS.config),)
    assert applied(paused, change).config == GroupConfig()


def test_an_alarm_is_cleared_and_a_pause_stays():
    """Without one there is nothing to do."""
    view = view_of(config=GroupConfig(alarm="restored", is_paused=True), config_revision=40)
    change = operations.clear_alarm(KEYS, view)
    assert change.what == "the alarm is taken back: restored"
    assert applied(view, change).config == GroupConfig(is_paused=True)
    assert operations.clear_alarm(KEYS, view_of()).writes == ()


def test_an_alarm_and_an_epoch_without_a_proven_member_are_confirmed_one_after_the_other():
    """The text names what is confirmed: an operator may have looked at the alarm only."""
    both = GroupConfig(alarm="restored", unproven_epoch=7)
    view = view_of(config=both, config_revision=40)
    change = operations.clear_alarm(KEYS, view)
    assert change.what == (
        "the alarm is taken back: restored; the same command again confirms that epoch 7 began"
        " without a proven member"
    )
    after = attrs.evolve(view, config=applied(view, change).config)
    assert after.config == GroupConfig(unproven_epoch=7)
    change = operations.clear_alarm(KEYS, after)
    assert change.what == "it is confirmed that epoch 7 began without a proven member"
    assert applied(after, change).config == GroupConfig()


def test_after_a_restore_a_failover_goes_on_with_the_newest_log():
    """An alarm that would be raised again is not cleared; the epoch is after those of all logs."""
    alarm = GroupConfig(alarm="restored")
    members = (member(1), member(2, last_epoch=9), member(3, last_epoch=9))
    view = view_of(*members, config=alarm, config_revision=40, **NO_LEADER)
    told = refused(operations.clear_alarm, view)
    assert "node 2 has messages of epoch 9, and the coordinator knows epoch 7" in told
    assert "failover --to 2 --accept-loss" in told
    assert "failover --to 2 --accept-loss" in refused(operations.failover, view, 2, at_ms=1)
    change = operations.failover(KEYS, view, 2, at_ms=1, accept_loss=True)
    assert "may not know who has all" in change.what
    after = applied(view, change)
    assert after.config == GroupConfig()
    assert after.state is not None
    assert (after.state.epoch, after.state.members) == (10, (members[1].node,))
    assert not isinstance(decide(knowledge(after, 2, last_epoch=9, seen_epoch=9)), RaiseAlarm)


def test_without_a_master_an_alarm_is_not_cleared_but_a_failover_goes_on():
    """The set may be that of a backup, with a node that lacks what was acknowledged since."""
    alarm = {"config": GroupConfig(alarm="etcd was at revision 9"), "config_revision": 40}
    logs = (member(1), member(2, end=END + 5))
    view = view_of(*logs, **alarm, **NO_LEADER)
    told = refused(operations.clear_alarm, view)
    assert "no node is master" in told
    assert "failover --to 2 --accept-loss" in told
    told = refused(operations.failover, view, 2, at_ms=1)
    assert "the alarm is raised" in told
    assert "failover --to 2 --accept-loss" in told
    change = operations.failover(KEYS, view, 2, at_ms=1, accept_loss=True)
    assert Unchanged(KEYS.config, 40) in change.comparisons
    after = applied(view, change)
    assert after.config == GroupConfig()
    assert after.state == GroupState(epoch=8, master=node(2), members=(node(2),), registered=IDS)
    change = operations.clear_alarm(KEYS, view_of(*logs, **alarm))
    assert {Unchanged(KEYS.leader, 80), Unchanged(KEYS.state, 90)} < set(change.comparisons)


def test_a_switchover_is_a_wish_in_the_leaders_epoch():
    """Void once the leader or the wishes have changed."""
    change = operations.switchover(KEYS, view_of(), 3)
    assert set(change.comparisons) == {Absent(KEYS.config), Unchanged(KEYS.leader, 80)}
    wish = applied(view_of(), change).config.switchover
    assert wish == Switchover(from_epoch=7, to_id=3)


@pytest.mark.parametrize(
    ("members", "chosen"),
    [
        ((member(1), member(2), member(3)), 2),
        ((member(1), member(2, end=END - 1), member(3)), 3),
        ((member(1), member(2), member(3, priority=1)), 3),
        ((member(1), member(2, kept_since=5), member(3, end=0)), 3),
        ((member(1), member(2, unverified=FILLED), member(3, end=0)), 3),
        ((member(1), member(3, end=0)), 3),
        ((member(1), member(2, link=None), member(3, end=END - 1)), 3),
        ((member(1), member(2, can_store=False), member(3, end=0)), 3),
    ],
)
def test_without_a_name_the_best_member_is_wished(members, chosen):
    """The longest log, then the priority, then the lowest id, of those that may stand."""
    change = operations.switchover(KEYS, view_of(*members))
    wish = applied(view_of(), change).config.switchover
    assert wish is not None
    assert wish.to_id == chosen


UNDER_WAY = GroupConfig(switchover=Switchover(from_epoch=7, to_id=2))


@pytest.mark.parametrize(
    ("view", "to_id", "message"),
    [
        (view_of(), 1, "node 1 is the master already → name another node with --to"),
        (view_of(), 9, "the group has no node 9 → name another one, up now: nodes 1, 2, 3"),
        (view_of(member(1), member(2)), 3, "node 3 is not up → start it"),
        (
            view_of(member(1), member(2, link=None)),
            2,
            "node 2 did not follow the master of epoch 7",
        ),
        (view_of(member(1), member(2, last_epoch=6)), 2, "epoch 7 yet when .* → try again in some"),
        (view_of(state=OUTSIDE), 3, "cannot take over: node 3 is not in the SyncStateSet → wait"),
        (view_of(member(1), member(2, kept_since=4)), 2, "may have lost messages"),
        (
            view_of(member(1), member(2, unverified=FILLED), member(3)),
            2,
            "node 2 cannot take over: node 2 has to compare its log with a master's first",
        ),
        (
            view_of(member(1), member(2, can_store=False), member(3)),
            2,
            "node 2 cannot store: .* → hastore check of node 2 says why; choose another one, or --",
        ),
        (
            view_of(member(1, can_store=False), member(2, can_store=False)),
            None,
            "node 2 cannot store: .* says why; make room there, or --force",
        ),
        (view_of(config=GroupConfig(is_paused=True)), 2, "are paused → hastore cluster resume"),
        (view_of(config=GroupConfig(alarm="x")), 2, "alarm is raised: x → .*clear-alarm"),
        (view_of(config=UNDER_WAY), 3, "a switchover to node 2 is under way → wait for it"),
        (view_of(**NO_LEADER), 2, "no node is master now.*→ .*hastore cluster failover"),
        (view_of(state=None, state_revision=0), 2, "does not know the group → .*cluster init"),
        (view_of(member(1)), None, "no other node than node 1 is up and in the SyncStateSet"),
    ],
)
def test_a_switchover_that_cannot_be_is_refused(view, to_id, message):
    """Each by what is in the way, and the next step."""
    assert re.search(message, refused(operations.switchover, view, to_id))


def test_a_switchover_to_a_node_that_lags_is_refused():
    """By what the master says now: the ends in etcd are of different moments."""
    view = view_of(member(1, end=1 << 30), member(2), member(3))
    told = refused(operations.switchover, view, 2, lags={2: 17 << 20})
    assert re.search(r"node 2 lags by 17\.0 MiB, and puts would .* → wait until it has", told)
    assert operations.switchover(KEYS, view, 2, lags={2: 16 << 20}).writes
    assert operations.switchover(KEYS, view, 2).writes
    assert operations.switchover(KEYS, view, lags={2: 9, 3: 4}).to_id == 3


def test_a_switchover_to_a_node_that_cannot_store_can_be_forced():
    """It may be the only one that is left; the request says so, and that node prepares nothing."""
    view = view_of(member(1), member(2, can_store=False), member(3))
    change = operations.switchover(KEYS, view, 2, force=True)
    forced = Switchover(from_epoch=7, to_id=2, is_forced=True)
    assert applied(view_of(), change).config.switchover == forced


def test_a_wish_of_an_earlier_epoch_is_replaced():
    """It is void."""
    old = GroupConfig(switchover=Switchover(from_epoch=6, to_id=3, ready_end=4))
    change = operations.switchover(KEYS, view_of(config=old, config_revision=3), 2)
    assert applied(view_of(), change).config.switchover == Switchover(from_epoch=7, to_id=2)


@pytest.mark.parametrize(
    ("view", "uuid", "message"),
    [
        (view_of(), "uuid-2", None),
        (view_of(**NO_LEADER), "uuid-2", None),
        (view_of(member(1)), "uuid-2", None),
        (view_of(member(2)), "other", None),
        (view_of(member(2), state=GroupState(epoch=7, master=node(1), members=(node(1),))),
         "uuid-2", None),
        (view_of(member(2), **NO_LEADER), "uuid-2", "may be elected, and none is up → start"),
        (view_of(member(1, unverified=FILLED), member(3, kept_since=9)), "uuid-2",
         "may be elected: node 1 has to compare .*; node 3 may have lost .* → .*--accept-loss"),
        (view_of(member(3), state=OUTSIDE), "uuid-2", "node 3 is not in the SyncStateSet → start"),
        (view_of(state=None, state_revision=0), "uuid-2", "does not know the group"),
    ],
)  # fmt: skip
def test_a_repair_with_loss_needs_another_node_that_may_be_elected(view, uuid, message):
    """One that is up: those that are down may be unverified, too."""
    if message is None:
        operations.check_repair(view, 2, uuid)
        return
    with pytest.raises(OperationRefusedError) as caught:
        operations.check_repair(view, 2, uuid)
    assert re.search(message, f"{caught.value} → {caught.value.hint}")


# -- the state -----------------------------------------------------------------------------------

UNKNOWN = {"state": None, "state_revision": 0, **NO_LEADER}
EMPTY = tuple(member(each, end=0, last_epoch=0) for each in (1, 2, 3))


def test_a_new_group_begins_with_the_nodes_that_are_up():
    """No epoch and no master yet; a state or a leader that appears meanwhile voids it."""
    view = view_of(*EMPTY, **UNKNOWN)
    change = operations.init(KEYS, view)
    assert set(change.comparisons) == {Absent(KEYS.state), Absent(KEYS.leader)}
    state = applied(view, change).state
    assert state == GroupState(epoch=0, master=None, members=(node(1), node(2), node(3)))
    assert applied(view, operations.init(KEYS, view, {1, 3})).state == attrs.evolve(
        state, members=(node(1), node(3)), registered=frozenset({1, 3})
    )


def test_a_first_state_is_refused_where_a_log_could_be_missed():
    """A node that is not up, or one that has a log."""
    view = view_of(*EMPTY[:2], **UNKNOWN)
    assert "node 3 not up" in refused(operations.init, view)
    assert "node 3 not up" in refused(operations.init, view, {1, 3}, force=True)
    assert "nodes 1, 2" in operations.init(KEYS, view, force=True).what
    assert "no node is up" in refused(
        operations.init, view_of(**UNKNOWN, registrations={}, members={})
    )
    logs = view_of(EMPTY[0], member(2), member(3, end=5), **UNKNOWN)
    told = refused(operations.init, logs)
    assert "nodes 2, 3 already with a log" in told
    assert "--force, which takes the newest log of node 2: epoch 7, end 1000" in told


def test_an_epoch_without_a_byte_does_not_make_a_log_the_newest():
    """It begins above the end of a log that a power cut has shortened."""
    cut = member(2, end=900, last_epoch=8, end_epoch=7)
    view = view_of(EMPTY[0], cut, member(3), **UNKNOWN)
    assert "newest log of node 3: epoch 7, end 1000" in refused(operations.init, view)
    state = applied(view, operations.init(KEYS, view, force=True)).state
    assert state is not None
    assert (state.members, state.epoch) == ((node(3),), 8), "an epoch begins once"
    view = view_of(member(1, kept_since=5), cut, member(3), **NO_LEADER)
    told = refused(operations.failover, view, 1, at_ms=1)
    assert "node 3 lacks nothing: --to 3" in told
    alarm = view_of(cut, member(3), config=GroupConfig(alarm="restored"), **NO_LEADER)
    told = refused(operations.clear_alarm, alarm)
    assert "node 2 has messages of epoch 8" in told
    assert "failover --to 3 --accept-loss" in told


def test_force_takes_the_newest_log_and_never_overwrites_a_state():
    """All nodes with that log are members; the others come back as learners, and are cut."""
    view = view_of(EMPTY[0], member(2), member(3), **UNKNOWN)
    state = applied(view, operations.init(KEYS, view, force=True)).state
    members = (node(2), node(3))
    assert state == GroupState(epoch=7, master=node(2), members=members, registered=IDS)
    for force in (False, True):
        assert "has its state: epoch 7, SyncStateSet nodes 1, 2, 3" in refused(
            operations.init, view_of(), force=force
        )


def test_force_takes_an_unverified_log_only_if_it_is_named_alone():
    """What it lacks inside would be cut from all others."""
    repaired = member(2, end=END + 5, unverified=FILLED)
    view = view_of(member(1), repaired, member(3), **UNKNOWN)
    told = refused(operations.init, view, force=True)
    assert "that of node 2, and messages inside it may be missing" in told
    assert "--ids without 2 takes the newest log of the others; --ids 2 alone takes this" in told
    assert "inside it may be missing" in refused(operations.init, view, IDS, force=True)
    alone = view_of(repaired, **UNKNOWN)
    assert "inside it may be missing" in refused(operations.init, alone, force=True)
    for ids in ({1, 3}, {2}):
        state = applied(view, operations.init(KEYS, view, ids, force=True)).state
        assert state is not None
        assert state.ids == ids
    equal = view_of(member(1, unverified=FILLED), member(2), **UNKNOWN)
    state = applied(equal, operations.init(KEYS, equal, force=True)).state
    assert state is not None
    assert (state.master, state.members) == (node(2), (node(1), node(2)))


GARBAGE = {
    "state": None,
    "state_revision": 9,
    "damaged": {KEYS.state: "the coordinator's key state is not JSON"},
    **NO_LEADER,
}


def test_force_replaces_a_state_that_cannot_be_read():
    """By the newest log of all nodes, in an epoch after all that the history has."""
    logs = (member(1), member(2, end=END + 7), member(3, last_epoch=6))
    record = EpochRecord(epoch=8, master_id=1, former_id=None, end=5, why="election", at_ms=0)
    view = view_of(*logs, **GARBAGE, history=(record,))
    assert re.search("is not JSON → .*--force, which replaces it", refused(operations.init, view))
    change = operations.init(KEYS, view, force=True)
    assert set(change.comparisons) == {Unchanged(KEYS.state, 9), Absent(KEYS.leader)}
    state = applied(view, change).state
    registered = frozenset({1, 2, 3})
    assert state == GroupState(epoch=8, master=node(2), members=(node(2),), registered=registered)


def test_a_state_that_cannot_be_read_is_replaced_only_where_nothing_newer_can_be_missed():
    """Neither a node that is down, nor a master that goes on by its lease."""
    away = view_of(member(1), member(2), **GARBAGE)
    told = refused(operations.init, away, force=True)
    assert re.search("node 3 not up, and may have .* → start it; or leave it out: --ids$", told)
    assert operations.init(KEYS, away, {1, 2}, force=True).writes
    led = view_of(**GARBAGE | {"leader": view_of().leader, "leader_revision": 4})
    assert re.search(
        "node 1 is master, .* → stop node 1", refused(operations.init, led, force=True)
    )
    for key in (KEYS.leader, KEYS.config):
        with pytest.raises(ProtocolError, match="garbage"):
            operations.init(KEYS, view_of(**NO_LEADER, damaged={key: "garbage"}), force=True)


def test_a_node_whose_record_cannot_be_read_may_be_removed():
    """Its id would stay taken."""
    view = view_of(member(1), member(2), state=OUTSIDE, damaged={KEYS.registration(9): "garbage"})
    assert Delete(KEYS.registration(9)) in operations.remove(KEYS, view, 9).writes
    key = KEYS.member(3)
    items = {key: KeyValue(key, b"garbage", 77, 77, None)}
    view = attrs.evolve(
        view_of(member(1), member(2)),
        damaged=(found := read_group(KEYS, Snapshot(5, 100, items))).damaged,
        damaged_revisions=found.damaged_revisions,
    )
    change = operations.remove(KEYS, view, 3)
    assert Unchanged(key, 77) in change.comparisons, "it is there"
    assert Delete(key) in change.writes


def test_force_overwrites_a_state_that_an_alarm_says_is_an_old_one():
    """While there is no master; it has the newest log, and no epoch begins twice."""
    alarm = {"config": GroupConfig(alarm="etcd was restored"), "config_revision": 3}
    logs = (member(1), member(2, end=END + 7), member(3, last_epoch=6))
    view = view_of(*logs, **alarm, **NO_LEADER)
    change = operations.init(KEYS, view, force=True)
    assert set(change.comparisons) == {
        Unchanged(KEYS.state, view.state_revision),
        Unchanged(KEYS.config, 3),
        Absent(KEYS.leader),
    }
    state = applied(view, change).state
    assert state == GroupState(epoch=7, master=node(2), members=(node(2),), registered=IDS)
    assert applied(view, change).config == GroupConfig()
    assert "has its state" in refused(operations.init, view)
    assert "has its state" in refused(operations.init, view_of(*logs, **alarm), force=True)
    assert "has its state" in refused(operations.init, view_of(*logs, **NO_LEADER), force=True)
    empty = view_of(member(4, last_epoch=0, end=0), **alarm, **NO_LEADER)
    assert "no node that is up has a log" in refused(operations.init, empty, force=True)


def test_a_removed_node_leaves_the_set_and_its_id_is_free():
    """If neither state nor leader has changed, and it has not come up."""
    view = view_of(member(1), member(2))
    assert view.state is not None
    view = attrs.evolve(view, state=attrs.evolve(view.state, proposal=4))
    change = operations.remove(KEYS, view, 3)
    assert set(change.comparisons) == {
        Unchanged(KEYS.leader, 80),
        Unchanged(KEYS.state, 90),
        Absent(KEYS.member(3)),
    }
    after = applied(view, change)
    assert after.state is not None
    assert (after.state.ids, after.state.proposal) == ({1, 2}, None)
    assert set(after.registrations) == {1, 2}
    outside = view_of(member(1), member(2), state=OUTSIDE)
    change = operations.remove(KEYS, outside, 3)
    assert applied(outside, change).state == OUTSIDE
    assert not [write for write in change.writes if write.key == KEYS.state]


def test_a_removed_node_is_none_of_the_group_any_more():
    """Where it is not set, min_in_sync_replicas goes by the ids that the state has."""
    assert OUTSIDE is not None
    view = view_of(member(1), member(2), state=attrs.evolve(OUTSIDE, registered=IDS))
    after = applied(view, operations.remove(KEYS, view, 3)).state
    assert after is not None
    assert (after.ids, after.registered) == ({1, 2}, {1, 2})
    unknown = attrs.evolve(view, registrations={})  # nothing else is left of it
    assert applied(unknown, operations.remove(KEYS, unknown, 3)).state == after


@pytest.mark.parametrize(
    ("view", "node_id", "message"),
    [
        (view_of(), 9, "knows no node 9 → it knows nodes 1, 2, 3"),
        (view_of(), 1, "node 1 is the master of epoch 7 → hastore cluster switchover first"),
        (view_of(), 3, "node 3 is up, and would come back → stop it first"),
        (
            view_of(
                member(2),
                state=GroupState(epoch=7, master=node(1), members=(node(1),)),
                **NO_LEADER,
            ),
            1,
            "the only one of the SyncStateSet: no other has all messages → start it",
        ),
    ],
)
def test_a_removal_that_would_lose_messages_or_not_last_is_refused(view, node_id, message):
    """The master while it leads, a node that is up, the last one that has all."""
    assert message in refused(operations.remove, view, node_id)


def test_without_a_master_a_removal_needs_another_member_that_has_all():
    """Else the others would elect the longest of what they have, as if nobody had more."""
    doubtful = (member(2, kept_since=5, doubt="its log ends at 7"), member(3, end=0, kept_since=5))
    view = view_of(*doubtful, **NO_LEADER)
    told = refused(operations.remove, view, 1)
    assert "node 1 may be the only one that has all acknowledged messages: node 2 may" in told
    assert "→ start node 1; if it is lost: hastore cluster failover --to 2 --accept-loss" in told
    told = refused(operations.remove, view_of(doubtful[0], **NO_LEADER), 1)
    assert "→ start node 3 first; start node 1; if it is lost" in told
    told = refused(operations.remove, view_of(member(9), **NO_LEADER), 1)
    assert "no other member is up → start nodes 2, 3 first; start node 1" in told
    assert view.state is not None
    floor = attrs.evolve(view.state, confirm_offset=END + 1)
    told = refused(operations.remove, view_of(member(2), **NO_LEADER, state=floor), 1)
    assert "node 2 ends at 1000, and the group had confirmed up to 1001" in told
    for allowed in (
        view_of(member(2), **NO_LEADER),
        view_of(*doubtful),  # the master has all
        view_of(*doubtful, state=attrs.evolve(view.state, epoch=0, master=None), **NO_LEADER),
        view_of(*doubtful, state=GroupState(epoch=7, master=node(2), members=(node(2),)),
                **NO_LEADER),
    ):  # fmt: skip
        removed = 1 if allowed.leader is None else 3
        allowed = attrs.evolve(  # noqa: PLW2901 - that node is down
            allowed, members={at: e for at, e in allowed.members.items() if at != removed}
        )
        assert operations.remove(KEYS, allowed, removed).writes


# -- failover ------------------------------------------------------------------------------------


def test_a_failover_lets_one_node_stand_and_no_other():
    """In an epoch that nobody leads, so that the former master cannot go on in its own."""
    view = view_of(member(2), member(3), **NO_LEADER)
    change = operations.failover(KEYS, view, 3, at_ms=12)
    assert set(change.comparisons) == {
        Absent(KEYS.leader),
        Absent(KEYS.config),
        Unchanged(KEYS.state, 90),
    }
    after = applied(view, change)
    assert after.state == GroupState(epoch=8, master=node(3), members=(node(3),), registered=IDS)
    (record,) = after.history
    assert (record.epoch, record.former_id, record.master_id) == (8, 1, 3)
    assert (record.end, record.why, record.at_ms) == (END, "failover", 12)
    assert isinstance(decide(knowledge(after, 3)), Stand)
    standing = attrs.evolve(after.members[3], election=after.state_revision)
    after = attrs.evolve(after, members={**after.members, 3: standing})
    assert decide(knowledge(after, 3, stands_in=101)) == Campaign(epoch=9, members=(node(3),))
    assert "not in the SyncStateSet" in getattr(decide(knowledge(after, 2)), "why", "")


def knowledge(view: GroupView, node_id: int, **changes: object) -> Knowledge:
    """Return what a node knows that has all of epoch 7, long after its start."""
    own = OwnNode(node=node(node_id), kept_since=1, seen_epoch=7, last_epoch=7, end=END)
    clock = Clock(now=100.0, may_stand_from=0.0, deadline=110.0, no_leader_since=100.0)
    return Knowledge(own=attrs.evolve(own, **changes), clock=clock, view=view, is_reachable=True)


def test_what_nodes_have_that_were_asked_counts_as_a_loss_too():
    """With all only what is confirmed; with a number of acks all that another node has."""
    view = view_of(member(2), member(3), **NO_LEADER)
    known = {"lost": {"T": 5}, "at_ms": 1}
    free = operations.failover(KEYS, view, 3, confirmed={}, **known)
    assert applied(view, free).history[-1].why == "failover"
    told = refused(operations.failover, view, 3, confirmed={"T": 2}, **known)
    assert "it lacks 2 messages that another node has" in told
    assert view.state is not None
    counted = attrs.evolve(view, state=attrs.evolve(view.state, acks="2"))
    told = refused(operations.failover, counted, 3, confirmed={}, **known)
    assert "it lacks 5 messages that another node has" in told
    done = operations.failover(KEYS, counted, 3, confirmed={}, accept_loss=True, **known)
    record = applied(counted, done).history[-1]
    assert (record.why, record.lost) == ("failover with loss", {"T": 5})


def test_what_cannot_be_counted_counts_as_a_loss_too():
    """A damaged log may have messages, although none was found."""
    view = view_of(member(2), member(3), **NO_LEADER)
    known = {"at_ms": 1, "uncounted": {2}}
    free = operations.failover(KEYS, view, 3, confirmed={}, lost={}, **known)
    assert applied(view, free).history[-1].why == "failover"
    known["uncounted_confirmed"] = {2}
    told = refused(operations.failover, view, 3, confirmed={}, lost={}, **known)
    assert "what node 2 alone may have cannot be read, or counted" in told
    told = refused(operations.failover, view, 3, confirmed={"T": 2}, lost={"T": 2}, **known)
    assert "it lacks at least 2 messages that another node has" in told


def test_a_live_master_is_deposed_only_by_force_and_does_not_take_its_key_again():
    """Its key is deleted with the same transaction that names the other."""
    view = view_of()
    told = refused(operations.failover, view, 2, at_ms=1, accept_loss=True)
    assert "node 1 is master of epoch 7, and has its lease" in told
    assert "--force-with-live-master" in told
    change = operations.failover(KEYS, view, 2, at_ms=1, force_with_live_master=True)
    assert Unchanged(KEYS.leader, 80) in change.comparisons
    after = applied(view, change)
    assert after.leader is None
    assert isinstance(decide(knowledge(after, 1, master_of=7)), StepDown)
    leads = Leader(holder=node(2), epoch=9, ha_address="h2:1", client_address=None)
    agreed = GroupState(epoch=9, master=node(2), members=(node(2),))
    later = attrs.evolve(after, leader=leads, state=agreed)
    assert decide(knowledge(later, 2, seen_epoch=8)) == BecomeMaster(9, frozenset({2}))


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, OUTSIDE, "node 3 is not in the SyncStateSet; it lacks at least 1000 B"),
        ({"kept_since": 5}, None, "may have lost messages"),
        ({"node": Incarnation(3, "other", 9)}, None, "is not the one that was in the SyncStateSet"),
        ({"node": node(3, 1)}, None, "is an older state of its directory"),
        ({"unverified": FILLED}, None, "is not verified from 100 to 200: log repair filled it"),
    ],
)
def test_a_loss_is_said_first_and_accepted_by_name(changes, state, reason):
    """--force-with-live-master is not enough; the better choice is named."""
    lacking = member(3, end=0, **changes)
    view = view_of(member(2), lacking, **NO_LEADER)
    if state is not None:
        view = attrs.evolve(view, state=state)
    told = refused(operations.failover, view, 3, at_ms=1, force_with_live_master=True)
    assert reason in told
    assert "node 2 lacks nothing: --to 2; else: --to 3 --accept-loss" in told
    alone = attrs.evolve(view, members={3: lacking})
    assert "which has all; if it is lost: --accept-loss" in refused(
        operations.failover, alone, 3, at_ms=1
    )
    change = operations.failover(KEYS, view, 3, at_ms=1, accept_loss=True, lost={"T": 2})
    assert reason in change.what
    after = applied(view, change)
    assert after.state is not None
    assert after.state.members == (lacking.node,)
    assert after.history[-1].why == "failover with loss"
    assert after.history[-1].lost == {"T": 2}


@pytest.mark.parametrize(
    ("view", "to_id", "message"),
    [
        (view_of(), 1, "node 1 is the master already"),
        (view_of(member(2)), 3, "node 3 is not up"),
        (view_of(**NO_LEADER), 9, "the group has no node 9"),
        (view_of(config=GroupConfig(is_paused=True)), 2, "paused, so nobody would stand"),
        (view_of(config=GroupConfig(alarm="x")), 2, "clear-alarm"),
        (view_of(state=None, state_revision=0), 2, "hastore cluster init"),
    ],
)
def test_a_failover_that_cannot_be_is_refused_whatever_is_accepted(view, to_id, message):
    """Force and loss do not help against these."""
    assert message in refused(
        operations.failover,
        view,
        to_id,
        at_ms=1,
        accept_loss=True,
        force_with_live_master=True,
    )


# -- directories ---------------------------------------------------------------------------------


def test_a_node_leaves_the_set_before_its_directory_is_thrown_away():
    """As with remove; nothing is written for one that the group does not know any more."""
    view = view_of(member(1), member(2))
    change = operations.reinit(KEYS, view, 3, "uuid-3")
    after = applied(view, change)
    assert after.state is not None
    assert (after.state.ids, 3 in after.registrations) == ({1, 2}, False)
    again = attrs.evolve(view, state=after.state, registrations=after.registrations)
    assert operations.reinit(KEYS, again, 3, "uuid-3").writes == ()


@pytest.mark.parametrize(
    ("view", "node_id", "uuid", "message"),
    [
        (view_of(), 1, "uuid-1", "node 1 is the master of epoch 7.*switchover first"),
        (view_of(), 3, "uuid-3", "node 3 is up"),
        (view_of(member(1)), 3, "other", "another directory now.* → name the directory"),
        (view_of(member(2), **NO_LEADER), 3, "uuid-3", "no node is master now"),
    ],
)
def test_what_may_not_begin_again(view, node_id, uuid, message):
    """The master, a node that is up, an older directory; and nobody to copy from."""
    assert re.search(message, refused(operations.reinit, view, node_id, uuid))


BARE = {"state": None, "state_revision": 0, "leader": None, "leader_revision": 0}


def test_a_group_begins_with_an_adopted_log():
    """Nodes that wait with empty directories do not stand in the way."""
    node = Incarnation(1, "uuid-1", 1)
    empty = member(2, end=0, last_epoch=0)
    known = {2: Registration(uuid="uuid-2", start=1)}
    view = view_of(empty, registrations=known, **BARE)
    after = applied(view, operations.adopt(KEYS, view, node, "token-1"))
    assert after.registrations[1] == Registration(uuid="uuid-1", start=1, nonce="token-1")
    assert after.state is not None
    assert (after.state.epoch, after.state.master, after.state.members) == (1, node, (node,))


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (view_of(), "the group has begun: epoch 7"),
        (view_of(member(2), **BARE), "node 2 already with a log"),
        (view_of(member(2, end=0, last_epoch=0), **BARE), "nodes 1, 3 known to the coordinator"),
        (
            view_of(member(1, end=0, last_epoch=0), registrations={}, **BARE),
            "node 1 known to the coordinator",
        ),
    ],
)
def test_a_group_that_may_have_a_log_adopts_none(view, message):
    """Two logs that both begin with epoch 1 could not be told apart."""
    told = refused(operations.adopt, view, Incarnation(1, "uuid-1", 1), "token-1")
    assert message in told
