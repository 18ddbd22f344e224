"""Accepts slaves on the HA port, within a limit.

A connection above ``ha_connections_max`` is closed at once: idle strangers cost a bounded number of
sockets and never the place of the slaves that are served already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.tcp import accept, describe, tune
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.ha.ha_service import HAService

_log = logger("ha")


@final
@attrs.define(eq=False)
class AcceptSocketService:
    """The listening half of the HAService."""

    ha_service: HAService
    listener: trio.socket.SocketType

    async def run(self) -> None:
        """Accept until cancelled; the connections end with this service."""
        config = self.ha_service.config
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock, peer = await accept(self.listener)
                    if len(self.ha_service.connections) >= config.ha_connections_max:
                        _log.warning("ha_connection_refused", peer=describe(peer), reason="limit")
                        sock.close()
                        continue
                    tune(sock)
                    nursery.start_soon(self.ha_service.serve, sock, peer)
        finally:
            self.listener.close()
