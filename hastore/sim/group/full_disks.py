"""Full disks in a simulated group in which nothing else is wrong, after the faults of the seed.

::

    settled ── disks fill: the master's, and others ─┬── puts, until more is PUT_OK ──── room
               while enough can store, one whole     │   than a full node can take     again
                                                     └── within WITHIN_S

- ``storage``: a group with a coordinator, in which as many members as a put needs can store,
  accepts puts, whichever node's disk is full.

Without a coordinator a person changes the roles: the full master is to hand over, and lives on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.ha.set_rules import default_min_in_sync_replicas
from hastore.sim.put import PutOutcome
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from random import Random

    from hastore.sim.group.controller import Controller
    from hastore.sim.group.etcd_director import EtcdDirector
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.group.group_producers import GroupProducers

# A node is chosen once it could store for 30 s; a request that came to nothing is repeated after
# 60 s.
WITHIN_S: Final = 150.0
_FILES: Final = 3  # a full node has one to write to, and one prepared
_REST_S: Final = 0.2
_ROLES_CHANGE_S: Final = 15.0
_HALF: Final = 0.5


@final
@attrs.frozen(eq=False)
class FullDisks:
    """The full disks of one run; they are drawn from a generator of their own."""

    cluster: GroupCluster
    controller: Controller | EtcdDirector
    producers: GroupProducers
    choices: Random

    async def run(self, *, hands_over: bool) -> None:
        """Fill disks, check what follows, and make room; ``hands_over``: by a coordinator.

        Raises ViolationError.
        """
        full = self._choose()
        if not full or (hands_over and not self._has_successor(full)):
            return
        trace, nodes = self.cluster.trace, [self.cluster.node(each) for each in full]
        for node in nodes:
            trace.add(node.name, "its disk is full, and nothing else is wrong")
            node.live_disk.fill()
        try:
            if hands_over:
                await self._check_puts(full)
            else:
                self.controller.want_election()
                await trio.sleep(_ROLES_CHANGE_S)
        finally:
            for node in nodes:
                node.live_disk.make_room()
        trace.add("world", "all disks have room again")

    def _choose(self) -> list[int]:
        """Return the nodes whose disks fill: the master's, and some of the others."""
        config, master_id = self.cluster.config, self.controller.state.master
        wanted = 1 if config.in_sync_replicas == "all" else config.in_sync_replicas
        least = config.min_in_sync_replicas
        if least is None:
            least = default_min_in_sync_replicas(frozenset(config.ids), config.in_sync_replicas)
        full_max = len(config.ids) - max(least, wanted)
        if master_id is None or full_max < 1:
            return []
        others = [each for each in config.ids if each != master_id]
        self.choices.shuffle(others)
        more = self.choices.randint(0, full_max - 1) if self.choices.random() < _HALF else 0
        return [master_id, *others[:more]]

    def _has_successor(self, full: list[int]) -> bool:
        """Return whether a member with room has kept all that it acknowledged."""
        controller = self.controller
        return any(
            each not in full and not controller.has_lost(each) for each in controller.state.members
        )

    async def _check_puts(self, full: list[int]) -> None:
        """Put messages until more is acknowledged than a full master can store."""
        file_size = self.cluster.config.mapped_file_size
        began, taken = trio.current_time(), 0
        while taken < _FILES * file_size:
            size = self.choices.randint(file_size // 16, file_size // 4)
            put = await self.producers.put(size, self.choices)
            if put is not None and put.outcome is PutOutcome.OK:
                taken += size
                continue
            if trio.current_time() > began + WITHIN_S:
                state = self.controller.state
                answer = "no master" if put is None else f"put {put.number} is {put.status}"
                detail = (
                    f"nodes {full} are full, others are not, and after {WITHIN_S:g} s"
                    f" {answer}: master {state.master} of epoch {state.epoch},"
                    f" set {sorted(state.members)}"
                )
                raise ViolationError("storage", detail)
            await trio.sleep(_REST_S)
