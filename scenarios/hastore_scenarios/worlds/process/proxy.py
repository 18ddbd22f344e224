"""A TCP proxy in this process: the network between a slave and its master, which can be disturbed.

::

    slave ──► listener ──► to_master pump ──► master's HA port
          ◄──────────── to_slave pump ◄────

Each connection has two pumps, one per direction, each behind its own gate.  A closed gate holds
bytes back as a partition does: they stay in the kernel, and the sender feels the back-pressure.  No
byte is ever dropped, so the stream arrives as it was sent.  The listener stays open during a cut: a
new connection is accepted and carries nothing, like a half-open one.

Every mode takes effect in the call that sets it: bytes that are not in the kernel's hands by then
stay here.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore_scenarios.story.world import LinkMode

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_SIZE: Final = 256 * 1024

# Listeners that are closed and opened again must not use the kernel's ports for outgoing
# connections (32768 up): a peer that retries could connect to itself there.
_BACKLOG: Final = 64
_PORTS: Final = range(20_000, 32_000)


@final
@attrs.define(eq=False)
class _Gate:
    """Lets one direction pass, at a rate and in pieces, or holds it."""

    is_open: bool = True
    bytes_per_s: int | None = None
    chunk_size: int = BUFFER_SIZE
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def change(self) -> None:
        """Wake the pumps that wait here."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_open(self) -> None:
        """Wait until bytes may pass."""
        while not self.is_open:
            await self._changed.wait()

    async def pace(self, size: int) -> None:
        """Wait for as long as ``size`` bytes take at the rate, or until the rate changes."""
        if self.bytes_per_s is not None:
            with trio.move_on_after(size / self.bytes_per_s):
                await self._changed.wait()


@final
@attrs.define(eq=False)
class Proxy:
    """Forwards connections to ``target``; a target of None accepts and closes at once.

    ``run`` serves until cancelled.  ``on_change`` is called with each new mode.
    """

    target: tuple[str, int] | None
    on_change: Callable[[LinkMode, str], None] | None = None
    mode: LinkMode = attrs.field(default=LinkMode.OPEN, init=False)
    address: tuple[str, int] = attrs.field(init=False)
    # The addresses of the proxy's connections to the master, as the master's status has them.
    master_side: set[str] = attrs.field(factory=set, init=False)
    _to_master: _Gate = attrs.field(factory=_Gate, init=False)
    _to_slave: _Gate = attrs.field(factory=_Gate, init=False)
    _connections: dict[trio.CancelScope, tuple[trio.socket.SocketType, ...]] = attrs.field(
        factory=dict, init=False
    )
    _listener: trio.socket.SocketType | None = attrs.field(default=None, init=False)
    _listening: trio.Event = attrs.field(factory=trio.Event, init=False)

    # -- faults

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt the link as ``mode`` says."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        if mode is LinkMode.REFUSE:
            self._stop_listening()
            self._reset_all()
        self._to_slave.is_open = mode is LinkMode.CUT_TO_MASTER
        self._to_master.is_open = mode is LinkMode.CUT_TO_SLAVE
        self._set(mode, "")

    def reset(self) -> None:
        """Reset all connections."""
        self._reset_all()
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate of the master's bytes."""
        self._to_slave.bytes_per_s = bytes_per_s
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Forward bytes in pieces of at most ``chunk_size``."""
        self._to_slave.chunk_size = self._to_master.chunk_size = chunk_size
        self._set(self.mode, f"pieces of {chunk_size} bytes")

    @property
    def is_untouched(self) -> bool:
        """Whether the link has no fault."""
        return self.mode is LinkMode.OPEN and all(
            gate.bytes_per_s is None and gate.chunk_size == BUFFER_SIZE
            for gate in (self._to_slave, self._to_master)
        )

    def heal(self) -> None:
        """Let everything pass again."""
        for gate in (self._to_slave, self._to_master):
            gate.is_open, gate.bytes_per_s, gate.chunk_size = True, None, BUFFER_SIZE
        if self._listener is not None and not self._listening.is_set():
            self._listener.listen(_BACKLOG)
            self._listening.set()
        self._set(LinkMode.OPEN, "")

    def _set(self, mode: LinkMode, detail: str) -> None:
        self.mode = mode
        self._to_slave.change()
        self._to_master.change()
        if self.on_change is not None:
            self.on_change(mode, detail)

    # -- the listener

    def listen(self) -> None:
        """Listen on a free port, and set ``address``.  Raises OSError if there is none."""
        for port in _PORTS:
            with contextlib.suppress(OSError):
                self._open_listener(("127.0.0.1", port))
                return
        raise OSError(errno.EADDRINUSE, "no free port for a proxy")

    def close(self) -> None:
        """Release the port, if ``run`` is never called after ``listen``."""
        self._close_listener()

    def _open_listener(self, address: tuple[str, int]) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            # After the bind: with it, the bind could share the port of another proxy that refuses
            # connections, and neither could listen again; without it, a port of old connections
            # could not be listened on again.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self.address = listener.getsockname()
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._listening.set()

    def _stop_listening(self) -> None:
        """Refuse connections and keep the port: Linux leaves a shut down listener bound."""
        if self._listener is not None and self._listening.is_set():
            self._listening = trio.Event()
            self._listener.shutdown(socket.SHUT_RDWR)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._listening = trio.Event()

    # -- serving

    async def run(self) -> None:
        """Accept and forward until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._listening.wait()
                    listener = self._listener
                    assert listener is not None
                    try:
                        slave, _ = await listener.accept()
                    except OSError:  # closed by cut(REFUSE)
                        await trio.lowlevel.checkpoint()
                        continue
                    except trio.ClosedResourceError:
                        continue
                    nursery.start_soon(self._forward, slave)
        finally:
            self._close_listener()

    async def _forward(self, slave: trio.socket.SocketType) -> None:
        """Serve one connection to its end."""
        name = ""
        with slave, trio.CancelScope() as scope:
            self._connections[scope] = (slave,)
            try:
                # During a cut nothing reaches the master, not even a new connection.
                await self._to_master.wait_open()
                if self.target is None:
                    return
                with trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM) as master:
                    await master.connect(self.target)
                    self._connections[scope] = (slave, master)
                    name = "{}:{}".format(*master.getsockname())
                    self.master_side.add(name)
                    for sock in (slave, master):
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, slave, master, self._to_master, scope)
                        nursery.start_soon(self._pump, master, slave, self._to_slave, scope)
            except* OSError:
                pass  # the other side is gone, so this connection ends
            finally:
                self.master_side.discard(name)
                del self._connections[scope]

    async def _pump(
        self,
        source: trio.socket.SocketType,
        sink: trio.socket.SocketType,
        gate: _Gate,
        scope: trio.CancelScope,
    ) -> None:
        """Copy one direction until it ends, then end the other."""
        while True:
            await gate.wait_open()
            data = memoryview(await source.recv(BUFFER_SIZE))
            if not data:
                break
            while data:
                size = gate.chunk_size
                if gate.bytes_per_s is not None:
                    size = min(size, max(1, gate.bytes_per_s // 50))
                    await gate.pace(size)
                await trio.lowlevel.wait_writable(sink)
                await gate.wait_open()
                # The socket is writable and has one writer: this send does not wait, so no cut can
                # come in between.
                sent = await sink.send(data[:size])
                data = data[sent:]
        await gate.wait_open()  # a partition hides the end of a connection, too
        scope.cancel()

    def _reset_all(self) -> None:
        for scope, sockets in list(self._connections.items()):
            for sock in sockets:
                _reset_on_close(sock)
            scope.cancel()


def _reset_on_close(sock: trio.socket.SocketType) -> None:
    """Let close() send RST (SO_LINGER with a time of 0)."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
