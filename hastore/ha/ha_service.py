"""The master's side of replication: its slaves, their acks, and the producers that wait for them.

Accepts the HAConnections, and owns the GroupTransferService.  Only slaves that are connected now
count as available (``is_slave_ok``).
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.concurrency.peers import PeerCount, PeerLog, peer_at
from hastore.concurrency.port_limits import Occupant, PortLimits
from hastore.concurrency.tcp import accept, describe, tune
from hastore.errors import (
    DivergedError,
    ExpiredError,
    IllegalReportError,
    LimitReachedError,
    NodeIdTakenError,
    ProtocolError,
    TlsError,
    UnknownSlaveError,
)
from hastore.ha.group_transfer_service import GroupTransferService, SlaveAckTable
from hastore.ha.ha_connection import HAConnection
from hastore.ha.log_end_history import LogEndHistory
from hastore.ha.master_framing import CLASSIC
from hastore.ha.refused_slaves import RefusalOutcome, RefusedBecause, RefusedSlave
from hastore.ha.send_rounds import SendRounds
from hastore.ha.served_slaves import Admission
from hastore.ha.slave_progress import expired
from hastore.status import HAConnectionState, PutMessageStatus
from hastore.store.log.cleaning import Hold
from hastore.tls.tls_fault import TlsFault
from hastore.trace import logger
from hastore.wire.ha_frames import FIRST_OFFSET_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.concurrency.decision_log import DecisionLog
    from hastore.config import HAConfig, InSyncReplicas
    from hastore.env.interface import Env
    from hastore.ha.ha_tls import HATls
    from hastore.ha.master_framing import MasterFraming
    from hastore.ha.node_standing import NodeStanding
    from hastore.ha.read_loan import ReadLoan
    from hastore.ha.refused_slaves import RefusedSlavesFile
    from hastore.ha.slave_progress import LogBounds
    from hastore.store.commit_log import CommitLog

REFUSALS_KEPT_MAX: Final = 16
SLAVES_MAX: Final = 4  # slaves in a Standing
NODES_MAX: Final = 64  # nodes in a GroupStanding
ARRIVALS_LOGGED_MAX: Final = 10  # of one address in a minute; also departures
_NONE_SINCE_START: Final = "no slave is connected, and none has been since the start"
_KINDS: Final[dict[type[ProtocolError], str]] = {
    DivergedError: "diverged",
    ExpiredError: "expired",
    IllegalReportError: "report",
    UnknownSlaveError: "unknown",
}

_log = logger("ha")


@attrs.frozen(kw_only=True)
class Departure:
    """The last slave that left."""

    address: tuple[str, int]
    reason: str
    time: float  # trio's


@attrs.frozen(kw_only=True)
class SlaveStanding:
    """One slave's offsets at one instant."""

    address: tuple[str, int]
    sent_offset: int  # the end of what was sent: >= ack_offset
    # The end of what it reported: received, or flushed under SYNC_FLUSH; the master cannot tell.
    ack_offset: int
    last_report_age_s: float


@attrs.frozen(kw_only=True)
class AwaitedNode:
    """A node of a replica group at one instant; offsets are None without a link or a report."""

    node: NodeStanding
    address: tuple[str, int] | None  # of its link
    sent_offset: int | None
    last_report_age_s: float | None


@attrs.frozen(kw_only=True)
class GroupStanding:
    """What puts needed of a replica group at one instant."""

    in_sync_replicas: InSyncReplicas
    min_in_sync_replicas: int
    members: frozenset[int]  # accepted
    needed: frozenset[int]  # accepted and proposed
    nodes: tuple[AwaitedNode, ...]  # all but observers; needed ones first, NODES_MAX at most


@attrs.frozen(kw_only=True)
class Standing:
    """The slaves at one instant; recorded with a decision that was not PUT_OK."""

    behind_max: int  # bytes: a slave this far behind is not available
    slaves: tuple[SlaveStanding, ...]  # the SLAVES_MAX nearest, by falling ack_offset
    departure: Departure | None  # the last; None since the start
    group: GroupStanding | None = None  # of a replica group


@attrs.frozen(kw_only=True)
class Refusal:
    """A connection that was refused, and why; kept for ``status``."""

    address: tuple[str, int]
    reason: str
    hint: str | None  # the next step, if there is one
    reported_offset: int | None  # as received, so any number; None: not refused for a report
    time: float  # trio's
    is_id_taken: bool = False  # another node has its id


@attrs.define(eq=False)
class UnprovenLink:
    """A connection in its TLS handshake: it costs no more than this, and makes room for others."""

    address: tuple[str, int]
    ended_because: str | None = None  # why this master has ended it
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def finish(self, reason: str) -> None:
        """End it; the first reason stays."""
        if self.ended_because is None:
            self.ended_because = reason
        self.scope.cancel()


@attrs.define(eq=False)
class HAService:
    """Replicates a master's commit log to its slaves; ``GroupHAService`` to its replica group."""

    env: Env
    commit_log: CommitLog
    config: HAConfig
    refused_slaves: RefusedSlavesFile
    decisions: DecisionLog
    # Called when ``push2_slave_max_offset`` has risen, a slave has left, or a wait has timed out.
    on_acknowledged: Callable[[], None]
    # Whether a turn's appends leave in one frame, not the first at once: see WriteSocketService.
    gathers: bool = attrs.field(default=False, kw_only=True)
    tls: HATls | None = attrs.field(default=None, kw_only=True)  # None: links are plain
    # By connection id, oldest first: from accept, or the end of TLS's handshake, to tear-down,
    # refused ones too.
    connections: dict[int, HAConnection] = attrs.field(factory=dict, init=False)
    unproven: dict[int, UnprovenLink] = attrs.field(factory=dict, init=False)  # likewise
    ack_table: SlaveAckTable = attrs.field(factory=SlaveAckTable, init=False)
    group_transfer_service: GroupTransferService = attrs.field(init=False)
    refusals: deque[Refusal] = attrs.field(init=False)  # the newest REFUSALS_KEPT_MAX
    # The last slave that left after a legal report; None since the start.
    departure: Departure | None = attrs.field(default=None, init=False)
    # The reason for SLAVE_NOT_AVAILABLE while no slave has reported.
    _absence: str = attrs.field(default=_NONE_SINCE_START, init=False)
    end_history: LogEndHistory = attrs.field(init=False)
    # Seconds that the frames of all links took to send.
    send_times: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    rounds: SendRounds = attrs.field(init=False)
    loan: ReadLoan | None = attrs.field(default=None, init=False)  # that a link offers now
    notify_appended: Callable[[], None] = attrs.field(init=False)  # see SendRounds
    _next_connection_id: int = attrs.field(default=1, init=False)
    _is_over: bool = attrs.field(default=False, init=False)  # all links are ended, and new ones
    _peers: PeerCount = attrs.field(factory=PeerCount, init=False)
    _refusal_log: PeerLog = attrs.field(init=False)
    _arrival_log: PeerLog = attrs.field(init=False)
    _departure_log: PeerLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the parts."""
        if self.tls is not None:
            self.config = attrs.evolve(self.config, ha_spin_us=0)
        self.rounds = self._make_rounds()
        self.notify_appended = self.rounds.notify_appended
        self.refusals = deque(maxlen=REFUSALS_KEPT_MAX)
        self.refused_slaves.trust(self.config.trust)
        self.end_history = LogEndHistory(trio.current_time(), self.commit_log.max_offset)
        self._refusal_log = PeerLog(_log, "ha_slave_refused", "slave")
        often = partial(PeerLog, lines_max=ARRIVALS_LOGGED_MAX, level=logging.INFO)
        self._arrival_log = often(_log, "ha_slave_connected", "slave")
        self._departure_log = often(_log, "ha_slave_gone", "slave")
        self.group_transfer_service = GroupTransferService(
            self.ack_table, self.config.slave_timeout_ms, self.on_acknowledged, self.decisions
        )

    def _make_rounds(self) -> SendRounds:
        return SendRounds(self.commit_log, self.gathers)

    def _make_framing(self, _connection_id: int) -> MasterFraming:
        return CLASSIC

    # -- expiry: what slaves still need ----------------------------------------------------------

    def holds(self) -> list[Hold]:
        """Return the offset from which each connected slave needs the log."""
        return [
            Hold(physic_offset=needed_from, who=f"slave {describe(connection.address)}")
            for connection in self.connections.values()
            if connection.progress.ended_because is None
            and (needed_from := connection.progress.needed_from) is not None
        ]

    def refuse_expired(self) -> None:
        """Refuse the slaves that need deleted bytes; called after files were deleted."""
        min_offset = self.commit_log.min_offset
        for connection in self.connections.values():
            needed_from = connection.progress.needed_from
            if needed_from is not None and needed_from < min_offset:
                connection.refuse(expired(needed_from, min_offset))

    # -- acknowledging: acks to producers --------------------------------------------------------

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Count a slave's report and wake the producers that it satisfies.

        Until ``counts_as_ack`` it only shows how near the slave is.
        """
        if not connection.progress.counts_as_ack:
            self.ack_table.set_position(connection.connection_id, ack_offset)
        elif self.ack_table.acknowledge(connection.connection_id, ack_offset):
            self.rounds.nearest = connection.write_socket_service
            self.group_transfer_service.notify_transfer_some(connection.address)
            self.rounds.released = self.group_transfer_service.released
            self.on_acknowledged()

    def handle_ha(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for a slave (its HA part); decide it at once if none is available."""
        nearest = self.ack_table.nearest  # is_slave_ok, without a call: once a message
        if nearest is not None and next_offset - nearest < self.config.ha_slave_fallbehind_max:
            self.group_transfer_service.put_request(next_offset, request)
        else:
            reason = self.unavailable_because(next_offset)
            request.complete(Part.HA, PutMessageStatus.SLAVE_NOT_AVAILABLE, reason)

    def notify_flushed(self) -> None:
        """Do nothing: an ack counts, whether or not this master has flushed."""

    def has_waiting_puts(self) -> bool:
        """Return whether a put waits for a slave."""
        return len(self.group_transfer_service) > 0

    def may_lend(self) -> bool:
        """Return whether an ack released one put, which a task awaited, since the last call.

        False with several slaves, with TLS, and while the link is polled.
        """
        service = self.group_transfer_service
        has_released_one, service.has_released_one = service.has_released_one, False
        if not has_released_one or len(self.connections) > 1:
            return False
        return self.tls is None and not self.config.ha_spin_us

    def is_only_put(self, request: GroupCommitRequest) -> bool:
        """Return whether ``request`` waits for the one slave alone, and no other put waits."""
        is_alone = len(self.group_transfer_service) == 1 and len(self.connections) == 1
        return is_alone and request.waits_only_for(Part.HA)

    def is_slave_ok(self, next_offset: int) -> bool:
        """Return whether a slave is available for a message that ends at ``next_offset``.

        RocketMQ 4.9's ``isSlaveOK`` (connected, and less than ``ha_slave_fallbehind_max`` behind),
        but only slaves that are connected now count.
        """
        nearest = self.ack_table.nearest
        return nearest is not None and next_offset - nearest < self.config.ha_slave_fallbehind_max

    def unavailable_because(self, next_offset: int) -> str | None:
        """Return why no slave is available for ``next_offset``; None if one is."""
        if self.is_slave_ok(next_offset):
            return None
        nearest = self.ack_table.nearest
        if nearest is not None:
            return (
                f"the nearest slave is {next_offset - nearest} bytes behind;"
                f" the limit is {self.config.ha_slave_fallbehind_max}"
            )
        return self._absence

    def standing(self) -> Standing:
        """Return a snapshot of the slaves."""
        now = trio.current_time()
        standings = [
            SlaveStanding(
                address=connection.address,
                sent_offset=sent_offset,
                ack_offset=ack_offset,
                last_report_age_s=now - connection.last_read_time,
            )
            for connection in self.connections.values()
            if connection.progress.ended_because is None
            and (ack_offset := connection.progress.ack_offset) is not None
            and (sent_offset := connection.progress.next_transfer_from_where) is not None
        ]
        standings.sort(key=lambda standing: -standing.ack_offset)
        return Standing(
            behind_max=self.config.ha_slave_fallbehind_max,
            slaves=tuple(standings[:SLAVES_MAX]),
            departure=self.departure,
        )

    # -- connections -----------------------------------------------------------------------------

    def log_arrival(self, connection: HAConnection, ack_offset: int) -> None:
        """Log a slave's first report."""
        self._arrival_log.log_line(connection.address, at=ack_offset)

    async def admit(self, connection: HAConnection, offset: int) -> None:
        """Let a classic slave begin at ``offset``, or leave it to the checks that follow.

        Returns once it is durably known that the slave may have our bytes.  Raises
        UnknownSlaveError for one whose log may be another master's: see ``ServedSlaves``.
        """
        log, refused_slaves = self.commit_log, self.refused_slaves
        if offset < 0 or offset > connection.end_at_connect:
            return
        if FIRST_OFFSET_MIN <= offset < log.min_offset:
            return
        host = connection.address[0]
        refused = refused_slaves.find(host, offset)
        if refused is not None and refused.because is RefusedBecause.AHEAD:
            return
        match refused_slaves.admit(host, offset):
            case Admission.SERVE:
                await refused_slaves.hold(host, offset, connection.progress)
            case Admission.SERVE_TRUSTED:
                _log.info("ha_slave_trusted", slave=describe(connection.address), at=offset)
                await refused_slaves.hold(host, offset, connection.progress)
            case Admission.COMPARES:
                connection.compares = True
            case Admission.ASK | Admission.REFUSE as admission:
                start = self.refused_slaves.served.start if refused is None else refused.master_end
                assert start is not None
                raise _unknown(host, offset, start, is_question=admission is Admission.ASK)
            case _ as unreachable:
                assert_never(unreachable)

    def check_first_report(self, connection: HAConnection, offset: int, log: LogBounds) -> None:
        """Raise DivergedError for a slave that was ahead of this log earlier.

        Earlier: when it connected, or when it was refused for that on another link.
        """
        if not log.min_offset <= offset <= log.max_offset:
            return  # SlaveProgress refuses it
        end = connection.end_at_connect
        if end < offset and offset >= FIRST_OFFSET_MIN:
            when = f"when it connected this master's log ended at {end}"
        else:
            refused = self.refused_slaves.find(connection.address[0], offset)
            if refused is None or refused.because is RefusedBecause.PROMOTION:
                return  # ``admit`` refuses it
            end = refused.master_end
            when = f"one of its address did so when this master's log ended at {end}"
        msg = (
            f"slave asks for bytes from {offset} on, and {when}, before that: not the same log,"
            " although this one has grown past it since"
        )
        raise DivergedError(
            msg,
            master_offset=end,
            slave_offset=offset,
            hint="start that slave on an empty directory",
        )

    def record_refusal(self, connection: HAConnection, error: ProtocolError) -> None:
        """Record a refusal for ``status`` and drop the slave's acks from the table."""
        self._forget_acks(connection.connection_id)
        reason, hint = str(error), error.hint
        if isinstance(error, DivergedError):
            match self._remember(connection.address[0], error):
                case RefusalOutcome.REMEMBERED | RefusalOutcome.KNOWN:
                    path = self.refused_slaves.path
                    hint = f"{hint}; if the logs are the same after all, remove {path}"
                case RefusalOutcome.FULL:
                    reason += "; not remembered: there are too many such refusals"
                    hint = f"{hint}; then remove {self.refused_slaves.path}"
                case RefusalOutcome.ABSURD:
                    pass
        elif isinstance(error, UnknownSlaveError) and not self._knows(connection.address[0]):
            self._remember(connection.address[0], error)
        self._refusal(connection.address, error, reason, hint)

    def _knows(self, host: str) -> bool:
        """Return whether a slave of ``host`` is known: it may leave soon, or be the refused one."""
        return self.refused_slaves.served.knows(host)

    def _remember(self, host: str, error: DivergedError | UnknownSlaveError) -> RefusalOutcome:
        """Refuse this address and offset from now on, however our log grows."""
        if isinstance(error, DivergedError):
            because, end = RefusedBecause.AHEAD, error.master_offset
        else:
            because, end = RefusedBecause.PROMOTION, error.promotion_start
        refused = RefusedSlave(
            address=host,
            offset=error.slave_offset,
            master_end=end,
            time_ms=self.env.wall_clock.now_ms(),
            because=because,
        )
        return self.refused_slaves.remember(refused, self.commit_log.min_offset)

    def slave_knows(self, connection: HAConnection, error: DivergedError) -> None:
        """Forget a refusal: the slave has reported itself that the logs differ (-1).

        So it compares bytes and recognizes another log without our help; its next log may match.
        """
        self.refused_slaves.forget(connection.address[0], error.slave_offset)

    def _refusal(
        self, address: tuple[str, int], error: ProtocolError, reason: str, hint: str | None = None
    ) -> None:
        reported = None
        if isinstance(error, IllegalReportError):
            reported = error.reported_offset
        elif isinstance(error, DivergedError | ExpiredError | UnknownSlaveError):
            reported = error.slave_offset
        self.refusals.append(
            Refusal(
                address=address,
                reason=reason,
                hint=hint,
                reported_offset=reported,
                time=trio.current_time(),
                is_id_taken=isinstance(error, NodeIdTakenError),
            )
        )
        self._refusal_log.log_line(address, kind=_kind_of(error), reason=reason)

    async def serve(self, sock: trio.socket.SocketType, peer: tuple[str, int]) -> None:
        """Serve one slave until its link has ended."""
        if self._is_over:
            sock.close()
            return
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        self._peers.add(peer)
        _log.debug("ha_connected", peer=describe(peer))
        try:
            if self.tls is not None:
                proven = await self._prove(self.tls, connection_id, sock, peer)
                if proven is None:
                    return
                sock = proven
            await self._serve_link(connection_id, sock, peer)
        finally:
            self._peers.remove(peer)

    async def _prove(
        self, tls: HATls, connection_id: int, sock: trio.socket.SocketType, peer: tuple[str, int]
    ) -> trio.socket.SocketType | None:
        """Return the link of a slave that may follow; None for another peer, which is closed."""
        link = self.unproven[connection_id] = UnprovenLink(peer)
        timeout_s = self.config.ha_first_report_timeout_ms / 1000
        try:
            with link.scope:
                proven = await tls.accept(sock, timeout_s)
                if link.ended_because is None:
                    return proven
                proven.close()  # it was ended in the turn in which its handshake did
        except TlsError as error:
            # One that only looks whether the port is open sends nothing, and is not refused.
            link.ended_because = str(error)
            if error.fault != TlsFault.CUT:
                self._refusal(peer, error, str(error), error.hint)
        except OSError as error:
            link.ended_because = f"link broken: {error.strerror or error}"
        finally:
            del self.unproven[connection_id]
        reason = link.ended_because or "this master is stopping"
        _log.debug("ha_gone", peer=describe(peer), reason=reason)
        return None

    async def _serve_link(
        self, connection_id: int, sock: trio.socket.SocketType, peer: tuple[str, int]
    ) -> None:
        connection = HAConnection(
            env=self.env if self.tls is None else self.tls.calls,
            commit_log=self.commit_log,
            config=self.config,
            register=self,
            rounds=self.rounds,
            send_times=self.send_times,
            connection_id=connection_id,
            sock=sock,
            address=peer,
            framing=self._make_framing(connection_id),
        )
        self.connections[connection_id] = connection
        try:
            await connection.run()
        finally:
            del self.connections[connection_id]
            reported = connection.progress.ack_offset is not None
            self.rounds.forget(connection.write_socket_service)
            self._forget_acks(connection_id)
            self.refused_slaves.release(connection.progress)
            reason = connection.progress.ended_because or "this master is stopping"
            if reported:
                self.departure = Departure(address=peer, reason=reason, time=trio.current_time())
                last = f"the last was {describe(peer)}: {reason}"
                self._absence = f"no slave is connected; {last}"
                self._departure_log.log_line(peer, reason=reason)
            else:
                _log.debug("ha_gone", peer=describe(peer), reason=reason)
            self.on_acknowledged()

    def _forget_acks(self, connection_id: int) -> None:
        self.ack_table.remove(connection_id)

    def hand_over(self) -> None:
        """Do nothing: nobody keeps which slaves there were."""

    def disconnect_all(self, reason: str) -> None:
        """End every connection, and accept no other: this master sends and acknowledges no more."""
        self._is_over = True
        for link in self.unproven.values():
            link.finish(reason)
        for connection in self.connections.values():
            connection.finish(reason)

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve slaves and deadlines until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accept, listener)
                nursery.start_soon(self.group_transfer_service.run)
                nursery.start_soon(self.rounds.run)
                nursery.start_soon(self.refused_slaves.run)
        finally:
            await self.refused_slaves.flush()

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        """Accept slaves until cancelled; that also ends the connections."""
        async with trio.open_nursery() as nursery:
            while True:
                sock, peer = await accept(listener)
                if not self._make_room(peer):
                    sock.close()
                    continue
                tune(sock)
                nursery.start_soon(self.serve, sock, peer)

    def _make_room(self, peer: tuple[str, int]) -> bool:
        """Return whether one more connection is allowed; may evict the oldest without a report.

        Slaves report as soon as they are connected (RocketMQ's within 5 s), so unidentified peers
        cost a bounded number of sockets and keep no slave out.
        """
        count, of_address = len(self.unproven) + len(self.connections), self._peers.of(peer)
        config = self.config
        limits = PortLimits(config.ha_connections_max, config.ha_connections_per_address_max)
        crowd = limits.crowd(peer[0], count=count, of_address=of_address)
        if crowd is None:
            return True
        limit, whose = "ha_connections_max", "connections"
        if crowd.key is not None:
            limit, whose = "ha_connections_per_address_max", "connections of this address"
        evicted = crowd.evict(self._unidentified())
        if evicted is None:
            reason = f"{crowd.count} {whose} are there already"
            self._refusal(peer, LimitReachedError(reason, limit=limit), reason)
            return False
        reason = f"evicted: {crowd.count} {whose}, and no report"
        self._refusal(evicted.address, LimitReachedError(reason, limit=limit), reason)
        evicted.finish(reason)
        return True

    def _unidentified(self) -> Iterator[Occupant[UnprovenLink | HAConnection]]:
        """Return the links that may be evicted, unproven ones first, each kind oldest first."""
        links: list[UnprovenLink | HAConnection] = [
            link for link in self.unproven.values() if link.ended_because is None
        ]
        links += [
            connection
            for connection in self.connections.values()
            if connection.progress.state is HAConnectionState.CONNECTED
            and connection.progress.ended_because is None
        ]
        return (Occupant(link, link.address[0]) for link in links)


def _kind_of(error: ProtocolError) -> str:
    """Return the word for a refusal in a log line."""
    match error:
        case LimitReachedError():
            return error.limit
        case TlsError():
            return error.fault
        case _:
            return _KINDS.get(type(error), "protocol")


def _unknown(host: str, offset: int, start: int, *, is_question: bool) -> UnknownSlaveError:
    if is_question:
        msg = f"asked whether it compares: it begins at {offset}, after this master's {start}"
    else:
        msg = (
            f"slave's log ends at {offset}, this master's is its own from {start} on, where it was"
            f" promoted, and it has not sent {host} what lies between: that may be another master's"
        )
    return UnknownSlaveError(
        msg,
        slave_offset=offset,
        promotion_start=start,
        is_question=is_question,
        hint="copy it again: start that slave on an empty directory; or, if its log is the same"
        f" (hastore log diff MASTER_DIR SLAVE_DIR), start this master once with --trust"
        f" {peer_at(host, offset)}",
    )
