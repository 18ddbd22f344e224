"""Groups of processes under load whose etcd is killed, all of it or some of its members.

``pytest -s`` prints which etcd ran, and for how long puts were not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hastore.concurrency.lease import margin_s
from tests.integration.elected_group import TTL_S, ElectedGroup, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind

# `make test` has the catalog's stories of a silent etcd instead.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]
DEAD_FOR_S = 60.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        print(server.version())
        yield server


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


async def test_without_failsafe_puts_stop_before_the_lease_is_over(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """They go on by themselves once etcd is back."""
    async with elected_group(tmp_path / "group", etcd, failsafe=False) as group:
        await group.settled()
        etcd.kill()
        await stops_until_etcd_is_back(group, [etcd])


async def stops_until_etcd_is_back(group: ElectedGroup, dead: list[EtcdServer]) -> None:
    """Wait; start what is dead of etcd; puts have stopped by the deadline, and go on now."""
    dead_at = trio.current_time()
    # Each renewal that was answered was sent before.
    deadline = dead_at + TTL_S - margin_s(TTL_S)
    await trio.sleep(DEAD_FOR_S)
    back_at = trio.current_time()
    for server in dead:
        server.launch()
    await group.acknowledged_after(back_at)
    late = [each for each in group.times if each.sent_at > deadline and each.known_at < back_at]
    assert late == [], "sent after the deadline, and PUT_OK without etcd"
    last_at = max(each.known_at for each in group.times if each.known_at < back_at)
    print(
        f"etcd dead for {DEAD_FOR_S:g} s: the last PUT_OK after {last_at - dead_at:.2f} s, the next"
        f" {group.last_ok - back_at:.2f} s after etcd was started"
    )
