"""The model of etcd: each of its faults, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
import trio
from trio.testing import MockClock

from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    Delete,
    Put,
    Snapshot,
    Unchanged,
    follow,
)
from hastore.errors import CompactedError, CoordinatorUnreachableError, LeaseGoneError
from hastore.sim.coordinator.etcd_model import EtcdModel
from hastore.sim.coordinator.model_client import LinkFaults, ModelClient
from hastore.sim.guards import leak_guards
from hastore.sim.seams import run_by_seed

TIMEOUT_S = 2.0


@pytest.fixture(autouse=True)
def _virtual_time(autojump_clock: MockClock) -> MockClock:
    """Let time jump, in every test here."""
    return autojump_clock


@pytest.fixture
async def model(autojump_clock: MockClock, nursery: trio.Nursery) -> EtcdModel:
    """Return a running model whose leases end when they should."""
    model = EtcdModel(choices=Random(7), expiry_late_s=(0.0, 0.0))
    nursery.start_soon(model.run)
    return model


async def put(client: ModelClient, key: str, value: bytes = b"", lease: int | None = None) -> int:
    """Put one key; return its revision."""
    outcome = await client.commit([], [Put(key, value, lease)])
    assert outcome.succeeded
    return outcome.revision


async def test_a_lost_request_was_not_done(autojump_clock: MockClock, model: EtcdModel) -> None:
    """Its sender learns nothing for as long as it waits."""
    lossy, other = model.client("n1"), model.client("n2")
    lossy.faults = LinkFaults(request_lost=1.0)
    with pytest.raises(CoordinatorUnreachableError, match="no answer within 2 s to: write /k"):
        await put(lossy, "/k")
    assert trio.current_time() == pytest.approx(TIMEOUT_S)
    assert not (await other.read("/")).items


async def test_a_lost_answer_hides_what_was_done(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """The transaction is there, although its sender has heard nothing."""
    lossy, other = model.client("n1"), model.client("n2")
    lossy.faults = LinkFaults(answer_lost=1.0)
    with pytest.raises(CoordinatorUnreachableError):
        await put(lossy, "/k")
    assert "/k" in (await other.read("/")).items


async def test_a_slow_answer_is_awaited_up_to_the_timeout(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """A request that takes 0.9 s each way is answered after 1.8 s; at 1.1 s each way it is not."""
    slow = model.client("n1", timeout_s=TIMEOUT_S)
    slow.faults = LinkFaults(delay_s=(0.9, 0.9))
    await put(slow, "/k")
    assert trio.current_time() == pytest.approx(1.8)
    assert slow.slow_at == pytest.approx(0.9)
    slow.faults = LinkFaults(delay_s=(1.1, 1.1))
    with pytest.raises(CoordinatorUnreachableError):
        await put(slow, "/l")
    slow.heal()
    assert "/l" in (await slow.read("/")).items
    assert slow.slow_at == pytest.approx(2.9)


async def test_a_late_transaction_is_done_after_its_sender_has_read_back(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """The read does not show it; only a write that moves the key makes it void."""
    client = model.client("n1")
    before = await put(client, "/state", b"1")
    before_void = await put(client, "/void", b"1")
    client.faults = LinkFaults(late=1.0, late_s=(3.0, 3.0))
    for key, revision in (("/state", before), ("/void", before_void)):
        with pytest.raises(CoordinatorUnreachableError):
            await client.commit([Unchanged(key, revision)], [Put(key, b"2")])
    client.faults = LinkFaults(late=1.0, late_key="/state")
    await put(client, "/other")
    assert client.late_count == 2
    client.heal()
    items = (await client.read("/")).items
    assert items["/void"].value == items["/state"].value == b"1"
    again = await client.commit([Unchanged("/void", before_void)], [Put("/void", b"1")])
    assert again.succeeded
    await trio.sleep(5.0)
    items = (await client.read("/")).items
    assert (items["/state"].value, items["/void"].value) == (b"2", b"1")


async def test_a_cancelled_request_may_be_done(autojump_clock: MockClock, model: EtcdModel) -> None:
    """It is on its way without its sender."""
    client = model.client("n1")
    client.faults = LinkFaults(delay_s=(0.5, 0.5))
    with trio.move_on_after(0.1):
        await put(client, "/k")
    await trio.sleep(1.0)
    assert "/k" in model.state.items


async def test_a_client_that_is_cut_off_hears_nothing(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """Others are served; its calls and its watch end after the time-out, and work once it heals."""
    client, other = model.client("n1"), model.client("n2")
    ended = []

    async def watch() -> None:
        async with client.changes("/", model.state.revision) as changes:
            with pytest.raises(CoordinatorUnreachableError, match="no sign of life for 2 s"):
                await anext(changes)
            ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(1.0)
        client.cut()
        await put(other, "/k")
        with pytest.raises(CoordinatorUnreachableError):
            await client.read("/")
    assert ended == [pytest.approx(3.0)]
    client.heal()
    assert "/k" in (await client.read("/")).items


async def test_a_short_cut_only_delays_a_watch(autojump_clock: MockClock, model: EtcdModel) -> None:
    """What happened meanwhile arrives when the cut is over."""
    client, other = model.client("n1"), model.client("n2")
    async with client.changes("/", model.state.revision) as changes, trio.open_nursery() as nursery:
        seen: list[Changes] = []
        nursery.start_soon(collect_one, changes, seen)
        await trio.sleep(1.0)
        client.cut()
        await put(other, "/k")
        await trio.sleep(1.0)
        assert not seen
        client.heal()
    assert [change.puts[0].key for change in seen] == ["/k"]


async def collect_one(changes: AsyncIterator[Changes], seen: list[Changes]) -> None:
    """Wait for one change."""
    seen.append(await anext(changes))


async def test_a_stopped_model_refuses_connections(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """Calls fail long before the time-out; a call and a watch that wait when it stops break."""
    client, slow = model.client("n1"), model.client("n2")
    slow.faults = LinkFaults(delay_s=(1.5, 1.5))
    errors = []

    async def call() -> None:
        with pytest.raises(CoordinatorUnreachableError, match="etcd has stopped") as caught:
            await slow.read("/")
        errors.append(str(caught.value))

    async def watch() -> None:
        async with client.changes("/", model.state.revision) as changes:
            with pytest.raises(CoordinatorUnreachableError, match="etcd has stopped") as caught:
                await anext(changes)
            errors.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        nursery.start_soon(watch)
        await trio.sleep(0.5)
        model.stop()
    assert trio.current_time() == pytest.approx(0.5)
    assert len(errors) == 2
    with pytest.raises(CoordinatorUnreachableError, match="refused"):
        await client.read("/")
    assert trio.current_time() < 0.6


async def test_a_restart_lets_leases_begin_again(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """A lease of 3 s does not end while etcd is down, and lives 3 s, or more, from its start."""
    client = model.client("n1")
    lease = await client.grant(3)
    await put(client, "/k", lease=lease.lease_id)
    await trio.sleep(2.5)
    model.stop()
    await trio.sleep(10)
    model.start(extend_s=1.0)
    await trio.sleep(3.9)
    assert "/k" in (await client.read("/")).items
    await trio.sleep(0.2)
    assert not (await client.read("/")).items


async def test_a_lease_ends_unless_it_is_renewed(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """Its keys go at one revision; a renewal counts from when it arrives."""
    client = model.client("n1")
    lease = await client.grant(3)
    await put(client, "/a", lease=lease.lease_id)
    revision = await put(client, "/b", lease=lease.lease_id)
    for _ in range(5):
        await trio.sleep(2.5)
        assert await client.renew(lease.lease_id) == 3.0
    async with client.changes("/", revision) as changes:
        gone = await anext(changes)
    assert gone == Changes(revision + 1, (), ("/a", "/b"))
    assert trio.current_time() == pytest.approx(12.5 + 3.0, abs=0.1)
    assert await client.renew(lease.lease_id) is None
    with pytest.raises(LeaseGoneError):
        await put(client, "/c", lease=lease.lease_id)


@pytest.mark.parametrize(("rate", "ends_after_s"), [(0.5, 8.0), (2.0, 2.0)])
async def test_leases_end_by_the_models_own_clock(
    autojump_clock: MockClock, model: EtcdModel, rate: float, ends_after_s: float
) -> None:
    """A clock that is slow by half lets 4 s take 8."""
    model.clock_rate = rate
    client = model.client("n1")
    await put(client, "/k", lease=(await client.grant(4)).lease_id)
    async with client.changes("/", model.state.revision) as changes:
        await anext(changes)
    assert trio.current_time() == pytest.approx(ends_after_s, abs=0.1)


async def test_a_deposed_leader_renews_nothing(autojump_clock: MockClock, model: EtcdModel) -> None:
    """Its answers say success, even after the lease has ended; others learn the truth."""
    client, other = model.client("n1"), model.client("n2")
    lease = await client.grant(3)
    await trio.sleep(1)
    client.meet_deposed_leader()
    await trio.sleep(1)
    assert await client.renew(lease.lease_id) == 3.0
    await trio.sleep(1.5)
    assert await client.renew(lease.lease_id) == 3.0
    assert await other.renew(lease.lease_id) is None
    client.heal()
    assert await client.renew(lease.lease_id) is None


async def test_a_lease_may_end_early(autojump_clock: MockClock, model: EtcdModel) -> None:
    """Right after it was renewed."""
    client = model.client("n1")
    lease = await client.grant(3)
    await put(client, "/k", lease=lease.lease_id)
    assert await client.renew(lease.lease_id) == 3.0
    model.end_lease_early(lease.lease_id)
    assert not (await client.read("/")).items
    assert await client.renew(lease.lease_id) is None


async def test_leases_may_be_longer_than_asked(autojump_clock: MockClock, model: EtcdModel) -> None:
    """The minimum is granted, and said; an extension is not said."""
    model.ttl_min_s = 5
    client = model.client("n1")
    lease = await client.grant(3)
    assert lease.ttl_s == 5.0
    assert await client.renew(lease.lease_id) == 5.0
    model.extend_leases(4.0)
    await trio.sleep(8.9)
    assert lease.lease_id in model.state.leases
    await trio.sleep(0.2)
    assert lease.lease_id not in model.state.leases


@pytest.mark.parametrize("as_other_cluster", [False, True])
async def test_a_restored_model_has_less(
    autojump_clock: MockClock, model: EtcdModel, as_other_cluster: bool
) -> None:
    """Keys and revision are the backup's; a watch from a later revision cannot go on."""
    client = model.client("n1")
    await put(client, "/old")
    backup = model.backup()
    newest = await put(client, "/new")
    cluster_id = (await client.read("/")).cluster_id
    model.stop()
    model.restore(backup, as_other_cluster=as_other_cluster)
    model.start()
    snapshot = await client.read("/")
    assert (list(snapshot.items), snapshot.revision) == (["/old"], newest - 1)
    assert (snapshot.cluster_id == cluster_id) is not as_other_cluster
    async with client.changes("/", newest) as changes:
        with pytest.raises(CompactedError, match="restored to revision"):
            await anext(changes)
    assert await put(client, "/other") == newest
    assert "/other" not in backup.items


async def test_a_compaction_ends_watches_that_lag(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """One that has seen all goes on; a new one from before the compaction is refused."""
    quick, slow = model.client("n1"), model.client("n2")
    slow.faults = LinkFaults(watch_delay_s=(5.0, 5.0))
    begin = model.state.revision
    seen: list[Changes] = []

    async def watch_slowly() -> None:
        async with slow.changes("/", begin) as changes:
            with pytest.raises(CompactedError):
                await anext(changes)

    async with trio.open_nursery() as nursery, quick.changes("/", begin) as changes:
        nursery.start_soon(watch_slowly)
        nursery.start_soon(collect_one, changes, seen)
        await trio.sleep(1.0)
        await put(quick, "/k")
        await trio.sleep(1.0)
        model.compact()
        await put(quick, "/l")
        assert (await anext(changes)).puts[0].key == "/l"
    assert seen[0].puts[0].key == "/k"
    async with quick.changes("/", begin) as changes:
        with pytest.raises(CompactedError, match="compacted up to"):
            await anext(changes)


async def test_changes_lag_in_order(autojump_clock: MockClock, model: EtcdModel) -> None:
    """Each is delayed; none is left out, and the second does not wait for the first's delay."""
    client = model.client("n1")
    client.faults = LinkFaults(watch_delay_s=(2.0, 2.0))
    begin = model.state.revision
    revisions = [await put(client, key) for key in ("/a", "/b", "/c")]
    async with client.changes("/", begin) as changes:
        assert [(await anext(changes)).revision for _ in revisions] == revisions
    assert trio.current_time() == pytest.approx(2.0, abs=0.1)


async def test_a_follower_reads_again_after_a_compaction(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """Its snapshots show every state that it can still see, and then the newest."""
    client, other = model.client("n1"), model.client("n2")
    await put(other, "/g/a", b"1")
    shown: list[Snapshot] = []

    async def show() -> None:
        async with follow(client, "/g/") as snapshots:
            async for snapshot in snapshots:
                shown.append(snapshot)  # noqa: PERF401 - it has no end

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        await trio.sleep(1.0)
        await put(other, "/h/elsewhere")
        await other.commit([], [Put("/g/b", b"2"), Delete("/g/a")])
        await trio.sleep(1.0)
        client.faults = LinkFaults(watch_delay_s=(5.0, 5.0))
        await put(other, "/g/c", b"3")
        await put(other, "/g/c", b"4")
        model.compact()
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert [[*snapshot.items] for snapshot in shown] == [["/g/a"], ["/g/b"], ["/g/b", "/g/c"]]
    assert shown[-1] == await other.read("/g/")


async def test_a_follower_ends_with_a_broken_watch(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """The caller decides when to try again."""
    client = model.client("n1")
    async with follow(client, "/") as snapshots, trio.open_nursery() as nursery:
        await anext(snapshots)

        async def break_later() -> None:
            await trio.sleep(1.0)
            client.break_watches()

        nursery.start_soon(break_later)
        with pytest.raises(CoordinatorUnreachableError, match="connection reset"):
            await anext(snapshots)


async def test_of_two_who_create_a_key_one_succeeds(
    autojump_clock: MockClock, model: EtcdModel
) -> None:
    """Requests overtake each other; the state decides."""
    won = []

    async def create(name: str) -> None:
        outcome = await model.client(name).commit([Absent("/l")], [Put("/l", name.encode())])
        if outcome.succeeded:
            won.append(name)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(create, f"n{number}")
    assert [model.state.items["/l"].value.decode()] == won


def test_the_same_seed_is_the_same_run() -> None:
    """Under the simulator's guards: no clock, no randomness and no thread of the real world."""

    def run(seed: int) -> list[str]:
        model = EtcdModel(choices=Random(seed))
        lines: list[str] = []

        async def work(name: str) -> None:
            client = model.client(name)
            client.faults = LinkFaults(request_lost=0.1, answer_lost=0.1, late=0.2)
            for turn in range(10):
                try:
                    lease = await client.grant(2)
                    await client.commit([], [Put(f"/{name}", b"%d" % turn, lease.lease_id)])
                    lines.append(f"{trio.current_time()} {name} {lease} {turn}")
                except CoordinatorUnreachableError as error:
                    lines.append(f"{trio.current_time()} {name} {error}")

        async def show() -> None:
            async with model.client("watcher").changes("/", 1) as changes:
                async for change in changes:
                    lines.append(f"{trio.current_time()} {change}")  # noqa: PERF401 - no end

        async def main() -> None:
            async with trio.open_nursery() as outer:
                outer.start_soon(model.run)
                outer.start_soon(show)
                async with trio.open_nursery() as workers:
                    for number in range(3):
                        workers.start_soon(work, f"n{number}")
                outer.cancel_scope.cancel()

        with leak_guards():
            run_by_seed(seed, main)
        return lines

    assert run(1) == run(1)
    assert run(1) != run(2)
