"""``hastore group list|describe|reset|delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore.topic import GROUP_TOPIC_PREFIXES
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import LazyGroup, output_option
from hastore_cli.app.output import echo_json, wall_clock_ms
from hastore_cli.log.options import TIME_HELP
from hastore_cli.node.options import (
    EXIT_DRY_RUN,
    RefusedError,
    addr_option,
    ask_node,
    confirm,
)
from hastore_cli.settings.param_types import GROUP, TOPIC, ParsedType, WholeNumber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_cli.consume.run import ConsumeStart
    from hastore_cli.node.client import NodeClient
    from hastore_cli.topics.report import GroupView, ResetStep


def _parse_place(text: str) -> ConsumeStart:
    from hastore_cli.consume.run import StartKind, parse_start

    place = parse_start(text, wall_clock_ms())
    if place.kind is StartKind.STORED:
        raise ValueError(
            "'stored' is the group's current offset: use beginning, end, OFFSET or @TIME"
        )
    return place


_PLACE: Final = ParsedType("PLACE", _parse_place, ("beginning", "end"))


@click.group(
    name="group",
    cls=LazyGroup,
    examples=(
        "hastore group list",
        "hastore group describe billing",
        "hastore group reset billing --to @1h --dry-run",
        "hastore group delete billing --dry-run",
    ),
)
def group_group() -> None:
    """Show the offsets of groups of consumers, move them back or forward, delete groups."""


@group_group.command(
    name="list",
    cls=AskingCommand,
    examples=("hastore group list", "hastore group list -o json | jq '.groups[] | .group, .lag'"),
)
@addr_option
@output_option()
def list_groups(*, addr: str, output: str) -> None:
    """List the groups: lag in messages, topics, connected members."""
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.topics.node_queries import read_groups
    from hastore_cli.topics.report import group_lines, groups_json

    groups = ask_node(addr, read_groups)
    if output == "json":
        echo_json(groups_json(groups))
    elif groups:
        for line in group_lines(groups):
            tell(line)
    else:
        say("no groups; consuming creates one: hastore consume TOPIC -g GROUP")


@group_group.command(
    name="describe",
    cls=AskingCommand,
    examples=(
        "hastore group describe billing",
        "hastore group describe billing -o json | jq '.queues[] | select(.lag > 0)'",
    ),
    epilog="Exit code: 1 when the node has no such group.",
)
@click.argument("group")
@addr_option
@output_option()
def describe_group(*, group: str, addr: str, output: str) -> None:
    """Show one group: its offset and lag in each queue, and its connected members."""
    from hastore_cli.app.terminal import tell
    from hastore_cli.topics.node_queries import read_group
    from hastore_cli.topics.report import describe_group_json, describe_group_lines

    view = ask_node(addr, lambda node: read_group(node, group))
    if output == "json":
        echo_json(describe_group_json(view))
        return
    for line in describe_group_lines(view):
        tell(line)


@group_group.command(
    name="reset",
    cls=AskingCommand,
    examples=(
        "hastore group reset billing --to beginning --dry-run",
        "hastore group reset billing --topic orders --to @15min --yes",
        "hastore group reset billing --topic orders -q 3 --to 1841 --yes",
        "hastore group reset billing --topic orders --to @5min   # or a new group",
    ),
    epilog=f"{TIME_HELP}\n\nExit code: 0 done, or nothing to do; 10 there are changes to make"
    " (--dry-run); 6 refused: members are connected, or --yes is missing.",
)
@click.argument("group", type=GROUP)
@click.option(
    "--to",
    "place",
    type=_PLACE,
    required=True,
    metavar="PLACE",
    help="beginning, end, an OFFSET, or @TIME.",
)
@click.option(
    "-t",
    "--topic",
    type=TOPIC,
    metavar="TOPIC",
    help="This topic only. [default: all it has read]",
)
@click.option("-q", "--queue", type=WholeNumber(min=0), metavar="QUEUE", help="This queue only.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@addr_option
@output_option()
def reset_group(
    *,
    group: str,
    place: ConsumeStart,
    topic: str | None,
    queue: int | None,
    dry_run: bool,
    yes: bool,
    addr: str,
    output: str,
) -> int:
    """Move a group's offsets: messages are read again, or skipped.

    With --topic the group may be new to the node, as after a failover. Its members must not be
    connected: they would overwrite the offsets with their own.
    """
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.topics.report import reset_json, reset_lines

    steps = ask_node(addr, lambda node: _plan(node, group, topic, place, queue))
    changes = [step for step in steps if step.is_change]
    if output == "table":
        for line in reset_lines(steps):
            tell(line)
    if changes and all(step.offset is None for step in steps):
        say(f"group {group} has read nothing there yet")
    if not changes:
        say(f"group {group} is there already: nothing to change")
    elif dry_run:
        say("nothing changed (--dry-run)")
    else:
        if not yes:
            confirm(f"change the offsets of group {group} in {len(changes)} queues?")
        ask_node(addr, lambda node: _carry_out(node, group, changes))
        say(f"group {group} goes on there")
    if output == "json":
        echo_json(reset_json(group, steps, is_done=not dry_run))
    return EXIT_DRY_RUN if dry_run and changes else 0


async def _plan(
    node: NodeClient, group: str, topic: str | None, place: ConsumeStart, queue: int | None
) -> list[ResetStep]:
    from hastore_cli.consume.run import check_queue
    from hastore_cli.topics.node_queries import plan_reset, read_group

    view: GroupView = await read_group(node, group, must_exist=topic is None)
    _refuse_members(view, "undo it")
    topics = view.topics if topic is None else [topic]
    if not topics:
        raise RefusedError(
            f"group {group} has read nothing yet", hint="name the topic: --topic TOPIC"
        )
    if queue is not None:
        for name in topics:
            check_queue(name, queue, (await node.topic(name)).read_queue_nums)
    return await plan_reset(node, group, topics, place, queue)


async def _carry_out(node: NodeClient, group: str, changes: Sequence[ResetStep]) -> None:
    from hastore_cli.node.client import gather

    async def carry_out(step: ResetStep) -> None:
        await node.admin.update_offset(group, step.topic, step.queue_id, step.new_offset)

    await gather(carry_out, changes)


@group_group.command(
    name="delete",
    cls=AskingCommand,
    examples=(
        "hastore group delete billing --dry-run",
        "hastore group delete billing --yes",
        "hastore group delete billing --with-topics --yes   # retries, dead letters",
    ),
    epilog="Exit code: 0 done; 10 there is something to delete (--dry-run); 6 refused: members are"
    " connected, or --yes is missing; 1 when the node has no such group.",
)
@click.argument("group", type=GROUP)
@click.option("--keep-offsets", is_flag=True, help="Leave its offsets, for a group of that name.")
@click.option("--with-topics", is_flag=True, help="Delete %RETRY% and %DLQ% topics of it, too.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@addr_option
@output_option()
def delete_group(
    *,
    group: str,
    keep_offsets: bool,
    with_topics: bool,
    dry_run: bool,
    yes: bool,
    addr: str,
    output: str,
) -> int:
    """Delete a group on a master: its configuration, and its offsets.

    Its members must not be connected: their next heartbeat would make it again.
    """
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.topics.report import delete_group_json, describe_group_lines

    async def plan(node: NodeClient) -> tuple[GroupView, list[str]]:
        from hastore_cli.topics.node_queries import read_group

        view = await read_group(node, group)
        _refuse_members(view, "make it again")
        known = await node.admin.topics() if with_topics else {}
        own = (prefix + group for prefix in GROUP_TOPIC_PREFIXES)
        return view, [topic for topic in own if topic in known]

    async def delete(node: NodeClient) -> None:
        await node.admin.delete_group(group, with_offsets=not keep_offsets)
        for topic in topics:
            await node.admin.delete_topic(topic)

    view, topics = ask_node(addr, plan)
    if output == "table":
        for line in describe_group_lines(view):
            tell(line)
        for topic in topics:
            tell(f"topic  {topic}")
    if dry_run:
        say("nothing changed (--dry-run)")
    else:
        if not yes:
            what = "" if keep_offsets else " and its offsets"
            confirm(f"delete group {group}{what}{', and its topics' if topics else ''}?")
        ask_node(addr, delete)
        say(f"group {group} is deleted")
    if output == "json":
        echo_json(delete_group_json(view, topics, keeps_offsets=keep_offsets, is_done=not dry_run))
    return EXIT_DRY_RUN if dry_run else 0


def _refuse_members(view: GroupView, effect: str) -> None:
    """Raise RefusedError if members are connected, which would have an effect."""
    if view.members:
        addresses = ", ".join(member.address for member in view.members[:3])
        raise RefusedError(
            f"group {view.name} has connected members, which would {effect}: {addresses}",
            hint="stop these consumers first",
        )
