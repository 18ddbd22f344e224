"""A member whose log was repaired without a replica: processes, a real etcd, 64 puts in flight.

A byte of a message flips in a stopped slave, `hastore log repair --yes` fills the message, and the
master is killed as soon as the slave is back.  The slave lacks a message that was PUT_OK, so it may
become master only once it has compared its log; at the end all logs have the same bytes.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hastore.cluster.group_records import GroupView
from hastore.env.real import real_env
from hastore.store.node_identity import read_identity
from hastore_scenarios.judge.log_image import read_records
from hastore_scenarios.worlds.process.child_process import child_environment, hastore_command
from tests.integration.elected_group import IDS, ElectedGroup, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        yield server


def flip_a_byte(directory: Path) -> int:
    """Change a byte of a message in the middle of a stopped node's log; return its offset."""
    records = list(read_records(real_env().disk, str(directory)))
    offset = records[len(records) // 2].physic_offset
    files = {int(file.name): file for file in (directory / "commitlog").iterdir()}
    base = max(start for start in files if start <= offset)
    with files[base].open("r+b") as file:
        file.seek(offset - base + 100)
        byte = file.read(1)[0]
        file.seek(offset - base + 100)
        file.write(bytes([byte ^ 1]))
    return offset


def repair(directory: Path, etcd: EtcdServer) -> subprocess.CompletedProcess[str]:
    """Run `hastore log repair`, without a replica."""
    return subprocess.run(
        hastore_command("log", "repair", str(directory), "--yes", "--etcd", etcd.endpoint),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


async def repair_a_slave(group: ElectedGroup, etcd: EtcdServer, how: signal.Signals) -> int:
    """Stop a slave, damage and repair its log, and start it again; return its id."""
    master_id = await group.master_id()
    slave_id = next(node_id for node_id in IDS if node_id != master_id)
    directory = group.data_of(slave_id)
    group.nodes[slave_id].send_signal(how)
    await group.nodes[slave_id].wait()
    offset = await trio.to_thread.run_sync(flip_a_byte, directory)
    done = await trio.to_thread.run_sync(repair, directory, etcd)
    assert done.returncode == 0, done.stderr
    identity = read_identity(real_env().disk, str(directory))
    assert identity is not None
    assert identity.unverified is not None
    assert identity.unverified.begin <= offset < identity.unverified.end
    group.start(slave_id)
    return slave_id


def is_verified(view: GroupView, node_id: int) -> bool:
    """Return whether a node says that its whole log counts."""
    return node_id in view.members and view.members[node_id].unverified is None


@pytest.mark.parametrize(
    "times", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_a_repaired_member_is_no_master_before_it_has_compared_its_log(
    tmp_path: Path, etcd: EtcdServer, times: int
) -> None:
    """Nothing that was PUT_OK is lost, and the three logs are the same bytes at the end."""
    unverified_masters = []

    async def watch() -> None:
        """Look for a master that says itself that its log is not verified."""
        while True:
            view = await group.view(lambda view: view.leader is not None, "a master")
            assert view.leader is not None
            said = view.members.get(view.leader.holder.node_id)
            if said is not None and said.node == view.leader.holder and said.unverified is not None:
                unverified_masters.append(said)
            await trio.sleep(0.02)

    async with elected_group(tmp_path / "group", etcd) as group, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for number in range(times):
            how = (signal.SIGTERM, signal.SIGKILL)[number % 2]
            slave_id = await repair_a_slave(group, etcd, how)
            await group.view(lambda view, at=slave_id: at in view.members, "the slave is back")
            former = (await group.view(lambda view: view.leader is not None, "a master")).leader
            assert former is not None
            group.nodes[former.holder.node_id].send_signal(signal.SIGKILL)
            await group.nodes[former.holder.node_id].wait()
            await group.acknowledged_after(trio.current_time())
            group.start(former.holder.node_id)
            await group.settled()
            await group.view(lambda view, at=slave_id: is_verified(view, at), "verified")
        nursery.cancel_scope.cancel()
    assert unverified_masters == []
    names = {file.name for file in (group.data_of(1) / "commitlog").iterdir()}
    for name in sorted(names):
        files = [group.data_of(node_id) / "commitlog" / name for node_id in IDS]
        assert len({file.read_bytes() for file in files if file.exists()}) == 1, name
