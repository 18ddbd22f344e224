"""One link of a slave to its master: its socket, its times, and the reports to be sent.

A report is 8 bytes (autoswitch: 12), so many leave in one send.  While a master does not read,
newer reports replace older ones: the last one implies the others.

Invariants: ``reported_offset`` is the last report queued; one task at a time sends.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.concurrency.tcp import send_all
from hastore.ha.flow_monitor import FlowMonitor
from hastore.wire.ha_frames import REPORT_DIVERGED, encode_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import SendNow
    from hastore.ha.copy_progress import FrameSizes

_OUTGOING_SIZE_MAX: Final = 4096  # bytes of reports that wait for a master that does not read


@final
@attrs.define(eq=False)
class Received:
    """What the slave has received since its start, on all links."""

    connections: int = 0  # links made
    has_read_any: bool = False  # whether a byte was read
    # The end of the newest frame (exclusive): <= the master's max offset; None before any.
    master_offset: int | None = None
    # When log bytes last arrived (heartbeats bring none), in trio's time.
    last_news_time: float = 0.0
    flow_monitor: FlowMonitor = attrs.field(factory=FlowMonitor)  # log bytes and frame headers
    # Seconds that the frames of one read took to append.
    append_times: LatencyHistogram = attrs.field(factory=LatencyHistogram)


@final
@attrs.define(eq=False)
class HALink:
    """The newest link, also after its end.  Times are trio's."""

    sock: trio.socket.SocketType | None  # None before the first link
    frame_sizes: FrameSizes  # of the frames with log bytes
    # This end's address; None before the first link and after the link's end.
    local_address: tuple[str, int] | None
    connected_time: float
    send_now: SendNow
    encode_report: Callable[[int], bytes] = encode_report  # the protocol's
    # When a whole frame, or enough bytes of one, last arrived: >= connected_time.
    last_read_time: float = attrs.field(init=False)
    # When reports were last sent, or due while earlier ones were stuck; 0 before the first.
    last_write_time: float = attrs.field(default=0.0, init=False)
    # When the first report was queued: >= connected_time; 0 before.
    first_report_time: float = attrs.field(default=0.0, init=False)
    # The last report queued: <= our max offset (the flushed offset under SYNC_FLUSH), or a new
    # slave's 0, 1 or 2; None before the first.
    reported_offset: int | None = attrs.field(default=None, init=False)
    # Set once a whole header has arrived.
    heard: trio.Event = attrs.field(factory=trio.Event, init=False)
    frames: int = attrs.field(default=0, init=False)  # appended whole, and heartbeats
    # Bytes of the whole frames with log bytes, including headers: <= the bytes received.
    frame_bytes: int = attrs.field(default=0, init=False)
    _outgoing: bytes = attrs.field(default=b"", init=False)  # nearly always one report
    _unsent: bytes = attrs.field(default=b"", init=False)  # the rest of reports sent in part
    _is_sending: bool = attrs.field(default=False, init=False)
    _is_torn: bool = attrs.field(default=False, init=False)  # a send ended, perhaps in a report
    _is_silent: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """A connect is the first sign of life."""
        self.last_read_time = self.connected_time

    def silence(self) -> None:
        """Report nothing more, and let the link end: its master is deposed."""
        self._is_silent = True
        self._outgoing = self._unsent = b""
        if self.sock is not None:
            with contextlib.suppress(OSError):  # it may have ended
                self.sock.shutdown(trio.socket.SHUT_RDWR)

    def queue_report(self, offset: int) -> None:
        """Queue a report; if too many wait, it replaces them."""
        self.reported_offset = offset
        if self._is_silent:
            return
        if len(self._outgoing) >= _OUTGOING_SIZE_MAX:
            self._outgoing = b""
        self._outgoing += self.encode_report(offset)

    def has_reports(self) -> bool:
        """Return whether reports wait to be sent."""
        return bool(self._unsent or self._outgoing)

    async def send_reports(self) -> None:
        """Send the queued reports, unless another task is sending them.  Raises OSError."""
        self.send_at_once(trio.current_time())
        sock = self.sock
        if self._is_sending or not self.has_reports():
            return
        assert sock is not None
        self._is_sending = True
        try:
            while self.has_reports():
                data, self._unsent = self._unsent, b""
                if not data:
                    data, self._outgoing = self._outgoing, b""
                await send_all(sock, data)
        except BaseException:
            self._is_torn = True
            raise
        finally:
            self._is_sending = False
        self.last_write_time = trio.current_time()

    def send_at_once(self, now: float) -> None:
        """Send the queued reports as far as the socket takes them; ``send_reports`` sends the rest.

        A send of trio's costs a turn of all tasks.
        """
        if self._is_sending or self._unsent or not self._outgoing:
            return
        assert self.sock is not None
        data, self._outgoing = self._outgoing, b""
        sent = self.send_now(self.sock, (data,))
        if sent == len(data):
            self.last_write_time = now
        else:
            self._unsent = data[sent:]

    async def report_diverged(self) -> None:
        """Send -1, the last report on this link: the master shows the refusal in its status.

        Not behind a part of a report, where the master would read other numbers.
        """
        if self._is_torn or self._unsent:
            return
        assert self.sock is not None
        with contextlib.suppress(OSError), trio.move_on_after(1):
            await send_all(self.sock, self.encode_report(REPORT_DIVERGED))
