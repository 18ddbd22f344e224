"""Membership of consumer groups: heartbeats name the groups that a connection reads for.

::

    join   heartbeat: all groups of this connection, and what each reads  ─►  may be refused
    run    the same heartbeat, every 30 s                                 ─►
    leave  one request for each group                                     ─►  others may reset now

``hastore group`` lists a member, nobody resets its group's offsets while it is there, and stock
clients of the group leave queues to it.  When its connection closes, the node removes it, too.

Invariant: a heartbeat names every joined group; the node removes a member from the others.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.concurrency.tcp import describe
from hastore.errors import HastoreError
from hastore.wire.heartbeat_data import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    Subscription,
)
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from hastore.client.remoting_client import Asker
    from hastore.env.interface import Env

HEARTBEAT_INTERVAL_S: Final = 30.0  # a node removes members that are silent for 120 s


@final
class GroupMembership:
    """The groups that one connection reads for."""

    def __init__(self, client: Asker, env: Env, interval_s: float = HEARTBEAT_INTERVAL_S) -> None:
        self._client = client
        self._client_id = f"{describe(client.local_address)}@{env.process_id}"
        self._version = env.wall_clock.now_ms()  # the newest of a group's subscriptions counts
        self._interval_s = interval_s
        self._joined: dict[str, dict[str, Subscription]] = {}

    async def join(self, group: str, topic: str, tags: str) -> None:
        """Join a group, or add a topic to it; the node knows the member on return.

        Raises RequestFailedError if the node refuses the group, UnreachableError.
        """
        subscriptions = self._joined.setdefault(group, {})
        subscriptions[topic] = Subscription(
            topic=topic, expression=tags or "*", version=self._version
        )
        await self._beat()

    async def run(self) -> None:
        """Send heartbeats until cancelled; errors are left to the requests that read."""
        while self._client.broken_because is None:
            await trio.sleep(self._interval_s)
            if self._joined:
                with contextlib.suppress(HastoreError):
                    await self._beat()

    async def rejoin(self) -> None:
        """Join all groups at the node that the client asks now.

        Raises as ``join`` does.
        """
        if self._joined:
            await self._beat()

    async def leave(self) -> None:
        """Leave all groups.  Raises UnreachableError, RequestFailedError."""
        while self._joined:
            group = next(iter(self._joined))
            del self._joined[group]
            fields = {"clientID": self._client_id, "consumerGroup": group}
            await self._client.invoke(RequestCode.UNREGISTER_CLIENT, fields)

    async def _beat(self) -> None:
        heartbeat = HeartbeatData(
            client_id=self._client_id,
            consumers=tuple(
                ConsumerData(
                    group=group,
                    consume_type=ConsumeType.ACTIVELY,
                    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                    subscriptions=tuple(subscriptions.values()),
                )
                for group, subscriptions in self._joined.items()
            ),
        )
        body = json.dumps(heartbeat.to_dict()).encode()
        await self._client.invoke(RequestCode.HEART_BEAT, body=body)
