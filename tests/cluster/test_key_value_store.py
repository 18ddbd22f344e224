"""What every ``KeyValueStore`` does: the same tests for the model and for real etcd servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random

import attrs
import pytest
import trio

from hastore.cluster.etcd_client import EtcdClient, EtcdConfig
from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    Delete,
    KeyValueStore,
    Put,
    Snapshot,
    Unchanged,
    follow,
)
from hastore.errors import CompactedError, CoordinatorRefusedError, LeaseGoneError
from hastore.sim.coordinator.etcd_model import EtcdModel
from tests.patience import WITHIN_S
from tests.support.etcd import KINDS, EtcdServer, etcd_of_kind

# The model's clock is so quick that its leases end soon, too.
CLOCK_RATE = 20.0
_prefixes = count()


@attrs.frozen
class Store:
    """A store, a second client of it, and a prefix that nobody else uses."""

    first: KeyValueStore
    second: KeyValueStore
    prefix: str
    model: EtcdModel | None


@pytest.fixture(scope="module", params=["model", *KINDS])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdServer | None]:
    """Run a server for all tests here; None: the model."""
    if request.param == "model":
        yield None
        return
    directory: Path = tmp_path_factory.mktemp("etcd")
    with etcd_of_kind(request.param, directory / request.param) as server:
        yield server


@pytest.fixture
async def store(server: EtcdServer | None, nursery: trio.Nursery) -> AsyncIterator[Store]:
    """Open two clients."""
    prefix = f"/test/{next(_prefixes)}/"
    if server is None:
        model = EtcdModel(choices=Random(3), clock_rate=CLOCK_RATE)
        nursery.start_soon(model.run)
        patience = {"timeout_s": WITHIN_S}
        yield Store(model.client("n1", **patience), model.client("n2", **patience), prefix, model)
        return
    config = EtcdConfig(endpoints=(server.endpoint,), timeout_s=WITHIN_S)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(EtcdClient.open(config)) for _ in range(2)]
        yield Store(*clients, prefix, None)


async def test_an_empty_prefix_has_a_cluster_and_a_revision(store: Store) -> None:
    """Both clients read the same."""
    snapshot = await store.first.read(store.prefix)
    assert snapshot == await store.second.read(store.prefix)
    assert snapshot.cluster_id > 0
    assert snapshot.revision >= 1
    assert snapshot.items == {}


async def test_a_read_has_all_below_a_prefix_and_nothing_else(store: Store) -> None:
    """Keys beside it, the prefix itself included, keep their revisions."""
    key, beside = f"{store.prefix}k", store.prefix[:-1]
    created = await store.first.commit([], [Put(key, b"1"), Put(beside, b"beside")])
    changed = await store.first.commit([], [Put(key, b"2")])
    snapshot = await store.second.read(store.prefix)
    assert list(snapshot.items) == [key]
    item = snapshot.items[key]
    assert (item.key, item.value, item.lease) == (key, b"2", None)
    assert (item.create_revision, item.mod_revision) == (created.revision, changed.revision)
    assert snapshot.revision == changed.revision == created.revision + 1
    whole = await store.second.read("")
    assert {key, beside} <= whole.items.keys()


async def test_any_value_and_any_text_as_key(store: Store) -> None:
    """Empty values, all bytes, and keys that are not ASCII come back."""
    values = {
        f"{store.prefix}empty": b"",
        f"{store.prefix}bytes": bytes(range(256)),
        f"{store.prefix}größe/\N{SNOWMAN} \n": b"x" * 10_000,
    }
    await store.first.commit([], [Put(key, value) for key, value in values.items()])
    items = (await store.first.read(store.prefix)).items
    assert {key: item.value for key, item in items.items()} == values
    below = await store.first.read(f"{store.prefix}grö")
    assert len(below.items) == 1


async def test_a_key_is_created_once(store: Store) -> None:
    """The second who finds it absent is refused, and nothing of it is written."""
    key, other = f"{store.prefix}leader", f"{store.prefix}state"
    won = await store.first.commit([Absent(key)], [Put(key, b"1")])
    lost = await store.second.commit([Absent(key)], [Put(key, b"2"), Put(other, b"2")])
    assert (won.succeeded, lost.succeeded) == (True, False)
    assert lost.revision == won.revision
    assert lost.cluster_id == won.cluster_id
    items = (await store.second.read(store.prefix)).items
    assert {key: item.value for key, item in items.items()} == {key: b"1"}


async def test_a_compare_and_swap_holds_for_all_keys(store: Store) -> None:
    """One key that has moved voids the transaction; so does one that is not there."""
    a, b = f"{store.prefix}a", f"{store.prefix}b"
    first = await store.first.commit([], [Put(a, b"1"), Put(b, b"1")])
    moved = await store.second.commit([Unchanged(b, first.revision)], [Put(b, b"2")])
    assert moved.succeeded
    stale = [Unchanged(a, first.revision), Unchanged(b, first.revision)]
    assert not (await store.first.commit(stale, [Put(a, b"3")])).succeeded
    fresh = [Unchanged(a, first.revision), Unchanged(b, moved.revision), Absent(f"{a}/none")]
    assert (await store.first.commit(fresh, [Put(a, b"3"), Delete(b)])).succeeded
    assert not (await store.first.commit([Unchanged(b, moved.revision)], [])).succeeded
    items = (await store.first.read(store.prefix)).items
    assert {key: item.value for key, item in items.items()} == {a: b"3"}


async def test_a_transaction_that_changes_nothing_has_no_revision(store: Store) -> None:
    """One that compares only, and one that deletes what is not there."""
    before = await store.first.read(store.prefix)
    compared = await store.first.commit([Absent(f"{store.prefix}k")], [])
    deleted = await store.first.commit([], [Delete(f"{store.prefix}k")])
    assert compared.succeeded
    assert deleted.succeeded
    assert compared.revision == deleted.revision == before.revision


async def test_a_key_that_is_created_again_has_a_new_creation(store: Store) -> None:
    """Its revisions say that it is another one."""
    key = f"{store.prefix}k"
    await store.first.commit([], [Put(key, b"1")])
    await store.first.commit([], [Delete(key)])
    again = await store.first.commit([Absent(key)], [Put(key, b"1")])
    item = (await store.first.read(store.prefix)).items[key]
    assert (item.create_revision, item.mod_revision) == (again.revision, again.revision)


@pytest.mark.parametrize(
    "writes",
    [
        lambda prefix: [Put(f"{prefix}k", b"1"), Put(f"{prefix}k", b"2")],
        lambda prefix: [Put(f"{prefix}k", b"1"), Delete(f"{prefix}k")],
        lambda prefix: [Put(f"{prefix}{each}", b"") for each in range(129)],
    ],
    ids=["twice", "put and deleted", "129 keys"],
)
async def test_a_transaction_that_is_refused_writes_nothing(store: Store, writes) -> None:
    """A key that is written twice, and more operations than a transaction may have."""
    with pytest.raises(CoordinatorRefusedError):
        await store.first.commit([], writes(store.prefix))
    assert (await store.first.read(store.prefix)).items == {}


async def test_a_dead_lease_takes_no_keys(store: Store) -> None:
    """A put with it is refused as such; where a comparison fails, that is the answer."""
    key = f"{store.prefix}k"
    lease = await store.first.grant(60)
    await store.first.revoke(lease.lease_id)
    await store.first.revoke(lease.lease_id)
    with pytest.raises(LeaseGoneError):
        await store.first.commit([], [Put(key, b"", lease.lease_id)])
    failed = await store.first.commit([Unchanged(key, 1)], [Put(key, b"", lease.lease_id)])
    assert not failed.succeeded
    assert await store.first.renew(lease.lease_id) is None


async def test_a_revoked_lease_takes_its_keys_along(store: Store) -> None:
    """At one revision; a key that was put again without it stays."""
    lease = await store.first.grant(60)
    assert lease.ttl_s == 60
    keys = [f"{store.prefix}{each}" for each in "abc"]
    await store.first.commit([], [Put(key, b"1", lease.lease_id) for key in keys])
    last = await store.second.commit([], [Put(keys[1], b"2")])
    snapshot = await store.second.read(store.prefix)
    leases = [snapshot.items[key].lease for key in keys]
    assert leases == [lease.lease_id, None, lease.lease_id]
    assert await store.second.renew(lease.lease_id) == 60
    await store.second.revoke(lease.lease_id)
    after = await store.first.read(store.prefix)
    assert (list(after.items), after.revision) == ([keys[1]], last.revision + 1)


async def test_a_lease_ends_unless_it_is_renewed(store: Store) -> None:
    """Its key is deleted, as a watch shows; at least 2 s are granted; a renewed one lives on."""
    lease, other = await store.first.grant(1), await store.first.grant(60)
    assert lease.ttl_s == 2
    key, kept = f"{store.prefix}k", f"{store.prefix}kept"
    writes = [Put(key, b"1", lease.lease_id), Put(kept, b"1", other.lease_id)]
    put = await store.first.commit([], writes)
    with trio.fail_after(WITHIN_S):
        async with store.second.changes(store.prefix, put.revision) as changes:
            assert await anext(changes) == Changes(put.revision + 1, (), (key,))
    assert await store.first.renew(lease.lease_id) is None
    assert await store.first.renew(other.lease_id) == 60


async def test_changes_come_in_order_each_revision_whole(store: Store) -> None:
    """Those before the watch, those below other prefixes left out, and those after it opened."""
    a, b, beside = f"{store.prefix}a", f"{store.prefix}b", store.prefix[:-1]
    begin = await store.first.commit([], [Put(a, b"0")])
    both = await store.first.commit([], [Put(a, b"1"), Put(b, b"1")])
    await store.first.commit([], [Put(beside, b"")])
    mixed = await store.first.commit([], [Put(b, b"2"), Delete(a)])
    seen: list[Changes] = []
    with trio.fail_after(WITHIN_S):
        async with store.second.changes(store.prefix, begin.revision) as changes:
            seen += [await anext(changes), await anext(changes)]
            last = await store.first.commit([], [Delete(b)])
            seen.append(await anext(changes))
    assert [each.revision for each in seen] == [both.revision, mixed.revision, last.revision]
    assert [{item.key: item.value for item in each.puts} for each in seen] == [
        {a: b"1", b: b"1"},
        {b: b"2"},
        {},
    ]
    assert [each.deletes for each in seen] == [(), (a,), (b,)]
    (item,) = seen[1].puts
    assert (item.create_revision, item.mod_revision) == (both.revision, mixed.revision)


async def test_changes_of_many_revisions_are_all_there(store: Store) -> None:
    """A watch that opens far behind gets 300 revisions, one by one."""
    key = f"{store.prefix}k"
    begin = (await store.first.read(store.prefix)).revision
    for number in range(300):
        await store.first.commit([], [Put(key, b"%d" % number)])
    with trio.fail_after(WITHIN_S):
        async with store.second.changes(store.prefix, begin) as changes:
            seen = [await anext(changes) for _ in range(300)]
    assert [each.puts[0].value for each in seen] == [b"%d" % number for number in range(300)]
    assert [each.revision for each in seen] == list(range(begin + 1, begin + 301))


async def test_a_watch_from_the_future_is_refused(store: Store) -> None:
    """It would wait for a revision that was there before a backup was restored."""
    revision = (await store.first.read(store.prefix)).revision
    async with store.first.changes(store.prefix, revision + 1) as changes:
        with pytest.raises(CompactedError) as caught:
            await anext(changes)
    assert caught.value.after_revision == revision + 1


async def test_a_follower_shows_every_state(store: Store) -> None:
    """First what is there, then a snapshot after each revision that changed something."""
    key, other = f"{store.prefix}k", f"{store.prefix}l"
    await store.first.commit([], [Put(key, b"1")])
    shown: list[Snapshot] = []
    with trio.fail_after(WITHIN_S):
        async with follow(store.second, store.prefix) as snapshots:
            shown.append(await anext(snapshots))
            for writes in ([Put(key, b"2"), Put(other, b"1")], [Delete(key)]):
                await store.first.commit([], writes)
                shown.append(await anext(snapshots))
                assert shown[-1] == await store.first.read(store.prefix)
    values = [{key[-1]: item.value for key, item in each.items.items()} for each in shown]
    assert values == [{"k": b"1"}, {"k": b"2", "l": b"1"}, {"l": b"1"}]


async def test_only_one_of_many_swaps_succeeds(store: Store) -> None:
    """Ten at once compare the same revision."""
    key = f"{store.prefix}k"
    begin = await store.first.commit([], [Put(key, b"")])
    succeeded: list[int] = []

    async def swap(number: int) -> None:
        client = (store.first, store.second)[number % 2]
        outcome = await client.commit([Unchanged(key, begin.revision)], [Put(key, b"%d" % number)])
        if outcome.succeeded:
            succeeded.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(swap, number)
    items = (await store.first.read(store.prefix)).items
    assert [items[key].value] == [b"%d" % number for number in succeeded]
