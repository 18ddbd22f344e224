"""Checks the links between master and slaves: one per slave, and none to a silent peer (P9).

Either side closes a link that has received nothing for ``ha_housekeeping_interval_ms``::

    a slave is silent    once it is stopped, without power, or cut off from the master:
                         the master closes its connection in time
    a master is silent   since the last byte that the slave received, whatever the reason:
                         the slave closes its socket in time

A stopped process cannot act, and a slave that waits for its own disk keeps its link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.cluster import HA_PORT
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from hastore.broker.node.master import Master
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.network import Connection

_MASTER_MARGIN_S: Final = 7.0  # bytes that were sent earlier may arrive later
# The slave's silence is measured exactly; a call on a disk that was slow until now takes up to 1 s.
_SLAVE_MARGIN_S: Final = 2.0


@final
@attrs.define(eq=False)
class LinkOracle:
    """Checks every link after each step."""

    cluster: SimCluster
    _silence_s: float = attrs.field(init=False)
    # By slave: when its process was last stopped, or its disk slow or full.
    _held_up_at: dict[str, float] = attrs.field(factory=dict)

    @_silence_s.default
    def _silence_default(self) -> float:
        return self.cluster.config.ha().ha_housekeeping_interval_ms / 1000

    def check_step(self) -> None:
        """Check all links; those of slaves even if no master serves.  Raises ViolationError."""
        node, master = self.cluster.master, self.cluster.serving_master
        open_links, now = self.cluster.network.open_links, trio.current_time()
        for slave in self.cluster.slaves:
            links = open_links(slave.host, node.host, HA_PORT)
            if len(links) > 1:  # its acks would count twice
                what = f"{slave.name} has {len(links)} sockets to its master"
                raise ViolationError("links", what)
            self._check_slave(slave, links, now)
            if master is not None:
                self._check_master(slave, master, now)

    def _check_master(self, slave: SimNode, master: Master, now: float) -> None:
        """Raise ViolationError if a master still counts a slave that has been silent too long."""
        node = self.cluster.master
        since = slave.silent_since(node.host)
        if since is None or node.frozen is not None:
            return
        since = max(since, node.went_on_at)
        for connection in master.ha_service.connections.values():
            last = max(since, connection.connected_time)
            if (
                connection.address[0] == slave.host
                and now - last > self._silence_s + _MASTER_MARGIN_S
            ):
                detail = f"{slave.name} still counts after {now - last:.0f} s of silence"
                raise ViolationError("silence", detail)

    def _check_slave(self, slave: SimNode, links: list[Connection], now: float) -> None:
        """Raise ViolationError if a slave keeps a link that has been silent too long."""
        if slave.frozen is not None or slave.slow_disk_s or slave.live_disk.is_full:
            self._held_up_at[slave.name] = now
            return
        if slave.boot is None or slave.boot.is_asked_to_stop:
            return
        since = self._held_up_at.get(slave.name, 0.0)
        for link in links:
            last = max(since, link.back.taken_at)
            if now - last > self._silence_s + _SLAVE_MARGIN_S:
                detail = f"{slave.name} keeps a link that was silent for {now - last:.0f} s"
                raise ViolationError("silence", detail)
