"""Accepts slaves on the HA port, within a limit.

A connection above ``ha_connections_max`` (of one address: ``ha_connections_per_address_max``) takes
the place of the oldest one (of its address) that has not reported yet, or is closed at once.  So
strangers cost a bounded number of sockets, and only those that play slaves the place of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.tcp import accept, tune

if TYPE_CHECKING:
    from hastore.ha.ha_service import HAService


@final
@attrs.define(eq=False)
class AcceptSocketService:
    """The listening half of the HAService."""

    ha_service: HAService
    listener: trio.socket.SocketType

    async def run(self) -> None:
        """Accept until cancelled; the connections end with this service."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock, peer = await accept(self.listener)
                    if not self.ha_service.make_room(peer):
                        sock.close()
                        continue
                    tune(sock)
                    nursery.start_soon(self.ha_service.serve, sock, peer)
        finally:
            self.listener.close()
