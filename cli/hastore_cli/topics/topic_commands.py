"""``hastore topic list|create|describe|delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore.topic import is_system_topic
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import LazyGroup, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.node.options import (
    EXIT_DRY_RUN,
    RefusedError,
    addr_option,
    ask_node,
    confirm,
)
from hastore_cli.settings.param_types import TOPIC, WholeNumber

if TYPE_CHECKING:
    from hastore_cli.node.client import NodeClient

_PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2}
_QUEUES_MAX: Final = 65_535


@click.group(
    name="topic",
    cls=LazyGroup,
    examples=(
        "hastore topic list",
        "hastore topic create orders --queues 16",
        "hastore topic describe orders",
        "hastore topic delete orders --dry-run",
    ),
)
def topic_group() -> None:
    """List, create, describe and delete the topics of a node."""


@topic_group.command(
    name="list",
    cls=AskingCommand,
    examples=("hastore topic list", "hastore topic list -o json | jq -r '.topics[].topic'"),
    epilog="A topic's first message creates it, unless auto_create_topic is false in [remoting].",
)
@click.option("-a", "--all", "show_all", is_flag=True, help="Include the broker's own topics.")
@addr_option
@output_option()
def list_topics(*, show_all: bool, addr: str, output: str) -> None:
    """List the topics: messages, queues, permissions.

    Without -a the topics of retries (%RETRY%), dead letters (%DLQ%), delays and
    replies (_REPLY_TOPIC) are left out.
    """
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.topics.node_queries import read_topics
    from hastore_cli.topics.report import topic_lines, topics_json

    topics = ask_node(addr, read_topics)
    shown = [topic for topic in topics if show_all or not topic.is_system]
    if output == "json":
        echo_json(topics_json(shown))
        return
    if shown:
        for line in topic_lines(shown):
            tell(line)
    hidden = len(topics) - len(shown)
    if not shown:
        say("no topics; the first message creates one: echo hello | hastore produce TOPIC")
    if hidden:
        say(f"{hidden} of the broker's own: hastore topic list -a")


@topic_group.command(
    name="create",
    cls=AskingCommand,
    examples=(
        "hastore topic create orders",
        "hastore topic create orders --queues 16",
        "hastore topic create orders --queues 32 --change   # more queues",
    ),
    epilog="Exit code: 6 when the topic exists already with other values (--change changes it).",
)
@click.argument("topic", type=TOPIC)
@click.option(
    "--queues",
    type=WholeNumber(1, _QUEUES_MAX),
    default=8,
    show_default=True,
    metavar="N",
    help="Queues to read from and to write to.",
)
@click.option(
    "--perm",
    type=click.Choice(tuple(_PERMISSIONS), case_sensitive=False),
    default="rw",
    show_default=True,
    help="Whether it may be read and written.",
)
@click.option("--change", is_flag=True, help="Change it if it exists.")
@addr_option
def create_topic(*, topic: str, queues: int, perm: str, addr: str, change: bool) -> None:
    """Create a topic on a master; it is on the master's disk when the command ends."""
    from hastore_cli.app.terminal import tell

    async def create(node: NodeClient) -> str:
        known = (await node.admin.topics()).get(topic)
        wanted = (queues, queues, _PERMISSIONS[perm])
        if known is not None:
            found = (known.read_queue_nums, known.write_queue_nums, known.perm)
            if found == wanted:
                return "exists already"
            if not change:
                raise RefusedError(
                    f"topic {topic} exists already, with {found[0]} queues",
                    hint=f"show it: hastore topic describe {topic}; change it: add --change"
                    " (messages in removed queues are no longer read)",
                )
        await node.admin.create_topic(topic, read_queue_nums=queues, perm=_PERMISSIONS[perm])
        return "created" if known is None else "changed"

    done = ask_node(addr, create)
    tell(f"{done}  {topic}  {queues} queue{'s' * (queues != 1)}  {perm}")


@topic_group.command(
    name="describe",
    cls=AskingCommand,
    examples=(
        "hastore topic describe orders",
        "hastore topic describe orders -o json | jq '.queues[].max_offset'",
    ),
    epilog="Exit code: 1 when the node has no such topic.",
)
@click.argument("topic", type=TOPIC)
@addr_option
@output_option()
def describe_topic(*, topic: str, addr: str, output: str) -> None:
    """Show one topic: the offsets of its queues, and the lag of its groups."""
    from hastore_cli.app.terminal import tell
    from hastore_cli.topics.node_queries import read_topic
    from hastore_cli.topics.report import describe_topic_json, describe_topic_lines

    view, groups = ask_node(addr, lambda node: read_topic(node, topic))
    if output == "json":
        echo_json(describe_topic_json(view, groups))
        return
    for line in describe_topic_lines(view, groups):
        tell(line)


@topic_group.command(
    name="delete",
    cls=AskingCommand,
    examples=(
        "hastore topic delete orders --dry-run",
        "hastore topic delete orders --yes",
        "hastore topic delete %DLQ%billing --yes   # old dead letters",
    ),
    epilog="Exit code: 0 done; 10 there is something to delete (--dry-run); 6 refused: the topic is"
    " the broker's own, or --yes is missing; 1 when the node has no such topic.",
)
@click.argument("topic", type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@addr_option
@output_option()
def delete_topic(*, topic: str, dry_run: bool, yes: bool, addr: str, output: str) -> int:
    """Delete a topic on a master: its messages and its groups' offsets.

    The bytes stay in the log until they expire, and nothing reads them as messages of the topic.
    A topic of the same name continues at the queue offsets where this one ended. With
    auto_create_topic, the next message makes it again.
    """
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.topics.node_queries import read_topic
    from hastore_cli.topics.report import delete_topic_json, describe_topic_lines

    if is_system_topic(topic):
        raise RefusedError(
            f"topic {topic} is the broker's own and cannot be deleted",
            hint="its messages expire with the log: keep",
        )
    view, groups = ask_node(addr, lambda node: read_topic(node, topic))
    if output == "table":
        for line in describe_topic_lines(view, groups):
            tell(line)
    if dry_run:
        say("nothing changed (--dry-run)")
    else:
        if not yes:
            confirm(f"delete topic {topic} and its messages?")
        ask_node(addr, lambda node: node.admin.delete_topic(topic))
        say(f"topic {topic} is deleted")
    if output == "json":
        echo_json(delete_topic_json(view, groups, is_done=not dry_run))
    return EXIT_DRY_RUN if dry_run else 0
