"""Requests of consumers other than pulls: heartbeats, offsets, members, locks.

==============================  =================================================================
HEART_BEAT (34)                 body: hastore.wire.heartbeat_data
UNREGISTER_CLIENT (35)          clientID [producerGroup] [consumerGroup]
GET_CONSUMER_LIST_BY_GROUP      consumerGroup → {"consumerIdList": [...]}
GET_CONSUMER_CONNECTION_LIST    consumerGroup → who is connected, with their subscriptions
QUERY_CONSUMER_OFFSET (14)      consumerGroup topic queueId → offset
UPDATE_CONSUMER_OFFSET (15)     consumerGroup topic queueId commitOffset
LOCK_BATCH_MQ, UNLOCK (41, 42)  {"consumerGroup", "clientId", "mqSet": [{"topic", "brokerName",
                                "queueId"}]} → {"lockOKMQSet": [...]}
==============================  =================================================================

Source: RocketMQ 4.9.8 ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``AdminBrokerProcessor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.consumer_manager import CONNECTED_MAX
from hastore.broker.groups.rebalance_lock_manager import MessageQueue, RebalanceLockManager
from hastore.broker.groups.subscription_group_manager import group_fault
from hastore.broker.quotas import Quota, table_full
from hastore.errors import ProtocolError, QuotaUsedUpError, RequestFailedError
from hastore.status import BrokerRole
from hastore.wire import liberal_json
from hastore.wire.config_tables import QUEUE_NUMS_MAX
from hastore.wire.heartbeat_data import read_heartbeat
from hastore.wire.pieces import ROWS_OF_A_PIECE
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import (
    content_of,
    integer_field,
    name_field,
    text_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, KeysView, Mapping

    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.groups.consumer_manager import ConsumerManager
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.config import RemotingConfig
    from hastore.wire.pieces import Pieces
    from hastore.wire.remoting_command import RemotingCommand

LOCK_QUEUES_MAX: Final = 16_384  # in one request
# A group without an offset begins at 0 if the queue still has its first message, and that is at
# most this far below the log's end, so that a new group on a new topic misses nothing.  (RocketMQ
# checks whether the message is in 40 % of the memory.)  Otherwise the consumer decides.
RECENT_SIZE_MAX: Final = 4 * 1024**3


@final
@attrs.define(eq=False)
class ConsumerProcessors:
    """Answers consumers; each method takes a request and returns the response."""

    target: RequestTarget
    config: RemotingConfig
    data: BrokerData
    consumers: ConsumerManager
    locks: RebalanceLockManager = attrs.field(init=False)
    # Of the groups that are known by heartbeats only.
    _quota: Quota[str] = attrs.field(init=False)
    _producer_quota: Quota[str] = attrs.field(init=False)
    _arriving: set[str] = attrs.field(factory=set, init=False)  # admitted, not registered yet

    def __attrs_post_init__(self) -> None:
        """Make the locks, and the quota of groups."""
        self.locks = RebalanceLockManager(self.config.locks_per_owner_max)
        self._quota = Quota(
            "consumer groups without an offset",
            "groups_per_owner_max",
            self.config.groups_per_owner_max,
            self._is_without_offset,
            "new_groups_per_minute_max",
            self.config.new_groups_per_minute_max,
        )
        self._producer_quota = Quota(
            "producer groups",
            "groups_per_owner_max",
            self.config.groups_per_owner_max,
            self.consumers.producers.groups.__contains__,
        )

    # -- members ---------------------------------------------------------------------------------

    def heartbeat(
        self, request: RemotingCommand, client: ClientConnection
    ) -> Pieces[RemotingCommand]:
        """Register a client and the groups that its heartbeat names.

        A group that has no offset yet stays in memory, while it has members.  Groups beyond a quota
        are refused, the others of the heartbeat are registered.
        """
        heartbeat = yield from content_of(request, read_heartbeat)
        for consumer in heartbeat.consumers:
            fault = group_fault(consumer.group)
            if fault is not None:
                raise RequestFailedError(fault, code=ResponseCode.SYSTEM_ERROR)
        if client.is_closed:
            return request.response(ResponseCode.SUCCESS)
        admitted, refusal = [], None
        self._arriving.clear()
        for consumer in heartbeat.consumers:
            if refusal is not None and not self._is_known(consumer.group):
                continue
            try:
                self._admit(consumer.group, client)
            except RequestFailedError as error:
                refusal = error
            else:
                admitted.append(consumer)
        heartbeat = attrs.evolve(
            heartbeat,
            consumers=tuple(admitted),
            producer_groups=self._listed(heartbeat.producer_groups, client),
        )
        self.consumers.heartbeat(client, heartbeat, request.language, request.version)
        if refusal is not None:
            raise refusal
        return request.response(ResponseCode.SUCCESS)

    def _admit(self, name: str, client: ClientConnection) -> None:
        """Make sure that there is room for a group.  Raises RequestFailedError."""
        if self._is_known(name):
            return
        if len(self.consumers.groups) >= CONNECTED_MAX:
            msg = f"consumers of {CONNECTED_MAX} groups are connected, the most that may be"
            raise table_full("connected_groups_max", msg)
        self._quota.take(client.owner, name, trio.current_time())
        self._arriving.add(name)

    def _listed(self, groups: Iterable[str], client: ClientConnection) -> tuple[str, ...]:
        """Return the producer groups within the quota: those that answers to 204 name.

        Replies reach a client that has at least one; for all else no producer needs them.
        """
        known, now, listed = self.consumers.producers.groups, trio.current_time(), []
        for group in groups:
            try:
                if group not in known:
                    self._producer_quota.take(client.owner, group, now)
            except QuotaUsedUpError as error:
                self.target.quota_refusals.record(client.peer, error)
            else:
                listed.append(group)
        return tuple(listed)

    def _is_known(self, name: str) -> bool:
        """Whether a group has an offset, or members."""
        return name in self.data.groups.groups or name in self.consumers.groups

    def _is_without_offset(self, name: str) -> bool:
        """Whether a group is known by heartbeats only."""
        is_here = name in self.consumers.groups or name in self._arriving
        return is_here and name not in self.data.groups.groups

    def unregister(self, request: RemotingCommand, client: ClientConnection) -> RemotingCommand:
        """Remove a client from a group that it leaves."""
        group = text_field(request.ext_fields, "consumerGroup")
        if group:
            self.consumers.unregister(client, group)
        producer_group = text_field(request.ext_fields, "producerGroup")
        if producer_group:
            self.consumers.producers.unregister(client, producer_group)
        return request.response(ResponseCode.SUCCESS)

    def client_ids(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return the client ids of a group's members."""
        group = name_field(request.ext_fields, "consumerGroup")
        client_ids = self.consumers.client_ids(group)
        if not client_ids:
            msg = f"no consumer for group {group}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        body = yield from liberal_json.dumps_in_pieces({"consumerIdList": client_ids})
        return request.response(ResponseCode.SUCCESS, body=body)

    def connections(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return a group's members with their connections and subscriptions."""
        group = name_field(request.ext_fields, "consumerGroup")
        connections = self.consumers.connections(group)
        if connections is None:
            msg = f"no consumer of group {group} is online"
            raise RequestFailedError(msg, code=ResponseCode.CONSUMER_NOT_ONLINE)
        body = yield from liberal_json.dumps_in_pieces(connections)
        return request.response(ResponseCode.SUCCESS, body=body)

    # -- offsets ---------------------------------------------------------------------------------

    def query_offset(self, request: RemotingCommand) -> RemotingCommand:
        """Return the offset that a group has committed, or 0 if it should begin there."""
        fields = request.ext_fields
        group, topic = name_field(fields, "consumerGroup"), name_field(fields, "topic")
        queue_id = integer_field(fields, "queueId")
        offset = self.data.offsets.query(group, topic, queue_id)
        if offset is None:
            if not self._begins_at_0(topic, queue_id):
                msg = f"group {group} has no offset in queue {queue_id} of topic {topic}"
                raise RequestFailedError(msg, code=ResponseCode.QUERY_NOT_FOUND)
            offset = 0
        return request.response(ResponseCode.SUCCESS, ext_fields={"offset": str(offset)})

    def _begins_at_0(self, topic: str, queue_id: int) -> bool:
        store = self.target.message_store
        queue = store.consume_queues.find(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        units = queue.units(0, 1)
        behind = store.commit_log.max_offset - (units[0].physic_offset if units else 0)
        return behind <= RECENT_SIZE_MAX

    def update_offset(self, request: RemotingCommand, client: ClientConnection) -> RemotingCommand:
        """Commit a group's offset; -1 (the C++ client's "none yet") changes nothing."""
        fields = request.ext_fields
        group, topic = name_field(fields, "consumerGroup"), name_field(fields, "topic")
        queue_id = integer_field(fields, "queueId")
        offset = integer_field(fields, "commitOffset", bits=64)
        if self.data.topics.find(topic) is None:
            msg = f"topic {topic:.128} does not exist"
            raise RequestFailedError(msg, code=ResponseCode.TOPIC_NOT_EXIST)
        if self.consumers.is_overtaken(group, topic, queue_id, client):
            return request.response(ResponseCode.SUCCESS)
        if offset >= 0:
            is_slave = self.target.role is BrokerRole.SLAVE
            owner = client.owner_of_offsets
            self.data.commit(group, topic, queue_id, offset, owner, is_slave=is_slave)
        return request.response(ResponseCode.SUCCESS)

    # -- locks -----------------------------------------------------------------------------------

    def lock(self, request: RemotingCommand, client: ClientConnection) -> Pieces[RemotingCommand]:
        """Lock queues for a client that consumes in order."""
        wanted = yield from content_of(request, read_lock_request)
        held: list[MessageQueue] = []
        refusal: QuotaUsedUpError | None = None
        for number, queues in enumerate(wanted.some_queues()):
            if number:
                yield 0
            now, client_id = trio.current_time(), wanted.client_id
            locked, refused = self.locks.lock(wanted.group, queues, client_id, now, client.owner)
            held += locked
            refusal = refusal or refused
        if refusal is not None:
            if not held:
                raise refusal
            # The answer names the locks that were renewed; which ones were refused it cannot say.
            self.target.quota_refusals.record(client.peer, refusal)
        rows = [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            for queue in held
        ]
        body = yield from liberal_json.dumps_in_pieces({"lockOKMQSet": rows})
        return request.response(ResponseCode.SUCCESS, body=body)

    def unlock(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Release a client's locks of queues."""
        wanted = yield from content_of(request, read_lock_request)
        for queues in wanted.some_queues():
            self.locks.unlock(wanted.group, queues, wanted.client_id)
            if len(queues) == ROWS_OF_A_PIECE:
                yield 0
        return request.response(ResponseCode.SUCCESS)


def consumed_topics(fields: Mapping[str, Any]) -> KeysView[str]:
    """Return the topics that a request 208 names, in its order; empty for all of the group.

    Of thousands each is found at once.
    """
    names = (text_field(fields, "topicList") or "").split(";")
    names.append(text_field(fields, "topic") or "")
    return dict.fromkeys(name for name in names if name).keys()


@attrs.frozen
class LockRequest:
    """The body of 41 and 42."""

    group: str
    client_id: str
    queues: list[MessageQueue]

    def some_queues(self) -> Iterator[list[MessageQueue]]:
        """Yield the queues, some at a time."""
        for begin in range(0, len(self.queues), ROWS_OF_A_PIECE):
            yield self.queues[begin : begin + ROWS_OF_A_PIECE]


def read_lock_request(body: bytes) -> Pieces[LockRequest]:
    """Read the body of 41 or 42, in pieces.  Raises ProtocolError."""
    data = yield from liberal_json.loads_object_in_pieces(
        body, "the lock request", values_max=liberal_json.LARGE_VALUES_MAX
    )
    rows = data.get("mqSet") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = "mqSet of the lock request is not a list of objects"
        raise ProtocolError(msg)
    if len(rows) > LOCK_QUEUES_MAX:
        msg = f"a lock request for {len(rows)} queues; at most {LOCK_QUEUES_MAX}"
        raise ProtocolError(msg)
    queues = []
    for row in rows:
        queue = MessageQueue(
            name_field(row, "topic"), name_field(row, "brokerName"), integer_field(row, "queueId")
        )
        if not 0 <= queue.queue_id < QUEUE_NUMS_MAX:
            msg = f"queueId {queue.queue_id} of a lock request is not in 0 to {QUEUE_NUMS_MAX - 1}"
            raise ProtocolError(msg)
        queues.append(queue)
        if len(queues) % ROWS_OF_A_PIECE == 0:
            yield 0
    return LockRequest(name_field(data, "consumerGroup"), name_field(data, "clientId"), queues)
