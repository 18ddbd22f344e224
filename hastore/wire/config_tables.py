"""A broker's topics and subscription groups as JSON: on disk, and in bodies of 21, 200 and 201.

::

    topics.json               {"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": ms},
                               "topicConfigTable": {"T": {"topicName": "T", "perm": 6, ...,
                                                          "autoCreated": true}},
                               "deletedTopics": {"U": {"logOffset": 4096, "nextOffsets": {"0": 7}}}}
    subscriptionGroup.json    {"dataVersion": ..., "subscriptionGroupTable": {"g": {...}},
                               "deletedGroups": {"h": ms}}

Fields of an entry that hastore does not know are kept unchanged.  Source: RocketMQ 4.9.8
``TopicConfig``, ``SubscriptionGroupConfig``, ``DataVersion``.  The tables of what was deleted and
``autoCreated``, which is left out where it is false, are hastore's; RocketMQ ignores them.

Invariant: ``from_dict(x.to_dict()) == x``; bad JSON values raise ProtocolError and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs

from hastore.errors import ProtocolError
from hastore.quantities import read_integer
from hastore.wire.remoting_command import (
    boolean_field,
    check_text,
    integer_field,
    required_text_field,
    text_field,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
QUEUE_NUMS_MAX: Final = 65_535
RETRY_TIMES_MAX: Final = 16
RETRY_QUEUE_NUMS: Final = 1
# hastore's ext field in 21, 43 and 201 and their answers; valid on one connection only.
TABLE_TAG: Final = "tableTag"
# hastore's ext field in 105: the answer names the group of the node that is asked, and no other.
GROUP_ONLY: Final = "groupOnly"
# Names of hastore's tables of what was deleted.
DELETED_TOPICS: Final = "deletedTopics"
DELETED_GROUPS: Final = "deletedGroups"
# hastore's field of a topic.
AUTO_CREATED: Final = "autoCreated"
_LEVEL: Final = re.compile(r"[0-9]{1,5}")
_SINGLE_TAG: Final = "SINGLE_TAG"


@final
@attrs.frozen(kw_only=True)
class DataVersion:
    """How often a table has changed, and when it last did.

    ``state_version`` is RocketMQ 5's: the epoch of the master that changed it, 0 without epochs.
    """

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """Return the version after a change; without ``state_version`` that stays."""
        state = self.state_version if state_version is None else state_version
        return DataVersion(counter=self.counter + 1, timestamp_ms=now_ms, state_version=state)

    def to_dict(self) -> dict[str, int]:
        """Return the JSON object."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read a JSON object; a missing one is the first version.  Raises ProtocolError."""
        if not isinstance(value, dict):
            return cls()
        return cls(
            counter=integer_field(value, "counter", 0, bits=64),
            timestamp_ms=integer_field(value, "timestamp", 0, bits=64),
            state_version=integer_field(value, "stateVersion", 0, bits=64),
        )


@final
@attrs.frozen(kw_only=True)
class TopicConfig:
    """One topic: its number of queues and its permissions (``perm``: 4 read, 2 write)."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ_WRITE
    topic_filter_type: str = _SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    auto_created: bool = False  # for a client, so that it may be forgotten while it is not used
    other_fields: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may pull from it."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Whether producers may send to it."""
        return bool(self.perm & PERM_WRITE)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, unknown fields included."""
        return {
            **self.other_fields,
            **({AUTO_CREATED: True} if self.auto_created else {}),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_dict(cls, topic: str, value: Mapping[str, Any]) -> Self:
        """Read a topic's entry.  Raises ProtocolError."""
        return cls(
            topic=topic,
            read_queue_nums=_queue_nums(value, "readQueueNums"),
            write_queue_nums=_queue_nums(value, "writeQueueNums"),
            perm=integer_field(value, "perm", PERM_READ_WRITE) & PERM_READ_WRITE,
            topic_filter_type=text_field(value, "topicFilterType") or _SINGLE_TAG,
            topic_sys_flag=integer_field(value, "topicSysFlag", 0),
            order=boolean_field(value, "order"),
            auto_created=boolean_field(value, AUTO_CREATED),
            other_fields=_others(value, _TOPIC_FIELDS),
        )


_TOPIC_FIELDS: Final = frozenset(
    {
        AUTO_CREATED, "order", "perm", "readQueueNums", "topicFilterType", "topicName",
        "topicSysFlag", "writeQueueNums",
    }
)  # fmt: skip


@final
@attrs.frozen(kw_only=True)
class DeletedTopic:
    """What remains of a deleted topic while the log still has its records.

    Its records that begin below ``log_offset`` are in no consume queue any more.  A topic that is
    made again under the same name continues each queue at ``next_offsets``, so that no queue offset
    ever names two messages.
    """

    log_offset: int
    next_offsets: Mapping[int, int]  # by queue id; queues that never had a message are left out

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        next_offsets = {str(queue_id): offset for queue_id, offset in self.next_offsets.items()}
        return {"logOffset": self.log_offset, "nextOffsets": next_offsets}

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read a JSON object.  Raises ProtocolError."""
        rows = value.get("nextOffsets") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(rows, dict):
            msg = "a deleted topic is an object with logOffset and nextOffsets"
            raise ProtocolError(msg)
        next_offsets = {}
        for key in rows:
            queue_id = integer_field({"queueId": key}, "queueId")
            next_offset = integer_field(rows, key, bits=64)
            if not 0 <= queue_id < QUEUE_NUMS_MAX or next_offset < 0:
                msg = f"queue {queue_id} cannot continue at {next_offset}"
                raise ProtocolError(msg)
            next_offsets[queue_id] = next_offset
        log_offset = integer_field(value, "logOffset", bits=64)
        if log_offset < 0:
            msg = f"logOffset {log_offset} is below 0"
            raise ProtocolError(msg)
        return cls(log_offset=log_offset, next_offsets=next_offsets)


@final
@attrs.frozen(kw_only=True)
class SubscriptionGroupConfig:
    """One consumer group: what it may do, and how often a message is retried."""

    group: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_from_min_enable: bool = True
    retry_queue_nums: int = RETRY_QUEUE_NUMS
    retry_max_times: int = RETRY_TIMES_MAX
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    other_fields: Mapping[str, Any] = attrs.field(factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, unknown fields included."""
        return {
            **self.other_fields,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "groupName": self.group,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], group: str | None = None) -> Self:
        """Read a group's entry, whose name is ``group`` or its own field.  Raises ProtocolError."""
        if group is None:
            group = required_text_field(value, "groupName")
            check_text("the group", group)
        retry_queue_nums = integer_field(value, "retryQueueNums", RETRY_QUEUE_NUMS)
        if not 0 <= retry_queue_nums <= QUEUE_NUMS_MAX:
            msg = f"retryQueueNums {retry_queue_nums} is not 0 to {QUEUE_NUMS_MAX}"
            raise ProtocolError(msg)
        return cls(
            group=group,
            consume_enable=_enabled(value, "consumeEnable"),
            consume_broadcast_enable=_enabled(value, "consumeBroadcastEnable"),
            consume_from_min_enable=_enabled(value, "consumeFromMinEnable"),
            retry_queue_nums=retry_queue_nums,
            retry_max_times=integer_field(value, "retryMaxTimes", RETRY_TIMES_MAX),
            broker_id=integer_field(value, "brokerId", 0, bits=64),
            which_broker_when_consume_slowly=integer_field(
                value, "whichBrokerWhenConsumeSlowly", 1, bits=64
            ),
            notify_consumer_ids_changed_enable=_enabled(value, "notifyConsumerIdsChangedEnable"),
            other_fields=_others(value, _GROUP_FIELDS),
        )


_GROUP_FIELDS: Final = frozenset(
    {
        "brokerId", "consumeBroadcastEnable", "consumeEnable", "consumeFromMinEnable", "groupName",
        "notifyConsumerIdsChangedEnable", "retryMaxTimes", "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    }
)  # fmt: skip


def read_deleted_topics(value: Mapping[str, Any]) -> tuple[dict[str, DeletedTopic], list[str]]:
    """Return the deleted topics of topics.json, and the names of rows that cannot be read."""
    table, unreadable = {}, []
    rows = value.get(DELETED_TOPICS)
    for topic, row in rows.items() if isinstance(rows, dict) else ():
        try:
            table[topic] = DeletedTopic.from_dict(row)
        except ProtocolError:
            unreadable.append(topic)
    return table, unreadable


def stored_delay_offsets(value: Mapping[str, Any]) -> dict[int, int]:
    """Return the offsets of ``delayOffset.json`` by level, without rows that are not offsets."""
    table = value.get("offsetTable")
    found = {}
    for level, row in table.items() if isinstance(table, dict) else ():
        offset = read_integer(row)
        if _LEVEL.fullmatch(level) and offset is not None and offset >= 0:
            found[int(level)] = offset
    return found


def _queue_nums(value: Mapping[str, Any], name: str) -> int:
    queue_nums = integer_field(value, name)
    if not 0 <= queue_nums <= QUEUE_NUMS_MAX:
        msg = f"{name} {queue_nums} is not 0 to {QUEUE_NUMS_MAX}"
        raise ProtocolError(msg)
    return queue_nums


def _enabled(value: Mapping[str, Any], name: str) -> bool:
    return value.get(name) is None or boolean_field(value, name)


def _others(value: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name not in known}
