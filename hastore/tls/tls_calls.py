"""The raw socket calls of an ``Env``, for TlsSockets.

A server of connections is given either the ``Env`` or what ``tls_calls`` makes of it, and does the
same with both: the plain path has no branch for TLS.

With TLS nothing leaves by sendfile(2): a file is read, from the page cache if it is there and else
by a worker thread, and encrypted.  There is no spinning either: ``poll`` never receives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import DiskError
from hastore.tls.tls_socket import PIECE_SIZE, TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.env.interface import DiskFile, Env

THREADS_MAX: Final = 8  # concurrent reads
STEP_SIZE: Final = 256 * 1024  # of a read in a thread


def tls_calls(env: Env) -> Env:
    """Return an ``Env`` whose raw socket calls take TlsSockets, and nothing else."""

    async def send_while(
        sock: trio.socket.SocketType, data: memoryview, may_leave: Callable[[], bool]
    ) -> int | None:
        return await as_tls(sock).send_while(data, may_leave, env.send_while)

    return attrs.evolve(
        env,
        send_file=TlsSendFile(env),
        send_now=_send_now,
        send_while=send_while,
        receive=_receive,
        poll=_poll,
    )


def as_tls(sock: trio.socket.SocketType) -> TlsSocket:
    """Return the socket as what it is."""
    assert isinstance(sock, TlsSocket), "these calls are for connections with TLS"
    return sock


def _send_now(sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
    return as_tls(sock).send_now(buffers)


async def _receive(sock: trio.socket.SocketType, buffer: memoryview) -> int:
    return await sock.recv_into(buffer)


def _poll(sock: trio.socket.SocketType, buffer: memoryview, until: float) -> int | None:  # noqa: ARG001
    return None


@final
@attrs.define(eq=False)
class TlsSendFile:
    """Sends a part of a file, piece by piece; only the caller waits for the disk."""

    env: Env
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(THREADS_MAX), init=False
    )

    async def __call__(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        """Read, encrypt and send ``size`` bytes.  Raises OSError and DiskError."""
        end = position + size
        buffer = bytearray(min(PIECE_SIZE, size))
        while position < end:
            with memoryview(buffer)[: end - position] as room:
                count = file.read_now(room, position)
                if count:
                    await _send(sock, room[:count])
            if not count:
                data = await self._read(file, position, min(STEP_SIZE, end - position))
                count = len(data)
                await _send(sock, memoryview(data))
            if not count:
                msg = f"{file.path} ended at {position}, before {end}"
                raise DiskError(msg, path=file.path)
            position += count

    async def _read(self, file: DiskFile, position: int, size: int) -> bytes:
        async with self._threads:
            return await self.env.offload.run(lambda: file.pread(size, position))


async def _send(sock: trio.socket.SocketType, data: memoryview) -> None:
    while data:
        data = data[await sock.send(data) :]
