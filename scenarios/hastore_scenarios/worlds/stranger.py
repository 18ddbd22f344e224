"""Somebody on the HA port who is no slave: a port scanner, a web client, a fuzzer."""

from __future__ import annotations

import contextlib
import socket
from typing import Final, final

import attrs
import trio

_READ_SIZE: Final = 64 * 1024


@final
@attrs.define(eq=False)
class TcpStranger:
    """One raw connection."""

    sock: trio.socket.SocketType

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> TcpStranger:
        """Connect to ``address``."""
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send all of it, unless the other side hangs up."""
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[await self.sock.send(rest) :]

    async def read_to_end(self, within_s: float = 5.0) -> bytes:
        """Return all that comes until the other side closes, or until the time is over."""
        received = bytearray()
        with trio.move_on_after(within_s), contextlib.suppress(OSError):
            while data := await self.sock.recv(_READ_SIZE):
                received += data
        return bytes(received)

    async def close(self) -> None:
        """Hang up."""
        self.sock.close()
        await trio.lowlevel.checkpoint()
