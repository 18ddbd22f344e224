"""Checks a replica group's promises: at each answer, each promotion, each cut and each step.

::

    P13   at PUT_OK, every member of the set would keep the record (its disk, by its flush type);
          each master's log has all that was PUT_OK in earlier epochs, from its first moment on
    P14   one node, one start of its process, decides PUT_OK in an epoch; none that was relieved,
          and with a coordinator only while it has the leader key, unless etcd broke a lease of it
    P15   what is cut off was neither PUT_OK nor shown to consumers, and is kept in trimmed/
    epochs          lists are legal; an epoch has one start offset, durable before its first byte
    log matching    two logs are equal below the point that their epochs name
    confirm, shown  what a master confirms, and any node dispatches, is on every member, and one log
    queue order     its messages have consecutive queue offsets
    lost files      a node whose files somebody removes ends soon, and flushes nothing meanwhile
    foreign log     another group's log in a node's place stays as it is
    expiry          no file is deleted because of its age: a run takes minutes, not days

With ``in_sync_replicas`` as a number a PUT_OK needs that many nodes, and may be lost at a
promotion: everything else holds.  After a person has elected a node that may lack something, what
it lacks is forgotten here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.epoch_history import EpochHistory
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.set_rules import default_min_in_sync_replicas
from hastore.sim.cluster import DATA_DIR
from hastore.sim.group.delay_oracle import DelayOracle, Deliveries
from hastore.sim.group.group_cluster import epoch_of, service_of, set_of
from hastore.sim.group.group_records import HEAD, records
from hastore.sim.group.node_log import EPOCH_PATH, LostFiles, NodeLog
from hastore.sim.group.offset_oracle import OffsetOracle
from hastore.sim.put import PutOutcome, outcome_of
from hastore.sim.violation import UnpromisedError, ViolationError
from hastore.store.log.cleaning import Reason
from hastore.store.record.layout import BLANK_MAGIC_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.broker.node.slave import Slave
    from hastore.ha.sync_state_set import SyncStateSet
    from hastore.message import PutMessageResult
    from hastore.sim.group.controller import Controller, GroupState
    from hastore.sim.group.etcd_director import EtcdDirector
    from hastore.sim.group.group_cluster import Agent, GroupCluster
    from hastore.sim.put import Put
    from hastore.store.recovery.log_cut import LogCut

consistent_point: Final = EpochHistory.consistent_point  # whatever a test makes of it
_ANSWER_S: Final = 12.0  # with the flush's and the slaves' time, and a stop between
_SLOW_S: Final = 40.0
_NOTICED_S: Final = 8.0  # a second, and the end: the last flush and answers have a few
_WAITING_EVERY_S: Final = 0.5


@final
@attrs.define(eq=False)
class GroupPut:
    """A put, and what was decided about it."""

    put: Put
    agent: Agent
    master: Master
    epoch: int
    record: bytes = b""


@final
@attrs.frozen
class TermRecord:
    """Who is master of an epoch."""

    agent: Agent
    master: Master
    start_offset: int


@final
@attrs.define(eq=False)
class GroupOracle:
    """Records what was promised, and checks that it holds.  Broken rules raise ViolationError."""

    cluster: GroupCluster
    puts: list[Put] = attrs.field(factory=list)
    waiting: dict[int, GroupPut] = attrs.field(factory=dict)
    acknowledged: int = 0
    served: int = 0
    losses: int = 0  # how often a person has elected a node that may lack something
    logs: dict[int, NodeLog] = attrs.field(init=False)  # by node id
    delays: DelayOracle = attrs.field(init=False)
    offsets: OffsetOracle = attrs.field(init=False)
    controller: Controller | EtcdDirector = attrs.field(init=False)
    # Whether the coordinator has gone back in time without a node noticing.
    is_unnoticed: Callable[[], bool] = lambda: False
    terms: dict[int, TermRecord] = attrs.field(factory=dict)  # by epoch
    _ok: list[GroupPut] = attrs.field(factory=list)  # PUT_OK, and to be kept
    _deciders: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # epoch: node id, boot
    _relieved: dict[Master, None] = attrs.field(factory=dict)
    _last_members: dict[int, GroupState] = attrs.field(factory=dict)  # of epochs that are over
    # By epoch that ended without a member that had kept all: what its members had published.
    _ranks_of_harmed: dict[int, dict[int, tuple[int, int]]] = attrs.field(factory=dict)
    # Node id, epoch: up to where a master had enough copies while its set was large enough.
    _acknowledged_to: dict[tuple[int, int], int] = attrs.field(factory=dict)
    _lost_boot: dict[int, int] = attrs.field(factory=dict)  # node id: whose bytes may be lost
    _starts: dict[int, int] = attrs.field(factory=dict)  # epoch: its start offset
    _compared: dict[tuple[int, int], tuple[object, ...]] = attrs.field(factory=dict)
    _matched: dict[tuple[int, int], tuple[object, int]] = attrs.field(factory=dict)
    _marks: dict[int, tuple[object, ...] | None] = attrs.field(factory=dict)  # by node id
    _waiting_checked_at: float = 0.0
    _confirmed: bytearray = attrs.field(factory=bytearray)  # what consumers may have seen
    _messages_end: int = 0  # of the last whole message among them
    _next_in_queue: dict[tuple[bytes, int], int] = attrs.field(factory=dict)
    _held: dict[tuple[int, int], int] = attrs.field(factory=dict)  # epoch, member: checked up to

    def __attrs_post_init__(self) -> None:
        """Make the logs."""
        config = self.cluster.config
        self.logs = {
            node_id: NodeLog(self.cluster.node(node_id), config.is_sync(node_id))
            for node_id in config.ids
        }
        self.delays = DelayOracle(self.logs, self.whole_members)
        self.offsets = OffsetOracle(self.cluster)

    # -- faults ----------------------------------------------------------------------------------

    def lost_bytes(self, node_id: int) -> None:
        """Record that what a node's newest process acknowledged may be gone."""
        self._lost_boot[node_id] = self.cluster.node(node_id).boots

    def lost_disk(self, node_id: int) -> None:
        """Record that all of it is gone."""
        self.lost_bytes(node_id)
        self.logs[node_id].wiped()

    def went_back(self, node_id: int) -> None:
        """Record that an older copy of a node's directory is in its place."""
        self.lost_bytes(node_id)
        self.logs[node_id].replaced()

    def lost_files(self, node_id: int, path: str) -> None:
        """Record that a file or directory was removed under a node that is up."""
        log, agent = self.logs[node_id], self.cluster.agent(node_id)
        assert agent is not None, "it serves"
        end = agent.node.role_node.max_offset
        log.lost = LostFiles(path, agent.boot, trio.current_time(), end)
        if log.lost.has_log:
            self.lost_bytes(node_id)

    def has_lost(self, node_id: int) -> bool:
        """Whether a member may lack what it acknowledged as the member that the state names."""
        return self._has_lost_as(self.controller.state, node_id)

    def is_all_lost(self, state: GroupState) -> bool:
        """Whether no member of a set has kept all that it acknowledged."""
        return all(self._has_lost_as(state, each) for each in state.members)

    def _has_lost_as(self, state: GroupState, node_id: int) -> bool:
        member = state.members.get(node_id)
        if member is None or self.logs[node_id].hole is not None:
            return True
        return self._lost_boot.get(node_id, 0) >= member.boot

    def whole_members(self) -> list[int]:
        """Return the members of the set in force that have all that they acknowledged."""
        return [each for each in self.controller.state.members if not self.has_lost(each)]

    def accepted_loss(self, node_id: int) -> None:
        """Forget what the node that a person has elected lacks."""
        self.losses += 1
        log = self.logs[node_id]
        self._ok = [
            each
            for each in self._ok
            if log.data[each.put.physic_offset : each.put.next_offset] == each.record
        ]
        for other in self.logs.values():
            other.is_outlived |= not log.data.startswith(other.data)
        self.delays.is_excused = True
        kept = _common(log.data, self._confirmed)
        self.served = 0
        del self._confirmed[kept:]
        self._messages_end = 0
        self._next_in_queue = {}
        self._held.clear()
        self._walk()
        self.cluster.trace.add("world", f"node-{node_id} is elected with loss")

    def deposed(
        self, epoch: int, state: GroupState, ranks: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        """Record the members that an epoch ends with.

        ``ranks``: last epoch and end of the log of each node that has published them for the
        election, by node id; None: the model of roles has decided, and knows what each has lost.
        """
        self._last_members[epoch] = state
        if ranks is not None and self.is_all_lost(state):
            self._ranks_of_harmed[epoch] = dict(ranks)

    def relieved(self, _agent: Agent, master: Master) -> Callable[[], None]:
        """Record that a master is told now to be none; the result takes that back."""
        self._relieved[master] = None
        return lambda: self._relieved.pop(master, None)

    # -- a master begins -------------------------------------------------------------------------

    def term_began(self, agent: Agent, master: Master) -> None:
        """Check the log of a new master before it serves."""
        log, entry = self.logs[agent.node_id], set_of(master).entry
        self._update(agent, master)
        text = f"master of epoch {entry} with {sorted(set_of(master).accepted)}"
        self.cluster.trace.add(log.name, text)
        if entry.epoch in self.terms:
            error = UnpromisedError if self.is_unnoticed() else ViolationError
            raise error("epoch twice", f"{log.name} begins epoch {entry.epoch} again")
        self._excuse_harmed(agent, entry.epoch)
        if log.hole is not None:
            detail = (
                f"{log.name} is master of epoch {entry.epoch}, and its log was repaired at"
                f" {log.hole.start}"
            )
            raise ViolationError("unverified", detail)
        self.terms[entry.epoch] = TermRecord(agent, master, entry.start_offset)
        for each in self._ok:
            if each.epoch < entry.epoch:
                self._check_kept(each, entry.epoch)
        if max(self.terms) > entry.epoch:
            return  # a promotion that came late: what was confirmed since is not this master's
        at = _common(log.data, self._confirmed)
        if at < self._messages_end:
            detail = f"{log.name}, master of epoch {entry.epoch}, lacks what consumers saw at {at}"
            raise ViolationError("confirmed loss", detail)

    def _excuse_harmed(self, agent: Agent, epoch: int) -> None:
        """Forget what a new master lacks, if no member was left that had kept all.

        But only if all of them had published what they have, and nobody had more.
        """
        former = max((each for each in self._last_members if each < epoch), default=0)
        ranks = self._ranks_of_harmed.pop(former, None)
        if ranks is None:
            return
        is_whole = self._last_members[former].members.keys() <= ranks.keys()
        if is_whole and ranks[agent.node_id] == max(ranks.values()):
            self.accepted_loss(agent.node_id)

    def role_began(self, agent: Agent, role_node: Master | Slave) -> None:
        """Trace a role, and record what its consumers begin with."""
        if isinstance(role_node, Master) and self.cluster.config.listens:
            self.offsets.role_began(agent, role_node)
        role = "a master" if isinstance(role_node, Master) else "a slave"
        self.cluster.trace.add(
            agent.sim_node.name, f"serves as {role} at {role_node.max_offset}", is_detail=True
        )

    def _check_kept(self, each: GroupPut, epoch: int) -> None:
        put, term = each.put, self.terms[epoch]
        data = self.logs[term.agent.node_id].data
        if data[put.physic_offset : put.next_offset] != each.record:
            detail = (
                f"put {put.number}, PUT_OK in epoch {each.epoch}, is not in the log of"
                f" {term.agent.sim_node.name}, master of epoch {epoch}"
            )
            raise ViolationError("loss", detail, put.number)

    # -- a put is answered -----------------------------------------------------------------------

    def answered(self, each: GroupPut, result: PutMessageResult) -> None:
        """Check an answer at its instant."""
        put = each.put
        put.status, put.at = result.status, trio.current_time()
        if result.physic_offset is not None and result.next_offset is not None:
            put.physic_offset, put.next_offset = result.physic_offset, result.next_offset
        put.outcome = outcome_of(result.status)
        if put.outcome is PutOutcome.OK:
            self.acknowledged += 1
            self._check_ok(each)

    def _check_ok(self, each: GroupPut) -> None:
        put, agent, epoch, config = each.put, each.agent, each.epoch, self.cluster.config
        log, group = self.logs[agent.node_id], set_of(each.master)
        self._update(agent, each.master)
        each.record = bytes(log.data[put.physic_offset : put.next_offset])
        if put.key not in each.record:
            detail = f"put {put.number} is not in the log of {log.name} at {put.physic_offset}"
            raise ViolationError("ack", detail, put.number)
        decider = (agent.node_id, agent.boot.number)
        if self._deciders.setdefault(epoch, decider) != decider:
            detail = f"{log.name} decides put {put.number} in epoch {epoch}, as another one did"
            raise ViolationError("fencing", detail, put.number)
        why_not = self.controller.why_not_deciding(agent, epoch)
        if why_not is not None:
            detail = f"put {put.number} is PUT_OK by {log.name} in epoch {epoch}: {why_not}"
            raise ViolationError("lease", detail, put.number)
        if each.master in self._relieved:
            detail = f"put {put.number} is PUT_OK, but {log.name} was told to step down before"
            raise ViolationError("stepped down", detail, put.number)
        # Or its copies were enough before a member left, and it waited for the master's disk.
        before = self._acknowledged_to.get((agent.node_id, epoch), 0)
        if not self._is_enough(group) and put.next_offset > before:
            detail = f"put {put.number} is PUT_OK with {sorted(group.accepted)} only"
            raise ViolationError("min in sync", detail, put.number)
        if config.in_sync_replicas != "all":
            self._check_number(each, config.in_sync_replicas)
            return
        for node_id in self._members(epoch):
            if not self.has_lost(node_id) and not self.logs[node_id].holds(
                put.physic_offset, each.record
            ):
                detail = f"put {put.number} is PUT_OK, but node-{node_id} does not have it"
                raise ViolationError("ack", detail, put.number)
        self._ok.append(each)
        for later, term in self.terms.items():
            if later > epoch and term.agent.open_master is term.master:
                self._check_kept(each, later)

    def _members(self, epoch: int) -> list[int]:
        """Return the members in force in an epoch, or at its end."""
        state = self._last_members.get(epoch, self.controller.state)
        return sorted(state.members)

    def _check_number(self, each: GroupPut, wanted: int) -> None:
        put = each.put
        having = [
            node_id
            for node_id, log in self.logs.items()
            if log.holds(put.physic_offset, each.record) or node_id in self._lost_boot
        ]
        if len(having) < wanted:
            detail = f"put {put.number} is PUT_OK on {len(having)} of {wanted} nodes"
            raise ViolationError("ack", detail, put.number)

    # -- after each step -------------------------------------------------------------------------

    def check_step(self) -> None:
        """Check what holds at any time; most steps change nothing of what is compared."""
        state, agents, marks = self.controller.state, self.cluster.agents, self._marks
        changed = []
        for node_id in self.logs:
            mark = _mark(agents.get(node_id), state)
            if mark != marks.get(node_id):
                marks[node_id] = mark
                changed.append(node_id)
        if changed:
            self._check_logs(changed)
        for log in self.logs.values():
            if log.lost is not None:
                self._check_lost_files(log, log.lost)
        self._check_expiry()
        config = self.cluster.config
        if config.has_delays:
            self.delays.check_step()
        if config.listens:
            self.offsets.check_step()
        now = trio.current_time()
        if now >= self._waiting_checked_at + _WAITING_EVERY_S:
            self._waiting_checked_at = now
            self._check_waiting()

    def _check_expiry(self) -> None:
        for node_id, agent in self.cluster.agents.items():
            decision = agent.node.role_node.expiry.clean_commit_log_service.last_decision
            if decision is None or not decision.removals or agent.boot.is_over:
                continue
            removal = decision.removals[0]
            if removal.reason is Reason.EXPIRED:
                message = f"node {node_id} deletes the file at {removal.start} because of its age"
                raise ViolationError("expiry", message)

    def _check_logs(self, changed: list[int]) -> None:
        """Check the nodes whose marks have changed, and those with all others."""
        open_ids = []
        for node_id, log in self.logs.items():
            agent = self.cluster.agent(node_id)
            if agent is None or not log.is_open_in(agent.node.role_node):
                continue
            if log.lost is not None and log.lost.has_log:
                continue  # there is nothing on its disk to compare
            if node_id in changed:
                self._update(agent, agent.node.role_node)
            if log.foreign is None:
                open_ids.append(node_id)
                if node_id in changed:
                    self._check_epochs(agent, agent.node.role_node)
        for number, one in enumerate(open_ids):
            for other in open_ids[number + 1 :]:
                if one in changed or other in changed:
                    self._check_matching(one, other)
        for agent, master in self.cluster.masters():
            self._note_acknowledged(agent, master)
            self._check_confirmed(agent, master)

    def _update(self, agent: Agent, role_node: Master | Slave) -> None:
        log = self.logs[agent.node_id]
        cut = log.new_cut(role_node)
        before = bytes(log.data) if cut is not None else b""
        missing = log.update(role_node)
        if log.foreign is not None:
            self._check_foreign(log, cut)
            return
        if cut is not None:
            self._check_cut(log, cut, before)
        elif missing is not None:
            self._check_missing(agent, log, missing)
        is_whole = log.hole is None and not log.is_outlived
        if is_whole and log.dispatched > len(self._confirmed):
            # A BLANK is no message: an opening may drop one that ends the log.
            del self._confirmed[self._messages_end :]
            start = self._messages_end
            self._confirmed += log.data[start : log.dispatched]
            self._walk()
            self._check_shown(log, start)

    def _check_foreign(self, log: NodeLog, cut: LogCut | None) -> None:
        """Check that another group's log stays as it is: a person decides about it."""
        if log.data == log.foreign and cut is None:
            return
        what = f"cut at {cut.physic_offset}" if cut is not None else f"changed, up to {log.end}"
        size = len(log.foreign or b"")
        detail = f"{log.name}: the log of another group, {size} bytes, was {what}"
        raise ViolationError("foreign log", detail)

    def _check_shown(self, log: NodeLog, start: int) -> None:
        """Check that what consumers can see from now on is on every member."""
        shown = self._confirmed[start : self._messages_end]
        for node_id in self.whole_members():
            if not self.logs[node_id].holds(start, shown):
                detail = (
                    f"{log.name} shows consumers {start}..{log.dispatched}, which node-{node_id} of"
                    " the set does not have"
                )
                raise ViolationError("shown", detail)

    def _check_missing(self, agent: Agent, log: NodeLog, missing: bytes) -> None:
        """Check that an opening has all but an incomplete record, unless a crash took more."""
        if self._lost_boot.get(agent.node_id, 0) >= log.former_boot:
            return
        whole = False
        if len(missing) >= HEAD.size:
            size, magic, _, _ = HEAD.unpack_from(missing)
            whole = magic != BLANK_MAGIC_CODE and 0 < size <= len(missing)
        is_new = log.boot != log.former_boot and log.is_sync  # appended, and not synced
        if whole and not is_new:
            detail = f"{log.name} opened its log without {len(missing)} bytes from {log.end} on"
            raise ViolationError("opening", detail)

    def _check_cut(self, log: NodeLog, cut: LogCut, before: bytes) -> None:
        start, end = cut.physic_offset, cut.end_offset
        text = f"cut from {start} to {end}"
        self.cluster.trace.add(log.name, text)
        gone = before[start:end]
        size = self._saved(log, cut)
        if size != end - start:
            detail = f"{log.name}: {text}, and {size} bytes kept in trimmed/"
            raise ViolationError("cut", detail)
        for each in self._ok:
            put = each.put
            if before[put.physic_offset : put.next_offset] == each.record and (
                start < put.next_offset <= len(before)
            ):
                detail = f"{log.name}: {text}, which was PUT_OK"
                raise ViolationError("cut", detail, put.number)
        first = start
        if len(gone) >= HEAD.size:
            size, magic, _, _ = HEAD.unpack_from(gone)
            first += size if magic == BLANK_MAGIC_CODE else 0  # it may be written again
        shown = next(records(self._confirmed, first), None)
        if (
            shown is not None
            and before[first : shown.end] == self._confirmed[first : shown.end]
            and not self._is_other_masters(log, cut, first)
        ):
            same = _common(before[first:end], self._confirmed[first:])
            raise ViolationError("cut", f"{log.name}: {text}: consumers saw {same} bytes of it")

    def _is_other_masters(self, log: NodeLog, cut: LogCut, at: int) -> bool:
        """Whether members have the byte there from another epoch than the one that was cut.

        Two masters that deliver a delayed message, when it is due, may write the same bytes.
        """
        writers = [
            each.epochs().at(at)
            for node_id, each in self.logs.items()
            if each is not log and node_id in self.controller.state.members
        ]
        cut_epochs = [epoch for epoch, start, end in cut.epochs if start <= at < end]
        return any(each is not None and each.epoch not in cut_epochs for each in writers)

    def _saved(self, log: NodeLog, cut: LogCut) -> int:
        disk = log.sim_node.live_disk
        paths = [f"{DATA_DIR}/{path}" for path in cut.saved_paths]
        return sum(len(disk.inodes[path].durable) for path in paths if path in disk.inodes)

    def _check_epochs(self, agent: Agent, role_node: Master | Slave) -> None:
        log = self.logs[agent.node_id]
        epochs = log.epochs()
        key = (agent.node_id, 0)
        state = (epochs, log.end, log.opened)
        if self._compared.get(key) == state:
            return
        self._compared[key] = state
        for entry in epochs.entries:
            start = self._starts.setdefault(entry.epoch, entry.start_offset)
            if entry.start_offset != start:
                detail = f"{log.name} says that epoch {entry} began there, others {start}"
                raise ViolationError("epochs", detail)
        if not log.end:
            return
        writer = epochs.at(log.end - 1)
        if writer is None:
            raise ViolationError("epochs", f"{log.name}: no epoch has the byte at {log.end - 1}")
        if isinstance(role_node, Master):
            entry = set_of(role_node).entry
            if log.end > entry.start_offset and writer != entry:
                detail = f"{log.name} has bytes of epoch {entry}, and {epochs} on its disk"
                raise ViolationError("epochs", detail)
            return
        framing = role_node.ha_client.framing
        assert isinstance(framing, AutoswitchFraming), "a slave of a group"
        if framing.epochs is not None and role_node.ha_client.is_in_step:
            wanted = framing.epochs.masters.at(log.end - 1)
            if wanted is not None and writer != wanted:
                detail = f"{log.name} has bytes of epoch {wanted}, and {epochs} on its disk"
                raise ViolationError("epochs", detail)

    def _check_matching(self, one_id: int, other_id: int) -> None:
        """Compare two logs below the point that their epochs name, if anything has changed."""
        one, other = self.logs[one_id], self.logs[other_id]
        if one.hole is not None or other.hole is not None:
            return
        ours, theirs = one.epochs(), other.epochs()
        lineage = (ours, theirs, one.opened, other.opened)
        before = self._matched.get((one_id, other_id))
        start = 0
        if before is not None and before[0] == lineage:
            start = before[1]
            if start >= min(one.end, other.end):
                return
        point = consistent_point(ours, one.end, theirs, other.end)
        end = 0 if point is None else point.offset
        if end > start and one.data[start:end] != other.data[start:end]:
            at = start + _common(one.data[start:end], other.data[start:end])
            detail = f"{one.name} ({ours}) and {other.name} ({theirs}) differ at {at}"
            raise ViolationError("log matching", detail)
        self._matched[one_id, other_id] = (lineage, max(start, end))

    def _is_enough(self, group: SyncStateSet) -> bool:
        """Return whether a master's set has as many members as its group asks for."""
        config = self.cluster.config
        if config.min_in_sync_replicas is not None:
            return len(group.accepted) >= config.min_in_sync_replicas
        # A node that joins is registered with the set, which its master may not have heard yet.
        least = default_min_in_sync_replicas(self.controller.registered, config.in_sync_replicas)
        return len(group.needed) >= least

    def _note_acknowledged(self, agent: Agent, master: Master) -> None:
        """Note up to where a master had enough copies, while its set was large enough."""
        group = set_of(master)
        if self._is_enough(group):
            term = agent.node_id, group.entry.epoch
            known = self._acknowledged_to.get(term, 0)
            self._acknowledged_to[term] = max(known, group.ack_limit)

    def _check_confirmed(self, agent: Agent, master: Master) -> None:
        """Check that what a master has confirmed newly is on every member."""
        epoch, state = epoch_of(master), self.controller.state
        confirm_offset = service_of(master).confirm_offset()
        is_current = (state.epoch, state.master) == (epoch, agent.node_id)
        if not is_current or state.is_electing:
            return
        data = self.logs[agent.node_id].data
        if confirm_offset > len(data):
            raise ViolationError("confirm", f"{confirm_offset} is beyond the log's end {len(data)}")
        for node_id in state.members:
            start = self._held.get((epoch, node_id), 0)
            if confirm_offset <= start:
                continue
            if self.has_lost(node_id):
                continue
            if not self.logs[node_id].holds(start, data[start:confirm_offset]):
                detail = (
                    f"{agent.sim_node.name} confirms {confirm_offset}, which node-{node_id} of the"
                    " set does not have"
                )
                raise ViolationError("confirm", detail)
            self._held[epoch, node_id] = confirm_offset

    def _walk(self) -> None:
        """Check the queue offsets of the messages that consumers may see now."""
        for record in records(self._confirmed, self._messages_end):
            queue = (record.topic, record.queue_id)
            wanted = self._next_in_queue.get(queue, 0)
            if record.queue_offset != wanted:
                detail = (
                    f"queue {record.queue_id} of {record.topic.decode()} has {record.queue_offset}"
                    f" at {record.start}, not {wanted}"
                )
                raise ViolationError("queue order", detail)
            self._next_in_queue[queue] = wanted + 1
            self.served += 1
            self._messages_end = record.end

    def _check_waiting(self) -> None:
        """Check that every put is answered, whatever happens to the master's role."""
        now = trio.current_time()
        for number, each in list(self.waiting.items()):
            node, boot = each.agent.sim_node, each.agent.boot
            if boot.is_over:
                del self.waiting[number]  # it died with the process
                continue
            if node.frozen is not None:
                continue
            since = max(each.put.submitted_at, node.went_on_at)
            is_slow = node.slow_disk_s or node.slow_until >= since
            if now - since > (_SLOW_S if is_slow else _ANSWER_S):
                detail = f"put {number} has no answer after {now - since:.0f} s"
                raise ViolationError("answer", detail, number)

    def _check_lost_files(self, log: NodeLog, lost: LostFiles) -> None:
        """Check that a node without its files ends, and that no sync of its log counts until then.

        A call in its threads takes ``slow_disk_s`` longer; a role change closes the files.
        """
        node, agent = log.sim_node, self.cluster.agent(self.cluster.id_of(log.sim_node))
        if lost.boot.is_over:
            if not lost.has_log:
                log.lost = None  # the next start makes it again
            return
        if node.frozen is not None or agent is None:
            return
        role_node = agent.node.role_node
        if lost.has_log and log.is_open_in(role_node):
            flushed_offset = role_node.commit_log.flushed_offset
            if flushed_offset > lost.end:
                detail = (
                    f"{log.name} flushes up to {flushed_offset}, {lost.path} ended at {lost.end}"
                )
                raise ViolationError("lost files", detail)
        since = max(lost.at, node.went_on_at)
        is_slow = node.slow_disk_s or node.slow_until >= since
        if trio.current_time() - since > (_SLOW_S if is_slow else _NOTICED_S):
            raise ViolationError("lost files", f"{log.name} goes on without {lost.path}")

    # -- at the end ------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Compare all logs; each acknowledged message is there once."""
        first = self.logs[1]
        for log in self.logs.values():
            if log.data != first.data:
                at = _common(log.data, first.data)
                raise ViolationError("equal", f"{first.name} and {log.name} differ at {at}")
        for each in self._ok:
            put = each.put
            if first.data[put.physic_offset : put.next_offset] != each.record:
                raise ViolationError("loss", f"put {put.number} is lost", put.number)
        found = Deliveries.of(first.data)
        for put in self.puts:
            # A delayed message may be delivered again.
            count = found.delayed[put.key] or found.others[put.key]
            if count > 1:
                detail = f"put {put.number} is {count} times in the log"
                raise ViolationError("once", detail, put.number)
            if put.outcome is PutOutcome.FAILED and count:
                detail = f"put {put.number} failed, but is in the log"
                raise ViolationError("false failure", detail, put.number)
        if len(self._confirmed) < first.end:
            detail = f"consumers see {len(self._confirmed)} of {first.end} bytes"
            raise ViolationError("unserved", detail)


def _common(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Return how many first bytes are equal."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle
    return low


def _mark(agent: Agent | None, state: GroupState) -> tuple[object, ...] | None:
    """Return what tells whether a node's log, or what it shows of it, has changed.

    Called for each node after each step: a fifth of a run's time, if it is not quick.
    """
    if agent is None or agent.boot.is_over:
        return None
    role_node = agent.node.role_node
    commit_log = role_node.message_store.commit_log
    queue, confirmed = commit_log.mapped_file_queue, (0, 0)
    if isinstance(role_node, Master):
        group = set_of(role_node)
        confirmed = group.confirm_offset, group.ack_limit
    return (
        role_node,
        queue,
        queue.is_closed,
        queue.max_offset,
        commit_log.flushed_offset,
        role_node.dispatching.reput_message_service.reput_offset,
        confirmed,
        agent.boot.disk.inodes.get(EPOCH_PATH),
        state,
    )
