"""What is wrong with a message or a batch before anybody looks at the log: RocketMQ's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.message import PROPERTY_DELAY_TIME_LEVEL, PROPERTY_INNER_NUM
from hastore.store.record.layout import INNER_BATCH_FLAG, TRANSACTION_TYPE_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.message import Message

INNER_BATCH_FAULT: Final = "inner batches belong to BatchCQ topics, which this broker has not"


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
