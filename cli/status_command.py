"""``hastore status``: one look at a node, or one every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click
from click.core import ParameterSource

from cli.example_command import ExampleCommand
from cli.quantities import parse_duration_ms

if TYPE_CHECKING:
    from cli.status_watch import StatusPrinter

_WATCH_DEFAULT = "2"


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore status",
        "hastore status 127.0.0.1:10911 -w 1",
        "hastore status D2                       # the node that runs on this directory",
        "hastore status -o json | jq '.slaves[].lag_bytes'",
    ),
    epilog="Exit code: 0 when it could be shown, 3 when nobody answers.",
)
@click.argument("addr", default="127.0.0.1:10911", envvar="HASTORE_ADDR", metavar="[ADDR]")
@click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value=_WATCH_DEFAULT,
    default=None,
    metavar="[SEC]",
    help="Again every SEC seconds (2) until Ctrl-C; -o json then gives a line each.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"], case_sensitive=False),
    default="table",
    show_default=True,
)
@click.pass_context
def status(ctx: click.Context, addr: str, watch: str | None, output: str) -> int:
    """Show a node: how far its log is, its slaves or its master, lag, and what was refused.

    ADDR is the HOST:PORT of a node's client port, or the data directory of a node on this
    machine. [default: 127.0.0.1:10911] [env: HASTORE_ADDR]
    """
    import trio

    from cli.error_report import collapsed
    from cli.node_address import resolve_address
    from cli.status_watch import StatusPrinter, show_once, watch_status

    period_s = None
    if watch is not None:
        period_s = _seconds(watch)
        if period_s is None:
            # `status -w D1`: what stands behind -w is the node, not a time.
            given = ctx.get_parameter_source("addr")
            if given is ParameterSource.COMMANDLINE:
                raise click.BadParameter(f"{watch!r} is not a time in seconds", param_hint="'-w'")
            addr, period_s = watch, float(_WATCH_DEFAULT)
    printer: StatusPrinter = StatusPrinter(as_json=output == "json", one_line=period_s is not None)
    with collapsed():
        if period_s is None:
            trio.run(show_once, resolve_address(addr), printer)
            return 0
        return trio.run(watch_status, lambda: resolve_address(addr), period_s, printer)


def _seconds(text: str) -> float | None:
    """Seconds of ``2``, ``0.5``, ``500ms``; None where it is something else."""
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
