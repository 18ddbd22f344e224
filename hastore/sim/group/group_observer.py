"""A classic slave beside a simulated group: it reads up to the confirm offset, and never counts.

::

    master of the group ──[listen] observer──▶ observer          a person names it the next master
                                                  │
                   every byte that it has is on every member of the set
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.slave import run_slave
from hastore.config import HAConfig, SlaveConfig
from hastore.sim.cluster import SimNode
from hastore.sim.disk import SimDisk
from hastore.sim.group.group_cluster import OBSERVER_PORT
from hastore.sim.group.group_records import records
from hastore.sim.host import SimWallClock
from hastore.sim.log_bytes import log_range
from hastore.sim.violation import ViolationError
from hastore.status import FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.broker.node.slave import Slave
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.group.group_oracle import GroupOracle
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

NAME: Final = "observer"
HOST: Final = "10.0.2.1"
_LOOKS_EACH_S: Final = (0.5, 3.0)
_GAVE_UP: Final = ("diverged", "failed")


@final
@attrs.define(eq=False)
class GroupObserver:
    """The observer's host, the person who names its masters, and the check of what it has."""

    cluster: GroupCluster
    oracle: GroupOracle
    choices: Random
    node: SimNode = attrs.field(init=False)
    _master: str = attrs.field(default="", init=False)  # the host of the one that it follows
    _data: bytearray = attrs.field(factory=bytearray, init=False)  # its log
    _checked: int = attrs.field(default=0, init=False)  # whole messages below
    _losses: int = attrs.field(default=0, init=False)  # of the group, when its disk was empty

    def __attrs_post_init__(self) -> None:
        """Set up the host."""
        clock = SimWallClock()
        self.node = SimNode(self, NAME, HOST, False, SimDisk(clock.now_ms), clock)

    # -- the host's cluster ----------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The group's."""
        return self.cluster.network

    @property
    def trace(self) -> Trace:
        """The group's."""
        return self.cluster.trace

    def main_of(self, _node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return a slave of the master that a person has named last."""
        config = SlaveConfig(
            store=self.cluster.config.store(FlushDiskType.ASYNC_FLUSH),
            master=(self._master, OBSERVER_PORT),
            listen=None,
            ha=HAConfig(slave_timeout_ms=self.cluster.config.slave_timeout_ms),
        )
        return functools.partial(run_slave, config)

    # -- the person ------------------------------------------------------------------------------

    async def run(self, nursery: trio.Nursery) -> None:
        """Name a master whenever the last one is none any more, until cancelled."""
        while True:
            await trio.sleep(self.choices.uniform(*_LOOKS_EACH_S))
            hosts = [agent.sim_node.host for agent, _ in self.cluster.masters()]
            if not hosts or (self.node.is_up and not self._needs_help(hosts)):
                continue
            if self.node.is_up:
                self.node.kill()
            if self._is_useless():
                self._losses = self.oracle.losses
                self.node.wipe()
                self._data.clear()
                self._checked = 0
            self._master = self.choices.choice(hosts)
            self.trace.add(NAME, f"follows {self._master}")
            self.node.start(nursery)

    def _needs_help(self, hosts: list[str]) -> bool:
        return self._master not in hosts or self._is_useless()

    def _is_useless(self) -> bool:
        """Whether it was refused, or has what the group has lost: it is to be copied again."""
        boot = self.node.boot or self.node.last_boot
        slave: Slave | None = None if boot is None else boot.node
        is_refused = slave is not None and slave.ha_client.state.value in _GAVE_UP
        return is_refused or self._losses != self.oracle.losses

    # -- the check -------------------------------------------------------------------------------

    def check_step(self) -> None:
        """Check that what it has is on every member.  Raises ViolationError."""
        slave: Slave | None = self.node.node
        if slave is None or slave.commit_log.max_offset == len(self._data):
            return
        end, size = slave.commit_log.max_offset, slave.commit_log.file_size
        del self._data[end:]  # a start has dropped an incomplete record
        self._checked = min(self._checked, end)
        disk, start = self.node.live_disk, len(self._data)
        self._data += log_range(disk, start, end, size, durable=False)
        messages_end = max((each.end for each in records(self._data, self._checked)), default=0)
        if messages_end > self._checked and self._losses == self.oracle.losses:
            self._check(self._checked, messages_end)
            self._checked = messages_end

    def _check(self, start: int, end: int) -> None:
        for node_id in self.oracle.whole_members():
            if not self.oracle.logs[node_id].holds(start, self._data[start:end]):
                detail = f"{NAME} has {start}..{end}, which node-{node_id} of the set does not have"
                raise ViolationError("observed", detail)

    def lacks(self, end: int) -> str | None:
        """Return what is wrong with its log, the group's ending there; None if nothing is."""
        if len(self._data) == end and self.node.node is not None:
            return None
        slave: Slave | None = self.node.node
        state = "down" if slave is None else f"{slave.ha_client.state.value} of {self._master}"
        return f"the observer is {state}, at {len(self._data)} of {end}"
