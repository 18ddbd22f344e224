"""Classic slaves of a replica group: they read what every member has, and never count.

::

    confirm offset ──notify_confirmed──▶ rounds ──▶ WriteSocketService ──▶ observer
                                                                             │
                    SlaveProgress (expiry, status) ◄── ReadSocketService ◄───┘

The second HA port of a group's master (``[listen] observer``) speaks the classic protocol, without
epochs.  What an observer has is never cut, so a failover leaves it a prefix of the new master's
log: bytes above the confirm offset stay here.  A classic slave that has more than that comes from
elsewhere, and ``ServedSlaves`` knows it by the start of this master's epoch.

Only ``GroupHAService`` makes one; it forwards the confirm offset, and what expires.

Invariants: no byte at or above the confirm offset is sent; no report reaches a put, the
SyncStateSet or ``push2_slave_max_offset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.ha.ha_service import HAService
from hastore.ha.master_framing import ObserverFraming
from hastore.ha.send_rounds import GroupSendRounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.ha.ha_connection import HAConnection
    from hastore.ha.master_framing import MasterFraming
    from hastore.ha.send_rounds import SendRounds


@final
@attrs.define(eq=False)
class ObserverService(HAService):
    """Replicates a group's log to classic observers, up to the confirm offset."""

    confirm_offset: Callable[[], int] = attrs.field(kw_only=True)  # it never falls

    def _make_rounds(self) -> SendRounds:
        return GroupSendRounds(self.commit_log, gathers=True)  # awaits nobody

    def _make_framing(self, _connection_id: int) -> MasterFraming:
        return ObserverFraming(self.confirm_offset)

    def notify_confirmed(self) -> None:
        """Let idle links send, in a round; called when the confirm offset has risen."""
        self.rounds.notify_appended()

    def acknowledge(self, connection: HAConnection, ack_offset: int) -> None:
        """Do nothing: the link's progress says what an observer still needs."""

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve observers until cancelled; the group's service writes ``refused_slaves``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listener)
            nursery.start_soon(self.rounds.run)
