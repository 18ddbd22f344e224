"""Where reading begins in each queue: ``beginning``, ``end``, ``stored``, OFFSET or ``@TIME``."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

import attrs

from hastore.errors import ConfigError
from hastore.quantities import ungrouped
from hastore_cli.app.times import parse_time_ms

if TYPE_CHECKING:
    from hastore_cli.node.client import NodeClient


class StartKind(enum.Enum):
    """The word that a person writes, or what kind of value it is."""

    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "OFFSET"
    TIME = "@TIME"


@final
@attrs.frozen
class ConsumeStart:
    """A place in every queue; ``value`` is an offset or milliseconds since 1970."""

    kind: StartKind
    value: int = 0

    async def find(
        self, node: NodeClient, group: str | None, topic: str, queue_id: int, held: range
    ) -> int:
        """Return the offset in a queue that holds the offsets ``held``."""
        match self.kind:
            case StartKind.BEGINNING:
                return held.start
            case StartKind.END:
                return held.stop
            case StartKind.OFFSET:
                return min(max(self.value, held.start), held.stop)
            case StartKind.TIME:
                return await node.admin.search_offset(topic, queue_id, self.value)
            case StartKind.STORED:
                assert group is not None
                stored = await node.admin.query_offset(group, topic, queue_id)
                return held.start if stored is None else min(max(stored, held.start), held.stop)


def parse_start(text: str, now_ms: int) -> ConsumeStart:
    """Read a place; ValueError says what would be one."""
    for kind in (StartKind.BEGINNING, StartKind.END, StartKind.STORED):
        if text == kind.value:
            return ConsumeStart(kind)
    if text.startswith("@"):
        return ConsumeStart(StartKind.TIME, parse_time_ms(text[1:], now_ms))
    if ungrouped(text).isascii() and ungrouped(text).isdigit():
        return ConsumeStart(StartKind.OFFSET, int(ungrouped(text)))
    raise ValueError(f"{text!r} is none of beginning, end, stored, an offset, @TIME (as @15min)")


def check_queue(topic: str, queue_id: int, queue_nums: int) -> None:
    """Refuse a queue that a topic does not have."""
    if queue_id >= queue_nums:
        raise ConfigError(
            f"topic {topic} has no queue {queue_id}", hint=f"its queues are 0 to {queue_nums - 1}"
        )
