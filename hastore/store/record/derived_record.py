"""Derives a record's consume queue unit and index keys: RocketMQ's dispatch rules.

A consume queue gets messages without a transaction and committed ones; the index gets the keys of
all but rolled-back ones: UNIQ_KEY, then each part of KEYS.  The unit of a message in
SCHEDULE_TOPIC_XXXX holds the time at which it is due instead of the tags code.

A running node's dispatch and the tools use ``derive``, record by record.  For ordinary records
there are two quicker ways with the same result: ``dispatch.record_scan``, and
``columnar.derived_columns``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


class DerivedRecord(NamedTuple):
    """Whether a record has a unit, its tags code, and its keys in the index's order."""

    topic: str
    is_in_queue: bool
    tags_code: int  # of its unit; of a delayed message: when it is due
    keys: tuple[str, ...]


def has_unit(sys_flag: Any) -> Any:
    """Whether a record has a unit: it is in no transaction or committed, and not a batch.

    A batch in one record belongs in ``batchconsumequeue/``.  Takes a numpy array of sysFlags, too.
    """
    kind = sys_flag & TRANSACTION_TYPE_MASK
    is_single = sys_flag & INNER_BATCH_FLAG == 0
    return ((kind == 0) | (kind == TRANSACTION_COMMIT_TYPE)) & is_single


def has_keys(sys_flag: Any) -> Any:
    """Whether a record has keys: it is neither rolled back nor a batch; of an array, too."""
    is_kept = sys_flag & TRANSACTION_TYPE_MASK != TRANSACTION_ROLLBACK_TYPE
    return is_kept & (sys_flag & INNER_BATCH_FLAG == 0)


def derive(
    topic: str, *, sys_flag: int, store_ms: int, properties: bytes, delay_levels: DelayLevels
) -> DerivedRecord:
    """Return unit and keys of a record; ``properties`` are its text."""
    pairs = decode_properties(properties) if properties else {}
    code = tags_code(pairs.get(PROPERTY_TAGS))
    if topic == SCHEDULE_TOPIC:
        level = parse_level(pairs.get(PROPERTY_DELAY_TIME_LEVEL))
        if level > 0:
            code = delay_levels.deliver_time_ms(level, store_ms)
    keys: list[str] = []
    if has_keys(sys_flag):
        keys = [pairs.get(PROPERTY_UNIQ_KEY, ""), *pairs.get(PROPERTY_KEYS, "").split(" ")]
    return DerivedRecord(topic, has_unit(sys_flag), code, tuple(key for key in keys if key))
