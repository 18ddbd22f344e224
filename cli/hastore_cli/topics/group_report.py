"""What ``hastore group`` shows: groups, how far they are, who is in them; for people and as JSON.

``hastore.groups/1``, ``hastore.group/1`` and ``hastore.group-reset/1``.  An offset is that of the
next message that a group will get; ``lag`` is how many there are from it on.  A queue for which a
group has no offset yet has null there, and counts all its messages as lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore_cli.app.terminal import columns, counted, escaped, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUPS_SCHEMA: Final = "hastore.groups/1"
GROUP_SCHEMA: Final = "hastore.group/1"
RESET_SCHEMA: Final = "hastore.group-reset/1"


@attrs.frozen(kw_only=True)
class QueueProgress:
    """How far a group is in one queue; ``offset`` None: it has none there."""

    topic: str
    queue_id: int
    offset: int | None
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """How many messages it has not got yet."""
        begin = self.min_offset if self.offset is None else max(self.offset, self.min_offset)
        return max(self.max_offset - begin, 0)


@attrs.frozen
class GroupOnTopic:
    """A group's lag on one topic."""

    group: str
    lag: int


@attrs.frozen(kw_only=True)
class ConnectedMember:
    """A consumer that is connected."""

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
        """How many messages it has not got yet, over all its topics."""
        return sum(queue.lag for queue in self.progress)


@attrs.frozen(kw_only=True)
class ResetStep:
    """One queue whose offset is to change."""

    topic: str
    queue_id: int
    offset: int | None
    new_offset: int
    min_offset: int
    max_offset: int

    @property
    def is_change(self) -> bool:
        """Whether there is anything to do."""
        return self.offset != self.new_offset

    @property
    def difference(self) -> int:
        """Messages that are skipped; below 0 those that come again."""
        begin = self.min_offset if self.offset is None else max(self.offset, self.min_offset)
        return self.new_offset - begin


# -- for people ----------------------------------------------------------------------------------


def group_lines(groups: Sequence[GroupView]) -> Iterable[str]:
    """``hastore group list``."""
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
    """``hastore group describe``."""
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
    if group.members:
        yield ""
        yield from columns(
            ("address", "language", "client id"),
            [
                (member.address, member.language, escaped(member.client_id))
                for member in group.members
            ],
        )


def reset_lines(steps: Sequence[ResetStep]) -> Iterable[str]:
    """``hastore group reset``: what changes."""
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
    return "first offset" if step.is_change else "as it is"


# -- JSON ----------------------------------------------------------------------------------------


def groups_json(groups: Sequence[GroupView]) -> dict[str, Any]:
    """``hastore group list``."""
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
    """``hastore group describe``."""
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
            }
            for queue in group.progress
        ],
        "members": [attrs.asdict(member) for member in group.members],
    }


def reset_json(group: str, steps: Sequence[ResetStep], *, is_done: bool) -> dict[str, Any]:
    """``hastore group reset``; ``done`` is false for a dry run."""
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
