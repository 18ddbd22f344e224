"""A master's answers to 21, 201, 43 and 45, read strictly: all of a table, or none of it.

::

    21   {"dataVersion": ..., "topicConfigTable": {"T": {"readQueueNums": 4, ...}},
          "deletedTopics": {"U": {"logOffset": 4096, "nextOffsets": {"0": 7}}}}
    201  {"dataVersion": ..., "subscriptionGroupTable": {"g": {...}}, "deletedGroups": {"h": ms}}
    43   {"dataVersion": ..., "offsetTable": {"T@g": {"0": 17}}}
    45   {"dataVersion": ..., "offsetTable": {"3": 5}}                  by delay level

The tables of what was deleted are a hastore master's.

A stock master writes bare integer keys.  RocketMQ before 4.9.4 sends no version with 43, and 4.9
none with 45.  Source: RocketMQ ``TopicConfigSerializeWrapper``, ``SubscriptionGroupWrapper``,
``ConsumerOffsetSerializeWrapper``, ``DelayOffsetSerializeWrapper``.

Rows whose name hastore does not allow are left out, because a stock master may have them; anything
else that is wrong raises ProtocolError, which names the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

from hastore.broker.groups.subscription_group_manager import group_fault
from hastore.errors import ProtocolError
from hastore.topic import topic_fault
from hastore.wire.config_tables import (
    DELETED_GROUPS,
    DELETED_TOPICS,
    QUEUE_NUMS_MAX,
    DataVersion,
    DeletedTopic,
    SubscriptionGroupConfig,
    TopicConfig,
)
from hastore.wire.liberal_json import loads_object
from hastore.wire.remoting_command import NAME_SIZE_MAX, check_text, integer_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_LEVEL_MAX: Final = 65_535  # queues of the schedule topic
_KEY_SIZE_MAX: Final = 2 * NAME_SIZE_MAX + 1  # topic@group


@attrs.frozen
class CopiedTable(Generic[T]):
    """One table of the master."""

    version: DataVersion | None  # None: the answer has none
    rows: dict[str, T]
    left_out: tuple[str, ...] = ()  # names that hastore does not allow
    # A hastore master's: topics that were deleted, or when groups were.  None: no such table.
    deleted_topics: Mapping[str, DeletedTopic] | None = None
    deleted_groups: Mapping[str, int] | None = None


def read_topics(body: bytes) -> CopiedTable[TopicConfig]:
    """Read the answer to 21.  Raises ProtocolError."""
    value = loads_object(body, "the table")
    table = _read(value, "topicConfigTable", topic_fault, TopicConfig.from_dict)
    if DELETED_TOPICS not in value:
        return table
    deleted = _rows(
        _table(value, DELETED_TOPICS), lambda _name, row: DeletedTopic.from_dict(row), topic_fault
    )[0]
    return attrs.evolve(table, deleted_topics=deleted)


def read_groups(body: bytes) -> CopiedTable[SubscriptionGroupConfig]:
    """Read the answer to 201.  Raises ProtocolError."""

    def read_row(name: str, row: dict[str, Any]) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig.from_dict(row, name)

    value = loads_object(body, "the table")
    table = _read(value, "subscriptionGroupTable", group_fault, read_row)
    if DELETED_GROUPS not in value:
        return table
    rows = _table(value, DELETED_GROUPS)
    deleted = {name: integer_field(rows, name, bits=64) for name in rows if not group_fault(name)}
    return attrs.evolve(table, deleted_groups=deleted)


def read_consumer_offsets(body: bytes) -> CopiedTable[dict[int, int]]:
    """Read the answer to 43; offsets below 0, which mean none, are left out.

    Raises ProtocolError.
    """

    def fault(key: str) -> str | None:
        topic, _, group = key.rpartition("@")
        return None if topic and group and len(key) <= _KEY_SIZE_MAX else "not topic@group"

    value = loads_object(body, "the table")
    return _read(value, "offsetTable", fault, lambda _key, row: _integers(row, QUEUE_NUMS_MAX - 1))


def read_delay_offsets(body: bytes) -> dict[int, int]:
    """Read the answer to 45: next queue offset by level.  Raises ProtocolError."""
    value = loads_object(body, "the table")
    return _integers(_table(value, "offsetTable"), _LEVEL_MAX)


def _read(
    value: dict[str, Any],
    table_name: str,
    name_fault: Callable[[str], str | None],
    read_row: Callable[[str, dict[str, Any]], T],
) -> CopiedTable[T]:
    version = None
    if value.get("dataVersion") is not None:
        version = DataVersion.from_dict(_table(value, "dataVersion"))
    rows, left_out = _rows(_table(value, table_name), read_row, name_fault)
    return CopiedTable(version, rows, tuple(left_out))


def _rows(
    table: dict[str, Any],
    read_row: Callable[[str, dict[str, Any]], T],
    name_fault: Callable[[str], str | None],
) -> tuple[dict[str, T], list[str]]:
    """Return the rows, and the names that hastore does not allow."""
    rows: dict[str, T] = {}
    left_out = []
    for name, row in table.items():
        check_text("a name", name)
        if name_fault(name) is not None:
            left_out.append(name)
            continue
        try:
            if not isinstance(row, dict):
                msg = f"not an object but {type(row).__name__}"
                raise ProtocolError(msg)
            rows[name] = read_row(name, row)
        except ProtocolError as error:
            msg = f"row {name!r:.128}: {error}"
            raise ProtocolError(msg) from error
    return rows, left_out


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    table = value.get(name)
    if not isinstance(table, dict):
        msg = f"{name} is not an object but {type(table).__name__}"
        raise ProtocolError(msg)
    return table


def _integers(row: dict[str, Any], key_max: int) -> dict[int, int]:
    """Return a map of offsets by number, without those below 0.  Raises ProtocolError."""
    offsets = {}
    for key, value in row.items():
        number = integer_field({"key": key}, "key", bits=64)
        if not 0 <= number <= key_max:
            msg = f"{number} is not in 0 to {key_max}"
            raise ProtocolError(msg)
        if isinstance(value, (bool, float)):
            msg = f"offset {value!r:.40} is not an integer"
            raise ProtocolError(msg)
        offset = integer_field(row, key, bits=64)
        if offset >= 0:
            offsets[number] = offset
    return offsets
