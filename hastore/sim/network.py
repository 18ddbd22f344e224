"""A network in memory: hosts, connections, and what may befall them.

    socket ──push──► Pipe ──(latency, one after the other)──► socket      one Pipe a direction
                      │ held while the way is cut, as TCP sends again when it is mended

Bytes of one pipe keep their order; pipes overtake each other.  When a chunk arrives is computed
when it is sent: latency is the way's, not the size's.  A host that loses its power says nothing:
its peers keep a half-open connection until their bytes reach its next boot, which answers RST.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs
import trio

if TYPE_CHECKING:
    import random

    from hastore.sim.sockets import SimSocket

WINDOW_SIZE: Final = 128 * 1024  # bytes that a pipe holds: sent, and not yet received
_NEVER: Final = math.inf


class Way(NamedTuple):
    """From one host to another."""

    source: str
    target: str


class _Chunk(NamedTuple):
    arrival: float
    data: memoryview


@final
@attrs.define(eq=False)
class Pipe:
    """One direction of a connection."""

    network: Network
    way: Way
    size: int = 0  # sent, not yet received
    is_deaf: bool = False  # the host at its end has lost its power, or the process its socket
    taken_at: float = attrs.field(factory=trio.current_time)  # when something was last received
    end_at: float = _NEVER  # FIN
    reset_at: float = _NEVER
    _is_ended: bool = False
    _is_reset: bool = False
    _chunks: deque[_Chunk] = attrs.field(factory=deque)
    _last: float = 0.0
    _receiving: trio.CancelScope | None = None  # its deadline is the next arrival
    _room_changed: trio.Event | None = None

    # -- the sender --------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return max(WINDOW_SIZE - self.size, 0)

    def push(self, data: bytes) -> None:
        """Send ``data``."""
        arrival = self._arrival()
        if arrival != _NEVER and self.way in self.network.bytes_per_s:
            arrival = self._last = self._last + len(data) / self.network.bytes_per_s[self.way]
        self._chunks.append(_Chunk(arrival, memoryview(data)))
        self.size += len(data)
        self.notify()

    def end(self) -> None:
        """Send FIN behind what was sent."""
        if not self._is_ended:
            self._is_ended = True
            self.end_at = self._arrival()
            self.notify()

    def reset(self) -> None:
        """Send RST: what was sent and not received is lost."""
        if not self._is_reset:
            self._is_reset = True
            self.reset_at = self._arrival()
            self.notify()

    def _arrival(self) -> float:
        if self.network.is_cut(self.way):
            return _NEVER
        self._last = max(self._last, trio.current_time() + self.network.latency(self.way))
        return self._last

    def resend(self) -> None:
        """Give what was held a time of arrival: the way is mended."""
        if not any(arrival == _NEVER for arrival, _ in self._chunks) and not (
            (self._is_ended and self.end_at == _NEVER)
            or (self._is_reset and self.reset_at == _NEVER)
        ):
            return
        self._chunks = deque(
            _Chunk(self._arrival() if arrival == _NEVER else arrival, data)
            for arrival, data in self._chunks
        )
        if self._is_ended and self.end_at == _NEVER:
            self.end_at = self._arrival()
        if self._is_reset and self.reset_at == _NEVER:
            self.reset_at = self._arrival()
        self.notify()

    # -- the receiver ------------------------------------------------------------------------------

    def check_reset(self) -> None:
        """Raise ConnectionResetError where an RST has arrived."""
        if self.reset_at <= trio.current_time():
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def pull(self, size_max: int) -> bytes | None:
        """Take what has arrived; b"" at the end, None where nothing is there yet."""
        self.check_reset()
        now = trio.current_time()
        parts: list[bytes] = []
        left = size_max
        while left and self._chunks and self._chunks[0].arrival <= now:
            arrival, data = self._chunks.popleft()
            if len(data) > left:
                self._chunks.appendleft(_Chunk(arrival, data[left:]))
                data = data[:left]
            parts.append(bytes(data))
            left -= len(data)
        if parts:
            self.taken_at = now
            taken = b"".join(parts)
            self.size -= len(taken)
            self.notify()
            return taken
        if not self._chunks and self.end_at <= now:
            return b""
        return None

    def next_arrival(self) -> float:
        """Return when something will be there, as far as that is known."""
        first = self._chunks[0].arrival if self._chunks else self.end_at
        return min(first, self.reset_at)

    async def arrival(self) -> None:
        """Wait until there is something to receive, or the pipe was closed."""
        with trio.CancelScope(deadline=self.next_arrival()) as scope:
            self._receiving = scope
            try:
                await trio.sleep_forever()
            finally:
                self._receiving = None

    # -- both --------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Take note of a change: what arrives, and when, or the room that there is."""
        if self._receiving is not None:
            self._receiving.deadline = self.next_arrival()  # no pass of the loop for that
        if self._room_changed is not None:
            self._room_changed.set()
            self._room_changed = None

    def close(self) -> None:
        """Let who receives look again."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def room_changed(self) -> None:
        """Wait until there may be room."""
        if self._room_changed is None:
            self._room_changed = trio.Event()
        await self._room_changed.wait()


@final
@attrs.define(eq=False)
class Connection:
    """Two sockets and the pipes between them."""

    client: SimSocket
    server: SimSocket
    forth: Pipe
    back: Pipe

    def pipes(self) -> tuple[Pipe, Pipe]:
        """Return both directions."""
        return self.forth, self.back


@final
@attrs.define(eq=False)
class Network:
    """All hosts and connections; ``choices`` decides what the seed decides."""

    choices: random.Random
    latency_min_s: float = 0.0002
    latency_max_s: float = 0.002
    one_byte: bool = False  # each receive gives a byte
    listeners: dict[tuple[str, int], SimSocket] = attrs.field(factory=dict)
    connections: dict[int, Connection] = attrs.field(factory=dict)
    up: dict[str, int] = attrs.field(factory=dict)  # host: boots so far; absent while it is down
    bytes_per_s: dict[Way, int] = attrs.field(factory=dict)  # absent: as fast as can be
    piece_max: dict[Way, int] = attrs.field(factory=dict)  # bytes that one receive gives at most
    refused: dict[Way, None] = attrs.field(factory=dict)  # connections that are answered RST
    last_reset_at: float = -math.inf  # by a fault
    _cut: dict[Way, float] = attrs.field(factory=dict)  # since when
    _slow: dict[Way, float] = attrs.field(factory=dict)
    _mended: trio.Event = attrs.field(factory=trio.Event)
    _next_port: int = 40_000
    _next_connection: int = 0

    def next_port(self) -> int:
        """Return a port that nobody has."""
        self._next_port += 1
        return self._next_port

    def next_connection(self) -> int:
        """Give a connection its number."""
        self._next_connection += 1
        return self._next_connection

    def latency(self, way: Way) -> float:
        """Return how long the next chunk takes."""
        usual = self.choices.uniform(self.latency_min_s, self.latency_max_s)
        return usual + self._slow.get(way, 0.0)

    # -- faults ------------------------------------------------------------------------------------

    @property
    def is_disturbed(self) -> bool:
        """Whether a fault is at work on any way."""
        return bool(self._cut or self._slow) or self.one_byte

    def is_cut(self, way: Way) -> bool:
        """Whether nothing gets from one host to another."""
        return way in self._cut

    def cut_since(self, source: str, target: str) -> float | None:
        """Return when one direction was cut; None where it is not."""
        return self._cut.get(Way(source, target))

    def cut(self, source: str, target: str) -> None:
        """Cut one direction."""
        self._cut.setdefault(Way(source, target), trio.current_time())

    def mend(self, source: str, target: str) -> None:
        """Mend one direction: what was held is sent again."""
        if self._cut.pop(Way(source, target), None) is not None:
            for connection in self.connections.values():
                for pipe in connection.pipes():
                    if pipe.way == (source, target):
                        pipe.resend()
            self._notify()

    def cut_ways(self) -> list[Way]:
        """Return what is cut."""
        return list(self._cut)

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Let each chunk take longer; 0: as before."""
        if extra_s:
            self._slow[Way(source, target)] = extra_s
        else:
            self._slow.pop(Way(source, target), None)

    def heal(self) -> None:
        """Mend everything."""
        self._slow.clear()
        for way in self.cut_ways():
            self.mend(*way)

    def reset_between(self, one: str, other: str) -> int:
        """Break all connections between two hosts; gives how many."""
        count = 0
        for connection in list(self.connections.values()):
            if {one, other} == set(connection.forth.way):
                for pipe in connection.pipes():
                    pipe.reset_at = trio.current_time()
                    pipe.notify()
                count += 1
        if count:
            self.last_reset_at = trio.current_time()
        return count

    # -- hosts -------------------------------------------------------------------------------------

    def boot(self, host: str, boots: int) -> None:
        """Let a host answer."""
        self.up[host] = boots
        self._notify()

    def shut_down(self, host: str, *, silently: bool) -> None:
        """Take a host's sockets away; ``silently``: it lost its power, and no kernel says so.

        Otherwise the kernel closes them: FIN, or RST where something was unread.
        """
        if silently:
            del self.up[host]
        for address in [address for address in self.listeners if address[0] == host]:
            self.listeners.pop(address).is_dead = True
        for number, connection in list(self.connections.items()):
            forth, back = connection.pipes()
            for own, peers in ((connection.client, back), (connection.server, forth)):
                out = forth if peers is back else back
                if own.host != host:
                    continue
                own.is_dead = True
                peers.is_deaf = True
                if silently:
                    continue
                if peers.size:
                    out.reset()
                else:
                    out.end()
            if connection.client.is_dead and connection.server.is_dead:
                del self.connections[number]

    def answers_rst(self, pipe: Pipe) -> bool:
        """Whether what is sent into a pipe reaches a host that does not know the connection."""
        return pipe.is_deaf and pipe.way.target in self.up and not self.is_cut(pipe.way)

    async def reach(self, way: Way) -> None:
        """Wait until a packet gets from one host to another and back."""
        while (
            way.target not in self.up
            or self.is_cut(way)
            or self.is_cut(Way(way.target, way.source))
        ):
            await self._mended.wait()
        await trio.sleep(self.latency(way) + self.latency(Way(way.target, way.source)))

    def _notify(self) -> None:
        mended, self._mended = self._mended, trio.Event()
        mended.set()

    def open_links(self, client: str, server: str) -> list[Connection]:
        """Give the connections of which a host holds its end open, whatever the other one does."""
        return [
            connection
            for connection in self.connections.values()
            if connection.client.is_open
            and (connection.client.host, connection.server.host) == (client, server)
        ]

    def are_connected(self, client: str, server: str) -> bool:
        """Whether there is a connection that both ends know."""
        return any(
            connection.client.host == client
            and connection.server.host == server
            and connection.client.is_open
            and connection.server.is_open
            for connection in self.connections.values()
        )
