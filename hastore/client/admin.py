"""Questions to a node: its HA status, its runtime info, its routes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RemotingClient,
    open_remoting_client,
)
from hastore.errors import ProtocolError
from hastore.wire import liberal_json
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@final
class AdminClient:
    """A connected administrator; made by ``AdminClient.connect``.

    Every question raises UnreachableError where no answer comes, and RequestFailedError where the
    node answers with an error.
    """

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        address: tuple[str, int],
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> AsyncIterator[AdminClient]:
        """Connect to a node for the length of the block; UnreachableError where nobody answers."""
        async with open_remoting_client(
            address, connect_timeout_s=connect_timeout_s, request_timeout_s=request_timeout_s
        ) as client:
            yield cls(client)

    async def ha_status(self) -> dict[str, Any]:
        """Give RocketMQ's HARuntimeInfo (907); under ``hastore`` a hastore node's whole status.

        ``NodeStatus.from_dict(status["hastore"])`` reads the latter.
        """
        response = await self._client.invoke(RequestCode.GET_BROKER_HA_STATUS)
        return liberal_json.loads_object(response.body, "the HA status")

    async def runtime_info(self) -> dict[str, str]:
        """Give RocketMQ's table of runtime values (28), all of them text."""
        response = await self._client.invoke(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = liberal_json.loads_object(response.body, "the runtime info").get("table")
        if not isinstance(table, dict):
            msg = "the runtime info has no table"
            raise ProtocolError(msg)
        return {str(key): str(value) for key, value in table.items()}

    async def route(self, topic: str) -> dict[str, Any]:
        """Give a topic's route (105)."""
        response = await self._client.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return liberal_json.loads_object(response.body, "the route")
