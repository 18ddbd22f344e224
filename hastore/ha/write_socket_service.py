"""Sends commit-log bytes to one slave, frame by frame, and heartbeats when there are none.

A frame's bytes come from one mapped file, so it never crosses a file's end, and with autoswitch
from one epoch.  What its header looks like is up to the link's MasterFraming.  Bytes near the log's
end leave as one ``writev`` of header and map; older ones as a corked header and ``sendfile``,
which reads nothing into this process; a thread first brings cold ones into the page cache
(``hastore.env.sending``).  All appended bytes (committed, with a transient store pool) are sent,
flushed or not: RocketMQ's rule.  But only flushed bytes leave by ``sendfile``: a socket holds the
pages until the peer has them, and a start after a failed flush and a kill could not drop such pages
from the cache (``hastore.store.recovery.trim``).

While nothing is in flight to the slave, ``on_appended`` sends the bytes itself, as many as the
socket accepts at once, so that the slave need not wait for this task's turn.  ``SendRounds`` calls
it: for the nearest slave in the appending producer, for the others a few milliseconds later.  This
task sends the rest, and all bytes until the next ack.  While many producers put, and on a
SYNC_FLUSH master, it sends everything: one frame holds what all of them have appended in a turn,
and a SYNC_FLUSH slave syncs it once.  A frame with the first message alone would cost the slave
another sync.

Each slave has its own task and socket: one that reads slowly blocks only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.tcp import send_all
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.ha.slave_progress import expired

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.latency_histogram import LatencyHistogram
    from hastore.env.interface import Env
    from hastore.ha.flow_monitor import FlowMonitor
    from hastore.ha.master_framing import MasterFraming
    from hastore.ha.send_rounds import SendRounds
    from hastore.ha.slave_progress import SlaveProgress
    from hastore.store.commit_log import CommitLog
    from hastore.store.log.mapped_file import MappedFile

# Bytes this near the log's end are in memory, and one writev of header and map is cheaper than a
# header and sendfile.  Older ones may be cold, and reading a cold page through the map would stop
# the whole process.
HOT_SIZE: Final = 256 * 1024


@final
@attrs.define(eq=False, kw_only=True)
class WriteSocketService:
    """The writing half of an HAConnection."""

    env: Env
    sock: trio.socket.SocketType
    commit_log: CommitLog
    progress: SlaveProgress
    framing: MasterFraming
    flow_monitor: FlowMonitor  # of this link
    send_times: LatencyHistogram  # in seconds, of the frames of all links
    rounds: SendRounds  # of all links
    on_sent: Callable[[], None] | None = None  # called after each frame
    # When the kernel last took a frame, or the connection was made; trio's time.
    last_write_time: float = attrs.field(factory=trio.current_time, init=False)
    _is_due: bool = attrs.field(default=False, init=False)  # to send, whatever ``rounds`` says
    _is_idle: bool = attrs.field(default=False, init=False)
    # The rest of a frame sent in part, or the answer to a handshake: goes first.
    _unsent: bytes = attrs.field(default=b"", init=False)
    _heartbeat_due: bool = attrs.field(default=False, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _header: Callable[[int, int], bytes] = attrs.field(init=False)  # ``framing``'s
    _header_size: int = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(init=False)  # trio.current_time, at a third of its cost

    def __attrs_post_init__(self) -> None:
        """Look up the values that do not change."""
        self._now = trio.lowlevel.current_clock().current_time
        self._header, self._header_size = self.framing.header, self.framing.header_size

    def answer(self, data: bytes) -> None:
        """Send the answer to a handshake, in one write, before anything else."""
        assert not self._unsent, "an answer is the first that a link sends"
        self._unsent = data
        self._wake.wakeup()

    def on_appended(self, end: int, *, at_once: bool) -> None:
        """Send, or wake the task, after an append or commit up to ``end``; the service is idle."""
        progress = self.progress
        next_offset = progress.next_transfer_from_where
        if next_offset is None or next_offset >= end or self._unsent:
            return
        if at_once and next_offset == progress.ack_offset:
            self._send_now(next_offset, end)
        if progress.next_transfer_from_where != end or self._unsent:
            del self.rounds.idle[self]  # so that the next appends need not ask
            self._is_due = True
            self._wake.wakeup()

    def _send_now(self, next_offset: int, end: int) -> None:
        """Send one frame as far as the socket takes it without waiting.

        Only bytes near the end, and from a map: the appending producer must neither wait for the
        disk nor get its errors.  The service's own task sends all others.
        """
        progress = self.progress
        if progress.ended_because is not None:
            return  # refused, and its file may be gone
        if next_offset < self.framing.last_epoch_start:
            return  # the frame may have to end before ``end``
        file = self.commit_log.mapped_file_queue.find_mapped_file_by_offset(next_offset)
        if file is None:
            return  # it was deleted
        position = next_offset - file.file_from_offset
        size = min(file.committed_position, end - file.file_from_offset) - position
        if size <= 0 or end - next_offset > HOT_SIZE or not isinstance(file.view, memoryview):
            return
        header = self._header(next_offset, size)
        began = self._now()
        with file.view[position : position + size] as body:
            sent = self.env.send_now(self.sock, (header, body))
            if not sent:
                return
            if sent < self._header_size + size:
                self._unsent = (header + bytes(body))[sent:]
        progress.sent(size)
        self._record_sent(began, size)

    def request_heartbeat(self) -> None:
        """Send a heartbeat if the service is idle; a busy link needs none."""
        if self._is_idle:
            self._heartbeat_due = self._is_due = True  # a heartbeat says that there is no more
            self._wake.wakeup()

    async def run(self) -> None:
        """Send until cancelled.  Raises OSError, DiskError, and ExpiredError for deleted bytes."""
        progress, commit_log = self.progress, self.commit_log
        readable_end = self.framing.readable_end
        while True:
            next_offset = progress.next_transfer_from_where
            end = commit_log.readable_offset if readable_end is None else readable_end()
            if self._unsent:
                data, self._unsent = self._unsent, b""
                await send_all(self.sock, data)
            elif (
                next_offset is not None
                and (size := end - next_offset) > 0
                and (self._is_due or not self.rounds.holds_back(self, size))
            ):
                self._is_due = self._heartbeat_due = False
                await self._transfer(next_offset)
            elif self._heartbeat_due:
                self._heartbeat_due = False
                if next_offset is not None:
                    await send_all(self.sock, self._header(next_offset, 0))
                    self.last_write_time = trio.current_time()
            else:
                self._is_idle = True
                self.rounds.idle[self] = None
                await self._wake.wait_for_running()
                self._is_idle = False
                self.rounds.idle.pop(self, None)

    async def _transfer(self, next_offset: int) -> None:
        """Send one frame that begins at ``next_offset``."""
        progress = self.progress
        file = self._find_file(next_offset)
        position = next_offset - file.file_from_offset
        available = file.committed_position - position
        if next_offset < self.framing.last_epoch_start:
            available = min(available, self.framing.epoch_end(next_offset) - next_offset)
        size = progress.next_batch_size(available)
        # Before the first byte leaves: the slave's report on it may be read before this task runs
        # again, and must not exceed what was sent.
        progress.sent(size)
        began = self._now()
        sent_at_once = False
        if self._leaves_from_map(file, next_offset, size):
            sent_at_once = await self._send_from_map(file, next_offset, position, size)
        else:
            with file.held():
                await send_all(self.sock, self._header(next_offset, size), trio.socket.MSG_MORE)
                await self.env.send_file(self.sock, file.disk_file, position, size)
        self._record_sent(began, size)
        if sent_at_once and progress.next_transfer_from_where != self.commit_log.readable_offset:
            await trio.lowlevel.checkpoint()  # more follows, and the other tasks have had no turn

    def _find_file(self, physic_offset: int) -> MappedFile:
        """Return the file of a byte that the log has or had.  Raises ExpiredError if deleted."""
        queue = self.commit_log.mapped_file_queue
        file = queue.find_mapped_file_by_offset(physic_offset)
        if file is None and physic_offset < queue.min_offset:
            raise expired(physic_offset, queue.min_offset)
        assert file is not None, f"offset {physic_offset} is outside the log"
        return file

    def _leaves_from_map(self, file: MappedFile, next_offset: int, size: int) -> bool:
        """Return whether the bytes are in memory, or must not be held by a socket."""
        log = self.commit_log
        if log.readable_offset - next_offset <= HOT_SIZE:
            return True
        is_flushed = next_offset + size <= log.flushed_offset
        return not is_flushed and isinstance(file.view, memoryview)

    def _record_sent(self, began: float, size: int) -> None:
        """Record that the kernel has taken a frame."""
        self.last_write_time = now = self._now()
        self.flow_monitor.add(size, now)
        if self.on_sent is not None:
            self.on_sent()
        self.send_times.observe(now - began)

    async def _send_from_map(
        self, file: MappedFile, next_offset: int, position: int, size: int
    ) -> bool:
        """Send one frame; return whether the socket took it without a wait."""
        header, header_size = self._header(next_offset, size), self._header_size
        with file.view[position : position + size] as body:
            sent = self.env.send_now(self.sock, (header, body))
            if sent == header_size + size:
                return True
            if sent < header_size:
                await send_all(self.sock, header[sent:], trio.socket.MSG_MORE)
                sent = header_size
            sent -= header_size
            while sent < size:
                with body[sent:] as rest:
                    sent += await self.sock.send(rest)
        return False
