"""A node's transactions on its group: the state, the leader key, wishes, each by compare-and-swap.

All compare with what the node decided on, so that news in between voids them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.cluster.group_records import EpochRecord, GroupState
from hastore.cluster.key_value_store import Absent, Delete, Put, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.cluster.group_records import GroupConfig, Incarnation, Keys
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.key_value_store import Lease as Grant
    from hastore.cluster.leader_lease import LeaderLease
    from hastore.cluster.node_facts import NodeFacts


@final
@attrs.frozen(kw_only=True)
class Bid:
    """What a node wants to win: an epoch, and the set that it begins with."""

    epoch: int
    members: tuple[Incarnation, ...]
    why: str  # election, switchover
    leader: Absent | Unchanged  # the leader key, as it was decided on
    is_proven: bool = True  # whether a candidate had proved that it has all that was acknowledged
    writes: tuple[Put | Delete, ...] = ()  # besides


@final
@attrs.frozen(eq=False, kw_only=True)
class GroupWriter:
    """Writes for one start of a node.  Every method may raise CoordinatorError."""

    store: KeyValueStore
    keys: Keys
    watch: GroupWatch
    facts: NodeFacts
    now_ms: Callable[[], int]

    async def create(self, members: tuple[Incarnation, ...]) -> None:
        """Create the state of a group that has had no master."""
        state = GroupState(epoch=0, master=None, members=members, acks=self.facts.config.acks)
        await self.store.commit([Absent(self.keys.state)], [Put(self.keys.state, state.encode())])
        await self.watch.refresh()

    async def write_config(self, config: GroupConfig, others: Sequence[Unchanged]) -> bool:
        """Write wishes and alarm, unless somebody has; return whether it was done."""
        put = Put(self.keys.config, config.encode())
        return (await self.store.commit([self._same_config(), *others], [put])).succeeded

    async def delete_config(self) -> bool:
        """Remove ``config``, unless somebody has written it; return whether it was done."""
        delete = Delete(self.keys.config)
        return (await self.store.commit([self._same_config()], [delete])).succeeded

    async def retake(self, lease: LeaderLease) -> None:
        """Write the leader key again; the state's revision moves with it, so elections are void."""
        view = self.watch.known
        state = view.state
        assert state is not None
        grant = await lease.grant()
        await self.store.commit(
            [Absent(self.keys.leader), Unchanged(self.keys.state, view.state_revision)],
            [self._leader_key(state.epoch, grant), Put(self.keys.state, state.encode())],
        )
        await self.watch.refresh()

    async def win(self, bid: Bid, lease: LeaderLease) -> None:
        """Write leader and state of an epoch of this node, if nothing has changed.

        All comparisons are of what it was decided on: there may be news while it gets a lease.
        """
        view = self.watch.known
        assert view.state is not None
        same_config = self._same_config()  # no alarm, no pause, the same wish
        former = view.state.master
        state = GroupState(
            epoch=bid.epoch,
            master=self.facts.me,
            members=bid.members,
            acks=self.facts.config.acks,
            confirm_offset=view.state.confirm_offset,
            registered=view.state.registered,
        )
        record = EpochRecord(
            epoch=bid.epoch,
            master_id=self.facts.me.node_id,
            former_id=None if former is None else former.node_id,
            end=self.facts.node.max_offset,
            why=bid.why,
            at_ms=self.now_ms(),
            is_proven=bid.is_proven,
        )
        grant = await lease.grant()
        outcome = await self.store.commit(
            [
                bid.leader,
                Unchanged(self.keys.state, view.state_revision),
                same_config,
            ],
            [
                self._leader_key(bid.epoch, grant),
                Put(self.keys.state, state.encode()),
                Put(self.keys.history(bid.epoch), record.encode()),
                *bid.writes,
            ],
        )
        if not outcome.succeeded:
            await lease.release()
        await self.watch.refresh()

    def _leader_key(self, epoch: int, grant: Grant) -> Put:
        return Put(self.keys.leader, self.facts.leader(epoch).encode(), lease=grant.lease_id)

    def _same_config(self) -> Absent | Unchanged:
        revision = self.watch.known.config_revision
        return Unchanged(self.keys.config, revision) if revision else Absent(self.keys.config)
