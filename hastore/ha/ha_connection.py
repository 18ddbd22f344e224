"""One slave's connection on the master: a socket, its read and its write service, one tear-down.

The first of the two services to end, or the housekeeping, ends all; ``progress`` holds the reason.
A slave is available only between its first legal report and the tear-down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.tcp import describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import (
    DiskError,
    DivergedError,
    ExpiredError,
    IllegalReportError,
    LimitReachedError,
    ProtocolError,
    UnknownSlaveError,
)
from hastore.ha.flow_monitor import FlowMonitor
from hastore.ha.master_framing import CLASSIC, AutoswitchMasterFraming
from hastore.ha.read_loan import Lender, ReadLoan
from hastore.ha.slave_progress import LogBounds
from hastore.ha.spin import Spin
from hastore.ha.write_socket_service import WriteSocketService
from hastore.status import HAConnectionState
from hastore.store.log.cold_read import is_cold
from hastore.store.record.layout import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    MESSAGE_MAGICS,
    SIZE_AND_MAGIC,
    SIZE_AND_OFFSET,
)
from hastore.trace import logger
from hastore.wire.autoswitch_frames import HANDSHAKE_SIZE, STATE_HANDSHAKE, Handshake
from hastore.wire.ha_frames import (
    FIRST_OFFSET_MIN,
    OVERLAP_SIZE,
    REPORT,
    REPORT_DIVERGED,
    REPORT_FROM_LAST_FILE,
    REPORT_SIZE,
    encode_report,
)

if TYPE_CHECKING:
    import struct
    from collections.abc import Awaitable, Callable

    from hastore.concurrency.latency_histogram import LatencyHistogram
    from hastore.config import HAConfig
    from hastore.env.interface import Env
    from hastore.ha.master_framing import MasterFraming
    from hastore.ha.send_rounds import SendRounds
    from hastore.ha.slave_progress import SlaveProgress
    from hastore.store.commit_log import CommitLog
    from hastore.wire.autoswitch_frames import HandshakeAnswer

_RECEIVE_SIZE_MAX: Final = 16 * 1024  # bytes of reports

_log = logger("ha")


class SlaveRegister(Lender, Protocol):
    """Records a master's slaves, their acks and their refusals: its HAService."""

    async def admit(self, connection: HAConnection, offset: int) -> None:
        """Raise UnknownSlaveError for a slave that begins where only our own bytes may be."""

    def check_first_report(self, connection: HAConnection, offset: int, log: LogBounds) -> None:
        """Raise DivergedError for a slave that was ahead of this log before."""

    def log_arrival(self, connection: HAConnection, ack_offset: int) -> None:
        """Log a slave's first report."""

    def has_waiting_puts(self) -> bool:
        """Return whether a put waits for a slave."""

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Count a slave's reports up to ``ack_offset``."""

    def record_refusal(self, connection: HAConnection, error: ProtocolError) -> None:
        """Record a refusal."""

    def slave_knows(self, connection: HAConnection, error: DivergedError) -> None:
        """Forget a refusal that the slave has confirmed."""


@final
@attrs.define(eq=False, kw_only=True)
class HAConnection:
    """A slave as the master sees it; ``run`` serves it until the link ends."""

    env: Env
    commit_log: CommitLog
    config: HAConfig
    register: SlaveRegister
    rounds: SendRounds  # of all links, as are ``send_times``
    send_times: LatencyHistogram
    connection_id: int  # unique since this master's start
    sock: trio.socket.SocketType
    address: tuple[str, int]  # the slave's end of the link
    framing: MasterFraming = CLASSIC
    # Where our log ended when the slave connected.  A slave got its bytes on earlier links, so a
    # first report above this, even 5 s later as RocketMQ's, means that its log has diverged.
    end_at_connect: int = attrs.field(init=False)
    compares: bool = attrs.field(default=False, init=False)  # it said so: it is a hastore slave
    progress: SlaveProgress = attrs.field(init=False)
    read_socket_service: ReadSocketService = attrs.field(init=False)
    write_socket_service: WriteSocketService = attrs.field(init=False)
    flow_monitor: FlowMonitor = attrs.field(factory=FlowMonitor, init=False)  # log bytes sent
    connected_time: float = attrs.field(factory=trio.current_time, init=False)  # trio's
    # What is odd about the slave's first report; None if nothing, or not checked yet.
    note: str | None = attrs.field(default=None, init=False)
    has_checked: bool = attrs.field(default=False, init=False)  # whether ``note`` is final
    _first_report: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _loan: ReadLoan = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two services."""
        self.end_at_connect = self.commit_log.readable_offset
        self.progress = self.framing.progress(self.config)
        self.read_socket_service = ReadSocketService(
            self.env,
            self.sock,
            self.commit_log,
            self.progress,
            framing=self.framing,
            on_answer=self._answer,
            admit=partial(self.register.admit, self),
            check_first_report=partial(self.register.check_first_report, self),
            on_reports=self._count_reports,
            spinner=Spin(self.env.poll, self.config.ha_spin_us),
            is_awaited=self.register.has_waiting_puts,
        )
        self._loan = ReadLoan(self.env, self.sock, self.register, self.read_socket_service.take)
        self.read_socket_service.loan = self._loan
        self.write_socket_service = WriteSocketService(
            env=self.env,
            sock=self.sock,
            commit_log=self.commit_log,
            progress=self.progress,
            framing=self.framing,
            flow_monitor=self.flow_monitor,
            send_times=self.send_times,
            rounds=self.rounds,
            on_sent=self.read_socket_service.expect_report if self.config.ha_spin_us else None,
        )

    @property
    def last_read_time(self) -> float:
        """When whole reports were last read, or the connection was made; trio's time."""
        return self.read_socket_service.last_read_time

    def finish(self, reason: str) -> None:
        """End the connection; the first reason stays."""
        self.progress.end(reason)
        self._scope.cancel()

    def _answer(self, data: bytes) -> None:
        self.write_socket_service.answer(data)

    def answer_handshake(self, answer: HandshakeAnswer) -> None:
        """Answer the handshake that was held, and let the link begin."""
        assert isinstance(self.framing, AutoswitchMasterFraming), "only these greet"
        self._answer(self.framing.accept(answer))

    def _count_reports(self, ack_offset: int) -> None:
        self.register.acknowledge(self, ack_offset)
        if not self._first_report.is_set():
            self._first_report.set()
            self.register.log_arrival(self, ack_offset)
            # At once: a slave slightly ahead of us learns from it where our log ends.
            self.write_socket_service.request_heartbeat()

    async def run(self) -> None:
        """Serve the slave until the link has ended, for whatever reason."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, self.read_socket_service.run)
                    if self.config.ha_spin_us:
                        nursery.start_soon(self._read, self.read_socket_service.spin)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._housekeeping)
        finally:
            self.progress.close()
            self._loan.close()
            self.sock.close()

    async def _read(self, service: Callable[[], Awaitable[None]]) -> None:
        try:
            await service()
        except ProtocolError as error:
            await self._refuse(error)
        except OSError as error:
            self.finish(f"link broken: {error.strerror or error}")
        else:
            self.finish("closed by the slave")

    async def _write(self) -> None:
        try:
            await self.write_socket_service.run()
        except ExpiredError as error:
            self.refuse(error)
        except DiskError as error:  # an unreadable file ends this link, not the master
            _log.error("ha_read_failed", slave=describe(self.address), reason=str(error))
            self.finish(str(error))
        except trio.BusyResourceError:
            pass  # _refuse sends the last word, and finishes
        except OSError as error:
            self.finish(f"link broken: {error.strerror or error}")

    def refuse(self, error: ProtocolError) -> None:
        """Record the reason and close; the slave learns it when it reconnects."""
        is_refused = self.progress.state is HAConnectionState.REFUSED  # _refuse is at work
        if self.progress.ended_because is None and not is_refused:
            self.progress.refuse()
            self.register.record_refusal(self, error)
            self.finish(f"refused: {error}")

    async def _refuse(self, error: ProtocolError) -> None:
        """Record the reason, notify a slave that was sent nothing yet, and close."""
        nothing_sent = self.progress.next_transfer_from_where is None
        framing = self.framing
        if isinstance(framing, AutoswitchMasterFraming) and framing.handshake is None:
            nothing_sent = False  # the peer is no slave, and reads no heartbeat
        self.progress.refuse()
        is_question = isinstance(error, UnknownSlaveError) and error.is_question
        if not is_question:
            self.register.record_refusal(self, error)
        if nothing_sent:
            # Neither protocol has an error frame.  From a heartbeat with our end the slave
            # learns both offsets, and reports the divergence on its side; one with our start means
            # that the bytes it needs are gone.  A slave that was refused as ahead earlier gets our
            # end at that time.
            offset = self.commit_log.readable_offset
            if isinstance(error, ExpiredError):
                offset = self.commit_log.min_offset
            elif isinstance(error, DivergedError):
                offset = error.master_offset
            elif isinstance(error, UnknownSlaveError):
                offset = error.slave_offset + 1  # one that compares begins there next
            last_word = await self._send_last(framing.header(offset, 0))
            if isinstance(error, DivergedError) and last_word == encode_report(REPORT_DIVERGED):
                self.register.slave_knows(self, error)
        self.finish(str(error) if is_question else f"refused: {error}")

    async def _send_last(self, header: bytes) -> bytes:
        """Send a last header, wait up to 1 s for the slave to close, return its last 8 bytes."""
        received = b""
        try:
            with trio.move_on_after(1):
                await self.sock.send(header)
                self.sock.shutdown(trio.socket.SHUT_WR)
                while data := await self.sock.recv(4096):
                    received = (received + data)[-REPORT_SIZE:]
        except OSError:
            pass  # the slave has closed
        except trio.BusyResourceError:
            pass  # it does not read the answer to its handshake, and would not read this
        return received

    async def _check_beginning(self) -> None:
        """Set ``note`` if the first report lies inside one of our records."""
        first_report = self.progress.first_report
        if first_report is not None and first_report >= FIRST_OFFSET_MIN and not self.compares:
            try:
                self.note = await check_beginning(self.env, self.commit_log, first_report)
            except DiskError as error:
                _log.warning("ha_read_failed", slave=describe(self.address), reason=str(error))
        self.has_checked = True

    async def _housekeeping(self) -> None:
        """Send heartbeats on an idle link; end one whose slave is silent or never reported."""
        config = self.config
        heartbeat_s = config.ha_send_heartbeat_interval_ms / 1000
        silence_s = config.ha_housekeeping_interval_ms / 1000
        first_report_s = config.ha_first_report_timeout_ms / 1000
        writer = self.write_socket_service
        with trio.move_on_at(self.connected_time + first_report_s):
            await self._first_report.wait()
        if self.progress.ack_offset is None:
            ms = config.ha_first_report_timeout_ms
            msg = f"no report within {ms} ms"
            self.refuse(LimitReachedError(msg, limit="ha_first_report_timeout_ms"))
            return
        await self._check_beginning()
        while True:
            next_heartbeat = writer.last_write_time + heartbeat_s
            now = trio.current_time()
            if next_heartbeat <= now:  # a long frame is being sent, itself a sign of life
                next_heartbeat = now + heartbeat_s
            await trio.sleep_until(min(next_heartbeat, self.last_read_time + silence_s))
            now = trio.current_time()
            if now >= self.last_read_time + silence_s:
                self.finish(f"silent for {config.ha_housekeeping_interval_ms} ms")
                return
            if now >= writer.last_write_time + heartbeat_s:
                writer.request_heartbeat()


async def _admit_all(_offset: int) -> None:
    """Admit any slave."""


@final
@attrs.define(eq=False)
class ReadSocketService:
    """The reading half of an HAConnection: a stream of reports, with autoswitch after a handshake.

    All reports of one recv are validated in one pass and counted once, by the last.  An illegal one
    ends the connection before any of that pass counts.  Only whole reports are a sign of life: a
    peer that trickles bytes counts as silent.
    """

    env: Env
    sock: trio.socket.SocketType
    commit_log: CommitLog
    progress: SlaveProgress
    check_first_report: Callable[[int, LogBounds], None]  # of classic slaves; raises DivergedError
    on_reports: Callable[[int], None]  # called with the ack offset, once a read
    spinner: Spin
    is_awaited: Callable[[], bool]  # whether a put waits for a report
    framing: MasterFraming = CLASSIC
    # Called with a classic slave's first report; raises UnknownSlaveError.
    admit: Callable[[int], Awaitable[None]] = _admit_all
    on_answer: Callable[[bytes], None] = lambda _data: None  # sends the answer to a handshake
    # When whole reports were last read, or the connection was made; trio's time.
    last_read_time: float = attrs.field(factory=trio.current_time, init=False)
    loan: ReadLoan | None = attrs.field(default=None, init=False)
    _partial: bytes = attrs.field(default=b"", init=False)
    _reports: struct.Struct = attrs.field(init=False)  # ``framing``'s
    _report_size: int = attrs.field(init=False)
    _sent: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _now: Callable[[], float] = attrs.field(init=False)  # trio.current_time, at a third of its cost

    def __attrs_post_init__(self) -> None:
        """Look up the values that do not change."""
        self._now = trio.lowlevel.current_clock().current_time
        self._reports, self._report_size = self.framing.reports, self.framing.reports.size

    def expect_report(self) -> None:
        """Let ``spin`` poll: a frame was sent."""
        self._sent.wakeup()

    async def spin(self) -> None:
        """Poll for reports after each frame while a put waits, until cancelled; beside ``run``.

        Raises what ``run`` raises.
        """
        with memoryview(bytearray(_RECEIVE_SIZE_MAX)) as buffer:
            while True:
                await self._sent.wait_for_running()
                while count := await self.spinner.receive(self.sock, buffer, self.is_awaited):
                    self.take(bytes(buffer[:count]))

    async def run(self) -> None:
        """Read until the slave closes.

        Raises IllegalReportError, DivergedError, ExpiredError and UnknownSlaveError for reports,
        ProtocolError for other bytes, OSError for the link.
        """
        receive, sock = self.env.receive, self.sock
        with memoryview(bytearray(_RECEIVE_SIZE_MAX)) as buffer:
            if isinstance(self.framing, AutoswitchMasterFraming):
                await self._greet(self.framing, buffer)
            else:
                await self._begin(buffer)
            loan = self.loan
            while True:
                count = await receive(sock, buffer)
                if not count:
                    return
                self.take(bytes(buffer[:count]))
                if loan is not None and loan.is_due():
                    await loan.offer()

    async def _greet(self, framing: AutoswitchMasterFraming, buffer: memoryview) -> None:
        """Answer the handshake, and handle the first report, or return as the slave closes."""
        data = b""
        while not framing.is_report(data):
            count = await self.env.receive(self.sock, buffer)
            if not count:
                return
            answer, data = framing.take_handshakes(data + bytes(buffer[:count]))
            if answer is not None:
                self.last_read_time = trio.current_time()
                self.on_answer(answer)
        self.take(data)

    async def _begin(self, buffer: memoryview) -> None:
        """Handle a classic slave's first report, or return as the slave closes."""
        data = b""
        while len(data) < REPORT_SIZE:
            count = await self.env.receive(self.sock, buffer)
            if not count:
                return
            data += bytes(buffer[:count])
        await self.admit(REPORT.unpack_from(data)[0])
        self.take(data)

    def take(self, data: bytes) -> None:
        """Handle the whole reports in what was received, and keep the rest."""
        if self._partial or len(data) % self._report_size:
            data = self._partial + data
            whole = len(data) - len(data) % self._report_size
            data, self._partial = data[:whole], data[whole:]
        if data:
            self.last_read_time = self._now()
            self._handle_reports(data)

    def _handle_reports(self, data: bytes) -> None:
        progress = self.progress
        if progress.ended_because is not None:
            return  # ended in the same pass of trio's loop in which these bytes came
        if self.framing.greets:
            self.framing.check_reports(data)
        elif progress.next_transfer_from_where is None:
            log = LogBounds.of(self.commit_log)
            self._check_is_slave(data, log)
            self.check_first_report(REPORT.unpack_from(data)[0], log)
        end = self.commit_log.readable_offset
        for (offset,) in self._reports.iter_unpack(data):
            if not progress.advance(offset, end):
                progress.on_report(offset, LogBounds.of(self.commit_log))
        assert progress.ack_offset is not None, "there was a report"
        self.on_reports(progress.ack_offset)

    def _check_is_slave(self, data: bytes, log: LogBounds) -> None:
        """Raise IllegalReportError for a client's request, which reads as an offset far ahead.

        A slave only repeats its first report until it is answered.
        """
        (offset,) = REPORT.unpack_from(data)
        has_more = self._partial or data != data[:REPORT_SIZE] * (len(data) // REPORT_SIZE)
        if has_more and offset > max(log.max_offset, REPORT_FROM_LAST_FILE):
            whole = data + self._partial
            if len(whole) == HANDSHAKE_SIZE and offset >> 32 == STATE_HANDSHAKE:
                raise IllegalReportError(
                    f"node {Handshake.decode(whole).node_id} of a replica group sent a handshake of"
                    " the autoswitch protocol, and this master speaks classic",
                    reported_offset=offset,
                    max_offset=log.max_offset,
                    hint="start both with the same [ha] protocol",
                )
            msg = (
                f"{len(data) + len(self._partial)} bytes that are no slave's first report (they"
                f" begin like one of {offset}, which is beyond this master's end {log.max_offset})"
            )
            raise IllegalReportError(
                msg,
                reported_offset=offset,
                max_offset=log.max_offset,
                hint="this is the HA port: clients use the client port, by default 10911",
            )


def starts_record(log: CommitLog, offset: int) -> bool:
    """Return whether a record or BLANK of ours begins, or our log ends, at ``offset``; blocks.

    One read is enough: a record holds its own offset.
    """
    if offset == log.readable_offset:
        return True
    data = log.read(offset, SIZE_AND_OFFSET.size)
    if len(data) < BLANK_SIZE_MIN:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    if magic == BLANK_MAGIC_CODE:
        return bool(size == log.file_size - offset % log.file_size)
    if magic not in MESSAGE_MAGICS or len(data) < SIZE_AND_OFFSET.size:
        return False
    return bool(SIZE_AND_OFFSET.unpack(data)[1] == offset)


def slave_may_begin(log: CommitLog, offset: int) -> bool:
    """Return whether a slave whose log ends in a whole record may begin at ``offset``; blocks.

    A RocketMQ slave begins at its own end; a hastore slave ``OVERLAP_SIZE`` earlier, at a record's
    start, or at the least offset that it reports.
    """
    places = offset, offset + OVERLAP_SIZE
    return offset == FIRST_OFFSET_MIN or any(starts_record(log, place) for place in places)


async def check_beginning(env: Env, log: CommitLog, offset: int) -> str | None:
    """Return what is odd about a slave whose first report is ``offset``; None if nothing.

    It proves no divergence: a slave whose link broke inside a record ends there, too.  Raises
    DiskError.
    """
    if is_cold(offset, log.max_offset):
        may_begin = await env.offload.run(lambda: slave_may_begin(log, offset))
    else:
        may_begin = slave_may_begin(log, offset)
    if may_begin:
        return None
    return (
        f"it began at {offset}, inside a record: it was cut off there once, or its log is not this"
        " master's"
    )
