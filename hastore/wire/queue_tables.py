"""JSON tables with a row for each queue, as RocketMQ writes them: the keys are objects.

::

    {"offsetTable":{{"brokerName":"g1","queueId":0,"topic":"T"}:{"maxOffset":5,"minOffset":0}, …}}

That is not JSON: only fastjson writes and reads such keys, and RocketMQ's tools know no other form.
They look a row up by its whole key, so ``brokerName`` must be the one of the route.  Source:
RocketMQ 4.9.8 ``ConsumeStats``, ``TopicStatsTable``, ``ResetOffsetBody``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode


def queue_key(topic: str, broker_name: str, queue_id: int) -> dict[str, Any]:
    """Return a queue as RocketMQ's JSON has it."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def queue_row(key: Mapping[str, Any], value: Any) -> str:
    """Return one row of a table."""
    return f"{_dumps(key)}:{_dumps(value)}"


def object_with(name: str, member: str, **others: Any) -> str:
    """Return an object with ``name``, whose JSON text is given, and other members."""
    members = [(name, member), *((other, _dumps(value)) for other, value in others.items())]
    return f"{{{','.join(f'{_dumps(each)}:{text}' for each, text in members)}}}"


def queue_table(rows: Iterable[str]) -> str:
    """Return a table of rows."""
    return f"{{{','.join(rows)}}}"
