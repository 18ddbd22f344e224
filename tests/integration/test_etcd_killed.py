"""Groups of processes under load whose etcd is killed, all of it or some of its members.

``pytest -s`` prints which etcd ran, and for how long puts were not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hastore.cluster.etcd_client import EtcdHealth
from hastore.concurrency.lease import margin_s
from tests.integration.elected_group import KEYS, TTL_S, ElectedGroup, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind, start_cluster

# `make test` has the catalog's stories of a silent etcd, in the simulator.
pytestmark = pytest.mark.timeout(3_600)
DEAD_FOR_S = 60.0
KILLS = 10


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        print(server.version())
        yield server


@pytest.mark.soak
async def test_puts_go_on_while_etcd_is_dead(tmp_path: Path, etcd: EtcdServer) -> None:
    """With failsafe; afterwards the master leads by its lease again, in the same epoch."""
    async with elected_group(tmp_path / "group", etcd) as group:
        before = (await group.settled()).leader
        etcd.kill()
        killed_at = trio.current_time()
        await group.acknowledges_for(DEAD_FOR_S)
        etcd.launch()
        view = await group.settled()
        pause_s = group.longest_pause_s(killed_at, trio.current_time())
        print(f"etcd dead for {DEAD_FOR_S:g} s: at most {pause_s:.2f} s without a PUT_OK")
    assert view.leader == before
    assert len(view.history) == 1


@pytest.mark.soak
async def test_without_failsafe_puts_stop_before_the_lease_is_over(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """They go on by themselves once etcd is back."""
    async with elected_group(tmp_path / "group", etcd, failsafe=False) as group:
        await group.settled()
        etcd.kill()
        await stops_until_etcd_is_back(group, DEAD_FOR_S, [etcd])


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[EtcdServer]]:
    """Run an etcd of three members; skip the test where there is no binary."""
    with start_cluster(preferred_kind(), tmp_path / "etcd") as servers:
        print(servers[0].version(), "three members")
        yield servers


async def leader_among(group: ElectedGroup) -> EtcdServer:
    """Return the member that leads etcd."""
    while True:
        answers = await group.store.health(KEYS.base)
        for server, answer in zip(group.etcd, answers, strict=True):
            if isinstance(answer, EtcdHealth) and answer.leader_id == answer.member_id:
                return server
        await trio.sleep(0.1)  # etcd elects one


@pytest.mark.soak
async def test_puts_go_on_while_etcd_elects_another_leader(
    tmp_path: Path, members: list[EtcdServer]
) -> None:
    """No epoch ends by that; and the nodes reach the others, for a switchover in its absence."""
    async with elected_group(tmp_path / "group", *members) as group:
        pauses_s = []
        for _ in range(KILLS):
            before = (await group.settled()).leader
            leader, began_at = await leader_among(group), trio.current_time()
            leader.kill()
            await group.acknowledges_for(2 * TTL_S)
            pauses_s.append(group.longest_pause_s(began_at, trio.current_time()))
            assert (await group.settled()).leader == before
            await group.switch_over()
            leader.launch()
        view = await group.settled()
        print(f"{KILLS} times etcd's leader killed: at most {max(pauses_s):.2f} s without a PUT_OK")
    assert len(view.history) == 1 + KILLS


@pytest.mark.soak
async def test_puts_go_on_without_etcds_majority(tmp_path: Path, members: list[EtcdServer]) -> None:
    """With failsafe; afterwards the master leads by its lease again, in the same epoch."""
    async with elected_group(tmp_path / "group", *members) as group:
        before = (await group.settled()).leader
        dead = await kill_majority(group)
        killed_at = trio.current_time()
        await group.acknowledges_for(10 * TTL_S)
        for server in dead:
            server.launch()
        view = await group.settled()
        pause_s = group.longest_pause_s(killed_at, trio.current_time())
        print(f"no majority for {10 * TTL_S} s: at most {pause_s:.2f} s without a PUT_OK")
    assert view.leader == before
    assert len(view.history) == 1


@pytest.mark.soak
async def test_without_failsafe_puts_stop_without_etcds_majority(
    tmp_path: Path, members: list[EtcdServer]
) -> None:
    """They go on by themselves once the majority is back."""
    async with elected_group(tmp_path / "group", *members, failsafe=False) as group:
        await group.settled()
        dead = await kill_majority(group)
        await stops_until_etcd_is_back(group, 10 * TTL_S, dead)


async def kill_majority(group: ElectedGroup) -> list[EtcdServer]:
    """Kill the member that leads etcd, and another one; return both."""
    leader = await leader_among(group)
    other = next(each for each in group.etcd if each is not leader)
    for server in (leader, other):
        server.kill()
    return [leader, other]


async def stops_until_etcd_is_back(
    group: ElectedGroup, seconds: float, dead: list[EtcdServer]
) -> None:
    """Wait; start what is dead of etcd; puts have stopped by the deadline, and go on now."""
    dead_at = trio.current_time()
    # Each renewal that was answered was sent before.
    deadline = dead_at + TTL_S - margin_s(TTL_S)
    await trio.sleep(seconds)
    back_at = trio.current_time()
    for server in dead:
        server.launch()
    await group.acknowledged_after(back_at)
    late = [each for each in group.times if each.sent_at > deadline and each.known_at < back_at]
    assert late == [], "sent after the deadline, and PUT_OK without etcd"
    last_at = max(each.known_at for each in group.times if each.known_at < back_at)
    print(
        f"etcd dead for {seconds:g} s: the last PUT_OK after {last_at - dead_at:.2f} s, the next"
        f" {group.last_ok - back_at:.2f} s after etcd was started"
    )
