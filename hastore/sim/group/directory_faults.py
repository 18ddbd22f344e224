"""Faults of what a node believes of itself: its own directory, and the disk below it.

::

    older-copy     an older copy of the directory takes its place, of the stopped node or a snapshot
                   of the running one; it starts first, after all were killed, or beside the others;
                   etcd may have lost the claim of the node's id
    copy-beside    a copy of the directory of a running node is started on another machine
    lost-storage   the file system goes down and comes back without a reboot, on one node or on all
    all-down       all nodes are killed or lose their power at once, and nothing is lost
    log-flip       a bit of a log flips above its checkpoint, before intact records: the next start
                   trims them; in the same boot, or after a power cut
    shorter-ttl    a node that has promised not to campaign starts again, with a shorter ttl
    log-repair     a bit flips below the checkpoint, in any file, and the log is repaired offline,
                   without a replica: a filler takes the place of what the record had

Unlike a power cut, none of these need show in what a node knows of its past.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import LogDamagedError
from hastore.sim.cluster import DATA_DIR
from hastore.sim.group.directory_copy import DirectoryCopy
from hastore.sim.host import SimOffload, sim_env
from hastore.sim.log_bytes import (
    flip_bit_above_checkpoint,
    flip_bit_below_checkpoint,
    flip_durable_bit,
    flushed_offset,
)
from hastore.store.node_identity import read_identity
from hastore.store.tools.repair.log_repair import apply_repair
from hastore.store.tools.repair.plan import plan_repair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.env.interface import Env
    from hastore.sim.cluster import SimNode
    from hastore.sim.disk import SimDisk
    from hastore.sim.fault_plan import PlannedFault
    from hastore.sim.faults import FaultAction, Faults
    from hastore.sim.group.etcd_director import EtcdDirector
    from hastore.sim.group.group_faults import GroupTarget
    from hastore.sim.group.node_log import NodeLog

OLDER_COPY: Final = "older-copy"
COPY_BESIDE: Final = "copy-beside"
LOST_STORAGE: Final = "lost-storage"
ALL_DOWN: Final = "all-down"
LOG_FLIP: Final = "log-flip"
LOG_REPAIR: Final = "log-repair"
SHORTER_TTL: Final = "shorter-ttl"
DIRECTORY_KINDS: Final = (
    OLDER_COPY,
    OLDER_COPY,
    COPY_BESIDE,
    LOST_STORAGE,
    ALL_DOWN,
    LOG_FLIP,
    LOG_REPAIR,
    SHORTER_TTL,
)
EARLY_KINDS: Final = (SHORTER_TTL,)
_HALF: Final = 0.5
_TICK_S: Final = 0.02
_STOPS_WITHIN_S: Final = 5.0
_OLD_FOR_S: Final = 15.0
_FLOOR_WITHIN_S: Final = 15.0
_NAMED_WITHIN_S: Final = 8.0
_ALONE_FOR_S: Final = 25.0
_STARTS_AGAIN_MAX: Final = 2
_RUNS_FOR_S: Final = 6.0
_FLIPS_WITHIN_S: Final = 6.0
_PUTS: Final = 4
_COPY_RUNS_FOR_S: Final = 15.0
_STOPPED_WITHIN_S: Final = 1.0
_MOSTLY: Final = 0.8
_LED_WITHIN_TTLS: Final = 2
_FRESH: Final = 0.75  # of a promise
_TTL_MIN_S: Final = 3
_TOOL: Final = 500  # a process id


@final
@attrs.frozen
class DirectoryFaults:
    """Carries them out."""

    faults: Faults
    target: GroupTarget
    director: EtcdDirector
    put: Callable[[int, Random], Awaitable[object]]  # a message of a size, to a master
    # All so far: what one has asked etcd for may be done after its end.
    copies: list[DirectoryCopy] = attrs.field(factory=list)

    def actions(self) -> dict[str, FaultAction]:
        """Return what carries them out, by kind."""
        return {
            OLDER_COPY: self._restore_older_copy,
            COPY_BESIDE: self._start_copy_beside,
            LOST_STORAGE: self._lose_storage,
            ALL_DOWN: self._take_all_down,
            LOG_FLIP: self._flip_above_checkpoint,
            LOG_REPAIR: self._repair,
            SHORTER_TTL: self._shorten_ttl,
        }

    def check_step(self) -> None:
        """Check the copies beside their originals.  Raises ViolationError."""
        for copy in self.copies:
            copy.check_step()

    # -- limits ----------------------------------------------------------------------------------

    def _may_harm(self, node: SimNode) -> bool:
        """Whether another member has all, in every set that may come into force.

        The etcd that went back in time, or another group's directory, is a fault by itself.
        """
        if self.faults.is_over or not self.director.is_trusted or not self._is_ours(node):
            return False
        return self.target.others_keep(self.target.cluster.id_of(node))

    def _is_ours(self, node: SimNode) -> bool:
        """Whether a node has this group's directory, whole, and nobody has edited it."""
        log = self.target.oracle.logs[self.target.cluster.id_of(node)]
        return log.foreign is None and log.hole is None and log.lost is None

    def _all_keep(self) -> bool:
        """Whether no node that is up loses anything if it is killed."""
        return all(
            self.target.cluster.config.is_sync(self.target.cluster.id_of(each))
            or not each.live_disk.syncs_failed
            for each in self.target.nodes
            if each.is_up
        )

    # -- older copies ----------------------------------------------------------------------------

    async def _restore_older_copy(
        self, fault: PlannedFault, node: SimNode, choices: Random
    ) -> None:
        """Replace a directory by an older copy of it, in the same boot or after a power cut.

        After a power cut a snapshot of a running node with SYNC_FLUSH looks like its directory, and
        only the coordinator's confirm offset tells that it is older: the fault waits for that.
        Where etcd has lost the claim, too, the copy knows of fewer starts than the state.
        """
        if node.node is None or not self._is_ours(node):
            await trio.lowlevel.checkpoint()
            return
        end, with_power, is_lost = node.node.max_offset, False, choices.random() < _HALF
        if choices.random() < _HALF:
            copy, what = await self._copy_of_stopped(node), "stopped"
            await self.faults.wait(choices, _OLD_FOR_S)
        else:
            copy, what = node.live_disk.snapshot(), "running"
            is_sync = self.target.cluster.config.is_sync(self.target.cluster.id_of(node))
            if is_sync and choices.random() < _MOSTLY:
                await self._put_some(choices)
                self._start_another_slave_again(node, choices)  # which the state then names
                await self._until(lambda: self.director.floor > end, _FLOOR_WITHIN_S)
                with_power = self.director.floor > end
            else:
                await self.faults.wait(choices, _OLD_FOR_S)
        if is_lost:
            await self._start_again_twice(node)
            await self._put_some(choices)
        is_alone = choices.random() < (_MOSTLY if with_power or is_lost else _HALF)
        if copy is None or not node.is_up or not self._may_harm(node):
            return
        if _uuid_on(copy) != _uuid_on(node.live_disk):
            return  # it was copied again meanwhile
        if is_alone and not self._all_keep():
            return
        text = f"its directory is replaced by an older copy of the {what} node"
        text += ", after a power cut" * with_power + ", and it starts alone" * is_alone
        text += ", and etcd has lost its claim" * is_lost
        self.faults.begins(fault, node.name, text)
        for each in self.target.nodes if is_alone else [node]:
            self._take_down(each, choices, with_power=with_power)
        node.replace_disk(copy)
        self.target.went_back(node)
        if is_lost:
            self.director.lose_claim(self.target.cluster.id_of(node))
        await self._start_copy(node, choices, is_alone=is_alone)

    async def _start_copy(self, node: SimNode, choices: Random, *, is_alone: bool) -> None:
        node.start(self.faults.nursery)
        if is_alone:
            await self.faults.wait(choices, _ALONE_FOR_S)
            self._start_all()
        for _ in range(choices.randint(0, _STARTS_AGAIN_MAX)):
            await self.faults.wait(choices, _RUNS_FOR_S)
            if node.is_up:
                self._kill(node)
                self.faults.restart(node, None)

    def _start_another_slave_again(self, node: SimNode, choices: Random) -> None:
        master = self.director.state.master
        others = [
            each
            for each in self.target.nodes
            if each.is_up
            and each is not node
            and self.target.cluster.id_of(each) != master
            and _keeps_cache(each)
        ]
        if others:
            other = choices.choice(others)
            self._kill(other)
            self.faults.restart_now(other)

    async def _start_again_twice(self, node: SimNode) -> None:
        """Kill a node and start it, each time until the state names its new start."""
        node_id = self.target.cluster.id_of(node)

        def is_named() -> bool:
            named = self.director.state.members.get(node_id)
            return named is not None and named.boot == node.boots

        for _ in range(2):
            if not node.is_up or not _keeps_cache(node) or self.faults.is_over:
                return
            self._kill(node)
            self.faults.restart_now(node)
            await self._until(is_named, _NAMED_WITHIN_S)

    def _take_down(self, node: SimNode, choices: Random, *, with_power: bool) -> None:
        """Kill a node, if it is up, or cut its power where it loses nothing by that."""
        if not node.is_up:
            return
        if with_power and self.target.cluster.config.is_sync(self.target.cluster.id_of(node)):
            self.target.crashing(node, lost_power=True)
            node.cut_power(choices)
        else:
            self._kill(node)

    async def _start_copy_beside(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Start a copy on another machine, up to three times, until it has taken the id."""
        await trio.lowlevel.checkpoint()
        is_well = not self.faults.is_over and self.director.is_trusted and self._is_ours(node)
        if node.node is None or not is_well or any(copy.node.is_up for copy in self.copies):
            return
        cluster = self.target.cluster
        node_id, disk = cluster.id_of(node), node.live_disk.snapshot()
        self.faults.begins(fault, node.name, "a copy of its directory is started beside it")
        copy = DirectoryCopy(cluster, self.director, node_id, disk, self.target.oracle.lost_bytes)
        self.copies.append(copy)
        for _ in range(choices.randint(1, _STARTS_AGAIN_MAX + 1)):
            copy.node.start(self.faults.nursery)
            with trio.move_on_after(choices.uniform(0.5, _COPY_RUNS_FOR_S)):
                await copy.has_claimed.wait()
            if not copy.has_claimed.is_set():
                with trio.move_on_after(choices.uniform(0.0, _STOPPED_WITHIN_S)):
                    await copy.has_claimed.wait()
            if copy.node.is_up:  # at once if it has the id: it may be elected, and be older
                copy.node.kill()
            if copy.has_claimed.is_set() or self.faults.is_over:
                break

    async def _copy_of_stopped(self, node: SimNode) -> SimDisk | None:
        """Stop a node cleanly and return a copy of its directory; None if it does not stop."""
        boot = node.boot
        assert boot is not None
        boot.is_asked_to_stop = True
        node.node.stop()
        with trio.move_on_after(_STOPS_WITHIN_S):
            while node.boot is boot:  # noqa: ASYNC110 - a fault may kill it, too
                await trio.sleep(_TICK_S)
            return node.disk.snapshot() if node.boot is None else None
        return None

    def _kill(self, node: SimNode) -> None:
        self.target.crashing(node, lost_power=False)
        node.kill()

    def _kill_all(self) -> None:
        for each in self.target.nodes:
            if each.is_up:
                self._kill(each)

    def _start_all(self) -> None:
        """Start all nodes that are down, each some time later."""
        for each in self.target.nodes:
            if not each.is_up:
                self.faults.restart(each, None)

    # -- promises --------------------------------------------------------------------------------

    async def _shorten_ttl(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Start a node again with a shorter ttl, mostly as a master leads by its promise alone."""
        await trio.lowlevel.checkpoint()
        director, cluster = self.director, self.target.cluster
        await self._until(lambda: bool(cluster.masters()), _STOPS_WITHIN_S)
        await trio.sleep(choices.uniform(0.5, 2.0))  # so that all follow it
        masters = [agent.sim_node for agent, _ in cluster.masters()]
        if len(masters) != 1 or director.is_out or not director.failsafe:
            return
        master = masters[0]
        nodes = [each for each in self.target.nodes if each is not master]
        node = node if node in nodes else choices.choice(nodes)
        client = director.client_of(master.name)
        if choices.random() < _MOSTLY and not client.is_troubled:
            client.cut()
            await self._until(
                lambda: director.view.leader is None, _LED_WITHIN_TTLS * director.ttl_s
            )
            fresh_s = _FRESH * director.ttl_s
            await self._until(
                lambda: director.promised_s(cluster.id_of(master)) > fresh_s, director.ttl_s
            )
        if node.is_up and not self.faults.is_over and _keeps_cache(node):
            self.faults.begins(fault, node.name, f"is started again with a ttl of {_TTL_MIN_S} s")
            self._kill(node)
            director.ttls_s[cluster.id_of(node)] = _TTL_MIN_S
            await trio.sleep(choices.uniform(0.05, 0.5))
            self.faults.restart_now(node)
        await self.faults.wait(choices, 2 * director.ttl_s)
        client.heal()

    # -- damage ----------------------------------------------------------------------------------

    async def _flip_above_checkpoint(
        self, fault: PlannedFault, node: SimNode, choices: Random
    ) -> None:
        """Flip a bit that makes the next start trim what the node has acknowledged.

        In the same boot any record above the checkpoint will do.  After a power cut only a record
        below the node's own confirm mark shows that something is gone.
        """
        config, node_id = self.target.cluster.config, self.target.cluster.id_of(node)
        with_power = config.is_sync(node_id) and choices.random() < _MOSTLY
        with trio.move_on_after(_FLIPS_WITHIN_S):
            await self._put_some(choices)
            while not _is_flippable(node, with_power=with_power):
                await self._put_some(choices)
        if not node.is_up or not self._may_harm(node) or not _keeps_cache(node):
            return
        if with_power:
            self.target.crashing(node, lost_power=True)
            node.cut_power(choices)
        else:
            self._kill(node)
        before, log = self._log_of(node).on_disk(), self._log_of(node)
        mark = _confirm_mark_on(node.disk) if with_power else None
        with node.disk.without_faults():
            flipped = flip_bit_above_checkpoint(node.disk, choices, below=mark)
        if flipped is not None:
            text = f"a bit flips at {flipped}, above its checkpoint"
            text += " and below its confirm mark" * with_power
            self.faults.begins(fault, node.name, text)
            self.target.oracle.lost_bytes(node_id)
            log.edited(before)
        await self._start_alone_or_beside(node, choices)

    async def _repair(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Damage a log below its checkpoint, and repair it by a filler; at times after a start."""
        await trio.lowlevel.checkpoint()
        if not node.is_up or not self._may_harm(node) or not _keeps_cache(node):
            return
        if not self.target.cluster.config.listens:  # a log is compared at its master's client port
            return
        log = self._log_of(node)
        self._kill(node)
        before = log.on_disk()
        in_last_file = choices.random() < _HALF
        flip = flip_durable_bit if in_last_file else flip_bit_below_checkpoint
        with node.disk.without_faults():
            flipped = flip(node.disk, choices)
        if flipped is None:
            self.faults.restart(node, None)
            return
        self.faults.begins(fault, node.name, f"a bit flips at {flipped}, and its log is repaired")
        self.target.oracle.lost_bytes(self.target.cluster.id_of(node))
        log.edited(before)
        if in_last_file and choices.random() < _HALF:  # the start refuses it
            node.start(self.faults.nursery)
            await self._until(lambda: not node.is_up, _STOPS_WITHIN_S)
            if node.is_up:
                self._kill(node)
        before = log.on_disk()
        try:
            with node.disk.without_faults():
                apply_repair(self._env_of(node), plan_repair(node.disk, DATA_DIR))
        except LogDamagedError:  # too small for a filler
            node.wipe()
            self.target.lost_disk(node)
        else:
            log.edited(before)
        await self._start_alone_or_beside(node, choices)

    async def _start_alone_or_beside(self, node: SimNode, choices: Random) -> None:
        """Start a node that was harmed; at times first, after all others were killed, too."""
        is_alone = choices.random() < _HALF and self._all_keep()
        if is_alone:
            self._kill_all()
        self.faults.restart_now(node)
        if is_alone:
            await self.faults.wait(choices, _ALONE_FOR_S)
            self._start_all()

    async def _put_some(self, choices: Random) -> None:
        for _ in range(_PUTS):
            own = random.Random(choices.getrandbits(64))
            self.faults.nursery.start_soon(self.put, choices.randint(1, 300), own)
            await trio.sleep(choices.uniform(0.0, 0.2))

    async def _until(self, holds: Callable[[], bool], within_s: float) -> None:
        """Wait until something holds, but not for ever."""
        with trio.move_on_after(within_s):
            while not holds():  # noqa: ASYNC110 - of the simulated world
                await trio.sleep(_TICK_S)

    def _log_of(self, node: SimNode) -> NodeLog:
        return self.target.oracle.logs[self.target.cluster.id_of(node)]

    def _env_of(self, node: SimNode) -> Env:
        """Return what a tool on a node's machine works with, while the node is down."""
        offload = SimOffload(self.target.cluster.choices)
        return sim_env(node.disk, node.wall_clock, offload, _TOOL)

    # -- all at once -----------------------------------------------------------------------------

    async def _lose_storage(self, fault: PlannedFault, node: SimNode, choices: Random) -> None:
        """Let file systems go down: one node's if others have what it loses, or those of all."""
        await trio.lowlevel.checkpoint()
        if choices.random() < _HALF:
            nodes, is_possible = self.target.nodes, self.director.is_trusted
        else:
            nodes = [node]
            is_possible = node.is_up and self.target.may_lose_power(node)
        if not is_possible:
            return
        whose = ", ".join(each.name for each in nodes)
        self.faults.begins(fault, "world", f"lost storage of {whose}, without a reboot")
        for each in nodes:
            self.target.crashing(each, lost_power=True)
            each.lose_storage(choices)
        if len(nodes) == 1:
            await self._start_alone_or_beside(node, choices)
        else:
            self._start_all()

    async def _take_all_down(self, fault: PlannedFault, _node: SimNode, choices: Random) -> None:
        """Kill all nodes at once, or cut the power of those that lose nothing by that."""
        await trio.lowlevel.checkpoint()
        if not self._all_keep():
            return
        with_power = choices.random() < _HALF
        self.faults.begins(fault, "world", "all nodes go down at once")
        for each in self.target.nodes:
            self._take_down(each, choices, with_power=with_power)
        self._start_all()


def _keeps_cache(node: SimNode) -> bool:
    """Whether the next start of a node trusts what its page cache has."""
    return not node.live_disk.syncs_failed


def _is_flippable(node: SimNode, *, with_power: bool) -> bool:
    """Whether a log goes on above its checkpoint, as far as a flip needs it."""
    if node.node is None:
        return not node.is_up
    end = node.node.max_offset
    if with_power:
        end = _confirm_mark_on(node.live_disk)
    with node.live_disk.without_faults():
        return bool(end > flushed_offset(node.live_disk))


def _confirm_mark_on(disk: SimDisk) -> int:
    """Return the confirm mark in a directory; 0 if there is none."""
    with disk.without_faults():
        identity = read_identity(disk, DATA_DIR)
    mark = None if identity is None else identity.confirm_mark
    return 0 if mark is None else mark.offset


def _uuid_on(disk: SimDisk) -> str | None:
    with disk.without_faults():
        identity = read_identity(disk, DATA_DIR)
    return None if identity is None else identity.uuid
