"""One group's part of a producer: messages become requests on the link to its master.

A message without a UNIQ_KEY gets one.  For a message without a queue the node chooses one: it alone
knows how many queues the topic has.  Nothing here waits: the caller has seen that there is room.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.client.access import with_signature
from hastore.client.batches import BATCH_COUNT_MAX, BATCH_SIZE_MAX, Batches, Outgoing
from hastore.client.route import read_queue_nums
from hastore.client.send_result import PendingBatch, PendingSend
from hastore.client.unique_key import UniqueKeyMaker
from hastore.concurrency.tcp import describe
from hastore.errors import (
    AccessDeniedError,
    ConfigError,
    HastoreError,
    RequestFailedError,
    UnreachableError,
)
from hastore.message import PROPERTY_UNIQ_KEY, PROPERTY_WAIT_STORE_MSG_OK, Message
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.frame_reader import encode_head
from hastore.wire.property_text import write_properties
from hastore.wire.remoting_codes import RequestCode, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import join_batch, write_batch, write_send_fields
from hastore.wire.usual_frames import check_text_size, properties_text, send_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.access.signature import AccessKey
    from hastore.client.master_link import MasterLink
    from hastore.client.master_search import NodeAnswer
    from hastore.client.pending_request import PendingRequest
    from hastore.client.remoting_client import RemotingClient
    from hastore.env.interface import Env

# Queues of a topic whose route is unknown (the defaultTopicQueueNums of RocketMQ's clients).
_QUEUE_NUMS_DEFAULT: Final = 4
_ANY_QUEUE: Final = -1  # on the wire: the broker chooses, RocketMQ's too
_BODY_SIZE_MAX: Final = 15 * 1024 * 1024  # fits a frame of 16 MiB with the largest header


@final
class GroupSender:
    """What sends to the master of one group, or to one node."""

    def __init__(
        self,
        env: Env,
        group: str,
        serialize_type: SerializeType,
        access_key: AccessKey | None = None,
    ) -> None:
        self.access_key = access_key
        self.link: RemotingClient | MasterLink
        self.name: str | None = None  # of the replica group; None: not known, or none
        self.group = group  # of producers
        self.serialize_type = serialize_type
        self.queue_nums = _QUEUE_NUMS_DEFAULT
        self._wall_clock = env.wall_clock
        now_ms = env.wall_clock.now_ms()
        self._unique_keys = UniqueKeyMaker(env.randomness, now_ms)
        self._batch_size_max = BATCH_SIZE_MAX  # lowered when the node refuses a batch
        self._turn = int(env.randomness.random() * _QUEUE_NUMS_DEFAULT)

    # -- messages --------------------------------------------------------------------------------

    def post(self, message: Message, queue_id: int | None) -> PendingSend:
        """Send a message.  Raises as ``Producer.submit``."""
        any_queue = queue_id is None and not message.queue_id
        if queue_id is None:
            queue_id = message.queue_id or self._next_queue()
        now_ms = self._wall_clock.now_ms()
        properties = message.properties
        unique_key = properties.get(PROPERTY_UNIQ_KEY) if properties else None
        new_key = None
        if unique_key is None:
            unique_key = new_key = self._unique_keys.make(now_ms)
        pending = PendingSend(self.link.next_opaque(), message.topic, queue_id, unique_key)
        pending.any_queue = any_queue
        self._post_one(pending, message, new_key, now_ms)
        return pending

    def _post_one(
        self, pending: PendingSend, message: Message, new_key: str | None, now_ms: int
    ) -> None:
        _check_body_size(len(message.body))
        self.link.post(pending, self._head(pending, message, new_key, now_ms), message.body)

    def _head(
        self, pending: PendingSend, message: Message, new_key: str | None, now_ms: int
    ) -> bytes:
        born_ms = message.born_timestamp_ms
        born_ms = now_ms if born_ms is None else born_ms
        queue_id = _ANY_QUEUE if pending.any_queue else pending.queue_id
        if self.access_key is not None:
            fields = write_send_fields(
                message,
                properties_text(message, new_key),
                queue_id=queue_id,
                born_timestamp_ms=born_ms,
                group=self.group,
            )
            code = RequestCode.SEND_MESSAGE_V2
            return self._signed_head(code, pending.opaque, fields, message.body)
        return send_head(
            message,
            serialize_type=self.serialize_type,
            opaque=pending.opaque,
            queue_id=queue_id,
            born_timestamp_ms=born_ms,
            group=self.group,
            unique_key=new_key,
        )

    def post_many(self, messages: Sequence[Message], queue_id: int | None) -> list[PendingSend]:
        """Send the first of ``messages``: as many as there is room for, and none that is bad."""
        client = self.link
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
        queues = self._next_queues(len(run), sum(outgoing.size for outgoing in run))
        for outgoing, next_queue in zip(run, queues, strict=True):
            own_queue, send = outgoing.message.queue_id, outgoing.pending
            send.any_queue = queue_id is None and not own_queue
            send.queue_id = (own_queue or next_queue) if queue_id is None else queue_id
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
        check_text_size(message.topic, text)
        pending = PendingSend(0, message.topic, 0, unique_key)
        try:
            return Outgoing(message, pending, new_key, text.encode())
        except UnicodeEncodeError:  # a lone surrogate: the node's answer says so
            return Outgoing(message, pending, new_key, None)

    def _gathered(
        self, request: list[Outgoing], now_ms: int
    ) -> tuple[PendingRequest, bytes, bytes]:
        """Return a request to send the messages, several as a batch, with its head and body."""
        client = self.link
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
        queue_id = _ANY_QUEUE if first.pending.any_queue else first.pending.queue_id
        head = self._batch_head(opaque, first.message, queue_id, body, now_ms)
        return PendingBatch(opaque, [one.pending for one in request], send_singly), head, body

    def post_batch(self, messages: Sequence[Message], queue_id: int | None) -> PendingSend:
        """Send messages as one batch.  Raises as ``Producer.send_batch``."""
        if not messages or len({message.topic for message in messages}) > 1:
            msg = "a batch is one or more messages of one topic"
            raise ConfigError(msg)
        first = messages[0]
        now_ms = self._wall_clock.now_ms()
        any_queue = queue_id is None and not first.queue_id
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
        check_text_size(first.topic)
        opaque = self.link.next_opaque()
        pending = PendingSend(opaque, first.topic, queue_id, None)
        pending.any_queue = any_queue
        wire_queue_id = _ANY_QUEUE if any_queue else queue_id
        head = self._batch_head(opaque, first, wire_queue_id, body, now_ms)
        self.link.post(pending, head, body)
        return pending

    def _batch_head(
        self, opaque: int, first: Message, queue_id: int, body: bytes, now_ms: int
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
        return self._signed_head(RequestCode.SEND_BATCH_MESSAGE, opaque, fields, body)

    def _signed_head(
        self, code: RequestCode, opaque: int, fields: dict[str, str], body: bytes
    ) -> bytes:
        """Return a request without its body, signed if there is a key."""
        request = RemotingCommand(
            code=code,
            opaque=opaque,
            ext_fields=with_signature(self.access_key, fields, body),
            serialize_type=self.serialize_type,
        )
        return encode_head(request, len(body))

    def _next_queue(self) -> int:
        self._turn += 1
        return self._turn % self.queue_nums

    def _next_queues(self, count: int, size: int) -> list[int]:
        """Return the queues of ``count`` messages of ``size`` bytes in all, as 1 1 2 2 3 0.

        The node takes the next queue for each request.  So each run fits one batch, and which runs
        have one message more changes from call to call.
        """
        if not count:
            return []
        nums = self.queue_nums
        run_max = min(BATCH_COUNT_MAX, max(self._batch_size_max * count // max(size, 1), 1))
        runs = nums * -(-count // (nums * run_max))
        each, rest = divmod(count, runs)
        queues: list[int] = []
        for run in range(runs):
            is_larger = (run - self._turn) % runs < rest
            queues += [(self._turn + 1 + run) % nums] * (each + is_larger)
        self._turn += rest
        return queues

    # -- the link --------------------------------------------------------------------------------

    def follow(self, master: NodeAnswer) -> None:
        """Take the master that the link goes to from now on."""
        self.name = master.group
        self.queue_nums = master.queue_nums or _QUEUE_NUMS_DEFAULT

    async def learn_route(self, client: RemotingClient) -> None:
        """Ask a node how many queues a topic has.  Raises RequestFailedError if it is a slave."""
        try:
            response = await client.invoke(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": DEFAULT_TOPIC},
                serialize_type=self.serialize_type,
            )
        except AccessDeniedError:
            raise
        except RequestFailedError:
            return  # a stock broker has no routes: its name server does
        queue_nums = read_queue_nums(response.body)
        if queue_nums is None:
            msg = f"{describe(client.address)} is a slave and takes no messages"
            hint = f"send to its master; hastore status {describe(client.address)} names it"
            raise RequestFailedError(msg, code=ResponseCode.SERVICE_NOT_AVAILABLE, hint=hint)
        self.queue_nums = queue_nums

    async def beat(self, client: RemotingClient, interval_s: float) -> None:
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
