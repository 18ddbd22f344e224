"""Sockets of the simulated network, which trio's socket factory returns to the product."""

from __future__ import annotations

import errno
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs
import trio

from hastore.sim.network import Connection, Pipe, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hastore.env.interface import DiskFile
    from hastore.sim.network import Network

HOST: ContextVar[str] = ContextVar("hastore_sim_host")  # whose task this is
_SEND_FILE_SIZE: Final = 64 * 1024


@final
class SimSocket(trio.socket.SocketType):
    """One end of a connection, a listener, or neither yet."""

    def __init__(self, network: Network, host: str) -> None:
        self.network = network
        self.host = host
        self.is_dead = False  # its process has ended: nothing that it does has an effect
        self._local: tuple[str, int] | None = None
        self._remote: tuple[str, int] | None = None
        self._inbound: Pipe | None = None
        self._outbound: Pipe | None = None
        self._number = 0
        self._is_closed = False
        self._is_listening = False
        self._is_receiving = False
        self._backlog: list[SimSocket] = []
        self._knocked = trio.Event()

    def __repr__(self) -> str:
        return f"<SimSocket {self._local} - {self._remote}>"

    @property
    def is_open(self) -> bool:
        """Whether its process runs and has not closed it."""
        return not self.is_dead and not self._is_closed

    # -- names and options -------------------------------------------------------------------------

    def getsockname(self) -> Any:
        """Return its address."""
        return self._local or (self.host, 0)

    def getpeername(self) -> Any:
        """Return its peer's address."""
        if self._remote is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._remote

    def setsockopt(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: socket options are not simulated."""

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    # -- listening ---------------------------------------------------------------------------------

    async def bind(self, address: Any) -> None:
        """Take an address of this host."""
        await trio.lowlevel.checkpoint()
        port = address[1] or self.network.next_port()
        if (self.host, port) in self.network.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._local = (self.host, port)

    def listen(self, _backlog: int = 128) -> None:
        """Let others connect."""
        assert self._local is not None, "bind first"
        if not self.is_dead:
            self.network.listeners[self._local] = self
            self._is_listening = True

    async def accept(self) -> tuple[Any, Any]:
        """Wait for the next connection."""
        await trio.lowlevel.checkpoint()
        while not self._backlog:
            if self._is_closed:
                raise trio.ClosedResourceError
            self._knocked = trio.Event()
            await self._knocked.wait()
        sock = self._backlog.pop(0)
        return sock, sock.getpeername()

    def knock(self, sock: SimSocket) -> None:
        """Let a connection wait for ``accept``."""
        self._backlog.append(sock)
        self._knocked.set()

    # -- connecting --------------------------------------------------------------------------------

    async def connect(self, address: Any) -> None:
        """Connect to a listener; wait as long as its host cannot be reached."""
        target = (str(address[0]), int(address[1]))
        there, back = Way(self.host, target[0]), Way(target[0], self.host)
        await self.network.reach(there)
        listener = self.network.listeners.get(target)
        if listener is None or there in self.network.refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        assert isinstance(listener, SimSocket)
        other = SimSocket(self.network, target[0])
        forth = Pipe(self.network, there)
        backward = Pipe(self.network, back)
        self._local, self._remote = (self.host, self.network.next_port()), target
        other._local, other._remote = target, self._local
        self._outbound = other._inbound = forth
        self._inbound = other._outbound = backward
        number = self._number = other._number = self.network.next_connection()
        self.network.connections[number] = Connection(self, other, forth, backward, target[1])
        listener.knock(other)

    # -- receiving ---------------------------------------------------------------------------------

    async def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive some of what has arrived; b"" at the end."""
        assert not flags & trio.socket.MSG_PEEK, "it has no client port with TLS"
        if self._is_receiving:
            raise trio.BusyResourceError("another task is receiving from this socket")
        self._is_receiving = True
        try:
            return await self._receive(size)
        finally:
            self._is_receiving = False

    async def _receive(self, size: int) -> bytes:
        has_yielded = False
        while True:
            pipe = self._open(self._inbound)
            if pipe.next_arrival() > trio.current_time():
                await pipe.arrival()
            elif not has_yielded:
                await trio.lowlevel.checkpoint()
            else:
                size_max = min(size, self.network.piece_max.get(pipe.way, size))
                taken = pipe.pull(self._some(min(size_max, pipe.size)))
                assert taken is not None, "something has arrived"
                return taken
            has_yielded = True

    async def recv_into(self, buffer: Any, nbytes: int = 0, _flags: int = 0) -> int:
        """Receive into a buffer."""
        taken = await self.recv(nbytes or len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)

    def _some(self, size: int) -> int:
        """Return how many of ``size`` bytes a call handles: all or a part, as the seed decides."""
        if self.network.one_byte:
            return 1
        choices = self.network.choices
        return size if choices.random() < 0.7 else choices.randint(1, max(size, 1))  # noqa: PLR2004

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, data: Any, _flags: int = 0) -> int:
        """Send what there is room for, at least a byte."""
        sent = await self.send_while(data, lambda: True)
        assert sent is not None, "it may leave at any time"
        return sent

    async def send_while(self, data: Any, may_leave: Callable[[], bool]) -> int | None:
        """Send what there is room for, at least a byte; None if it may not leave any more."""
        await trio.lowlevel.checkpoint()
        while may_leave():
            # No view of a map outlives its call, not even in the traceback of a cancelled one.
            with memoryview(data) as whole, whole.cast("B") as view:
                size = len(view)
                sent = self.send_some(view)
            if sent or not size:
                return sent
            await self._open(self._outbound).room_changed()
        return None

    async def sendmsg(self, buffers: Iterable[Any], *_args: Any) -> int:
        """Send parts as one."""
        return await self.send(b"".join(bytes(part) for part in buffers))

    def send_some(self, view: memoryview) -> int:
        """Send what there is room for; return its size.  Raises OSError for a broken link."""
        if self.is_dead:
            return len(view)
        pipe = self._open(self._outbound)
        self._open(self._inbound).check_reset()
        if self.network.answers_rst(pipe):
            self._open(self._inbound).reset()  # arrives a little later
            return len(view)
        size = min(pipe.room, len(view))
        if size:
            size = min(size, self._some(size))
            pipe.push(bytes(view[:size]))
        return size

    # -- the end -----------------------------------------------------------------------------------

    def shutdown(self, _how: int) -> None:
        """Send FIN."""
        if not self.is_dead and self._outbound is not None:
            self._outbound.end()

    def __enter__(self) -> Self:
        """Close it at the end of the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close with FIN, or RST if bytes are unread; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._knocked.set()
        for waiting in self._backlog:
            waiting.close()
        local = self._local
        if self._is_listening and local is not None and not self.is_dead:
            self.network.listeners.pop(local, None)
        if self._inbound is None or self._outbound is None or self.is_dead:
            return
        if self._inbound.size:
            self._outbound.reset()
        else:
            self._outbound.end()
        self._inbound.is_deaf = True
        self._inbound.notify()
        self._inbound.close()
        self._outbound.notify()  # a sender that waits for room finds it closed
        connection = self.network.connections.get(self._number)
        if connection is not None and not (connection.client.is_open or connection.server.is_open):
            del self.network.connections[self._number]

    def _open(self, pipe: Pipe | None) -> Pipe:
        if self._is_closed:
            raise trio.ClosedResourceError
        if pipe is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return pipe


@final
@attrs.frozen
class SimSocketFactory(trio.abc.SocketFactory):
    """Makes sockets of the host of the calling task."""

    network: Network

    def socket(self, family: Any = None, type: Any = None, proto: Any = None) -> SimSocket:  # noqa: A002, ARG002
        """Make a socket of the current host."""
        return SimSocket(self.network, HOST.get())


@final
class SimResolver(trio.abc.HostnameResolver):
    """Resolves addresses to themselves; there are no names."""

    async def getaddrinfo(self, host: Any, port: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the address that was asked for."""
        await trio.lowlevel.checkpoint()
        text = host.decode() if isinstance(host, bytes) else str(host)
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (text, int(port)))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:  # noqa: ARG002 - one form
        """Return the address itself."""
        await trio.lowlevel.checkpoint()
        return sockaddr[0], str(sockaddr[1])


async def sim_send_file(
    sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
) -> None:
    """Send a part of a file."""
    end = position + size
    while position < end:
        left = memoryview(file.pread(min(end - position, _SEND_FILE_SIZE), position))
        while left:
            sent = await sock.send(left)
            left = left[sent:]
            position += sent


def sim_send_now(sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
    """Send what there is room for; return its size, 0 for a broken link."""
    assert isinstance(sock, SimSocket)
    try:
        return sock.send_some(memoryview(b"".join(bytes(part) for part in buffers)))
    except (OSError, trio.ClosedResourceError):
        return 0


async def sim_send_while(
    sock: trio.socket.SocketType, data: memoryview, may_leave: Callable[[], bool]
) -> int | None:
    """Send what there is room for, once there is some, while it may leave."""
    assert isinstance(sock, SimSocket)
    return await sock.send_while(data, may_leave)


async def sim_receive(sock: trio.socket.SocketType, buffer: memoryview) -> int:
    """Receive some of what has arrived, once something has."""
    return await sock.recv_into(buffer)


@final
class SimSecondReceiver:
    """Receives from the socket itself: a second receiver at the same time is an error here.

    The real one, a descriptor of its own, would be woken in vain.
    """

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self._scope: trio.CancelScope | None = None
        self._is_closed = False

    async def receive(self, buffer: memoryview) -> int | None:
        """Receive some of what has arrived, once something has."""
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return None
        with trio.CancelScope() as self._scope:
            try:
                return await self._sock.recv_into(buffer)
            except trio.ClosedResourceError:
                return None
        return None

    def interrupt(self) -> None:
        """Wake the task that receives."""
        if self._scope is not None:
            self._scope.cancel()

    def close(self) -> None:
        """Wake the task that receives, for good."""
        self._is_closed = True
        self.interrupt()


def sim_poll(sock: trio.socket.SocketType, buffer: memoryview, until: float) -> int | None:  # noqa: ARG001
    """Receive nothing: virtual time does not pass while a task runs."""
    return None
