"""A node that a test controls frame by frame."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import trio

from hastore.concurrency.tcp import bound_address, open_listener
from hastore.wire.frame_reader import FrameReader, encode_command
from tests.support.nodes.configs import ANY_PORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hastore.wire.remoting_command import RemotingCommand

ROUTE = {
    "brokerDatas": [{"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}],
    "queueDatas": [{"brokerName": "a", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}],
}


class ScriptedNode:
    """Accepts one connection; ``receive`` returns its requests."""

    def __init__(self, listener: trio.socket.SocketType) -> None:
        self._listener = listener
        self._sock: trio.socket.SocketType | None = None
        self._reader = FrameReader(1 << 24)
        self.introduced = trio.Event()

    async def _receive(self, count: int) -> list[RemotingCommand]:
        if self._sock is None:
            self._sock, _ = await self._listener.accept()
        found: list[RemotingCommand] = []
        while len(found) < count:
            command = self._reader.next_command()
            if command is not None:
                found.append(command)
                continue
            data = await self._sock.recv(65_536)
            assert data, "the client has left"
            self._reader.feed(data)
        return found

    async def receive(self, count: int) -> list[RemotingCommand]:
        """Wait for ``count`` requests."""
        await self.introduced.wait()
        return await self._receive(count)

    async def send(self, what: RemotingCommand | bytes) -> None:
        """Send a command, or bytes unchanged."""
        assert self._sock is not None
        left = memoryview(what if isinstance(what, bytes) else encode_command(what))
        while left:
            left = left[await self._sock.send(left) :]

    async def answer_route(self, code: int) -> None:
        """Answer the route request with which a producer begins."""
        (request,) = await self._receive(1)
        assert request.code == 105
        await self.send(request.response(code, body=json.dumps(ROUTE).encode()))
        self.introduced.set()

    def drop(self) -> None:
        """Close the connection."""
        assert self._sock is not None
        self._sock.close()


@contextlib.asynccontextmanager
async def scripted_node(
    *, route_code: int | None = 0
) -> AsyncIterator[tuple[ScriptedNode, tuple[str, int]]]:
    """Listen on a free loopback port during the block.

    The first request must be a producer's route request and is answered with ``route_code``; None
    leaves it to the test.
    """
    listener = await open_listener(ANY_PORT, "clients")
    node = ScriptedNode(listener)
    try:
        async with trio.open_nursery() as nursery:
            if route_code is None:
                node.introduced.set()
            else:
                nursery.start_soon(node.answer_route, route_code)
            yield node, bound_address(listener)
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        if node._sock is not None:
            node._sock.close()
