"""Derives a record's consume queue unit and index keys by RocketMQ's dispatch rules.

The dispatch of a running node (``hastore.dispatch.record_dispatcher``) applies the same rules to
records that it has just encoded; this is for tools that read a log record by record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from hastore.store.record.delay_levels import parse_level
from hastore.store.record.java_hash import tags_code
from hastore.store.record.layout import (
    INNER_BATCH_FLAG,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import decode_properties
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.record.record_check import RecordCheck


class DerivedRecord(NamedTuple):
    """Whether a record has a unit, its tags code, and its keys in the index's order."""

    topic: str
    is_in_queue: bool
    tags_code: int  # of a delayed message: when it is due
    keys: tuple[str, ...]


def derive(check: RecordCheck, delay_levels: DelayLevels) -> DerivedRecord:
    """Return unit and keys of a record.

    Messages without a transaction and committed ones have a unit; all but rolled-back ones have
    keys.  A batch in one record has neither: it belongs in ``batchconsumequeue/``.
    """
    topic = check.topic.decode(errors="surrogateescape")
    if check.sys_flag & INNER_BATCH_FLAG:
        return DerivedRecord(topic, is_in_queue=False, tags_code=0, keys=())
    properties = decode_properties(check.properties) if check.properties else {}
    transaction_type = check.sys_flag & TRANSACTION_TYPE_MASK
    is_in_queue = transaction_type in {0, TRANSACTION_COMMIT_TYPE}
    code = tags_code(properties.get(PROPERTY_TAGS))
    if topic == SCHEDULE_TOPIC:
        level = parse_level(properties.get(PROPERTY_DELAY_TIME_LEVEL))
        if level > 0:
            code = delay_levels.deliver_time_ms(level, check.store_timestamp_ms)
    keys: list[str] = []
    if transaction_type != TRANSACTION_ROLLBACK_TYPE:
        keys = [
            properties.get(PROPERTY_UNIQ_KEY, ""),
            *properties.get(PROPERTY_KEYS, "").split(" "),
        ]
    return DerivedRecord(topic, is_in_queue, code, tuple(key for key in keys if key))
