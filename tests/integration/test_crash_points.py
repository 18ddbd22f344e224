"""Named crash points: a node is killed right before, in the middle of and right after each step.

    append   fsync   roll   checkpoint   truncate   rename   delete   consume queue   index

Each test is a chain of crashes under constant load, in which each start recovers from the crash
before; then an ordinary start follows.  A point that is not reached fails the test.  At the end
every PUT_OK message must be there once, `log verify` must find nothing, and the consume queues must
hold exactly the log's records, which this file checks from the raw bytes.  `make test` has one
instant of each step, `make soak` all of them, and random ones.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import attrs
import pytest
import trio

from hastore.env.real import real_env
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.log_image import read_records
from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.crash_point_disk import AFTER, BEFORE, MIDDLE, CrashPoint, crash_command
from tests.integration.kept_messages import consume_queue_errors
from tests.patience import PROCESS_WITHIN_S
from tests.support.worlds.checked import checked_world, verified

CONFIG = {
    "mapped_file_size": 64 * 1024,
    "flush_interval_ms": 20,
    "mapped_file_size_consume_queue": 20 * 300,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
    "clean_resource_interval_ms": 20,
    "delete_files_interval_ms": 1,
    "flush_consume_queue_interval_ms": 50,
}
DIES_WITHIN_S = PROCESS_WITHIN_S
SIGKILLED = -9

Points = list[CrashPoint]


def points(method: str, pattern: str, whens: Iterable[str], numbers: Iterable[int]) -> Points:
    """Return a point for every combination."""
    return [CrashPoint(method, pattern, when, number) for when in whens for number in numbers]


LOG, QUEUES, INDEX = "*/commitlog/*", "*/consumequeue/*", "*/index/*"
AROUND = (BEFORE, AFTER)
THROUGHOUT = (BEFORE, MIDDLE, AFTER)

UNDER_LOAD: dict[str, Points] = {
    "append and fsync": points("append_message", "*", THROUGHOUT, (150,))
    + points("sync", LOG, AROUND, (25,)),
    "roll and next file": points("_roll", "*", AROUND, (4,))
    + points("create_file", LOG, THROUGHOUT, (2,)),
    "checkpoint and index": points("pwrite", "*/checkpoint", (MIDDLE, AFTER), (2,))
    + points("sync", "*/checkpoint", (AFTER,), (1,))
    + points("pwrite", INDEX, (MIDDLE, AFTER), (9,)),
    "consume queue": points("pwrite", QUEUES, (MIDDLE, AFTER), (17,))
    + points("open_sparse_file", QUEUES, (AFTER,), (6,))
    + points("sync", QUEUES, (AFTER,), (3,)),
}
# For `make test`: one instant of each step, the one that leaves the most behind.
EACH_STEP = {
    "each step": points("append_message", "*", (MIDDLE,), (150,))
    + points("sync", LOG, (BEFORE,), (25,))
    + points("_roll", "*", (BEFORE,), (4,))
    + points("create_file", LOG, (MIDDLE,), (2,))
    + points("pwrite", "*/checkpoint", (MIDDLE,), (2,))
    + points("pwrite", INDEX, (MIDDLE,), (9,))
    + points("pwrite", QUEUES, (MIDDLE,), (17,))
    + points("open_sparse_file", QUEUES, (AFTER,), (6,)),
}
# For the soak: before such a write the disk is as after the one before it.
BEFORE_WRITES = {
    "before writes": points("pwrite", "*/checkpoint", (BEFORE,), (2,))
    + points("sync", "*/checkpoint", (BEFORE,), (1,))
    + points("pwrite", INDEX, (BEFORE,), (9,))
    + points("pwrite", QUEUES, (BEFORE,), (17,))
    + points("open_sparse_file", QUEUES, (BEFORE,), (6,))
    + points("sync", QUEUES, (BEFORE,), (3,)),
}
# For the soak: each point, with the highest number of its call.
REPEATED = {
    ("append_message", "*", THROUGHOUT): 3_000,
    ("sync", LOG, AROUND): 200,
    ("_roll", "*", AROUND): 20,
    ("create_file", LOG, THROUGHOUT): 20,
    ("pwrite", "*/checkpoint", THROUGHOUT): 3,
    ("pwrite", QUEUES, THROUGHOUT): 400,
    ("sync", QUEUES, AROUND): 20,
    ("pwrite", INDEX, THROUGHOUT): 400,
}
SMALL_FILES = points("write_file", "*/abort", (MIDDLE,), (1,)) + points(
    "write_file", "*/node.json", (AFTER,), (1,)
)
RENAMES = points("write_file", "*/abort", THROUGHOUT, (1,)) + points(
    "write_file", "*/node.json", THROUGHOUT, (1,)
)
TRIMS = points("write_file", "*/trimmed/*", (MIDDLE,), (1,)) + points("sync", LOG, AROUND, (1,))
TRUNCATES = (
    points("make_dirs", "*/trimmed", AROUND, (1,))
    + points("write_file", "*/trimmed/*", THROUGHOUT, (1,))
    + points("sync", LOG, AROUND, (1,))
)
EXPIRES = (
    points("remove", LOG, (AFTER,), (1,))
    + points("remove", QUEUES, (AFTER,), (2,))
    + points("remove", INDEX, (BEFORE,), (1,))
)
REMOVES = (
    points("remove", LOG, AROUND, (1, 3))
    + points("remove", QUEUES, AROUND, (2,))
    + points("remove", INDEX, AROUND, (1,))
)


def one_of_each(some: Points, every: Points) -> pytest.MarkDecorator:
    """Run a test with some points, and in the soak with every one of them."""
    return pytest.mark.parametrize(
        "chain",
        [pytest.param(some, id="some"), pytest.param(every, id="every", marks=pytest.mark.soak)],
    )


@contextlib.contextmanager
def dying_at(point: CrashPoint, hit_path: Path) -> Iterator[None]:
    """Make nodes that are started in the block die at a point."""
    hit_path.unlink(missing_ok=True)
    with mock.patch(
        "hastore_scenarios.worlds.process.node_process.hastore_command",
        lambda *arguments: crash_command(point, hit_path, arguments),
    ):
        yield


async def die_at(
    world: ProcessWorld, node: ProcessNode, point: CrashPoint, master: ProcessNode
) -> None:
    """Start a node and load its master until the node dies at the point."""
    hit_path = world.directory / "hit"
    try:
        with dying_at(point, hit_path):
            await world.restart(node)
    except NodeFailed:
        if not hit_path.exists():
            raise
        return
    assert node.process is not None
    begun_s = world._disturb(node)
    code = None
    with trio.move_on_after(DIES_WITHIN_S):
        async with world.load(master, size=700, in_flight=32):
            code = await node.process.process.wait()
    assert hit_path.exists(), f"{point}: not reached (exit {code}); {node.output()}"
    assert code == SIGKILLED, (point, node.output())
    world._ended(node, EventKind.KILL, f"{node.name}: died at {point}", begun_s, code)


@contextlib.asynccontextmanager
async def a_master(directory: Path) -> Iterator[tuple[ProcessWorld, ProcessNode]]:
    """Yield a stopped SYNC_FLUSH master; after the block start, load, stop and check it."""
    async with checked_world(directory) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, **CONFIG
        )
        await world.put_many(master, 20)
        await world.kill(master)
        yield world, master
        await world.restart(master)
        await world.put_many(master, 20)
        await world.stop(master)
        assert not consume_queue_errors(master.directory)
        verified(master.directory)


@pytest.mark.parametrize(
    "name",
    [
        *EACH_STEP,
        *(pytest.param(name, marks=pytest.mark.soak) for name in UNDER_LOAD | BEFORE_WRITES),
    ],
)
async def test_master_killed_at_a_point_under_load_loses_no_put_ok(
    tmp_path: Path, name: str
) -> None:
    """It is killed at each step; before, in and after it in the soak."""
    async with a_master(tmp_path) as (world, master):
        for point in (EACH_STEP | UNDER_LOAD | BEFORE_WRITES)[name]:
            await die_at(world, master, point, master)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
async def test_master_killed_at_random_points_loses_no_put_ok(tmp_path: Path, seed: int) -> None:
    """It is killed 25 times, each time at a random point and a random repetition of it."""
    rng = random.Random(seed)
    async with a_master(tmp_path) as (world, master):
        for _ in range(25):
            method, pattern, whens = rng.choice(list(REPEATED))
            number = rng.randint(1, REPEATED[method, pattern, whens])
            point = CrashPoint(method, pattern, rng.choice(whens), number)
            print(f"seed {seed}: {point}")
            await die_at(world, master, point, master)


@one_of_each(SMALL_FILES, RENAMES)
async def test_start_killed_while_it_replaces_a_small_file_can_be_repeated(
    tmp_path: Path, chain: Points
) -> None:
    """It is killed around the write of `abort` and of `node.json`."""
    async with a_master(tmp_path) as (world, master):
        for point in chain:
            await die_at(world, master, point, master)


@one_of_each(TRIMS, TRUNCATES)
async def test_start_killed_while_it_trims_a_torn_tail_can_be_repeated(
    tmp_path: Path, chain: Points
) -> None:
    """It is killed while it copies the tail, and before and after it cuts it off."""
    torn = CrashPoint("append_message", "*", MIDDLE, 50)
    async with a_master(tmp_path) as (world, master):
        for point in chain:
            await die_at(world, master, torn, master)
            await die_at(world, master, point, master)


@one_of_each(points("remove", LOG, (AFTER,), (1,)), points("remove", LOG, AROUND, (1,)))
async def test_start_killed_while_it_removes_a_file_can_be_repeated(
    tmp_path: Path, chain: Points
) -> None:
    """A start removes a file that was never finished."""
    unfinished = CrashPoint("create_file", LOG, MIDDLE, 2)
    async with a_master(tmp_path) as (world, master):
        for point in chain:
            await die_at(world, master, unfinished, master)
            await die_at(world, master, point, master)


@one_of_each(EXPIRES, REMOVES)
async def test_master_killed_during_expiry_loses_nothing_else(
    tmp_path: Path, chain: Points
) -> None:
    """It is killed around the removal of the first files of log, queues and index."""
    async with ProcessWorld.open(tmp_path) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, **CONFIG
        )
        await world.put_many(master, 300)
        await world.kill(master)
        for point in chain:
            await die_at(world, master, attrs.evolve(point, expires=True), master)
        await world.restart(master)
        await world.put_many(master, 20)
        await world.stop(master)
        files = sorted(int(path.name) for path in (master.directory / "commitlog").iterdir())
        assert files[0] > 0
        assert files == list(range(files[0], files[-1] + 1, CONFIG["mapped_file_size"]))
        there = {each.key for each in read_records(real_env().disk, str(master.directory))}
        lost = [
            put.physic_offset
            for put in world.history.operations
            if put.status is PutMessageStatus.PUT_OK
            and put.physic_offset >= files[0]
            and put.key not in there
        ]
        assert not lost
        assert not consume_queue_errors(master.directory)
        verified(master.directory)


SLAVE_STEPS = {
    "each step": points("pwrite", LOG, (MIDDLE,), (4,)) + points("sync", LOG, (BEFORE,), (7,)),
}
# For the soak.
SLAVE_POINTS = {
    "append and fsync": points("pwrite", LOG, THROUGHOUT, (4,)) + points("sync", LOG, AROUND, (7,)),
    "roll": points("_roll", "*", AROUND, (2,)) + points("create_file", LOG, (MIDDLE,), (1,)),
}


@pytest.mark.parametrize(
    "name", [*SLAVE_STEPS, *(pytest.param(name, marks=pytest.mark.soak) for name in SLAVE_POINTS)]
)
async def test_slave_killed_at_a_point_has_all_that_it_acknowledged(
    tmp_path: Path, name: str
) -> None:
    """A SYNC_FLUSH slave of a SYNC_MASTER dies at each step: no PUT_OK is missing on it."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", **CONFIG)
        slave = await world.start_slave(
            "b", master=master, flush=FlushDiskType.SYNC_FLUSH, direct=True, **CONFIG
        )
        await world.wait_healthy(slave)
        for point in (SLAVE_STEPS | SLAVE_POINTS)[name]:
            await world.kill(slave)
            await die_at(world, slave, point, master)
            await world.restart(slave)
            await world.wait_healthy(slave)
