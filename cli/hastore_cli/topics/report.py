"""What ``hastore topic`` and ``group`` show: lines for people, and JSON with stable keys.

Offsets are those of queues; ``[min, max)`` can be consumed.  A group's offset is that of its next
message; ``lag`` is the number of messages from it on.  A queue without an offset of the group has
null, and all its messages count as lag.  A node stores any offset that a consumer commits, as
RocketMQ does: one in a queue that does not exist, or beyond a queue's end, has a ``fault`` and no
lag.  A slave copies offsets faster than the log, so there they may be beyond its ends for a while.
Times are milliseconds since 1970; an unknown value is null.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, assert_never

import attrs

from hastore.topic import (
    DEFAULT_TOPIC,
    GROUP_TOPIC_PREFIXES,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
)
from hastore_cli.app.terminal import columns, counted, escaped, number, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUPS_SCHEMA: Final = "hastore.groups/1"
GROUP_SCHEMA: Final = "hastore.group/1"
DELETED_TOPIC_SCHEMA: Final = "hastore.topic-delete/1"
DELETED_GROUP_SCHEMA: Final = "hastore.group-delete/1"
RESET_SCHEMA: Final = "hastore.group-reset/1"
TOPICS_SCHEMA: Final = "hastore.topics/1"
TOPIC_SCHEMA: Final = "hastore.topic/1"
_SYSTEM_PREFIXES: Final = (*GROUP_TOPIC_PREFIXES, SCHEDULE_TOPIC, DEFAULT_TOPIC, "RMQ_SYS_")
_PERMISSIONS: Final = {6: "rw", 4: "r-", 2: "-w", 0: "--"}


@attrs.frozen(kw_only=True)
class QueueView:
    """One queue of a topic; the time is that of its first message."""

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
        """Whether the broker created it: retries, dead letters, delays, replies."""
        return self.name.startswith(_SYSTEM_PREFIXES) or self.name.endswith(REPLY_TOPIC_SUFFIX)

    @property
    def messages(self) -> int:
        """How many can be consumed, over all queues."""
        return sum(queue.messages for queue in self.queues)


def permission_text(permissions: int) -> str:
    """Return ``rw``, ``r-``, ``-w`` or ``--``."""
    return _PERMISSIONS.get(permissions & 6, "--")


# -- for people ----------------------------------------------------------------------------------


def topic_lines(topics: Sequence[TopicView]) -> Iterable[str]:
    """Yield the lines of ``hastore topic list``."""
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
    """Yield the lines of ``hastore topic describe``."""
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
    """Return the JSON of ``hastore topic list``."""
    return {"schema": TOPICS_SCHEMA, "topics": [_topic_json(topic) for topic in topics]}


def describe_topic_json(topic: TopicView, groups: Sequence[GroupOnTopic]) -> dict[str, Any]:
    """Return the JSON of ``hastore topic describe``."""
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


def delete_topic_json(
    topic: TopicView, groups: Sequence[GroupOnTopic], *, is_done: bool
) -> dict[str, Any]:
    """Return ``hastore.topic-delete/1``; ``done`` is false for a dry run."""
    return {
        "schema": DELETED_TOPIC_SCHEMA,
        "topic": topic.name,
        "done": is_done,
        "messages": topic.messages,
        "groups": [group.group for group in groups],
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


# -- groups --------------------------------------------------------------------------------------


class OffsetFault(enum.Enum):
    """Why an offset names no message that was or will be next in its queue."""

    NO_TOPIC = "no-topic"  # the node has no such topic
    NO_QUEUE = "no-queue"  # the topic has no such queue
    BEYOND_END = "beyond-end"  # this node does not have the messages up to it: a master skips them


@attrs.frozen(kw_only=True)
class QueueProgress:
    """A group in one queue; ``offset`` None: it has none there.

    ``topic_queues`` is how many queues the topic has, to read or to write; None without a topic.
    """

    topic: str
    queue_id: int
    offset: int | None
    min_offset: int
    max_offset: int
    topic_queues: int | None

    @property
    def fault(self) -> OffsetFault | None:
        """What is wrong with the offset; None if nothing is, or there is no offset."""
        if self.offset is None:
            return None
        if self.max_offset == 0:  # never written
            if self.topic_queues is None:
                return OffsetFault.NO_TOPIC
            if self.queue_id >= self.topic_queues:
                return OffsetFault.NO_QUEUE
        return OffsetFault.BEYOND_END if self.offset > self.max_offset else None

    @property
    def lag(self) -> int:
        """The number of messages that the group has not read yet."""
        begin = self.min_offset if self.offset is None else max(self.offset, self.min_offset)
        return max(self.max_offset - begin, 0)


@attrs.frozen
class GroupOnTopic:
    """A group's lag on one topic."""

    group: str
    lag: int


@attrs.frozen(kw_only=True)
class ConnectedMember:
    """A connected consumer."""

    client_id: str
    address: str
    language: str


@attrs.frozen(kw_only=True)
class GroupView:
    """One group of consumers."""

    name: str
    progress: tuple[QueueProgress, ...] = ()
    members: tuple[ConnectedMember, ...] = ()

    @property
    def topics(self) -> list[str]:
        """The topics on which it has offsets."""
        return list(dict.fromkeys(queue.topic for queue in self.progress))

    @property
    def lag(self) -> int:
        """The number of messages that the group has not read yet, over all its topics."""
        return sum(queue.lag for queue in self.progress)


@attrs.frozen(kw_only=True)
class ResetStep:
    """One queue with the offset that a reset sets."""

    topic: str
    queue_id: int
    offset: int | None
    new_offset: int
    min_offset: int
    max_offset: int

    @property
    def is_change(self) -> bool:
        """Whether the offset changes."""
        return self.offset != self.new_offset

    @property
    def difference(self) -> int:
        """The number of skipped messages; below 0, of messages to be read again."""
        begin = self.min_offset if self.offset is None else max(self.offset, self.min_offset)
        return self.new_offset - begin


# -- for people ----------------------------------------------------------------------------------


def group_lines(groups: Sequence[GroupView]) -> Iterable[str]:
    """Yield the lines of ``hastore group list``."""
    return columns(
        ("lag", "topics", "members", "group"),
        [
            (
                number(group.lag),
                str(len(group.topics)),
                str(len(group.members)),
                escaped(group.name),
            )
            for group in groups
        ],
    )


def describe_group_lines(group: GroupView) -> Iterable[str]:
    """Yield the lines of ``hastore group describe``."""
    yield (
        f"group  {escaped(group.name)}   {counted(len(group.members), 'member')}   lag"
        f" {number(group.lag)}"
    )
    if group.progress:
        yield ""
        yield from columns(
            ("queue", "offset", "max", "lag", "topic"),
            [
                (
                    str(queue.queue_id),
                    "–" if queue.offset is None else number(queue.offset),
                    number(queue.max_offset),
                    number(queue.lag),
                    escaped(queue.topic),
                )
                for queue in group.progress
            ],
        )
        faults = [queue for queue in group.progress if queue.fault is not None]
        if faults:
            yield ""
        for queue in faults:
            yield _fault_line(queue)
    if group.members:
        yield ""
        yield from columns(
            ("address", "language", "client id"),
            [
                (member.address, member.language, escaped(member.client_id))
                for member in group.members
            ],
        )


def _fault_line(queue: QueueProgress) -> str:
    where = f"{escaped(queue.topic)}/{queue.queue_id}"
    match queue.fault:
        case OffsetFault.NO_TOPIC:
            return f"note: {where}: the node has no such topic"
        case OffsetFault.NO_QUEUE:
            queues = counted(queue.topic_queues or 0, "queue")
            return f"note: {where}: no such queue; the topic has {queues}"
        case OffsetFault.BEYOND_END:
            assert queue.offset is not None, "it has a fault"
            beyond = counted(queue.offset - queue.max_offset, "message")
            return (
                f"note: {where}: beyond the queue's end on this node; a master will skip the next"
                f" {beyond}, a slave may not have copied them yet"
            )
        case None:
            raise AssertionError("only offsets with a fault are named")
        case _ as never:
            assert_never(never)


def reset_lines(steps: Sequence[ResetStep]) -> Iterable[str]:
    """Yield the lines of ``hastore group reset``."""
    return columns(
        ("queue", "offset", "new", "", "topic"),
        [
            (
                str(step.queue_id),
                "–" if step.offset is None else number(step.offset),
                number(step.new_offset),
                _difference_text(step),
                escaped(step.topic),
            )
            for step in steps
        ],
    )


def _difference_text(step: ResetStep) -> str:
    if step.difference > 0:
        return f"{number(step.difference)} skipped"
    if step.difference < 0:
        return f"{number(-step.difference)} again"
    return "first offset" if step.is_change else "unchanged"


# -- JSON ----------------------------------------------------------------------------------------


def groups_json(groups: Sequence[GroupView]) -> dict[str, Any]:
    """Return the JSON of ``hastore group list``."""
    return {
        "schema": GROUPS_SCHEMA,
        "groups": [
            {
                "group": group.name,
                "lag": group.lag,
                "topics": group.topics,
                "members": len(group.members),
            }
            for group in groups
        ],
    }


def describe_group_json(group: GroupView) -> dict[str, Any]:
    """Return the JSON of ``hastore group describe``."""
    return {
        "schema": GROUP_SCHEMA,
        "group": group.name,
        "lag": group.lag,
        "queues": [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "offset": queue.offset,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "lag": queue.lag,
                "fault": None if (fault := queue.fault) is None else fault.value,
            }
            for queue in group.progress
        ],
        "members": [attrs.asdict(member) for member in group.members],
    }


def reset_json(group: str, steps: Sequence[ResetStep], *, is_done: bool) -> dict[str, Any]:
    """Return ``hastore.group-reset/1``; ``done`` is false for a dry run."""
    return {
        "schema": RESET_SCHEMA,
        "group": group,
        "done": is_done,
        "queues": [
            {
                "topic": step.topic,
                "queue_id": step.queue_id,
                "offset": step.offset,
                "new_offset": step.new_offset,
            }
            for step in steps
        ],
    }


def delete_group_json(
    group: GroupView, topics: Sequence[str], *, keeps_offsets: bool, is_done: bool
) -> dict[str, Any]:
    """Return ``hastore.group-delete/1``; ``done`` is false for a dry run."""
    return {
        "schema": DELETED_GROUP_SCHEMA,
        "group": group.name,
        "done": is_done,
        "keeps_offsets": keeps_offsets,
        "lag": group.lag,
        "topics": list(topics),
    }
