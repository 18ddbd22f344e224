"""Sending by the kernel's own calls: sendfile(2) and one writev(2).

sendfile reads what it sends in the thread that calls it, which is the event loop's: for a page that
is on the disk only, all tasks wait.  So the kernel is asked first, by reads of one byte that must
not wait (RWF_NOWAIT), whether it has the pages.  Where it has not, a worker thread reads them, and
sendfile finds them in the page cache::

    │ a step, 1 MiB at most                                     │
    ?  256 KiB  ?  256 KiB  ?  256 KiB  ?  256 KiB             ?│    asked: 1.2 us each

A page between two that are there may be missing all the same; that costs one read of the disk, and
is rare: what was read one behind the other is kept, and given up, one behind the other.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import DiskFile, Offload

THREADS_MAX: Final = 8  # that read ahead at a time: a flush must not wait for one
STEP_SIZE: Final = 1024 * 1024
ASKED_DISTANCE: Final = 256 * 1024
COPY_SIZE: Final = 64 * 1024  # of a buffer for each peer, where sendfile does not work

# The answers of file systems without RWF_NOWAIT (tmpfs), and of kernels before Linux 4.14.
_CANNOT_ASK: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# "Applications may wish to fall back to read(2) and write(2)": sendfile(2).
_CANNOT_SEND: Final = frozenset({errno.EINVAL, errno.ENOSYS})
_ANY_BYTE: Final = [bytearray(1)]


@final
@attrs.define(eq=False)
class RealSendFile:
    """sendfile(2), without a wait for the disk in the event loop."""

    offload: Offload
    # Whether the kernel can say what is in its cache; a node's logs are on one file system.
    _can_ask: bool = attrs.field(default=True, init=False)
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(THREADS_MAX), init=False
    )

    async def __call__(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        """Send by sendfile: the bytes never enter this process."""
        step_end, end = position, position + size
        can_send = True
        while position < end:
            if position == step_end:  # a step keeps its end: none of it is read twice
                step_end = min(position + STEP_SIZE, end)
            left = step_end - position
            if not can_send:
                sent = await self._copy(sock, file, position, min(left, COPY_SIZE))
            else:
                if not self._is_cached(file, position, left):
                    await self._read(file, position, left)
                try:  # the descriptors are asked for each time: either may be closed meanwhile
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
        """Whether the pages are in the page cache, as far as the kernel can say."""
        if not self._can_ask:
            return True
        source = file.fileno()
        last = position + size - 1
        try:
            for asked in range(position, last, ASKED_DISTANCE):
                os.preadv(source, _ANY_BYTE, asked, os.RWF_NOWAIT)
            os.preadv(source, _ANY_BYTE, last, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _CANNOT_ASK:
                self._can_ask = False  # any other error sendfile meets, too
        return True

    async def _read(self, file: DiskFile, position: int, size: int) -> bytes:
        """Read in a thread, which brings the pages into the cache."""
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
    """Send by one writev(2) on the non-blocking socket."""
    try:
        return os.writev(sock.fileno(), buffers)
    except OSError:
        return 0
