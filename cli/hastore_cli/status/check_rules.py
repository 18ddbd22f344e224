"""A node's findings as Nagios plugins say them: the worst level, one line, and the figures.

::

    CRITICAL a 127.0.0.1:50212 is 128.2 MiB behind; more than 128.0 MiB | 127.0.0.1:50212_lag=…

Pure.  Figures that are not known have no place in the performance data.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.observe import findings as rules
from hastore.broker.observe.findings import Limits, findings, name_of, slaves_wanted, warn_lag_s
from hastore.quantities import format_size
from hastore_cli.app.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.observe.node_status import NodeStatus

_MIB: Final = 1024 * 1024
DEFAULTS: Final = Limits(warn_lag=16 * _MIB, crit_lag=128 * _MIB, warn_disk=80, crit_disk=90)


class Level(enum.IntEnum):
    """The exit codes of a Nagios plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@attrs.frozen
class CheckVerdict:
    """The worst level, one line, and the performance data behind it."""

    level: Level
    line: str


def check_status(status: NodeStatus, limits: Limits) -> CheckVerdict:
    """Check one node."""
    found = [(_level(each), each) for each in findings(status, limits)]
    worst = sorted((each for each in found if each[0] is not Level.OK), key=lambda each: -each[0])
    level = worst[0][0] if worst else Level.OK
    text = "; ".join(each.sentence for _, each in worst) or _all_well(status)
    figures = " ".join(_figures(status, limits))
    line = f"{level.name} {one_line(status.name)} {one_line(text)}".replace("|", "/")
    return CheckVerdict(level, f"{line} | {figures}")


def _level(finding: rules.Finding) -> Level:
    """A lag that is not known may be beyond its limit; a disk that cannot be read alarms nobody."""
    if finding.level is rules.Level.CRITICAL:
        return Level.CRITICAL
    is_unknown_lag = finding.level is rules.Level.UNKNOWN and finding.subject == "gap"
    alarms = is_unknown_lag or finding.level >= rules.Level.WARNING
    return Level.WARNING if alarms else Level.OK


def _all_well(status: NodeStatus) -> str:
    if status.master_link is not None:
        lag = status.master_link.lag_bytes
        return f"follows {status.master_link.address}" + (
            "" if lag is None else f", lag {format_size(lag)}"
        )
    worst = max((slave.lag_bytes or 0 for slave in status.current_followers), default=None)
    number = len(status.current_followers)
    slaves = f"{number} slave{'s' * (number != 1)}"
    return f"{status.role}, {slaves}" + (
        "" if worst is None else f", worst lag {format_size(worst)}"
    )


def _figures(status: NodeStatus, limits: Limits) -> Iterator[str]:
    """``label=value[unit];warn;crit;min;max``, the label quoted where it needs to be."""
    lags = (
        [
            (
                one_line(name_of(slave)),
                slave.lag_bytes,
                None if slave.lag_s_is_least else slave.lag_s,
            )
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
