"""An HTTP server that answers exactly what a test wants, and counts what it was asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

OK_HEAD = b"HTTP/1.1 200 OK\r\n"
TLS_HANDSHAKE = b"\x16"
NOT_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
HEADER = b'"header": {"cluster_id": "1", "revision": "9"}'


@attrs.define(eq=False)
class ScriptedHttp:
    """A server; ``script`` returns the bytes to answer with, None: nothing, ever.

    After each answer it closes the connection, unless ``stays``.
    """

    endpoint: str
    script: Callable[[str], bytes | None]
    stays: bool = False
    asked: list[str] = attrs.field(factory=list)  # the paths
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer requests."""
        self.connections += 1
        async with stream:
            # A client that has seen enough closes the connection.
            with contextlib.suppress(trio.BrokenResourceError):
                while (path := await self._request(stream)) is not None:
                    answer = self.script(path)
                    if answer is None:
                        await trio.sleep_forever()
                    if self.stays:
                        await stream.send_all(answer)
                        continue
                    # One that closes its connection says so, or a client may use it again.
                    head, line_end, rest = answer.partition(b"\r\n")
                    says = b"Connection: close\r\n" if head.startswith(b"HTTP/1.1 ") else b""
                    await stream.send_all(head + line_end + says + rest)
                    return

    async def _request(self, stream: trio.SocketStream) -> str | None:
        """Read a request and return its path, None at the end or for what is no HTTP."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = await stream.receive_some()
            data += part
            if not part or data.startswith(TLS_HANDSHAKE):
                await stream.send_all(NOT_HTTP)
                return None
        head, _, body = data.partition(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        while len(body) < size:
            body += await stream.receive_some()
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        return path


@asynccontextmanager
async def scripted_http(
    script: Callable[[str], bytes | None], *, stays: bool = False
) -> AsyncIterator[ScriptedHttp]:
    """Run a server while the block runs."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        server = ScriptedHttp(f"http://127.0.0.1:{port}", script, stays)
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


def answer(body: bytes, head: bytes = OK_HEAD) -> bytes:
    """Return a whole answer."""
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def stream(*parts: bytes) -> bytes:
    """Return an answer in chunks that does not end."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
