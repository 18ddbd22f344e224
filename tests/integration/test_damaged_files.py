"""Damaged files under whole nodes: refused, repaired, served again.

Everything below the end known to be on disk was acknowledged, so damage there is no torn tail: the
node does not start, names the offset and changes nothing; the replica's bytes repair the log.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hastore.env.real import real_env
from hastore.status import FlushDiskType
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process.child_process import child_environment, hastore_command
from tests.support.waiting import eventually
from tests.support.worlds.checked import checked_world, verified

FILE_SIZE = 256 * 1024
CONFIG = {"mapped_file_size": FILE_SIZE, "max_hash_slot_num": 500, "max_index_num": 2_000}
DAMAGED, MISMATCH = 4, 6


def flip_a_bit(files: list[Path]) -> None:
    """Flip one bit in the middle of a body."""
    with files[-2].open("r+b") as file:
        file.seek(FILE_SIZE // 2)
        byte = file.read(1)[0]
        file.seek(FILE_SIZE // 2)
        file.write(bytes([byte ^ 1]))


def swap(files: list[Path]) -> None:
    """Swap the names of two files."""
    beside = files[-3].with_name("beside")
    files[-3].rename(beside)
    files[-2].rename(files[-3])
    beside.rename(files[-2])


def lose(files: list[Path]) -> None:
    """Remove a file."""
    files[-3].unlink()


def cut_short(files: list[Path]) -> None:
    """Cut off the second half of a file."""
    with files[-2].open("r+b") as file:
        file.truncate(FILE_SIZE // 2)


def bring_an_old_one_back(files: list[Path]) -> None:
    """Replace a file by the valid records of an earlier one."""
    files[-2].write_bytes(files[-4].read_bytes())


def zero(files: list[Path]) -> None:
    """Replace a file by zeros, which a newly allocated one has."""
    files[-2].write_bytes(bytes(FILE_SIZE))


# The damage, and whether the master was stopped before it; else it was killed.
CASES = [
    (flip_a_bit, False),
    (cut_short, False),
    pytest.param(flip_a_bit, True, marks=pytest.mark.soak),
    *(
        pytest.param(damage, False, marks=pytest.mark.soak)
        for damage in (zero, swap, lose, bring_an_old_one_back)
    ),
]


def repair(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `hastore log repair`."""
    return subprocess.run(
        hastore_command("log", "repair", str(directory), *options),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


async def checkpoint_at(directory: Path, offset: int) -> None:
    """Wait until the checkpoint, written once a second, has reached ``offset``.

    Bytes above it may be torn after an unclean stop, so damage there is trimmed.
    """
    disk = real_env().disk
    await eventually(
        lambda: StoreCheckpoint.open(disk, str(directory)).flushed_offset >= offset,
        f"a checkpoint at {offset}",
        every_s=0.02,
    )


@pytest.mark.parametrize(
    ("damage", "is_clean"),
    CASES,
    ids=lambda value: getattr(value, "__name__", "stopped" if value else "killed"),
)
async def test_a_damaged_log_is_refused_and_repaired_from_its_replica(
    tmp_path: Path, damage: Callable[[list[Path]], None], is_clean: bool
) -> None:
    """The failed start changes nothing; after the repair every PUT_OK is there."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", flush=FlushDiskType.SYNC_FLUSH, **CONFIG)
        slave = await world.start_slave("b", master=master, direct=True, **CONFIG)
        await world.wait_healthy(slave)
        await world.put_many(master, 1_100)
        await world.wait_healthy(slave)
        await world.stop(slave)
        if is_clean:
            await world.stop(master)
        else:
            await checkpoint_at(master.directory, (await world.status(master)).max_offset)
            await world.kill(master)
        log = master.directory / "commitlog"
        damage([path for path in sorted(log.iterdir()) if path.read_bytes().strip(b"\0")])
        before = {path.name: path.read_bytes() for path in log.iterdir()}
        code = MISMATCH if damage is cut_short else DAMAGED
        with pytest.raises(NodeFailed, match=f"ended with {code} ") as refused:
            await world.restart(master)
        assert "hastore log " in refused.value.output, "the next step is named"
        assert {path.name: path.read_bytes() for path in log.iterdir()} == before
        done = repair(master.directory, "--from-replica", str(slave.directory))
        assert done.returncode == 0, done.stdout + done.stderr
        verified(master.directory)
        await world.restart(master)
        await world.restart(slave)
        await world.wait_healthy(slave)
        await world.put_many(master, 50)
