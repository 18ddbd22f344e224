"""Real power cuts: nodes on ext4 images that stop writing at a random instant under load.

    put … put … put ─┬─ EXT4_IOC_SHUTDOWN ─ SIGKILL ─ umount ─ mount (journal) ─ start ─ put …
                     └─ half of them after pages of the log's end were written in any order

Each cut is followed by checks against the client's own record of keys, offsets and body checksums:

* the log holds a *prefix* of what was sent since the last start, in the order of sending, each
  message at the offset in its answer;
* under SYNC_FLUSH it holds every PUT_OK message; if the master is a SYNC_MASTER, both disks do.

A seed decides a run: sizes, instants, kinds of cuts.  Processes race, so a seed gives a similar
run, not the same; a failing test's directory keeps the images and all logs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from hastore.env.real import real_env
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore_scenarios.judge.history import EventKind, Operation, Outcome
from hastore_scenarios.judge.log_image import read_records
from hastore_scenarios.story.world import Tally
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.node_process import NodeProcess
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.kept_messages import consume_queue_errors
from tests.support.worlds.checked import checked_world, verified
from tests.support.worlds.loop_disk import LoopDisk, loop_disks

__all__ = ["loop_disks"]

FILE_SIZES = [256 * 1024, 512 * 1024, 1024 * 1024]
BODY_SIZES = [100, 1_000, 4_000, 20_000]
LOAD_S_MAX = 0.35
# The most that one load writes, even on a fast machine: ten loads and their queues fit the disk.
LOAD_SIZE_MAX = 6 * 1024 * 1024
LOAD_OK_MIN = 15

# A node and its disk.
Powered = tuple[ProcessNode, LoopDisk]


class Story:
    """What one seed decides about a run, and the lines to show if the run fails."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.file_size = self.rng.choice(FILE_SIZES)
        self.lines = [f"seed {seed}: files of {self.file_size} bytes"]

    def log(self, text: str) -> None:
        """Record the next step; pytest shows it when the test fails."""
        self.lines.append(text)
        print(f"seed {self.seed}: {text}")

    def load_size(self) -> int:
        """Return the body size of the next load."""
        return self.rng.choice(BODY_SIZES)


async def run_load(load: Tally, size: int, after_s: float) -> None:
    """Let a load run for a time and until some are PUT_OK, or until it has written enough."""
    until_s = trio.current_time() + after_s
    while len(load.operations) * size < LOAD_SIZE_MAX:
        if trio.current_time() > until_s and load.counts.get("PUT_OK", 0) >= LOAD_OK_MIN:
            return
        await trio.sleep(0.002)


async def cut_power(world: ProcessWorld, powered: list[Powered], story: Story) -> None:
    """Cut the power of all these nodes at once, kill their processes, and switch it on again."""
    for node, _ in powered:
        world._check_not_dead(node)
    begun_s = {node.name: world._disturb(node) for node, _ in powered}
    if story.rng.random() < 0.5:
        share = story.rng.choice([0.02, 0.1, 0.5, 0.9])
        story.log(f"about {share:.0%} of the last pages are written at random")
        for _, disk in powered:
            disk.write_back_some(story.rng, last_files(disk), share)
        await trio.sleep(story.rng.choice([0, 0, 0.001, 0.01]))
    for node, _ in powered:
        halt(node)
    for _, disk in story.rng.sample(powered, len(powered)):
        disk.cut_power()
    for node, disk in powered:
        assert isinstance(node.process, NodeProcess)
        code = await node.process.kill()  # it may have ended by itself: its disk is gone
        assert "error: unexpected" not in node.output(), (story.lines, node.output())
        text = f"{node.name}: power cut, its process ended with {code}"
        world._ended(node, EventKind.KILL, text, begun_s[node.name], code)
        disk.power_on()
        story.log(text)


def halt(node: ProcessNode) -> None:
    """Stop a node's process, as a power cut does: it answers nothing after its disk has gone.

    Otherwise an fdatasync that the cut interrupts may return without an error: after its shutdown
    ext4 takes what it could not convert for done (seen: one PUT_OK in some 1,500).
    """
    assert isinstance(node.process, NodeProcess)
    process_id = node.process.process.pid
    os.kill(process_id, signal.SIGSTOP)
    stat = Path(f"/proc/{process_id}/stat")
    while stat.read_text().rpartition(") ")[2][0] not in "TZX":
        pass


def last_files(disk: LoopDisk) -> list[Path]:
    """Return the log's last two files and all files of the consume queues."""
    log = sorted((disk.path / "commitlog").glob("[0-9]*"))[-2:]
    return log + [path for path in (disk.path / "consumequeue").rglob("[0-9]*") if path.is_file()]


class Sent:
    """What the log must hold: messages kept at earlier starts, and those sent since the last."""

    def __init__(self, node: ProcessNode) -> None:
        self.node = node
        self.kept: list[str] = []
        self._seen = 0

    def check(self, world: ProcessWorld, story: Story, *, all_ok: bool) -> None:
        """Compare the log with what was sent since the last check; remember what it holds."""
        assert "no space" not in self.node.output(), (story.lines, "the test's own disk is full")
        operations = world.history.operations[self._seen :]
        self._seen += len(operations)
        sent = [put for put in operations if put.outcome is not Outcome.FAIL]
        offset_of = {}
        found = []
        for record in read_records(real_env().disk, str(self.node.directory)):
            assert record.key is not None
            offset_of[record.key] = record.physic_offset
            found.append(record.key)
        assert found[: len(self.kept)] == self.kept, story.lines
        new = found[len(self.kept) :]
        expected = [put.key for put in sent[: len(new)]]
        assert new == expected, (story.lines, first_difference(new, expected))
        answered = {put.key: put for put in sent if put.status is PutMessageStatus.PUT_OK}
        for key in new:
            if key in answered:
                assert answered[key].physic_offset == offset_of[key], (story.lines, answered[key])
        lost = sorted(
            put.physic_offset or 0 for key, put in answered.items() if key not in offset_of
        )
        story.log(
            f"{len(sent)} sent, {len(answered)} PUT_OK, {len(new)} there, {len(lost)} PUT_OK lost"
        )
        assert not (all_ok and lost), (story.lines, lost[:5])
        self.kept = found


def first_difference(left: list[str], right: list[str]) -> tuple[int, list[str], list[str]]:
    """Return where two lists differ, and what follows there in each."""
    index = next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    return index, left[index : index + 3], right[index : index + 3]


def counted(operations: list[Operation], status: PutMessageStatus) -> int:
    """Return how many puts have a status."""
    return sum(put.status is status for put in operations)


async def cut_a_master(
    directory: Path, make_disk: Callable[..., LoopDisk], flush: FlushDiskType, cuts: int, seed: int
) -> int:
    """Cut a lone master's power repeatedly under load; return the number of PUT_OKs."""
    story = Story(seed)
    disk = make_disk(directory / "a")
    is_sync = flush is FlushDiskType.SYNC_FLUSH
    async with ProcessWorld.open(directory) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=flush,
            mapped_file_size=story.file_size,
            flush_interval_ms=story.rng.choice([10, 50, 500]),
            transient_store_pool_enable=not is_sync and story.rng.random() < 0.3,
        )
        sent = Sent(master)
        for number in range(cuts):
            size, in_flight = story.load_size(), story.rng.choice([16, 32, 64])
            after_s = story.rng.uniform(0.02, LOAD_S_MAX)
            story.log(f"cut {number}: {in_flight} puts of {size} in flight, for {after_s:.3f} s")
            async with world.load(master, size=size, in_flight=in_flight) as load:
                await run_load(load, size, after_s)
                await cut_power(world, [(master, disk)], story)
            await world.restart(master)
            sent.check(world, story, all_ok=is_sync)
        await world.put_many(master, 50, in_flight=16)
        await world.stop(master)
        sent.check(world, story, all_ok=True)
        assert not consume_queue_errors(disk.path), story.lines
        verified(master.directory)
        if is_sync:  # the checker expects every PUT_OK to survive a power cut
            await world.settle()
            verdict = await world.judge()
            assert verdict.ok, (story.lines, "\n".join(map(str, verdict.violations)))
        return counted(world.history.operations, PutMessageStatus.PUT_OK)


async def cut_both(
    directory: Path, make_disk: Callable[..., LoopDisk], cuts: int, seed: int
) -> int:
    """Cut the power of a SYNC_MASTER and its slave, both SYNC_FLUSH, at once; count PUT_OKs."""
    story = Story(seed)
    disks = {name: make_disk(directory / name) for name in "ab"}
    config = {"mapped_file_size": story.file_size, "slave_timeout_ms": 3_000}
    flush = FlushDiskType.SYNC_FLUSH
    async with checked_world(directory) as world:
        master = await world.start_master("a", flush=flush, **config)
        slave = await world.start_slave("b", master=master, flush=flush, **config)
        await world.wait_healthy(slave)
        for number in range(cuts):
            size, in_flight = story.load_size(), story.rng.choice([16, 32, 64])
            after_s = story.rng.uniform(0.02, LOAD_S_MAX)
            story.log(f"cut {number}: {in_flight} puts of {size} in flight, for {after_s:.3f} s")
            async with world.load(master, size=size, in_flight=in_flight) as load:
                await run_load(load, size, after_s)
                await cut_power(world, [(master, disks["a"]), (slave, disks["b"])], story)
            check_both_have(world, [master, slave], story)
            await world.restart(master)
            master_end = (await world.status(master)).max_offset
            await world.restart(slave)
            if (await world.status(slave)).max_offset > master_end:
                await seed_again(world, slave, disks["b"], story)
            await world.wait_healthy(slave)
        return counted(world.history.operations, PutMessageStatus.PUT_OK)


async def seed_again(world: ProcessWorld, slave: ProcessNode, disk: LoopDisk, story: Story) -> None:
    """Check that a slave that is ahead of its master is refused, and start it again without a log.

    A master sends bytes before they are on its own disk, so its slave may be ahead after a cut.
    """
    status = await world.wait_until(
        slave,
        "says that it is ahead",
        lambda s: s.master_link and s.master_link.state == "diverged",
    )
    assert status.master_link is not None
    story.log(f"b is ahead and starts with an empty directory: {status.master_link.reason}")
    await world.kill(slave)
    for path in disk.path.iterdir():
        if path.name != "lost+found":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    await world.restart(slave)


def check_both_have(world: ProcessWorld, nodes: list[ProcessNode], story: Story) -> None:
    """Check that every PUT_OK message is on every disk, before any node has started on it."""
    answered = {
        put.key
        for put in world.history.operations
        if put.status is PutMessageStatus.PUT_OK and put.wait
    }
    for node in nodes:
        assert "no space" not in node.output(), (story.lines, "the test's own disk is full")
        there = {record.key for record in read_records(real_env().disk, str(node.directory))}
        story.log(f"{node.name}: {len(there)} there, {len(answered)} PUT_OK in all")
        assert answered <= there, (story.lines, node.name, sorted(answered - there)[:5])


async def test_three_power_cuts_lose_no_put_ok(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """SYNC_FLUSH, at random instants: every PUT_OK message is there, once."""
    done = await cut_a_master(tmp_path, loop_disks, FlushDiskType.SYNC_FLUSH, 3, seed=1)
    assert done > 50


async def test_power_cuts_under_async_flush_leave_a_prefix(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """The log holds the first messages that were sent, in order."""
    done = await cut_a_master(tmp_path, loop_disks, FlushDiskType.ASYNC_FLUSH, 2, seed=2)
    assert done > 60


async def test_power_cuts_of_both_nodes_lose_no_put_ok(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """P1: with SYNC_MASTER, and SYNC_FLUSH on both, every PUT_OK is on both disks."""
    assert await cut_both(tmp_path, loop_disks, 2, seed=3) > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_030))
async def test_three_hundred_power_cuts_lose_no_put_ok(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk], seed: int
) -> None:
    """30 runs of 10 cuts."""
    await cut_a_master(tmp_path, loop_disks, FlushDiskType.SYNC_FLUSH, 10, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2_000, 2_020))
async def test_a_hundred_power_cuts_under_async_flush_leave_a_prefix(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk], seed: int
) -> None:
    """20 runs of 5 cuts."""
    await cut_a_master(tmp_path, loop_disks, FlushDiskType.ASYNC_FLUSH, 5, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3_000, 3_020))
async def test_a_hundred_power_cuts_of_both_lose_no_put_ok(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk], seed: int
) -> None:
    """20 runs of 5 cuts of both nodes."""
    await cut_both(tmp_path, loop_disks, 5, seed)
