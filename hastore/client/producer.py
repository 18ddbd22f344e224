"""The producer: messages to a master, pipelined over one connection at a time.

::

    async with Producer.connect(("127.0.0.1", 10911)) as producer:
        result = await producer.send(Message("orders", b"hello"))    # one message, its outcome

        pending = await producer.submit(Message("orders", b"hi"))    # many in flight
        ...
        result = await pending.wait()

        while messages:                                              # many, in batches
            pendings = await producer.submit_many(messages)
            messages = messages[len(pendings):]

    async with Producer.connect(("n1", 10911), ("n2", 10911), ("n3", 10911)) as producer:
        ...                                                          # the group's master, always

With several addresses the producer finds the master among them and the nodes that their routes
name, and the next one after a failover (``master_link``).  A message that was refused because the
node is no master any more is sent again, in order; one whose answer is lost ends as an
UnknownOutcomeError, or with ``retry="at_least_once"`` is sent again with the same UNIQ_KEY.  If
the routes name other groups with the same topic, messages go to all of them in turn
(``group_spread``).  With one address it is the producer of that node.

At most ``in_flight_max`` messages of each group wait for their answers.  A message without a
UNIQ_KEY gets one.  The end of the block waits for the messages in flight, unless the block raises.

Invariant: every accepted message ends as a SendResult or an UnknownOutcomeError; if ``submit``,
``submit_many`` or ``send_nowait`` raises, nothing was sent.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.client.failover_rules import Retry
from hastore.client.group_sender import GroupSender
from hastore.client.group_spread import GroupSpread
from hastore.client.master_link import FAILOVER_TIMEOUT_S, FailoverSettings, MasterLink
from hastore.client.master_search import MasterSearch, addresses_in
from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RemotingClient,
    block_nursery,
    open_remoting_client,
)
from hastore.client.topic_routes import TopicRoutes
from hastore.concurrency.service import as_itself
from hastore.env.real import real_env
from hastore.wire.remoting_codes import SerializeType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hastore.access.signature import AccessKey
    from hastore.client.master_link import Failover
    from hastore.client.master_search import Address
    from hastore.client.send_result import PendingSend, SendResult
    from hastore.env.interface import Env
    from hastore.message import Message
    from hastore.tls.client_tls import ClientTls

IN_FLIGHT_MAX: Final = 1_024
HEARTBEAT_INTERVAL_S: Final = 30.0


@final
class Producer:
    """A connected producer, returned by ``Producer.connect``."""

    def __init__(self, home: GroupSender) -> None:
        self._home = home
        self._spread: GroupSpread | None = None  # over several groups

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        address: Address | Sequence[Address],
        *more: Address,
        env: Env | None = None,
        group: str = "hastore-producer",
        in_flight_max: int = IN_FLIGHT_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        serialize_type: SerializeType = SerializeType.JSON,
        retry: Retry | str = Retry.REFUSED,
        failover_timeout_s: float = FAILOVER_TIMEOUT_S,
        on_failover: Callable[[Failover], None] | None = None,
        access_key: AccessKey | None = None,
        tls: ClientTls | None = None,
    ) -> AsyncIterator[Producer]:
        """Connect to a master while the block runs.

        With one address, to that node.  Raises UnreachableError if it does not answer,
        RequestFailedError if it is a slave, ProtocolError if it answers with an invalid route.

        With several, or a sequence of them, to the master of these nodes.  Raises UnreachableError
        if there is none within ``connect_timeout_s``.  After a failover the next one is searched
        for ``failover_timeout_s``; then submitting raises UnreachableError.  ``retry``: which
        messages are sent again (``failover_rules``).  ``on_failover`` is called, and must not block
        or raise, once another link is up and what is sent again is on its way.

        ``access_key`` signs all requests.  Raises AccessDeniedError if a node needs another one.
        ``tls`` encrypts all connections.  Raises TlsError if a node takes none, or its certificate
        does not count.
        """
        addresses = addresses_in(address, more)
        if isinstance(addresses, tuple):
            async with open_remoting_client(
                addresses,
                connect_timeout_s=connect_timeout_s,
                request_timeout_s=request_timeout_s,
                in_flight_max=in_flight_max,
                access_key=access_key,
                tls=tls,
            ) as client:
                home = GroupSender(env or real_env(), group, serialize_type, access_key)
                home.link = client
                await home.learn_route(client)
                async with block_nursery() as nursery:
                    nursery.start_soon(home.beat, client, heartbeat_interval_s)
                    producer = cls(home)
                    yield producer
                    await producer.drain()
            return
        outside = env or real_env()
        async with block_nursery() as nursery:

            async def serve(
                addresses: Sequence[Address],
                routes: TopicRoutes | None = None,
                *,
                task_status: trio.TaskStatus[GroupSender],
            ) -> None:
                """Keep a link to the group with these nodes."""
                sender = GroupSender(outside, group, serialize_type, access_key)
                settings = FailoverSettings(
                    retry=Retry(retry),
                    failover_timeout_s=failover_timeout_s,
                    connect_timeout_s=connect_timeout_s,
                    request_timeout_s=request_timeout_s,
                    in_flight_max=in_flight_max,
                    on_up=sender.follow,
                    on_failover=on_failover,
                    access_key=access_key,
                    tls=tls,
                )
                search = MasterSearch(list(addresses), access_key=access_key, tls=tls)
                sender.link = link = MasterLink(search, settings)

                async def beside(node: RemotingClient) -> None:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(sender.beat, node, heartbeat_interval_s)
                        if routes is not None:
                            nursery.start_soon(routes.run, node)

                with as_itself():
                    async with trio.open_nursery() as links:
                        await links.start(link.run, beside)
                        task_status.started(sender)

            routes = TopicRoutes()
            home = await nursery.start(serve, addresses, routes)
            producer = cls(home)
            producer._spread = GroupSpread(home, routes, serve, nursery)
            yield producer
            await producer.drain()

    # -- sending ---------------------------------------------------------------------------------

    async def send(self, message: Message, *, queue_id: int | None = None) -> SendResult:
        """Send one message and wait for its outcome.

        If cancelled, the outcome is unknown.  If ``queue_id`` is None, it is the message's own, or
        the node chooses one if that is 0.  Raises as ``submit`` and ``PendingSend.result`` do.
        """
        pending = await self.submit(message, queue_id=queue_id)
        return await pending.wait()

    async def submit(self, message: Message, *, queue_id: int | None = None) -> PendingSend:
        """Send one message as soon as there is room; waits (and can be cancelled) only for that.

        Raises UnreachableError if the link is broken, ConfigError if the message is too large or
        has bad properties.
        """
        sender = self._home
        if self._spread is not None:
            has_queue = queue_id is not None or message.queue_id != 0
            sender = await self._spread.ready(message.topic, has_queue=has_queue)
        if not sender.link.has_room:
            await sender.link.wait_for_room()
        return sender.post(message, queue_id)

    def send_nowait(self, message: Message, *, queue_id: int | None = None) -> PendingSend:
        """Send one message now.  Raises as ``submit``, or ``trio.WouldBlock`` without room."""
        sender = self._home
        if self._spread is not None:
            has_queue = queue_id is not None or message.queue_id != 0
            sender = self._spread.pick(message.topic, has_queue=has_queue)
        if not sender.link.has_room and sender.link.broken_because is None:
            raise trio.WouldBlock
        return sender.post(message, queue_id)

    async def submit_many(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> list[PendingSend]:
        """Send the first of ``messages`` as soon as there is room; return one PendingSend for each.

        As many are sent as there is room for, messages and bytes, at least one; the result is empty
        only if ``messages`` is.  Those of one topic and queue go as batches where that makes no
        difference; each has its own outcome.  Without a queue of their own they are shared out
        evenly, in runs of successive messages; a queue keeps their order.  Except when the node
        refuses a batch, because of its size or of one message: its messages are sent again one by
        one, after others of the queue perhaps, and later batches are half as large.  Errors as in
        ``submit``; a message that cannot be sent is the end of those that are.
        """
        if not messages:
            return []
        sender = self._home
        if self._spread is not None:
            sender, messages = await _leading(self._spread, messages, queue_id)
        link = sender.link
        # Half of the room at once: a place or two at a time would make small batches.
        count = min(len(messages), max(link.in_flight_max // 2, 1))
        if not link.has_room_for(count):
            await link.wait_for_room(count)
        return sender.post_many(messages, queue_id)

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendResult:
        """Send messages of one topic as a batch: all are stored in sequence, or none is.

        Raises as ``send`` does, and ConfigError for no messages or those of several topics.
        """
        sender = self._home
        if self._spread is not None and messages:
            has_queue = queue_id is not None or messages[0].queue_id != 0
            sender = await self._spread.ready(messages[0].topic, has_queue=has_queue)
        await sender.link.wait_for_room()
        pending = sender.post_batch(messages, queue_id)
        return await pending.wait()

    async def drain(self) -> None:
        """Wait until every accepted message has its outcome."""
        for sender in self._senders:
            await sender.link.wait_for_none()

    # -- what it is ------------------------------------------------------------------------------

    @property
    def queue_nums(self) -> int:
        """The number of queues of a new topic; of the first group."""
        return self._home.queue_nums

    @property
    def address(self) -> Address:
        """The node that it sends to, or sent to last; of several groups that of the first."""
        return self._home.link.address

    @property
    def in_flight(self) -> int:
        """The number of messages without an outcome yet."""
        return sum(sender.link.in_flight for sender in self._senders)

    @property
    def broken_because(self) -> str | None:
        """Why the link is broken, or all links of several groups; None while one is intact."""
        reasons = [sender.link.broken_because for sender in self._senders]
        return None if None in reasons else reasons[0]

    @property
    def _senders(self) -> tuple[GroupSender, ...]:
        return (self._home,) if self._spread is None else self._spread.senders

    @property
    def _client(self) -> RemotingClient | MasterLink:
        return self._home.link


async def _leading(
    spread: GroupSpread, messages: Sequence[Message], queue_id: int | None
) -> tuple[GroupSender, Sequence[Message]]:
    """Return the group of the first message, and the first messages that may go there."""
    has_queues = [queue_id is not None or message.queue_id != 0 for message in messages]
    sender = await spread.ready(messages[0].topic, has_queue=has_queues[0])
    count = 1
    while count < len(messages) and spread.takes(
        sender, messages[count].topic, has_queue=has_queues[count]
    ):
        count += 1
    return sender, messages[:count]
