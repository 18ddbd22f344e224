"""HEART_BEAT (34): a client's id, the groups it consumes for, their subscriptions.

::

    {"clientID": "10.0.0.7@4711#1",
     "producerDataSet": [{"groupName": "g"}],
     "consumerDataSet": [{"groupName": "g", "consumeType": "CONSUME_PASSIVELY",
                          "messageModel": "CLUSTERING",
                          "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                          "subscriptionDataSet": [{"topic": "T", "subString": "*",
                                                   "subVersion": 1, ...}]}]}

An enum is a name or a number (the C++ client's); a number may be text; a newline may follow.
Source: RocketMQ 4.9.8 ``HeartbeatData``, ``ConsumerData``, ``SubscriptionData``.

Invariant: any bytes yield a HeartbeatData within the limits below, or a ProtocolError that names
the fault.
"""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hastore.errors import ProtocolError
from hastore.wire import liberal_json
from hastore.wire.pieces import ROWS_OF_A_PIECE
from hastore.wire.pull_message import EXPRESSION_SIZE_MAX, EXPRESSION_TAG
from hastore.wire.remoting_command import (
    check_text,
    integer_field,
    name_field,
    text_field,
)
from hastore.wire.request_sizes import LIST_SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.wire.pieces import Pieces

GROUPS_MAX: Final = 256  # of one client
SUBSCRIPTIONS_MAX: Final = 1_024  # of one group
# Bytes of memory that the subscriptions of one client may take: some 700 of usual names.
KEPT_SIZE_MAX: Final = 128 * 1024
_ALL: Final = "*"
_SHARED: Final = {text: text for text in (_ALL, EXPRESSION_TAG)}  # one object for all
_OBJECT_SIZE: Final = 112  # of a subscription, its version and the reference to it


class ConsumeType(enum.Enum):
    """Whether the client or the broker drives consumption; in the order of RocketMQ's numbers."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"


class MessageModel(enum.Enum):
    """Whether each member of a group gets each message; in the order of RocketMQ's numbers."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    """Where a group without an offset begins; in the order of RocketMQ's numbers."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


E = TypeVar("E", ConsumeType, MessageModel, ConsumeFromWhere)


@attrs.frozen(kw_only=True)
class Subscription:
    """A group's tag expression for one topic; ``version`` grows with each change."""

    topic: str
    expression: str
    version: int = 0
    expression_type: str = EXPRESSION_TAG

    @property
    def kept_size(self) -> int:
        """The bytes of memory that it takes."""
        own = [text for text in (self.expression, self.expression_type) if text not in _SHARED]
        return _OBJECT_SIZE + sum(map(sys.getsizeof, (self.topic, *own)))


@attrs.frozen(kw_only=True)
class ConsumerData:
    """One group that a client consumes for."""

    group: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()


@attrs.frozen(kw_only=True)
class HeartbeatData:
    """One heartbeat."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that RocketMQ's Java client sends."""
        return {
            "clientID": self.client_id,
            "consumerDataSet": [consumer_to_dict(consumer) for consumer in self.consumers],
            "producerDataSet": [{"groupName": group} for group in self.producer_groups],
        }


def consumer_to_dict(consumer: ConsumerData) -> dict[str, Any]:
    """Return the JSON object of one group."""
    return {
        "consumeFromWhere": consumer.consume_from_where.value,
        "consumeType": consumer.consume_type.value,
        "groupName": consumer.group,
        "messageModel": consumer.message_model.value,
        "subscriptionDataSet": [subscription_to_dict(one) for one in consumer.subscriptions],
        "unitMode": False,
    }


def subscription_to_dict(subscription: Subscription) -> dict[str, Any]:
    """Return the JSON object of one subscription."""
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": [],
        "topic": subscription.topic,
    }


def read_heartbeat(body: bytes) -> Pieces[HeartbeatData]:
    """Read a heartbeat's body, in pieces.  Raises ProtocolError."""
    if len(body) > LIST_SIZE_MAX:
        msg = f"a heartbeat of {len(body)} bytes; at most {LIST_SIZE_MAX}"
        raise ProtocolError(msg)
    data = yield from liberal_json.loads_object_in_pieces(
        body, "the heartbeat", values_max=liberal_json.LARGE_VALUES_MAX
    )
    try:
        consumers: list[ConsumerData] = []
        for row in _rows(data, "consumerDataSet", GROUPS_MAX):
            consumer = yield from _consumer(row)
            consumers.append(consumer)
        producers = _rows(data, "producerDataSet", GROUPS_MAX)
        heartbeat = HeartbeatData(
            client_id=name_field(data, "clientID"),
            consumers=tuple(consumers),
            producer_groups=tuple(name_field(row, "groupName") for row in producers),
        )
    except ProtocolError as error:
        msg = f"the heartbeat: {str(error).replace('ext field', 'field')}"
        raise ProtocolError(msg) from error
    count = sum(len(consumer.subscriptions) for consumer in consumers)
    kept_size = sum(one.kept_size for consumer in consumers for one in consumer.subscriptions)
    if kept_size > KEPT_SIZE_MAX:
        msg = (
            f"the {count} subscriptions of a heartbeat take {kept_size} bytes of memory; at most"
            f" {KEPT_SIZE_MAX}: use more clients, each with fewer of them"
        )
        raise ProtocolError(msg)
    return heartbeat


def _consumer(row: Mapping[str, Any]) -> Pieces[ConsumerData]:
    subscriptions: list[Subscription] = []
    for one in _rows(row, "subscriptionDataSet", SUBSCRIPTIONS_MAX):
        subscriptions.append(_subscription(one))
        if len(subscriptions) % ROWS_OF_A_PIECE == 0:
            yield 0
    return ConsumerData(
        group=name_field(row, "groupName"),
        consume_type=_enum(ConsumeType, row, "consumeType", ConsumeType.PASSIVELY),
        message_model=_enum(MessageModel, row, "messageModel", MessageModel.CLUSTERING),
        consume_from_where=_enum(
            ConsumeFromWhere, row, "consumeFromWhere", ConsumeFromWhere.LAST_OFFSET
        ),
        subscriptions=tuple(subscriptions),
    )


def _subscription(row: Mapping[str, Any]) -> Subscription:
    expression = text_field(row, "subString") or _ALL
    if len(expression) > EXPRESSION_SIZE_MAX:
        msg = f"a subscription of {len(expression)} characters; at most {EXPRESSION_SIZE_MAX}"
        raise ProtocolError(msg)
    check_text("a subscription", expression)
    kind = name_field(row, "expressionType") if row.get("expressionType") else EXPRESSION_TAG
    return Subscription(
        topic=name_field(row, "topic"),
        expression=_SHARED.get(expression, expression),
        version=integer_field(row, "subVersion", 0, bits=64),
        expression_type=_SHARED.get(kind, kind),
    )


def _rows(data: Mapping[str, Any], field: str, count_max: int) -> list[dict[str, Any]]:
    rows = data.get(field) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f"ext field {field} is not a list of objects"
        raise ProtocolError(msg)
    if len(rows) > count_max:
        msg = f"ext field {field} has {len(rows)} entries; at most {count_max}"
        raise ProtocolError(msg)
    return rows


def _enum(kind: type[E], row: Mapping[str, Any], field: str, default: E) -> E:
    """Read a member by its name or its number, which may be text."""
    text = text_field(row, field)
    if text is None:
        return default
    members = list(kind)
    for number, member in enumerate(members):
        if text in {member.value, str(number)}:
            return member
    msg = (
        f"ext field {field} is none of {', '.join(member.value for member in members)}: {text:.40}"
    )
    raise ProtocolError(msg)
