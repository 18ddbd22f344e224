"""Puts to a SYNC_MASTER whose slave is another process, and puts that wait for the disk."""

from __future__ import annotations

import gc
from collections import deque
from pathlib import Path

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.env.real import real_env
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from tests.bench.append_bench import append_us
from tests.bench.nodes import IN_FLIGHT, master_here, message, scratch, with_slave
from tests.support.bench.bound import Bound, Row
from tests.support.env.scripted_disk import ScriptedDisk

PAIRS = 5
SUBMITTED = 60_000
AWAITED = 40_000
SYNC_FLUSHED = 10_000

SUBMIT = Bound(
    key="submit",
    work="SYNC_MASTER put, 64 in flight through submit, slave in another process",
    text="≥ 50 % of in-process append",
    limit=0.50,
    at_least=True,
)
AWAIT = Bound(
    key="await",
    work="SYNC_MASTER put, 64 awaiting producer tasks, slave in another process",
    text="≥ 25 % of in-process append",
    limit=0.25,
    at_least=True,
)
FLUSH = Bound(
    key="sync_flush",
    work="SYNC_FLUSH, 64 producers",
    text="fdatasync calls per message ≤ 1/16",
    limit=1 / 16,
)


async def bench_puts(directory: Path) -> list[Row]:
    """Measure messages a second of both ways, beside the append rate."""
    submits, awaits = [], []
    for _ in range(PAIRS):
        with scratch(directory, "append") as path:
            append_rate = 1e6 / append_us(path, SUBMITTED)
        with scratch(directory, "put") as base:
            async with master_here(base / "m") as master, with_slave(master, base / "s"):
                await submit_rate(master, 5_000)
                submits.append((await submit_rate(master, SUBMITTED), append_rate))
                awaits.append((await await_rate(master, AWAITED), append_rate))
    return [
        Row.of_pairs(SUBMIT, submits, "messages/s", note="producer in the master's process"),
        Row.of_pairs(AWAIT, awaits, "messages/s", note="producers in the master's process"),
    ]


async def submit_rate(master: Master, count: int) -> float:
    """Keep 64 puts unanswered, without a task for each; return messages a second."""
    each = message()
    submit = master.submit
    window: deque = deque()
    gc.collect()
    began = trio.current_time()
    for _ in range(count):
        if len(window) >= IN_FLIGHT:
            oldest = window.popleft()
            if oldest.status is None:
                await oldest.wait()
            assert oldest.status is PutMessageStatus.PUT_OK, oldest.status
        window.append(submit(each))
    for request in window:
        assert await request.wait() is PutMessageStatus.PUT_OK
    return count / (trio.current_time() - began)


async def await_rate(master: Master, count: int) -> float:
    """Let 64 tasks put one message after the other; return messages a second."""
    each = message()

    async def produce() -> None:
        for _ in range(count // IN_FLIGHT):
            result = await master.put(each)
            assert result.status is PutMessageStatus.PUT_OK, result.status

    gc.collect()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(produce)
    return count // IN_FLIGHT * IN_FLIGHT / (trio.current_time() - began)


async def bench_sync_flush(directory: Path) -> Row:
    """Count fdatasync calls while 64 producers wait for the disk."""
    disk = ScriptedDisk(real_env().disk)
    env = attrs.evolve(real_env(), disk=disk)
    with scratch(directory, "flush") as path:
        async with master_here(
            path, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, env=env
        ) as master:
            await await_rate(master, IN_FLIGHT)
            before = log_syncs(disk)
            rate = await await_rate(master, SYNC_FLUSHED)
            calls = log_syncs(disk) - before
    messages = SYNC_FLUSHED // IN_FLIGHT * IN_FLIGHT
    return Row.of_pairs(
        FLUSH,
        [(calls, messages)],
        "calls : messages",
        note=f"{rate:,.0f} messages/s",
    )


def log_syncs(disk: ScriptedDisk) -> int:
    """Return how often a file of the log was synced; a checkpoint's syncs cost no put."""
    return sum("/commitlog/" in path for path in disk.syncs)
