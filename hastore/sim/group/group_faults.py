"""What faults do to a replica group, and the kinds that only a group has.

Limits keep recovery possible: another member of the set, and of every set that may come into force,
keeps all that it acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.clock.clock_verdict import TOLERANCE_MS
from hastore.broker.node.master import Master
from hastore.sim.cluster import DATA_DIR, HA_PORT
from hastore.sim.faults import KINDS
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.sim.group.foreign_log import OtherGroup
from hastore.sim.group.group_cluster import set_of
from hastore.sim.group.node_log import LOG_PATH
from hastore.sim.host import START_MS
from hastore.sim.network import Way
from hastore.store.recovery.store_checkpoint import CHECKPOINT_FILE

if TYPE_CHECKING:
    from random import Random

    from hastore.sim.cluster import SimNode
    from hastore.sim.fault_plan import PlannedFault
    from hastore.sim.faults import ClientEnd, FaultAction, Faults, FaultTarget
    from hastore.sim.group.controller import Controller
    from hastore.sim.group.foreign_log import ForeignLog
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.group.group_oracle import GroupOracle
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

GAVE_UP: Final = ("diverged", "failed")  # states of a slave that does not try any more
_SICK_FOR_S: Final = 2.0
_REMOVED_BEFORE_S: Final = 3.0
_SEEN_AFTER_S: Final = 15.0
_AWAY_S: Final = (1.2, 3.0)  # a member whose link has closed is asked to leave after 1 s
_JOINS_WITHIN_S: Final = 4.0
_HALF: Final = 0.5
_SLOW_BYTES_PER_S: Final = (4_000, 16_000)
_DAY_MS: Final = 86_400_000
_WRONG_DAYS: Final = ((3.1, 5.0), (3.1, 30.0), (-30.0, -3.1), (3_000.0, 4_000.0))
_TO_1970_MS: Final = 60_000 - START_MS
_MOSTLY_DAYS: Final = 0.8
_WRONG_FOR_S: Final = (3.0, 10.0, 40.0)
_SET_RIGHT: Final = 0.8
PROMOTE: Final = "promote"
HALF_RESET: Final = "half-reset"
REJOIN: Final = "rejoin"
FOREIGN: Final = "foreign"
LOST_FILES: Final = "lost-files"
WRONG_CLOCK: Final = "wrong-clock"  # in every seed, some times
# What leads to other roles and sets is frequent; what takes much time, and changes none, is rare.
GROUP_WEIGHTS: Final = {
    PROMOTE: (1.0, 3.0, 8.0),
    "kill": (0.3, 1.0, 3.0),
    "power": (0.0, 1.0, 3.0),
    HALF_RESET: (0.3, 2.0, 5.0),
    REJOIN: (0.0, 1.0, 3.0),
    FOREIGN: (0.0, 0.0, 0.5, 1.0),
    LOST_FILES: (0.0, 0.5, 1.0),
    "wipe": (0.0, 0.5, 2.0),
    "bytes": (0.0, 0.0, 0.1),
    "clock": (0.0, 0.0, 0.3),
}
# A flipped bit is left to the classic cluster: only a person decides about a damaged member.
GROUP_KINDS: Final = (
    *(kind for kind in KINDS if kind != "flip"),
    PROMOTE,
    HALF_RESET,
    REJOIN,
    FOREIGN,
    LOST_FILES,
)
# What the next start makes again from the log, if the log is not gone itself.
_LOSABLE: Final = (
    LOG_PATH,
    f"{DATA_DIR}/consumequeue",
    f"{DATA_DIR}/index",
    f"{DATA_DIR}/{CHECKPOINT_FILE}",
)


@final
@attrs.frozen
class GroupTarget:
    """A replica group."""

    cluster: GroupCluster
    oracle: GroupOracle
    controller: Controller | EtcdDirector

    @property
    def nodes(self) -> list[SimNode]:
        """Node 1 first."""
        return self.cluster.nodes

    @property
    def network(self) -> Network:
        """The cluster's."""
        return self.cluster.network

    @property
    def trace(self) -> Trace:
        """The cluster's."""
        return self.cluster.trace

    def peer_of(self, node: SimNode, choices: Random) -> SimNode | ClientEnd:
        """Return another node."""
        return choices.choice([other for other in self.nodes if other is not node])

    def crashing(self, node: SimNode, *, lost_power: bool) -> None:
        """Record what the node may lose.

        Bytes of a sync that failed are in the page cache, and the next start does not trust them.
        """
        node_id = self.cluster.id_of(node)
        is_lost = lost_power or node.live_disk.syncs_failed > 0
        if is_lost and not self.cluster.config.is_sync(node_id):
            self.oracle.lost_bytes(node_id)

    def starting(self, node: SimNode) -> None:
        """Empty the disk of a node whose log was removed: it is copied again."""
        lost = self.oracle.logs[self.cluster.id_of(node)].lost
        if lost is not None and lost.has_log:
            node.wipe()
            self.lost_disk(node)

    def may_lose_power(self, node: SimNode) -> bool:
        """Whether the node loses nothing, or others have it."""
        node_id = self.cluster.id_of(node)
        return self.cluster.config.is_sync(node_id) or self.others_keep(node_id)

    def may_lose_disk(self, node: SimNode) -> bool:
        """Whether others have what is on it, and it is not the master."""
        node_id = self.cluster.id_of(node)
        return node_id != self.controller.state.master and self.others_keep(node_id)

    def others_keep(self, node_id: int) -> bool:
        """Whether every set that may come into force has another member that kept all."""
        controller = self.controller
        if controller.state.is_electing or not controller.state.epoch:
            return False
        sets = [frozenset(controller.state.members), *controller.flying]
        for _, master in self.cluster.masters():
            proposal = set_of(master).proposal
            if proposal is not None:
                sets.append(proposal.members)
        return all(
            any(other != node_id and not self.oracle.has_lost(other) for other in members)
            for members in sets
        )

    def lost_disk(self, node: SimNode) -> None:
        """Take the node out of the set, as a person does before it is copied again."""
        node_id = self.cluster.id_of(node)
        self.controller.remove(node_id)
        self.oracle.lost_disk(node_id)

    def went_back(self, node: SimNode) -> None:
        """Record that an older copy of a node's directory, which is down, is in its place."""
        node_id = self.cluster.id_of(node)
        self.oracle.went_back(node_id)
        if isinstance(self.controller, EtcdDirector):
            self.controller.went_back(node_id)

    def replace_disk(self, node: SimNode, foreign: ForeignLog) -> None:
        """Put another group's directory in the place of a node's, which is down."""
        node.replace_disk(foreign.disk)
        self.lost_disk(node)
        self.oracle.logs[self.cluster.id_of(node)].foreign = foreign.data

    def is_refused_as_foreign(self, node: SimNode) -> bool:
        """Whether a node has another group's log, and says that it cannot follow."""
        node_id = self.cluster.id_of(node)
        agent = self.cluster.agent(node_id)
        if agent is None or self.oracle.logs[node_id].foreign is None:
            return False
        role_node = agent.node.role_node
        return not isinstance(role_node, Master) and role_node.ha_client.state.value in GAVE_UP

    def bit_flipped(self, node: SimNode, physic_offset: int) -> None:
        """Do nothing: no bit of a group flips."""


def _sick(target: FaultTarget) -> list[SimNode]:
    """Return the nodes that are up, and stopped or slow."""
    nodes = [node for node in target.nodes if node.is_up]
    return [node for node in nodes if node.frozen is not None or node.slow_disk_s]


@final
@attrs.frozen
class GroupFaults:
    """The kinds of faults that only a group has, or that are different there."""

    faults: Faults
    target: GroupTarget

    @property
    def controller(self) -> Controller | EtcdDirector:
        """The group's."""
        return self.target.controller

    def actions(self) -> dict[str, FaultAction]:
        """Return what carries them out, by kind."""
        return {
            PROMOTE: self._promote,
            HALF_RESET: self._reset_one_end,
            REJOIN: self._hold_up_a_joining_node,
            FOREIGN: self._put_in_another_directory,
            LOST_FILES: self._lose_files,
            WRONG_CLOCK: self._set_clock_wrong,
            "wipe": self._copy_again,
        }

    async def _copy_again(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Copy a node again, because it does not follow: it leaves the set first, then its disk."""
        target = self.target
        sick = _sick(target)
        node = choices.choice(sick) if sick else node
        if not node.is_up or not target.may_lose_disk(node):
            await trio.lowlevel.checkpoint()
            return
        self.faults.begins(fault, node.name, "is to be copied again")
        others = [each for each in target.nodes if each is not node]
        for other in others:
            target.network.cut(other.host, node.host)
        await trio.sleep(choices.uniform(0.1, _SICK_FOR_S))
        if target.may_lose_disk(node):
            self.controller.remove(self.controller.cluster.id_of(node))
        await trio.sleep(choices.uniform(0.0, _REMOVED_BEFORE_S))
        if node.boot is not None and target.may_lose_disk(node):
            node.kill()
            node.wipe()
            target.lost_disk(node)
            self.faults.restart(node, None)
        for other in others:
            target.network.repair(other.host, node.host)

    async def _set_clock_wrong(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Set a node's wall clock days ahead or behind, or to 1970; as a rule right again later.

        One node's at a time: where most clocks are wrong, nobody can know.
        """
        for other in self.target.nodes:
            if abs(other.wall_clock.jump_ms) > TOLERANCE_MS:
                other.wall_clock.jump_ms = 0
        days = choices.uniform(*choices.choice(_WRONG_DAYS))
        jump_ms = round(days * _DAY_MS) if choices.random() < _MOSTLY_DAYS else _TO_1970_MS
        node.wall_clock.jump_ms = jump_ms
        self.faults.begins(fault, node.name, f"clock {jump_ms:+d} ms")
        await trio.sleep(choices.uniform(0.1, choices.choice(_WRONG_FOR_S)))
        if node.wall_clock.jump_ms == jump_ms and choices.random() < _SET_RIGHT:
            node.wall_clock.jump_ms = 0
            self.target.trace.add(node.name, "its clock is set right")

    async def _promote(self, fault: PlannedFault, _node: SimNode, _choices: Random) -> None:
        await trio.lowlevel.checkpoint()
        if self.controller.want_election():
            self.faults.begins(fault, "world", "somebody wants another master")

    async def _reset_one_end(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let a slave lose its link, unknown to the master, while another's bytes are held up."""
        await trio.lowlevel.checkpoint()
        target, master_id = self.target, self.controller.state.master
        if master_id is None:
            return
        master = self.controller.cluster.node(master_id)
        slaves = [each for each in target.nodes if each not in (master, *_sick(target))]
        slave = choices.choice(slaves) if slaves else node
        network = target.network
        others = [each for each in target.nodes if each not in (master, slave)]
        held_up = choices.choice(others) if others else slave
        if others:
            network.cut(master.host, held_up.host)
            await trio.sleep(choices.uniform(0.1, 1.0))
        if network.reset_one_end(slave.host, master.host, HA_PORT):
            self.faults.begins(fault, "network", f"reset {slave.name}, unknown to {master.name}")
        if others:
            await trio.sleep(choices.uniform(0.5, 5.0))
            network.repair(master.host, held_up.host)

    async def _hold_up_a_joining_node(
        self, fault: PlannedFault, node: SimNode, choices: Random
    ) -> None:
        """Let a slave leave the set and come back; once it is to join, its bytes do not arrive.

        Other members are held up meanwhile, so that puts wait as it joins.
        """
        await trio.lowlevel.checkpoint()
        target, master_id = self.target, self.controller.state.master
        if master_id is None:
            return
        network, master = target.network, self.controller.cluster.node(master_id)
        slaves = [each for each in target.nodes if each not in (master, *_sick(target))]
        if not slaves:
            return
        slave = node if node in slaves else choices.choice(slaves)
        others = [each for each in target.nodes if each not in (master, slave)]
        self.faults.begins(fault, "network", f"{slave.name} loses {master.name}, and joins again")
        ways = ((master.host, slave.host), (slave.host, master.host))
        network.reset_between(master.host, slave.host)
        for way in ways:
            network.cut(*way)
        await trio.sleep(choices.uniform(*_AWAY_S))
        to_slave = Way(master.host, slave.host)
        network.bytes_per_s[to_slave] = choices.choice(_SLOW_BYTES_PER_S)
        held_up = others if choices.random() < _HALF else []
        for other in held_up:
            network.cut(master.host, other.host)
        for way in ways:
            network.repair(*way)
        with trio.move_on_after(_JOINS_WITHIN_S):
            await self.controller.proposed(self.controller.cluster.id_of(slave))
            if not self.controller.is_calm:
                network.cut(master.host, slave.host)
        await trio.sleep(choices.uniform(0.0, 0.3))
        for other in held_up:
            network.repair(master.host, other.host)
        await trio.sleep(choices.uniform(0.2, 2.0))
        network.repair(master.host, slave.host)
        network.bytes_per_s.pop(to_slave, None)

    async def _put_in_another_directory(
        self, fault: PlannedFault, node: SimNode, choices: Random
    ) -> None:
        """Give a node the directory of another group with the same epochs; later copy it again."""
        target, cluster = self.target, self.target.cluster
        node_id = cluster.id_of(node)
        like = target.oracle.logs[node_id].data
        other = OtherGroup(cluster, node_id, choices, like)
        foreign = await other.make_log(self.faults.nursery)
        if not node.is_up or not target.may_lose_disk(node):
            return
        self.faults.begins(fault, node.name, f"gets another group's log of {len(foreign.data)}")
        node.kill()
        target.replace_disk(node, foreign)
        self.faults.restart(node, None)
        await trio.sleep(choices.uniform(0.0, _SEEN_AFTER_S))
        if target.is_refused_as_foreign(node):
            self.target.trace.add(node.name, "is copied again")
            node.kill()
            node.wipe()
            target.lost_disk(node)
            self.faults.restart(node, None)

    async def _lose_files(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Remove files under a node; if they were its log, it is copied again at its next start."""
        await trio.lowlevel.checkpoint()
        target, boot = self.target, node.boot
        node_id = target.cluster.id_of(node)
        path = choices.choice((LOG_PATH, choices.choice(_LOSABLE)))
        if boot is None or target.cluster.agent(node_id) is None or not boot.disk.exists(path):
            return
        log = target.oracle.logs[node_id]
        if log.lost is not None or log.hole is not None:
            return
        if path == LOG_PATH and not target.may_lose_disk(node):
            return
        self.faults.begins(fault, node.name, f"{path} is removed")
        boot.disk.lose(path)
        target.oracle.lost_files(node_id, path)
