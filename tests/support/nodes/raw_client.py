"""A minimal client: it sends bytes and receives commands."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hastore.message import Message
from hastore.tls.connecting import connect_client_port
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.property_text import write_properties
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import write_send_fields
from tests.patience import WITHIN_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio

    from hastore.tls.client_tls import ClientTls


class RawClient:
    """One socket; ``receive`` returns the next command, or None at the end of the stream."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock
        self._reader = FrameReader(1 << 24)

    async def send(self, *parts: RemotingCommand | bytes) -> None:
        """Send commands, and bytes unchanged, at once."""
        data = b"".join(p if isinstance(p, bytes) else encode_command(p) for p in parts)
        left = memoryview(data)
        while left:
            left = left[await self.sock.send(left) :]

    async def receive(self) -> RemotingCommand | None:
        """Wait for the next command."""
        while (command := self._reader.next_command()) is None:
            data = await self.sock.recv(65_536)
            if not data:
                return None
            self._reader.feed(data)
        return command

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send one command and wait for one."""
        await self.send(command)
        response = await self.receive()
        assert response is not None
        return response

    async def closed(self) -> None:
        """Wait until the server has closed the connection; ignore what it still sends."""
        with contextlib.suppress(OSError):
            while await self.sock.recv(65_536):
                pass


@contextlib.asynccontextmanager
async def raw_client(
    address: tuple[str, int], *, tls: ClientTls | None = None
) -> AsyncIterator[RawClient]:
    """Connect during the block."""
    with await connect_client_port(address, WITHIN_S, tls) as sock:
        yield RawClient(sock)


def send_command(
    opaque: int = 1,
    *,
    topic: str = "T",
    body: bytes = b"body",
    queue_id: int = 0,
    properties: dict[str, str] | None = None,
    **changes: Any,
) -> RemotingCommand:
    """Return a SEND_MESSAGE_V2 request."""
    fields = write_send_fields(
        Message(topic, body),
        write_properties(properties or {}),
        queue_id=queue_id,
        born_timestamp_ms=1_700_000_000_000,
        group="g",
    )
    ext_fields = fields | changes.pop("ext_fields", {})
    return RemotingCommand(code=310, opaque=opaque, ext_fields=ext_fields, body=body, **changes)
