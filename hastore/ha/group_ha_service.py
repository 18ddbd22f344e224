"""The master's side of replication in a replica group: acks count nodes, not connections.

::

    report ──▶ HAConnection ──▶ SyncStateSet ──ack_limit──▶ GroupTransferService ──▶ producers
                                  │   ▲    └─confirm_offset─▶ dispatch, frames
                          proposal│   │answer
                                  ▼   │
                    coordinator, SyncStateFile

HAService with the autoswitch protocol and the rules of ``SyncStateSet``; this file only passes
facts in and acts on what comes out.  One task serves the set's deadlines and proposals.

A put is answered SLAVE_NOT_AVAILABLE, at once or as soon as a link closes, if it misses a node
whose link is closed and the set may not shrink to the others.

Invariants: a put is released only up to ``ack_limit``; a proposal is answered ACCEPTED only once
its members are on disk.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never, final

import attrs
import trio

from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.concurrency.tcp import describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError, NodeIdTakenError
from hastore.ha.group_transfer_service import GroupTransferService
from hastore.ha.ha_service import NODES_MAX, AwaitedNode, GroupStanding, HAService
from hastore.ha.mark_keeper import MarkKeeper
from hastore.ha.master_framing import AutoswitchMasterFraming
from hastore.ha.node_claims import REPLACED_LINK_S, NodeClaims, Verdict
from hastore.ha.node_standing import NodeRole, standings
from hastore.ha.observer_service import ObserverService
from hastore.ha.send_rounds import GroupSendRounds
from hastore.ha.set_proposal import Answer, NoCoordinator
from hastore.status import PutMessageStatus
from hastore.store.sync_state_file import StoredSet
from hastore.trace import logger
from hastore.wire.autoswitch_frames import FRAME_BODY_SIZE_MAX, Handshake, HandshakeAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import HAConfig
    from hastore.epoch_history import EpochHistory
    from hastore.errors import ProtocolError
    from hastore.ha.ha_connection import HAConnection
    from hastore.ha.ha_service import Standing
    from hastore.ha.node_claims import Claim
    from hastore.ha.node_standing import NodeStanding
    from hastore.ha.set_proposal import Coordinator, Proposal
    from hastore.ha.sync_state_set import SyncStateSet
    from hastore.store.acked_offset import AckedOffset
    from hastore.store.log.cleaning import Hold
    from hastore.store.sync_state_file import SyncStateFile

# How long after the confirm offset has risen an idle slave is told: a frame for each put would cost
# the put's own rate, and consumers of a slave need not wait for the next heartbeat.
CONFIRM_PAUSE_S: Final = 0.05
SAVE_PAUSE_S: Final = 1.0  # after a proposal could not be saved
LOG_BEGINS_MAX: Final = 1_024  # nodes; any peer can name an id

_ID_HINT: Final = (
    "each node of a replica group has an id of its own, also one whose directory was copied: give"
    " one of them another [node] id (--node-id), and an empty --data directory"
)
_NOT_AWAITED: Final = frozenset({NodeRole.MASTER, NodeRole.OBSERVER})

_log = logger("ha")


def _with_room_for_header(config: HAConfig) -> HAConfig:
    """Return a configuration whose frames fit a slave's buffer with their longer header."""
    size_max = min(config.ha_transfer_batch_size_max, FRAME_BODY_SIZE_MAX)
    return attrs.evolve(
        config,
        ha_transfer_batch_size=min(config.ha_transfer_batch_size, size_max),
        ha_transfer_batch_size_max=size_max,
    )


@final
@attrs.define(eq=False)
class GroupHAService(HAService):
    """Replicates the log of one epoch's master to its replica group.

    Whoever calls the set directly (``moved``) calls ``set_changed`` next.
    """

    sync_state_set: SyncStateSet = attrs.field(kw_only=True)
    epochs: EpochHistory = attrs.field(kw_only=True)  # the last one is this master's
    # Where the accepted set is kept; None: nowhere, the coordinator does.
    state_file: SyncStateFile | None = attrs.field(default=None, kw_only=True)
    coordinator: Coordinator = attrs.field(factory=NoCoordinator, kw_only=True)
    # Writes, durably, up to where all members have the log; blocks.  See ``ConfirmMark``.
    mark_confirmed: Callable[[int], None] = attrs.field(default=lambda _offset: None, kw_only=True)
    # Up to where puts were answered PUT_OK, or consumers may have read, for the next start; None:
    # nothing keeps it.
    acked: AckedOffset | None = attrs.field(default=None, kw_only=True)
    observers: ObserverService = attrs.field(init=False)  # classic slaves, on a port of their own
    _rounds: GroupSendRounds = attrs.field(init=False)  # ``rounds``
    # By node id, in this epoch; the LOG_BEGINS_MAX learned last.
    _log_begins: dict[int, int] = attrs.field(factory=dict, init=False)
    _unavailable: str | None = attrs.field(default=None, init=False)
    _refused: str | None = attrs.field(default=None, init=False)
    _on_refused: Callable[[str | None], None] = attrs.field(
        default=lambda _reason: None, init=False
    )
    _held_id: int | None = attrs.field(default=None, init=False)  # acted on
    _confirmed: int = attrs.field(default=0, init=False)  # the confirm offset, acted on
    _asked: Proposal | None = attrs.field(default=None, init=False)
    _wakes_at: float = attrs.field(default=-math.inf, init=False)  # the set's task
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _claims: NodeClaims = attrs.field(factory=NodeClaims, init=False)
    _claim_wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # When links were replaced by a newer one of the same node, by connection id; and those of them
    # that have reported after REPLACED_LINK_S, from their first such report on.
    _replaced: dict[int, float] = attrs.field(factory=dict, init=False)
    _reporting_on: set[int] = attrs.field(factory=set, init=False)
    _confirm_wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _one_save: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _mark_keeper: MarkKeeper = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the parts; the set begins with the log's end."""
        self.config = _with_room_for_header(self.config)
        super().__attrs_post_init__()
        entries = self.epochs.entries
        assert entries, "a master has an epoch"
        assert entries[-1] == self.sync_state_set.entry, self.epochs
        self._now = trio.lowlevel.current_clock().current_time
        self.notify_appended = self._notify_appended
        self.group_transfer_service = GroupTransferService(
            self.ack_table,
            self.config.slave_timeout_ms,
            self.on_acknowledged,
            self.decisions,
            awaited="not all nodes that it needs have",
        )
        self.observers = ObserverService(
            self.env,
            self.commit_log,
            self.config,
            self.refused_slaves,
            self.decisions,
            on_acknowledged=lambda: None,
            tls=self.tls,
            confirm_offset=self.confirm_offset,
        )
        self._mark_keeper = MarkKeeper(
            offload=self.env.offload,
            kept=lambda: self.sync_state_set.kept_offset or 0,
            flushed=lambda: self.commit_log.flushed_offset,
            write=self.mark_confirmed,
        )
        self.sync_state_set.appended(self.commit_log.readable_offset, self._now())
        self._act()

    def _make_rounds(self) -> GroupSendRounds:
        self._rounds = GroupSendRounds(self.commit_log, self.gathers)
        return self._rounds

    def _make_framing(self, connection_id: int) -> AutoswitchMasterFraming:
        return AutoswitchMasterFraming(partial(self._greet, connection_id), self.confirm_offset)

    def confirm_offset(self) -> int:
        """Return the end of what is on every node of the set; it never falls.

        A master with SYNC_FLUSH has what it has flushed.
        """
        confirmed = self.sync_state_set.confirm_offset
        return min(confirmed, self.commit_log.flushed_offset) if self.gathers else confirmed

    # -- links -----------------------------------------------------------------------------------

    def _greet(self, connection_id: int, handshake: Handshake) -> HandshakeAnswer | None:
        """Accept a slave's handshake, or hold it while another link of its node is up."""
        node_id, group = handshake.node_id, self.sync_state_set
        if self.tls is not None:
            self.tls.check_id(self.connections[connection_id].sock, handshake)
        if node_id == group.own_id:
            msg = f"the slave says that it is node {node_id}, which is this master"
            raise NodeIdTakenError(msg, hint=_ID_HINT)
        holder_id = group.acks.connection_of(node_id)
        holder = None if holder_id is None else self.connections.get(holder_id)
        if holder is None or holder.progress.ended_because is not None:
            self._end_claimant(self._claims.withdraw(node_id))
            return self._welcome(connection_id, handshake)
        earlier = self._claims.claim(
            node_id, claimant_id=connection_id, holder_id=holder.connection_id, now=self._now()
        )
        self._end_claimant(earlier)
        if earlier is None:
            holder.write_socket_service.request_heartbeat()
            self._claim_wake.wakeup()
        return None

    def _end_claimant(self, claim: Claim | None) -> None:
        """End the link of a claim that a newer link has taken the place of."""
        claimant = None if claim is None else self._claimant(claim)
        if claim is not None and claimant is not None:
            claimant.finish(f"a newer link says that it is node {claim.node_id}, too")

    def _welcome(self, connection_id: int, handshake: Handshake) -> HandshakeAnswer:
        """Let a node's acks count on this connection from now on; return the answer."""
        node_id, group = handshake.node_id, self.sync_state_set
        group.connected(node_id, connection_id, self._now(), is_observer=handshake.is_learner)
        self.set_changed()
        return HandshakeAnswer(max_offset=self.commit_log.readable_offset, epochs=self.epochs)

    def _grant(self, claim: Claim) -> None:
        """Let a claimant take the place of its node's former link."""
        claimant = self._claimant(claim)
        if claimant is None or claimant.progress.ended_because is not None or self._is_over:
            return
        framing = claimant.framing
        assert isinstance(framing, AutoswitchMasterFraming), "a link of a group"
        assert framing.held is not None, f"{claim} without a handshake"
        claimant.answer_handshake(self._welcome(claimant.connection_id, framing.held))

    def _claimant(self, claim: Claim) -> HAConnection | None:
        return None if claim.claimant_id is None else self.connections.get(claim.claimant_id)

    async def _serve_claims(self) -> None:
        """Decide about claims when they are due, until cancelled."""
        while True:
            deadline = self._claims.next_deadline()
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._claim_wake.wait_for_running()
            # Links read what has arrived first: this process may have been stopped meanwhile.
            await trio.lowlevel.checkpoint()
            for claim in self._claims.due(self._now()):
                self._judge(claim)

    def _judge(self, claim: Claim) -> None:
        holder, now = self.connections[claim.holder_id], self._now()
        has_ended = holder.progress.ended_because is not None
        reported_at = -math.inf if has_ended else holder.last_read_time
        match self._claims.judge(claim, reported_at=reported_at, now=now):
            case Verdict.ASK_AGAIN:
                holder.write_socket_service.request_heartbeat()
            case Verdict.TAKE_PLACE:
                self._replaced[claim.holder_id] = now
                self._grant(claim)
            case Verdict.REFUSE:
                claimant = self._claimant(claim)
                if claimant is not None:
                    claimant.refuse(_id_taken(claim.node_id, claimant, by=holder))
            case Verdict.FORGET:
                pass
            case _ as unreachable:
                assert_never(unreachable)

    def log_arrival(self, connection: HAConnection, ack_offset: int) -> None:
        """Log a slave's first report; learn where its log begins."""
        super().log_arrival(connection, ack_offset)
        handshake = _handshake_of(connection)
        node_id, begin = handshake.node_id, connection.progress.log_begin_offset
        if begin is not None:
            self._remember_begin(node_id, begin)
        else:
            begin = self._log_begins.get(node_id)
        if begin is None and not handshake.from_last_file:
            # The protocol does not say where a log begins.  One that was not begun with the last
            # file has been a copy of the whole log (docs/assumptions.md).
            begin = self.commit_log.min_offset
        if begin is not None:
            self.log_begins(connection.connection_id, begin)

    def _remember_begin(self, node_id: int, log_begin_offset: int) -> None:
        begins = self._log_begins
        begins.pop(node_id, None)
        begins[node_id] = log_begin_offset
        while len(begins) > LOG_BEGINS_MAX:
            # Not that of a node that counts: it would be a learner after its next link.
            others = (known for known in begins if known not in self.sync_state_set.needed)
            del begins[next(others)]

    def log_begins(self, connection_id: int, log_begin_offset: int) -> None:
        """Record where the log of the node on a connection begins."""
        self.sync_state_set.log_begins(connection_id, log_begin_offset, self._now())
        self.set_changed()

    def record_refusal(self, connection: HAConnection, error: ProtocolError) -> None:
        """Record a refusal for ``status``; the epochs say whether it must be remembered."""
        self._forget_acks(connection.connection_id)
        self._refusal(connection.address, error, str(error), error.hint)

    def _forget_acks(self, connection_id: int) -> None:
        super()._forget_acks(connection_id)
        claim = self._claims.ended(connection_id, self._now())
        if claim is not None:
            self._grant(claim)  # first: its node would be absent for a moment, and leave the set
        self._replaced.pop(connection_id, None)
        self._reporting_on.discard(connection_id)
        node_id = self.sync_state_set.acks.node_id_on(connection_id)
        self.sync_state_set.disconnected(connection_id, self._now())
        if node_id is not None:
            self._end_replaced(node_id)
        self.set_changed()

    def _end_replaced(self, node_id: int) -> None:
        """End a node's earlier links after its newest: none counts, and on a new one it would."""
        for connection_id in list(self._replaced):
            connection = self.connections.get(connection_id)
            if connection is not None and _handshake_of(connection).node_id == node_id:
                connection.finish(f"a newer link of node {node_id} took its place, and has ended")

    def holds(self) -> list[Hold]:
        """Return the offset from which each connected slave, or observer, needs the log."""
        return [*super().holds(), *self.observers.holds()]

    def refuse_expired(self) -> None:
        """Refuse the slaves that need deleted bytes; called after files were deleted."""
        super().refuse_expired()
        self.observers.refuse_expired()
        min_offset = self.commit_log.min_offset
        self.epochs = self.epochs.drop_expired(min_offset)
        self.sync_state_set.expired(min_offset, self._now())
        self.set_changed()

    def hand_over(self) -> None:
        """Leave the set as it is from now on: slaves that stop with this master stay members."""
        self.sync_state_set.hand_over()
        self.set_changed()

    def disconnect_all(self, reason: str) -> None:
        """End every connection, and accept no other; the set stays as it is."""
        self.hand_over()
        self.observers.disconnect_all(reason)
        super().disconnect_all(reason)

    # -- acknowledging: acks to producers --------------------------------------------------------

    def _notify_appended(self) -> None:
        """Let links send; called after each append."""
        group, end = self.sync_state_set, self.commit_log.readable_offset
        if not group.advance(end):
            now, limit, confirmed = self._now(), group.ack_limit, group.confirm_offset
            has_stalled = group.appended(end, now)
            if has_stalled and now + group.rules.sync_state_timeout_s < self._wakes_at:
                self._wake.wakeup()
            if group.ack_limit > limit or group.confirm_offset > confirmed:
                self._release(None)  # a master that is alone confirms by itself
        if self._rounds.idle:
            self._rounds.notify_appended()

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Count a slave's report and wake the producers that it satisfies.

        Until ``counts_as_ack`` it only shows how near the slave is.
        """
        is_observer = _handshake_of(connection).is_learner
        connection_id = connection.connection_id
        if connection_id in self._replaced and self._is_second_node(connection):
            return
        if not connection.progress.counts_as_ack:
            if not is_observer:
                self.ack_table.set_position(connection_id, ack_offset)
            return
        if not is_observer:
            self.ack_table.acknowledge(connection_id, ack_offset)
        group = self.sync_state_set
        proposal = group.acknowledged(connection_id, ack_offset, self._now())
        if proposal is not None or group.held_id != self._held_id:
            self.set_changed()
        self._release(connection.address)

    def _is_second_node(self, connection: HAConnection) -> bool:
        """Refuse a slave that was silent, so that another took its place, and goes on."""
        connection_id, now = connection.connection_id, self._now()
        if now - self._replaced[connection_id] < REPLACED_LINK_S:
            return False
        if connection_id not in self._reporting_on:
            self._reporting_on.add(connection_id)
            self._replaced[connection_id] = now
            return False
        node_id = _handshake_of(connection).node_id
        newest_id = self.sync_state_set.acks.connection_of(node_id)
        newest = None if newest_id is None else self.connections.get(newest_id)
        if newest is not None:
            connection.refuse(_id_taken(node_id, connection, by=newest))
        return True

    def handle_ha(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for the nodes it needs (its HA part)."""
        if next_offset <= self.sync_state_set.ack_limit:  # is_acknowledged, without a call
            request.complete(Part.HA, PutMessageStatus.PUT_OK)
        elif self._unavailable is not None:
            request.complete(Part.HA, PutMessageStatus.SLAVE_NOT_AVAILABLE, self._unavailable)
        else:
            self.group_transfer_service.wait(next_offset, request)

    def is_slave_ok(self, next_offset: int) -> bool:
        """Return whether a put that ends at ``next_offset`` need not wait in vain."""
        return self.unavailable_because(next_offset) is None

    def unavailable_because(self, next_offset: int) -> str | None:
        """Return why a put that ends at ``next_offset`` would wait in vain; None if not."""
        if self.sync_state_set.is_acknowledged(next_offset):
            return None
        return self._unavailable

    def standing(self) -> Standing:
        """Return a snapshot of the slaves, and of what puts need of the group."""
        group = self.sync_state_set
        rows = [row for row in standings(group) if row.role not in _NOT_AWAITED]
        rows.sort(key=lambda row: row.node_id not in group.needed)
        return attrs.evolve(
            super().standing(),
            group=GroupStanding(
                in_sync_replicas=group.in_sync_replicas,
                min_in_sync_replicas=group.rules.min_in_sync_replicas,
                members=group.accepted,
                needed=group.needed,
                nodes=tuple(self._awaited_node(row) for row in rows[:NODES_MAX]),
            ),
        )

    def _awaited_node(self, row: NodeStanding) -> AwaitedNode:
        connection = self.link_of(row)
        if connection is None:
            return AwaitedNode(node=row, address=None, sent_offset=None, last_report_age_s=None)
        return AwaitedNode(
            node=row,
            address=connection.address,
            sent_offset=connection.progress.next_transfer_from_where,
            last_report_age_s=self._now() - connection.last_read_time,
        )

    def link_of(self, row: NodeStanding) -> HAConnection | None:
        """Return a node's link that counts; None if it is closed."""
        return None if row.connection_id is None else self.connections.get(row.connection_id)

    # -- the set ---------------------------------------------------------------------------------

    def subscribe(self, on_refused: Callable[[str | None], None]) -> None:
        """Call ``on_refused`` at each change of why puts must be refused, and now; None: taken."""
        self._on_refused = on_refused
        on_refused(self._refused)

    def set_changed(self) -> None:
        """Act on whatever has changed in the set, and let its task look at deadlines."""
        self._act()
        self._wake.wakeup()

    def _act(self) -> None:
        group = self.sync_state_set
        self._held_id = group.held_id
        self._unavailable = group.unavailable_because()
        self._find_awaited_links()
        refused = group.refused_because()
        if refused != self._refused:
            self._refused = refused
            self._on_refused(refused)
        self._release(None)
        if self._unavailable is not None:
            status = PutMessageStatus.SLAVE_NOT_AVAILABLE
            self.group_transfer_service.fail_all(status, self._unavailable)

    def _find_awaited_links(self) -> None:
        group, awaited = self.sync_state_set, self._rounds.awaited
        ids = group.needed if group.held_id is None else group.needed | {group.held_id}
        awaited.clear()
        for node_id in sorted(ids):
            node = group.acks.get(node_id)
            if node is not None and node.connection_id is not None:
                connection = self.connections.get(node.connection_id)
                if connection is not None:
                    awaited[connection.write_socket_service] = None

    def _release(self, slave: tuple[str, int] | None) -> None:
        """Release the puts that may be answered PUT_OK, and let the dispatch go on."""
        self._keep_acked()
        self.group_transfer_service.release(self.sync_state_set.ack_limit, slave)
        self.rounds.released = self.group_transfer_service.released
        self.notify_flushed()

    def _keep_acked(self) -> None:
        """Store up to where puts may be answered PUT_OK, and consumers may read, from now on.

        With a number of nodes that the set does not have, only the second one rises.
        """
        if self.acked is not None:
            limit = max(self.sync_state_set.ack_limit, self.sync_state_set.confirm_offset)
            flushed = self.commit_log.flushed_offset
            self.acked.raise_to(min(limit, flushed) if self.gathers else limit)

    def notify_flushed(self) -> None:
        """Let dispatch, observers and idle slaves have what is confirmed now.

        Called after each flush: with SYNC_FLUSH the acks may be there before it ends.
        """
        self._keep_acked()
        confirmed = self.confirm_offset()
        if confirmed > self._confirmed:
            self._confirmed = confirmed
            self._confirm_wake.wakeup()
            self.observers.notify_confirmed()
            self.on_acknowledged()

    async def answer(self, proposal: Proposal, answer: Answer) -> None:
        """Take the coordinator's answer to the proposal that is pending; save what is accepted."""
        group = self.sync_state_set
        if answer is Answer.ACCEPTED and self.state_file is not None:
            await self._save(self.state_file, proposal)
        if group.proposal is proposal:  # the state may have moved meanwhile
            group.answer(proposal, answer, self._now())
            _log.info("sync_state_set", outcome=answer.value, proposal=str(proposal))
            self.set_changed()

    async def _save(self, file: SyncStateFile, proposal: Proposal) -> None:
        """Save the members of a proposal; on a failing disk it stays pending."""
        stored = StoredSet(self.sync_state_set.entry.epoch, proposal.members)
        async with self._one_save:
            while self.sync_state_set.proposal is proposal:
                try:
                    await self.env.offload.run(lambda: file.store(stored))
                except DiskError as error:
                    _log.warning("sync_state_set_not_saved", path=file.path, reason=str(error))
                    await trio.sleep(SAVE_PAUSE_S)
                else:
                    return

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve slaves and deadlines until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run, listener)
            nursery.start_soon(self._serve_set)
            nursery.start_soon(self._serve_claims)
            nursery.start_soon(self._tell_confirmed)
            nursery.start_soon(self._keep_mark)

    async def _tell_confirmed(self) -> None:
        """Tell idle slaves how far the log is confirmed; the others learn it from their frames."""
        while True:
            await self._confirm_wake.wait_for_running()
            await trio.sleep(CONFIRM_PAUSE_S)
            self._mark_keeper.wake.wakeup()
            for connection in tuple(self.connections.values()):
                framing = connection.framing
                assert isinstance(framing, AutoswitchMasterFraming)
                if framing.told_offset < self._confirmed:
                    connection.write_socket_service.request_heartbeat()

    async def _keep_mark(self) -> None:
        """Write the confirm mark as the confirm offset rises, and once more at the end."""
        try:
            await self._mark_keeper.run()
        finally:
            with trio.CancelScope(shield=True):
                await self._mark_keeper.write_risen()

    async def _serve_set(self) -> None:
        """Serve the set's deadlines, and ask the coordinator, until cancelled."""
        group = self.sync_state_set
        async with trio.open_nursery() as nursery:
            while True:
                proposal = group.proposal
                if proposal is not None and proposal is not self._asked:
                    self._asked = proposal
                    answer = self.coordinator.propose(proposal)
                    if answer is not None:  # deadlines go on while a disk fails to save it
                        nursery.start_soon(self.answer, proposal, answer)
                deadline = group.next_deadline()
                self._wakes_at = math.inf if deadline is None else deadline
                with trio.move_on_at(self._wakes_at):
                    await self._wake.wait_for_running()
                self._wakes_at = -math.inf
                group.tick(self._now())
                self._act()


def _id_taken(node_id: int, refused: HAConnection, *, by: HAConnection) -> NodeIdTakenError:
    places = f"that at {describe(by.address)} does so all along, and {describe(refused.address)}"
    msg = f"two slaves say that they are node {node_id}: {places}"
    return NodeIdTakenError(msg, hint=_ID_HINT)


def _handshake_of(connection: HAConnection) -> Handshake:
    framing = connection.framing
    assert isinstance(framing, AutoswitchMasterFraming), "a link of a group"
    assert framing.handshake is not None, "a report came before the handshake"
    return framing.handshake
