"""A status against thresholds: what is wrong, how wrong, and the figures, as Nagios plugins say it.

::

    CRITICAL 127.0.0.1:50212 lag 128.2 MiB > 128.0 MiB | 127.0.0.1:50212_lag=134397312B;16777216;…

Pure.  Figures that are not known have no place in the performance data.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from hastore.quantities import format_duration, format_size
from hastore_cli.app.terminal import one_line
from hastore_cli.status.late_slaves import name_of, nobody_in_time, put_timeout_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.observe.node_status import MasterLink, NodeStatus

_MIB: Final = 1024 * 1024


class Level(enum.IntEnum):
    """The exit codes of a Nagios plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@attrs.frozen(kw_only=True)
class Thresholds:
    """From when on something is a warning, or critical; None: never."""

    warn_lag: int | None = 16 * _MIB
    crit_lag: int | None = 128 * _MIB
    warn_lag_s: float | None = None  # None: where puts wait for slaves, as long as they wait
    crit_lag_s: float | None = None
    min_slaves: int | None = None  # None: as many acks as a put needs
    warn_disk: int = 80
    crit_disk: int = 90


@attrs.frozen
class Found:
    """Something that is not as it should be."""

    level: Level
    text: str


@attrs.frozen
class CheckVerdict:
    """The worst level, one line, and the performance data behind it."""

    level: Level
    line: str


def check_status(status: NodeStatus, limits: Thresholds) -> CheckVerdict:
    """Judge one node."""
    found = list(_findings(status, limits))
    level = max((each.level for each in found), default=Level.OK)
    worst = sorted(found, key=lambda each: -each.level)
    text = "; ".join(each.text for each in worst) or _all_well(status)
    figures = " ".join(_figures(status, limits))
    line = f"{level.name} {one_line(status.name)} {one_line(text)}".replace("|", "/")
    return CheckVerdict(level, f"{line} | {figures}")


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


def _findings(status: NodeStatus, limits: Thresholds) -> Iterator[Found]:
    if status.puts_refused_because is not None:
        yield Found(Level.CRITICAL, f"puts are refused: {status.puts_refused_because}")
    elif status.master_link is None and status.state != "serving":
        yield Found(Level.CRITICAL, f"is {status.state}")
    if status.dispatch_fault is not None:
        yield Found(Level.CRITICAL, f"consumers see nothing new: {status.dispatch_fault}")
    if status.master_link is not None:
        yield from _link(status.master_link, limits)
    else:
        yield from _slaves(status, limits)
    if status.disk_used_ratio is not None:
        used = status.disk_used_ratio * 100
        for level, limit in ((Level.CRITICAL, limits.crit_disk), (Level.WARNING, limits.warn_disk)):
            if used >= limit:
                yield Found(level, f"disk {used:.0f} % full, {limit} % or more")
                break


def _link(link: MasterLink, limits: Thresholds) -> Iterator[Found]:
    if link.state != "streaming":
        why = f": {link.reason}" if link.reason else ""
        yield Found(Level.CRITICAL, f"link to {link.address} is {link.state}{why}")
        return
    if link.is_silent and link.last_read_age_s is not None:
        silent = format_duration(link.last_read_age_s)
        yield Found(Level.CRITICAL, f"its master has been silent for {silent}")
    if link.reason is not None:  # it follows, and yet there is something to say
        yield Found(Level.WARNING, link.reason)
    yield from _lag("its", link.lag_bytes, None, limits)
    if limits.warn_lag_s is not None or limits.crit_lag_s is not None:
        yield Found(Level.WARNING, "its lag in time is not known: check its master for that")


def _slaves(status: NodeStatus, limits: Thresholds) -> Iterator[Found]:
    wanted = status.acks_needed if limits.min_slaves is None else limits.min_slaves
    number = len(status.current_followers)
    if number < wanted:
        why = status.slave_unavailable_because
        text = f"{number} of {wanted} slaves connected"
        yield Found(Level.CRITICAL, text + (f": {why}" if why else ""))
    elif status.acks_needed and status.slave_unavailable_because is not None:
        yield Found(Level.CRITICAL, status.slave_unavailable_because)
    elif (late := nobody_in_time(status)) is not None:
        yield Found(Level.CRITICAL, late)
    in_effect = attrs.evolve(limits, warn_lag_s=_warn_lag_s(status, limits))
    for slave in status.current_slaves:
        yield from _lag(name_of(slave), slave.lag_bytes, slave.lag_s, in_effect)
        if slave.lag_s_is_least and slave.lag_s is not None:
            yield from _least_lag(name_of(slave), slave.lag_s, limits)


def _warn_lag_s(status: NodeStatus, limits: Thresholds) -> float | None:
    """The bound that was given; else what makes puts FLUSH_SLAVE_TIMEOUT, where they wait."""
    return put_timeout_s(status) if limits.warn_lag_s is None else limits.warn_lag_s


def _lag(
    who: str, lag_bytes: int | None, lag_s: float | None, limits: Thresholds
) -> Iterator[Found]:
    if lag_bytes is None:
        yield Found(Level.WARNING, f"{who} lag is not known")
        return
    for level, size in ((Level.CRITICAL, limits.crit_lag), (Level.WARNING, limits.warn_lag)):
        if size is not None and lag_bytes > size:
            yield Found(level, f"{who} lag {format_size(lag_bytes)} > {format_size(size)}")
            break
    for level, limit_s in (
        (Level.CRITICAL, limits.crit_lag_s),
        (Level.WARNING, limits.warn_lag_s),
    ):
        if limit_s is not None and lag_s is not None and lag_s > limit_s:
            late = format_duration(lag_s)
            yield Found(level, f"{who} lag {late} > {format_duration(limit_s)}")
            break


def _least_lag(who: str, lag_s: float, limits: Thresholds) -> Iterator[Found]:
    """A lag of which only a least value is known, where that does not pass every limit."""
    limit_s = limits.warn_lag_s if limits.crit_lag_s is None else limits.crit_lag_s
    if limit_s is not None and lag_s <= limit_s:
        late = format_duration(lag_s)
        yield Found(Level.WARNING, f"{who} lag is at least {late}: from before its master's start")


def _figures(status: NodeStatus, limits: Thresholds) -> Iterator[str]:
    """``label=value[unit];warn;crit;min;max``, the label quoted where it needs to be."""
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
            bounds = f"{_number(_warn_lag_s(status, limits))};{_number(limits.crit_lag_s)}"
            yield f"{_label(who + '_lag_time')}={lag_s:.3f}s;{bounds};0"
    if status.master_link is None:
        wanted = status.acks_needed if limits.min_slaves is None else limits.min_slaves
        yield f"slaves={len(status.current_followers)};;{wanted}:;0"
        yield f"waiting={status.waiting_for_slave};;;0"
    if status.disk_used_ratio is not None:
        used = status.disk_used_ratio * 100
        yield f"disk={used:.1f}%;{limits.warn_disk};{limits.crit_disk};0;100"
    yield f"log={status.max_offset}B"


def _number(value: float | None) -> str:
    return "" if value is None else str(round(value, 3))


def _label(text: str) -> str:
    if any(c in text for c in " '=|"):
        return "'" + text.replace("'", "''").replace("=", "-").replace("|", "-") + "'"
    return text
