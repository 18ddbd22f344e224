"""One slave's connection on the master: a socket, its read and its write service, one tear-down.

The first of the two services to end, or the housekeeping, ends all; ``progress`` says why.
A slave counts for availability only between its first legal report and the tear-down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, final

import attrs
import trio

from hastore.concurrency.tcp import describe
from hastore.errors import (
    DiskError,
    DivergedError,
    ExpiredError,
    LimitReachedError,
    ProtocolError,
)
from hastore.ha.flow_monitor import FlowMonitor
from hastore.ha.read_socket_service import ReadSocketService
from hastore.ha.record_starts import look_at_beginning
from hastore.ha.slave_progress import SlaveProgress
from hastore.ha.write_socket_service import WriteSocketService
from hastore.status import HAConnectionState
from hastore.trace import logger
from hastore.wire.ha_frames import (
    REPORT_DIVERGED,
    REPORT_FROM_LAST_FILE,
    REPORT_SIZE,
    encode_header,
    encode_report,
)

if TYPE_CHECKING:
    from hastore.concurrency.latency_histogram import LatencyHistogram
    from hastore.config import HAConfig
    from hastore.env.interface import Env
    from hastore.ha.slave_progress import LogBounds
    from hastore.store.commit_log import CommitLog

_log = logger("ha")


class SlaveRegister(Protocol):
    """Who keeps a master's slaves, their acks and their refusals: its HAService."""

    def check_first_report(self, connection: HAConnection, offset: int, log: LogBounds) -> None:
        """Raise DivergedError for a slave that was ahead of this log before."""

    def note_arrival(self, connection: HAConnection, ack_offset: int) -> None:
        """Note that a slave has reported for the first time."""

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Count one slave's reports."""

    def note_refusal(self, connection: HAConnection, error: ProtocolError) -> None:
        """Keep a refusal."""

    def slave_knows(self, connection: HAConnection, error: DivergedError) -> None:
        """Forget a refusal that the slave knows of."""


@final
@attrs.define(eq=False, kw_only=True)
class HAConnection:
    """A slave as the master sees it; ``run`` serves it until the link ends.

    ``idle_writers`` and ``send_times`` are those of all links (``WriteSocketService``).
    """

    env: Env
    commit_log: CommitLog
    config: HAConfig
    register: SlaveRegister
    idle_writers: dict[WriteSocketService, None]
    send_times: LatencyHistogram
    connection_id: int  # unique since this master's start
    sock: trio.socket.SocketType
    address: tuple[str, int]  # the slave's end of the link
    # Where our log ended when the slave connected.  What a sound one has came on earlier links, so
    # its own end, at which a RocketMQ slave reports up to 5 s later, is not beyond.
    end_at_connect: int = attrs.field(init=False)
    progress: SlaveProgress = attrs.field(init=False)
    read_socket_service: ReadSocketService = attrs.field(init=False)
    write_socket_service: WriteSocketService = attrs.field(init=False)
    flow_monitor: FlowMonitor = attrs.field(factory=FlowMonitor, init=False)  # log bytes sent
    connected_time: float = attrs.field(factory=trio.current_time, init=False)  # trio's
    # What is odd about the slave's first report; None: nothing, or it was not looked at yet.
    note: str | None = attrs.field(default=None, init=False)
    has_looked: bool = attrs.field(default=False, init=False)  # whether ``note`` is final
    _first_report: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the two services."""
        self.end_at_connect = self.commit_log.readable_offset
        self.progress = SlaveProgress(self.config)
        self.read_socket_service = ReadSocketService(
            self.sock,
            self.commit_log,
            self.progress,
            check_first_report=partial(self.register.check_first_report, self),
            on_reports=self._count_reports,
        )
        self.write_socket_service = WriteSocketService(
            self.env,
            self.sock,
            self.commit_log,
            self.progress,
            self.flow_monitor,
            self.send_times,
            self.idle_writers,
        )

    @property
    def last_read_time(self) -> float:
        """When the slave was last heard, or the connection was made; trio's time."""
        return self.read_socket_service.last_read_time

    def finish(self, reason: str) -> None:
        """End the connection; the first reason stays."""
        self.progress.end(reason)
        self._scope.cancel()

    def _count_reports(self, ack_offset: int) -> None:
        self.register.acknowledge(self, ack_offset)
        if not self._first_report.is_set():
            self._first_report.set()
            self.register.note_arrival(self, ack_offset)
            # At once, so that a slave a little ahead of us learns where our log ends.
            self.write_socket_service.request_heartbeat()

    async def run(self) -> None:
        """Serve the slave; returns when the link has ended, whatever ended it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._housekeeping)
        finally:
            self.progress.close()
            self.sock.close()

    async def _read(self) -> None:
        try:
            await self.read_socket_service.run()
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
        except DiskError as error:  # one file that cannot be read ends this link, not the master
            _log.error("ha_read_failed", slave=describe(self.address), reason=str(error))
            self.finish(str(error))
        except OSError as error:
            self.finish(f"link broken: {error.strerror or error}")

    def refuse(self, error: ProtocolError) -> None:
        """Keep the reason and close; the slave learns it when it comes back."""
        is_refused = self.progress.state is HAConnectionState.REFUSED  # and is being told
        if self.progress.ended_because is None and not is_refused:
            self.progress.refuse()
            self.register.note_refusal(self, error)
            self.finish(f"refused: {error}")

    async def _refuse(self, error: ProtocolError) -> None:
        """Keep the reason, tell a slave that can still be told, and close."""
        nothing_sent = self.progress.next_transfer_from_where is None
        self.progress.refuse()
        self.register.note_refusal(self, error)
        if nothing_sent:
            # The classic protocol has no error frame.  A heartbeat with our own end makes the
            # slave see both offsets and name the divergence on its side; one with our start tells
            # it that what it needs is gone.  A slave that was ahead when it was refused first is
            # told of our end at that time.
            offset = self.commit_log.readable_offset
            if isinstance(error, ExpiredError):
                offset = self.commit_log.min_offset
            elif isinstance(error, DivergedError):
                offset = error.master_offset
            last_word = await self._tell(encode_header(offset, 0))
            if isinstance(error, DivergedError) and last_word == encode_report(REPORT_DIVERGED):
                self.register.slave_knows(self, error)
        self.finish(f"refused: {error}")

    async def _tell(self, header: bytes) -> bytes:
        """Send the last header, and wait a little for the slave to close; gives its last word."""
        said = b""
        try:
            with trio.move_on_after(1):
                await self.sock.send(header)
                self.sock.shutdown(trio.socket.SHUT_WR)
                while data := await self.sock.recv(4096):
                    said = (said + data)[-REPORT_SIZE:]
        except OSError:
            pass  # it has gone already
        return said

    async def _look_at_beginning(self) -> None:
        """Note a slave that says that its log ends inside one of our records."""
        first_report = self.progress.first_report
        if first_report is not None and first_report > REPORT_FROM_LAST_FILE:
            try:
                self.note = await look_at_beginning(self.env, self.commit_log, first_report)
            except DiskError as error:
                _log.warning("ha_read_failed", slave=describe(self.address), reason=str(error))
        self.has_looked = True

    async def _housekeeping(self) -> None:
        """Send heartbeats to a quiet slave; drop one that has gone silent, or never spoke."""
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
        await self._look_at_beginning()
        while True:
            next_heartbeat = writer.last_write_time + heartbeat_s
            now = trio.current_time()
            if next_heartbeat <= now:  # a long frame is under way: it is itself a sign of life
                next_heartbeat = now + heartbeat_s
            await trio.sleep_until(min(next_heartbeat, self.last_read_time + silence_s))
            now = trio.current_time()
            if now >= self.last_read_time + silence_s:
                self.finish(f"silent for {config.ha_housekeeping_interval_ms} ms")
                return
            if now >= writer.last_write_time + heartbeat_s:
                writer.request_heartbeat()
