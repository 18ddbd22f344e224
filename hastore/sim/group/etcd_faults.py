"""Faults of a group's coordinator, and of the ways to it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.coordinator.model_client import LinkFaults
from hastore.sim.group.group_cluster import set_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.sim.cluster import SimNode
    from hastore.sim.fault_plan import PlannedFault
    from hastore.sim.faults import FaultAction, Faults
    from hastore.sim.group.etcd_director import EtcdDirector

ETCD_KINDS: Final = (
    "etcd-stop",
    "etcd-full",
    "etcd-cut",
    "etcd-lossy",
    "etcd-leader",
    "etcd-revoke",
    "etcd-deposed",
    "etcd-compact",
    "etcd-restore",
    "etcd-join",
)
FREEZE: Final = "freeze"  # as elsewhere, but a master is stopped as it puts
ETCD_WEIGHTS: Final = {
    "etcd-stop": (0.0, 0.3, 1.0),
    "etcd-full": (0.0, 0.3, 1.0),
    "etcd-cut": (0.0, 2.0, 6.0),
    "etcd-lossy": (0.0, 1.0, 3.0),
    "etcd-leader": (0.0, 0.3, 1.0),
    "etcd-revoke": (0.0, 0.3, 1.0),
    "etcd-deposed": (0.0, 0.0, 0.5),
    "etcd-compact": (0.0, 0.3),
    "etcd-restore": (0.0, 0.0, 0.5),
    "etcd-join": (0.0, 0.5, 2.0),
    "clock": (0.0, 0.3, 1.0),
    FREEZE: (0.0, 1.0, 4.0),
}
_STOPPED_MAX_S: Final = (1.0, 5.0, 20.0)
_EXTEND_MAX_S: Final = 5.0
_HALF: Final = 0.5
_MOSTLY: Final = 0.7
_ANSWERS_WITHIN_S: Final = 1.5
_ACKNOWLEDGED_WITHIN_S: Final = 0.05
_TICK_S: Final = 0.0002
_BACK_MAX_MS: Final = 60_000
_LEAVES_WITHIN_S: Final = 8.0
_JOINS_WITHIN_S: Final = 6.0
_LATE_S: Final = (0.05, 1.5)
_FEW: Final = 0.3
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
            "etcd-full": self._fill,
            "etcd-cut": self._cut,
            "etcd-lossy": self._lose,
            "etcd-leader": self._change_leader,
            "etcd-revoke": self._revoke,
            "etcd-deposed": self._meet_deposed_leader,
            "etcd-compact": self._compact,
            "etcd-restore": self._restore,
            "etcd-join": self._join_late,
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

    async def _fill(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        """Let etcd refuse all writes for want of space, until an operator makes room."""
        if self.director.model.is_full or self.director.is_calm:
            await trio.lowlevel.checkpoint()
            return
        self.faults.begins(fault, "etcd", "is full")
        self.director.model.fill()
        await self._for_a_while(choices)
        self.director.model.make_room()

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
        if choices.random() < _FEW:  # deadlines that were times of day would be far away
            for each in nodes if is_for_all else [node]:
                each.wall_clock.jump_ms -= choices.randint(0, _BACK_MAX_MS)
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
        """End a lease that its holder renews; a master's, as it puts, before it hears of it."""
        await trio.lowlevel.checkpoint()
        leases = sorted(self.director.model.state.leases)
        if not leases or not self.director.model.is_running:
            return
        leader_lease = self.director.view.leader_lease
        masters = [agent.sim_node for agent, _ in self.director.cluster.masters()]
        if len(masters) != 1 or leader_lease not in leases or choices.random() < _HALF:
            self.faults.begins(fault, "etcd", "ends a lease early")
            self.director.model.end_lease_early(choices.choice(leases))
            return
        self.faults.begins(fault, "etcd", f"ends the lease of {masters[0].name} early")
        client = self.director.client_of(masters[0].name)
        client.faults = LinkFaults(delay_s=(0.2, 0.8), watch_delay_s=(0.5, 2.0))
        self.director.model.end_lease_early(leader_lease)
        for _ in range(_PUTS_MAX):
            await trio.sleep(choices.uniform(0.1, 0.6))
            self._put_some(choices)
        client.heal()

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

    async def _restore(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        """Restore a backup, while a node that knows better is up."""
        backups = self.director.restorable()
        if not backups:
            await trio.lowlevel.checkpoint()
            return
        backup, is_other = choices.choice(backups), choices.random() < _HALF
        self.faults.begins(fault, "etcd", f"is restored to revision {backup.revision}")
        self.director.model.stop()
        self.director.restore(backup, as_other_cluster=is_other)
        await trio.sleep(choices.uniform(0.05, choices.choice((0.5, self.director.ttl_s))))
        self.director.start_again(choices.uniform(0.0, _EXTEND_MAX_S))

    def _put_some(self, choices: Random) -> None:
        for _ in range(choices.randint(1, _PUTS_MAX)):
            own = random.Random(choices.getrandbits(64))
            self.faults.nursery.start_soon(self.put, choices.randint(1, 300), own)

    async def _until_acks_are_under_way(self, node: SimNode) -> None:
        """Wait until members have all of a master's log, and a put of its waits for their acks."""
        cluster = self.director.cluster

        def are_under_way() -> bool:
            agent = cluster.agent(cluster.id_of(node))
            master = None if agent is None else agent.serving_master
            if agent is None or master is None:
                return True
            group, end = set_of(master), master.max_offset
            others = [cluster.agent(each) for each in group.needed - {agent.node_id}]
            have_all = all(each is not None and each.node.max_offset >= end for each in others)
            return bool(others) and have_all and group.ack_limit < end

        await self._until(are_under_way, _ACKNOWLEDGED_WITHIN_S)

    async def _join_late(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let a slave leave the set and join again; that it joins is written late.

        The master's requests have timed out by then, and it has read the state without it.  The
        slave gets nothing meanwhile, and there are puts.
        """
        await trio.lowlevel.checkpoint()
        director = self.director
        masters = [agent.sim_node for agent, _ in director.cluster.masters()]
        if len(masters) != 1 or director.is_calm or director.is_joining:
            return
        director.is_joining = True
        try:
            await self._hold_up_a_join(fault, node, masters[0], choices)
        finally:
            director.is_joining = False

    async def _hold_up_a_join(
        self, fault: PlannedFault, node: SimNode, master: SimNode, choices: Random
    ) -> None:
        director, network = self.director, self.director.cluster.network
        nodes = [each for each in director.cluster.nodes if each is not master]
        slave = node if node in nodes else choices.choice(nodes)
        client = director.client_of(master.name)
        ways = ((master.host, slave.host), (slave.host, master.host))
        slave_id = director.cluster.id_of(slave)
        self.faults.begins(fault, "etcd", f"{slave.name} leaves, and is late to join again")
        network.reset_between(master.host, slave.host)
        for way in ways:
            network.cut(*way)
        await self._until(lambda: slave_id not in director.state.members, _LEAVES_WITHIN_S)
        client.faults = LinkFaults(
            late=1.0, late_s=_LATE_S, late_key="/state", watch_delay_s=(1.0, 3.0)
        )
        count = client.late_count
        for way in ways:
            network.repair(*way)
        await self._until(lambda: client.late_count > count, _JOINS_WITHIN_S)
        if client.late_count > count and not director.is_calm:
            network.cut(master.host, slave.host)
            await trio.sleep(client.timeout_s)
            client.faults = attrs.evolve(client.faults, late=0.0)
            for _ in range(_PUTS_MAX):
                self._put_some(choices)
                await trio.sleep(choices.uniform(0.2, 0.6))
            network.repair(master.host, slave.host)
        client.heal()

    async def _until(self, holds: Callable[[], bool], within_s: float) -> None:
        """Wait until something holds, or all heals, but not for ever."""
        with trio.move_on_after(within_s):
            while True:
                if holds() or self.director.is_calm:
                    return
                await trio.sleep(_TICK_S)

    async def _freeze(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Stop a node (SIGSTOP), a master as it waits for acks: they are there when it goes on."""
        masters = [agent.sim_node for agent, _ in self.director.cluster.masters()]
        if masters and choices.random() < _HALF:
            node = choices.choice(masters)
            self._put_some(choices)
            if choices.random() < _HALF:
                await trio.sleep(choices.uniform(0.0, _ACKNOWLEDGED_WITHIN_S / 5))
            else:
                await self._until_acks_are_under_way(node)
        if not node.is_up or node.frozen is not None or self.director.is_calm:
            await trio.lowlevel.checkpoint()
            return
        self.faults.begins(fault, node.name, "is stopped")
        node.freeze()
        frozen = node.frozen
        await trio.sleep(choices.uniform(0.1, choices.choice(_STOPPED_TTLS) * self.director.ttl_s))
        node.thaw(frozen)
