"""What tools have a master do to consumers: reset their offsets, and ask or command one of them.

===========================================  ====================================================
INVOKE_BROKER_TO_RESET_OFFSET (222)          topic group timestamp isForce [queueId] [offset]
                                             → {"offsetTable": {queue: offset}}
GET_CONSUMER_RUNNING_INFO (307)              consumerGroup clientId [jstackEnable] → as the client
CONSUME_MESSAGE_DIRECTLY (309)               consumerGroup clientId msgId … → as the client
===========================================  ====================================================

222 sets the offsets here, whether the group is connected or not.  Members of a connected group get
RESET_CONSUMER_CLIENT_OFFSET (220) one-way, as from RocketMQ 4.9; those that do not know it learn
the offset from their next pull, as from RocketMQ 5 (``PULL_OFFSET_MOVED``)::

    222 ─► consumer offsets ─► 220 to each member ─► member drops the queue, begins at the offset
                └─► reset pending: members' commits ─► ignored
                      until a member pulls ─► "begin at the offset", or consumer_timeout_ms is over

307 and 309 go to the member's connection and wait for its answer, as replies do
(``ClientRequests``).  Source: RocketMQ 4.9.8 ``Broker2Client``, 5.3.3 ``AdminBrokerProcessor``.

Invariant: of a topic's queues all are reset, or none; at most ROWS_MAX.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.port.statistics_processors import ROWS_MAX, check_room
from hastore.broker.reply import ready
from hastore.concurrency.tcp import describe
from hastore.errors import RequestFailedError
from hastore.status import BrokerRole
from hastore.wire.queue_tables import object_with, queue_key, queue_row, queue_table
from hastore.wire.remoting_codes import (
    CODE_MAX,
    CODE_MIN,
    FLAG_ONE_WAY,
    RequestCode,
    ResponseCode,
)
from hastore.wire.remoting_command import (
    RemotingCommand,
    boolean_field,
    integer_field,
    name_field,
    required_text_field,
    text_field,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hastore.broker.client_requests import ClientRequests
    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.groups.consumer_manager import ConsumerManager
    from hastore.broker.pulls.cold_reader import ColdReader
    from hastore.broker.pulls.message_by_offset import MessageByOffset
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget

_TO_THE_END: Final = -1  # as a timestamp
_ALL_QUEUES: Final = -1
_NO_OFFSET: Final = -1
# Fields that a member gets: all but those that prove who asks.
_RUNNING_INFO_FIELDS: Final = ("consumerGroup", "clientId", "jstackEnable")
_CONSUME_FIELDS: Final = (
    "consumerGroup",
    "clientId",
    "msgId",
    "brokerName",
    "topic",
    "topicSysFlag",
    "groupSysFlag",
)
_MESSAGE_ID: Final = re.compile("(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})([0-9A-Fa-f]{16})")


@final
@attrs.define(eq=False)
class ClientControlProcessors:
    """Answers tools; the methods take a request, and the client that asks."""

    target: RequestTarget
    data: BrokerData
    consumers: ConsumerManager
    client_requests: ClientRequests
    by_offset: MessageByOffset
    # Wakes the pulls that are held on a queue.
    wake_pulls: Callable[[str, int], None]
    _cold_reader: ColdReader

    # -- offsets ---------------------------------------------------------------------------------

    async def reset_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """Set a group's offsets in a topic's queues by time; unless forced, move back only."""
        if self.target.role is BrokerRole.SLAVE:
            msg = "this node is a slave; ask its master"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        fields = request.ext_fields
        topic, group = name_field(fields, "topic"), name_field(fields, "group")
        timestamp_ms = integer_field(fields, "timestamp", bits=64)
        queue_ids = self._queues_of(request, topic)
        self._check_group(group)
        offset = integer_field(fields, "offset", _NO_OFFSET, bits=64)
        if offset != _NO_OFFSET and integer_field(fields, "queueId", _ALL_QUEUES) >= 0:
            wanted = {queue_ids[0]: self._checked_offset(topic, queue_ids[0], offset)}
        else:
            wanted = {
                queue_id: await self._offset_at(topic, queue_id, timestamp_ms)
                for queue_id in queue_ids
            }
        if not boolean_field(fields, "isForce"):
            for queue_id, offset in wanted.items():
                present = self.data.offsets.query(group, topic, queue_id)
                wanted[queue_id] = offset if present is None else min(offset, present)
        self._reset(topic, group, wanted)
        await self.data.offsets_file.persist()
        self._notify(topic, group, timestamp_ms, wanted)
        for queue_id in wanted:
            self.wake_pulls(topic, queue_id)
        return request.response(ResponseCode.SUCCESS, body=self._table(topic, wanted))

    def _queues_of(self, request: RemotingCommand, topic: str) -> Sequence[int]:
        config = self.data.topics.topics.get(topic)
        if config is None:
            msg = f"topic {topic:.128} does not exist"
            raise RequestFailedError(msg, code=ResponseCode.TOPIC_NOT_EXIST)
        queue_id = integer_field(request.ext_fields, "queueId", _ALL_QUEUES)
        if queue_id >= config.read_queue_nums or not config.read_queue_nums:
            msg = f"topic {topic} has no queue {queue_id} to read: {config.read_queue_nums} in all"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        if queue_id >= 0:
            return (queue_id,)
        check_room(ROWS_MAX - config.read_queue_nums, "one queue")
        return range(config.read_queue_nums)

    def _check_group(self, group: str) -> None:
        if group not in self.data.groups.groups and group not in self.consumers.groups:
            msg = f"consumer group {group:.255} does not exist"
            raise RequestFailedError(msg, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

    def _checked_offset(self, topic: str, queue_id: int, offset: int) -> int:
        store = self.target.message_store
        first = store.min_offset_in_queue(topic, queue_id)
        end = store.max_offset_in_queue(topic, queue_id)
        if not first <= offset <= end:
            msg = f"offset {offset} is not in queue {queue_id} of topic {topic}: {first} to {end}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        return offset

    async def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        store = self.target.message_store
        if timestamp_ms == _TO_THE_END:
            return store.max_offset_in_queue(topic, queue_id)
        steps = store.offset_by_time_steps(topic, queue_id, timestamp_ms)
        return await self._cold_reader.run(store.commit_log, steps)

    def _reset(self, topic: str, group: str, wanted: Mapping[int, int]) -> None:
        """Set the offsets, after a check that there is room for all."""
        for queue_id in wanted:
            self.data.offsets.check(group, topic, queue_id)
        for queue_id, offset in wanted.items():
            self.data.commit(group, topic, queue_id, offset, None, is_slave=False)
        self.consumers.reset(group, topic, wanted)

    def _notify(self, topic: str, group: str, timestamp_ms: int, wanted: Mapping[int, int]) -> None:
        """Tell each member of a group; the C++ client reads another form of the offsets."""
        online = self.consumers.groups.get(group)
        rows = [
            {**queue_key(topic, self.target.broker_name, queue_id), "offset": offset}
            for queue_id, offset in wanted.items()
        ]
        as_list = json.dumps({"offsetTable": rows}, separators=(",", ":")).encode()
        as_table = self._table(topic, wanted)
        for client, member in () if online is None else tuple(online.members.items()):
            client.notify(
                RemotingCommand(
                    code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    flag=FLAG_ONE_WAY,
                    ext_fields={"topic": topic, "group": group, "timestamp": str(timestamp_ms)},
                    body=as_list if member.language == "CPP" else as_table,
                )
            )

    def _table(self, topic: str, wanted: Mapping[int, int]) -> bytes:
        name = self.target.broker_name
        rows = [queue_row(queue_key(topic, name, each), wanted[each]) for each in wanted]
        return object_with("offsetTable", queue_table(rows)).encode()

    # -- one member ------------------------------------------------------------------------------

    async def running_info(
        self, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | None:
        """Ask a member how it runs; None: its answer follows."""
        self._pass_on(request, client, _RUNNING_INFO_FIELDS, b"")
        return None

    async def consume_directly(
        self, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | None:
        """Have a member consume one message; None: its answer follows."""
        self._member_of(request)
        found = _MESSAGE_ID.fullmatch(required_text_field(request.ext_fields, "msgId"))
        if found is None:
            msg = "msgId is not an offsetMsgId: 32 hexadecimal digits, or 56 with IPv6"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        fields = {**request.ext_fields, "offset": str(int(found[1], 16))}
        place = await self.by_offset.find(attrs.evolve(request, ext_fields=fields))
        record = await self.by_offset.read(place)
        self._pass_on(request, client, _CONSUME_FIELDS, record)
        return None

    def _pass_on(
        self,
        request: RemotingCommand,
        client: ClientConnection,
        names: Sequence[str],
        body: bytes,
    ) -> None:
        member, what = self._member_of(request)
        fields = {
            name: value
            for name in names
            if (value := text_field(request.ext_fields, name)) is not None
        }
        kept = request.without_content()

        def done(answer: RemotingCommand | None) -> None:
            if answer is None:
                response = kept.response(
                    ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"{what} gives no answer"
                )
            elif not CODE_MIN <= answer.code <= CODE_MAX:
                response = kept.response(
                    ResponseCode.SYSTEM_ERROR, remark=f"{what} answers with code {answer.code}"
                )
            else:
                response = kept.response(answer.code, remark=answer.remark, body=answer.body)
            if not kept.is_one_way:
                client.answer_later(ready(response))

        command = RemotingCommand(code=request.code, ext_fields=fields, body=body)
        self.client_requests.ask(member, command, done)

    def _member_of(self, request: RemotingCommand) -> tuple[ClientConnection, str]:
        """Return a member's connection, and its name for people."""
        fields = request.ext_fields
        name, client_id = name_field(fields, "consumerGroup"), name_field(fields, "clientId")
        group = self.consumers.groups.get(name)
        for client, member in () if group is None else group.members.items():
            if member.client_id == client_id:
                return client, f"The Consumer <{name}> <{client_id}> at {describe(client.peer)}"
        msg = f"The Consumer <{name}> <{client_id}> not online"
        raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
