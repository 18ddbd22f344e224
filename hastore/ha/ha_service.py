"""The master's side of replication: its slaves, their acks, and the producers that wait for them.

Owns AcceptSocketService, the HAConnections and GroupTransferService.  Availability
(``is_slave_ok``) is judged by the slaves that are connected now.
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
from hastore.concurrency.peers import PeerCount, PeerLog, RefusalLog
from hastore.concurrency.tcp import describe
from hastore.errors import (
    DivergedError,
    ExpiredError,
    IllegalReportError,
    LimitReachedError,
    ProtocolError,
)
from hastore.ha.accept_socket_service import AcceptSocketService
from hastore.ha.group_transfer_service import GroupTransferService
from hastore.ha.ha_connection import HAConnection
from hastore.ha.log_end_history import LogEndHistory
from hastore.ha.refused_slaves import RefusalOutcome, RefusedSlave
from hastore.ha.slave_ack_table import SlaveAckTable
from hastore.ha.slave_progress import expired
from hastore.ha.slave_standing import SLAVES_MAX, Departure, SlaveStanding, Standing
from hastore.status import PutMessageStatus
from hastore.store.log.cleaning import Hold
from hastore.trace import logger
from hastore.wire.ha_frames import REPORT_FROM_LAST_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.decision_log import DecisionLog
    from hastore.config import HAConfig
    from hastore.env.interface import Env
    from hastore.ha.refused_slaves_file import RefusedSlavesFile
    from hastore.ha.slave_progress import LogBounds
    from hastore.ha.write_socket_service import WriteSocketService
    from hastore.store.commit_log import CommitLog

REFUSALS_KEPT_MAX: Final = 16
COMINGS_TOLD_MAX: Final = 10  # of one address in a minute
_NONE_SINCE_START: Final = "no slave is connected, and none has been since the start"
_KINDS: Final[dict[type[ProtocolError], str]] = {
    DivergedError: "diverged",
    ExpiredError: "expired",
    IllegalReportError: "report",
}

_log = logger("ha")


@attrs.frozen(kw_only=True)
class Refusal:
    """A connection that was refused, and why; kept for ``status``."""

    address: tuple[str, int]
    reason: str
    hint: str | None  # the next step; None where there is none
    reported_offset: int | None  # as it came, so it may be any number; None: no report is to blame
    time: float  # trio's


@final
@attrs.define(eq=False)
class HAService:
    """Everything between the commit log of a master and its slaves."""

    env: Env
    commit_log: CommitLog
    config: HAConfig
    refused_slaves: RefusedSlavesFile
    decisions: DecisionLog
    # Called when ``push2_slave_max_offset`` has risen, there is one slave less to wait for, or the
    # wait for one was given up.
    on_acknowledged: Callable[[], None]
    # By connection id, the oldest first: from the accept to the tear-down, refused ones too.
    connections: dict[int, HAConnection] = attrs.field(factory=dict, init=False)
    ack_table: SlaveAckTable = attrs.field(factory=SlaveAckTable, init=False)
    group_transfer_service: GroupTransferService = attrs.field(init=False)
    refusals: deque[Refusal] = attrs.field(init=False)  # the newest REFUSALS_KEPT_MAX
    # The last slave that left after a legal report; None since the start.
    departure: Departure | None = attrs.field(default=None, init=False)
    _absence: str = attrs.field(default=_NONE_SINCE_START, init=False)  # why, without any slave
    end_history: LogEndHistory = attrs.field(init=False)  # of this log, since the start
    send_times: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)  # of frames
    # A dict as an ordered set: iterating a set of objects would not be deterministic.
    idle_writers: dict[WriteSocketService, None] = attrs.field(factory=dict, init=False)
    _next_connection_id: int = attrs.field(default=1, init=False)
    _peers: PeerCount = attrs.field(factory=PeerCount, init=False)
    _refusal_log: RefusalLog = attrs.field(init=False)
    _arrival_log: PeerLog = attrs.field(init=False)
    _departure_log: PeerLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the parts."""
        self.refusals = deque(maxlen=REFUSALS_KEPT_MAX)
        self.end_history = LogEndHistory(trio.current_time(), self.commit_log.max_offset)
        self._refusal_log = RefusalLog(_log, "ha_slave_refused", "slave")
        often = partial(PeerLog, lines_max=COMINGS_TOLD_MAX, level=logging.INFO)
        self._arrival_log = often(_log, "ha_slave_connected", "slave")
        self._departure_log = often(_log, "ha_slave_gone", "slave")
        self.group_transfer_service = GroupTransferService(
            self.ack_table, self.config.slave_timeout_ms, self.on_acknowledged, self.decisions
        )

    # -- the way out: appended bytes to slaves ---------------------------------------------------

    def notify_appended(self) -> None:
        """Let the write services that have nothing to do send; one look where none sleeps.

        Called after each append, and after each commit where there is a transient store pool.
        """
        if self.idle_writers:
            readable_offset = self.commit_log.readable_offset
            for writer in self.idle_writers:
                writer.on_appended(readable_offset)

    # -- expiry: what slaves still need ----------------------------------------------------------

    def holds(self) -> list[Hold]:
        """Say from where on each connected slave needs the log."""
        return [
            Hold(physic_offset=needed_from, who=f"slave {describe(connection.address)}")
            for connection in self.connections.values()
            if connection.progress.ended_because is None
            and (needed_from := connection.progress.needed_from) is not None
        ]

    def let_go(self) -> None:
        """Refuse the slaves that need what was deleted; called when files were."""
        min_offset = self.commit_log.min_offset
        for connection in self.connections.values():
            needed_from = connection.progress.needed_from
            if needed_from is not None and needed_from < min_offset:
                connection.refuse(expired(needed_from, min_offset))

    # -- the way back: acks to producers ---------------------------------------------------------

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Count one slave's ack and wake the producers that it satisfies.

        Of a slave that has acknowledged nothing yet it says how near that is, and answers nobody.
        """
        if not connection.progress.has_acknowledged:
            self.ack_table.note_position(connection.connection_id, ack_offset)
        elif self.ack_table.acknowledge(connection.connection_id, ack_offset):
            self.group_transfer_service.notify_transfer_some(connection.address)
            self.on_acknowledged()

    def handle_ha(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for a slave (its HA part), or say at once that there is none."""
        if self.is_slave_ok(next_offset):
            self.group_transfer_service.put_request(next_offset, request)
        else:
            reason = self.unavailable_because(next_offset)
            request.complete(Part.HA, PutMessageStatus.SLAVE_NOT_AVAILABLE, reason)

    def is_slave_ok(self, next_offset: int) -> bool:
        """Whether some slave could acknowledge a message that ends at ``next_offset`` soon.

        RocketMQ 4.9's ``isSlaveOK`` (connected, and less than ``ha_slave_fallbehind_max`` behind),
        but asked of the slaves that are connected now.
        """
        nearest = self.ack_table.nearest
        return nearest is not None and next_offset - nearest < self.config.ha_slave_fallbehind_max

    def unavailable_because(self, next_offset: int) -> str | None:
        """Say why no slave could acknowledge ``next_offset`` soon; None where one could."""
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
        """Take a snapshot of all slaves; bounded, and never raises."""
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

    def note_arrival(self, connection: HAConnection, ack_offset: int) -> None:
        """Tell that a slave has said where it stands."""
        self._arrival_log.note(connection.address, at=ack_offset)

    def check_first_report(self, connection: HAConnection, offset: int, log: LogBounds) -> None:
        """Refuse a slave that was ahead before, and is no longer (DivergedError).

        Before: when it connected, or when it was refused for that on another link.
        """
        if not log.min_offset <= offset <= log.max_offset:
            return  # it is refused for that
        end = connection.end_at_connect
        if end < offset and offset > REPORT_FROM_LAST_FILE:
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
            hint="give that slave an empty directory",
        )

    def note_refusal(self, connection: HAConnection, error: ProtocolError) -> None:
        """Keep a refusal where ``status`` shows it; from now on its slave counts for nothing."""
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
        """Refuse this address and offset from now on, whatever our log becomes."""
        refused = RefusedSlave(
            address=host,
            offset=error.slave_offset,
            master_end=error.master_offset,
            time_ms=self.env.wall_clock.now_ms(),
        )
        return self.refused_slaves.remember(refused, self.commit_log.min_offset)

    def slave_knows(self, connection: HAConnection, error: DivergedError) -> None:
        """Forget a refusal: the slave has said itself that its log is another (-1).

        So it compares bytes, and needs nobody to remember; its offset may be sound next time.
        """
        self.refused_slaves.forget(connection.address[0], error.slave_offset)

    def _refusal(
        self, address: tuple[str, int], error: ProtocolError, reason: str, hint: str | None
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
        self._refusal_log.note(kind or "protocol", address, reason)

    async def serve(self, sock: trio.socket.SocketType, peer: tuple[str, int]) -> None:
        """Serve one slave from accept to tear-down."""
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
                self._departure_log.note(peer, reason=reason)
            else:
                _log.debug("ha_gone", peer=describe(peer), reason=reason)
            self.on_acknowledged()

    def disconnect_all(self, reason: str) -> None:
        """End every connection: this master acknowledges nothing more."""
        for connection in self.connections.values():
            connection.finish(reason)

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve slaves and deadlines until cancelled."""
        async with trio.open_nursery() as nursery:
            accepting = AcceptSocketService(
                listener,
                self.config,
                self.connections,
                self._peers,
                self.serve,
                lambda address, error: self._refusal(address, error, str(error), None),
            )
            nursery.start_soon(accepting.run)
            nursery.start_soon(self.group_transfer_service.run)
            nursery.start_soon(self.refused_slaves.run)
