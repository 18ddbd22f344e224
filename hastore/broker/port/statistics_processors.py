"""Questions of RocketMQ's tools and dashboards about consumption, topics and clients.

===========================================  ====================================================
GET_TOPIC_STATS_INFO (202)                   topic → {"offsetTable": {queue: minOffset maxOffset
                                             lastUpdateTimestamp}}
GET_PRODUCER_CONNECTION_LIST (204)           producerGroup → {"connectionSet": […]}
GET_CONSUME_STATS (208)                      consumerGroup [topic] [topicList] → {"consumeTps",
                                             "offsetTable": {queue: brokerOffset consumerOffset
                                             lastTimestamp pullOffset}}
QUERY_TOPIC_CONSUME_BY_WHO (300)             topic → {"groupList": […]}
QUERY_CONSUME_TIME_SPAN (303)                topic group → {"consumeTimeSpanSet": […]}
GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)      → {"topicList": […]}
VIEW_BROKER_STATS_DATA (315)                 statsName statsKey → statsMinute statsHour statsDay
GET_BROKER_CONSUME_STATS (317)               [isOrder] → {"brokerAddr", "totalDiff",
                                             "consumeStatsList": [{group: [as 208, by topic]}]}
===========================================  ====================================================

Slaves answer all of them.  Rows by queue have RocketMQ's form (``hastore.wire.queue_tables``).  A
time is a message's store timestamp in ms, 0 if there is no such message.  Source: RocketMQ 4.9.8
``AdminBrokerProcessor``; ``topicList`` and ``pullOffset`` are 5.3.3's.

One answer about queues or groups is made at a time, with a checkpoint after every few rows.

Invariant: an answer has at most ROWS_MAX queues, so that it fits a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.consumer_offset_manager import TOPIC_GROUP_SEPARATOR
from hastore.broker.groups.consumer_processors import consumed_topics
from hastore.broker.groups.producer_manager import connection_to_dict
from hastore.broker.observe.broker_stats import DAY_S, HOUR_S, MINUTE_S
from hastore.errors import RequestFailedError
from hastore.topic import SYSTEM_TOPICS, reply_topic
from hastore.wire import liberal_json
from hastore.wire.liberal_json import Items
from hastore.wire.queue_tables import object_with, queue_key, queue_row, queue_table
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import (
    boolean_field,
    check_text,
    json_response,
    name_field,
    required_text_field,
    text_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.groups.consumer_manager import ConsumerManager
    from hastore.broker.observe.broker_stats import BrokerStats
    from hastore.broker.pulls.cold_reader import ColdReader
    from hastore.broker.request_target import RequestTarget
    from hastore.env.interface import WallClock
    from hastore.wire.config_tables import TopicConfig
    from hastore.wire.pieces import Pieces
    from hastore.wire.remoting_command import RemotingCommand

ROWS_MAX: Final = 16_384
_KEYS_OF_A_PIECE: Final = 2_000
_ROWS_OF_A_PIECE: Final = 32


@final
@attrs.define(eq=False)
class _Consumption:
    """A group's rows in one topic, as text, and how many messages it has not consumed."""

    topic: str
    rows: list[str] = attrs.field(factory=list)
    behind: int = 0


@final
@attrs.define(eq=False)
class StatisticsProcessors:
    """Answers tools; each method takes a request and returns the response."""

    target: RequestTarget
    data: BrokerData
    consumers: ConsumerManager
    stats: BrokerStats
    clock: WallClock
    _cold_reader: ColdReader
    _one_answer: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    # -- consumption -----------------------------------------------------------------------------

    async def consume_stats(self, request: RemotingCommand) -> RemotingCommand:
        """Return how far a group has consumed its topics."""
        fields = request.ext_fields
        group = name_field(fields, "consumerGroup")
        wanted = consumed_topics(fields)
        async with self._one_answer:
            topics = (await self._topics_by_group(of_group=group)).get(group, [])
            if wanted:
                topics = [topic for topic in topics if topic in wanted]
            found = await self._consumptions(group, topics, ROWS_MAX)
        rows = [row for each in found for row in each.rows]
        tps = sum(self.stats.consume_tps(each.topic, group) for each in found)
        return _answer(request, _consume_stats(rows, tps))

    async def all_consume_stats(self, request: RemotingCommand) -> RemotingCommand:
        """Return how far all groups have consumed their topics, of ordered topics only if asked."""
        is_order = boolean_field(request.ext_fields, "isOrder")
        groups, total, room = [], 0, ROWS_MAX
        async with self._one_answer:
            for group, topics in (await self._topics_by_group()).items():
                found = await self._consumptions(group, topics, room, is_order=is_order)
                if not found:
                    continue
                room -= sum(len(each.rows) for each in found)
                total += sum(each.behind for each in found)
                texts = [
                    _consume_stats(each.rows, self.stats.consume_tps(each.topic, group))
                    for each in found
                ]
                groups.append(object_with(group, f"[{','.join(texts)}]"))
        body = object_with(
            "consumeStatsList",
            f"[{','.join(groups)}]",
            brokerAddr=self.target.status().address,
            totalDiff=total,
        )
        return _answer(request, body)

    async def _topics_by_group(
        self, *, of_group: str | None = None, of_topic: str | None = None
    ) -> dict[str, list[str]]:
        """Return the topics in which each group has offsets: all, or of one group or topic."""
        found: dict[str, list[str]] = {}
        for number, key in enumerate(list(self.data.offsets.offsets), 1):
            topic, _, group = key.rpartition(TOPIC_GROUP_SEPARATOR)
            if of_group in {None, group} and of_topic in {None, topic}:
                found.setdefault(group, []).append(topic)
            if number % _KEYS_OF_A_PIECE == 0:
                await trio.lowlevel.checkpoint()
        return found

    async def _consumptions(
        self, group: str, topics: Iterable[str], room: int, *, is_order: bool = False
    ) -> list[_Consumption]:
        """Return a group's rows by topic.

        Topics without a configuration are left out, and so are those to which a group that is
        connected has no subscription.
        """
        online = self.consumers.groups.get(group)
        configs: list[TopicConfig] = []
        for topic in topics:
            config = self.data.topics.topics.get(topic)
            is_left = online is not None and online.subscription(topic) is None
            if config is None or is_left or (is_order and not config.order):
                continue
            configs.append(config)
            room -= config.read_queue_nums
        check_room(room)
        found = []
        for config in configs:
            consumption = _Consumption(config.topic)
            for queue_id in range(config.read_queue_nums):
                await self._add(consumption, group, queue_id)
            found.append(consumption)
        return found

    async def _add(self, consumption: _Consumption, group: str, queue_id: int) -> None:
        topic = consumption.topic
        end = self.target.message_store.max_offset_in_queue(topic, queue_id)
        offset = self.data.offsets.query(group, topic, queue_id) or 0
        value = {
            "brokerOffset": end,
            "consumerOffset": offset,
            "lastTimestamp": await self._store_time(topic, queue_id, offset - 1),
            "pullOffset": offset,
        }
        consumption.rows.append(queue_row(self._key(topic, queue_id), value))
        consumption.behind += end - offset
        if queue_id % _ROWS_OF_A_PIECE == 0:
            await trio.lowlevel.checkpoint()

    async def time_span(self, request: RemotingCommand) -> RemotingCommand:
        """Return, for each queue of a topic, the times of its messages and of a group's offset."""
        fields = request.ext_fields
        group, config = name_field(fields, "group"), self._config_of(request)
        topic, store = config.topic, self.target.message_store
        check_room(ROWS_MAX - config.write_queue_nums)
        spans = []
        async with self._one_answer:
            for queue_id in range(config.write_queue_nums):
                first, end = (
                    store.min_offset_in_queue(topic, queue_id),
                    store.max_offset_in_queue(topic, queue_id),
                )
                offset = self.data.offsets.query(group, topic, queue_id) or 0
                least = await self._store_time(topic, queue_id, first)
                consumed, delay_ms = least, 0
                if offset > 0:
                    consumed = await self._store_time(topic, queue_id, offset - 1)
                if offset < end:
                    next_ms = await self._store_time(topic, queue_id, max(offset, first))
                    delay_ms = self.clock.now_ms() - next_ms
                spans.append(
                    {
                        "messageQueue": self._key(topic, queue_id),
                        "minTimeStamp": least,
                        "maxTimeStamp": await self._store_time(topic, queue_id, end - 1),
                        "consumeTimeStamp": consumed,
                        "delayTime": delay_ms,
                    }
                )
                if queue_id % _ROWS_OF_A_PIECE == 0:
                    await trio.lowlevel.checkpoint()
        return json_response(request, {"consumeTimeSpanSet": spans})

    async def groups_of_topic(self, request: RemotingCommand) -> RemotingCommand:
        """Return the groups that subscribe to a topic, or have offsets in it."""
        topic = name_field(request.ext_fields, "topic")
        async with self._one_answer:
            groups = set(await self._topics_by_group(of_topic=topic))
            for number, (name, group) in enumerate(list(self.consumers.groups.items()), 1):
                if group.subscription(topic) is not None:
                    groups.add(name)
                if number % _KEYS_OF_A_PIECE == 0:
                    await trio.lowlevel.checkpoint()
        return json_response(request, {"groupList": sorted(groups)})

    # -- topics ----------------------------------------------------------------------------------

    async def topic_stats(self, request: RemotingCommand) -> RemotingCommand:
        """Return the offsets of a topic's queues, and when each got its last message."""
        config, store = self._config_of(request), self.target.message_store
        topic, queues = config.topic, max(config.read_queue_nums, config.write_queue_nums)
        check_room(ROWS_MAX - queues)
        rows = []
        async with self._one_answer:
            for queue_id in range(queues):
                end = store.max_offset_in_queue(topic, queue_id)
                value = {
                    "lastUpdateTimestamp": await self._store_time(topic, queue_id, end - 1),
                    "maxOffset": end,
                    "minOffset": store.min_offset_in_queue(topic, queue_id),
                }
                rows.append(queue_row(self._key(topic, queue_id), value))
                if queue_id % _ROWS_OF_A_PIECE == 0:
                    await trio.lowlevel.checkpoint()
        return _answer(request, object_with("offsetTable", queue_table(rows)))

    def system_topics(self, request: RemotingCommand) -> RemotingCommand:
        """Return the topics that belong to the broker, whether they exist or not."""
        own = {self.target.cluster, self.target.broker_name, reply_topic(self.target.cluster)}
        return json_response(request, {"topicList": sorted(SYSTEM_TOPICS | own)})

    def _config_of(self, request: RemotingCommand) -> TopicConfig:
        topic = required_text_field(request.ext_fields, "topic")
        check_text("the topic", topic)
        config = self.data.topics.topics.get(topic)
        if config is None:
            msg = f"topic {topic:.128} does not exist"
            raise RequestFailedError(msg, code=ResponseCode.TOPIC_NOT_EXIST)
        return config

    def _key(self, topic: str, queue_id: int) -> dict[str, Any]:
        return queue_key(topic, self.target.broker_name, queue_id)

    async def _store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store timestamp of a message; 0 if there is none."""
        store = self.target.message_store
        if queue_offset < 0:
            return 0
        steps = store.store_time_steps(topic, queue_id, queue_offset)
        return max(await self._cold_reader.run(store.commit_log, steps), 0)

    # -- clients and counts ----------------------------------------------------------------------

    def producers(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return the connections of a producer group."""
        group = name_field(request.ext_fields, "producerGroup")
        members = self.consumers.producers.members(group)
        if not members:
            msg = f"the producer group[{group}] not exist"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        rows = {"connectionSet": Items(tuple(members.items()), connection_to_dict)}
        body = yield from liberal_json.dumps_in_pieces(rows)
        return request.response(ResponseCode.SUCCESS, body=body)

    def stats_data(self, request: RemotingCommand) -> RemotingCommand:
        """Return a count of the last minute, hour and day."""
        fields = request.ext_fields
        name, key = required_text_field(fields, "statsName"), text_field(fields, "statsKey") or ""
        item, now = self.stats.find(name, key, self.target.cluster), trio.current_time()
        if item is None:
            msg = f"The stats <{name:.64}> <{key:.400}> not exist"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        return json_response(
            request,
            {
                "statsMinute": item.snapshot(MINUTE_S, now),
                "statsHour": item.snapshot(HOUR_S, now),
                "statsDay": item.snapshot(DAY_S, now),
            },
        )


def _consume_stats(rows: Iterable[str], tps: float) -> str:
    return object_with("offsetTable", queue_table(rows), consumeTps=round(tps, 2))


def _answer(request: RemotingCommand, body: str) -> RemotingCommand:
    return request.response(ResponseCode.SUCCESS, body=body.encode())


def check_room(room: int, ask_for: str = "one topic") -> None:
    """Raise RequestFailedError for an answer that has too many queues."""
    if room < 0:
        msg = f"the answer would have more than {ROWS_MAX} queues: ask for {ask_for}"
        raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
