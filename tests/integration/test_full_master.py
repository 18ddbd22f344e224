"""A master whose disk is full hands over by itself: processes, a real etcd, small file systems.

The other nodes have room.  Puts are PUT_OK again on another node, nobody is asked, and the full
node goes on as a slave.  It deletes no file that has not expired (``clean_forcibly``), so all logs
are the same at the end.  ``print_recoveries`` says how long puts were not acknowledged: ``pytest
-s``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from hastore.cluster.group_records import GroupView
from hastore.cluster.storage import PAUSE_MIN_S
from hastore_scenarios.worlds.process.child_process import hastore_command
from tests.integration.elected_group import IDS, ElectedGroup, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind
from tests.support.worlds.loop_disk import LoopDisk, loop_disks, small_tmpfs

__all__ = ["loop_disks", "small_tmpfs"]

MIB = 1024 * 1024
AGAIN_WITHIN_S = 15.0
STORE = """
mapped_file_size = "64KiB"
queue_file_size = "20KiB"
index_slots = 1000
index_entries = 4000
clean_interval = "1s"
clean_forcibly = false
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        yield server


def has_room(group: ElectedGroup, master_id: int) -> Callable[[GroupView], bool]:
    """Return whether another member than the master may take over."""
    return lambda view: any(
        member.has_room and member.link is not None
        for node_id, member in view.members.items()
        if node_id != master_id
    )


async def check(group: ElectedGroup, node_id: int) -> str:
    """Return what ``hastore check`` says of a node."""
    client, _ = group.ports[node_id]
    done = await trio.run_process(
        hastore_command("check", f"127.0.0.1:{client.number}"), capture_stdout=True, check=False
    )
    return f"{done.returncode} {done.stdout.decode()}"


async def hand_over(
    group: ElectedGroup, disks: dict[int, LoopDisk], filled_at: dict[int, float]
) -> None:
    """Fill the master's disk, wait for a PUT_OK by another master, and make room again.

    Not within a minute after another disk was filled, since the group asks that rarely.
    """
    full_id = await group.master_id()
    await trio.sleep_until(
        max(filled_at.values(), default=-math.inf) + PAUSE_MIN_S + AGAIN_WITHIN_S
    )
    await group.view(has_room(group, full_id), "another member has room")
    filled_at[full_id] = began = trio.current_time()
    disks[full_id].fill()
    view = await group.view(
        lambda view: view.leader is not None and view.leader.holder.node_id != full_id,
        "another master than the full node",
    )
    assert view.state is not None
    assert full_id not in view.state.ids
    elected_at = trio.current_time()
    await group.acknowledged_after(elected_at)
    took_s = group.last_ok - began
    assert took_s <= AGAIN_WITHIN_S
    group.recoveries[-1] = took_s
    assert re.match(r"2 CRITICAL", await check(group, full_id))
    await trio.sleep(1.0)
    assert group.nodes[full_id].returncode is None, "it goes on as a slave"
    disks[full_id].make_room()


@pytest.mark.parametrize(
    "handovers", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_a_full_master_hands_over_by_itself(  # noqa: PLR0917 - fixtures
    tmp_path: Path,
    etcd: EtcdServer,
    loop_disks: Callable[..., LoopDisk],
    small_tmpfs: Callable[..., LoopDisk],
    kind: str,
    handovers: int,
) -> None:
    """PUT_OK again within 15 s on another node; check is CRITICAL for the full one meanwhile."""
    make = small_tmpfs if kind == "tmpfs" else loop_disks
    directory = tmp_path / "group"
    directory.mkdir()
    disks = {node_id: make(directory / f"n{node_id}", size=128 * MIB) for node_id in IDS}
    filled_at: dict[int, float] = {}
    async with elected_group(directory, etcd, store_settings=STORE, pace_s=0.01) as group:
        for _ in range(handovers):
            await hand_over(group, disks, filled_at)
            await group.settled()
    assert len(group.recoveries) == handovers
