"""``hastore check``: one look at a node as a Nagios plugin takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import rich_click as click
from click.core import ParameterSource

from hastore_cli.app.example_command import ExampleCommand
from hastore_cli.settings.param_types import DURATION_MS, SIZE, WholeNumber, complete_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_UNKNOWN: Final = 3


class UnknownUsageError(click.UsageError):
    """A usage error of a plugin."""

    exit_code = EXIT_UNKNOWN


@final
class PluginCommand(ExampleCommand):
    """A command whose usage error is Nagios' UNKNOWN: 2 would be CRITICAL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a mistake has exit code 3."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise UnknownUsageError(error.format_message(), ctx) from error


@click.command(
    cls=PluginCommand,
    examples=(
        "hastore check 127.0.0.1:10911",
        "hastore check D1 --warn-lag 1MiB --crit-lag 16MiB --min-slaves 2",
        "hastore check D1 --crit-lag-time 10s",
    ),
    epilog="Exit code, as Nagios has it: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (the node does not"
    " answer, or a usage error).",
)
@click.argument(
    "addr",
    default="127.0.0.1:10911",
    envvar="HASTORE_ADDR",
    metavar="[ADDR]",
    shell_complete=complete_directory,
)
@click.option("--warn-lag", type=SIZE, default="16MiB", show_default=True)
@click.option("--crit-lag", type=SIZE, default="128MiB", show_default=True)
@click.option(
    "--warn-lag-time",
    type=DURATION_MS,
    help="A master: a slave's lag in time. [default: as long as puts wait for a SYNC_MASTER's"
    " slaves, else none]",
)
@click.option("--crit-lag-time", type=DURATION_MS)
@click.option(
    "--min-slaves",
    type=WholeNumber(min=0),
    metavar="N",
    help="Fewer slaves are CRITICAL. [default: 1 for a SYNC_MASTER, else 0]",
)
@click.option("--warn-disk", type=WholeNumber(1, 100), default=80, show_default=True)
@click.option("--crit-disk", type=WholeNumber(1, 100), default=90, show_default=True)
def check(addr: str, **options: Any) -> int:
    """Check a node: one line, performance data, and Nagios' exit codes.

    A SYNC_MASTER none of whose slaves acknowledges in time is CRITICAL: its puts are
    FLUSH_SLAVE_TIMEOUT.

    ADDR is the HOST:PORT of a node's client port, or its data directory. [default:
    127.0.0.1:10911] [env: HASTORE_ADDR]
    """
    import trio

    from hastore.broker.observe.findings import Limits
    from hastore_cli.app.terminal import one_line, tell
    from hastore_cli.status.check_rules import check_status
    from hastore_cli.status.status_watch import look

    _check_order(options)
    limits = Limits(
        warn_lag=options["warn_lag"],
        crit_lag=options["crit_lag"],
        warn_lag_s=_seconds(options["warn_lag_time"]),
        crit_lag_s=_seconds(options["crit_lag_time"]),
        min_slaves=options["min_slaves"],
        warn_disk=options["warn_disk"],
        crit_disk=options["crit_disk"],
    )
    addrs: Sequence[str] = [addr]
    statuses, errors = trio.run(look, addrs)
    if not statuses:
        tell(f"UNKNOWN {one_line(str(errors[0])).replace('|', '/')}")
        return EXIT_UNKNOWN
    verdict = check_status(statuses[0], limits)
    tell(verdict.line)
    return int(verdict.level)


def _check_order(options: dict[str, Any]) -> None:
    """Refuse bounds of which the warning lies above the critical one, if both were given."""
    context = click.get_current_context()
    assert context is not None
    for what in ("lag", "lag_time", "disk"):
        both = f"warn_{what}", f"crit_{what}"
        given = (context.get_parameter_source(name) for name in both)
        if ParameterSource.DEFAULT in given:
            continue
        warn, crit = (options[name] for name in both)
        if warn is not None and crit is not None and warn > crit:
            names = (f"--{name.replace('_', '-')}" for name in both)
            msg = "{} is above {}: it would never warn".format(*names)
            raise UnknownUsageError(msg, context)


def _seconds(duration_ms: int | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1000
