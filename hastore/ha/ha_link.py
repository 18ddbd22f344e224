"""One link of a slave to its master: its socket, its times, and the reports that wait to be sent.

A report is 8 bytes, so many of them leave in one send.  Where a master does not read, older reports
are dropped for newer ones: the last says all.

Invariants: ``reported_offset`` is the last that was queued; one task at a time sends.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.ha.flow_monitor import FlowMonitor
from hastore.wire.ha_frames import REPORT_DIVERGED, encode_report

if TYPE_CHECKING:
    from hastore.ha.copy_progress import FrameSizes

_OUTGOING_SIZE_MAX: Final = 4096  # bytes of reports that wait for a master that does not read


@final
@attrs.define(eq=False)
class Received:
    """What has come from the master since the start, on all links."""

    connections: int = 0  # links made
    has_read_any: bool = False  # whether a byte was read
    # The end of the newest frame, in bytes of log: <= the master's max offset; None before any.
    master_offset: int | None = None
    # When log bytes last came, which a heartbeat has not: trio's, <= the link's last_read_time.
    last_news_time: float = 0.0
    flow_monitor: FlowMonitor = attrs.field(factory=FlowMonitor)  # log bytes and frame headers
    append_times: LatencyHistogram = attrs.field(factory=LatencyHistogram)  # of one read's frames


@final
@attrs.define(eq=False)
class HALink:
    """The newest link; what it says stays readable when it is over.  Times are trio's."""

    sock: trio.socket.SocketType | None  # None: no link was made yet
    frame_sizes: FrameSizes  # of the frames with log bytes
    # This end's address; None before the first link, and when the link is closed.
    local_address: tuple[str, int] | None
    connected_time: float
    # When a whole frame, or enough bytes of one, last came: >= connected_time.
    last_read_time: float = attrs.field(init=False)
    # When reports last left, or were due while earlier ones were stuck; 0 before the first.
    last_write_time: float = attrs.field(default=0.0, init=False)
    # When the first report was queued: >= connected_time; 0 before.
    first_report_time: float = attrs.field(default=0.0, init=False)
    # The last report, in bytes of log: <= our max offset (the flushed one under SYNC_FLUSH).
    reported_offset: int | None = attrs.field(default=None, init=False)
    # Set when the first header was parsed.
    heard: trio.Event = attrs.field(factory=trio.Event, init=False)
    frames: int = attrs.field(default=0, init=False)  # parsed whole, heartbeats too
    # Bytes of the frames with log bytes, with their headers: a lower bound of what was received.
    frame_bytes: int = attrs.field(default=0, init=False)
    _outgoing: bytearray = attrs.field(factory=bytearray, init=False)
    _is_sending: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """A connect is the first sign of life."""
        self.last_read_time = self.connected_time

    def queue_report(self, offset: int) -> None:
        """Add a report to what is about to be sent; old ones are dropped where too many wait."""
        if len(self._outgoing) >= _OUTGOING_SIZE_MAX:
            self._outgoing.clear()
        self._outgoing += encode_report(offset)
        self.reported_offset = offset

    async def send_reports(self) -> None:
        """Send what is queued; a task that finds another one sending leaves it to that one."""
        sock = self.sock
        if self._is_sending or not self._outgoing:
            return
        assert sock is not None
        self._is_sending = True
        try:
            while self._outgoing:
                data = bytes(self._outgoing)
                self._outgoing.clear()
                while data:
                    data = data[await sock.send(data) :]
        finally:
            self._is_sending = False
        self.last_write_time = trio.current_time()

    async def say_diverged(self) -> None:
        """Tell the master, as the last word on this link: it shows the refusal in its status."""
        assert self.sock is not None
        with contextlib.suppress(OSError), trio.move_on_after(1):
            await self.sock.send(encode_report(REPORT_DIVERGED))
