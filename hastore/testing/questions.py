"""Requests of a test to a node, over the network as any client's; they run in the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.client.send_result import SendResult
    from hastore.message import Message, StoredMessage

ASK_AGAIN_S: Final = (0.005, 0.1)
_IN_FLIGHT_MAX: Final = 64


async def ask_status(address: tuple[str, int]) -> NodeStatus:
    """Return a node's status."""
    async with AdminClient.connect(address, connect_timeout_s=2.0) as admin:
        return NodeStatus.from_dict((await admin.ha_status())["hastore"])


async def change_role(
    address: tuple[str, int],
    *,
    epoch: int,
    master_id: int | None = None,
    master_address: tuple[str, int] | None = None,
    members: frozenset[int] | None = None,
) -> None:
    """Tell a node of a replica group who is the master of an epoch; None: nobody."""
    async with AdminClient.connect(address) as admin:
        await admin.change_role(
            epoch=epoch, master_id=master_id, master_address=master_address, members=members
        )


def check_body(body: object) -> None:
    """Raise TypeError for a body that is not bytes, before the encoder fails on it."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        msg = f"a body is bytes, not {type(body).__name__}"
        raise TypeError(msg + (": body.encode()" if isinstance(body, str) else ""))


async def send_all(address: tuple[str, int], messages: Sequence[Message]) -> list[SendResult]:
    """Send messages, 64 in flight, and return their outcomes in the same order."""
    async with Producer.connect(address, in_flight_max=_IN_FLIGHT_MAX) as producer:
        pending = [await producer.submit(message) for message in messages]
        return [await each.wait() for each in pending]


async def read_all(
    address: tuple[str, int], topic: str, *, group: str | None, tags: str
) -> list[StoredMessage]:
    """Return the messages of a topic in the order of the log; none if there is no such topic."""
    async with Consumer.connect(address) as consumer:
        stream = consumer.messages(topic, group=group, tags=tags, until_end=True)
        try:
            found = [message async for message in stream]
        except RequestFailedError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []
    return sorted(found, key=lambda message: message.physic_offset)


async def read_into(
    found: list[StoredMessage],
    address: tuple[str, int],
    topic: str,
    count: int,
    *,
    group: str | None,
    tags: str,
) -> None:
    """Append messages of a topic to ``found`` until there are ``count``, or until cancelled."""
    async with Consumer.connect(address) as consumer:
        while len(found) < count:
            try:
                async for message in consumer.messages(topic, group=group, tags=tags):
                    found.append(message)
                    if len(found) == count:
                        return
            except RequestFailedError as error:
                if found or error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                await trio.sleep(ASK_AGAIN_S[1])  # the topic may be created yet
