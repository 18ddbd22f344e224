"""Streams commit-log bytes to one slave, frame by frame, and heartbeats when there are none.

A frame's bytes all come from one mapped file, so it never crosses a file's end.  Bytes near
the log's end leave as one ``sendmsg`` of header and map; older ones as a corked header and
``sendfile``, which reads nothing into this process.  What is sent is
what is appended, flushed or not (RocketMQ's rule).

Each slave has its own task and its own socket: one that reads slowly blocks only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.wire.ha_frames import HEADER, HEADER_SIZE

if TYPE_CHECKING:
    from hastore.ha.ha_connection import HAConnection
    from hastore.store.mapped_file import MappedFile

# Bytes this near to the log's end were just written: they are in memory, and one sendmsg of header
# and map is cheaper than a header and sendfile.  Older ones may be cold, and reading a cold page
# through the map would stop the whole process.
HOT_SIZE: Final = 256 * 1024


@final
@attrs.define(eq=False)
class WriteSocketService:
    """The writing half of an HAConnection."""

    connection: HAConnection
    last_write_time: float = attrs.field(factory=trio.current_time, init=False)
    is_idle: bool = attrs.field(default=False, init=False)
    _heartbeat_due: bool = attrs.field(default=False, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def wakeup(self) -> None:
        """Look again: bytes were appended, or the first report arrived."""
        self._wake.wakeup()

    def request_heartbeat(self) -> None:
        """Ask for a heartbeat if nothing is being sent; a busy link needs none."""
        if self.is_idle:
            self._heartbeat_due = True
            self._wake.wakeup()

    async def run(self) -> None:
        """Send until the link breaks (OSError) or the connection is cancelled."""
        connection = self.connection
        progress = connection.progress
        commit_log = connection.ha_service.commit_log
        while True:
            next_offset = progress.next_transfer_from_where
            if next_offset is not None and next_offset < commit_log.max_offset:
                await self._transfer(next_offset)
            elif self._heartbeat_due:
                self._heartbeat_due = False
                if next_offset is not None:
                    await self._send_all(HEADER.pack(next_offset, 0))
                    self.last_write_time = trio.current_time()
            else:
                self.is_idle = True
                connection.ha_service.idle_writers[self] = None
                await self._wake.wait_for_running()
                self.is_idle = False

    async def _transfer(self, next_offset: int) -> None:
        """Send one frame that begins at ``next_offset``."""
        connection = self.connection
        progress = connection.progress
        file = connection.ha_service.find_file(next_offset)
        position = next_offset - file.file_from_offset
        size = progress.next_batch_size(file.wrote_position - position)
        # Before the first byte leaves: the slave's report on it may be read before this task runs
        # again, and must not look as if it were beyond what was sent.
        progress.sent(size)
        if connection.ha_service.commit_log.max_offset - next_offset <= HOT_SIZE:
            await self._send_from_map(file, next_offset, position, size)
        else:
            await self._send_all(HEADER.pack(next_offset, size), more=True)
            await connection.ha_service.env.send_file(
                connection.sock, file.disk_file, position, size
            )
        self.last_write_time = now = trio.current_time()
        connection.flow_monitor.add(size, now)

    async def _send_from_map(
        self, file: MappedFile, next_offset: int, position: int, size: int
    ) -> None:
        header = HEADER.pack(next_offset, size)
        with file.view[position : position + size] as body:
            sent = await self.connection.sock.sendmsg([header, body])
            if sent < HEADER_SIZE:
                await self._send_all(header[sent:], more=True)
                sent = HEADER_SIZE
            sent -= HEADER_SIZE
            while sent < size:
                with body[sent:] as rest:
                    sent += await self.connection.sock.send(rest)

    async def _send_all(self, data: bytes, *, more: bool = False) -> None:
        flags = trio.socket.MSG_MORE if more else 0
        while data:
            sent = await self.connection.sock.send(data, flags)
            data = data[sent:]
