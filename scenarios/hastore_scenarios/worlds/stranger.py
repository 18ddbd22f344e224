"""A raw connection to the HA port: an unidentified peer."""

from __future__ import annotations

import contextlib
import socket
from typing import Final, final

import attrs
import trio

_READ_SIZE: Final = 64 * 1024


@final
@attrs.define(eq=False)
class TcpPeer:
    """One raw connection to the HA port: a port scanner, a web client, a fuzzer."""

    sock: trio.socket.SocketType

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> TcpPeer:
        """Connect to ``address``.  Raises OSError."""
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send all of ``data``, unless the other side closes the connection."""
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[await self.sock.send(rest) :]

    async def read_to_end(self, within_s: float = 5.0) -> bytes:
        """Return the bytes received until the other side closes, or until the time is over."""
        received = bytearray()
        with trio.move_on_after(within_s), contextlib.suppress(OSError):
            while data := await self.sock.recv(_READ_SIZE):
                received += data
        return bytes(received)

    async def close(self) -> None:
        """Close the connection."""
        self.sock.close()
        await trio.lowlevel.checkpoint()
