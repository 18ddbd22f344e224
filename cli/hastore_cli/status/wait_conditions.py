"""What ``hastore wait`` waits for: a status in, what is still missing out.

Pure.  What is not known is missing: a lag that nobody has reported is not below anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.observe.findings import Limits, faults
from hastore.quantities import format_count, format_size

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

# A gap counts where it makes puts FLUSH_SLAVE_TIMEOUT: these limits have no other bound for it.
_SERVICE: Final = ("puts", "slaves", "gap", "link", "consumers")
_IN_TIME_NOW: Final = Limits(catching_up_counts=False)


@attrs.frozen(kw_only=True)
class Wanted:
    """All of these, of those that are not None."""

    role: str | None = None
    lag_below: int | None = None
    offset: int | None = None
    replicas: int | None = None
    healthy: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to wait for."""
        given = (self.role, self.lag_below, self.offset, self.replicas)
        return not self.healthy and all(each is None for each in given)

    def missing(self, status: NodeStatus) -> list[str]:
        """Say what is not so yet; empty where all of it is."""
        found = []
        if self.role is not None and not _is_role(status, self.role):
            found.append(f"its role is {status.role}, not {self.role}")
        if self.lag_below is not None:
            found += _too_far_behind(status, self.lag_below)
        if self.offset is not None and status.max_offset < self.offset:
            left = format_size(self.offset - status.max_offset)
            found.append(f"its log ends at {format_count(status.max_offset)}, {left} before that")
        if self.replicas is not None:
            replicas = sum(slave.state == "streaming" for slave in status.current_slaves)
            if replicas < self.replicas:
                found.append(f"{replicas} of {self.replicas} slaves have caught up")
        if self.healthy:
            found += faults(status, *_SERVICE, limits=_IN_TIME_NOW)
        return found


def _is_role(status: NodeStatus, role: str) -> bool:
    if role == "master":
        return status.role.endswith("MASTER")
    return status.role.lower() == role.lower()


def _too_far_behind(status: NodeStatus, lag_below: int) -> list[str]:
    if status.master_link is not None:
        if status.master_link.state != "streaming":
            return [f"its link is {status.master_link.state}"]
        lags = [status.master_link.lag_bytes]
    else:
        lags = [slave.lag_bytes for slave in status.current_slaves]
        if not lags:
            return ["no slave is connected"]
    if any(lag is None for lag in lags):
        return ["a lag is not known yet"]
    worst = max(lag for lag in lags if lag is not None)
    if worst >= lag_below:
        return [f"the lag is {format_size(worst)}, not below {format_size(lag_below)}"]
    return []
