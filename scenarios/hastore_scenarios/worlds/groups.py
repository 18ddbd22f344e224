"""Replica groups of a world: their start, their roles, what their nodes have.

::

    story ── promote, follow ──▶ StagedGroups ── ReplicaGroup ──▶ each node is told (request 1008)

The group decides as in the test plugin: who may become master, in which epoch, with which set.  A
frozen node is told nothing, so it wakes up in its former role until the story says ``follow``.
"""

from __future__ import annotations

import abc
import contextlib
import signal
from typing import TYPE_CHECKING, Any, Final

import trio

from hastore.errors import ConfigError, HastoreError
from hastore.status import BrokerRole, FlushDiskType
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR, find_log_files
from hastore.store.recovery.log_cut import kept_cuts
from hastore.testing.group import ReplicaGroup
from hastore.testing.group_member import ROLE_WITHIN_S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.story.world import GROUP_NAME, NodeFailed, ScenarioFailed
from hastore_scenarios.worlds.cluster import N, StagedCluster
from hastore_scenarios.worlds.node_config import (
    GROUP_DEFAULTS,
    default_of,
    expect_kind,
    with_defaults,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.config import InSyncReplicas
    from hastore_scenarios.story.world import CutStep, Node

_DIES_WITHIN_S: Final = 120.0  # for a very busy machine


class StagedGroups(StagedCluster[N]):
    """The nodes, those of replica groups among them; the base of `StagedWorld`."""

    async def start_group(
        self,
        count: int = 3,
        *,
        name: str = GROUP_NAME,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        faulty_disk: bool = False,
        **config: Any,
    ) -> Sequence[N]:
        """Start a replica group, the first node as its master, and wait until it is in step."""
        settings = {**GROUP_DEFAULTS, **config}
        group = await self._new_group(
            count, settings, name=name, role=role, flush=flush, faulty_disk=faulty_disk
        )
        async with trio.open_nursery() as nursery:
            for node in group.nodes:
                nursery.start_soon(self._boot, node)
        await self.promote(group.nodes[0])
        return tuple(group.nodes)

    async def _new_group(
        self,
        count: int,
        config: dict[str, Any],
        *,
        name: str,
        role: BrokerRole,
        flush: FlushDiskType,
        faulty_disk: bool,
    ) -> ReplicaGroup[N]:
        """Return a group of new nodes, which do not run yet.  Raises ConfigError."""
        expect_kind("role", role, BrokerRole)
        with_defaults(config)
        if any(node.group_name == name for node in self.nodes.values()):
            raise ConfigError(
                f"there is a group {name!r} already",
                hint="start_group(5) has five nodes; another group has a name of its own, name=…",
            )
        group = ReplicaGroup[N](
            role=role, min_in_sync_replicas=config.get("min_in_sync_replicas") or 1
        )
        for number in range(1, count + 1):
            letter = chr(ord("a") + len(self.nodes))
            node = await self._new_node(letter, BrokerRole.SLAVE, flush, dict(config))
            node.group, node.node_id, node.on_role = group, number, self._role_changes
            node.group_name = name
            if faulty_disk:
                self._expect_faults(node)
            group.nodes.append(node)
        return group

    async def promote(
        self,
        slave: Node,
        *,
        role: BrokerRole | None = None,
        members: Sequence[Node] | None = None,
        force: bool = False,
        **config: Any,
    ) -> None:
        """Make a node of a group the master of the next epoch; start a classic one as a master."""
        own = self._node(slave)
        group = own.group
        if group is None:
            wanted = BrokerRole.SYNC_MASTER if role is None else role
            await super().promote(slave, role=wanted, members=members, force=force, **config)
            return
        if role is not None or config:
            raise ConfigError("the nodes of a replica group keep their settings")
        if not own.is_running:
            await self._boot(own)
        chosen = None if members is None else [self._node(node) for node in members]
        with _too_slow_fails():
            await group.promote(own, members=chosen, force=force, within_s=ROLE_WITHIN_S)

    async def follow(self, node: Node, *, master: Node, **config: Any) -> None:
        """Tell a node of a group who its master is; start a classic one as a slave."""
        own = self._node(node)
        if own.group is None:
            await super().follow(node, master=master, **config)
            return
        if own.group.master is not master or config:
            raise ConfigError(f"{node.name} can follow the master of its group only")
        with _too_slow_fails():
            await own.group.demote(own)

    async def demote(self, node: Node) -> None:
        """Let the master of a group step down: the group has none until ``promote``."""
        own = self._node(node)
        if own.group is None:
            raise ConfigError(f"{node.name} is in no replica group")
        with _too_slow_fails():
            await own.group.demote(own)

    async def restart(self, node: Node) -> None:
        """Start a node again in its last role."""
        own = self._node(node)
        if own.group is None:
            await super().restart(node)
            return
        await self._boot(own)
        if own.is_master:
            await self.promote(own)  # nobody else was promoted meanwhile
        else:
            await self._rejoin(own)

    async def die_in_cut(self, node: Node, step: CutStep) -> None:
        """Start a node again, and kill it just before a step of its cut."""
        own = self._node(node)
        begun_s = self._disturb(own)
        code = None
        self._kill_before(own, step)
        try:
            with contextlib.suppress(NodeFailed):  # it may die before it listens
                await self._boot(own)
            if own.is_running:
                with contextlib.suppress(HastoreError):
                    await self._rejoin(own)
            with trio.move_on_after(_DIES_WITHIN_S):
                code = await own.wait_gone()
        finally:
            self._kill_before(own, None)
        if code is None:
            raise ScenarioFailed(f"{own.name} runs on: its cut has no step {step.value}")
        text = f"{own.name}: killed (SIGKILL) before the step {step.value} of its cut"
        self._ended(own, EventKind.KILL, text, begun_s, code)
        if code != -signal.SIGKILL:
            raise NodeFailed(f"{own.name} ended with {code}", output=own.output())

    async def log_bytes(self, node: Node, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a node's log."""
        own = self._node(node)
        path = str(own.data_path)
        found = find_log_files(own.disk, path, None)
        parts = []
        for base in found.offsets:
            first, last = max(begin, base), min(end, base + found.file_size)
            if first < last:
                file_path = f"{path}/{COMMIT_LOG_DIR}/{file_name(base)}"
                with contextlib.closing(own.disk.open_file(file_path, writable=False)) as file:
                    parts.append(file.pread(last - first, first - base))
        return b"".join(parts)

    async def cut_bytes(self, node: Node) -> bytes:
        """Return the bytes that the newest cut of a node's log has kept; none without a cut."""
        own = self._node(node)
        cuts = kept_cuts(own.disk, str(own.data_path))
        paths = cuts[-1].saved_paths if cuts else ()
        return b"".join(own.disk.read_file(f"{own.data_path}/{path}") for path in paths)

    # -- inside

    @abc.abstractmethod
    def _kill_before(self, node: N, step: CutStep | None) -> None:
        """Kill a node that is started from now on before a step of a cut; None: do not."""

    def _nodes_in_step(self, master: N, status: NodeStatus) -> list[N]:
        found = self._healthy_slaves(master, status)
        if master.group is None:
            return found
        rows = [row for row in status.slaves if row.state == "streaming" and row.lag_bytes == 0]
        ids = {row.node_id for row in rows}
        observers = [node for node in found if node.group is None]
        nodes = [node for node in master.group.nodes if node.is_reachable and node.node_id in ids]
        return [*observers, *nodes]

    async def _boot(self, node: N) -> None:
        """Start a node of a group, without a role yet."""
        assert not node.is_running, f"{node.name} runs already"
        self._disturb(node)
        await node.boot()
        node.is_paused, node.told = False, None

    async def _rejoin(self, node: N) -> None:
        """Let a running node follow the master of its group, if there is one."""
        assert node.group is not None
        master = node.group.master
        if master is not node:
            with _too_slow_fails():
                await node.trail(master, node.group.seen_epoch)

    async def _rejoin_all(self) -> None:
        """Let all nodes of groups that run follow their masters."""
        for node in self.nodes.values():
            if node.group is not None and node.is_reachable:
                await self._rejoin(node)

    def _role_changes(self, node: N, seen_s: float | None = None) -> Callable[..., None]:
        """Begin a change of a role, at ``seen_s`` or now; return what records it."""
        now_s = self._disturb(node)
        begun_s = now_s if seen_s is None else seen_s

        def record(*, epoch: int, **details: Any) -> None:
            if node.is_master:
                self._record_master(node, begun_s, epoch=epoch, **details)
                return
            whom = "nobody" if node.master is None else node.master.name
            self.history.event(
                EventKind.START_SLAVE,
                node.name,
                f"{node.name}: follows {whom} in epoch {epoch}",
                begun_s=begun_s,
                **{"master": None, "flows": True, **node.facts()},
                group=node.group_name,
                epoch=epoch,
                log_end=None,
            )

        return record

    def _record_master(
        self, node: N, begun_s: float, *, epoch: int, epoch_start: int, members: frozenset[int]
    ) -> None:
        group = node.group
        assert group is not None
        names = [each.name for each in group.nodes if each.node_id in members]
        self.history.event(
            EventKind.START_MASTER,
            node.name,
            f"{node.name}: {node.role.value} of epoch {epoch} from offset {epoch_start} on,"
            f" with {', '.join(names)} in its set",
            begun_s=begun_s,
            **node.facts(),
            group=node.group_name,
            epoch=epoch,
            epoch_start=epoch_start,
            copies_min=_copies_min(node, len(members)),
            is_all=_in_sync_replicas(node) == "all",
            min_in_sync_replicas=group.min_in_sync_replicas,
            log_end=epoch_start,
        )


def _copies_min(node: Any, members: int) -> int:
    """Return how many nodes have a message that is PUT_OK, at least.

    Without a coordinator a set never shrinks below a majority of the group.  But one that begins
    with its master alone acknowledges alone until others join, and no event says when they do.
    """
    wanted = _in_sync_replicas(node)
    least: int = node.group.min_in_sync_replicas
    if node.role is not BrokerRole.SYNC_MASTER:
        return 1
    if wanted != "all":
        return int(wanted)
    if node.coordinator is not None:
        return least  # the coordinator may accept any set of at least so many
    return max(least, min(members, len(node.group.nodes) // 2 + 1))


def _in_sync_replicas(node: Any) -> InSyncReplicas:
    wanted: InSyncReplicas = node.config.get("in_sync_replicas", default_of("in_sync_replicas"))
    return wanted


@contextlib.contextmanager
def _too_slow_fails() -> Iterator[None]:
    """Let a story fail that waits for a role for too long."""
    try:
        yield
    except TimeoutError as error:
        raise ScenarioFailed(str(error)) from error
