"""Bugs of epochs, elections and acknowledgements, planted into a simulated replica group.

Each is a function that patches the product, or the simulator's model of who decides roles, with
``patch`` (pytest's MonkeyPatch).
"""

from typing import Any
from weakref import WeakKeyDictionary

import attrs
import pytest
import trio

from hastore.broker.clock import clock_watch
from hastore.broker.clock.clock_watch import ClockWatch
from hastore.broker.delay.schedule_message_service import ScheduleMessageService
from hastore.broker.expiry import clean_commit_log_service
from hastore.broker.groups.broker_data import TableFile
from hastore.broker.groups.consumer_offset_manager import ConsumerOffsetManager
from hastore.broker.groups.slave_synchronize import SlaveSynchronize
from hastore.broker.node import group_node, master_store
from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Term
from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.epoch_history import ConsistentPoint, EpochEntry, EpochHistory
from hastore.errors import StaleEpochError
from hastore.ha import autoswitch_framing, sync_state_set
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.client_port_link import ClientPortLink
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.master_framing import ObserverFraming
from hastore.ha.node_acks import NodeAck, NodeAcks
from hastore.ha.observer_service import ObserverService
from hastore.ha.set_proposal import Answer, Proposal
from hastore.ha.set_rules import SetRules
from hastore.ha.slave_appender import CutNeededError, SlaveAppender
from hastore.ha.slave_framing import LinkStart
from hastore.ha.sync_state_set import SyncStateSet
from hastore.sim import host
from hastore.sim.disk import SimDisk
from hastore.sim.group.controller import (
    Controller,
    GroupState,
    Member,
    Published,
    TermCoordinator,
    member_of,
)
from hastore.sim.group.group_cluster import Agent, service_of, set_of
from hastore.store.epoch_file import EpochFile
from hastore.store.log import cleaning
from hastore.store.log.cleaning import CleaningDecision
from hastore.store.log.mapped_file_queue import MappedFileQueue
from hastore.store.node_identity import Identity, NodeIdentity, Opening
from hastore.store.record.topic_queue_table import TopicQueueTable
from hastore.store.recovery.log_loader import LogLoader
from hastore.store.watched_disk import WatchedDisk
from tests.support.worlds.planted import Plant
from tests.support.worlds.planted_deletions import PLANTED_DELETIONS


def keep_no_confirm_marks(patch: pytest.MonkeyPatch) -> None:
    """Let a bug be found by its own rule: confirm marks refuse most of what it does."""
    appended = AutoswitchFraming.appended

    def append_without(self: AutoswitchFraming, end_offset: int) -> bool:
        is_higher = appended(self, end_offset)
        self.kept_offset = 0
        return is_higher

    patch.setattr(AutoswitchFraming, "appended", append_without)
    patch.setattr(NodeIdentity, "raise_confirm_mark", lambda _self, _mark: None)


# -- epochs ---------------------------------------------------------------------------------------


def begins_without_its_entry(patch: pytest.MonkeyPatch) -> None:
    """A master takes puts before the entry of its epoch is on disk."""
    begin = master_store._begin_term

    def begin_without(*args: Any) -> Term:
        with patch.context() as meanwhile:
            meanwhile.setattr(EpochFile, "store", lambda _self, _history: None)
            return begin(*args)

    patch.setattr(master_store, "_begin_term", begin_without)


def stores_the_entry_after_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """A slave stores an epoch with the frame after the one that brought it."""
    late: dict[AutoswitchFraming, EpochHistory] = {}
    ready: dict[AutoswitchFraming, None] = {}
    appended = AutoswitchFraming.appended

    async def remember(self: AutoswitchFraming) -> None:
        assert self._wanted is not None
        late[self] = self.history = self._wanted
        await trio.lowlevel.checkpoint()

    def append_then_store(self: AutoswitchFraming, end_offset: int) -> bool:
        if self in ready:
            self.epoch_file.store(late.pop(self))
            del ready[self]
        elif self in late:
            ready[self] = None
        return appended(self, end_offset)

    patch.setattr(AutoswitchFraming, "store_epochs", remember)
    patch.setattr(AutoswitchFraming, "appended", append_then_store)


def continues_its_epoch_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A master that was started again goes on in its epoch."""

    def check(identity: NodeIdentity, epoch: int) -> None:
        if epoch < identity.current.seen_epoch:
            raise StaleEpochError("older", path="", epoch=epoch, seen_epoch=epoch)

    def begin(self: EpochHistory, entry: EpochEntry) -> EpochHistory:
        kept = [each for each in self.cut(entry.start_offset).entries if each.epoch < entry.epoch]
        return EpochHistory((*kept, entry))

    def is_same(_self: Controller, agent: Agent, member: Member | None) -> bool:
        return member is not None and member_of(agent).uuid == member.uuid

    patch.setattr(master_store, "check_epoch", check)
    patch.setattr(group_node, "check_epoch", check)
    patch.setattr(EpochHistory, "begin", begin)
    patch.setattr(Controller, "is_same_start", is_same)


def cuts_at_the_end_of_its_own_epoch(patch: pytest.MonkeyPatch) -> None:
    """A slave keeps all of the last common epoch, even what the master never had of it."""

    def find(
        self: EpochHistory, end_offset: int, other: EpochHistory, other_end_offset: int
    ) -> ConsistentPoint | None:
        others = {span[:2] for span in other.spans(other_end_offset)}
        for span in reversed(list(self.spans(end_offset))):
            if span[:2] in others:
                return ConsistentPoint(span.epoch, span.end_offset)
        return None

    patch.setattr(EpochHistory, "consistent_point", find)


def cuts_the_whole_epoch(patch: pytest.MonkeyPatch) -> None:
    """A slave cuts where the last common epoch begins."""
    find = EpochHistory.consistent_point

    def find_start(
        self: EpochHistory, end_offset: int, other: EpochHistory, other_end_offset: int
    ) -> ConsistentPoint | None:
        point = find(self, end_offset, other, other_end_offset)
        if point is None or point.offset == end_offset:
            return point
        start = next(each.start_offset for each in self.entries if each.epoch == point.epoch)
        return ConsistentPoint(point.epoch, start or point.offset)

    patch.setattr(EpochHistory, "consistent_point", find_start)


def follows_a_deposed_master(patch: pytest.MonkeyPatch) -> None:
    """A slave follows a master of an older epoch than it has seen."""
    keep_no_confirm_marks(patch)
    patch.setattr(autoswitch_framing, "check_is_not_deposed", lambda *_: None)


def cuts_without_comparing(patch: pytest.MonkeyPatch) -> None:
    """A slave cuts its log where the epochs say so, whatever the bytes below are."""
    reset = SlaveAppender.reset

    def reset_and_cut(self: SlaveAppender, start: LinkStart | None = None) -> None:
        reset(self, start)
        if self._cut_at is not None:
            raise CutNeededError(self._cut_at, self.commit_log.max_offset)

    patch.setattr(SlaveAppender, "reset", reset_and_cut)


def takes_equal_epochs_for_equal_logs(patch: pytest.MonkeyPatch) -> None:
    """A slave that need not cut its log goes on at its end without comparing any bytes."""
    reset = SlaveAppender.reset

    def reset_to_the_end(self: SlaveAppender, start: LinkStart | None = None) -> None:
        reset(self, start)
        if self._cut_at is None:
            self.position = self.commit_log.max_offset

    patch.setattr(SlaveAppender, "reset", reset_to_the_end)


# -- acknowledgements -----------------------------------------------------------------------------


def counts_connections(patch: pytest.MonkeyPatch) -> None:
    """Two connections of one node are two nodes."""
    former: WeakKeyDictionary[NodeAcks, dict[int, int]] = WeakKeyDictionary()
    connected, disconnected = NodeAcks.connected, NodeAcks.disconnected
    acknowledged, limit_of = NodeAcks.acknowledged, SyncStateSet._limit_of

    def connect(self: NodeAcks, node_id: int, connection_id: int, now: float) -> NodeAck:
        node = self.get(node_id)
        if node is not None and node.connection_id is not None and node.ack_offset is not None:
            former.setdefault(self, {})[node.connection_id] = node.ack_offset
        return connected(self, node_id, connection_id, now)

    def disconnect(self: NodeAcks, connection_id: int, now: float) -> NodeAck | None:
        former.get(self, {}).pop(connection_id, None)
        return disconnected(self, connection_id, now)

    def acknowledge(self: NodeAcks, connection_id: int, offset: int, now: float) -> NodeAck | None:
        if connection_id in former.get(self, {}):
            former[self][connection_id] = offset
        return acknowledged(self, connection_id, offset, now)

    def limit(self: SyncStateSet, wanted: int) -> int:
        acks = [node.ack_offset for node in self._counted if node.ack_offset is not None]
        acks += former.get(self.acks, {}).values()
        if wanted == 1 or len(acks) < wanted - 1:
            return limit_of(self, wanted)
        return sorted(acks)[-(wanted - 1)]

    patch.setattr(NodeAcks, "connected", connect)
    patch.setattr(NodeAcks, "disconnected", disconnect)
    patch.setattr(NodeAcks, "acknowledged", acknowledge)
    patch.setattr(SyncStateSet, "_limit_of", limit)


def counts_a_second_node(patch: pytest.MonkeyPatch) -> None:
    """The newest link with a node's id counts at once, although another one is up."""
    patch.setattr(NodeAcks, "connection_of", lambda _self, _node_id: None)


def keeps_acks_of_earlier_connections(patch: pytest.MonkeyPatch) -> None:
    """A node that connects again has what it acknowledged before."""
    close, acknowledge = NodeAck.close, NodeAcks.acknowledged

    def close_only(self: NodeAck, now: float) -> None:
        ack_offset = self.ack_offset
        close(self, now)
        self.ack_offset = ack_offset

    def acknowledge_more(
        self: NodeAcks, connection_id: int, offset: int, now: float
    ) -> NodeAck | None:
        node = self.on_connection(connection_id)
        if node is not None and node.ack_offset is not None:
            offset = max(offset, node.ack_offset)
        return acknowledge(self, connection_id, offset, now)

    patch.setattr(NodeAck, "close", close_only)
    patch.setattr(NodeAcks, "acknowledged", acknowledge_more)


def fixes_the_needed_nodes_at_the_put(patch: pytest.MonkeyPatch) -> None:
    """A put waits for those nodes that were needed when it was written."""
    needless: WeakKeyDictionary[SyncStateSet, dict[int, int]] = WeakKeyDictionary()
    regroup, recount = SyncStateSet._regroup, SyncStateSet._recount

    def record(self: SyncStateSet) -> None:
        before = getattr(self, "needed", None)
        regroup(self)
        for node_id in self.needed - (self.needed if before is None else before):
            needless.setdefault(self, {})[node_id] = self.acks.end_offset
        recount_some(self)

    def recount_some(self: SyncStateSet) -> None:
        kept = {node: node.ack_offset for node in self._awaited}
        for node, ack_offset in kept.items():
            if ack_offset is not None:
                node.ack_offset = max(ack_offset, needless.get(self, {}).get(node.node_id, 0))
        recount(self)
        for node, ack_offset in kept.items():
            node.ack_offset = ack_offset

    patch.setattr(SyncStateSet, "_regroup", record)
    patch.setattr(SyncStateSet, "_recount", recount_some)


def ignores_the_minimum_of_waiting_puts(patch: pytest.MonkeyPatch) -> None:
    """Puts that wait are released although the set has become smaller than m."""
    recount = SyncStateSet._recount

    def recount_all(self: SyncStateSet) -> None:
        rules = self.rules
        self.rules = attrs.evolve(rules, min_in_sync_replicas=1)
        recount(self)
        self.rules = rules

    patch.setattr(SyncStateSet, "_recount", recount_all)


def takes_one_copy_for_the_default(patch: pytest.MonkeyPatch) -> None:
    """A group of three or more acknowledges what its master has alone, as a pair does."""
    patch.setattr(SetRules, "for_ids", lambda self, _ids, _in_sync_replicas: self)


def shrinks_before_it_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A member that is to leave is not awaited any more."""
    regroup = SyncStateSet._regroup

    def regroup_early(self: SyncStateSet) -> None:
        regroup(self)
        if self.proposal is not None:
            left = self.proposal.left.keys()
            self._awaited = [node for node in self._awaited if node.node_id not in left]
            self._recount()

    patch.setattr(SyncStateSet, "_regroup", regroup_early)


def awaits_a_joining_node_once_it_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A node that was proposed may be elected before anybody waits for it."""
    regroup = SyncStateSet._regroup

    def regroup_late(self: SyncStateSet) -> None:
        regroup(self)
        if self.proposal is not None:
            joined = self.proposal.joined
            self._awaited = [node for node in self._awaited if node.node_id not in joined]
            self._recount()

    patch.setattr(SyncStateSet, "_regroup", regroup_late)


def dispatches_all_at_a_promotion(patch: pytest.MonkeyPatch) -> None:
    """A new master shows consumers all that it has when it begins."""
    confirm = ConfirmOffset.__call__

    def confirm_all(self: ConfirmOffset) -> int:
        service = self.ha_service
        offset = confirm(self)
        if isinstance(service, GroupHAService):
            return max(offset, service.sync_state_set.entry.start_offset)
        return offset

    patch.setattr(ConfirmOffset, "__call__", confirm_all)


def acknowledges_after_stepping_down(patch: pytest.MonkeyPatch) -> None:
    """A node that gives up its role answers the puts that wait, as if it had decided them."""

    def step_down(self: Master, reason: str) -> None:
        self.put_message.stop(reason)
        self.ha_service.disconnect_all(reason)
        self.ha_service.group_transfer_service.release(self.max_offset, None)

    patch.setattr(Master, "step_down", step_down)


def counts_queue_offsets_on_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A node that becomes master again goes on after the queue offsets that it once gave."""
    tables: WeakKeyDictionary[SimDisk, TopicQueueTable] = WeakKeyDictionary()
    take = LogLoader._take_queue_offsets

    def take_all(self: LogLoader, log: MappedFileQueue) -> None:
        take(self, log)
        disk, table = self._disk, self.table
        if table is None or not isinstance(disk, SimDisk):
            return
        former = tables.get(disk)
        for topic, queues in {} if former is None else former.topics.items():
            for queue_id, next_offset in queues.next_offsets.items():
                table.advance(topic.encode(), queue_id, next_offset)
        tables[disk] = table

    patch.setattr(LogLoader, "_take_queue_offsets", take_all)


# -- observers, delayed messages, consumers -------------------------------------------------------


def sends_observers_all_that_it_has(patch: pytest.MonkeyPatch) -> None:
    """A master sends observers what is not confirmed yet."""

    def frame_all(self: ObserverService, _connection_id: int) -> ObserverFraming:
        return ObserverFraming(lambda: self.commit_log.max_offset)

    patch.setattr(ObserverService, "_make_framing", frame_all)


def stores_delay_offsets_before_they_are_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A master stores that messages were delivered although the deliveries may be cut."""

    def end_of_flushed(self: ScheduleMessageService) -> int:
        return self.message_store.commit_log.flushed_offset

    patch.setattr(ScheduleMessageService, "_storable_end", end_of_flushed)


def copies_delay_offsets_before_the_deliveries(patch: pytest.MonkeyPatch) -> None:
    """A slave takes delay offsets at once, and a master gives it all that it has."""
    ask = SlaveSynchronize._ask_delay_offsets

    def all_offsets(self: ScheduleMessageService) -> dict[int, int]:
        return {level: cursor.offset for level, cursor in self.cursors.items() if cursor.offset}

    async def ask_only(
        self: SlaveSynchronize, port: ClientPortLink, link: object
    ) -> tuple[dict[int, int], int] | None:
        answer = await ask(self, port, link)
        return None if answer is None else (answer[0], 0)

    patch.setattr(ScheduleMessageService, "confirmed_offsets", all_offsets)
    patch.setattr(SlaveSynchronize, "_ask_delay_offsets", ask_only)


def loses_consumer_offsets_at_a_promotion(patch: pytest.MonkeyPatch) -> None:
    """A slave does not store what it has copied."""
    persist = TableFile.persist

    async def persist_as_master(self: TableFile) -> None:
        table = self.table
        if isinstance(table, ConsumerOffsetManager) and table._copied is not None:
            self.is_dirty = False
            await trio.lowlevel.checkpoint()
        else:
            await persist(self)

    patch.setattr(TableFile, "persist", persist_as_master)


def copies_no_consumer_offsets(patch: pytest.MonkeyPatch) -> None:
    """A slave asks for its master's consumer offsets and does not take them."""
    patch.setattr(ConsumerOffsetManager, "copy", lambda _self, _table, _version: 0)


# -- elections ------------------------------------------------------------------------------------


def elects_a_node_that_lost_its_cache(patch: pytest.MonkeyPatch) -> None:
    """A power cut does not change what a node says of itself."""
    opened = Identity.opened

    def open_log(self: Identity, opening: Opening) -> Identity:
        return attrs.evolve(opened(self, opening), kept_since=self.kept_since)

    patch.setattr(Identity, "opened", open_log)


def elects_an_id_with_an_empty_directory(patch: pytest.MonkeyPatch) -> None:
    """A member whose directory was replaced stays a member."""

    def may_stand(_self: Controller, member: Member | None, _published: Published) -> bool:
        return member is not None

    patch.setattr(Controller, "may_stand", may_stand)
    patch.setattr(Controller, "remove", lambda _self, _node_id: None)


def elects_a_node_outside_the_set(patch: pytest.MonkeyPatch) -> None:
    """Whoever answers may stand, a member or not."""
    asked = Controller._ask

    def members_of(self: Controller) -> dict[int, Member]:
        agents = (self.cluster.agent(node_id) for node_id in self.cluster.config.ids)
        others = {agent.node_id: member_of(agent) for agent in agents if agent is not None}
        return others | self.state.members

    def ask(self: Controller, epoch: int, former: GroupState) -> None:
        asked(self, epoch, attrs.evolve(former, members=members_of(self)))

    def candidates(self: Controller) -> list[Published]:
        return [each for _, each in sorted(self._published.items())]

    patch.setattr(Controller, "_ask", ask)
    patch.setattr(Controller, "_candidates", candidates)


def elects_a_node_that_was_only_proposed(patch: pytest.MonkeyPatch) -> None:
    """A node may be elected once it is proposed, even if that was void."""
    propose = TermCoordinator.propose

    def propose_and_elect(self: TermCoordinator, proposal: Proposal) -> Answer | None:
        answer = propose(self, proposal)
        controller = self.controller
        state = controller.state
        if answer is None and (state.epoch, state.is_electing) == (self.epoch, False):
            joined = {
                node_id: member
                for node_id in proposal.joined
                if (member := self._member(node_id)) is not None
            }
            proposed.setdefault(self.epoch, {}).update(joined)
        return answer

    def candidates(self: Controller) -> list[Published]:
        members = proposed.get(self.state.epoch, {}) | self.state.members
        return [
            each
            for node_id, each in sorted(self._published.items())
            if self.may_stand(members.get(node_id), each)
        ]

    def ask(self: Controller, epoch: int, former: GroupState) -> None:
        members = proposed.get(former.epoch, {}) | former.members
        asked(self, epoch, attrs.evolve(former, members=members))

    proposed: dict[int, dict[int, Member]] = {}
    asked = Controller._ask
    begin = Controller._begin

    async def begin_anew(self: Controller) -> None:
        proposed.clear()
        await begin(self)

    patch.setattr(TermCoordinator, "propose", propose_and_elect)
    patch.setattr(Controller, "_candidates", candidates)
    patch.setattr(Controller, "_ask", ask)
    patch.setattr(Controller, "_begin", begin_anew)


def forgets_a_proposal_after_a_read(patch: pytest.MonkeyPatch) -> None:
    """A proposal without an answer counts as void once the state is read without it."""

    async def ask_once(
        self: TermCoordinator, proposal: Proposal, members: dict[int, Member]
    ) -> None:
        while self._is_pending(proposal):
            self._send(self.revision, (self.epoch, proposal.number), members, proposal)
            await trio.sleep(0.05)
            master, state = self.agent.open_master, self.controller.state
            if master is None or not self._is_pending(proposal):
                return
            if set_of(master).accepted == state.members.keys():
                await service_of(master).answer(proposal, Answer.VOIDED)

    keep_no_confirm_marks(patch)
    patch.setattr(TermCoordinator, "_ask", ask_once)
    patch.setattr(sync_state_set, "VOIDED_PAUSE_S", 5.0)  # it is soon proposed again, else


def expires_files_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """A node whose clock is days ahead deletes its full files."""

    def decide(*facts: Any, in_doubt: bool, **more: Any) -> CleaningDecision:
        return cleaning.decide(*facts, in_doubt=False, **more)

    patch.setattr(clean_commit_log_service, "decide", decide)


def forgets_the_time_that_it_trusted(patch: pytest.MonkeyPatch) -> None:
    """After a restart a node cut off from the others takes the clock as it is."""
    patch.setattr(clock_watch, "_trusted_of", lambda *_: None)


def believes_the_dates_of_a_clock_that_was_behind(patch: pytest.MonkeyPatch) -> None:
    """Files that were written meanwhile look old once the clock is right."""
    patch.setattr(ClockWatch, "date_floor", property(lambda _: None, lambda _, _floor: None))


# Each bug with the rules that describe it; any other rule would find it only by chance.
def syncs_whatever_is_at_the_name(patch: pytest.MonkeyPatch) -> None:
    """A sync counts although the file of the log is no longer at its name."""
    patch.setattr(host, "sync_named", lambda file: file.sync())


def looks_at_no_names(patch: pytest.MonkeyPatch) -> None:
    """A node whose files are removed goes on, unless it changes or syncs one of them."""
    patch.setattr(WatchedDisk, "check", lambda _self: None)


def takes_its_own_changes_for_losses(patch: pytest.MonkeyPatch) -> None:
    """A file that the node replaces itself is still expected to be the former one."""
    patch.setattr(WatchedDisk, "_forget", lambda _self, _path: None)


PLANTED_IN_GROUPS: dict[Plant, set[str]] = {
    begins_without_its_entry: {"epochs"},
    stores_the_entry_after_the_bytes: {"epochs"},
    continues_its_epoch_after_a_restart: {"epoch twice"},
    cuts_at_the_end_of_its_own_epoch: {"refusal", "log matching", "epochs", "liveness"},
    cuts_the_whole_epoch: {"cut", "refusal"},  # the confirm mark refuses it
    counts_connections: {"ack"},
    counts_a_second_node: {"two nodes"},
    ignores_the_minimum_of_waiting_puts: {"min in sync"},
    takes_one_copy_for_the_default: {"min in sync"},
    shrinks_before_it_is_accepted: {"ack", "confirm", "shown"},
    awaits_a_joining_node_once_it_is_accepted: {"ack", "confirm", "shown"},
    cuts_without_comparing: {"foreign log", "refusal"},
    takes_equal_epochs_for_equal_logs: {"foreign log"},
    sends_observers_all_that_it_has: {"observed"},
    stores_delay_offsets_before_they_are_confirmed: {"delay offset"},
    copies_delay_offsets_before_the_deliveries: {"delay offset"},
    loses_consumer_offsets_at_a_promotion: {"offset lost"},
    copies_no_consumer_offsets: {"uncopied"},
    elects_a_node_outside_the_set: {"loss", "confirmed loss", "confirm", "ack", "shown", "cut"},
    dispatches_all_at_a_promotion: {"shown", "confirmed loss", "cut"},
    acknowledges_after_stepping_down: {"stepped down"},
    counts_queue_offsets_on_after_a_cut: {"queue order"},
    elects_a_node_that_lost_its_cache: {"loss", "confirmed loss", "confirm"},
    elects_an_id_with_an_empty_directory: {"loss", "confirmed loss", "confirm", "ack", "shown"},
    elects_a_node_that_was_only_proposed: {"loss", "confirmed loss", "confirm"},
    forgets_a_proposal_after_a_read: {"ack", "confirm", "shown", "loss", "confirmed loss"},
    follows_a_deposed_master: {"cut", "ack", "loss", "confirm", "log matching"},
    keeps_acks_of_earlier_connections: {"ack", "confirm", "shown", "liveness"},
    fixes_the_needed_nodes_at_the_put: {"ack", "confirm", "shown"},
    syncs_whatever_is_at_the_name: {"lost files"},
    looks_at_no_names: {"lost files"},
    takes_its_own_changes_for_losses: {"ended"},
    expires_files_in_doubt: {"expiry"},
    forgets_the_time_that_it_trusted: {"expiry"},
    believes_the_dates_of_a_clock_that_was_behind: {"expiry"},
    **PLANTED_DELETIONS,
}
