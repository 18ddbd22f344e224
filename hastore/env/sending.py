"""Sending and receiving by system calls: sendfile(2), writev(2) and readv(2).

sendfile reads the file in the thread that calls it, the event loop's: if a page is not in the page
cache, all tasks wait for the disk.  So one-byte reads that must not wait (RWF_NOWAIT) probe the
cache first.  Where one fails, a worker thread reads the step, and sendfile finds it in the cache::

    │ a step, 1 MiB at most                                     │
    ?  256 KiB  ?  256 KiB  ?  256 KiB  ?  256 KiB             ?│    a probe: 1.2 us

A page between two cached ones may still be missing.  That costs one read of the disk in the event
loop and is rare, because pages that are read in sequence are evicted in sequence.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.env.interface import DiskFile, Offload

THREADS_MAX: Final = 8  # concurrent reads ahead; the rest of trio's threads are for flushes
STEP_SIZE: Final = 1024 * 1024
PROBE_DISTANCE: Final = 256 * 1024
COPY_SIZE: Final = 64 * 1024  # buffer of each peer where sendfile does not work

# The answers of file systems without RWF_NOWAIT (tmpfs), and of kernels before Linux 4.14.
CANNOT_PROBE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# "Applications may wish to fall back to read(2) and write(2)": sendfile(2).
_CANNOT_SEND: Final = frozenset({errno.EINVAL, errno.ENOSYS})
_ANY_BYTE: Final = [bytearray(1)]


@final
@attrs.define(eq=False)
class RealSendFile:
    """sendfile(2), without a wait for the disk in the event loop."""

    offload: Offload
    # Whether RWF_NOWAIT works here; a node's log is on one file system.
    _can_probe: bool = attrs.field(default=True, init=False)
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(THREADS_MAX), init=False
    )

    async def __call__(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        """Send by sendfile(2): the bytes are not copied into this process."""
        step_end, end = position, position + size
        can_send = True
        while position < end:
            if position == step_end:  # a step keeps its end, so nothing is read twice
                step_end = min(position + STEP_SIZE, end)
            left = step_end - position
            if not can_send:
                sent = await self._copy(sock, file, position, min(left, COPY_SIZE))
            else:
                if not self._is_cached(file, position, left):
                    await self._read(file, position, left)
                try:  # fileno() each time: either end may have been closed meanwhile
                    sent = os.sendfile(sock.fileno(), file.fileno(), position, left)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)
                    continue
                except OSError as error:
                    if error.errno in _CANNOT_SEND:
                        can_send = False
                        continue
                    if error.errno != errno.EIO:
                        raise
                    raise _unreadable(file, position, os.strerror(errno.EIO)) from error
            if sent == 0:
                msg = f"{file.path} ended at {position}, before {end}"
                raise DiskError(msg, path=file.path)
            position += sent
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _is_cached(self, file: DiskFile, position: int, size: int) -> bool:
        """Whether the probed pages are in the page cache; true where the kernel cannot say."""
        if not self._can_probe:
            return True
        source = file.fileno()
        last = position + size - 1
        try:
            for probed in range(position, last, PROBE_DISTANCE):
                os.preadv(source, _ANY_BYTE, probed, os.RWF_NOWAIT)
            os.preadv(source, _ANY_BYTE, last, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in CANNOT_PROBE:
                self._can_probe = False  # sendfile will raise any other error
        return True

    async def _read(self, file: DiskFile, position: int, size: int) -> bytes:
        """Read in a worker thread, which also loads the pages into the cache."""
        try:
            async with self._threads:
                return await self.offload.run(lambda: file.pread(size, position))
        except DiskError as error:
            reason = getattr(error.__cause__, "strerror", None) or str(error)
            raise _unreadable(file, position, reason) from error

    async def _copy(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> int:
        """Send without sendfile, which does not work on every file system."""
        data = await self._read(file, position, size)
        left = memoryview(data)
        while left:
            left = left[await sock.send(left) :]
        return len(data)


def _unreadable(file: DiskFile, position: int, reason: str) -> DiskError:
    msg = f"cannot read {file.path} at {position}: {reason}"
    return DiskError(msg, path=file.path, hint="check the disk; hastore log verify DIR")


def real_send_now(sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
    """Send by one writev(2) on a non-blocking socket."""
    try:
        return os.writev(sock.fileno(), buffers)
    except OSError:
        return 0


async def real_send_while(
    sock: trio.socket.SocketType, data: memoryview, may_leave: Callable[[], bool]
) -> int | None:
    """Send by one write(2), repeated after a wait: trio's ``send`` asks nobody in between."""
    await trio.lowlevel.checkpoint_if_cancelled()
    while may_leave():
        try:
            sent = os.write(sock.fileno(), data)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return sent
    await trio.lowlevel.cancel_shielded_checkpoint()
    return None


async def real_receive(sock: trio.socket.SocketType, buffer: memoryview) -> int:
    """Receive by one readv(2) after the wait: trio's ``recv`` also tries one before it."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return os.readv(sock.fileno(), (buffer,))
        except BlockingIOError:
            continue


@final
class RealSecondReceiver:
    """A second descriptor of the socket: trio can wake those who wait for it, and no others."""

    __slots__ = ("_sock",)

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock.dup()

    async def receive(self, buffer: memoryview) -> int | None:
        """Receive by one readv(2) after the wait."""
        try:
            await trio.lowlevel.wait_readable(self._sock)
            return os.readv(self._sock.fileno(), (buffer,))
        except (trio.ClosedResourceError, BlockingIOError):
            return None

    def interrupt(self) -> None:
        """Wake the task that waits, as if the descriptor were to be closed."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)

    def close(self) -> None:
        """Close the descriptor, which wakes the task that waits."""
        self._sock.close()


def real_poll(sock: trio.socket.SocketType, buffer: memoryview, until: float) -> int | None:
    """Receive by readv(2), tried again and again."""
    descriptor, buffers = sock.fileno(), (buffer,)
    while True:
        try:
            return os.readv(descriptor, buffers)
        except BlockingIOError:
            if trio.current_time() >= until:
                return None
