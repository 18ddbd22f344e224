"""The bare loop of a put: what the system calls of a put cost in Python and trio, and no more.

::

    N tasks ── copy into a map ── one send ──► peer: recv, pwrite ── 8 bytes ──► the tasks go on

If nothing is in flight, the task itself sends; otherwise its bytes leave with those of the others
when the next answer comes.  With ``is_flushed`` all bytes that are there are sent, then forced to
disk, in the loop's thread.  A log always writes to fresh pages, as a node's does: when a file is
full, a new one follows, and the one before the last is removed.  A message has no fields, no
checksum, no queue; nothing is checked, and nothing has a deadline.

An answer is one or several 8-byte numbers: how many bytes the peer has, each above the one before.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections import deque
from pathlib import Path
from typing import Any

import attrs
import trio

FILE_SIZE = 256 * 1024 * 1024  # above all that is ever in flight
RECEIVE_SIZE = 4 * 1024 * 1024
QUEUE_FILES_OPEN_MAX = 256
RECORDS_A_PASS = 1_000
UNIT = bytes(20)


@attrs.define(eq=False)
class BareLink:
    """The connection to one peer: bytes sent to it, and the start of its next answer."""

    sock: socket.socket
    sent: int = 0
    acknowledged: int = 0
    rest: bytes = b""
    writable: trio.Event | None = None


class BareFiles:
    """The files of a log, allocated one after the other; the last two are there."""

    def __init__(self, path: Path, file_size: int = FILE_SIZE) -> None:
        self.file_size = file_size
        self._path = path
        self._descriptors: dict[int, int] = {}
        path.mkdir(parents=True, exist_ok=True)

    def descriptor(self, offset: int) -> int:
        """Return the file that has an offset; make it if it is the next one."""
        number = offset // self.file_size
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            descriptor = os.open(self._path / str(number), os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(descriptor, 0, self.file_size)
            self._descriptors[number] = descriptor
            if number - 2 in self._descriptors:
                os.close(self._descriptors.pop(number - 2))
                (self._path / str(number - 2)).unlink()
        return descriptor

    def sync(self, offset: int) -> None:
        """Force the file that has an offset to disk."""
        os.fdatasync(self.descriptor(offset))

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)


class BareMaps:
    """The files of a log as maps, or without files one map that is used again, as by a client."""

    def __init__(self, files: BareFiles | None) -> None:
        self._files = files
        self.file_size = FILE_SIZE if files is None else files.file_size
        self._maps: dict[int, tuple[mmap.mmap, memoryview]] = {}

    def view(self, offset: int) -> memoryview:
        """Return the map that has an offset."""
        number = offset // self.file_size if self._files else 0
        found = self._maps.get(number)
        if found is None:
            descriptor = self._files.descriptor(offset) if self._files else -1
            mapped = mmap.mmap(descriptor, self.file_size)
            found = self._maps[number] = mapped, memoryview(mapped)
            self._close(number - 2)
        return found[1]

    def _close(self, number: int) -> None:
        if number in self._maps:
            mapped, view = self._maps.pop(number)
            view.release()
            mapped.close()

    def close(self) -> None:
        """Close the maps."""
        for number in list(self._maps):
            self._close(number)


class BareLog:
    """Bytes that are sent to every peer; ``path`` None: in memory only, as a client's."""

    def __init__(
        self,
        path: Path | None,
        *,
        file_size: int = FILE_SIZE,
        is_flushed: bool = False,
        waits_for_peer: bool = True,
    ) -> None:
        self.files = None if path is None else BareFiles(path, file_size)
        self._maps = BareMaps(self.files)
        self.end = 0
        self.flushed = 0
        self.is_flushed = is_flushed
        self.waits_for_peer = waits_for_peer
        self.links: list[BareLink] = []
        self.on_released: Any = None
        self._waiting: deque[tuple[int, trio.lowlevel.Task]] = deque()
        self._to_flush = trio.Event()

    def close(self) -> None:
        """Close the connections and the files; nobody waits any more."""
        for link in self.links:
            link.sock.close()
        self._maps.close()
        if self.files is not None:
            self.files.close()

    def connect(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        """Send to a peer, too."""
        tune(sock)
        link = BareLink(sock, self.end)
        self.links.append(link)
        nursery.start_soon(self._receive, link)

    async def put(self, data: bytes) -> None:
        """Append, and wait for the peer or the disk."""
        self.append(data)
        self._waiting.append((self.end, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(_never_cancelled)

    def append(self, data: bytes) -> None:
        """Copy into the map; send it if nothing is in flight."""
        file_size = self._maps.file_size
        at = self.end % file_size
        room = file_size - at
        if len(data) <= room:
            self._maps.view(self.end)[at : at + len(data)] = data
        else:
            self._maps.view(self.end)[at:] = data[:room]
            self._maps.view(self.end + room)[: len(data) - room] = data[room:]
        self.end += len(data)
        if self.is_flushed:
            self._to_flush.set()
            return
        for link in self.links:
            if link.sent == link.acknowledged:
                self._send(link)

    def _send(self, link: BareLink) -> None:
        while link.sent < self.end and link.writable is None:
            at = link.sent % self._maps.file_size
            view = self._maps.view(link.sent)
            try:
                link.sent += link.sock.send(view[at : at + self.end - link.sent])
            except BlockingIOError:
                link.writable = trio.Event()
                trio.lowlevel.spawn_system_task(self._send_when_writable, link)

    async def _send_when_writable(self, link: BareLink) -> None:
        await trio.lowlevel.wait_writable(link.sock)
        link.writable = None
        self._send(link)

    async def _receive(self, link: BareLink) -> None:
        while True:
            await trio.lowlevel.wait_readable(link.sock)
            data = link.sock.recv(65_536)
            if not data:
                return
            data = link.rest + data
            whole = len(data) & ~7
            link.rest = data[whole:]
            if whole:
                link.acknowledged = int.from_bytes(data[whole - 8 : whole], "big")
                self._release()
            if not self.is_flushed:
                self._send(link)

    async def flush(self) -> None:
        """Send and force to disk what there is, again and again."""
        while True:
            await self._to_flush.wait()
            self._to_flush = trio.Event()
            end = self.end
            for link in self.links:
                self._send(link)
            if self.files is not None:
                self.files.sync(end - 1)
            self.flushed = end
            self._release()

    def _release(self) -> None:
        offset = self.flushed if self.is_flushed else self.end
        if self.waits_for_peer:
            offset = min(offset, max(link.acknowledged for link in self.links))
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            trio.lowlevel.reschedule(waiting.popleft()[1])
        if self.on_released is not None:
            self.on_released(offset)


class BareQueues:
    """Consume queues as bare files: a unit a record, written once in RECORDS_A_PASS records."""

    def __init__(self, path: Path, queues: int) -> None:
        self._path = path
        self._queues = queues
        self._count = 0
        self._descriptors: dict[int, int] = {}
        path.mkdir(parents=True, exist_ok=True)

    def add(self, count: int) -> None:
        """Count records, the next queue's first; write each queue's units when they are many."""
        before = self._count // RECORDS_A_PASS
        self._count += count
        for _ in range(self._count // RECORDS_A_PASS - before):
            queues = min(self._queues, RECORDS_A_PASS)
            units = UNIT * (RECORDS_A_PASS // queues)
            for turn in range(queues):
                self._write((self._count + turn) % self._queues, units)

    def _write(self, queue_id: int, units: bytes) -> None:
        descriptors = self._descriptors
        descriptor = descriptors.get(queue_id)
        if descriptor is None:
            if len(descriptors) >= QUEUE_FILES_OPEN_MAX:
                os.close(descriptors.pop(next(iter(descriptors))))
            descriptor = os.open(self._path / str(queue_id), os.O_RDWR | os.O_CREAT)
            descriptors[queue_id] = descriptor
        os.pwrite(descriptor, units, 0)


def tune(sock: socket.socket) -> None:
    """Never block, never wait for more to send."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _never_cancelled(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
