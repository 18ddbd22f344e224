"""``hastore status``: show nodes once, or every few seconds."""

from __future__ import annotations

import os

import rich_click as click

from hastore.quantities import parse_duration_ms
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.node.options import node_asked
from hastore_cli.settings.param_types import complete_directory

_WATCH_DEFAULT = "2"


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore status",
        "hastore status 127.0.0.1:10911 -w 1",
        "hastore status D2              # the node that runs on this directory",
        "hastore status D1 D2 D3        # a master with what its slaves have on disk",
        "hastore status -o json | jq '.slaves[].lag_bytes'",
    ),
    epilog="Exit code: 0 when all nodes were shown, 3 when a node does not answer.",
)
@click.argument("addrs", nargs=-1, metavar="[ADDR]...", shell_complete=complete_directory)
@click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value=_WATCH_DEFAULT,
    default=None,
    metavar="[SEC]",
    help="Repeat every SEC seconds (2) until Ctrl-C; -o json then prints a line each time.",
)
@click.option("--extended", is_flag=True, help="Add the latencies of each stage since the start.")
@click.option("-e", "extended_too", is_flag=True, hidden=True)  # elsewhere it is --exit
@output_option()
def status(
    addrs: tuple[str, ...], watch: str | None, output: str, *, extended: bool, extended_too: bool
) -> int:
    """Show a node: the ends of its log, its slaves or its master, lag, and refused peers.

    ADDR is the HOST:PORT of a node's client port, or the data directory of a node on this
    machine. [default: the
    node of this directory or configuration, else 127.0.0.1:10911] [env: HASTORE_ADDR] Of
    a master and its slaves the master's table also shows what only the slaves know.
    """
    import trio

    from hastore_cli.app.error_report import collapsed
    from hastore_cli.status.watch import StatusPrinter, show_once, watch_status

    period_s = None
    if watch is not None:
        period_s = _seconds(watch)
        if period_s is None:
            # `status -w D1 D2`: the word after -w is a node, not a time.
            if addrs and ":" not in watch and not os.path.lexists(watch):
                raise click.BadParameter(f"{watch!r} is not a time in seconds", param_hint="'-w'")
            addrs, period_s = (watch, *addrs), float(_WATCH_DEFAULT)
    asked = addrs or (node_asked(),)
    printer = StatusPrinter(
        as_json=output == "json", one_line=period_s is not None, extended=extended or extended_too
    )
    with collapsed():
        if period_s is None:
            return trio.run(show_once, asked, printer)
        return trio.run(watch_status, asked, period_s, printer)


def _seconds(text: str) -> float | None:
    """Parse ``2``, ``0.5`` or ``500ms``; return None for something else."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_duration_ms(text) / 1000
        except ValueError:
            return None
    if not 0.05 <= seconds <= 86_400:
        raise click.BadParameter("a time between 0.05 and 86400 seconds", param_hint="'-w'")
    return seconds
