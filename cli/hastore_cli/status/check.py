"""``hastore check``: a node's findings as a Nagios plugin.

::

    CRITICAL a 127.0.0.1:50212 is 128.2 MiB behind; more than 128.0 MiB | 127.0.0.1:50212_lag=…

The worst state, one line, and the known figures.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import rich_click as click
from click.core import ParameterSource

from hastore.broker.observe.findings import (
    Level,
    Limits,
    findings,
    name_of,
    slaves_wanted,
    warn_lag_s,
)
from hastore.errors import HastoreError
from hastore.quantities import format_size
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.error_report import report
from hastore_cli.app.terminal import one_line
from hastore_cli.node.options import node_asked
from hastore_cli.settings.param_types import DURATION_MS, SIZE, WholeNumber, complete_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.observe.findings import HealthFinding
    from hastore.broker.observe.node_status import NodeStatus

_MIB: Final = 1024 * 1024
DEFAULTS: Final = Limits(warn_lag=16 * _MIB, crit_lag=128 * _MIB, warn_disk=80, crit_disk=90)


class NagiosState(enum.IntEnum):
    """What a Nagios plugin reports; the values are its exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@attrs.frozen
class CheckVerdict:
    """The worst state, and the line with the performance data."""

    state: NagiosState
    line: str


def check_status(status: NodeStatus, limits: Limits) -> CheckVerdict:
    """Return the verdict on one node."""
    found = [(_state_of(each), each) for each in findings(status, limits)]
    worst = sorted(
        (each for each in found if each[0] is not NagiosState.OK), key=lambda each: -each[0]
    )
    state = worst[0][0] if worst else NagiosState.OK
    text = "; ".join(each.sentence for _, each in worst) or _all_well(status)
    if status.sync_state is not None:
        text += f"; {status.sync_state.copies_text}"
    figures = " ".join(_figures(status, limits))
    line = f"{state.name} {one_line(status.name)} {one_line(text)}".replace("|", "/")
    return CheckVerdict(state, f"{line} | {figures}")


def _state_of(finding: HealthFinding) -> NagiosState:
    """Return a finding's state: an unknown lag is a warning, an unreadable disk is none."""
    if finding.level is Level.CRITICAL:
        return NagiosState.CRITICAL
    is_unknown_lag = finding.level is Level.UNKNOWN and finding.subject == "gap"
    alarms = is_unknown_lag or finding.level >= Level.WARNING
    return NagiosState.WARNING if alarms else NagiosState.OK


def _all_well(status: NodeStatus) -> str:
    if status.master_link is not None:
        lag = status.master_link.lag_bytes
        return f"follows {status.master_link.address}" + (
            "" if lag is None else f", lag {format_size(lag)}"
        )
    worst = max((slave.lag_bytes or 0 for slave in status.current_followers), default=None)
    number = len(status.current_followers)
    slaves = f"{number} slave{'s' * (number != 1)}"
    group = status.sync_state
    text = f"{status.role}, {slaves}"
    if group is not None:
        members = ", ".join(map(str, group.members))
        text = f"{status.role} of epoch {group.epoch}, SyncStateSet {members}, {slaves}"
    return text + ("" if worst is None else f", worst lag {format_size(worst)}")


def _figures(status: NodeStatus, limits: Limits) -> Iterator[str]:
    """Yield ``label=value[unit];warn;crit;min;max``, the label quoted if needed."""
    lags = (
        [
            (name_of(slave), slave.lag_bytes, None if slave.lag_s_is_least else slave.lag_s)
            for slave in status.current_slaves
        ]
        if status.master_link is None
        else [("link", status.master_link.lag_bytes, None)]
    )
    for who, lag_bytes, lag_s in lags:
        if lag_bytes is not None:
            bounds = f"{_number(limits.warn_lag)};{_number(limits.crit_lag)}"
            yield f"{_label(who + '_lag')}={lag_bytes}B;{bounds};0"
        if lag_s is not None:
            bounds = f"{_number(warn_lag_s(status, limits))};{_number(limits.crit_lag_s)}"
            yield f"{_label(who + '_lag_time')}={lag_s:.3f}s;{bounds};0"
    if status.master_link is None:
        yield f"slaves={len(status.current_followers)};;{slaves_wanted(status, limits)}:;0"
        yield f"waiting={status.waiting_for_slave};;;0"
    group = status.sync_state
    if group is not None:
        expected = len(group.members if group.configured_ids is None else group.configured_ids)
        bounds = f"{expected}:;{group.min_in_sync_replicas}:"
        yield f"members={len(group.members)};{bounds};0"
        if group.copies is not None:
            yield f"copies={group.copies};;;0"
        yield f"confirm_lag={group.confirm_lag_bytes}B;;;0"
        yield f"confirm_lag_time={group.confirm_lag_s:.3f}s;;;0"
    if status.epoch is not None:
        yield f"epoch={status.epoch}"
    if status.disk_used_ratio is not None:
        used = status.disk_used_ratio * 100
        yield f"disk={used:.1f}%;{limits.warn_disk};{limits.crit_disk};0;100"
    yield f"log={status.max_offset}B"


def _number(value: float | None) -> str:
    return "" if value is None else str(round(value, 3))


def _label(text: str) -> str:
    text = one_line(text)
    if any(c in text for c in " '=|"):
        return "'" + text.replace("'", "''").replace("=", "-").replace("|", "-") + "'"
    return text


# -- the command ---------------------------------------------------------------------------------


class UnknownUsageError(click.UsageError):
    """A usage error of a Nagios plugin."""

    exit_code = NagiosState.UNKNOWN.value


@final
class PluginCommand(AskingCommand):
    """A command whose own errors are Nagios' UNKNOWN: 1 would be WARNING, and 2 CRITICAL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a usage error has exit code 3."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise UnknownUsageError(error.format_message(), ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        """Run; an unusable configuration, or a closed standard output, has exit code 3."""
        try:
            return super().invoke(ctx)
        except (HastoreError, OSError) as error:
            report(error)
            return int(NagiosState.UNKNOWN)


@click.command(
    cls=PluginCommand,
    examples=(
        "hastore check 127.0.0.1:10911",
        "hastore check D1 --warn-lag 1MiB --crit-lag 16MiB --min-slaves 2",
        "hastore check D1 --crit-lag-time 10s",
    ),
    epilog="Exit code, as Nagios defines it: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (no answer, or"
    " a usage error). The directory of a node that was killed is CRITICAL.",
)
@click.argument(
    "addr",
    required=False,
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
def check(addr: str | None, **options: Any) -> int:
    """Check a node: one line, performance data, and Nagios' exit codes.

    A SYNC_MASTER none of whose slaves acknowledges in time is CRITICAL: its puts are
    FLUSH_SLAVE_TIMEOUT.

    ADDR is the HOST:PORT of a node's client port, or its data directory. [default: the
    node of this directory or configuration, else 127.0.0.1:10911] [env: HASTORE_ADDR]
    """
    import trio

    from hastore_cli.app.terminal import tell
    from hastore_cli.node.file import NodeDownError
    from hastore_cli.status.watch import look

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
    statuses, errors = trio.run(look, [addr or node_asked()])
    if not statuses:
        state = NagiosState.UNKNOWN
        if isinstance(errors[0], NodeDownError):
            state = NagiosState.CRITICAL
        tell(f"{state.name} {one_line(str(errors[0])).replace('|', '/')}")
        return int(state)
    verdict = check_status(statuses[0], limits)
    tell(verdict.line)
    return int(verdict.state)


def _check_order(options: dict[str, Any]) -> None:
    """Raise UnknownUsageError if both bounds were given and the warning is above the critical."""
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
