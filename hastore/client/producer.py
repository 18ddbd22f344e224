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
UnknownOutcomeError, or with ``retry="at_least_once"`` is sent again with the same UNIQ_KEY.  With
one address it is the producer of that node.

At most ``in_flight_max`` messages wait for their answers.  A message without a UNIQ_KEY gets one.
The end of the block waits for the messages in flight, unless the block raises.

Invariant: every accepted message ends as a SendResult or an UnknownOutcomeError; if ``submit``,
``submit_many`` or ``send_nowait`` raises, nothing was sent.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.client.batches import BATCH_SIZE_MAX, Batches, Outgoing
from hastore.client.failover_rules import Retry
from hastore.client.master_link import FAILOVER_TIMEOUT_S, FailoverSettings, MasterLink
from hastore.client.master_search import MasterSearch, addresses_in
from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RemotingClient,
    block_nursery,
    open_remoting_client,
)
from hastore.client.route import read_queue_nums
from hastore.client.send_result import PendingBatch, PendingSend, SendResult
from hastore.client.unique_key import UniqueKeyMaker
from hastore.concurrency.tcp import describe
from hastore.env.real import real_env
from hastore.errors import ConfigError, HastoreError, RequestFailedError, UnreachableError
from hastore.message import PROPERTY_UNIQ_KEY, PROPERTY_WAIT_STORE_MSG_OK, Message
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.config_tables import GROUP_ONLY
from hastore.wire.frame_reader import encode_head
from hastore.wire.property_text import write_properties
from hastore.wire.remoting_codes import RequestCode, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import join_batch, write_batch, write_send_fields
from hastore.wire.usual_frames import check_text_size, send_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hastore.client.master_link import Failover
    from hastore.client.master_search import Address, NodeAnswer
    from hastore.client.pending_request import PendingRequest
    from hastore.env.interface import Env

IN_FLIGHT_MAX: Final = 1_024
HEARTBEAT_INTERVAL_S: Final = 30.0
# Queues of a topic whose route is unknown (the defaultTopicQueueNums of RocketMQ's clients).
_QUEUE_NUMS_DEFAULT: Final = 4
_BODY_SIZE_MAX: Final = 15 * 1024 * 1024  # fits a frame of 16 MiB with the largest header


@final
class Producer:
    """A connected producer, returned by ``Producer.connect``."""

    def __init__(self, env: Env, group: str, serialize_type: SerializeType) -> None:
        self.group = group
        self.serialize_type = serialize_type
        self.queue_nums = _QUEUE_NUMS_DEFAULT
        self._client: RemotingClient | MasterLink
        self._wall_clock = env.wall_clock
        now_ms = env.wall_clock.now_ms()
        self._unique_keys = UniqueKeyMaker(env.randomness, now_ms)
        self._batch_size_max = BATCH_SIZE_MAX  # lowered when the node refuses a batch
        self._turn = int(env.randomness.random() * _QUEUE_NUMS_DEFAULT)

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
    ) -> AsyncIterator[Producer]:
        """Connect to a master while the block runs.

        With one address, to that node.  Raises UnreachableError if it does not answer,
        RequestFailedError if it is a slave, ProtocolError if it answers with an invalid route.

        With several, or a sequence of them, to the master of these nodes.  Raises UnreachableError
        if there is none within ``connect_timeout_s``.  After a failover the next one is searched
        for ``failover_timeout_s``; then submitting raises UnreachableError.  ``retry``: which
        messages are sent again (``failover_rules``).  ``on_failover`` is called, and must not block
        or raise, once another link is up and what is sent again is on its way.
        """
        addresses = addresses_in(address, more)
        if isinstance(addresses, tuple):
            async with open_remoting_client(
                addresses,
                connect_timeout_s=connect_timeout_s,
                request_timeout_s=request_timeout_s,
                in_flight_max=in_flight_max,
            ) as client:
                producer = cls(env or real_env(), group, serialize_type)
                producer._client = client
                await producer._learn_route(client)
                async with block_nursery() as nursery:
                    nursery.start_soon(producer._beat, client, heartbeat_interval_s)
                    yield producer
                    await producer.drain()
            return
        producer = cls(env or real_env(), group, serialize_type)
        settings = FailoverSettings(
            retry=Retry(retry),
            failover_timeout_s=failover_timeout_s,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            in_flight_max=in_flight_max,
            on_up=producer._follow,
            on_failover=on_failover,
        )
        producer._client = link = MasterLink(MasterSearch(addresses), settings)
        async with block_nursery() as nursery:
            await nursery.start(link.run, lambda node: producer._beat(node, heartbeat_interval_s))
            yield producer
            await producer.drain()

    # -- sending ---------------------------------------------------------------------------------

    async def send(self, message: Message, *, queue_id: int | None = None) -> SendResult:
        """Send one message and wait for its outcome.

        If cancelled, the outcome is unknown.  ``queue_id`` None: the message's own if it is not 0,
        otherwise round robin.  Raises as ``submit`` and ``PendingSend.result`` do.
        """
        pending = await self.submit(message, queue_id=queue_id)
        return await pending.wait()

    async def submit(self, message: Message, *, queue_id: int | None = None) -> PendingSend:
        """Send one message as soon as there is room; waits (and can be cancelled) only for that.

        Raises UnreachableError if the link is broken, ConfigError if the message is too large or
        has bad properties.
        """
        if not self._client.has_room:
            await self._client.wait_for_room()
        return self._post(message, queue_id)

    def send_nowait(self, message: Message, *, queue_id: int | None = None) -> PendingSend:
        """Send one message now.  Raises as ``submit``, or ``trio.WouldBlock`` without room."""
        if not self._client.has_room and self._client.broken_because is None:
            raise trio.WouldBlock
        return self._post(message, queue_id)

    async def submit_many(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> list[PendingSend]:
        """Send the first of ``messages`` as soon as there is room; return one PendingSend for each.

        As many are sent as there is room for, messages and bytes, at least one; the result is empty
        only if ``messages`` is.  Those of one topic and queue go as batches where that makes no
        difference; each has its own outcome.  Without a queue of their own they are shared out
        evenly, each queue a run of them, in their order; a queue keeps their order.  Except when
        the node refuses a batch, because of its size or of one message: its messages are sent again
        one by one, after others of the queue perhaps, and later batches are half as large.  Errors
        as in ``submit``; a message that cannot be sent is the end of those that are.
        """
        client = self._client
        if not messages:
            return []
        # Half of the room at once: a place or two at a time would make small batches.
        count = min(len(messages), max(client.in_flight_max // 2, 1))
        if not client.has_room_for(count):
            await client.wait_for_room(count)
        return self._post_many(messages, queue_id)

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendResult:
        """Send messages of one topic as a batch: all are stored in sequence, or none is.

        Raises as ``send`` does, and ConfigError for no messages or those of several topics.
        """
        await self._client.wait_for_room()
        pending = self._post_batch(messages, queue_id)
        return await pending.wait()

    async def drain(self) -> None:
        """Wait until every accepted message has its outcome."""
        await self._client.wait_for_none()

    @property
    def address(self) -> Address:
        """The node that it sends to, or sent to last."""
        return self._client.address

    @property
    def in_flight(self) -> int:
        """The number of messages without an outcome yet."""
        return self._client.in_flight

    @property
    def broken_because(self) -> str | None:
        """Why the link is broken; None while it is intact."""
        return self._client.broken_because

    def _post(self, message: Message, queue_id: int | None) -> PendingSend:
        if queue_id is None:
            queue_id = message.queue_id or self._next_queue()
        now_ms = self._wall_clock.now_ms()
        properties = message.properties
        unique_key = properties.get(PROPERTY_UNIQ_KEY) if properties else None
        new_key = None
        if unique_key is None:
            unique_key = new_key = self._unique_keys.make(now_ms)
        pending = PendingSend(self._client.next_opaque(), message.topic, queue_id, unique_key)
        self._post_one(pending, message, new_key, now_ms)
        return pending

    def _post_one(
        self, pending: PendingSend, message: Message, new_key: str | None, now_ms: int
    ) -> None:
        _check_body_size(len(message.body))
        self._client.post(pending, self._head(pending, message, new_key, now_ms), message.body)

    def _head(
        self, pending: PendingSend, message: Message, new_key: str | None, now_ms: int
    ) -> bytes:
        born_ms = message.born_timestamp_ms
        return send_head(
            message,
            serialize_type=self.serialize_type,
            opaque=pending.opaque,
            queue_id=pending.queue_id,
            born_timestamp_ms=now_ms if born_ms is None else born_ms,
            group=self.group,
            unique_key=new_key,
        )

    def _post_many(self, messages: Sequence[Message], queue_id: int | None) -> list[PendingSend]:
        """Send the first of ``messages``: as many as there is room for, and none that is bad."""
        client = self._client
        count_max = max(client.in_flight_max - client.in_flight, 1)
        size_left = client.out_room
        now_ms = self._wall_clock.now_ms()
        run: list[Outgoing] = []
        for message in messages[:count_max]:
            try:
                outgoing = self._outgoing(message, now_ms)
            except ConfigError:
                if not run:
                    raise
                break
            run.append(outgoing)
            size_left -= outgoing.size
            if size_left <= 0:
                break
        batches = Batches(self._batch_size_max)
        for outgoing, next_queue in zip(run, self._next_queues(len(run)), strict=True):
            own_queue = outgoing.message.queue_id or next_queue
            outgoing.pending.queue_id = own_queue if queue_id is None else queue_id
            batches.add(outgoing)
        # Whatever raises does so before anything is sent.
        requests = [self._gathered(request, now_ms) for request in batches.requests]
        for (pending, head, body), request in zip(requests, batches.requests, strict=True):
            client.post(pending, head, body)
            for one in request:
                one.pending.deadline = pending.deadline
        return [outgoing.pending for outgoing in run]

    def _outgoing(self, message: Message, now_ms: int) -> Outgoing:
        """Check a message, and prepare it for a batch.  Raises ConfigError."""
        _check_body_size(len(message.body))
        properties = message.properties
        unique_key = new_key = None
        text = ""
        if properties:
            unique_key = properties.get(PROPERTY_UNIQ_KEY)
            text = write_properties(properties)
        if unique_key is None:
            unique_key = new_key = self._unique_keys.make(now_ms)
            text = f"{PROPERTY_UNIQ_KEY}\x01{unique_key}\x02{text}"
        check_text_size(len(text) + len(message.topic))
        pending = PendingSend(0, message.topic, 0, unique_key)
        try:
            return Outgoing(message, pending, new_key, text.encode())
        except UnicodeEncodeError:  # a lone surrogate: the node's answer says so
            return Outgoing(message, pending, new_key, None)

    def _gathered(
        self, request: list[Outgoing], now_ms: int
    ) -> tuple[PendingRequest, bytes, bytes]:
        """Return a request to send the messages, several as a batch, with its head and body."""
        client = self._client
        first = request[0]
        opaque = client.next_opaque()
        for one in request:
            one.pending.opaque = opaque
        if len(request) == 1:
            head = self._head(first.pending, first.message, first.new_key, now_ms)
            return first.pending, head, first.message.body

        def send_singly() -> None:
            # Batches that are in flight already are stored before these messages: cause no others.
            self._batch_size_max = min(self._batch_size_max, len(body) // 2)
            for one in request:
                one.pending.opaque = client.next_opaque()
                try:
                    self._post_one(one.pending, one.message, one.new_key, now_ms)
                except UnreachableError as error:
                    one.pending.fail(str(error))

        body = join_batch([(one.message, one.text or b"") for one in request])
        head = self._batch_head(opaque, first.message, first.pending.queue_id, len(body), now_ms)
        return PendingBatch(opaque, [one.pending for one in request], send_singly), head, body

    def _post_batch(self, messages: Sequence[Message], queue_id: int | None) -> PendingSend:
        if not messages or len({message.topic for message in messages}) > 1:
            msg = "a batch is one or more messages of one topic"
            raise ConfigError(msg)
        first = messages[0]
        now_ms = self._wall_clock.now_ms()
        if queue_id is None:
            queue_id = first.queue_id or self._next_queue()
        keyed = []
        for message in messages:
            properties = dict(message.properties or {})
            properties.setdefault(PROPERTY_UNIQ_KEY, self._unique_keys.make(now_ms))
            keyed.append(
                Message(message.topic, message.body, properties=properties, flag=message.flag)
            )
        body = write_batch(keyed)
        _check_body_size(len(body))
        check_text_size(len(first.topic))
        opaque = self._client.next_opaque()
        pending = PendingSend(opaque, first.topic, queue_id, None)
        head = self._batch_head(opaque, first, queue_id, len(body), now_ms)
        self._client.post(pending, head, body)
        return pending

    def _batch_head(
        self, opaque: int, first: Message, queue_id: int, body_size: int, now_ms: int
    ) -> bytes:
        wait = {} if first.wait_store_msg_ok else {PROPERTY_WAIT_STORE_MSG_OK: "false"}
        fields = write_send_fields(
            first,
            write_properties(wait),
            queue_id=queue_id,
            born_timestamp_ms=now_ms,
            group=self.group,
            batch=True,
        )
        request = RemotingCommand(
            code=RequestCode.SEND_BATCH_MESSAGE,
            opaque=opaque,
            ext_fields=fields,
            serialize_type=self.serialize_type,
        )
        return encode_head(request, body_size)

    def _next_queue(self) -> int:
        self._turn += 1
        return self._turn % self.queue_nums

    def _next_queues(self, count: int) -> list[int]:
        """Return the queues of ``count`` messages, as 1 1 2 2 3 0 for six and four queues."""
        nums = self.queue_nums
        each, rest = divmod(count, nums)
        queues: list[int] = []
        for turn in range(nums):
            queues += [(self._turn + 1 + turn) % nums] * (each + (turn < rest))
        self._turn += rest
        return queues

    # -- the link --------------------------------------------------------------------------------

    def _follow(self, master: NodeAnswer) -> None:
        self.queue_nums = master.queue_nums or _QUEUE_NUMS_DEFAULT

    async def _learn_route(self, client: RemotingClient) -> None:
        try:
            response = await client.invoke(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": DEFAULT_TOPIC, GROUP_ONLY: "true"},
                serialize_type=self.serialize_type,
            )
        except RequestFailedError:
            return  # a stock broker has no routes: its name server does
        queue_nums = read_queue_nums(response.body)
        if queue_nums is None:
            msg = f"{describe(client.address)} is a slave and takes no messages"
            hint = f"send to its master; hastore status {describe(client.address)} names it"
            raise RequestFailedError(msg, code=ResponseCode.SERVICE_NOT_AVAILABLE, hint=hint)
        self.queue_nums = queue_nums

    async def _beat(self, client: RemotingClient, interval_s: float) -> None:
        """Send heartbeats, so that the link is not closed as idle and a dead peer is noticed."""
        client_id = self._unique_keys.make(self._wall_clock.now_ms())
        body = {
            "clientID": f"{describe(client.address)}@{client_id}",
            "consumerDataSet": [],
            "producerDataSet": [{"groupName": self.group}],
        }
        while client.broken_because is None:
            await trio.sleep(interval_s)
            try:
                await client.invoke(
                    RequestCode.HEART_BEAT,
                    body=json.dumps(body).encode(),
                    serialize_type=self.serialize_type,
                    waits_for_room=False,
                )
            except RequestFailedError:
                continue  # an answer, so the node is there
            except HastoreError as error:
                client.break_link(f"a heartbeat failed: {error}")


def _check_body_size(body_size: int) -> None:
    """Raise ConfigError for a body too large for a frame: a node would close the connection."""
    if body_size > _BODY_SIZE_MAX:
        msg = f"a body of {body_size} bytes does not fit a frame"
        raise ConfigError(msg, hint=f"at most {_BODY_SIZE_MAX} bytes; brokers take 4 MiB")
