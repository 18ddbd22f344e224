"""``hastore consume``: print the messages of a topic, read from a node."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.app.output import wall_clock_ms
from hastore_cli.log.options import TIME_HELP
from hastore_cli.messages.printer import (
    FORMAT_HELP,
    MessagePrinter,
    format_option,
    raw_option,
)
from hastore_cli.node.options import (
    SEVERAL,
    addr_option_of,
    failover_timeout_option,
    topic_is_an_argument,
)
from hastore_cli.settings.param_types import GROUP, TOPIC, ParsedType, WholeNumber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.message import StoredMessage
    from hastore_cli.consume.run import ConsumeOrder, ConsumeStart
    from hastore_cli.messages.printer import MessageFormat

SCHEMA: Final = "hastore.consume/1"


def _parse_start(text: str) -> ConsumeStart:
    from hastore_cli.consume.run import parse_start

    return parse_start(text, wall_clock_ms())


_START: Final = ParsedType("START", _parse_start, ("beginning", "end", "stored"), is_number=True)


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore consume orders                 # all there are, then new ones",
        "hastore consume orders -e -F '%s\\n'    # bodies only, up to the end",
        "hastore consume orders -g billing      # from where billing stopped",
        "hastore consume orders --from @15min --tag 'paid || sent'",
        "hastore consume orders --from end -o jsonl | jq -r .body",
        "hastore consume orders --addr D2 -n 10 # a node's directory, slaves too",
        "hastore consume orders --addr n1:10911,n2:10911   # whichever answers",
    ),
    epilog=f"{FORMAT_HELP}\n\n{TIME_HELP}\n\nExit code: 0 at the end (-e, -n), 130 after Ctrl-C,"
    " 3 when the node does not answer.",
)
@click.argument("topic", type=TOPIC)
@addr_option_of(
    "The client port of a master or slave, or its data directory. Of several nodes: the master, or"
    " a slave while there is none, also after a failover.",
    SEVERAL,
)
@failover_timeout_option
@click.option(
    "-g",
    "--group",
    type=GROUP,
    metavar="GROUP",
    help="Commit the offsets of what was read for this group.",
)
@click.option(
    "--from",
    "start",
    type=_START,
    metavar="START",
    help="beginning, end, stored (the group's offset), an OFFSET, or @TIME."
    " [default: stored with -g, else beginning]",
)
@click.option("-q", "--queue", type=WholeNumber(min=0), metavar="QUEUE", help="This queue only.")
@topic_is_an_argument
@click.option("--tag", default="*", metavar="TAGS", help="These tags only: 'paid || sent'.")
@click.option("-n", "--count", type=WholeNumber(min=1), metavar="N", help="Stop after N messages.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop where the queues end now.")
@click.option("--bodies/--no-bodies", default=True, help="With or without the bodies.")
@raw_option
@format_option
@output_option("table", "json", "jsonl")
def consume(
    *,
    topic: str,
    addr: str,
    failover_timeout_ms: int,
    group: str | None,
    start: ConsumeStart | None,
    queue: int | None,
    tag: str,
    count: int | None,
    exit_at_end: bool,
    bodies: bool,
    raw: bool,
    template: MessageFormat | None,
    output: str,
) -> int:
    """Print the messages of a topic in the order of the log, then new ones as they come.

    Reads all queues, of all replica groups that have the topic. With -g the nodes store the
    group's offsets, and each message is printed at least once; the queues are not divided among
    several consumers of a group.
    """
    from hastore_cli.consume.run import ConsumeOrder, ConsumeStart, StartKind
    from hastore_cli.node.options import addresses_of

    if output == "json" and not exit_at_end and count is None:
        raise click.UsageError("a JSON document must end: use -e, -n or -o jsonl")
    if start is None:
        start = ConsumeStart(StartKind.BEGINNING if group is None else StartKind.STORED)
    if start.kind is StartKind.STORED and group is None:
        raise click.UsageError("--from stored needs a group: add -g GROUP")
    order = ConsumeOrder(
        topic=topic,
        addresses=addresses_of(addr),
        start=start,
        group=group,
        queue_id=queue,
        tags=tag,
        count=count,
        exit_at_end=exit_at_end,
        failover_timeout_s=failover_timeout_ms / 1000,
    )
    printer = MessagePrinter(output, schema=SCHEMA, template=template, bodies=bodies, raw=raw)
    return _run(order, addr, printer)


def _run(order: ConsumeOrder, addr: str, printer: MessagePrinter) -> int:
    import trio

    from hastore_cli.app.error_report import collapsed
    from hastore_cli.app.progress_bar import ReadingBar
    from hastore_cli.app.terminal import say
    from hastore_cli.consume.run import ConsumeRun
    from hastore_cli.node.address import next_steps_of

    bar: ReadingBar | None = None

    def on_total(total: int) -> None:
        nonlocal bar
        if total and not sys.stdout.isatty():  # on the same terminal the lines are enough
            bar = ReadingBar("consuming", min(total, order.count or total), counts=True)
            bar.__enter__()

    def on_messages(messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            printer.show(message)
        printer.flush()
        if bar is not None and bar.on_progress is not None:
            bar.on_progress(len(messages))

    def on_note(text: str) -> None:
        say(f"note: {text}")

    run = ConsumeRun(order, on_messages, on_note, on_total, lambda failover: say(str(failover)))
    try:
        with next_steps_of(addr), collapsed(), printer:
            code = trio.run(run.run)
    finally:
        if bar is not None:
            bar.stop()
    if not run.taken and code is None:
        say(
            "no message matches"
            if order.tags != "*"
            else f"{order.topic} has no messages from there on"
        )
    return code or 0
