"""Which groups of a cluster have a topic: asked of a node, for each topic that is used.

::

    a topic is used for the first time ─┐
    a link is up                        ├─▶ ask for its route (105) ──▶ on_groups
    INTERVAL_S has passed ──────────────┘

Only nodes with a coordinator name other groups than their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.route import groups_in
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import ProtocolError, TlsError, UnreachableError
from hastore.wire.remoting_codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.client.master_search import Address
    from hastore.client.remoting_client import Asker

INTERVAL_S: Final = 30.0  # as RocketMQ's clients ask their name server
TOPICS_MAX: Final = 1_024  # that are asked for; others stay with the client's own group


async def ask_groups(client: Asker, topic: str) -> dict[str, tuple[Address, ...]] | None:
    """Return the addresses of the groups that have a topic, by name; None: no route says it.

    Raises UnreachableError, TlsError.
    """
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return groups_in(answer.body)
    except ProtocolError:
        return None


@final
@attrs.define(eq=False)
class TopicRoutes:
    """The topics that a producer uses; ``run`` asks beside each link to its own group."""

    interval_s: float = INTERVAL_S
    # Called with the nodes of the groups that a topic has, by name.
    on_groups: Callable[[Mapping[str, tuple[Address, ...]]], None] = lambda _groups: None
    # By topic: the groups that have it; empty: not known yet.
    groups: dict[str, tuple[str, ...]] = attrs.field(factory=dict, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def of(self, topic: str) -> tuple[str, ...]:
        """Return the groups that have a topic, as far as it is known; ask soon, if it is new."""
        known = self.groups.get(topic)
        if known is None:
            known = ()
            if len(self.groups) < TOPICS_MAX:
                self.groups[topic] = known
                self._wake.wakeup()
        return known

    async def run(self, client: Asker) -> None:
        """Ask a node for the routes of all topics, again and again, until it does not answer."""
        asked: set[str] = set()
        try:
            while True:
                for topic in [each for each in self.groups if each not in asked]:
                    asked.add(topic)
                    found = await ask_groups(client, topic)
                    if found is not None:
                        self.groups[topic] = tuple(found)
                        self.on_groups(found)
                if len(asked) == len(self.groups):
                    with trio.move_on_after(self.interval_s) as waited:
                        await self._wake.wait_for_running()
                    if waited.cancelled_caught:
                        asked.clear()
        except (UnreachableError, TlsError):
            return  # its link says so, too
