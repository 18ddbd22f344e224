"""Send requests of the client port: messages into ``submit``, outcomes into reply frames.

Three kinds of messages are refused before the put, as in RocketMQ 4.9.8
(``AbstractSendMessageProcessor``, ``SendMessageProcessor``): half messages, messages to topics that
take no producers, and messages for a queue that the topic does not have.  The property ``TRAN_MSG``
makes a half message; the transaction bits of the sysFlag do not.

The response codes are RocketMQ's.  One code stands for several statuses, so the ext field
``putStatus`` names the status; ``notMaster`` says that this node serves no more as a master, so
that the message belongs to another one (stock clients ignore both).

Each message gets the property ``CLUSTER``, the name of the broker's cluster: a consumer sends its
reply to the reply topic of that cluster.  It counts for the size of the properties.

Invariant: a reply has a message's place exactly when its status says that it is stored.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.concurrency.group_commit_request import LEASE_OVER
from hastore.errors import QueueNotThereError, QuotaUsedUpError, RequestFailedError
from hastore.message import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    Message,
)
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.record.delay_levels import parse_level
from hastore.store.record.layout import TRANSACTION_TYPE_MASK
from hastore.topic import NO_PRODUCER_TOPICS, reply_topic
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import FLAG_RESPONSE, RequestCode, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import (
    NOT_MASTER_FIELD,
    PUT_STATUS_FIELD,
    is_batch,
    ok_reply_frame,
    read_batch,
    read_message,
    stored_fields,
)
from hastore.wire.usual_frames import ok_reply

if TYPE_CHECKING:
    from hastore.broker.groups.topic_config_manager import TopicConfigManager
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.wire.config_tables import TopicConfig
    from hastore.wire.usual_frames import ReplyTo

SEND_CODES: Final = frozenset(
    {
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
    }
)
RESPONSE_CODES: Final = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
_PUT_OK: Final = PutMessageStatus.PUT_OK


@final
@attrs.define(eq=False)
class SendMessageProcessor:
    """Submits messages to ``target``, into the queues of their topics."""

    target: RequestTarget
    topics: TopicConfigManager
    _turn: int = attrs.field(default=0, init=False)
    _cluster: str = attrs.field(init=False)

    @_cluster.default
    def _own_cluster(self) -> str:
        return self.target.cluster

    def submit(self, command: RemotingCommand, client: ClientConnection) -> GroupCommitRequest:
        """Submit the messages of a request; ``tag`` of the result is its ReplyTo.

        Raises ProtocolError for a malformed request, RequestFailedError for a refused one.
        """
        if not is_batch(command):
            message = read_message(command, client.peer)
            properties = message.properties
            unique_key = properties.get(PROPERTY_UNIQ_KEY) if properties else None
            return self.submit_message(message, _reply_to(command, unique_key), client)
        messages = read_batch(command, client.peer)
        first = messages[0]
        queue_id = self._queue_of(first, client)
        for message in messages:
            message.queue_id = queue_id
            self._name_cluster(message)
        request = self.target.submit_batch(messages)
        request.tag = _reply_to(command, None)
        return request

    def queue_of_reply(self, message: Message, client: ClientConnection) -> int:
        """Check a reply as a message to the reply topic; return its queue.

        Raises RequestFailedError if it is refused, also one about another topic: the permission to
        send replies is that on the reply topic.
        """
        own = reply_topic(self._cluster)
        if message.topic != own:
            msg = f"the topic of a reply to this broker is {own}, not {message.topic:.255}"
            raise RequestFailedError(msg, code=ResponseCode.MESSAGE_ILLEGAL)
        _check(message)
        queue_id = self._queue_of(message, client)
        if message.topic not in self.topics.topics:
            fault = self.topics.fault_of(message.topic)
            raise RequestFailedError(fault, code=ResponseCode.MESSAGE_ILLEGAL)
        return queue_id

    def submit_message(
        self, message: Message, reply_to: ReplyTo, client: ClientConnection
    ) -> GroupCommitRequest:
        """Submit one message.  Raises RequestFailedError if it is refused."""
        properties = message.properties
        if properties and PROPERTY_TRANSACTION_PREPARED in properties:
            _check(message)
        message.queue_id = self._queue_of(message, client)
        self._name_cluster(message)
        request = self.target.submit(message)
        request.tag = reply_to
        if properties and parse_level(properties.get(PROPERTY_DELAY_TIME_LEVEL)) > 0:
            if request.status is None and request.append_result is None:  # it waits for a file
                request.interrupt = partial(self._keep_topic, request)
            else:
                self._keep_topic(request)
        return request

    def _name_cluster(self, message: Message) -> None:
        """Set CLUSTER, also over a value that the producer has sent."""
        properties = message.properties
        if properties is None:
            message.properties = {PROPERTY_CLUSTER: self._cluster}
        else:
            properties[PROPERTY_CLUSTER] = self._cluster  # type: ignore[index]

    def _keep_topic(self, request: GroupCommitRequest) -> None:
        """Keep the topic of a delayed message that is in the log."""
        if request.append_result is not None:
            self.topics.keep(request.topic)

    def _queue_of(self, message: Message, client: ClientConnection) -> int:
        """Return the queue to write to: the next in turn for a negative number.

        A slave's topics may be older than its master's, so what they lack is no reason: the put is
        refused because it is a slave.  Raises RequestFailedError if the topic takes no messages or
        has no such queue.
        """
        topic, queue_id = message.topic, message.queue_id
        if topic in NO_PRODUCER_TOPICS:
            msg = f"Sending message to topic[{topic}] is forbidden."  # RocketMQ's
            raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        config = self.topics.topics.get(topic)
        if config is None:
            config = self._new_topic(topic, client)
            if config is None:
                return max(queue_id, 0)  # the message is refused anyway
        queue_nums = config.write_queue_nums
        if not config.is_writable or not queue_nums:
            if self.target.role is BrokerRole.SLAVE:
                return max(queue_id, 0)
            msg = f"topic {topic} is not writable (perm {config.perm}, {queue_nums} write queues)"
            raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        if queue_id >= 0:
            # A queue that can be read is written to as well, as in RocketMQ.
            if queue_id >= queue_nums and queue_id >= config.read_queue_nums:
                if self.target.role is BrokerRole.SLAVE:
                    return queue_id
                queues = max(queue_nums, config.read_queue_nums)
                msg = f"request queueId[{queue_id}] is illegal: topic {topic} has {queues} queues"
                raise QueueNotThereError(msg, code=ResponseCode.SYSTEM_ERROR)
            return queue_id
        self._turn += 1
        return self._turn % queue_nums

    def _new_topic(self, topic: str, client: ClientConnection) -> TopicConfig | None:
        """Make a topic for its first message; return None on a slave, or for an illegal name."""
        if self.target.role is BrokerRole.SLAVE:
            return None
        try:
            return self.topics.find_for_send(topic, client.owner)
        except QuotaUsedUpError as error:
            self.target.quota_refusals.record(client.peer, error)
            raise

    def reply_frame(self, request: GroupCommitRequest) -> bytes:
        """Return the encoded reply to a decided request, whose ``tag`` is not None."""
        appended = request.append_result
        if request.status is not _PUT_OK or appended is None:
            assert request.status is not None, "only decided requests are answered"
            is_master = self.target.takes_puts
            return _other_reply_frame(request, request.status, request.reason, is_master=is_master)
        _, physic_offset, _, queue_offset, _, _, store_host, batch_offsets = appended
        if batch_offsets is None:
            return ok_reply(request.tag, physic_offset, request.queue_id, queue_offset, store_host)
        opaque, serialize_type, _ = request.tag
        return ok_reply_frame(
            serialize_type,
            opaque,
            message_id=appended.message_id,
            queue_id=request.queue_id,
            queue_offset=queue_offset,
            transaction_id=None,
        )

    def late_reply_frame(self, request: GroupCommitRequest) -> bytes:
        """Return the reply after the end of the master's lease: it does not say PUT_OK any more.

        A put that was decided before is stored; that every later master has it is not told.
        """
        status, reason = request.status, request.reason
        assert status is not None, "only decided requests are answered"
        if status is _PUT_OK:
            status, reason = PutMessageStatus.FLUSH_SLAVE_TIMEOUT, LEASE_OVER
        return _other_reply_frame(request, status, reason, is_master=self.target.takes_puts)


def _reply_to(command: RemotingCommand, unique_key: str | None) -> ReplyTo:
    if command.is_one_way:
        return None
    return command.opaque, command.serialize_type, unique_key


def _check(message: Message) -> None:
    """Refuse a transaction's half message.  Raises RequestFailedError.

    Clients before 4.6.1 keep ``TRAN_MSG`` when they retry, and set the sysFlag by it: a retry with
    a delay becomes an ordinary message.
    """
    properties = message.properties or {}
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
        return
    has_delay = parse_level(properties.get(PROPERTY_DELAY_TIME_LEVEL)) > 0
    if message.reconsume_times == 0 or not has_delay:
        msg = "this broker does not take transactional messages"
        raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
    message.sys_flag &= ~TRANSACTION_TYPE_MASK


def _other_reply_frame(
    request: GroupCommitRequest, status: PutMessageStatus, reason: str | None, *, is_master: bool
) -> bytes:
    opaque, serialize_type, transaction_id = request.tag
    appended = request.append_result
    fields = {}
    if appended is not None and status.stored:
        fields = stored_fields(
            appended.message_id, request.queue_id, appended.queue_offset, transaction_id
        )
    fields[PUT_STATUS_FIELD] = status.value
    if not is_master:
        fields[NOT_MASTER_FIELD] = "true"
    return encode_command(
        RemotingCommand(
            code=RESPONSE_CODES[status],
            opaque=opaque,
            flag=FLAG_RESPONSE,
            ext_fields=fields,
            remark=reason or status.value,
            serialize_type=SerializeType(serialize_type),
        )
    )
