"""``hastore log find`` and ``hastore log tail``: messages that match, and the last messages."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, final

import rich_click as click

from hastore_cli.app.command import ExampleCommand, output_option
from hastore_cli.log.options import (
    DIR,
    DIR_HELP,
    TIME,
    TIME_HELP,
    filter_options,
    open_log,
    parse_body_pattern,
    unconfirmed_option,
)
from hastore_cli.messages.printer import (
    FORMAT_HELP,
    MessagePrinter,
    format_option,
    raw_option,
)
from hastore_cli.settings.param_types import WholeNumber

if TYPE_CHECKING:
    from hastore.message import StoredMessage
    from hastore.store.tools.log_finding import Finding, SetAside
    from hastore_cli.log.follower import LogFollower
    from hastore_cli.log.search import MessageFilter, UnconfirmedMessage
    from hastore_cli.messages.printer import MessageFormat

FIND_SCHEMA: Final = "hastore.log-find/1"
TAIL_SCHEMA: Final = "hastore.log-tail/1"
_POLL_S: Final = 0.2
_STALL_S: Final = 2.0


def _filter_of(
    *,
    since: int | None = None,
    until: int | None = None,
    body: str | None,
    regex: str | None,
    queue: int | None,
    **more: Any,
) -> MessageFilter:
    from hastore_cli.app.times import TimeWindow
    from hastore_cli.log.search import MessageFilter

    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until: no message is between them")
    return MessageFilter(
        queue_id=queue,
        body=parse_body_pattern(body, regex),
        window=TimeWindow(since, until),
        **more,
    )


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore log find D1 -k o-17",
        "hastore log find D1 -t orders --tag paid --since 15min",
        "hastore log find D1 --regex 'total\": ?9[0-9]{3}' -F '%k\\n'",
        "hastore log find D1 --since '2026-11-21 08:12' --until 1h -F '%d %k %s\\n'",
    ),
    epilog=f"{DIR_HELP}\n\n{TIME_HELP}\n\n{FORMAT_HELP}\n\nExit code: 0, even if nothing"
    " matches; 4 when something could not be read.",
)
@click.argument("dir", type=DIR)
@filter_options
@click.option("--since", type=TIME, metavar="TIME", help="Stored at this time or later.")
@click.option("--until", type=TIME, metavar="TIME", help="Stored before this time.")
@click.option(
    "--from-offset",
    type=WholeNumber(min=0),
    default=0,
    metavar="OFFSET",
    help="Beginning at this offset of the log or after it.",
)
@click.option(
    "--to-offset", type=WholeNumber(min=0), metavar="OFFSET", help="Beginning before this one."
)
@click.option("-n", "--count", type=WholeNumber(min=1), metavar="N", help="Stop after N messages.")
@unconfirmed_option
@click.option("--bodies/--no-bodies", default=True, help="With or without the bodies.")
@raw_option
@format_option
@output_option("table", "json", "jsonl")
def find(
    dir: str,  # noqa: A002 - the argument's name in --help
    *,
    from_offset: int,
    to_offset: int | None,
    count: int | None,
    unconfirmed: bool,
    output: str,
    template: MessageFormat | None,
    bodies: bool,
    raw: bool,
    **chosen: Any,
) -> None:
    """Find messages by key, tag, topic, queue, property, body, time or offset.

    Reads the log itself, so it also finds messages that are missing from consume queues and index.
    A message must match all options. A time window or an offset range saves reading the rest.
    """
    from hastore_cli.app.progress_bar import ReadingBar
    from hastore_cli.app.terminal import say
    from hastore_cli.log.search import search

    wanted = _filter_of(**chosen)
    if to_offset is not None and to_offset <= from_offset:
        raise click.UsageError("--to-offset is not after --from-offset")
    disk, log = open_log(dir)
    printer = MessagePrinter(output, schema=FIND_SCHEMA, template=template, bodies=bodies, raw=raw)
    damage = Damage(printer)
    with ReadingBar("looking", log.size) as bar, printer:
        for entry in search(
            disk,
            log,
            wanted,
            from_offset=from_offset,
            to_offset=to_offset,
            unconfirmed=unconfirmed,
            on_progress=bar.on_progress,
        ):
            bar.stop()  # lines on the same terminal would tear it
            damage.show(entry)
            if sys.stdout.isatty():
                printer.flush()
            if printer.shown == count:
                break
    if not printer.shown:
        say("no message matches")
        hint_at_tag(chosen)
    damage.raise_if_any(log.path, dir)


@final
class Damage:
    """Prints what a search yields; sums up the unreadable places among the messages."""

    def __init__(self, printer: MessagePrinter) -> None:
        from hastore.store.tools.log_finding import SetAside

        self._printer = printer
        self._first: Finding | None = None
        self._set_aside = SetAside()

    def show(self, entry: StoredMessage | UnconfirmedMessage | Finding) -> None:
        """Print a message, or report an unreadable place."""
        from hastore.store.tools.log_finding import Finding
        from hastore_cli.log.json import set_aside_json
        from hastore_cli.log.search import UnconfirmedMessage

        if isinstance(entry, Finding):
            self._first = self._first or entry
            self._set_aside = self._set_aside.with_finding(entry)
            self._printer.closing["set_aside"] = set_aside_json(self._set_aside)
            say_unreadable(self._printer, entry)
        elif isinstance(entry, UnconfirmedMessage):
            self._printer.show(entry.message, unconfirmed=True)
        else:
            self._printer.show(entry)

    def raise_if_any(self, log_path: str, directory: str) -> None:
        """Raise LogDamagedError, exit code 4, if a place was unreadable."""
        if self._first is not None:
            raise_damage(log_path, directory, self._first, self._set_aside)


def say_unreadable(printer: MessagePrinter, finding: Finding) -> None:
    """Report an unreadable place among the messages."""
    from hastore_cli.app.terminal import say
    from hastore_cli.log.text import place_text

    printer.flush()  # so that a terminal shows it in order
    say(f"unreadable: {place_text(finding)}")


def hint_at_tag(chosen: dict[str, Any]) -> None:
    """Suggest --tag after an empty result with -t, which was the tag in earlier versions."""
    from hastore_cli.app.terminal import say_next

    if chosen.get("topic") is not None and chosen.get("tag") is None:
        say_next("-t is the topic; for a tag write --tag")


def raise_damage(log_path: str, directory: str, first: Finding, set_aside: SetAside) -> None:
    """Raise LogDamagedError, exit code 4, for the first damaged place."""
    from hastore.errors import LogDamagedError
    from hastore_cli.log.text import set_aside_text

    text = f"{log_path} is damaged at offset {first.physic_offset}"
    hint = f"hastore log verify {directory}"
    if set_aside.size:
        text += f"; {set_aside_text(set_aside)}"
    if set_aside.records:
        hint += f"; to see those records: hastore log cat {directory} --unconfirmed"
    raise LogDamagedError(text, path=log_path, physic_offset=first.physic_offset, hint=hint)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore log tail D1",
        "hastore log tail D1 -f -t orders",
        "hastore log tail D1 -f -n 0 -o jsonl | jq -r .body",
        "hastore log tail D1 -f -F '%d %t/%p @ %o %k\\n'",
    ),
    epilog=f"{DIR_HELP}\n\n{FORMAT_HELP}\n\nWith -f it ends with Ctrl-C (exit code 130).",
)
@click.argument("dir", type=DIR)
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages as they come.")
@click.option(
    "-n",
    "--count",
    type=WholeNumber(min=0, max=1_000_000),
    default=10,
    show_default=True,
    metavar="N",
    help="The last N messages.",
)
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
@click.option("-q", "--queue", type=WholeNumber(min=0), metavar="QUEUE", help="Only this queue.")
@click.option("-k", "--key", help="With this key, or this UNIQ_KEY.")
@click.option("--tag", help="With this tag.")
@click.option("--bodies/--no-bodies", default=True, help="With or without the bodies.")
@raw_option
@format_option
@output_option("table", "json", "jsonl")
def tail(
    dir: str,  # noqa: A002
    *,
    follow: bool,
    count: int,
    output: str,
    template: MessageFormat | None,
    bodies: bool,
    raw: bool,
    **chosen: Any,
) -> None:
    """Print the last messages of a log, and with -f each new one as it is written.

    Reads only the files, without asking the node that writes them. A message is shown as soon as it
    is in a file, even if no slave has confirmed it.
    """
    from hastore_cli.app.terminal import say
    from hastore_cli.log.follower import LogFollower

    if follow and output == "json":
        raise click.UsageError("a JSON document must end, and -f does not: use -o jsonl")
    wanted = _filter_of(body=None, regex=None, **chosen)
    disk, _ = open_log(dir)

    def on_skip(from_offset: int, to_offset: int, why: str) -> None:
        printer.flush()
        say(f"unreadable: {from_offset} … {to_offset}  {why}")

    printer = MessagePrinter(output, schema=TAIL_SCHEMA, template=template, bodies=bodies, raw=raw)
    follower = LogFollower(disk, dir, on_skip)
    with printer:
        for message in follower.last(count, wanted.fits_record):
            printer.show(message)
        printer.flush()
        if follow:
            _follow(follower, wanted, printer)
    follower.close()
    if follower.stalled is not None:
        say(f"unfinished: {follower.next_offset}  {follower.stalled}")
    elif not printer.shown and count:
        say("no message matches" if any(chosen.values()) else "the log is empty")
        hint_at_tag(chosen)


def _follow(follower: LogFollower, wanted: MessageFilter, printer: MessagePrinter) -> None:
    from hastore_cli.app.terminal import say

    stalled: tuple[int, float] | None = None  # where, and since when
    while True:
        shown = printer.shown
        for message in follower.new_messages(wanted.fits_record):
            printer.show(message)
        if printer.shown != shown:
            printer.flush()
        if follower.stalled is None:
            stalled = None
        elif stalled is None or stalled[0] != follower.next_offset:
            stalled = (follower.next_offset, time.monotonic() + _STALL_S)
        elif time.monotonic() >= stalled[1]:
            stalled = (stalled[0], float("inf"))
            say(f"unfinished: {follower.next_offset}  {follower.stalled}; waiting for it")
        time.sleep(_POLL_S)
