"""Planted bugs: each fails the scenario that is meant to find it, in the simulator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from hastore.broker.node import slave
from hastore.broker.puts.put_message import PutMessage
from hastore.cluster import connecting, decide, operations
from hastore.cluster.cluster_routes import ClusterRoutes
from hastore.cluster.decide import Action, Knowledge, Wait
from hastore.cluster.group_records import GroupState, GroupView
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import RoleService
from hastore.epoch_history import ConsistentPoint, EpochHistory
from hastore.errors import RequestFailedError
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.group_transfer_service import GroupTransferService
from hastore.ha.set_rules import SetRules
from hastore.store.epoch_file import EpochFile
from hastore.store.log.store_directory import CUT_FILE
from hastore.store.message_store import lock_store
from hastore.store.recovery import cut
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.wire.remoting_codes import ResponseCode
from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one
from tests.support.worlds import planted, planted_in_groups, planted_with_etcd

if TYPE_CHECKING:
    from hastore.broker.node.slave_store import SlaveStore
    from hastore.broker.request_target import PromiseWish
    from hastore.cluster.key_value_store import Snapshot
    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.store.node_identity import NodeIdentity
    from hastore.store.recovery.log_cut import CutIntent, LogCut
    from hastore.store.store_lock import StoreLock

SEEDS = (1, 2, 3, 4)  # some bugs need a message that is on its way at a certain moment


def sleeps_on_an_ack(patch: pytest.MonkeyPatch) -> None:
    """Process the first ack that a put waits for 3.5 s late, with the acks that came meanwhile."""
    notify = GroupTransferService.notify_transfer_some
    first_s: list[float] = []

    def notify_late(self: GroupTransferService, slave: tuple[str, int]) -> None:
        if len(self):
            first_s.append(trio.current_time())
        if first_s and trio.current_time() > first_s[0] + 3.5:
            notify(self, slave)

    patch.setattr(GroupTransferService, "notify_transfer_some", notify_late)


def first_byte_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Answer a put as soon as a slave has the beginning of its record."""
    patch.setattr(
        GroupTransferService,
        "notify_transfer_some",
        lambda self, _: self._queue.release(
            self.ack_table.push2_slave_max_offset + 4 * 1024 * 1024
        ),
    )


# -- in replica groups ----------------------------------------------------------------------------


def cuts_by_the_confirm_offset(patch: pytest.MonkeyPatch) -> None:
    """A slave that starts again drops what it never heard to be confirmed (before KIP-101)."""
    open_store = slave.open_slave_store

    def open_confirmed(
        env: Env, config: SlaveConfig, store_host: tuple[str, int], identity: NodeIdentity | None
    ) -> SlaveStore:
        if identity is None and env.disk.exists(f"{config.store.data_dir}/checkpoint"):
            lock = lock_store(env, config.store)
            confirmed = StoreCheckpoint.open(env.disk, lock.path).confirm_offset
            cut.cut_store(env, config.store, lock, confirmed, reason="planted")
            lock.release(clean=False)
        return open_store(env, config, store_host, identity)

    patch.setattr(slave, "open_slave_store", open_confirmed)


def asks_for_its_newest_epoch_only(patch: pytest.MonkeyPatch) -> None:
    """Where the master does not have it, both logs count as equal (before KIP-279)."""
    find = EpochHistory.consistent_point

    def find_newest(
        self: EpochHistory, end_offset: int, other: EpochHistory, other_end_offset: int
    ) -> ConsistentPoint | None:
        newest = self.entries[-1:]
        if newest and newest[0] not in other.entries:
            return ConsistentPoint(newest[0].epoch, min(end_offset, other_end_offset))
        return find(self, end_offset, other, other_end_offset)

    patch.setattr(EpochHistory, "consistent_point", find_newest)


def counts_no_messages(patch: pytest.MonkeyPatch) -> None:
    """A cut does not say what it took."""
    describe = cut._describe

    def describe_bytes(*args: Any) -> LogCut:
        return attrs.evolve(describe(*args), messages={})

    patch.setattr(cut, "_describe", describe_bytes)


def shrinks_to_any_set(patch: pytest.MonkeyPatch) -> None:
    """A master without a coordinator takes itself for enough."""
    patch.setattr(SetRules, "is_majority", lambda _self, _members: True)


def never_shrinks(patch: pytest.MonkeyPatch) -> None:
    """A member that does not acknowledge stays in the set."""
    patch.setattr(SetRules, "may_remain", lambda _self, _members: False)


def takes_puts_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """The number of members is not compared with min_in_sync_replicas."""
    patch.setattr(SetRules, "is_enough", lambda _self, _members: True)


def needs_two_members(patch: pytest.MonkeyPatch) -> None:
    """A master that is alone refuses puts, whatever min_in_sync_replicas is."""
    patch.setattr(SetRules, "is_enough", lambda _self, members: len(members) > 1)


def forgets_the_cut_first(patch: pytest.MonkeyPatch) -> None:
    """``cut.json`` is removed before the cut is made."""
    carry_out = cut._carry_out

    def carry_out_unnoticed(env: Env, lock: StoreLock, intent: CutIntent) -> None:
        path = f"{lock.path}/{CUT_FILE}"
        env.disk.remove(path)
        carry_out(env, lock, intent)

    patch.setattr(cut, "_carry_out", carry_out_unnoticed)


def refuses_an_equal_start(patch: pytest.MonkeyPatch) -> None:
    """An epoch that begins where the last one did is not stored, as in RocketMQ."""
    store = EpochFile.store

    def store_rising(self: EpochFile, history: EpochHistory) -> None:
        former, entries = self.load().entries, history.entries
        if former and entries and former[-1].start_offset == entries[-1].start_offset:
            return
        store(self, history)

    patch.setattr(EpochFile, "store", store_rising)


def waits_for_observers(patch: pytest.MonkeyPatch) -> None:
    """A put is not answered before all observers have it."""
    release = GroupHAService._release

    def release_observed(self: GroupHAService, slave: tuple[str, int] | None) -> None:
        acks = [
            link.progress.ack_offset
            for link in self.observers.connections.values()
            if link.progress.ack_offset is not None
        ]
        group = self.sync_state_set
        own_limit = group.ack_limit
        group.ack_limit = min([own_limit, *acks])
        release(self, slave)
        group.ack_limit = own_limit

    patch.setattr(GroupHAService, "_release", release_observed)


# -- with a coordinator ---------------------------------------------------------------------------


def never_campaigns(patch: pytest.MonkeyPatch) -> None:
    """Members wait for each other without end once their master is gone."""
    elect = decide._decide_on_election

    def wait(known: Knowledge, view: GroupView, state: GroupState) -> Action:
        return Wait("planted") if state.epoch else elect(known, view, state)

    patch.setattr(decide, "_decide_on_election", wait)


def promises_nothing(patch: pytest.MonkeyPatch) -> None:
    """A member refuses each promise, so no master goes on without etcd."""

    def refuse(_self: RoleService, _wish: PromiseWish) -> None:
        raise RequestFailedError("planted", code=ResponseCode.SERVICE_NOT_AVAILABLE)

    patch.setattr(RoleService, "promise", refuse)


def forgets_its_promises(patch: pytest.MonkeyPatch) -> None:
    """A member promises not to stand, and stands."""
    patch.setattr(RoleService, "promise", lambda _self, _wish: None)


def asks_for_promises_in_any_case(patch: pytest.MonkeyPatch) -> None:
    """Whether failsafe is off is not looked at."""

    def with_failsafe(**values: Any) -> RoleConfig:
        return RoleConfig(**{**values, "failsafe": True})

    patch.setattr(connecting, "RoleConfig", with_failsafe)


def leads_beyond_its_lease(patch: pytest.MonkeyPatch) -> None:
    """A master that etcd does not hear of stays one."""
    decide_as_master = decide._decide_as_master

    def lead(known: Knowledge, epoch: int) -> Action:
        clock = attrs.evolve(known.clock, deadline=math.inf)
        return decide_as_master(attrs.evolve(known, clock=clock), epoch)

    patch.setattr(decide, "_decide_as_master", lead)


def ignores_the_alarm(patch: pytest.MonkeyPatch) -> None:
    """A node goes by what etcd says now, whatever it knew before."""
    patch.setattr(decide, "_decide_on_alarm", lambda _known, _view: None)


def wishes_any_successor(patch: pytest.MonkeyPatch) -> None:
    """A switchover is not refused before it begins."""
    patch.setattr(operations, "_check_successor", lambda *_args: None)


def elects_the_lowest_id(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares the ends of the candidates' logs."""
    patch.setattr(decide, "_rank", lambda member, _state: member.node.node_id)


def elects_in_spite_of_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A person's wish is not looked at."""
    elect = decide._decide_on_election

    def go_on(known: Knowledge, view: GroupView, state: GroupState) -> Action:
        config = attrs.evolve(view.config, is_paused=False)
        return elect(known, attrs.evolve(view, config=config), state)

    patch.setattr(decide, "_decide_on_election", go_on)


def keeps_the_first_routes(patch: pytest.MonkeyPatch) -> None:
    """What another group has changed since then is not told to clients."""
    take = ClusterRoutes._take

    def take_once(self: ClusterRoutes, snapshot: Snapshot) -> None:
        known = self._groups
        take(self, snapshot)
        self._groups = known or self._groups

    patch.setattr(ClusterRoutes, "_take", take_once)


def takes_puts_while_it_hands_over(patch: pytest.MonkeyPatch) -> None:
    """The end of the log moves on, so the successor never has all of it."""
    patch.setattr(PutMessage, "hold", lambda _self, _why: None)


@pytest.mark.parametrize(
    ("plant", "story", "message"),
    [
        (planted.needs_more_than_the_record, "sync-put", "the put is PUT_OK"),
        (planted.departed_slave_counts, "departed-ack", "too far behind to count"),
        (planted.forgets_later_deadlines, "flush-slave-timeout", "each waits its full time"),
        (planted.keeps_silent_slaves, "half-open-link", "its silence ends the connection"),
        (planted.slave_acks_before_fsync, "slave-disk-slow", "not on its disk"),
        (planted.retries_fsync, "slave-sync-fails", "is not acknowledged"),
        (planted.accepts_slave_ahead, "slave-ahead", "its master's end and its own"),
        (planted.reports_before_append, "sync-put", "the slave already has it"),
        (planted.trusts_the_cache_at_a_start, "slave-sync-fails", "damaged: b: hole"),
        pytest.param(
            *(sleeps_on_an_ack, "noisy-neighbour", "is near its timeout"),
            marks=pytest.mark.soak,  # three virtual seconds of a flood take ten real ones
        ),
        (first_byte_is_enough, "large-messages", "waits for the message's last byte"),
        (cuts_by_the_confirm_offset, "kip-101", "it still has the last message"),
        pytest.param(
            *(planted_in_groups.cuts_at_the_end_of_its_own_epoch, "kip-101", "b is in step"),
            marks=pytest.mark.soak,  # sim/test_planted_in_groups finds it
        ),
        pytest.param(
            *(asks_for_its_newest_epoch_only, "kip-279", "c is in step"), marks=pytest.mark.soak
        ),
        (counts_no_messages, "former-master-returns", "counted by topic"),
        (shrinks_to_any_set, "two-masters", "acknowledged nothing"),
        (forgets_the_cut_first, "killed-cut", "has no step"),
        (never_shrinks, "frozen-member", "once the frozen one has left the set"),
        (shrinks_to_any_set, "frozen-member", "no majority would remain"),
        (takes_puts_below_the_minimum, "strict-mode", "is alone in its set, and refuses"),
        (needs_two_members, "available-mode", "with one member"),
        pytest.param(
            *(refuses_an_equal_start, "empty-epochs", "epoch 4 begins"), marks=pytest.mark.soak
        ),
        (waits_for_observers, "slow-observer", "no put waits for it"),
        (planted_in_groups.acknowledges_after_stepping_down, "frozen-member", "not acknowledged"),
        (never_campaigns, "master-killed", "no master of epoch 2"),
        (
            planted_with_etcd.decides_after_its_deadline,
            "frozen-beyond-its-lease",
            "acknowledged none of them",
        ),
        pytest.param(
            *(takes_puts_while_it_hands_over, "switchover-under-load", "no master of epoch 2"),
            marks=pytest.mark.soak,  # a minute of puts
        ),
        # A minute of puts each, until the story gives up.
        pytest.param(
            *(forgets_its_promises, "cut-off-from-etcd", "acknowledges without the key"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *(leads_beyond_its_lease, "cut-off-without-failsafe", "it has stepped down"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            planted_with_etcd.stands_outside_the_set,
            "cut-off-from-slaves",
            "why it does not stand",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *(promises_nothing, "etcd-down-with-failsafe", "leads by promises"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *(asks_for_promises_in_any_case, "etcd-down-without-failsafe", "it has stepped down"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *(promises_nothing, "etcd-majority-lost", "after two leases"), marks=pytest.mark.soak
        ),
        pytest.param(
            *(ignores_the_alarm, "etcd-restored", "it waits for a person"), marks=pytest.mark.soak
        ),
        pytest.param(
            *(wishes_any_successor, "switchover-refused", "the switchover is refused"),
            marks=pytest.mark.soak,
        ),
        (elects_the_lowest_id, "two-candidates", "the longer log wins"),
        (planted_with_etcd.stands_outside_the_set, "outside-the-set", "why it does not stand"),
        (never_shrinks, "rolling-upgrade", "every put was acknowledged"),
        pytest.param(
            *(elects_in_spite_of_a_pause, "elections-paused", "why it does not stand"),
            marks=pytest.mark.soak,
        ),
        pytest.param(*(keeps_the_first_routes, "two-groups", "its route"), marks=pytest.mark.soak),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_fails_its_story(
    plant, story: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure, with one of a few seeds, names the expectation that the bug breaks."""
    (scenario,) = find(story)
    plant(monkeypatch)
    for seed in SEEDS:
        result = run_one(
            scenario, world=WorldKind.SIM, seed=seed, directory=tmp_path / f"seed-{seed}"
        )
        if not result.passed:
            break
    assert not result.passed
    assert message in result.why
