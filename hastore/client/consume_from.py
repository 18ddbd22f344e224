"""Where a consumer begins in each queue."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Self, assert_never, final

import attrs

from hastore.client.admin import ask_offset, query_offset
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from hastore.client.remoting_client import Asker


class _Kind(enum.Enum):
    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "offset"
    TIME = "time"


@final
@attrs.frozen
class ConsumeFrom:
    """A starting point in each queue; use the class methods."""

    _kind: _Kind
    _value: int = 0

    @classmethod
    def beginning(cls) -> Self:
        """Return the start at a queue's first message."""
        return cls(_Kind.BEGINNING)

    @classmethod
    def end(cls) -> Self:
        """Return the start at the next message that arrives."""
        return cls(_Kind.END)

    @classmethod
    def stored(cls) -> Self:
        """Return the start at the group's committed offset, or at the beginning if it has none."""
        return cls(_Kind.STORED)

    @classmethod
    def offset(cls, queue_offset: int) -> Self:
        """Return the start at the same offset in every queue."""
        return cls(_Kind.OFFSET, queue_offset)

    @classmethod
    def time(cls, timestamp_ms: int) -> Self:
        """Return the start at the first message stored at or after a time."""
        return cls(_Kind.TIME, timestamp_ms)

    @property
    def needs_group(self) -> bool:
        """Whether this start needs a group."""
        return self._kind is _Kind.STORED

    async def find(self, client: Asker, group: str | None, topic: str, queue_id: int) -> int:
        """Return this start's offset in a queue; may ask the node for it.

        Raises as ``RemotingClient.invoke`` does.
        """
        match self._kind:
            case _Kind.BEGINNING:
                return await ask_offset(client, RequestCode.GET_MIN_OFFSET, topic, queue_id)
            case _Kind.END:
                return await ask_offset(client, RequestCode.GET_MAX_OFFSET, topic, queue_id)
            case _Kind.STORED:
                assert group is not None, "a stored offset is a group's"
                fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                stored = await query_offset(client, fields)
                if stored is not None:
                    return stored
                return await ask_offset(client, RequestCode.GET_MIN_OFFSET, topic, queue_id)
            case _Kind.OFFSET:
                return self._value
            case _Kind.TIME:
                return await ask_offset(
                    client,
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    topic,
                    queue_id,
                    timestamp=str(self._value),
                )
            case kind:
                assert_never(kind)
