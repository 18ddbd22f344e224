"""What each request of the client port needs: one table, and nothing without a row is allowed.

A row names what is needed, and where in the request the names are.  Every request but a heartbeat
of producers and the questions of clients that look for their master needs a permission; all need a
key.  RocketMQ has rules for eleven codes; the others any key may use there.

Invariant: names are read by the same functions as by the processors, so a request is never checked
for one topic and carried out for another.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from hastore.access.permissions import ADMIN, DENY, PUB, SUB, Need, Permission, Subject
from hastore.broker.groups.consumer_processors import consumed_topics, read_lock_request
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.heartbeat_data import read_heartbeat
from hastore.wire.pieces import at_once
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import (
    RemotingCommand,
    content_of,
    required_text_field,
    text_field,
)
from hastore.wire.send_message import send_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hastore.wire.pieces import Pieces

# Topics and groups that a request names.
Names = tuple[tuple[str, ...], tuple[str, ...]]


class Found(enum.Enum):
    """What else is checked: topics that only the log knows."""

    NOTHING = "nothing"
    # Before anything is done, by ``MessageByOffset``: the answer must not say what is there.
    AT_OFFSET = "the message at the request's offset"
    IN_ANSWER = "the messages of the answer"  # before it is sent


@attrs.frozen(kw_only=True)
class Rule:
    """What a request needs on the topics and groups that it names."""

    topic: Permission = DENY
    group: Permission = DENY
    is_admins: bool = False
    names: Callable[[RemotingCommand], Names] = lambda _request: ((), ())
    found: Found = Found.NOTHING
    may_be_held: bool = False  # it is checked again when it is answered
    # What reads the body, if the names are there: the guard has it read, in pieces, before them.
    read: Callable[[bytes], Pieces[object]] | None = None
    is_of_readers: bool = False  # its body names a group in each case: who can read nothing may not

    def needs(self, request: RemotingCommand) -> Iterable[Need]:
        """Return the needs of a request.  Raises ProtocolError for a malformed one."""
        if self.is_admins:
            return (ADMIN,)
        return self.needs_on(*self.names(request))

    def needs_on(self, topics: Iterable[str], groups: Iterable[str]) -> Iterator[Need]:
        """Yield the needs on these topics and groups."""
        for name in topics:
            yield Need(Subject.TOPIC, name, self.topic)
        for name in groups:
            yield Need(Subject.GROUP, name, self.group)

    @property
    def text(self) -> str:
        """What is needed, in words, as the table in the docs has it."""
        if self.is_admins:
            return "admin"
        parts = []
        if self.topic is not DENY:
            parts.append(f"{self.topic.text.replace('|', ' or ')} on the topic")
        if self.group is not DENY:
            parts.append(f"{self.group.text} on the group")
        if self.found is not Found.NOTHING:
            parts.append(f"SUB on the topic of {self.found.value}")
        return ", ".join(parts) or "any key"


def _sent(request: RemotingCommand) -> Names:
    return (send_topic(request.ext_fields),), ()


def _topic(request: RemotingCommand) -> Names:
    return (required_text_field(request.ext_fields, "topic"),), ()


def _topic_and_group(request: RemotingCommand) -> Names:
    fields = request.ext_fields
    return (required_text_field(fields, "topic"),), (required_text_field(fields, "consumerGroup"),)


def _group(request: RemotingCommand) -> Names:
    return (), (required_text_field(request.ext_fields, "consumerGroup"),)


def _consumed(request: RemotingCommand) -> Names:
    group = required_text_field(request.ext_fields, "consumerGroup")
    return tuple(consumed_topics(request.ext_fields)), (group,)


def _time_span(request: RemotingCommand) -> Names:
    fields = request.ext_fields
    return (required_text_field(fields, "topic"),), (required_text_field(fields, "group"),)


def _left_group(request: RemotingCommand) -> Names:
    group = text_field(request.ext_fields, "consumerGroup")
    return (), ((group,) if group else ())


def _sent_back(request: RemotingCommand) -> Names:
    return (), (required_text_field(request.ext_fields, "group"),)


def _routed(request: RemotingCommand) -> Names:
    topic = required_text_field(request.ext_fields, "topic")
    return (() if topic == DEFAULT_TOPIC else (topic,)), ()


def _heartbeat(request: RemotingCommand) -> Names:
    consumers = at_once(content_of(request, read_heartbeat)).consumers
    topics = {each.topic: None for consumer in consumers for each in consumer.subscriptions}
    return tuple(topics), tuple(dict.fromkeys(consumer.group for consumer in consumers))


def _locked(request: RemotingCommand) -> Names:
    wanted = at_once(content_of(request, read_lock_request))
    return tuple(dict.fromkeys(queue.topic for queue in wanted.queues)), (wanted.group,)


_PUBLISH: Final = Rule(topic=PUB, names=_sent)
_READ_TOPIC: Final = Rule(topic=SUB, names=_topic)
_PULL: Final = Rule(topic=SUB, group=SUB, names=_topic_and_group, may_be_held=True)
_CONSUME: Final = Rule(topic=SUB, group=SUB, names=_topic_and_group)
_IN_GROUP: Final = Rule(group=SUB, names=_group)
_LOCK: Final = Rule(topic=SUB, group=SUB, names=_locked, read=read_lock_request, is_of_readers=True)
_ADMIN: Final = Rule(is_admins=True)

RULES: Final[Mapping[int, Rule]] = {
    RequestCode.SEND_MESSAGE: _PUBLISH,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: Rule(topic=SUB, names=_topic, found=Found.IN_ANSWER),
    RequestCode.QUERY_CONSUMER_OFFSET: _CONSUME,
    RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUME,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    RequestCode.GET_ALL_TOPIC_CONFIG: _ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_RUNTIME_INFO: _ADMIN,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _READ_TOPIC,
    RequestCode.GET_MAX_OFFSET: _READ_TOPIC,
    RequestCode.GET_MIN_OFFSET: _READ_TOPIC,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _READ_TOPIC,
    RequestCode.VIEW_MESSAGE_BY_ID: Rule(found=Found.AT_OFFSET),
    RequestCode.HEART_BEAT: Rule(topic=SUB, group=SUB, names=_heartbeat, read=read_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Rule(group=SUB, names=_left_group),
    # Without the second part any message could be copied into one's own retry topic, and read.
    RequestCode.CONSUMER_SEND_MSG_BACK: Rule(group=SUB, names=_sent_back, found=Found.AT_OFFSET),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _IN_GROUP,
    RequestCode.LOCK_BATCH_MQ: _LOCK,
    RequestCode.UNLOCK_BATCH_MQ: _LOCK,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _ADMIN,
    RequestCode.GET_ALL_DELAY_OFFSET: _ADMIN,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rule(topic=PUB | SUB, names=_routed),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _ADMIN,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _IN_GROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMIN,
    RequestCode.GET_TOPIC_STATS_INFO: _READ_TOPIC,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _ADMIN,
    RequestCode.GET_CONSUME_STATS: Rule(topic=SUB, group=SUB, names=_consumed),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _ADMIN,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _READ_TOPIC,
    RequestCode.QUERY_CONSUME_TIME_SPAN: Rule(topic=SUB, group=SUB, names=_time_span),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Rule(),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _ADMIN,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _ADMIN,
    RequestCode.VIEW_BROKER_STATS_DATA: _ADMIN,
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMIN,
    RequestCode.GET_BROKER_CONSUME_STATS: _ADMIN,
    RequestCode.SEND_MESSAGE_V2: _PUBLISH,
    RequestCode.SEND_BATCH_MESSAGE: _PUBLISH,
    RequestCode.SEND_REPLY_MESSAGE: _PUBLISH,
    RequestCode.SEND_REPLY_MESSAGE_V2: _PUBLISH,
    # Clients ask each node of a group whether it is the master.
    RequestCode.GET_BROKER_HA_STATUS: Rule(),
    RequestCode.GET_BROKER_EPOCH_CACHE: _ADMIN,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _ADMIN,
    RequestCode.EXPLAIN_PUTS: _ADMIN,
    RequestCode.LOG_DIGEST: _ADMIN,
    RequestCode.PROMISE_NOT_TO_STAND: _ADMIN,
    RequestCode.GROUP_LOG: _ADMIN,
    RequestCode.COUNT_MESSAGES: _ADMIN,
    RequestCode.LOG_BYTES: _ADMIN,
}
