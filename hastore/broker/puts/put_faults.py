"""What is wrong with a message or a batch before anybody looks at the log: RocketMQ's rules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hastore.message import (
    INNER_BATCH_FLAG,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    TRANSACTION_TYPE_MASK,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.message import Message

TOPIC_SIZE_MAX: Final = 127
RETRY_TOPIC_SIZE_MAX: Final = 255
INNER_BATCH_FAULT: Final = "inner batches belong to BatchCQ topics, which this broker has not"
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def topic_fault(topic: str) -> str | None:
    """Say what is wrong with a topic's name; None where nothing is (RocketMQ's rules)."""
    if not topic:
        return "the topic is empty"
    if _TOPIC.fullmatch(topic) is None:
        return f"topic {topic!r} has characters other than a-z A-Z 0-9 _ - % |"
    retry = topic.startswith(("%RETRY%", "%DLQ%"))
    size_max = RETRY_TOPIC_SIZE_MAX if retry else TOPIC_SIZE_MAX
    if len(topic) > size_max:
        return f"topic {topic[:32]!r}… has {len(topic)} characters, at most {size_max} are allowed"
    return None


def batch_fault(messages: Sequence[Message]) -> str | None:
    """Say what is wrong with a batch; None where nothing is."""
    if not messages:
        return "the batch is empty"
    first = messages[0]
    for message in messages:
        if message.topic != first.topic or message.queue_id != first.queue_id:
            return "the messages of a batch must have one topic and one queue"
        properties = message.properties
        if properties and properties.get(PROPERTY_DELAY_TIME_LEVEL, "0") != "0":
            return "a batch must not hold delayed messages"
        if message.sys_flag & TRANSACTION_TYPE_MASK:
            return "a batch must not hold transactional messages"
        if message.sys_flag & INNER_BATCH_FLAG or (properties and PROPERTY_INNER_NUM in properties):
            return INNER_BATCH_FAULT
    return None
