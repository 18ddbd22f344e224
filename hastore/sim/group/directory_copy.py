"""A copy of a node's directory, started on another machine beside its running original.

::

    node-2 ────────▶ etcd: ids/2, members/2          lives
    copy of node-2 ─▶ etcd: ids/2                    must be refused

Once the original's record is gone, because etcd has not heard of it, the copy may take the id: the
person who has started it stops it then, and the original finds that it has lost its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.cluster.cluster_node import run_cluster_node
from hastore.cluster.key_value_store import Put
from hastore.errors import HastoreError
from hastore.ha.client_port import asker_of
from hastore.sim.cluster import SimNode
from hastore.sim.group.group_cluster import Agent
from hastore.sim.host import SimWallClock
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master import Master
    from hastore.cluster.key_value_store import Delete
    from hastore.env.interface import Env
    from hastore.sim.disk import SimDisk
    from hastore.sim.group.etcd_director import EtcdDirector
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

NAME: Final = "copy"
HOST: Final = "10.0.5.1"
RULE: Final = "two nodes"


@final
@attrs.define(eq=False)
class DirectoryCopy:
    """The copy's host, and the check that it does not take the id of a node that lives."""

    cluster: GroupCluster
    director: EtcdDirector
    node_id: int
    disk: SimDisk
    # Called with the node's id once the copy has it: what the copy acknowledges, the node may lack.
    on_claimed: Callable[[int], None]
    has_claimed: trio.Event = attrs.field(factory=trio.Event, init=False)
    node: SimNode = attrs.field(init=False)
    error: ViolationError | None = attrs.field(default=None, init=False)
    _claims: dict[bytes, None] = attrs.field(factory=dict, init=False)  # what it may have written

    def __attrs_post_init__(self) -> None:
        """Set up the host."""
        clock = SimWallClock()
        self.disk.now_ms = clock.now_ms
        self.node = SimNode(self, NAME, HOST, False, self.disk, clock)
        self.node.on_ended = self._ended

    # -- the host's cluster ----------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The group's."""
        return self.cluster.network

    @property
    def choices(self) -> Random:
        """The group's."""
        return self.cluster.choices

    @property
    def trace(self) -> Trace:
        """The group's."""
        return self.cluster.trace

    def main_of(self, _node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return a node of the group with the original's id."""
        return self._run

    async def _run(self, env: Env, *, task_status: trio.TaskStatus[GroupNode]) -> None:
        boot = self.node.boot
        if boot is None:
            await trio.sleep_forever()  # killed before it ran
        agent = Agent(self.node_id, self.node, boot)
        roles = self.director.role_service_of_copy(agent, env, self._commits)
        group = self.cluster.config
        config, listens = group.of_node(self.node_id, HOST), group.listens

        async def run(*, task_status: trio.TaskStatus[GroupNode]) -> None:
            await run_cluster_node(
                config,
                env,
                roles,
                ask_client_port=asker_of(config.access, env) if listens else None,
                on_master=self._is_master,
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            node = await nursery.start(run)
            agent.serves(node)
            task_status.started(node)

    # -- the check -------------------------------------------------------------------------------

    def _commits(self, writes: Sequence[Put | Delete]) -> None:
        key = self.director.keys.registration(self.node_id)
        self._claims |= {w.value: None for w in writes if isinstance(w, Put) and w.key == key}

    def _is_master(self, _master: Master) -> None:
        self._found("becomes master")

    def _ended(self, _node: SimNode, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, HastoreError):
            self.error = ViolationError("crash", f"{NAME} of node-{self.node_id}: {error!r}")

    def _found(self, what: str) -> None:
        self.error = ViolationError(RULE, f"a copy of the directory of node-{self.node_id} {what}")

    def check_step(self) -> None:
        """Check that it has not claimed the id of a node that lives.  Raises ViolationError."""
        director = self.director
        if not self.has_claimed.is_set() and director.is_registered(self.node_id, self._claims):
            self.has_claimed.set()
            director.lost_id(self.node_id)
            self.on_claimed(self.node_id)
            self.trace.add(NAME, f"has taken the id of node-{self.node_id}")
            if director.keys.member(self.node_id) in director.model.state.items:
                self._found("takes its id, and the node lives")
        if self.error is not None:
            raise self.error
