"""What a point of an axis is: the load, and the closed loop of tasks that produces it.

The centre is 16 tasks in the master's process that await puts of 1 KiB with one key to one queue of
a SYNC_MASTER with one slave, both ASYNC_FLUSH.  Each axis changes one of these.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus

TOPIC = "Bench"
RECORD_EXTRA_SIZE = 205  # of a record beyond its body, here
PERCENTILES = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
SAMPLES_BEYOND_MIN = 3  # fewer messages above a percentile say nothing about it
STRETCH_MAX = 4  # a round may take this many times its seconds, if messages are few
WARM_UP_COUNT = 2_000


@attrs.frozen(kw_only=True)
class Load:
    """One point; ``is_flushed`` means SYNC_FLUSH, on the master or on both."""

    tasks: int = 16
    body_size: int = 1024
    queues: int = 1
    slaves: int = 1
    over_tcp: bool = False
    is_master_flushed: bool = False
    is_slave_flushed: bool = False
    waits_for_slave: bool = True

    @property
    def role(self) -> BrokerRole:
        """The master's role."""
        return BrokerRole.SYNC_MASTER if self.waits_for_slave else BrokerRole.ASYNC_MASTER

    @property
    def flush(self) -> FlushDiskType:
        """How the master flushes."""
        return flush_type(self.is_master_flushed)

    @property
    def slave_flush(self) -> FlushDiskType:
        """How the slaves flush."""
        return flush_type(self.is_slave_flushed)

    @property
    def record_size(self) -> int:
        """The size of a record, and of a bare loop's message."""
        return self.body_size + RECORD_EXTRA_SIZE

    @property
    def file_size(self) -> int:
        """The size of a log file: small where there are many copies of it."""
        return (1024 if self.slaves == 1 else 64) * 1024 * 1024

    def messages(self) -> list[Message]:
        """Return one message for each queue."""
        body = (bytes(range(256)) * (self.body_size // 256 + 1))[: self.body_size]
        return [
            Message(
                TOPIC,
                body,
                properties={"UNIQ_KEY": f"7F00000100002A9F{queue_id:016X}"},
                queue_id=queue_id,
            )
            for queue_id in range(self.queues)
        ]


def flush_type(is_flushed: bool) -> FlushDiskType:
    """Return the type that waits for the disk, or not."""
    return FlushDiskType.SYNC_FLUSH if is_flushed else FlushDiskType.ASYNC_FLUSH


async def closed_loop(
    put: Callable[[], Awaitable[Any]], tasks: int, seconds: float, count_min: int
) -> dict[str, Any]:
    """Let each task put one message after the other; return the count, rate and latencies.

    It takes ``seconds``, and longer until there are ``count_min`` messages, at most STRETCH_MAX
    times as long; each task puts at least once.  ``put`` checks its own result.
    """
    now = time.perf_counter
    times: list[float] = []
    gc.collect()
    began = now()
    end, last = began + seconds, began + seconds * STRETCH_MAX

    async def produce() -> None:
        after = now()
        while True:
            before = after
            await put()
            after = now()
            times.append(after - before)
            if after >= last or (after >= end and len(times) >= count_min):
                return

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(produce)
    took_s = now() - began
    return {"count": len(times), "rate": len(times) / took_s, **percentiles(times)}


def percentiles(times: list[float]) -> dict[str, float | None]:
    """Return the percentiles of some times, in µs; None for one that too few times are above."""
    ordered = sorted(times)
    found: dict[str, float | None] = {}
    for name, share in PERCENTILES.items():
        at = int(len(ordered) * share)
        is_known = len(ordered) - at >= SAMPLES_BEYOND_MIN
        found[name] = ordered[at] * 1e6 if is_known else None
    return found


def check_stored(status: PutMessageStatus | None) -> None:
    """Fail a measurement one of whose puts was not PUT_OK."""
    if status is not PutMessageStatus.PUT_OK:
        raise RuntimeError(f"a put ended as {status}")


def median_of(values: list[float | None]) -> float | None:
    """Return the median of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
