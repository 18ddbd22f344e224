"""Checks that a node's health shows what fails in it, as its own table of rules judges it.

::

    a put fails through its master   the rule of puts is at least a warning at that instant
    a file is not stored             it is among the failed writes, from that step until it is

What failed is known from the answers and from the disk, not from the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.observe.findings import Level, Limits, findings
from hastore.sim.violation import ViolationError
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.sim.cluster import SimCluster
    from hastore.sim.put import Put

_OWN: Final = frozenset(
    {
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.OS_PAGE_CACHE_BUSY,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.UNKNOWN_ERROR,
    }
)


@final
@attrs.frozen
class HealthOracle:
    """The rule ``health`` of one cluster."""

    cluster: SimCluster

    def answered(self, put: Put) -> None:
        """Check the health of the master that has just answered a put.  Raises ViolationError."""
        master = self.cluster.serving_master
        if put.status not in _OWN or master is None:
            return
        status = master.status()
        found = [each for each in findings(status, Limits.of(status)) if each.subject == "puts"]
        if all(each.level < Level.WARNING for each in found):
            detail = f"put {put.number} is {put.status.value}, and its master says: puts are taken"
            raise ViolationError("health", detail, put.number)

    def check_step(self) -> None:
        """Check that each node knows what its disk did not store.  Raises ViolationError."""
        for node in self.cluster.nodes:
            boot = node.boot
            if boot is None or boot.node is None or not boot.disk.unstored:
                continue
            known = {failed.path for failed in boot.node.env.failed_writes.now}
            missing = boot.disk.unstored.keys() - known
            if missing:
                detail = f"{node.name} has not stored {', '.join(sorted(missing))}, unnoticed"
                raise ViolationError("health", detail)
