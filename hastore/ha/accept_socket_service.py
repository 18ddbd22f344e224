"""Accepts slaves on the HA port, within ``ha_connections_max`` and its limit for one address.

A newcomer above a limit takes the place of the oldest connection that has not reported yet, or is
closed at once: slaves report as soon as they are connected (RocketMQ's within 5 s), so unidentified
peers cost a bounded number of sockets and keep no slave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.port_limits import Occupant, PortLimits
from hastore.concurrency.tcp import accept, tune
from hastore.errors import LimitReachedError
from hastore.status import HAConnectionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hastore.concurrency.peers import PeerCount
    from hastore.config import HAConfig
    from hastore.ha.ha_connection import HAConnection


@final
@attrs.define(eq=False)
class AcceptSocketService:
    """The listening half of the HAService, which counts ``connections`` and ``peers``."""

    listener: trio.socket.SocketType
    config: HAConfig
    connections: Mapping[int, HAConnection]
    peers: PeerCount
    serve: Callable[[trio.socket.SocketType, tuple[str, int]], Awaitable[None]]
    on_refused: Callable[[tuple[str, int], LimitReachedError], None]
    _limits: PortLimits = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Read the limits."""
        config = self.config
        self._limits = PortLimits(config.ha_connections_max, config.ha_connections_per_address_max)

    async def run(self) -> None:
        """Accept until cancelled; the connections end with this service."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock, peer = await accept(self.listener)
                    if not self._make_room(peer):
                        sock.close()
                        continue
                    tune(sock)
                    nursery.start_soon(self.serve, sock, peer)
        finally:
            self.listener.close()

    def _make_room(self, peer: tuple[str, int]) -> bool:
        """Whether one more connection is allowed, if need be in the place of another."""
        count, of_address = len(self.connections), self.peers.of(peer)
        crowd = self._limits.crowd(peer[0], count=count, of_address=of_address)
        if crowd is None:
            return True
        limit, whose = "ha_connections_max", "connections"
        if crowd.key is not None:
            limit, whose = "ha_connections_per_address_max", "connections of this address"
        evicted = crowd.evict(
            Occupant(connection, connection.address[0])
            for connection in self.connections.values()
            if connection.progress.state is HAConnectionState.CONNECTED
            and connection.progress.ended_because is None
        )
        if evicted is None:
            reason = f"{crowd.count} {whose} are there already"
            self.on_refused(peer, LimitReachedError(reason, limit=limit))
            return False
        reason = f"evicted: {crowd.count} {whose}, and no report"
        self.on_refused(evicted.address, LimitReachedError(reason, limit=limit))
        evicted.finish(reason)
        return True
