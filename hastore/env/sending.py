"""Sending by the kernel's own calls: sendfile(2) and one writev(2)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import trio

from hastore.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import DiskFile


async def real_send_file(
    sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
) -> None:
    """Send by sendfile(2): the bytes never enter this process."""
    end = position + size
    out = sock.fileno()
    source = file.fileno()
    while position < end:
        try:
            sent = os.sendfile(out, source, position, end - position)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
            continue
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            msg = f"cannot read {file.path} at {position}: {os.strerror(errno.EIO)}"
            raise DiskError(
                msg, path=file.path, hint="check the disk; hastore log verify DIR"
            ) from error
        if sent == 0:
            msg = f"{file.path} ended at {position}, before {end}"
            raise DiskError(msg, path=file.path)
        position += sent
    await trio.lowlevel.cancel_shielded_checkpoint()


def real_send_now(sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
    """Send by one writev(2) on the non-blocking socket."""
    try:
        return os.writev(sock.fileno(), buffers)
    except OSError:
        return 0
