"""A replica group of a test: which node is its master, and which may become it.

::

    promote   plan ──▶ the other running nodes follow the candidate in the new epoch ──▶ plan again
                   ──▶ the candidate becomes master ──▶ the members acknowledge its log

What counts is on disk, of nodes that were killed, too: the newest epoch that any directory has
seen, and the SyncStateSet that the newest master has written.  The former master steps down first,
so it acknowledges nothing meanwhile; the set that it leaves is read after that.  One that is frozen
finds no node that still follows it.

Invariant: without ``force`` only a node of the SyncStateSet becomes master, and its set begins with
nodes of the former set: each has all that was acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, final

import attrs

from hastore.errors import ConfigError, HastoreError
from hastore.store.log.store_directory import find_log_files
from hastore.store.node_identity import read_identity
from hastore.store.recovery.cut_survey import CutSurvey
from hastore.store.sync_state_file import SYNC_STATE_FILE, StoredSet, SyncStateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.env.interface import Disk
    from hastore.status import BrokerRole


class NotInSetError(HastoreError):
    """A node outside the SyncStateSet was to become master, or a member of its first set."""

    exit_code = 6


class Member(Protocol):
    """What a group needs of a node; ``hastore.testing.group_member`` is how."""

    @property
    def name(self) -> str:
        """The name in errors."""

    @property
    def node_id(self) -> int:
        """Its place in the group, from 1 on."""

    @property
    def disk(self) -> Disk:
        """The disk of its directory."""

    @property
    def data_path(self) -> Path:
        """Its directory on that disk."""

    @property
    def is_running(self) -> bool:
        """Whether it runs."""

    @property
    def is_reachable(self) -> bool:
        """Whether it runs and is not frozen."""

    @property
    def is_master(self) -> bool:
        """Whether it was last made the group's master."""

    async def started(self) -> None:
        """Start it."""

    async def asked(self) -> NodeStatus:
        """Return its status."""

    async def waited(
        self, condition: Callable[[NodeStatus], bool], what: str, *, within_s: float
    ) -> NodeStatus:
        """Wait for a condition on its status."""

    async def caught_up_with(self, end: int, *, is_readable: bool, within_s: float) -> None:
        """Wait until it has its master's log up to ``end``, and can serve it."""

    async def lead(self, epoch: int, members: frozenset[int]) -> None:
        """Become the master of an epoch, with this SyncStateSet."""

    async def trail(self, master: Self | None, epoch: int) -> None:
        """Follow the master of an epoch (None: nobody) now, if it runs, and after each start."""


M = TypeVar("M", bound=Member)


@final
@attrs.frozen
class _Plan:
    """A promotion: its epoch, and the SyncStateSet that it begins with."""

    epoch: int
    members: frozenset[int]


@final
@attrs.define(eq=False, kw_only=True)
class ReplicaGroup(Generic[M]):
    """The nodes of one log, in the order of their ids; ``role`` is that of each master."""

    role: BrokerRole
    min_in_sync_replicas: int = 1
    nodes: list[M] = attrs.field(factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all nodes."""
        return tuple(range(1, len(self.nodes) + 1))

    @property
    def master(self) -> M | None:
        """The node that was promoted last, running or not; None after it was demoted."""
        return next((node for node in self.nodes if node.is_master), None)

    @property
    def seen_epoch(self) -> int:
        """The newest epoch that any node has heard of; 0: none."""
        found = [
            read_identity(node.disk, str(node.data_path))
            for node in self.nodes
            if node.disk.exists(str(node.data_path))
        ]
        return max((identity.seen_epoch for identity in found if identity is not None), default=0)

    def sync_state_set(self) -> StoredSet | None:
        """Return the set that the newest master has written; None if there was no master."""
        files = [
            SyncStateFile(node.disk, f"{node.data_path}/{SYNC_STATE_FILE}") for node in self.nodes
        ]
        found = [stored for file in files if (stored := file.load()) is not None]
        return max(found, key=lambda stored: stored.epoch, default=None)

    # -- roles -----------------------------------------------------------------------------------

    async def promote(
        self,
        candidate: M,
        *,
        members: list[M] | None = None,
        force: bool = False,
        within_s: float,
    ) -> None:
        """Make a node the master of the next epoch, and let the others follow it.

        Raises NotInSetError, ConfigError, HastoreError if the node is frozen, and what ``Member``
        raises.
        """
        if not candidate.is_running:
            await candidate.started()
        if not candidate.is_reachable:
            raise HastoreError(f"{candidate.name} is frozen", hint="resume() it first")
        plan = await self._plan(candidate, members, force=force)
        former = self.master
        others = [node for node in self.nodes if node is not candidate]
        for node in sorted(others, key=lambda node: node is not former):
            await node.trail(candidate, plan.epoch)
        if former is not None and former is not candidate:
            plan = attrs.evolve(await self._plan(candidate, members, force=force), epoch=plan.epoch)
        await candidate.lead(plan.epoch, plan.members)
        serves_puts = len(plan.members) >= self.min_in_sync_replicas
        if serves_puts and plan.members <= self._reachable():
            end = (await candidate.asked()).max_offset
            for node in others:
                if node.node_id in plan.members:
                    await node.caught_up_with(end, is_readable=False, within_s=within_s)
            await self._acknowledged(candidate, end, plan.members, within_s)

    async def demote(self, node: M) -> None:
        """Let a node follow the group's master; if it is that, the group has none then."""
        master = self.master
        await node.trail(None if master is node else master, self.seen_epoch)

    async def resumed(self, node: M) -> None:
        """Let a node follow the group's master after a pause, and the others if it is that."""
        if node.is_master:
            for other in self.nodes:
                if other is not node:
                    await other.trail(node, self.seen_epoch)
        else:
            await self.demote(node)

    async def caught_up(self, within_s: float) -> None:
        """Wait until all running nodes have the master's log, and are in the SyncStateSet."""
        master = self.master
        if master is None:
            raise HastoreError("the group has no master", hint="promote() one of its nodes")
        end = (await master.asked()).max_offset
        running = [node for node in self.nodes if node.is_running]
        for node in running:
            if node is not master:
                await node.caught_up_with(end, is_readable=True, within_s=within_s)
        await self._acknowledged(master, end, frozenset(node.node_id for node in running), within_s)

    async def _acknowledged(
        self, master: M, end: int, wanted: frozenset[int], within_s: float
    ) -> None:
        """Wait until these nodes are in the master's set, and the set has its log up to ``end``."""

        def is_there(status: NodeStatus) -> bool:
            stored = self.sync_state_set()
            is_in_set = stored is not None and wanted <= stored.members
            return is_in_set and (status.confirm_offset or 0) >= end

        what = f"{self._names(wanted)} in the SyncStateSet, which has all up to offset {end}"
        await master.waited(is_there, what, within_s=within_s)

    # -- who may become master -------------------------------------------------------------------

    async def _plan(self, candidate: M, members: list[M] | None, *, force: bool) -> _Plan:
        stored = self.sync_state_set()
        safe = frozenset(self.ids) if stored is None else stored.members
        if members is None:
            chosen = safe & self._reachable()
        else:
            self._check_own(members)
            chosen = frozenset(node.node_id for node in members)
        chosen |= {candidate.node_id}
        outside = [node for node in self.nodes if node.node_id in chosen - safe]
        if stored is not None and outside:
            if not force:
                raise await self._not_in_set(min(outside, key=lambda n: n is not candidate), stored)
            if members is None:
                # The others have what it lacks, and follow only once they are copied again.
                chosen = frozenset({candidate.node_id})
        return _Plan(self.seen_epoch + 1, chosen)

    def _reachable(self) -> frozenset[int]:
        return frozenset(node.node_id for node in self.nodes if node.is_reachable)

    def _check_own(self, members: list[M]) -> None:
        for node in members:
            if all(node is not own for own in self.nodes):
                raise ConfigError(f"{node.name} is not a node of this group")

    async def _not_in_set(self, node: M, stored: StoredSet) -> NotInSetError:
        """Return the error for a node outside the set, which names what would be lost."""
        text = (
            f"{node.name} is not in the SyncStateSet of epoch {stored.epoch}"
            f" ({self._names(stored.members)})"
        )
        end = (await node.asked()).max_offset if node.is_reachable else None
        if end is not None:
            text += f": {self._lost(end, stored.members)}"
        inside = self._names(stored.members, " or ")
        return NotInSetError(text, hint=f"promote {inside}, or promote(force=True) and lose that")

    def _lost(self, end: int, members: frozenset[int]) -> str:
        """Describe what the logs of ``members`` have, and one that ends at ``end`` has not."""
        surveys = [
            (survey.end_offset, node.name, survey.messages)
            for node in self.nodes
            if node.node_id in members and (survey := _survey(node, end)) is not None
        ]
        last = max(surveys, key=lambda found: found[0], default=None)
        if last is None or last[0] <= end:
            return f"its log ends at {end}, and no member's is longer now"
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(last[2].items()))
        return (
            f"its log ends at {end}, and that of {last[1]} at {last[0]}; the messages between them"
            f" would be lost ({topics or 'none is whole'})"
        )

    def _names(self, ids: frozenset[int], last: str = ", ") -> str:
        return last.join(node.name for node in self.nodes if node.node_id in ids)


def _survey(node: Member, end: int) -> CutSurvey | None:
    """Return a survey of a log from ``end`` on; None if no record begins there."""
    disk, data = node.disk, str(node.data_path)
    try:
        found = find_log_files(disk, data, None)
        survey = CutSurvey(disk=disk, data_dir=data, found=found, physic_offset=end)
        survey.run()
    except HastoreError:
        return None
    return survey
