"""Members that lack what they acknowledged, and do not know it: processes, a real etcd, load.

A node's directory is an older copy, its tail is damaged, or its file system has lost what was not
synced.  All nodes are killed, and the harmed ones start first: none of them may become master.  One
member is intact, so nothing that was PUT_OK is lost, and all logs are equal at the end.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from hastore.cluster.group_records import GroupView
from hastore.cluster.operations import clear_alarm
from hastore.env.real import real_env
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore_scenarios.judge.log_image import read_records
from tests.integration.elected_group import IDS, KEYS, TTL_S, ElectedGroup, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind

# Returns whether the node may lack something now.
Harm = Callable[[ElectedGroup, int], Awaitable[bool]]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        yield server


# -- harm: all nodes are killed at its end ---------------------------------------------------------


async def _copy(group: ElectedGroup, node_id: int) -> Path:
    kept = group.directory / "copy"
    await trio.to_thread.run_sync(lambda: shutil.copytree(group.data_of(node_id), kept))
    return kept


async def _restore(group: ElectedGroup, node_id: int, kept: Path) -> None:
    """Let the group acknowledge more, kill it, and put the copy in a node's place."""
    await group.settled()
    await group.acknowledges_for(1.0)
    await group.kill(*group.ids)
    shutil.rmtree(group.data_of(node_id))
    kept.rename(group.data_of(node_id))


async def restore_a_stopped_copy(group: ElectedGroup, node_id: int) -> bool:
    """Replace a directory by a copy from an earlier clean stop."""
    group.nodes[node_id].send_signal(signal.SIGTERM)
    await group.nodes[node_id].wait()
    kept = await _copy(group, node_id)
    group.start(node_id)
    await _restore(group, node_id, kept)
    return True


async def restore_a_snapshot(group: ElectedGroup, node_id: int) -> bool:
    """Replace a directory by a copy that was taken while its process ran."""
    group.nodes[node_id].send_signal(signal.SIGSTOP)
    kept = await _copy(group, node_id)
    group.nodes[node_id].send_signal(signal.SIGCONT)
    await _restore(group, node_id, kept)
    return True


async def damage_the_tail(group: ElectedGroup, node_id: int) -> bool:
    """Change a byte of a record with whole records behind it, where a start looks for the end."""
    await group.kill(*group.ids)
    directory = group.data_of(node_id)
    records = list(read_records(real_env().disk, str(directory)))
    flushed = flushed_offset(directory)
    after = [each.physic_offset for each in records if each.physic_offset >= flushed]
    if len(after) > 1:
        change(directory, after[len(after) // 2] + 60)
    return len(after) > 1


async def lose_what_was_not_synced(group: ElectedGroup, node_id: int) -> bool:
    """Zero what the file system did not have on the disk, without a reboot."""
    await group.kill(*group.ids)
    if group.flush == "SYNC_FLUSH":  # the checkpoint may be behind what was synced
        return False
    directory = group.data_of(node_id)
    flushed = flushed_offset(directory)
    lost = any(
        each.physic_offset >= flushed for each in read_records(real_env().disk, str(directory))
    )
    zero_after(directory, flushed)
    return lost


def flushed_offset(directory: Path) -> int:
    """Return up to where a stopped node's log was on its disk."""
    checkpoint = StoreCheckpoint.open(real_env().disk, str(directory))
    try:
        return checkpoint.flushed_offset
    finally:
        checkpoint.close()


def change(directory: Path, offset: int) -> None:
    """Flip a bit of a byte of the log, which has one file."""
    with (directory / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def zero_after(directory: Path, offset: int) -> None:
    """Zero the log from an offset to its end."""
    path = directory / "commitlog" / f"{0:020}"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(offset)
        file.truncate(size)


# -- what holds then -------------------------------------------------------------------------------


async def come_back(group: ElectedGroup, harmed: int, *, lacks_something: bool) -> None:
    """Start the harmed node alone; let it have its time to be elected; then start the others."""
    group.start(harmed)
    await group.view(lambda view: harmed in view.members, "the harmed node is up")
    await trio.sleep(2 * TTL_S)
    view = await group.view(lambda _view: True, "etcd answers")
    assert view.leader is None or not lacks_something, f"elected alone: {view}"
    for node_id in group.ids:
        if node_id != harmed:
            group.start(node_id)
    await group.settled()
    await group.acknowledged_after(trio.current_time())


@pytest.mark.parametrize(
    "harm",
    [restore_a_stopped_copy, restore_a_snapshot, damage_the_tail, lose_what_was_not_synced],
)
async def test_a_harmed_member_is_not_elected(tmp_path: Path, etcd: EtcdServer, harm: Harm) -> None:
    """Each of the histories, once."""
    await harm_members(tmp_path, etcd, harm, times=1, ids=IDS, flush="ASYNC_FLUSH")


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("ids", [(1, 2), IDS, (1, 2, 3, 4, 5)])
@pytest.mark.parametrize(
    "harm",
    [restore_a_stopped_copy, restore_a_snapshot, damage_the_tail, lose_what_was_not_synced],
)
async def test_harmed_members_are_not_elected(
    tmp_path: Path, etcd: EtcdServer, harm: Harm, ids: tuple[int, ...], flush: str
) -> None:
    """20 times each, in groups of 2, 3 and 5 nodes."""
    await harm_members(tmp_path, etcd, harm, times=20, ids=ids, flush=flush)


async def harm_members(
    tmp_path: Path, etcd: EtcdServer, harm: Harm, *, times: int, ids: tuple[int, ...], flush: str
) -> None:
    """Harm one slave at a time; at the end the group checks its logs."""
    async with elected_group(tmp_path / "group", etcd, ids=ids, flush=flush) as group:
        for _ in range(times):
            master_id = await group.master_id()
            harmed = next(node_id for node_id in ids if node_id != master_id)
            lacks_something = await harm(group, harmed)
            await come_back(group, harmed, lacks_something=lacks_something)


async def test_the_longest_log_is_taken_loudly_where_all_members_lost_something(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """No operator is needed to go on, and one has to confirm it."""
    async with elected_group(tmp_path / "group", etcd) as group:
        await group.acknowledges_for(1.0)
        await group.kill(*group.ids)
        last = max(group.acknowledged, key=group.acknowledged.__getitem__)
        for node_id in group.ids:
            zero_after(group.data_of(node_id), group.acknowledged[last])  # all had acknowledged it
            group.start(node_id)
        view = await group.view(lambda view: view.config.unproven_epoch is not None, "an epoch")
        assert view.history[-1].is_proven is False
        del group.acknowledged[last]  # the only one that no log has
        await group.settled()
        await group.acknowledged_after(trio.current_time())
        assert await confirmed(group) is None


async def confirmed(group: ElectedGroup) -> int | None:
    """Confirm the epoch as an operator does; return what is left to confirm."""

    def is_there(view: GroupView) -> bool:
        return view.leader is not None

    change = clear_alarm(KEYS, await group.view(is_there, "a master"))
    assert (await group.store.commit(change.comparisons, change.writes)).succeeded
    return (await group.view(is_there, "a master")).config.unproven_epoch
