"""A second node with the id of a member: by a mistyped number, or in a copy of its directory.

::

    master of the group ◀── node-2, a member
             ▲
             └── double, which says that it is node 2, too

No ack of it may count while the member lives.  Nothing on the wire tells the two apart, so once the
member is silent or its link has ended, the double takes its place: a person stops it before it has
acknowledged anything.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.slave import run_slave
from hastore.config import HAConfig, SlaveConfig
from hastore.ha.client_port import ask_client_port
from hastore.ha.master_framing import AutoswitchMasterFraming
from hastore.ha.node_claims import REPLACED_LINK_S
from hastore.sim.cluster import HA_PORT, SimNode
from hastore.sim.disk import SimDisk
from hastore.sim.group.group_cluster import GROUP, service_of
from hastore.sim.host import SimWallClock
from hastore.sim.violation import ViolationError
from hastore.status import FlushDiskType, HAProtocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.broker.node.master import Master
    from hastore.ha.ha_connection import HAConnection
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

NAME: Final = "double"
HOST: Final = "10.0.4.1"
_COMES_EACH_S: Final = (2.0, 10.0)
_STAYS_S: Final = (0.5, 12.0)


@final
@attrs.define(eq=False)
class GroupDouble:
    """The double's host, the person who starts and stops it, and the check that it never counts."""

    cluster: GroupCluster
    choices: Random
    node: SimNode = attrs.field(init=False)
    node_id: int = attrs.field(default=0, init=False)  # of the member whose id it has
    _master: str = attrs.field(default="", init=False)  # the host of the one that it follows
    _took_place: trio.Event = attrs.field(factory=trio.Event, init=False)

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
        """Return a slave with the member's id."""
        config = self.cluster.config
        return functools.partial(
            run_slave,
            SlaveConfig(
                store=config.store(FlushDiskType.ASYNC_FLUSH),
                master=(self._master, HA_PORT),
                listen=None,
                ha=HAConfig(
                    protocol=HAProtocol.AUTOSWITCH, slave_timeout_ms=config.slave_timeout_ms
                ),
                node_id=self.node_id,
                replica_group=GROUP,
            ),
            ask_client_port=ask_client_port if config.listens else None,
            copies_tables=False,
        )

    # -- the person ------------------------------------------------------------------------------

    async def run(self, nursery: trio.Nursery) -> None:
        """Start the double now and then, and stop it again, until cancelled."""
        while True:
            await trio.sleep(self.choices.uniform(*_COMES_EACH_S))
            self._start(nursery)
            with trio.move_on_after(self.choices.uniform(*_STAYS_S)):
                await self._took_place.wait()
            self.stop()

    def _start(self, nursery: trio.Nursery) -> None:
        masters = self.cluster.masters()
        if not masters:
            return
        agent, master = self.choices.choice(masters)
        links = service_of(master).sync_state_set.acks
        members = [node.node_id for node in links if node.connection_id is not None]
        if not members:
            return
        self.node_id = self.choices.choice(sorted(members))
        self._master, self._took_place = agent.sim_node.host, trio.Event()
        self.trace.add(NAME, f"is node {self.node_id}, too, and follows {self._master}")
        self.node.wipe()
        self.node.start(nursery)

    def stop(self) -> None:
        """Stop it."""
        if self.node.is_up:
            self.node.kill()

    # -- the check -------------------------------------------------------------------------------

    def check_step(self) -> None:
        """Check that no ack of it counts while the member lives.  Raises ViolationError."""
        if not self.node.is_up or self._took_place.is_set():
            return
        for _, master in self.cluster.masters():
            link = self._counting(master)
            if link is None:
                continue
            self._took_place.set()
            self._check_former(master, link)

    def _counting(self, master: Master) -> HAConnection | None:
        service = service_of(master)
        node = service.sync_state_set.acks.get(self.node_id)
        if node is None or node.connection_id is None:
            return None
        link = service.connections.get(node.connection_id)
        return link if link is not None and link.address[0] == HOST else None

    def _check_former(self, master: Master, link: HAConnection) -> None:
        member = self.cluster.node(self.node_id).host
        for other in service_of(master).connections.values():
            framing = other.framing
            assert isinstance(framing, AutoswitchMasterFraming), "a link of a group"
            if framing.handshake is None:
                continue  # a new link, whose handshake has not come, or is not answered yet
            silent_s = trio.current_time() - other.last_read_time
            lives = other.progress.ended_because is None and silent_s < REPLACED_LINK_S
            if other is not link and other.address[0] == member and lives:
                detail = (
                    f"a second node {self.node_id} counts, and the link of the first one is up, and"
                    f" reported {silent_s:.3f} s ago"
                )
                raise ViolationError("two nodes", detail)
