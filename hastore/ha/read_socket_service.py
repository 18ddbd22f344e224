"""Reads one slave's reports: a stream of 8-byte offsets, judged one by one, counted once a read.

Everything that one recv brought is judged in one pass; the last value is the ack, once one says
more than where the slave wants to go on.  A value that no slave could report ends the connection
before anything of that pass is counted.  Only whole reports are a sign of life: a peer that
trickles bytes is as good as silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import IllegalReportError
from hastore.ha.slave_progress import LogBounds
from hastore.wire.ha_frames import REPORT, REPORT_FROM_LAST_FILE, REPORT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.ha.slave_progress import SlaveProgress
    from hastore.store.commit_log import CommitLog

_RECEIVE_SIZE_MAX: Final = 64 * 1024


@final
@attrs.define(eq=False)
class ReadSocketService:
    """The reading half of an HAConnection."""

    sock: trio.socket.SocketType
    commit_log: CommitLog
    progress: SlaveProgress
    check_first_report: Callable[[int, LogBounds], None]  # raises DivergedError
    on_reports: Callable[[int], None]  # given the ack offset, once a read
    # When whole reports were last read, or the connection was made; trio's time.
    last_read_time: float = attrs.field(factory=trio.current_time, init=False)
    _partial: bytes = attrs.field(default=b"", init=False)

    async def run(self) -> None:
        """Read until the slave closes; an illegal report raises."""
        recv = self.sock.recv
        while True:
            data = await recv(_RECEIVE_SIZE_MAX)
            if not data:
                return
            if self._partial:
                data = self._partial + data
            whole = len(data) - len(data) % REPORT_SIZE
            self._partial = data[whole:]
            if whole:
                self.last_read_time = trio.current_time()
                self._handle_reports(data[:whole])

    def _handle_reports(self, data: bytes) -> None:
        progress = self.progress
        if progress.ended_because is not None:
            return  # since these bytes came, in the same pass of the loop
        log = LogBounds.of(self.commit_log)
        if progress.next_transfer_from_where is None:
            self._check_is_slave(data, log)
            self.check_first_report(REPORT.unpack_from(data)[0], log)
        for (offset,) in REPORT.iter_unpack(data):
            progress.on_report(offset, log)
        ack_offset = progress.ack_offset
        if ack_offset is None:
            msg = "a read without a report"
            raise IllegalReportError(msg, reported_offset=0, max_offset=log.max_offset)
        self.on_reports(ack_offset)

    def _check_is_slave(self, data: bytes, log: LogBounds) -> None:
        """Refuse a client's request: read as a report, its length is an offset far ahead.

        A slave says where it stands, and until it is answered nothing else.
        """
        (offset,) = REPORT.unpack_from(data)
        says_more = self._partial or data != data[:REPORT_SIZE] * (len(data) // REPORT_SIZE)
        if says_more and offset > max(log.max_offset, REPORT_FROM_LAST_FILE):
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
