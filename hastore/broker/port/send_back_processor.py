"""CONSUMER_SEND_MSG_BACK (36): a consumer failed on a message, and will get it again later.

::

    fields   offset (physical) group delayLevel originMsgId originTopic maxReconsumeTimes

    consumer ─► %RETRY%group, delayed by level 3 + reconsumeTimes (or as asked)
                 └─ after max_reconsume_times, or delayLevel < 0 ─► %DLQ%group, without consumers

The whole message is stored again, with its original topic in RETRY_TOPIC and its original id in
ORIGIN_MESSAGE_ID.  Source: RocketMQ 4.9.8 ``AbstractSendMessageProcessor``.

Invariant: the answer is a success if and only if the message is stored again, or the group's
configuration says that it should not be.  In a replica group, stored is what is PUT_OK: another
node may become master, and lack the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import RequestFailedError
from hastore.message import (
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_WAIT_STORE_MSG_OK,
    Message,
)
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.record import layout, message_codec
from hastore.topic import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from hastore.wire.config_tables import RETRY_QUEUE_NUMS
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import check_text, integer_field, required_text_field

if TYPE_CHECKING:
    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.pulls.message_by_offset import MessageByOffset, Place
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.message import StoredMessage
    from hastore.wire.config_tables import SubscriptionGroupConfig
    from hastore.wire.remoting_command import RemotingCommand

PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
FIRST_RETRY_LEVEL: Final = 3  # 10 s in the default table
_DLQ_QUEUE_NUMS: Final = 1
_RECONSUME_TIMES_MAX: Final = 1_000_000
# The store sets these for the hosts of the new record.
_HOST_FLAGS: Final = layout.BORN_HOST_V6_FLAG | layout.STORE_HOST_V6_FLAG


@final
@attrs.define(eq=False)
class SendBackProcessor:
    """Stores messages again that consumers send back, through ``target.submit``."""

    target: RequestTarget
    data: BrokerData
    by_offset: MessageByOffset

    async def send_back(
        self, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand:
        """Store one message again, and wait for its status."""
        if self.target.role is BrokerRole.SLAVE:
            msg = "this node is a slave; send to its master"
            raise RequestFailedError(msg, code=ResponseCode.SERVICE_NOT_AVAILABLE)
        fields = request.ext_fields
        name = required_text_field(fields, "group")
        check_text("the group", name)
        if not self.data.groups.find(name).retry_queue_nums:
            return request.response(ResponseCode.SUCCESS)  # the group has no retries
        place = await self.by_offset.find(request)
        group = self.data.groups.find(name)
        delay_level = integer_field(fields, "delayLevel", 0)
        times_max = integer_field(fields, "maxReconsumeTimes", group.retry_max_times)
        put = await self._put_again(place, group, delay_level, times_max, client.owner)
        status = await put.wait()
        may_move = self.target.role_control is not None
        if not status.stored or (may_move and status is not PutMessageStatus.PUT_OK):
            msg = f"{status.value}: {put.reason or 'not stored'}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        return request.response(ResponseCode.SUCCESS)

    async def _put_again(
        self,
        place: Place,
        group: SubscriptionGroupConfig,
        delay_level: int,
        times_max: int,
        owner: str,
    ) -> GroupCommitRequest:
        """Submit a message again; keep it in memory no longer than that."""
        record = await self.by_offset.read(place)
        message = self._again(message_codec.decode(record), group, delay_level, times_max, owner)
        return self.target.submit(message)

    def _again(
        self,
        stored: StoredMessage,
        group: SubscriptionGroupConfig,
        delay_level: int,
        times_max: int,
        owner: str,
    ) -> Message:
        properties = dict(stored.properties)
        properties.pop(PROPERTY_CRC32, None)
        properties.pop(PROPERTY_DELAY_TIME_LEVEL, None)
        properties.setdefault(PROPERTY_RETRY_TOPIC, stored.topic)
        properties.setdefault(
            PROPERTY_ORIGIN_MESSAGE_ID,
            message_codec.message_id(stored.store_host, stored.physic_offset),
        )
        # The consumer drops the message after a success, so this put waits for disk and slaves.
        properties.pop(PROPERTY_WAIT_STORE_MSG_OK, None)
        if stored.reconsume_times >= times_max or delay_level < 0:
            topic = DLQ_TOPIC_PREFIX + group.group
            self.data.keep_group(group.group, topic, _DLQ_QUEUE_NUMS, owner)
        else:
            topic = RETRY_TOPIC_PREFIX + group.group
            queue_nums = group.retry_queue_nums or RETRY_QUEUE_NUMS
            self.data.keep_group(group.group, topic, queue_nums, owner)
            level = delay_level or FIRST_RETRY_LEVEL + stored.reconsume_times
            properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        return Message(
            topic,
            stored.body,
            properties=properties,
            flag=stored.flag,
            sys_flag=stored.sys_flag & ~_HOST_FLAGS,
            born_timestamp_ms=stored.born_timestamp_ms,
            born_host=stored.born_host,
            reconsume_times=min(stored.reconsume_times + 1, _RECONSUME_TIMES_MAX),
        )
