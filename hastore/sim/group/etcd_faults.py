"""Faults of a group's coordinator, and of the ways to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

if TYPE_CHECKING:
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
ETCD_WEIGHTS: Final = {
    "etcd-stop": (0.0, 0.3, 1.0),
    "etcd-cut": (0.0, 1.0, 3.0),
    "etcd-lossy": (0.0, 1.0, 3.0),
    "etcd-leader": (0.0, 0.3, 1.0),
    "etcd-revoke": (0.0, 0.3, 1.0),
    "etcd-deposed": (0.0, 0.0, 0.5),
    "etcd-compact": (0.0, 0.3),
}
_STOPPED_MAX_S: Final = (1.0, 5.0, 20.0)
_EXTEND_MAX_S: Final = 5.0


@final
@attrs.frozen
class EtcdFaults:
    """Carries them out."""

    faults: Faults
    director: EtcdDirector

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
        client = self.director.client_of(node.name)
        self.faults.begins(fault, "etcd", f"cut from {node.name}")
        client.cut()
        await self._for_a_while(choices)
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
