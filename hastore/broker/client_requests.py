"""Requests that a node sends to its clients, and what is done with their answers.

::

    ask ─► client's connection ─► answer, or none in ANSWER_TIMEOUT_S, or the connection ends
                                    └─► done(answer or None), once

The number (opaque) of a request is this node's own; an answer counts only on the connection that
the request went to.  The class is RocketMQ's ``Broker2Client``.

Invariants: ``done`` is called exactly once for each request, in the same step as the cause; at most
WAITING_MAX requests wait.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.broker.reply import ClientConnection
    from hastore.wire.remoting_command import RemotingCommand

ANSWER_TIMEOUT_S: Final = 10.0  # RocketMQ's
WAITING_MAX: Final = 65_536
_OPAQUE_MASK: Final = 0x7FFF_FFFF

# Of the client's answer; None: there is none.
Done: TypeAlias = "Callable[[RemotingCommand | None], None]"


@final
@attrs.define(eq=False)
class ClientRequests:
    """The requests that wait; ``run`` ends those that have waited too long."""

    # The oldest first: the deadline (trio time) and what to call.
    _waiting: dict[tuple[ClientConnection, int], tuple[float, Done]] = attrs.field(
        factory=dict, init=False
    )
    _of_client: dict[ClientConnection, set[int]] = attrs.field(factory=dict, init=False)
    _opaques: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def ask(self, client: ClientConnection, command: RemotingCommand, done: Done) -> None:
        """Send a request; call ``done`` when it is decided, at once if it cannot be sent."""
        command.opaque = opaque = next(self._opaques) & _OPAQUE_MASK
        if len(self._waiting) >= WAITING_MAX or not client.notify(command):
            done(None)
            return
        self._waiting[client, opaque] = trio.current_time() + ANSWER_TIMEOUT_S, done
        self._of_client.setdefault(client, set()).add(opaque)
        if self._wake.is_waiting:
            self._wake.wakeup()

    def answered(self, client: ClientConnection, answer: RemotingCommand) -> None:
        """Pass an answer on; ignore one to a request that does not wait."""
        self._end(client, answer.opaque, None if answer.size_fault is not None else answer)

    def client_gone(self, client: ClientConnection) -> None:
        """End the requests to a connection that has ended."""
        for opaque in sorted(self._of_client.get(client, ())):
            self._end(client, opaque, None)

    def _end(self, client: ClientConnection, opaque: int, answer: RemotingCommand | None) -> None:
        found = self._waiting.pop((client, opaque), None)
        if found is None:
            return
        opaques = self._of_client[client]
        opaques.remove(opaque)
        if not opaques:
            del self._of_client[client]
        found[1](answer)

    async def run(self) -> None:
        """End requests without an answer in time, until cancelled."""
        while True:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                await self._wake.wait_for_running()
                continue
            deadline = self._waiting[oldest][0]
            if deadline <= trio.current_time():
                self._end(*oldest, None)
            else:
                await trio.sleep_until(deadline)
