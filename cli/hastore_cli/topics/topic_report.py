"""What ``hastore topic`` shows: topics with their queues, for people and as JSON.

``hastore.topics/1`` and ``hastore.topic/1``.  Offsets are of queues, half-open: ``[min, max)`` is
what can be consumed.  Times are milliseconds since 1970; what is not known is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.topic import DEFAULT_TOPIC, GROUP_TOPIC_PREFIXES, SCHEDULE_TOPIC
from hastore_cli.app.terminal import columns, counted, escaped, number, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hastore_cli.topics.group_report import GroupOnTopic

TOPICS_SCHEMA: Final = "hastore.topics/1"
TOPIC_SCHEMA: Final = "hastore.topic/1"
_SYSTEM_PREFIXES: Final = (*GROUP_TOPIC_PREFIXES, SCHEDULE_TOPIC, DEFAULT_TOPIC, "RMQ_SYS_")
_PERMISSIONS: Final = {6: "rw", 4: "r-", 2: "-w", 0: "--"}


@attrs.frozen(kw_only=True)
class QueueView:
    """One queue of a topic; the times are those of its first message."""

    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp_ms: int | None = None

    @property
    def messages(self) -> int:
        """How many can be consumed."""
        return self.max_offset - self.min_offset


@attrs.frozen(kw_only=True)
class TopicView:
    """One topic; ``queues`` are those that can be read."""

    name: str
    read_queues: int
    write_queues: int
    permissions: int
    queues: tuple[QueueView, ...] = ()

    @property
    def is_system(self) -> bool:
        """Whether a broker made it for itself: retries, dead letters, delays."""
        return self.name.startswith(_SYSTEM_PREFIXES)

    @property
    def messages(self) -> int:
        """How many can be consumed, over all queues."""
        return sum(queue.messages for queue in self.queues)


def permission_text(permissions: int) -> str:
    """``rw``, ``r-``, ``-w`` or ``--``."""
    return _PERMISSIONS.get(permissions & 6, "--")


# -- for people ----------------------------------------------------------------------------------


def topic_lines(topics: Sequence[TopicView]) -> Iterable[str]:
    """``hastore topic list``."""
    return columns(
        ("messages", "queues", "perm", "topic"),
        [
            (
                number(topic.messages),
                str(topic.read_queues),
                permission_text(topic.permissions),
                escaped(topic.name),
            )
            for topic in topics
        ],
    )


def describe_topic_lines(topic: TopicView, groups: Sequence[GroupOnTopic]) -> Iterable[str]:
    """``hastore topic describe``."""
    write = "" if topic.write_queues == topic.read_queues else f", {topic.write_queues} to write to"
    yield (
        f"topic  {escaped(topic.name)}   {counted(topic.read_queues, 'queue')}{write}"
        f"   {permission_text(topic.permissions)}   {counted(topic.messages, 'message')}"
    )
    yield ""
    yield from columns(
        ("queue", "min", "max", "messages", "first stored"),
        [
            (
                str(queue.queue_id),
                number(queue.min_offset),
                number(queue.max_offset),
                number(queue.messages),
                "–" if (first := queue.first_store_timestamp_ms) is None else time_text(first),
            )
            for queue in topic.queues
        ],
    )
    if groups:
        yield ""
        yield from columns(
            ("lag", "group"), [(number(group.lag), escaped(group.group)) for group in groups]
        )


# -- JSON ----------------------------------------------------------------------------------------


def topics_json(topics: Sequence[TopicView]) -> dict[str, Any]:
    """``hastore topic list``."""
    return {"schema": TOPICS_SCHEMA, "topics": [_topic_json(topic) for topic in topics]}


def describe_topic_json(topic: TopicView, groups: Sequence[GroupOnTopic]) -> dict[str, Any]:
    """``hastore topic describe``."""
    return {
        "schema": TOPIC_SCHEMA,
        **_topic_json(topic),
        "queues": [
            {
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "messages": queue.messages,
                "first_store_timestamp_ms": queue.first_store_timestamp_ms,
            }
            for queue in topic.queues
        ],
        "groups": [{"group": group.group, "lag": group.lag} for group in groups],
    }


def _topic_json(topic: TopicView) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "system": topic.is_system,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "permissions": permission_text(topic.permissions),
        "messages": topic.messages,
    }
