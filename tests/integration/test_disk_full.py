"""A full disk: puts are refused cleanly, reads and slaves go on, and new space restores everything.

The disk is a real ext4 of a few MiB, filled up to the last block.  The log's files are allocated as
a whole, so the making of the next one fails.  Consume queues and index are sparse: an ordinary
write fails, and its bytes stay in memory until there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.kept_messages import consume_queue_errors
from tests.support.worlds.checked import checked_world
from tests.support.worlds.loop_disk import LoopDisk, loop_disks

__all__ = ["loop_disks"]

KIB, MIB = 1024, 1024 * 1024
FILE_SIZE = 256 * KIB
CONFIG = {
    "mapped_file_size": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 200,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "flush_consume_queue_interval_ms": 50,
    "create_mapped_file_timeout_ms": 1_000,
    "clean_resource_interval_ms": 3_600_000,
    # Nothing is refused or deleted on a disk that is nearly full: these tests need a full one.
    "disk_space_warning_level_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_max_used_space_ratio": 100,
}
CLEAN_REFUSALS = {"CREATE_MAPPED_FILE_FAILED", "OS_PAGE_CACHE_BUSY", "SERVICE_NOT_AVAILABLE"}


async def puts_succeed_again(world: ProcessWorld, master: ProcessNode) -> None:
    """Wait, under load, until puts succeed."""
    async with world.load(master, in_flight=16) as load:
        await world.wait_until(
            master, "puts succeed again", lambda _: load.counts.get("PUT_OK", 0) > 600
        )


@pytest.mark.parametrize(
    "flush",
    [
        FlushDiskType.SYNC_FLUSH,
        pytest.param(FlushDiskType.ASYNC_FLUSH, marks=pytest.mark.soak),
    ],
)
async def test_puts_are_refused_while_the_disk_is_full_then_accepted(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk], flush: FlushDiskType
) -> None:
    """Before the first refusal the current file is filled; the slaves go on."""
    disk = loop_disks(tmp_path / "a", size=24 * MIB)
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", role=BrokerRole.ASYNC_MASTER, flush=flush, **CONFIG)
        slave = await world.start_slave("b", master=master, **CONFIG)
        await world.wait_healthy(slave)
        await world.put_many(master, 50)
        disk.fill()
        tally = await world.put_many(master, 3_000, in_flight=32)
        assert set(tally.counts) <= {"PUT_OK", *CLEAN_REFUSALS}, str(tally)
        assert tally.counts["PUT_OK"] > 50, str(tally)
        assert sum(tally.counts.get(each, 0) for each in CLEAN_REFUSALS) > 1_000, str(tally)
        await world.wait_healthy(slave)  # it has every stored message
        late = await world.start_slave("c", master=master, **CONFIG)
        await world.wait_healthy(late)
        disk.make_room()
        await puts_succeed_again(world, master)


async def test_a_node_stops_cleanly_and_starts_again_on_a_full_disk(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """It serves what was stored, and accepts puts once there is room."""
    disk = loop_disks(tmp_path / "a", size=24 * MIB)
    config = {**CONFIG, "clean_resource_interval_ms": 200}
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, **config
        )
        await world.put_many(master, 700)
        disk.fill(leave=16 * KIB)  # abort, node.json and a directory's block
        tally = await world.put_many(master, 3_000, in_flight=32)
        assert CLEAN_REFUSALS & set(tally.counts), str(tally)
        await world.stop(master)
        await world.restart(master)
        slave = await world.start_slave("b", master=master, **CONFIG)
        await world.wait_healthy(slave)
        disk.make_room()
        await puts_succeed_again(world, master)


async def test_a_slave_on_a_full_disk_waits_for_room(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """Its master goes on without it; once there is room it catches up by itself."""
    disk = loop_disks(tmp_path / "b", size=24 * MIB)
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", role=BrokerRole.ASYNC_MASTER, **CONFIG)
        slave = await world.start_slave("b", master=master, **CONFIG)
        await world.wait_healthy(slave)
        disk.fill()
        tally = await world.put_many(master, 1_500, in_flight=32)
        assert tally.all_are(PutMessageStatus.PUT_OK), str(tally)
        await world.wait_until(
            slave, "it says why", lambda s: "No space left" in str(s.master_link)
        )
        disk.make_room()
        await world.wait_healthy(slave)


async def test_consume_queues_and_index_wait_for_room_and_lose_nothing(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """Puts go on inside a log file; queues and index follow once there is room."""
    disk = loop_disks(tmp_path / "a", size=40 * MIB)
    config = {**CONFIG, "mapped_file_size": 4 * MIB}
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, **config
        )
        await world.put_many(master, 20)
        disk.fill()
        tally = await world.put_many(master, 1_500, size=500, in_flight=32)
        assert tally.all_are(PutMessageStatus.PUT_OK), str(tally)
        assert consume_queue_errors(master.directory), "there was no room for these units"
        disk.make_room()
        await world.put_many(master, 20)
        await world.stop(master)
        assert not consume_queue_errors(master.directory)
        await world.restart(master)
