"""``hastore get``: single messages by id, offset, key or time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import rich_click as click
from click.core import ParameterSource
from click.globals import get_current_context

from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.app.times import ALWAYS, TimeWindow
from hastore_cli.log.options import DIR, TIME_HELP, WINDOW
from hastore_cli.messages.printer import (
    FORMAT_HELP,
    MessagePrinter,
    format_option,
    raw_option,
)
from hastore_cli.node.options import addr_option, ask_node
from hastore_cli.settings.param_types import TOPIC, ParsedType, WholeNumber

if TYPE_CHECKING:
    from hastore.message import StoredMessage
    from hastore_cli.consume.lookup import MessageId
    from hastore_cli.messages.printer import MessageFormat
    from hastore_cli.node.client import NodeClient

SCHEMA: Final = "hastore.get/1"


def _parse_id(text: str) -> MessageId:
    from hastore_cli.consume.lookup import MessageId

    return MessageId.parse(text)


_ID: Final = ParsedType("ID", _parse_id, ())


@attrs.frozen(kw_only=True)
class _Wanted:
    """Which messages to get, and how many at most."""

    topic: str | None
    key: str | None
    window: TimeWindow
    count: int | None


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore get --id 7F00000100002A9F000000004001F3C8",
        "hastore get --offset 1073869768",
        "hastore get --key o-17 -t orders",
        "hastore get --time 15min.. -t orders -o jsonl | jq -r .body",
        "hastore get --key o-17 --dir D1          # reads D1, asks no node",
    ),
    epilog=f"{FORMAT_HELP}\n\n{TIME_HELP}\n\nExit code: 1 when there is no such message,"
    " 3 when the node does not answer.",
)
@click.option("--id", "message_id", type=_ID, metavar="ID", help="The message with this id.")
@click.option(
    "--offset",
    type=WholeNumber(min=0),
    metavar="OFFSET",
    help="The message that begins at this offset of the log.",
)
@click.option(
    "-k", "--key", metavar="KEY", help="Messages of a topic with this key, or this UNIQ_KEY."
)
@click.option(
    "--time",
    "window",
    type=WINDOW,
    metavar="T1..T2",
    help="Messages stored from T1 to before T2.",
)
@click.option("-t", "--topic", type=TOPIC, metavar="TOPIC", help="Only this topic.")
@click.option("--dir", "directory", type=DIR, metavar="DIR", help="Read these files; ask no node.")
@click.option("-n", "--count", type=WholeNumber(min=1), metavar="N", help="At most N messages.")
@click.option("--bodies/--no-bodies", default=True, help="With or without the bodies.")
@raw_option
@addr_option
@format_option
@output_option("table", "json", "jsonl")
def get(
    *,
    message_id: MessageId | None,
    offset: int | None,
    key: str | None,
    window: TimeWindow | None,
    topic: str | None,
    directory: str | None,
    count: int | None,
    bodies: bool,
    raw: bool,
    addr: str,
    template: MessageFormat | None,
    output: str,
) -> None:
    """Get single messages: by id, by offset of the log, by key, or by time.

    --key and --time may be combined; a node needs the topic (-t) for them. A node returns what
    consumers may see; --dir reads the files themselves and needs no -t.
    """
    singles = (message_id is not None) + (offset is not None)
    if singles + (key is not None or window is not None) != 1:
        raise click.UsageError("use one of --id, --offset, --key (with --time), --time")
    if not singles and topic is None and directory is None:
        raise click.UsageError("a node finds --key and --time in one topic: add -t TOPIC")
    _check_options(is_one=singles > 0, has_offset=offset is not None, topic=topic, count=count)
    if key == "":
        raise click.UsageError("a key cannot be empty")
    if directory is not None and _is_typed("addr"):
        raise click.UsageError("--dir asks no node: leave --addr out")
    printer = MessagePrinter(output, schema=SCHEMA, template=template, bodies=bodies, raw=raw)
    if singles:
        if directory is None:
            message = ask_node(addr, lambda node: _ask_one(node, message_id, offset, topic))
        else:
            message = _read_one(directory, message_id, offset, topic)
        in_full = output == "table" and template is None
        _show_one(printer, message, in_full=in_full, bodies=bodies, raw=raw)
        return
    wanted = _Wanted(topic=topic, key=key, window=window or ALWAYS, count=count)
    with printer:
        if directory is None:
            ask_node(addr, lambda node: _ask_many(node, wanted, printer))
        else:
            _read_many(directory, wanted, printer)
    if not printer.shown:
        _not_found(key, topic)


def _check_options(*, is_one: bool, has_offset: bool, topic: str | None, count: int | None) -> None:
    """Raise UsageError for options that would have no effect."""
    if is_one and count is not None:
        raise click.UsageError("--id and --offset name one message: leave -n out")
    if has_offset and topic is not None:
        raise click.UsageError("--offset names one message, whatever its topic: leave -t out")


def _is_typed(name: str) -> bool:
    """Whether an option was typed rather than set by a variable."""
    source = get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _show_one(
    printer: MessagePrinter, message: StoredMessage, *, in_full: bool, bodies: bool, raw: bool
) -> None:
    from hastore.store.record.body_compression import decoded
    from hastore_cli.app.terminal import tell_text
    from hastore_cli.messages.detail import message_detail_lines

    if in_full:
        shown = message if raw else decoded(message)
        for line in message_detail_lines(shown, bodies=bodies):
            tell_text(line)
        return
    with printer:
        printer.show(message)


def _not_found(key: str | None, topic: str | None) -> None:
    from hastore_cli.consume.lookup import NotFoundError

    what = "in that time" if key is None else f"with the key {key}"
    where = "" if topic is None else f" of topic {topic}"
    raise NotFoundError(
        f"no message{where} {what}", hint="search the files: hastore log find DIR --help"
    )


# -- a node --------------------------------------------------------------------------------------


async def _ask_one(
    node: NodeClient, wanted: MessageId | None, offset: int | None, topic: str | None
) -> StoredMessage:
    from hastore_cli.consume.lookup import by_id, by_offset

    if wanted is not None:
        return await by_id(node, wanted, topic)
    assert offset is not None
    return await by_offset(node, offset)


async def _ask_many(node: NodeClient, wanted: _Wanted, printer: MessagePrinter) -> None:
    from hastore_cli.app.terminal import say
    from hastore_cli.consume.lookup import KEY_COUNT_MAX, by_key, by_time

    assert wanted.topic is not None
    if wanted.key is not None:
        found = await by_key(node, wanted.topic, wanted.key, wanted.window)
        for message in found[: wanted.count]:
            printer.show(message)
        if len(found) >= KEY_COUNT_MAX:
            say(f"note: a node returns the newest {KEY_COUNT_MAX} of a key; there may be more")
        return
    reader = await by_time(node, wanted.topic, wanted.window, say)
    while batch := await reader.next_batch():
        for message in batch:
            if wanted.window.holds(message.store_timestamp_ms):
                printer.show(message)
            if printer.shown == wanted.count:
                return
        printer.flush()


# -- files ---------------------------------------------------------------------------------------


def _read_one(
    directory: str, wanted: MessageId | None, offset: int | None, topic: str | None
) -> StoredMessage:
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.consume.lookup import by_id_in_files, by_offset_in_files
    from hastore_cli.log.options import open_log

    disk, log = open_log(directory)
    if wanted is not None:
        with reading_bar("looking", log.size) as on_progress:
            return by_id_in_files(disk, log, wanted, topic, on_progress)
    assert offset is not None
    return by_offset_in_files(disk, log, offset)


def _read_many(directory: str, wanted: _Wanted, printer: MessagePrinter) -> None:
    from hastore_cli.app.progress_bar import ReadingBar
    from hastore_cli.consume.lookup import in_files
    from hastore_cli.log.find_commands import Damage
    from hastore_cli.log.options import open_log
    from hastore_cli.log.search import MessageFilter

    damage = Damage(printer)
    disk, log = open_log(directory)
    fits = MessageFilter(key=wanted.key, topic=wanted.topic, window=wanted.window)
    with ReadingBar("looking", log.size) as bar:
        for message in in_files(disk, log, fits, bar.on_progress, damage.show):
            bar.stop()
            printer.show(message)
            if printer.shown == wanted.count:
                break
    damage.raise_if_any(log.path, directory)
