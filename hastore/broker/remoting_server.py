"""The client port: RocketMQ's remoting protocol 4.x in front of a master or a slave.

One task accepts at each listener; each connection is served by its own two tasks
(``RemotingConnection``).  A peer that breaks the protocol, falls silent, or comes when
``connections_max`` are there already is closed, remembered in ``statistics`` and logged; nobody
else notices.

Topics, groups and offsets are read before the first request and written when they change
(``BrokerData``); without ``data_dir`` they live in memory only.

Invariant: at most ``connections_max`` connections, each bounded as RemotingConnection says.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.broker_data import BrokerData
from hastore.broker.remoting_connection import BufferedTotal, RemotingConnection
from hastore.broker.request_processors import RequestProcessors
from hastore.broker.request_target import RequestTarget
from hastore.broker.send_message_processor import SendMessageProcessor
from hastore.concurrency.tcp import accept, describe, tune
from hastore.errors import ProtocolError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.config import RemotingConfig
    from hastore.env.interface import Env
    from hastore.store.consume_queue import ConsumeQueue

__all__ = ["RemotingServer", "RemotingStatistics", "RequestTarget"]

_RECENT_REFUSALS_MAX: Final = 16

_log = logger("remoting")


@attrs.frozen(kw_only=True)
class RemotingStatistics:
    """A server at one instant; ``refused`` are the last peers that were closed, and why."""

    connections: int
    in_flight: int
    held_pulls: int
    buffered_size: int
    accepted_total: int
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
    ) -> None:
        self.config = config
        self.listeners = listeners
        self.data = BrokerData.make(env, config, data_dir)
        self._env = env
        self._target = target
        self._sends = SendMessageProcessor(target, self.data.topics)
        self._processors = RequestProcessors(env, target, config, self.data)
        self._connections: dict[RemotingConnection, None] = {}
        self._buffered_total = BufferedTotal(config.buffered_size_max)
        self._accepted_total = 0
        self._refused_total = 0
        self._refused: deque[tuple[str, str]] = deque(maxlen=_RECENT_REFUSALS_MAX)
        self._accept_scope = trio.CancelScope()
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, or until ``shut_down`` has let the last connection end.

        ``task_status``: the tables are read.  What is to be kept is written before it returns.
        """
        with self._scope:
            await self._env.offload.run(self.data.load)
            self.data.adopt(self._target.message_store.consume_queues)
            task_status.started()
            try:
                async with trio.open_nursery() as services:
                    services.start_soon(self.data.run)
                    services.start_soon(self._processors.consumers.run)
                    services.start_soon(self._processors.pulls.holds.run)
                    await self._serve_all()
                    services.cancel_scope.cancel()
            finally:
                await self.data.persist_all()

    async def _serve_all(self) -> None:
        async with trio.open_nursery() as nursery:
            with self._accept_scope:
                async with trio.open_nursery() as accepting:
                    for listener in self.listeners:
                        accepting.start_soon(self._accept_connections, listener, nursery)

    def on_dispatched(self, queues: Sequence[ConsumeQueue]) -> None:
        """Know the queues that grew, and wake the pulls that wait for them."""
        self.data.adopt(queues)
        self._processors.pulls.on_dispatched(queues)

    def shut_down(self, grace_s: float) -> None:
        """Take no more requests, answer those in flight, let ``run`` end within ``grace_s``."""
        self._scope.deadline = trio.current_time() + grace_s
        self._accept_scope.cancel()
        for connection in self._connections:
            connection.stop_reading()

    def statistics(self) -> RemotingStatistics:
        """Take a snapshot."""
        return RemotingStatistics(
            connections=len(self._connections),
            in_flight=sum(connection.in_flight for connection in self._connections),
            held_pulls=len(self._processors.pulls.holds),
            buffered_size=self._buffered_total.size,
            accepted_total=self._accepted_total,
            refused_total=self._refused_total,
            refused=tuple(self._refused),
        )

    async def _accept_connections(
        self, listener: trio.socket.SocketType, nursery: trio.Nursery
    ) -> None:
        while True:
            sock, peer = await accept(listener)
            if len(self._connections) >= self.config.connections_max:
                sock.close()
                self._refuse(peer, f"{self.config.connections_max} clients are connected already")
                continue
            tune(sock)
            self._accepted_total += 1
            connection = RemotingConnection(
                sock,
                peer,
                self.config,
                self._sends,
                self._processors,
                self._buffered_total,
                self._env.send_file,
            )
            self._connections[connection] = None
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: RemotingConnection) -> None:
        try:
            failure = await connection.run()
        finally:
            del self._connections[connection]
        if isinstance(failure, ProtocolError):
            self._refuse(connection.peer, str(failure))
        else:
            _log.debug(
                "client_left",
                peer=describe(connection.peer),
                requests=connection.requests,
                reason=None if failure is None else str(failure),
            )

    def _refuse(self, peer: tuple[str, int], reason: str) -> None:
        self._refused_total += 1
        self._refused.append((describe(peer), reason))
        _log.warning("client_refused", peer=describe(peer), reason=reason)
