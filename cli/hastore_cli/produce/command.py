"""``hastore produce``: send one message per line, and report each outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.node.options import (
    SEVERAL,
    addr_option_of,
    failover_timeout_option,
    topic_is_an_argument,
)
from hastore_cli.settings.param_types import SIZE, TOPIC, Number, WholeNumber, complete_file

if TYPE_CHECKING:
    from hastore_cli.produce.run import ProduceOrder, ProduceOutcome
    from hastore_cli.produce.source import LineFormat


def _text_without_separators(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    if value is not None and (not value.isprintable() or not value):
        raise click.BadParameter("holds characters that cannot be printed", param=param)
    return value


def _properties(
    _ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator or not name or not value.isprintable():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", param=param)
        found[name] = text
    return found


def _check_body_size(_ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    from hastore_cli.produce.source import LINE_SIZE_MAX

    if value is not None and value > LINE_SIZE_MAX:
        raise click.BadParameter(
            f"a message has at most {LINE_SIZE_MAX} bytes (15MiB), and a broker takes 4MiB"
            " (message_max)",
            param=param,
        )
    return value


@click.command(
    cls=AskingCommand,
    examples=(
        "echo hello | hastore produce orders",
        "hastore produce orders lines.txt --tag paid",
        "hastore produce orders -k o-17 -q 2 <<< hi",
        "hastore produce orders keyed.txt --key-separator :   # o-17:hello",
        "hastore consume orders -e -o jsonl | hastore produce copy --jsonl",
        "hastore produce orders -n 100000 --size 1KiB --rate 5000",
        "hastore produce orders --addr D1 -o json < lines.txt   # D1: a node's data",
        "hastore produce orders --addr n1:10911,n2:10911   # their master",
    ),
    epilog="Exit code: 0 all PUT_OK; stored, but less safely than asked: 20 SLAVE_NOT_AVAILABLE, 21"
    " FLUSH_SLAVE_TIMEOUT, 22 FLUSH_DISK_TIMEOUT (--lenient: 0); 23 rejected, not stored; 3 no"
    " answer, outcome unknown. After a failover that lost nothing: as if there had been none.",
)
@click.argument("topic", type=TOPIC)
@click.argument("file", required=False, metavar="[FILE|-]", shell_complete=complete_file)
@addr_option_of(
    "The master's client port, or its data directory. Of several nodes: whichever is master, also"
    " after a failover.",
    SEVERAL,
)
@failover_timeout_option
@click.option(
    "--at-least-once",
    is_flag=True,
    help="After a failover send again what got no answer, too: it may be stored twice.",
)
@click.option(
    "-k", "--key", callback=_text_without_separators, help="KEYS property, to find the message by."
)
@topic_is_an_argument
@click.option("--tag", callback=_text_without_separators, help="TAGS property.")
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_properties,
    help="A property of each message; may be repeated.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=_text_without_separators,
    help="Each line begins with its keys (KEYS), up to TEXT.",
)
@click.option(
    "--jsonl",
    is_flag=True,
    help="Each line is an object with body (or body_base64), keys, tags and properties; other"
    " fields that `consume -o jsonl` prints are not used.",
)
@click.option(
    "-q", "--queue", type=WholeNumber(min=0), help="Queue number. [default: each in turn]"
)
@click.option(
    "-n",
    "count",
    type=WholeNumber(min=1),
    metavar="N",
    help="Without FILE: generate N messages. With FILE or -: send only the first N lines.",
)
@click.option(
    "--size",
    type=SIZE,
    metavar="B",
    callback=_check_body_size,
    help="Body size of generated messages. [default: 1KiB]",
)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    metavar="R",
    help="At most R messages a second.",
)
@click.option("--no-wait", is_flag=True, help="WAIT=false: do not wait for disk and slave.")
@click.option(
    "--history",
    type=click.Path(),
    metavar="FILE",
    help="Record every message and its outcome, for: hastore pipeline run rpo FILE STORE.",
)
@click.option("--lenient", is_flag=True, help="Stored is enough: exit 0 instead of 20, 21 and 22.")
@output_option()
def produce(
    *,
    topic: str,
    file: str | None,
    addr: str,
    failover_timeout_ms: int,
    at_least_once: bool,
    key: str | None,
    tag: str | None,
    properties: dict[str, str],
    key_separator: str | None,
    jsonl: bool,
    queue: int | None,
    count: int | None,
    size: int | None,
    rate: float | None,
    output: str,
    no_wait: bool,
    history: str | None,
    lenient: bool,
) -> int:
    """Send messages to a master: the lines of FILE or of stdin (-), or generated ones.

    Prints a line for each of up to 20 messages; counts more by status.
    """
    import sys

    from hastore.client.failover_rules import Retry
    from hastore_cli.app.terminal import say
    from hastore_cli.node.options import addresses_of
    from hastore_cli.produce.run import ProduceOrder
    from hastore_cli.produce.source import LineFormat, has_unread_stdin, open_source

    if file is not None and size is not None:
        raise click.UsageError("--size is for generated messages; leave FILE out")
    line_format = _line_format(key, key_separator, jsonl=jsonl)
    reads_stdin = file == "-" or (file is None and count is None and size is None)
    is_generated = file is None and not reads_stdin
    if is_generated and line_format is not LineFormat.TEXT:
        raise click.UsageError("generated messages have no lines: name a FILE, or - for stdin")
    if not reads_stdin and has_unread_stdin():
        sent = "generated; name - to send the lines of stdin"
        sent = sent if file is None else f"the lines of {file}"
        say(f"note: stdin has data, which is not sent: the messages are {sent}")
    if reads_stdin and sys.stdin is None:
        raise click.UsageError("stdin is closed: name a FILE, or use -n N")
    reads_terminal = reads_stdin and sys.stdin.isatty()
    order = ProduceOrder(
        topic=topic,
        addresses=addresses_of(addr),
        source=open_source(file, count=count, size=size),
        key=key,
        tag=tag,
        own_properties=properties,
        line_format=line_format,
        key_separator=key_separator or "",
        queue_id=queue,
        rate=rate,
        wait=not no_wait,
        list_all=reads_terminal,
        retry=Retry.AT_LEAST_ONCE if at_least_once else Retry.REFUSED,
        failover_timeout_s=failover_timeout_ms / 1000,
    )
    if reads_terminal:
        say("each line is a message; Ctrl-D ends")
    as_json = output == "json"
    if history is None:
        return _run(order, addr, as_json=as_json, lenient=lenient)
    return _run_with_history(order, addr, history, as_json=as_json, lenient=lenient)


def _line_format(key: str | None, separator: str | None, *, jsonl: bool) -> LineFormat:
    from hastore_cli.produce.source import LineFormat

    if jsonl and separator is not None:
        raise click.UsageError("--jsonl has keys in each object; leave --key-separator out")
    if key is not None and separator is not None:
        raise click.UsageError("each line has its own keys (--key-separator); leave -k out")
    if jsonl:
        return LineFormat.JSON
    return LineFormat.TEXT if separator is None else LineFormat.KEYED


def _run_with_history(
    order: ProduceOrder, addr: str, path: str, *, as_json: bool, lenient: bool
) -> int:
    import attrs

    from hastore.client.failover_rules import Retry
    from hastore_cli.app.terminal import say_error
    from hastore_cli.produce.history import ProduceHistory

    again = order.retry is Retry.AT_LEAST_ONCE
    with ProduceHistory.open(
        path, order.addresses[0], wait=order.wait, is_at_least_once=again
    ) as history:
        order = attrs.evolve(order, history=history)
        exit_code = _run(order, addr, as_json=as_json, lenient=lenient)
    if history.error is None:
        return exit_code
    say_error(f"{path} is incomplete: {history.error.strerror}", "free disk space, and send again")
    return exit_code or 1


def _run(order: ProduceOrder, addr: str, *, as_json: bool, lenient: bool) -> int:
    import trio

    from hastore.errors import AccessDeniedError, RequestFailedError
    from hastore_cli.app.error_report import collapsed
    from hastore_cli.app.terminal import say, say_error
    from hastore_cli.node.address import next_step, next_steps_of
    from hastore_cli.produce.report import ProduceReport, needs_ha_address, progress_bar
    from hastore_cli.produce.run import ProduceRun
    from hastore_cli.produce.tally import EXIT_REJECTED

    report = ProduceReport(order, as_json)
    run = ProduceRun(
        order,
        report.listed,
        lambda outcome: progress_bar(order, outcome),
        lambda failover: say(str(failover)),
    )
    try:
        with next_steps_of(addr), collapsed():
            outcome = trio.run(run.run)
    except AccessDeniedError:
        raise  # nothing was sent
    except RequestFailedError as refused:
        say_error(str(refused), refused.hint)
        return EXIT_REJECTED
    if needs_ha_address(outcome):
        report.ha_address = trio.run(_ha_address, outcome.address or order.addresses[0])
    exit_code = _exit_code(outcome, lenient=lenient)
    report.finish(outcome, exit_code=exit_code)
    if outcome.error is not None:
        say_error(str(outcome.error), next_step(addr, outcome.error))
    return exit_code


def _exit_code(outcome: ProduceOutcome, *, lenient: bool) -> int:
    if outcome.signal_code is not None:
        return outcome.signal_code
    code = outcome.tally.exit_code(lenient=lenient)
    if outcome.error is not None and code in {0, 20, 21, 22}:
        return outcome.error.exit_code
    return code


async def _ha_address(address: tuple[str, int]) -> str | None:
    """Return the master's HA address for a next step; None if it is unknown within a second."""
    import trio

    from hastore.errors import HastoreError
    from hastore_cli.node.address import fetch_status

    with trio.move_on_after(1):
        try:
            return (await fetch_status(address)).ha_address
        except HastoreError:
            return None
    return None
