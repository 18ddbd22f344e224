"""The client port: RocketMQ's remoting protocol 4.x in front of a master or a slave.

One task accepts at each listener; each connection is served by two tasks of its own
(``RemotingConnection``).  A peer that breaks the protocol, falls silent, or exceeds
``connections_max`` or ``connections_per_address_max`` is closed, recorded in ``statistics``, and
logged once a minute for each kind and peer; other clients do not notice.  A client that has sent no
request yet, or none that an access key proves where one is needed, is evicted for a newcomer, so
that silent peers cannot keep clients out.  Where all are clients, the reserve of ``port_limits`` is
left: for requests that an admin's key signs, or, without access keys, for this machine's own.

Topics, groups and offsets are read before the first request and written when they change
(``BrokerData``); without ``data_dir`` they live in memory only.  A slave passes its own ``data``,
which it fills from its master even without a client port.  With ``access`` each request needs an
access key (``hastore.broker.access``), with ``tls`` a connection may or must be encrypted.

Invariant: at most ``connections_max`` connections, and the reserved ones; each is within the limits
of RemotingConnection, and all are within ``buffered_size_max`` and ``output_size_total_max``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.access.access_guard import AccessGuard
from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.port.buffered_total import BufferedTotal
from hastore.broker.port.output_total import OutputTotal
from hastore.broker.port.port_tls import PortTls
from hastore.broker.port.remoting_connection import RemotingConnection
from hastore.broker.port.request_processors import RequestProcessors
from hastore.concurrency.peers import PeerCount, PeerLog
from hastore.concurrency.port_limits import (
    RESERVED_MAX,
    Occupant,
    PortLimits,
    evict_unproven,
)
from hastore.concurrency.tcp import accept, describe, tune
from hastore.errors import FrameTooLargeError, LimitReachedError, ProtocolError, TlsError
from hastore.quantities import is_loopback
from hastore.status import BrokerRole
from hastore.tls.tls_fault import TlsFault
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.request_target import RequestTarget
    from hastore.concurrency.lease import Lease
    from hastore.concurrency.store_health import StoreHealth
    from hastore.config import RemotingConfig
    from hastore.env.interface import Env
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.tls.tls_contexts import TlsContexts

_RECENT_REFUSALS_MAX: Final = 16
_IDLE_LEAST_S: Final = 1.0  # of a client that may be shed
_SHED_MAX: Final = 16  # clients at once

_log = logger("remoting")


@attrs.frozen(kw_only=True)
class RemotingStatistics:
    """A snapshot of a server; ``refused``: the last peers that were closed, and why."""

    connections: int
    in_flight: int
    buffered_size: int
    refused_total: int
    refused: tuple[tuple[str, str], ...]


@final
class RemotingServer:
    """Serves clients on ``listeners`` (which its owner opens and closes) for ``target``."""

    def __init__(
        self,
        env: Env,
        config: RemotingConfig,
        target: RequestTarget,
        listeners: Sequence[trio.socket.SocketType],
        *,
        data_dir: str | None = None,
        data: BrokerData | None = None,
        lease: Lease | None = None,
        access: NodeAccess | None = None,
        tls: TlsContexts | None = None,
        health: StoreHealth | None = None,
    ) -> None:
        self.config = config
        self.listeners = listeners
        self._owns_data = data is None
        self.data = data or BrokerData.make(env, config, data_dir, health)
        self._env = env
        self._target = target
        self._lease = lease
        self._access = access
        self._tls = PortTls.of(tls, env)
        self._guard = None if access is None else AccessGuard(access, target)
        self._processors = RequestProcessors(env, target, config, self.data, self._guard)
        self._connections: dict[RemotingConnection, None] = {}
        # Contains all that have sent no request yet; the oldest first.
        self._unidentified: dict[RemotingConnection, None] = {}
        # Above the limits, and not counted by them; the oldest first.
        self._reserved: dict[RemotingConnection, None] = {}
        self._peers = PeerCount()
        self._limits = PortLimits(config.connections_max, config.connections_per_address_max)
        self._refusal_log = PeerLog(_log, "client_refused")
        self._buffered_total = BufferedTotal(config.buffered_size_max, self._connections)
        self._output_total = OutputTotal(config.output_size_total_max, self._connections)
        self._refused_total = 0
        self._refused: deque[tuple[str, str]] = deque(maxlen=_RECENT_REFUSALS_MAX)
        self._accept_scope = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, or until the last connection has ended after ``shut_down``.

        ``task_status`` reports that the tables are read.  They are written before it returns.
        Somebody else does both if the server was given ``data``.
        """
        try:
            with self._scope:
                if self._owns_data:
                    await self._load()
                if self._target.role is not BrokerRole.SLAVE:
                    self.data.topics.make_reply_topic(self._target.cluster)
                self._processors.stats.begin(self._target.message_store.consume_queues)
                task_status.started()
                try:
                    async with trio.open_nursery() as services:
                        if self._owns_data:
                            services.start_soon(self.data.run)
                        if self._access is not None:
                            services.start_soon(self._access.run)
                        services.start_soon(self._processors.admin.run)
                        services.start_soon(self._processors.consumers.run)
                        services.start_soon(self._processors.client_requests.run)
                        services.start_soon(self._processors.pulls.holds.run)
                        await self._serve_all()
                        services.cancel_scope.cancel()
                finally:
                    if self._owns_data:
                        await self.data.persist_all()
        finally:
            self._ended.set()

    async def _load(self) -> None:
        await self._env.offload.run(self.data.load)
        store = self._target.message_store
        self.data.adopt(store.consume_queues)
        if self._target.role is not BrokerRole.SLAVE and self.data.offsets.offsets:
            self.data.limit_offsets(store.commit_log.next_queue_offset)

    async def _serve_all(self) -> None:
        async with trio.open_nursery() as nursery:
            with self._accept_scope:
                async with trio.open_nursery() as accepting:
                    for listener in self.listeners:
                        accepting.start_soon(self._accept_connections, listener, nursery)

    def on_dispatched(self, queues: Sequence[ConsumeQueue]) -> None:
        """Add the topics of queues that grew, and wake the requests that wait for messages."""
        if self._owns_data:
            self.data.adopt(queues)
        self._processors.stats.dispatched(queues)
        self._processors.pulls.on_dispatched(queues)
        self._processors.by_offset.on_dispatched()

    def is_dispatch_awaited(self) -> bool:
        """Whether a client waits for messages."""
        processors = self._processors
        return not processors.pulls.holds.is_empty or processors.by_offset.is_awaited

    def shut_down(self, grace_s: float) -> None:
        """Take no more requests, answer those in flight; ``run`` ends within ``grace_s``."""
        self._scope.deadline = trio.current_time() + grace_s
        self._accept_scope.cancel()
        for connection in self._connections:
            connection.stop_reading()

    async def ended(self) -> None:
        """Wait until ``run`` has ended."""
        await self._ended.wait()

    def statistics(self) -> RemotingStatistics:
        """Return a snapshot."""
        return RemotingStatistics(
            connections=len(self._connections),
            in_flight=sum(connection.in_flight for connection in self._connections),
            buffered_size=self._buffered_total.size,
            refused_total=self._refused_total,
            refused=tuple(self._refused),
        )

    async def _accept_connections(
        self, listener: trio.socket.SocketType, nursery: trio.Nursery
    ) -> None:
        while True:
            sock, peer = await accept(listener)
            full = self._make_room(peer)
            if full is not None and not self._make_reserved_room(peer):
                sock.close()
                self._refuse(peer, full)
                continue
            tune(sock)
            connection = RemotingConnection(
                sock,
                peer,
                self.config,
                self._processors.sends,
                self._processors,
                self._buffered_total,
                self._output_total,
                self._env.send_file,
                self._env.send_while,
                self._lease,
                self._guard,
                self._tls,
                above=full,
            )
            self._connections[connection] = None
            if connection.is_reserved:
                self._reserved[connection] = None
            else:
                self._unidentified[connection] = None
                self._peers.add(peer)
            nursery.start_soon(self._serve, connection)

    def _make_room(self, peer: tuple[str, int]) -> LimitReachedError | None:
        """Evict a client if there are too many; return the exceeded limit if none can be."""
        count = len(self._connections) - len(self._reserved)
        of_address = self._peers.of(peer)
        crowd = self._limits.crowd(peer[0], count=count, of_address=of_address)
        if crowd is None:
            return None
        limit, whose = "connections_max", "clients"
        if crowd.key is not None:
            limit, whose = "connections_per_address_max", "clients of its address"
        reason = f"{crowd.count} {whose} are connected already"
        evicted = crowd.evict(self._without_request())
        if evicted is None:
            return LimitReachedError(reason, limit=limit)
        self._left(evicted)
        evicted.evict(f"evicted without a request: {reason}", limit=limit)
        return None

    def _make_reserved_room(self, peer: tuple[str, int]) -> bool:
        """Evict a reserved connection without a proof, if need be; return whether one is free."""
        if self._guard is None and not is_loopback(peer[0]):
            return False
        if len(self._reserved) < RESERVED_MAX:
            return True
        evicted = evict_unproven(
            Occupant(connection, connection.peer[0])
            for connection in self._reserved
            if not connection.is_identified
        )
        if evicted is None:
            return False
        self._left(evicted)
        reason = f"evicted without a proof: all {RESERVED_MAX} reserved connections are taken"
        evicted.evict(reason, limit="connections_max")
        return True

    def shed_idle(self) -> bool:
        """Close the clients that have been idle longest; return whether there were any.

        For a process that has no descriptor left, and needs some for its log.
        """
        latest = trio.current_time() - _IDLE_LEAST_S
        idle = [
            (since, number, connection)
            for number, connection in enumerate(self._connections)
            if (since := connection.idle_since) is not None and since <= latest
        ]
        for _, _, connection in sorted(idle, key=lambda each: each[:2])[:_SHED_MAX]:
            self._left(connection)
            connection.evict("evicted while idle: no descriptor is left", limit="open_files")
        return bool(idle)

    def _without_request(self) -> Iterator[Occupant[RemotingConnection]]:
        for connection in list(self._unidentified):
            if connection.is_identified:
                del self._unidentified[connection]
            else:
                yield Occupant(connection, connection.peer[0])

    async def _serve(self, connection: RemotingConnection) -> None:
        try:
            failure = await connection.run()
        finally:
            self._left(connection)
        if isinstance(failure, ProtocolError) and not _has_just_left(connection, failure):
            self._refuse(connection.peer, failure)
        else:
            _log.debug(
                "client_left",
                peer=describe(connection.peer),
                requests=connection.requests,
                reason=None if failure is None else str(failure),
            )

    def _left(self, connection: RemotingConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            if connection.is_reserved:
                del self._reserved[connection]
            else:
                self._unidentified.pop(connection, None)
                self._peers.remove(connection.peer)

    def _refuse(self, peer: tuple[str, int], error: ProtocolError) -> None:
        self._refused_total += 1
        self._refused.append((describe(peer), str(error)))
        self._refusal_log.log_line(peer, kind=_kind(error), reason=str(error))


def _has_just_left(connection: RemotingConnection, failure: ProtocolError) -> bool:
    """Whether a client has closed its connection without TLS's end, as many do."""
    is_cut = isinstance(failure, TlsError) and failure.fault == TlsFault.CUT
    return is_cut and connection.requests > 0


def _kind(error: ProtocolError) -> str:
    """Return the kind of refusal for the log."""
    if isinstance(error, TlsError):
        return str(error.fault)
    if isinstance(error, LimitReachedError):
        return error.limit
    return "frame_size_max" if isinstance(error, FrameTooLargeError) else "protocol"
