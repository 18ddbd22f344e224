"""What an etcd cluster agrees on: keys, revisions, leases, and the history that watches read.

Every method is one step of the cluster's log, so all of them are linearizable.  No clock: when a
lease ends is decided by ``EtcdModel``.  The rules are those of etcd 3.4 and 3.5; the conformance
tests ask a real one the same questions.
"""

from __future__ import annotations

import bisect
from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.observe.coordinator_status import NO_SPACE
from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    Delete,
    KeyValue,
    Lease,
    Outcome,
    Put,
    Snapshot,
)
from hastore.errors import (
    CompactedError,
    CoordinatorNoSpaceError,
    CoordinatorRefusedError,
    LeaseGoneError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.cluster.key_value_store import Unchanged

OPERATIONS_MAX: Final = 128  # of a transaction: etcd's --max-txn-ops


@final
@attrs.define(eq=False, kw_only=True)
class EtcdState:
    """The state; ``history`` has the changes after ``compacted``, in order."""

    cluster_id: int
    revision: int = 1  # as in an empty etcd
    compacted: int = 0  # changes up to here cannot be read any more
    alarms: frozenset[str] = frozenset()  # NO_SPACE: all writes and grants are refused
    deletes_while_full: bool = False  # but transactions that only delete
    items: dict[str, KeyValue] = attrs.field(factory=dict)
    leases: dict[int, Lease] = attrs.field(factory=dict)
    history: list[Changes] = attrs.field(factory=list)

    def copy(self) -> EtcdState:
        """Return a copy that does not change with this one."""
        return attrs.evolve(
            self, items=dict(self.items), leases=dict(self.leases), history=list(self.history)
        )

    def read(self, prefix: str) -> Snapshot:
        """Return the keys below a prefix."""
        items = {key: item for key, item in sorted(self.items.items()) if key.startswith(prefix)}
        return Snapshot(self.cluster_id, self.revision, items)

    def commit(
        self, comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all writes if all comparisons hold; raise what etcd refuses."""
        if writes:
            self._check_space(only_deletes=all(isinstance(each, Delete) for each in writes))
        if len({write.key for write in writes}) < len(writes):
            raise CoordinatorRefusedError("etcd: a transaction writes a key twice")
        if max(len(comparisons), len(writes)) > OPERATIONS_MAX:
            raise CoordinatorRefusedError(f"etcd: more than {OPERATIONS_MAX} operations")
        if not all(self._holds(comparison) for comparison in comparisons):
            return Outcome(succeeded=False, cluster_id=self.cluster_id, revision=self.revision)
        for write in writes:
            if isinstance(write, Put) and write.lease not in {None, *self.leases}:
                raise LeaseGoneError(f"etcd: {write.key}: lease {write.lease} has ended")
        self._write(writes)
        return Outcome(succeeded=True, cluster_id=self.cluster_id, revision=self.revision)

    def _check_space(self, *, only_deletes: bool = False) -> None:
        """Raise CoordinatorNoSpaceError while the alarm is raised.

        Transactions that only delete are taken since 3.4.20 and 3.5.7 (etcd's pull requests 14254
        and 14884).
        """
        if NO_SPACE in self.alarms and not (only_deletes and self.deletes_while_full):
            raise CoordinatorNoSpaceError("etcd: database space exceeded")

    def _holds(self, comparison: Absent | Unchanged) -> bool:
        item = self.items.get(comparison.key)
        if isinstance(comparison, Absent):
            return item is None
        return item is not None and item.mod_revision == comparison.mod_revision

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        """Write at the next revision; one that changes nothing has none."""
        revision = self.revision + 1
        puts: list[KeyValue] = []
        deletes: list[str] = []
        for write in writes:
            before = self.items.get(write.key)
            if isinstance(write, Put):
                created = revision if before is None else before.create_revision
                item = KeyValue(write.key, write.value, created, revision, write.lease)
                self.items[write.key] = item
                puts.append(item)
            elif before is not None:
                del self.items[write.key]
                deletes.append(write.key)
        if puts or deletes:
            self.revision = revision
            self.history.append(Changes(revision, tuple(puts), tuple(deletes)))

    # -- leases ----------------------------------------------------------------------------------

    def grant(self, lease: Lease) -> None:
        """Add a lease.  Raises CoordinatorNoSpaceError."""
        self._check_space()
        assert lease.lease_id not in self.leases
        self.leases[lease.lease_id] = lease

    def end_lease(self, lease_id: int) -> bool:
        """Remove a lease and its keys, at one revision; return whether it was there."""
        if self.leases.pop(lease_id, None) is None:
            return False
        keys = sorted(key for key, item in self.items.items() if item.lease == lease_id)
        self._write([Delete(key) for key in keys])
        return True

    # -- watches ---------------------------------------------------------------------------------

    def compact(self, revision: int) -> None:
        """Forget the changes up to a revision."""
        assert self.compacted <= revision <= self.revision
        self.compacted = revision
        del self.history[: bisect.bisect_right(self.history, revision, key=_revision)]

    def check_watch(self, after_revision: int) -> None:
        """Raise CompactedError if the changes after that revision are not all there."""
        if after_revision < self.compacted:
            why = f"compacted up to revision {self.compacted}"
        elif after_revision > self.revision:
            why = f"restored to revision {self.revision}"
        else:
            return
        raise CompactedError(f"etcd was {why}", after_revision=after_revision)

    def next_changes(self, prefix: str, after_revision: int) -> Changes | None:
        """Return the first changes below a prefix after a revision, None if there are none yet."""
        begin = bisect.bisect_right(self.history, after_revision, key=_revision)
        for changes in self.history[begin:]:
            puts = tuple(item for item in changes.puts if item.key.startswith(prefix))
            deletes = tuple(key for key in changes.deletes if key.startswith(prefix))
            if puts or deletes:
                return Changes(changes.revision, puts, deletes)
        return None


_revision: Final = attrgetter("revision")
