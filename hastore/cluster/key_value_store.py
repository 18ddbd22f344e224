"""What a replica group asks of its coordinator: keys, revisions, transactions and leases.

::

    read ──▶ Snapshot at revision r            commit(comparisons, writes) ──▶ Outcome
                │
    changes after r ──▶ Changes at r+1, r+3, …       follow: whole Snapshots, one after the other

The words are etcd's.  A **revision** counts the transactions that wrote something, in one cluster;
each key has the revision that created it and the one that wrote it last.  A **lease** ends unless
it is renewed, and takes the keys that were put with it along.

Every call may raise CoordinatorUnreachableError, which says nothing about what was done, and
CoordinatorRefusedError, after which nothing was.  A store that is full refuses writes and grants
with CoordinatorNoSpaceError; it still answers reads, and renews and ends leases.  A call that is
cancelled is like one without an answer.  This module does no I/O: ``etcd_client`` asks a real etcd,
``hastore.sim.coordinator`` is a model in virtual time.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import attrs

from hastore.errors import CompactedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager


@attrs.frozen
class KeyValue:
    """A key, its value, and the revisions at which it was created and last written.

    ``create_revision`` ≤ ``mod_revision``; ``lease`` is the id of its lease, None without one.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int | None


@attrs.frozen
class Changes:
    """All that one revision changed below a prefix: keys put, keys deleted or expired."""

    revision: int
    puts: tuple[KeyValue, ...]
    deletes: tuple[str, ...]


@attrs.frozen
class Snapshot:
    """All keys below a prefix at one revision, which is at least each key's ``mod_revision``.

    Within one ``cluster_id`` revisions never fall, unless the coordinator was restored.
    """

    cluster_id: int
    revision: int
    items: Mapping[str, KeyValue]

    def after(self, changes: Changes) -> Snapshot:
        """Return the snapshot that follows from the changes of a later revision."""
        assert changes.revision > self.revision, (changes.revision, self.revision)
        items = {key: item for key, item in self.items.items() if key not in changes.deletes}
        items |= {item.key: item for item in changes.puts}
        return Snapshot(self.cluster_id, changes.revision, items)


@attrs.frozen
class Absent:
    """The comparison that a key does not exist."""

    key: str


@attrs.frozen
class Unchanged:
    """The comparison that a key exists and was last written at ``mod_revision`` (≥ 1)."""

    key: str
    mod_revision: int


@attrs.frozen
class Put:
    """Write a key; ``lease`` is the lease that takes it along, None: it stays."""

    key: str
    value: bytes
    lease: int | None = None


@attrs.frozen
class Delete:
    """Remove a key; one that does not exist is no error."""

    key: str


@attrs.frozen
class Outcome:
    """The answer to a transaction; ``revision`` is the store's after it.

    ``succeeded``: all comparisons held and all writes were made, at ``revision`` if there were any.
    Else nothing was written.
    """

    succeeded: bool
    cluster_id: int
    revision: int


@attrs.frozen
class Lease:
    """A lease and its time to live as granted, in seconds: it may be more than was asked for."""

    lease_id: int
    ttl_s: float


@attrs.frozen(kw_only=True)
class ServerTime:
    """What a server's wall clock said in an answer, and between which addresses that came.

    The two addresses are equal if the server runs on this machine.
    """

    time_s: int  # whole seconds since 1970 (UTC)
    heard_at_s: float  # when the answer arrived, by the clock that the store was opened with
    host: str
    own_host: str


class KeyValueStore(Protocol):
    """A linearizable store of keys below prefixes, with leases and changes to wait for."""

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with ``prefix``; linearizable."""

    async def commit(
        self, comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all writes if all comparisons hold, else none; no key is written twice.

        It is asked for once.  After CoordinatorUnreachableError it may have been done, and may
        still be done after a read that does not show it.  Raises LeaseGoneError.
        """

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease (``ttl_s`` ≥ 1).  One whose answer was lost ends by itself."""

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease; return its time to live as granted, in seconds, None if it has ended.

        The time runs from some instant between question and answer, so count from the question.
        """

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys; one that has ended is no error."""

    async def alarms(self) -> frozenset[str]:
        """Return what is wrong with the store itself, such as ``NOSPACE``: it writes nothing."""

    def clocks(self) -> Mapping[str, ServerTime]:
        """Return by server what its wall clock said last; empty if servers do not say it."""

    def changes(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Changes]]:
        """Yield what changes below ``prefix`` after a revision, in order, none left out.

        The iterator waits without an end.  It raises CompactedError if it cannot go on from
        ``after_revision``, CoordinatorUnreachableError when the way to the coordinator breaks;
        then, or once a wait for it was cancelled, it is over.  Between two waits it holds no cancel
        scope and no nursery open.
        """


@asynccontextmanager
async def follow(store: KeyValueStore, prefix: str) -> AsyncGenerator[AsyncIterator[Snapshot]]:
    """Yield the keys below a prefix as they are now, then after each change, as whole snapshots.

    Where the changes are not available any more, the snapshot after that is a new read.  Its
    cluster or revision may then be others: the caller compares.  Errors of the store end it.
    """
    async with aclosing(_snapshots(store, prefix)) as snapshots:
        yield snapshots


async def _snapshots(store: KeyValueStore, prefix: str) -> AsyncGenerator[Snapshot]:
    while True:
        snapshot = await store.read(prefix)
        yield snapshot
        try:
            async with store.changes(prefix, snapshot.revision) as stream:
                async for changes in stream:
                    snapshot = snapshot.after(changes)
                    yield snapshot
        except CompactedError:
            continue
