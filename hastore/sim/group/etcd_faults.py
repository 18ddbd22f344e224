"""Faults of a group's coordinator, and of the ways to it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.coordinator.model_client import LinkFaults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.sim.cluster import SimNode
    from hastore.sim.fault_plan import PlannedFault
    from hastore.sim.faults import FaultAction, Faults
    from hastore.sim.group.etcd_director import EtcdDirector

ETCD_KINDS: Final = (
    "etcd-stop",
    "etcd-cut",
    "etcd-lossy",
    "etcd-leader",
    "etcd-revoke",
    "etcd-deposed",
    "etcd-compact",
)
FREEZE: Final = "freeze"  # as elsewhere, but a master is stopped as it puts
ETCD_WEIGHTS: Final = {
    "etcd-stop": (0.0, 0.3, 1.0),
    "etcd-cut": (0.0, 2.0, 6.0),
    "etcd-lossy": (0.0, 1.0, 3.0),
    "etcd-leader": (0.0, 0.3, 1.0),
    "etcd-revoke": (0.0, 0.3, 1.0),
    "etcd-deposed": (0.0, 0.0, 0.5),
    "etcd-compact": (0.0, 0.3),
    "clock": (0.0, 0.3, 1.0),
    FREEZE: (0.0, 1.0, 4.0),
}
_STOPPED_MAX_S: Final = (1.0, 5.0, 20.0)
_EXTEND_MAX_S: Final = 5.0
_HALF: Final = 0.5
_MOSTLY: Final = 0.7
_ANSWERS_WITHIN_S: Final = 1.5
_ACKNOWLEDGED_WITHIN_S: Final = 0.01
_PUTS_MAX: Final = 4
_STOPPED_TTLS: Final = (0.5, 1.5, 3.0)


@final
@attrs.frozen
class EtcdFaults:
    """Carries them out."""

    faults: Faults
    director: EtcdDirector
    put: Callable[[int, Random], Awaitable[object]]  # a message of a size, to a master

    def actions(self) -> dict[str, FaultAction]:
        """Return what carries them out, by kind."""
        return {
            "etcd-stop": self._stop,
            "etcd-cut": self._cut,
            "etcd-lossy": self._lose,
            "etcd-leader": self._change_leader,
            "etcd-revoke": self._revoke,
            "etcd-deposed": self._meet_deposed_leader,
            "etcd-compact": self._compact,
            FREEZE: self._freeze,
        }

    async def _for_a_while(self, choices: Random) -> None:
        await trio.sleep(choices.uniform(0.05, choices.choice(_STOPPED_MAX_S)))

    async def _stop(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        if not self.director.model.is_running:
            await trio.lowlevel.checkpoint()
            return
        self.faults.begins(fault, "etcd", "stops")
        self.director.model.stop()
        await self._for_a_while(choices)
        self.director.start_again(choices.uniform(0.0, _EXTEND_MAX_S))

    async def _cut(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Cut one node off, or all; the last answers may have come late."""
        director, nodes = self.director, self.director.cluster.nodes
        is_for_all = choices.random() < _HALF
        clients = [director.client_of(each.name) for each in (nodes if is_for_all else [node])]
        if choices.random() < _MOSTLY:
            for client in clients:
                client.faults = LinkFaults(delay_s=(0.001, _ANSWERS_WITHIN_S))
            await trio.sleep(choices.uniform(director.ttl_s / 3, director.ttl_s))
        if director.is_calm:
            return
        self.faults.begins(fault, "etcd", f"cut from {'all' if is_for_all else node.name}")
        for client in clients:
            client.cut()
        await trio.sleep(choices.uniform(0.05, choices.choice((1.0, 2 * director.ttl_s, 20.0))))
        for client in clients:
            client.heal()

    async def _lose(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        client = self.director.client_of(node.name)
        self.faults.begins(fault, "etcd", f"loses what {node.name} asks")
        client.faults = self.director.lossy()
        await self._for_a_while(choices)
        client.heal()

    async def _change_leader(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        if self.director.model.is_running:
            self.faults.begins(fault, "etcd", "elects another leader")
            self.director.model.change_leader(extend_s=choices.uniform(0.0, _EXTEND_MAX_S))

    async def _revoke(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        """End a lease that its holder renews."""
        await trio.lowlevel.checkpoint()
        leases = sorted(self.director.model.state.leases)
        if leases and self.director.model.is_running:
            self.faults.begins(fault, "etcd", "ends a lease early")
            self.director.model.end_lease_early(choices.choice(leases))

    async def _meet_deposed_leader(
        self, fault: PlannedFault, node: SimNode, choices: Random
    ) -> None:
        client = self.director.client_of(node.name)
        self.faults.begins(fault, "etcd", f"a deposed leader answers {node.name}")
        client.meet_deposed_leader()
        await self._for_a_while(choices)
        client.heal()

    async def _compact(self, fault: PlannedFault, _node: SimNode, _choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        self.faults.begins(fault, "etcd", "is compacted")
        self.director.model.compact()

    async def _freeze(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Stop a node (SIGSTOP), a master as it waits for acks: they are there when it goes on."""
        masters = [agent.sim_node for agent, _ in self.director.cluster.masters()]
        if masters and choices.random() < _HALF:
            node = choices.choice(masters)
            for _ in range(choices.randint(1, _PUTS_MAX)):
                own = random.Random(choices.getrandbits(64))
                self.faults.nursery.start_soon(self.put, choices.randint(1, 300), own)
            await trio.sleep(choices.uniform(0.0, _ACKNOWLEDGED_WITHIN_S))
        if not node.is_up or node.frozen is not None or self.director.is_calm:
            await trio.lowlevel.checkpoint()
            return
        self.faults.begins(fault, node.name, "is stopped")
        node.freeze()
        frozen = node.frozen
        await trio.sleep(choices.uniform(0.1, choices.choice(_STOPPED_TTLS) * self.director.ttl_s))
        node.thaw(frozen)
