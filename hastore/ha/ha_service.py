"""The master's side of replication: its slaves, their acks, and the producers that wait for them.

Accepts the HAConnections, and owns the GroupTransferService.  Only slaves that are connected now
count as available (``is_slave_ok``).
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.concurrency.peers import PeerCount, PeerLog
from hastore.concurrency.port_limits import Occupant, PortLimits
from hastore.concurrency.tcp import accept, describe, tune
from hastore.errors import (
    DivergedError,
    ExpiredError,
    IllegalReportError,
    LimitReachedError,
    ProtocolError,
)
from hastore.ha.group_transfer_service import GroupTransferService, SlaveAckTable
from hastore.ha.ha_connection import HAConnection
from hastore.ha.log_end_history import LogEndHistory
from hastore.ha.refused_slaves import RefusalOutcome, RefusedSlave
from hastore.ha.slave_progress import expired
from hastore.status import HAConnectionState, PutMessageStatus
from hastore.store.log.cleaning import Hold
from hastore.trace import logger
from hastore.wire.ha_frames import FIRST_OFFSET_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.decision_log import DecisionLog
    from hastore.config import HAConfig
    from hastore.env.interface import Env
    from hastore.ha.refused_slaves import RefusedSlavesFile
    from hastore.ha.slave_progress import LogBounds
    from hastore.ha.write_socket_service import WriteSocketService
    from hastore.store.commit_log import CommitLog

REFUSALS_KEPT_MAX: Final = 16
SLAVES_MAX: Final = 4  # slaves in a Standing
ARRIVALS_LOGGED_MAX: Final = 10  # of one address in a minute; also departures
_NONE_SINCE_START: Final = "no slave is connected, and none has been since the start"
_KINDS: Final[dict[type[ProtocolError], str]] = {
    DivergedError: "diverged",
    ExpiredError: "expired",
    IllegalReportError: "report",
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
class Standing:
    """The slaves at one instant; recorded with a decision that was not PUT_OK."""

    behind_max: int  # bytes: a slave this far behind is not available
    slaves: tuple[SlaveStanding, ...]  # the SLAVES_MAX nearest, by falling ack_offset
    departure: Departure | None  # the last; None since the start


@attrs.frozen(kw_only=True)
class Refusal:
    """A connection that was refused, and why; kept for ``status``."""

    address: tuple[str, int]
    reason: str
    hint: str | None  # the next step, if there is one
    reported_offset: int | None  # as received, so any number; None: not refused for a report
    time: float  # trio's


@final
@attrs.define(eq=False)
class HAService:
    """Replicates a master's commit log to its slaves."""

    env: Env
    commit_log: CommitLog
    config: HAConfig
    refused_slaves: RefusedSlavesFile
    decisions: DecisionLog
    # Called when ``push2_slave_max_offset`` has risen, a slave has left, or a wait has timed out.
    on_acknowledged: Callable[[], None]
    # Whether a turn's appends leave in one frame, not the first at once: see WriteSocketService.
    gathers: bool = attrs.field(default=False, kw_only=True)
    # By connection id, oldest first: from accept to tear-down, refused ones too.
    connections: dict[int, HAConnection] = attrs.field(factory=dict, init=False)
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
    # A dict as an ordered set: iterating a set of objects would not be deterministic.
    idle_writers: dict[WriteSocketService, None] = attrs.field(factory=dict, init=False)
    _next_connection_id: int = attrs.field(default=1, init=False)
    _peers: PeerCount = attrs.field(factory=PeerCount, init=False)
    _refusal_log: PeerLog = attrs.field(init=False)
    _arrival_log: PeerLog = attrs.field(init=False)
    _departure_log: PeerLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the parts."""
        self.refusals = deque(maxlen=REFUSALS_KEPT_MAX)
        self.end_history = LogEndHistory(trio.current_time(), self.commit_log.max_offset)
        self._refusal_log = PeerLog(_log, "ha_slave_refused", "slave")
        often = partial(PeerLog, lines_max=ARRIVALS_LOGGED_MAX, level=logging.INFO)
        self._arrival_log = often(_log, "ha_slave_connected", "slave")
        self._departure_log = often(_log, "ha_slave_gone", "slave")
        self.group_transfer_service = GroupTransferService(
            self.ack_table, self.config.slave_timeout_ms, self.on_acknowledged, self.decisions
        )

    # -- sending: appended bytes to slaves -------------------------------------------------------

    def notify_appended(self) -> None:
        """Let idle write services send; costs one check when there are none.

        Called after each append, and with a transient store pool after each commit.
        """
        if self.idle_writers:
            readable_offset = self.commit_log.readable_offset
            for writer in self.idle_writers:
                writer.on_appended(readable_offset, at_once=not self.gathers)

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
            self.group_transfer_service.notify_transfer_some(connection.address)
            self.on_acknowledged()

    def handle_ha(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for a slave (its HA part); decide it at once if none is available."""
        nearest = self.ack_table.nearest  # is_slave_ok, without a call: once a message
        if nearest is not None and next_offset - nearest < self.config.ha_slave_fallbehind_max:
            self.group_transfer_service.put_request(next_offset, request)
        else:
            reason = self.unavailable_because(next_offset)
            request.complete(Part.HA, PutMessageStatus.SLAVE_NOT_AVAILABLE, reason)

    def has_waiting_puts(self) -> bool:
        """Return whether a put waits for a slave."""
        return len(self.group_transfer_service) > 0

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
            if refused is None:
                return
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
        self.ack_table.remove(connection.connection_id)
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
        self._refusal(connection.address, error, reason, hint)

    def _remember(self, host: str, error: DivergedError) -> RefusalOutcome:
        """Refuse this address and offset from now on, however our log grows."""
        refused = RefusedSlave(
            address=host,
            offset=error.slave_offset,
            master_end=error.master_offset,
            time_ms=self.env.wall_clock.now_ms(),
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
        elif isinstance(error, DivergedError | ExpiredError):
            reported = error.slave_offset
        self.refusals.append(
            Refusal(
                address=address,
                reason=reason,
                hint=hint,
                reported_offset=reported,
                time=trio.current_time(),
            )
        )
        kind = error.limit if isinstance(error, LimitReachedError) else _KINDS.get(type(error))
        self._refusal_log.log_line(address, kind=kind or "protocol", reason=reason)

    async def serve(self, sock: trio.socket.SocketType, peer: tuple[str, int]) -> None:
        """Serve one slave until its link has ended."""
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        connection = HAConnection(
            env=self.env,
            commit_log=self.commit_log,
            config=self.config,
            register=self,
            idle_writers=self.idle_writers,
            send_times=self.send_times,
            connection_id=connection_id,
            sock=sock,
            address=peer,
        )
        self.connections[connection_id] = connection
        self._peers.add(peer)
        _log.debug("ha_connected", peer=describe(peer))
        try:
            await connection.run()
        finally:
            del self.connections[connection_id]
            self._peers.remove(peer)
            reported = connection.progress.ack_offset is not None
            self.ack_table.remove(connection_id)
            self.idle_writers.pop(connection.write_socket_service, None)
            reason = connection.progress.ended_because or "this master is stopping"
            if reported:
                self.departure = Departure(address=peer, reason=reason, time=trio.current_time())
                last = f"the last was {describe(peer)}: {reason}"
                self._absence = f"no slave is connected; {last}"
                self._departure_log.log_line(peer, reason=reason)
            else:
                _log.debug("ha_gone", peer=describe(peer), reason=reason)
            self.on_acknowledged()

    def disconnect_all(self, reason: str) -> None:
        """End every connection: this master sends and acknowledges nothing more."""
        for connection in self.connections.values():
            connection.finish(reason)

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve slaves and deadlines until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listener)
            nursery.start_soon(self.group_transfer_service.run)
            nursery.start_soon(self.refused_slaves.run)

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        """Accept slaves until cancelled; that also ends the connections."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock, peer = await accept(listener)
                    if not self._make_room(peer):
                        sock.close()
                        continue
                    tune(sock)
                    nursery.start_soon(self.serve, sock, peer)
        finally:
            listener.close()

    def _make_room(self, peer: tuple[str, int]) -> bool:
        """Return whether one more connection is allowed; may evict the oldest without a report.

        Slaves report as soon as they are connected (RocketMQ's within 5 s), so unidentified peers
        cost a bounded number of sockets and keep no slave out.
        """
        count, of_address = len(self.connections), self._peers.of(peer)
        config = self.config
        limits = PortLimits(config.ha_connections_max, config.ha_connections_per_address_max)
        crowd = limits.crowd(peer[0], count=count, of_address=of_address)
        if crowd is None:
            return True
        limit, whose = "ha_connections_max", "connections"
        if crowd.key is not None:
            limit, whose = "ha_connections_per_address_max", "connections of this address"
        evicted = crowd.evict(
            Occupant(connection, connection.address[0])
            for connection in self.connections.values()
            if connection.progress.state is HAConnectionState.CONNECTED
            and connection.progress.ended_because is None
        )
        if evicted is None:
            reason = f"{crowd.count} {whose} are there already"
            self._refusal(peer, LimitReachedError(reason, limit=limit), reason)
            return False
        reason = f"evicted: {crowd.count} {whose}, and no report"
        self._refusal(evicted.address, LimitReachedError(reason, limit=limit), reason)
        evicted.finish(reason)
        return True
