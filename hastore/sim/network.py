"""A network in memory: hosts, connections and their faults.

    socket ──push──► Pipe ──(latency, one after the other)──► socket      one Pipe per direction
                      │ held while the way is cut, as TCP retransmits when it is repaired

Bytes of one pipe keep their order; pipes overtake each other.  The arrival of a chunk is computed
when it is sent: latency depends on the way, not on the size.  A host that loses power sends
nothing: its peers keep a half-open connection until their bytes reach its next boot, which answers
RST.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import attrs
import trio

if TYPE_CHECKING:
    import random

WINDOW_SIZE: Final = 128 * 1024  # bytes that a pipe holds: sent, not yet received
_NEVER: Final = math.inf


class Socket(Protocol):
    """What the network knows of a socket."""

    host: str
    is_dead: bool  # its process has ended: nothing that it does has an effect

    @property
    def is_open(self) -> bool:
        """Whether its process lives, and has not closed it."""


class Way(NamedTuple):
    """The direction from one host to another."""

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
    is_deaf: bool = False  # the host at its end lost power, or the process its socket
    is_lost: bool = False  # nothing that is sent from now on arrives
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
        """Send FIN after what was sent."""
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
        if self.is_lost or self.network.is_cut(self.way):
            return _NEVER
        self._last = max(self._last, trio.current_time() + self.network.latency(self.way))
        return self._last

    def resend(self) -> None:
        """Send again what was held: the way is repaired."""
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
        """Raise ConnectionResetError if an RST has arrived."""
        if self.reset_at <= trio.current_time():
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def pull(self, size_max: int) -> bytes | None:
        """Return up to ``size_max`` bytes that have arrived; b"" at the end, None if none yet."""
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
        """Return the time of the next arrival, infinite if unknown."""
        first = self._chunks[0].arrival if self._chunks else self.end_at
        return min(first, self.reset_at)

    async def arrival(self) -> None:
        """Wait until there is something to receive, or the pipe is closed."""
        with trio.CancelScope(deadline=self.next_arrival()) as scope:
            self._receiving = scope
            try:
                await trio.sleep_forever()
            finally:
                self._receiving = None

    # -- both --------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Notify both ends that the next arrival or the room has changed."""
        if self._receiving is not None:
            self._receiving.deadline = self.next_arrival()  # without a pass of the loop
        if self._room_changed is not None:
            self._room_changed.set()
            self._room_changed = None

    def close(self) -> None:
        """Wake the receiver."""
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

    client: Socket
    server: Socket
    forth: Pipe
    back: Pipe
    port: int  # the listener's

    def pipes(self) -> tuple[Pipe, Pipe]:
        """Return both directions."""
        return self.forth, self.back


@final
@attrs.define(eq=False)
class Network:
    """All hosts and connections; ``choices`` is the seed's generator."""

    choices: random.Random
    latency_min_s: float = 0.0002
    latency_max_s: float = 0.002
    one_byte: bool = False  # each receive returns one byte
    listeners: dict[tuple[str, int], Socket] = attrs.field(factory=dict)
    connections: dict[int, Connection] = attrs.field(factory=dict)
    up: dict[str, int] = attrs.field(factory=dict)  # host: boots so far; absent while it is down
    bytes_per_s: dict[Way, int] = attrs.field(factory=dict)  # absent: unlimited
    piece_max: dict[Way, int] = attrs.field(factory=dict)  # the most bytes that a receive returns
    refused: dict[Way, None] = attrs.field(factory=dict)  # ways on which connects get RST
    last_reset_at: float = -math.inf  # by a fault
    _cut: dict[Way, float] = attrs.field(factory=dict)  # since when
    _slow: dict[Way, float] = attrs.field(factory=dict)  # extra latency in seconds
    _repaired: trio.Event = attrs.field(factory=trio.Event)
    _next_port: int = 40_000
    _next_connection: int = 0

    def next_port(self) -> int:
        """Return an unused port."""
        self._next_port += 1
        return self._next_port

    def next_connection(self) -> int:
        """Return the number of a new connection."""
        self._next_connection += 1
        return self._next_connection

    def latency(self, way: Way) -> float:
        """Return how long the next chunk takes, in seconds."""
        usual = self.choices.uniform(self.latency_min_s, self.latency_max_s)
        return usual + self._slow.get(way, 0.0)

    # -- faults ------------------------------------------------------------------------------------

    @property
    def is_disturbed(self) -> bool:
        """Whether a fault affects any way."""
        return bool(self._cut or self._slow) or self.one_byte

    def is_cut(self, way: Way) -> bool:
        """Whether nothing gets through on a way."""
        return way in self._cut

    def cut_since(self, source: str, target: str) -> float | None:
        """Return since when one direction is cut, None if it is not."""
        return self._cut.get(Way(source, target)) if self._cut else None

    def cut(self, source: str, target: str) -> None:
        """Cut one direction."""
        self._cut.setdefault(Way(source, target), trio.current_time())

    def repair(self, source: str, target: str) -> None:
        """End the cut of one direction: what was held is sent again."""
        if self._cut.pop(Way(source, target), None) is not None:
            for connection in self.connections.values():
                for pipe in connection.pipes():
                    if pipe.way == (source, target):
                        pipe.resend()
            self._notify()

    def cut_ways(self) -> list[Way]:
        """Return the ways that are cut."""
        return list(self._cut)

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Delay each chunk by ``extra_s`` more; 0 ends that."""
        if extra_s:
            self._slow[Way(source, target)] = extra_s
        else:
            self._slow.pop(Way(source, target), None)

    def heal(self) -> None:
        """End all cuts and delays."""
        self._slow.clear()
        for way in self.cut_ways():
            self.repair(*way)

    def reset_between(self, one: str, other: str) -> int:
        """Reset all connections between two hosts; return how many."""
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

    def reset_one_end(self, client: str, server: str, port: int) -> int:
        """Reset the clients' ends of links, unknown to the servers; return how many."""
        links = self.open_links(client, server, port)
        for connection in links:
            connection.forth.is_lost = True
            connection.back.reset_at = trio.current_time()
            connection.back.notify()
        if links:
            self.last_reset_at = trio.current_time()
        return len(links)

    # -- hosts -------------------------------------------------------------------------------------

    def boot(self, host: str, boots: int) -> None:
        """Mark a host as up."""
        self.up[host] = boots
        self._notify()

    def shut_down(self, host: str, *, silently: bool) -> None:
        """End a host's sockets: ``silently`` on a power cut, without notice to its peers.

        Otherwise the kernel closes them: with FIN, or RST if bytes were unread.
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
        """Whether bytes sent now reach a host that does not know the connection."""
        return pipe.is_deaf and pipe.way.target in self.up and not self.is_cut(pipe.way)

    async def reach(self, way: Way) -> None:
        """Wait until a packet has got from one host to another and back."""
        while (
            way.target not in self.up
            or self.is_cut(way)
            or self.is_cut(Way(way.target, way.source))
        ):
            await self._repaired.wait()
        await trio.sleep(self.latency(way) + self.latency(Way(way.target, way.source)))

    def _notify(self) -> None:
        repaired, self._repaired = self._repaired, trio.Event()
        repaired.set()

    def open_links(self, client: str, server: str, port: int) -> list[Connection]:
        """Return the connections whose client end is open, whatever the state of the other."""
        return [
            connection
            for connection in self.connections.values()
            if connection.port == port
            and connection.client.host == client
            and connection.server.host == server
            and connection.client.is_open
        ]

    def are_connected(self, client: str, server: str, port: int) -> bool:
        """Whether there is a connection that is open at both ends."""
        return any(
            connection.client.host == client
            and connection.server.host == server
            and connection.port == port
            and connection.client.is_open
            and connection.server.is_open
            for connection in self.connections.values()
        )
