"""Which slaves of a SYNC_MASTER are late: what makes puts FLUSH_SLAVE_TIMEOUT.

::

    lag ≤ timeout                        in time: also an idle one, silent between two heartbeats
    lag > timeout, silent for longer     SILENT
    lag > timeout, soon there            CATCHING_UP: connected just now, or there within a timeout
    lag > timeout                        BEHIND

The lag is one in time: for how long what the slave has not acknowledged has been in its master's
log.  The timeout is how long a put waits.  Pure; a master that tells no timeout is not judged.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hastore.quantities import format_duration, format_size
from hastore_cli.app.terminal import one_line

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus, SlaveRow


class Lateness(enum.Enum):
    """How a slave is late."""

    SILENT = "silent"
    BEHIND = "behind"
    CATCHING_UP = "catching up"


def name_of(slave: SlaveRow) -> str:
    """The name of a slave that was asked too, else its address."""
    return slave.address if slave.name is None else one_line(slave.name)


def put_timeout_s(status: NodeStatus) -> float | None:
    """How long a put waits for a slave; None where it waits for none, or that is not known."""
    return status.slave_timeout_s if status.acks_needed else None


def lateness(slave: SlaveRow, status: NodeStatus) -> Lateness | None:
    """Say how a slave is late; None where it is in time."""
    timeout_s = put_timeout_s(status)
    if timeout_s is None or not slave.lag_bytes or slave.lag_s is None:
        return None
    if slave.lag_s <= timeout_s:
        return None
    if slave.last_report_age_s > timeout_s:
        return Lateness.SILENT
    soon = slave.eta_s is not None and slave.eta_s <= timeout_s
    return Lateness.CATCHING_UP if soon or slave.connected_s <= timeout_s else Lateness.BEHIND


def nobody_in_time(status: NodeStatus, *, or_soon: bool = True) -> str | None:
    """Say why puts are FLUSH_SLAVE_TIMEOUT; None where one slave is in time, or will soon be."""
    timeout_s = put_timeout_s(status)
    late = [(slave, lateness(slave, status)) for slave in status.followers]
    if timeout_s is None or not late:
        return None
    if any(how is None or (or_soon and how is Lateness.CATCHING_UP) for _, how in late):
        return None
    nearest, how = max(late, key=lambda each: each[0].ack_offset or 0)
    who = name_of(nearest)
    if how is Lateness.SILENT:
        why = f"{who} has reported nothing for {format_duration(nearest.last_report_age_s)}"
    else:
        lag = format_duration(nearest.lag_s or 0.0)
        why = f"{who} is {format_size(nearest.lag_bytes or 0)}, {lag} behind"
    waits = format_duration(timeout_s)
    return f"puts are FLUSH_SLAVE_TIMEOUT: no slave acknowledges within {waits}; {why}"
