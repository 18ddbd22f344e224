"""A TCP proxy in this process: the network between a slave and its master, to be interfered with.

::

    slave ──► listener ──► to_master pump ──► master's HA port
          ◄──────────── to_slave pump ◄────

Two pumps a connection, one a direction, each behind its own gate.  A closed gate holds bytes back
(they stay in the kernel, and the sender feels the back-pressure), as a partition does; nothing is
ever dropped, so what passes afterwards is the stream as it was sent.  The listener stays open under
a cut: a connection made then is accepted and carries nothing, which is how a half-open one looks.

Every mode takes effect in the call that sets it: bytes that have not been handed to the kernel by
then stay here.
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

# Listeners that are closed and opened again must not lie where the kernel takes the ports of
# outgoing connections from (32768 up): a peer that retries could connect to itself there.
_BACKLOG: Final = 64
_PORTS: Final = range(20_000, 32_000)


@final
@attrs.define(eq=False)
class _Gate:
    """Lets one direction pass, or holds it; and how fast, in which pieces."""

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
        """Wait for as long as ``size`` bytes take at the rate; ends early when the rate changes."""
        if self.bytes_per_s is not None:
            with trio.move_on_after(size / self.bytes_per_s):
                await self._changed.wait()


@final
@attrs.define(eq=False)
class Proxy:
    """Forwards connections to ``target``; a target of None accepts and closes at once.

    ``run`` serves until cancelled.  ``on_change`` is told each mode that was set.
    """

    target: tuple[str, int] | None
    on_change: Callable[[LinkMode, str], None] | None = None
    mode: LinkMode = attrs.field(default=LinkMode.OPEN, init=False)
    address: tuple[str, int] = attrs.field(init=False)
    # Our ends of the connections to the master, as the master's status names them.
    master_side: set[str] = attrs.field(factory=set, init=False)
    _to_master: _Gate = attrs.field(factory=_Gate, init=False)
    _to_slave: _Gate = attrs.field(factory=_Gate, init=False)
    _connections: dict[trio.CancelScope, tuple[trio.socket.SocketType, ...]] = attrs.field(
        factory=dict, init=False
    )
    _listener: trio.socket.SocketType | None = attrs.field(default=None, init=False)
    _listening: trio.Event = attrs.field(factory=trio.Event, init=False)

    # -- what a scenario does to it

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt it."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        if mode is LinkMode.REFUSE:
            self._stop_listening()
            self._reset_all()
        self._to_slave.is_open = mode is LinkMode.CUT_TO_MASTER
        self._to_master.is_open = mode is LinkMode.CUT_TO_SLAVE
        self._set(mode, "")

    def reset(self) -> None:
        """Reset the connections that there are."""
        self._reset_all()
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Throttle the master's bytes."""
        self._to_slave.bytes_per_s = bytes_per_s
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Hand bytes over in small pieces."""
        self._to_slave.chunk_size = self._to_master.chunk_size = chunk_size
        self._set(self.mode, f"pieces of {chunk_size} bytes")

    @property
    def is_untouched(self) -> bool:
        """Whether everything passes at full speed, in whole pieces."""
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
        """Take a free port; ``address`` says which."""
        for port in _PORTS:
            with contextlib.suppress(OSError):
                self._open_listener(("127.0.0.1", port))
                return
        raise OSError(errno.EADDRINUSE, "no free port for a proxy")

    def close(self) -> None:
        """Give the port back; for who called ``listen`` and never ``run``."""
        self._close_listener()

    def _open_listener(self, address: tuple[str, int]) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            # Only now: a bind with it would share the port of another proxy that refuses just now,
            # and neither could listen again; without it our own old connections are in the way.
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
                # Under a cut nothing reaches the master, not even that somebody connected.
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
                pass  # the other side is gone: so is this connection
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
                # Writable, and nobody else writes: this send does not wait, so no cut can come in
                # between.
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
    """Have close() send RST (SO_LINGER with a time of 0)."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
