"""What holds of links between a master and its slaves: one a slave, and none to the silent (P9).

Either side ends a link that has brought nothing for ``ha_housekeeping_interval_ms``::

    a slave is silent    from when it stood still, lost its power, or its way to the master was cut:
                         the master's connection to it is over in time
    a master is silent   from the last byte that the slave took from its link, whatever the reason:
                         the slave's socket is closed in time

No process notices anything while it is stopped, and a slave that waits for its own disk does not
blame its master.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from hastore.broker.node.master import Master
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.network import Connection

_MASTER_MARGIN_S: Final = 7.0  # what was sent before may arrive later
# The slave's time is counted exactly; a call on a disk that was slow until now takes a second more.
_SLAVE_MARGIN_S: Final = 2.0


@final
@attrs.define(eq=False)
class LinkOracle:
    """Looks at every link after each step."""

    cluster: SimCluster
    _silence_s: float = attrs.field(init=False)
    # By slave: when its process was last stopped, or its disk slow or full.
    _held_up_at: dict[str, float] = attrs.field(factory=dict)

    @_silence_s.default
    def _silence_default(self) -> float:
        return self.cluster.config.ha().ha_housekeeping_interval_ms / 1000

    def check_step(self) -> None:
        """Look at all links; those of a slave also where no master serves."""
        master = self.cluster.serving_master
        for slave in self.cluster.slaves:
            links = self.cluster.network.open_links(slave.host, self.cluster.master.host)
            self._check_number(slave, links)
            self._check_slave(slave, links)
            if master is not None:
                self._check_master(slave, master)

    def _check_number(self, slave: SimNode, links: list[Connection]) -> None:
        """A slave has one link to its master, and never two: its acks would count twice."""
        if len(links) > 1:
            raise ViolationError("links", f"{slave.name} has {len(links)} sockets to its master")

    def _check_master(self, slave: SimNode, master: Master) -> None:
        """A master drops a slave that has been silent for the heartbeat's timeout."""
        node, now = self.cluster.master, trio.current_time()
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
                raise ViolationError("silence", f"{slave.name} is counted after {now - last:.0f} s")

    def _check_slave(self, slave: SimNode, links: list[Connection]) -> None:
        """A slave leaves a link that has brought it nothing for the heartbeat's timeout."""
        now = trio.current_time()
        if slave.frozen is not None or slave.slow_disk_s or slave.live_disk.is_full:
            self._held_up_at[slave.name] = now
            return
        if slave.boot is None or slave.boot.is_asked_to_stop:
            return
        since = self._held_up_at.get(slave.name, 0.0)
        for link in links:
            last = max(since, link.back.taken_at)
            if now - last > self._silence_s + _SLAVE_MARGIN_S:
                detail = f"{slave.name} keeps a link that brought nothing for {now - last:.0f} s"
                raise ViolationError("silence", detail)
