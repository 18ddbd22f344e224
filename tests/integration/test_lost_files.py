"""Files removed under a running process: it ends, and says which; the next start.

``tests/broker/test_lost_files`` has more files and ways, without a process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.fail_stop import fails_stop
from tests.support.lost_files import WAYS, lost
from tests.support.worlds.checked import checked_world

FILE_SIZE = 256 * 1024
WHY = "while this node had it open"


@pytest.mark.parametrize("way", WAYS)
async def test_no_put_is_ok_in_a_log_that_was_removed(tmp_path: Path, way: str) -> None:
    """A SYNC_FLUSH master: not one of the puts after that, and exit code 1."""
    async with ProcessWorld.open(tmp_path) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=FlushDiskType.SYNC_FLUSH,
            mapped_file_size=FILE_SIZE,
        )
        assert (await world.put_many(master, 50)).all_are(PutMessageStatus.PUT_OK)
        with lost(master.directory / "commitlog", way):
            later = await world.put_many(master, 50)
            await fails_stop(world, master, WHY)
        assert "PUT_OK" not in later.counts, later
        assert f"commitlog/{0:020d} " in master.output()


@pytest.mark.parametrize("name", ["consumequeue", "index", "config", "checkpoint"])
async def test_a_node_without_its_derived_files_starts_again(tmp_path: Path, name: str) -> None:
    """They are rebuilt from the log: nothing that was PUT_OK is lost."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, mapped_file_size=FILE_SIZE
        )
        await world.put_many(master, 50)
        path = master.directory / name
        await world.wait_until(master, f"there is {name}", lambda _: path.exists())
        with lost(path, "removed"):
            await fails_stop(world, master, WHY)
        await world.restart(master)
        await world.put_many(master, 50)


async def test_a_slave_whose_log_was_removed_acknowledges_nothing(tmp_path: Path) -> None:
    """A SYNC_FLUSH slave: no put of its SYNC_MASTER is PUT_OK any more."""
    async with ProcessWorld.open(tmp_path) as world:
        master = await world.start_master("a", mapped_file_size=FILE_SIZE)
        slave = await world.start_slave(
            "b",
            master=master,
            flush=FlushDiskType.SYNC_FLUSH,
            direct=True,
            mapped_file_size=FILE_SIZE,
        )
        await world.wait_healthy(slave)
        assert (await world.put_many(master, 50)).all_are(PutMessageStatus.PUT_OK)
        with lost(slave.directory / "commitlog", "removed"):
            later = await world.put_many(master, 50)
            await fails_stop(world, slave, WHY)
        assert "PUT_OK" not in later.counts, later
