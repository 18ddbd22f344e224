"""What a person changes in a group, as one transaction each, or why not: pure.

::

    GroupView, arguments ──▶ Change: comparisons and writes, made at once or not at all
                         ──▶ OperationRefusedError: what is in the way, and the next step

    pause, resume      elections stop, and go on
    switchover         the wish that another member becomes master; its master carries it out
    failover           the state names one node only, which may stand then
    remove, reinit     a node leaves the SyncStateSet, and its id is free
    adopt              the first state of a group that begins with a log of no group
    init               the first state
    clear_alarm        elections go on after a person has looked

A ``Change`` compares all that it was decided on, so it does nothing once that has moved: read the
group again, and decide again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.cluster.decide import why_no_successor, why_not_proven
from hastore.cluster.group_records import EpochRecord, GroupState, Registration, Switchover
from hastore.cluster.key_value_store import Absent, Delete, Put, Unchanged
from hastore.errors import OperationRefusedError
from hastore.ha.set_rules import nodes_text
from hastore.quantities import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hastore.cluster.group_records import (
        GroupConfig,
        GroupView,
        Incarnation,
        Keys,
        Leader,
        Member,
    )

SWITCHOVER_LAG_MAX: Final = 16 * 2**20  # bytes; what a link carries while puts wait


@final
@attrs.frozen(kw_only=True)
class Change:
    """One transaction, and in a sentence what it does; without writes there is nothing to do."""

    what: str
    to_id: int | None = None  # the node that is to become master
    comparisons: tuple[Absent | Unchanged, ...] = ()
    writes: tuple[Put | Delete, ...] = ()


# -- wishes --------------------------------------------------------------------------------------


def pause(keys: Keys, view: GroupView) -> Change:
    """Stop elections; a master that leads goes on, and renews its lease."""
    if view.config.is_paused:
        return Change(what="elections are paused already")
    config = attrs.evolve(view.config, is_paused=True)
    return _config_change("elections are paused: no other node becomes master", keys, view, config)


def resume(keys: Keys, view: GroupView) -> Change:
    """Let elections go on."""
    if not view.config.is_paused:
        return Change(what="elections are not paused")
    config = attrs.evolve(view.config, is_paused=False)
    return _config_change("elections go on", keys, view, config)


def clear_alarm(keys: Keys, view: GroupView) -> Change:
    """Take the alarm back: nodes may stand again.

    Without an alarm it confirms the epoch that began without a proven member: one thing at a time,
    as an operator has looked at one.

    Raises OperationRefusedError where a node would raise it again at once, and while there is no
    master: only a master knows its set, and a state from before may name a node that lacks what
    was acknowledged since.
    """
    if view.config.alarm is None:
        return _confirm_unproven(keys, view)
    ahead = _ahead_of_state(view)
    if ahead is not None and view.state is not None:
        raise OperationRefusedError(
            f"{_ahead_text(ahead, view.state)}: the alarm would be raised again",
            hint="if it has another group's directory, stop it; if the coordinator was restored to"
            f" the past: {_newest_log(view)}, which goes on with the newest log",
        )
    if view.leader is None and view.state is not None and view.state.epoch > 0:
        raise OperationRefusedError(
            "no node is master: the SyncStateSet that the coordinator names may be an old one, with"
            " a node that lacks acknowledged messages",
            hint=f"start all nodes, then {_newest_log(view)}, which goes on with the newest log",
        )
    what, epoch = f"the alarm is taken back: {view.config.alarm}", view.config.unproven_epoch
    if epoch is not None:
        what += (
            f"; the same command again confirms that epoch {epoch} began without a proven member"
        )
    change = _config_change(what, keys, view, attrs.evolve(view.config, alarm=None))
    same_leader, same_state = _same_leader(keys, view), _same_state(keys, view)
    return attrs.evolve(change, comparisons=(*change.comparisons, same_leader, same_state))


def after_alarm(keys: Keys, view: GroupView) -> str:
    """Return the command that ends the alarm: the one of them that is not refused."""
    try:
        clear_alarm(keys, view)
    except OperationRefusedError as error:
        return str(error.hint)
    return "hastore cluster clear-alarm"


def switchover(
    keys: Keys,
    view: GroupView,
    to_id: int | None = None,
    *,
    lags: Mapping[int, int] | None = None,
    lag_max: int = SWITCHOVER_LAG_MAX,
    force: bool = False,
) -> Change:
    """Request that a member becomes master; without ``to_id`` the best one.

    ``lags`` is how many bytes each node lacks that has acknowledged something in this epoch, by id,
    as the master says now; None if it does not answer.  ``view`` has what nodes wrote some time
    ago, each at another moment.

    Raises OperationRefusedError where the master would void the request at once, and without
    ``force`` for a member that cannot store.
    """
    state, leader = _agreed(view), _leader(view)
    if view.config.is_paused:
        raise OperationRefusedError(
            "elections and switchovers are paused", hint="hastore cluster resume, then again"
        )
    wish = view.config.switchover
    if wish is not None and wish.from_epoch == leader.epoch:
        raise OperationRefusedError(
            f"a switchover to node {wish.to_id} is under way",
            hint="wait for it: hastore cluster status",
        )
    lags = lags or {}
    if to_id is None:
        to_id = _best_successor(view, state, leader, lags)
    _check_successor(view, state, leader, to_id, lags)
    if not force:
        _check_can_store(view, to_id)
    lag = lags.get(to_id, 0)
    if lag > lag_max:
        raise OperationRefusedError(
            lag_text(to_id, lag),
            hint="wait until it has caught up; or choose another one: hastore cluster status",
        )
    wish = Switchover(from_epoch=leader.epoch, to_id=to_id, is_forced=force)
    config = attrs.evolve(view.config, switchover=wish)
    change = _config_change(
        f"node {to_id} becomes master instead of {leader.holder}", keys, view, config
    )
    same_leader = Unchanged(keys.leader, view.leader_revision)
    return attrs.evolve(change, to_id=to_id, comparisons=(*change.comparisons, same_leader))


def _best_successor(
    view: GroupView, state: GroupState, leader: Leader, lags: Mapping[int, int]
) -> int:
    able = [
        member
        for member in view.members.values()
        if member.node.node_id != leader.holder.node_id and why_no_successor(member, state) is None
    ]
    if not able:
        raise OperationRefusedError(
            f"no other node than {leader.holder} is up and in the SyncStateSet",
            hint="hastore cluster status says why for each",
        )
    return min(
        able,
        key=lambda each: (
            not each.can_store,
            each.link is None and each.node.node_id not in lags,
            lags.get(each.node.node_id, 0),
            *_rank(each),
        ),
    ).node.node_id


def _rank(member: Member) -> tuple[int, int, int, int]:
    return -member.end_epoch, -member.end, -member.priority, member.node.node_id


def _rank_for_init(member: Member) -> tuple[int, ...]:
    log, priority, node_id = member.log_rank, -member.priority, member.node.node_id
    return -log[0], -log[1], member.unverified is not None, priority, node_id


def _check_successor(
    view: GroupView, state: GroupState, leader: Leader, to_id: int, lags: Mapping[int, int]
) -> None:
    """Raise OperationRefusedError if a node cannot take over from the master."""
    others = "choose another one: hastore cluster status"
    if to_id == leader.holder.node_id:
        raise OperationRefusedError(
            f"node {to_id} is the master already", hint="name another node with --to"
        )
    member = _up(view, to_id)
    reason = why_no_successor(member, state)
    if reason is not None:
        raise OperationRefusedError(
            f"node {to_id} cannot take over: {reason}",
            hint=f"wait until it has caught up; or {others}",
        )
    if to_id not in lags and (member.link is None or member.last_epoch < leader.epoch):
        # The master would stop its puts, and take the wish back after seconds.
        raise OperationRefusedError(
            f"node {to_id} did not follow the master of epoch {leader.epoch} yet when it last said"
            " what it does",
            hint="try again in some seconds: nodes say it every third of [cluster] ttl; or"
            f" {others}",
        )


def lag_text(to_id: int, lag: int) -> str:
    """Return why a node that lacks so many bytes cannot take over soon."""
    return f"node {to_id} lags by {format_size(lag)}, and puts would wait for it"


def _check_can_store(view: GroupView, to_id: int) -> None:
    """Raise OperationRefusedError if a node says that it cannot store."""
    if _up(view, to_id).can_store:
        return
    able = [each for each in view.members.values() if each.can_store]
    raise OperationRefusedError(
        f"node {to_id} cannot store: as master it would refuse puts",
        hint=f"hastore check of node {to_id} says why; make room there, or --force"
        if not able
        else f"hastore check of node {to_id} says why; choose another one, or --force",
    )


# -- the state -----------------------------------------------------------------------------------


def init(
    keys: Keys, view: GroupView, ids: Collection[int] | None = None, *, force: bool = False
) -> Change:
    """Write the first state: its members are the nodes that are up, or of these ``ids``.

    Where a node has a log already the coordinator has lost what the group had agreed on, and
    nothing says which log has all that was acknowledged: ``force`` takes the newest one, but one
    that is not verified only if ``ids`` names nothing else.  A state
    that is there is overwritten only while the alarm says that it is not the newest, and by
    ``force``, which takes the alarm back.  A state that cannot be read is lost: ``force`` replaces
    it, once all nodes that are registered are up, or those that have a log are named.
    """
    view.check(keys.leader, keys.config)
    is_unreadable = keys.state in view.damaged
    if is_unreadable and not force:
        raise OperationRefusedError(
            view.damaged[keys.state],
            hint="restore the coordinator; or --force, which replaces it by the newest log",
        )
    if is_unreadable and view.leader is not None:
        raise OperationRefusedError(
            f"{view.damaged[keys.state]}; {view.leader.holder} is master, and still writes its log",
            hint=f"stop {view.leader.holder}, wait for the end of its lease, and start it again;"
            " then again",
        )
    is_outdated = force and view.config.alarm is not None and view.leader is None
    if view.state is not None and not is_outdated:
        raise OperationRefusedError(
            f"the group has its state: epoch {view.state.epoch}, SyncStateSet"
            f" {nodes_text(view.state.ids)}",
            hint="hastore cluster status",
        )
    wanted = frozenset(view.members if ids is None else ids)
    missing = wanted - view.members.keys()
    if ids is None:
        missing = frozenset(view.registrations.keys() - view.members.keys())
    is_left_out = force and ids is None and bool(wanted) and not is_unreadable
    if missing and not is_left_out:
        raise OperationRefusedError(
            f"{nodes_text(missing)} not up, and may have the newest log",
            hint="start it; or leave it out: --ids"
            + ("" if is_unreadable else ", or --force if it is lost"),
        )
    if not wanted:
        raise OperationRefusedError(
            "no node is up", hint="start the group's nodes: hastore node … --etcd URL"
        )
    members = [view.members[node_id] for node_id in sorted(wanted)]
    logs = [member for member in members if member.last_epoch or member.end]
    if not logs and view.state is not None and view.state.epoch > 0:
        raise OperationRefusedError(
            f"no node that is up has a log, and the group was in epoch {view.state.epoch}",
            hint="start the nodes that have one",
        )
    if not logs:
        state = GroupState(epoch=0, master=None, members=tuple(member.node for member in members))
        return _first(keys, view, f"the group begins with {nodes_text(wanted)}", state)
    best = min(members, key=_rank_for_init)
    if not force:
        raise OperationRefusedError(
            f"{nodes_text(frozenset(each.node.node_id for each in logs))} already with a log, and"
            " the coordinator knows of no set: acknowledged messages may be missing from each",
            hint="restore the coordinator; or --force, which takes the newest log of"
            f" {best.node}: epoch {best.end_epoch}, end {best.end}",
        )
    best_id = best.node.node_id
    if best.unverified is not None and (ids is None or wanted != {best_id}):
        raise OperationRefusedError(
            f"the newest log is that of {best.node}, and messages inside it may be missing:"
            f" {best.unverified}",
            hint=f"--ids without {best_id} takes the newest log of the others; --ids {best_id}"
            " alone takes this one as it is",
        )
    newest = tuple(member.node for member in members if member.log_rank == best.log_rank)
    ids_text = nodes_text(frozenset(each.node_id for each in newest))
    former = max((each.epoch for each in view.history), default=0)
    former = former if view.state is None else view.state.epoch
    state = GroupState(
        epoch=max(1, former, *(member.last_epoch for member in members)),
        master=best.node,
        members=newest,
        registered=wanted,
    )
    what = f"the group begins with the log of {ids_text}, at {best.end}"
    return _first(keys, view, what, state)


def _first(keys: Keys, view: GroupView, what: str, state: GroupState) -> Change:
    same_state = _same(keys.state, view.state_revision)
    change = Change(
        what=what,
        comparisons=(same_state, Absent(keys.leader)),
        writes=(Put(keys.state, state.encode()),),
    )
    if view.state is None:
        return change
    # Only the alarm says that a state may be overwritten, and with it the reason for it goes.
    config = attrs.evolve(view.config, alarm=None)
    return attrs.evolve(
        change,
        comparisons=(*change.comparisons, _same_config(keys, view)),
        writes=(*change.writes, Put(keys.config, config.encode())),
    )


def _confirm_unproven(keys: Keys, view: GroupView) -> Change:
    """Confirm an epoch that began without a proven member."""
    epoch = view.config.unproven_epoch
    if epoch is None:
        return Change(what="there is no alarm")
    config = attrs.evolve(view.config, unproven_epoch=None)
    return _config_change(
        f"it is confirmed that epoch {epoch} began without a proven member", keys, view, config
    )


def remove(keys: Keys, view: GroupView, node_id: int) -> Change:
    """Take a node out of the SyncStateSet, and free its id for another directory.

    Raises OperationRefusedError without a master, unless a member that is up and stays has proved
    that it has all that was acknowledged: the removed node may be the only one that has it.
    """
    state = view.state
    in_set = state is not None and node_id in state.ids
    is_damaged = {keys.registration(node_id), keys.member(node_id)} & view.damaged.keys()
    is_registered = state is not None and node_id in state.registered
    is_known = is_registered or node_id in view.registrations or node_id in view.members
    if not is_known and not is_damaged:
        raise OperationRefusedError(
            f"the group knows no node {node_id}",
            hint=f"it knows {nodes_text(frozenset(view.registrations))}",
        )
    if view.leader is not None and view.leader.holder.node_id == node_id:
        raise OperationRefusedError(
            f"node {node_id} is the master of epoch {view.leader.epoch}",
            hint="hastore cluster switchover first; or stop it, and wait for the next master",
        )
    if node_id in view.members:
        raise OperationRefusedError(
            f"node {node_id} is up, and would come back",
            hint="stop it first; etcd forgets one that was killed after [cluster] ttl",
        )
    if in_set and state is not None and len(state.members) == 1:
        raise OperationRefusedError(
            f"node {node_id} is the only one of the SyncStateSet: no other has all messages",
            hint="start it, and let others catch up; if it is lost: hastore cluster failover --to"
            " ID --accept-loss",
        )
    if in_set and state is not None and view.leader is None:
        _check_others_have_all(view, state, node_id)
    writes: list[Put | Delete] = [
        Delete(keys.registration(node_id)),
        Delete(keys.member(node_id)),
    ]
    if in_set and state is not None:
        left = tuple(each for each in state.members if each.node_id != node_id)
        state = attrs.evolve(state, members=left, proposal=None)
    if state is not None and node_id in state.registered:
        change = attrs.evolve(state, registered=state.registered - {node_id})
        writes.append(Put(keys.state, change.encode()))
    return Change(
        what=f"node {node_id} leaves the SyncStateSet, and its id is free"
        if in_set
        else f"the id of node {node_id}, which is not in the SyncStateSet, is free",
        comparisons=(
            _same_leader(keys, view),
            _same_state(keys, view),
            # A record that cannot be read is there, and stays unless the node is up.
            _same(keys.member(node_id), view.damaged_revisions.get(keys.member(node_id), 0)),
        ),
        writes=tuple(writes),
    )


def _check_others_have_all(view: GroupView, state: GroupState, without: int) -> None:
    """Raise OperationRefusedError unless a member that is up has all, apart from one node."""
    if not state.epoch:
        return  # nothing was acknowledged yet
    others = [each for each in view.members.values() if each.node.node_id in state.ids - {without}]
    reasons = [why_not_proven(each, state) for each in others]
    if None in reasons:
        return
    why = "; ".join(str(reason) for reason in reasons) or "no other member is up"
    best = min(others, key=_rank, default=None)
    to_id = "ID" if best is None else str(best.node.node_id)
    away = state.ids - view.members.keys() - {without}
    start = f"start {nodes_text(away)} first; " if away else ""
    raise OperationRefusedError(
        f"node {without} may be the only one that has all acknowledged messages: {why}",
        hint=f"{start}start node {without}; if it is lost: hastore cluster failover --to {to_id}"
        f" --accept-loss, then hastore cluster remove {without}",
    )


def reinit(keys: Keys, view: GroupView, node_id: int, uuid: str) -> Change:
    """Take a node out of the set before its directory ``uuid`` is thrown away, as ``remove`` does.

    There is nothing to write if the group does not know the node any more.
    """
    state, leader, known = view.state, view.leader, view.registrations.get(node_id)
    in_set = [] if state is None else [e for e in state.members if e.node_id == node_id]
    uuids = {each.uuid for each in in_set} | ({known.uuid} if known is not None else set())
    if uuids - {uuid}:
        raise OperationRefusedError(
            f"node {node_id} has another directory now: the group does not need this one",
            hint="name the directory of the node that runs; this one may be moved away",
        )
    if leader is None:
        raise OperationRefusedError(
            "no node is master now: there is nobody to copy the log from",
            hint="hastore cluster status says who may become it",
        )
    if not uuids and node_id not in view.members and leader.holder.node_id != node_id:
        return Change(what=f"the group does not know node {node_id}")
    return remove(keys, view, node_id)


def check_repair(view: GroupView, node_id: int, uuid: str) -> None:
    """Check that another node may be elected while the directory ``uuid`` is not verified.

    Raises OperationRefusedError unless one that is up may, or the directory counts for nothing in
    the group anyway.
    """
    state = _known(view)
    member = state.member(node_id)
    if member is None or member.uuid != uuid:
        return
    others = [each for each in view.members.values() if each.node.node_id != node_id]
    reasons = [why_not_proven(each, state) for each in others]
    if None in reasons:
        return
    up = f": {'; '.join(str(reason) for reason in reasons)}" if reasons else ", and none is up"
    raise OperationRefusedError(
        f"node {node_id} may lack messages after this repair, and no other node may be elected{up}",
        hint="start another node of the SyncStateSet first; or --from-replica, which loses nothing;"
        " if all others are lost: --accept-loss",
    )


def adopt(keys: Keys, view: GroupView, node: Incarnation, token: str) -> Change:
    """Write the first state of a group whose only log is in the directory of ``node``: epoch 1.

    The id becomes that directory's in the same transaction, by the ``token`` that it has recorded:
    a directory that a state names, and no claim, has been copied or restored.
    """
    if view.state is not None:
        raise OperationRefusedError(
            f"the group has begun: epoch {view.state.epoch}, SyncStateSet"
            f" {nodes_text(view.state.ids)}",
            hint=f"start node {node.node_id} with an empty directory: it copies its master's log",
        )
    with_log = [each.node.node_id for each in view.members.values() if each.last_epoch or each.end]
    if with_log:
        raise OperationRefusedError(
            f"{nodes_text(frozenset(with_log))} already with a log: a group has one",
            hint="hastore cluster init says what to do with them",
        )
    away = frozenset(view.registrations.keys() - view.members.keys())
    if away or node.node_id in view.members:
        ids = away or frozenset({node.node_id})
        raise OperationRefusedError(
            f"{nodes_text(ids)} known to the coordinator already, and may have a log",
            hint=f"if it has none: stop it, and hastore cluster remove {min(ids)}",
        )
    state = GroupState(epoch=1, master=node, members=(node,))
    change = _first(keys, view, f"the group begins with the log of {node}", state)
    key = keys.registration(node.node_id)
    claim = Registration(uuid=node.uuid, start=node.start, nonce=token)
    return attrs.evolve(
        change,
        comparisons=(*change.comparisons, Absent(key)),
        writes=(*change.writes, Put(key, claim.encode())),
    )


def failover(
    keys: Keys,
    view: GroupView,
    to_id: int,
    *,
    at_ms: int,
    accept_loss: bool = False,
    force_with_live_master: bool = False,
    lost: Mapping[str, int] | None = None,
    confirmed: Mapping[str, int] | None = None,
    uncounted: Collection[int] = (),
    uncounted_confirmed: Collection[int] = (),
) -> Change:
    """Let one node stand, and no other, in an epoch after the state's.

    The epoch is one that nobody leads: the former master, wherever it is, steps down as it sees
    it, and does not take its key again.  ``at_ms`` is for the history; so is ``lost``, the messages
    by topic that other nodes have and this one lacks.  ``confirmed`` are those of them that were
    certainly acknowledged under "all".  ``uncounted`` are the nodes that may have more than
    ``lost``, because their logs cannot be read in full; ``uncounted_confirmed`` likewise.

    While the alarm is raised, because the coordinator was restored to the past, it takes
    ``accept_loss``: the state does not say who has all.  The epoch is after those of all logs that
    are up, and the alarm is taken back.
    """
    alarm, ahead = view.config.alarm, _ahead_of_state(view)
    goes_on = ahead is not None or view.leader is None  # a master knows its set: it needs no other
    state, member = _known(view) if goes_on else _agreed(view), _up(view, to_id)
    if view.config.is_paused:
        raise OperationRefusedError(
            "elections are paused, so nobody would stand",
            hint="hastore cluster resume, then again",
        )
    leader, writes = view.leader, list[Put | Delete]()
    if leader is not None:
        if leader.holder.node_id == to_id:
            raise OperationRefusedError(
                f"node {to_id} is the master already", hint="hastore cluster status"
            )
        if not force_with_live_master:
            raise OperationRefusedError(
                f"{leader.holder} is master of epoch {leader.epoch}, and has its lease",
                hint="hastore cluster switchover loses nothing; if it is dead its lease ends"
                " within [cluster] ttl; else: --force-with-live-master",
            )
        writes.append(Delete(keys.leader))
    loss = loss_text(view, member)
    # With a number of acks a message may be acknowledged that not all of the set have.
    is_all = state.acks == "all"
    lacks, others = (confirmed, uncounted_confirmed) if is_all else (lost, uncounted)
    if loss is None and lacks:
        least = "at least " if others else ""
        loss = f"it lacks {least}{sum(lacks.values())} messages that another node has"
    if loss is None and others:
        loss = f"what {nodes_text(frozenset(others))} alone may have cannot be read, or counted"
    if loss is None and ahead is not None:
        loss = f"{_ahead_text(ahead, state)}, so it may not know who has all"
    if loss is None and alarm is not None:
        loss = f"the alarm is raised, so the state may not say who has all: {alarm}"
    if loss is not None and not accept_loss:
        raise OperationRefusedError(
            f"node {to_id} may lack acknowledged messages: {loss}",
            hint=_safer(view, to_id) if alarm is None else _newest_log(view),
        )
    epoch = max(state.epoch, *(each.last_epoch for each in view.members.values())) + 1
    record = EpochRecord(
        epoch=epoch,
        master_id=to_id,
        former_id=None if state.master is None else state.master.node_id,
        end=member.end,
        why="failover" if loss is None else "failover with loss",
        at_ms=at_ms,
        lost={} if loss is None or lost is None else lost,
    )
    agreed = GroupState(
        epoch=epoch,
        master=member.node,
        members=(member.node,),
        acks=state.acks,
        confirm_offset=min(state.confirm_offset, member.end),
        registered=state.registered,
    )
    writes += [
        Put(keys.state, agreed.encode()),
        Put(keys.history(epoch), record.encode()),
    ]
    if alarm is not None:
        writes.append(Put(keys.config, attrs.evolve(view.config, alarm=None).encode()))
    return Change(
        what=f"node {to_id} alone may become master, with its log's end at {member.end}"
        + (f"; {loss}" if loss else ""),
        to_id=to_id,
        comparisons=(_same_leader(keys, view), _same_state(keys, view), _same_config(keys, view)),
        writes=tuple(writes),
    )


def loss_text(view: GroupView, member: Member) -> str | None:
    """Return why a node may lack what was acknowledged, and how much; None: it lacks nothing."""
    state = view.state
    assert state is not None, "checked before"
    reason = why_not_proven(member, state)
    if reason is None:
        return None
    known = [each.end for each in view.members.values() if each.end_epoch >= member.end_epoch]
    more = max(known, default=0) - member.end
    if more > 0:
        return f"{reason}; it lacks at least {format_size(more)} that another node has"
    return f"{reason}; how much it lacks is not known"


def _safer(view: GroupView, to_id: int) -> str:
    state = view.state
    assert state is not None, "checked before"
    able = [each for each in view.members.values() if why_not_proven(each, state) is None]
    if able:
        best = min(able, key=_rank).node.node_id
        if best == to_id:  # another node, outside the set, has more
            return "if that is lost: --accept-loss"
        return f"node {best} lacks nothing: --to {best}; else: --to {to_id} --accept-loss"
    waits = sorted(state.ids - view.members.keys())
    start = f"start {nodes_text(frozenset(waits))}, which has all; " if waits else ""
    return f"{start}if it is lost: --accept-loss"


# -- parts ---------------------------------------------------------------------------------------


def _agreed(view: GroupView) -> GroupState:
    """Return the state.  Raises OperationRefusedError if there is none, or an alarm."""
    if view.config.alarm is not None:
        raise OperationRefusedError(
            f"the alarm is raised: {view.config.alarm}",
            hint="look at it, then: hastore cluster clear-alarm",
        )
    return _known(view)


def _newest_log(view: GroupView) -> str:
    """Return the command that goes on with the newest log."""
    newest = min(view.members.values(), key=_rank, default=None)
    to_id = "ID" if newest is None else str(newest.node.node_id)
    return f"hastore cluster failover --to {to_id} --accept-loss"


def _ahead_of_state(view: GroupView) -> Member | None:
    """Return the node with the newest log of those that have an epoch which the state lacks."""
    state = view.state
    if state is None:
        return None
    ahead = (each for each in view.members.values() if each.last_epoch > state.epoch)
    return min(ahead, key=_rank, default=None)


def _ahead_text(ahead: Member, state: GroupState) -> str:
    return (
        f"{ahead.node} has messages of epoch {ahead.last_epoch}, and the coordinator knows epoch"
        f" {state.epoch}"
    )


def _known(view: GroupView) -> GroupState:
    """Return the state.  Raises OperationRefusedError if there is none."""
    if view.state is None:
        raise OperationRefusedError(
            "the coordinator does not know the group", hint="hastore cluster init"
        )
    return view.state


def _leader(view: GroupView) -> Leader:
    if view.leader is None:
        raise OperationRefusedError(
            "no node is master now: there is nobody to hand over",
            hint="hastore cluster status says who may stand; hastore cluster failover --to ID",
        )
    return view.leader


def _up(view: GroupView, node_id: int) -> Member:
    member = view.members.get(node_id)
    if member is not None:
        return member
    ups = nodes_text(frozenset(view.members)) if view.members else "none"
    is_known = node_id in view.registrations or (
        view.state is not None and node_id in view.state.ids
    )
    raise OperationRefusedError(
        f"node {node_id} is not up" if is_known else f"the group has no node {node_id}",
        hint=f"{'start it; or ' if is_known else ''}name another one, up now: {ups}",
    )


def _config_change(what: str, keys: Keys, view: GroupView, config: GroupConfig) -> Change:
    return Change(
        what=what,
        comparisons=(_same_config(keys, view),),
        writes=(Put(keys.config, config.encode()),),
    )


def _same(key: str, revision: int) -> Absent | Unchanged:
    return Unchanged(key, revision) if revision else Absent(key)


def _same_config(keys: Keys, view: GroupView) -> Absent | Unchanged:
    return _same(keys.config, view.config_revision)


def _same_leader(keys: Keys, view: GroupView) -> Absent | Unchanged:
    return _same(keys.leader, view.leader_revision)


def _same_state(keys: Keys, view: GroupView) -> Absent | Unchanged:
    return _same(keys.state, view.state_revision)
