"""Measures the hastore of the Python that runs it: CASE SECONDS, a script, not a module.

It imports nothing from this repository's tests and uses only names that every version since 0.1.0
has in public.  Prints one line of JSON with the figures.  ``profile`` prints its processes first.

    tasks-N            tasks that await put in the master's process; SYNC_MASTER, one slave
    submit-N           puts in flight through submit
    disk-N, both-N     N tasks, SYNC_FLUSH, with an asynchronous slave; with a synced one
    keys               appends with two keys each, until consumers can read them
    catch-up-SIZE      a fresh slave of a log with bodies of SIZE, until consumers can read it
    tcp                one client, 256 messages in flight
    profile            64 tasks
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import attrs
import trio

import hastore
from hastore import (
    BrokerRole,
    FlushDiskType,
    HAConfig,
    MasterConfig,
    Message,
    PutMessageStatus,
    SlaveConfig,
    StoreConfig,
)

BODY = bytes(range(256)) * 4
KEY = "7F00000100002A9F000000004001F3C8"
COMMAND = Path(sys.executable).parent / "hastore"  # the import name of the CLI has changed
CATCH_UP_SIZE = 256 * 1024 * 1024
KEYED = 40_000
WITHIN_S = 60.0
FREE = ("127.0.0.1", 0)


async def main(case: str, seconds: float, base: Path) -> dict:
    """Measure a case; whatever hangs, no process is left behind."""
    with trio.fail_after(WITHIN_S):
        return await measure(case, seconds, base)


async def measure(case: str, seconds: float, base: Path) -> dict:
    """Measure a case."""
    kind, _, number = case.rpartition("-")
    if kind in {"tasks", "spin"}:
        spin_us = 100 if kind == "spin" else 0
        return await puts(base, seconds, tasks=int(number), spin_us=spin_us)
    if kind == "submit":
        return await puts(base, seconds, in_flight=int(number))
    if kind == "disk":
        return await puts(base, seconds, tasks=int(number), role="ASYNC_MASTER", flush="SYNC_FLUSH")
    if kind == "both":
        flush = "SYNC_FLUSH"
        return await puts(base, seconds, tasks=int(number), flush=flush, slave_flush=flush)
    if kind == "catch-up":
        return await catch_up(base, int(number))
    if case == "keys":
        return await keys(base)
    if case == "tcp":
        return await tcp(base, seconds)
    assert case == "profile", case
    return await puts(base, seconds, tasks=64, shows_pids=True)


async def puts(
    base: Path,
    seconds: float,
    *,
    tasks: int = 0,
    in_flight: int = 0,
    role: str = "SYNC_MASTER",
    flush: str = "ASYNC_FLUSH",
    slave_flush: str = "ASYNC_FLUSH",
    spin_us: int = 0,
    shows_pids: bool = False,
) -> dict:
    """Put from tasks, or keep puts in flight; return rate, latencies and CPU a message.

    A version without spin runs as it is.
    """
    config = master_config(base, role=role, flush=flush)
    if spin_us and hasattr(config.ha, "ha_spin_us"):
        config = attrs.evolve(config, ha=attrs.evolve(config.ha, ha_spin_us=spin_us))
        os.environ["HASTORE_HA_SPIN_US"] = str(spin_us)  # the slave's
    async with hastore.open_master(config) as master:
        with slave_process(base, master.ha_address, slave_flush) as slave:
            while master.status().slave_unavailable_because is not None:
                await trio.sleep(0.01)
            await submitted(master, 0.2, 64)
            if shows_pids:
                print(json.dumps({"master": os.getpid(), "slave": slave.pid}), flush=True)
            pids = {"master": os.getpid(), "slave": slave.pid}
            before = {part: cpu_s(pid) for part, pid in pids.items()}
            if tasks:
                figures = await awaited(master, seconds, tasks)
            else:
                figures = await submitted(master, seconds, in_flight)
            await trio.sleep(0.3)
            return with_cpu(figures, before, pids)


async def awaited(master, seconds: float, tasks: int) -> dict:
    """Let tasks put one message after the other."""
    each = message()
    now = time.perf_counter
    times: list[float] = []
    gc.collect()
    began = now()
    end = began + seconds

    async def produce() -> None:
        before = now()
        while before < end:
            assert (await master.put(each)).status is PutMessageStatus.PUT_OK
            after = now()
            times.append(after - before)
            before = after

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(produce)
    took_s = now() - began
    times.sort()
    return {
        "count": len(times),
        "rate": len(times) / took_s,
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[int(len(times) * 0.99)] * 1e6,
    }


async def submitted(master, seconds: float, in_flight: int) -> dict:
    """Keep puts unanswered."""
    each = message()
    window: deque = deque()
    gc.collect()
    began = time.perf_counter()
    end = began + seconds
    count = 0
    while time.perf_counter() < end:
        for _ in range(64):
            if len(window) >= in_flight:
                oldest = window.popleft()
                if oldest.status is None:
                    await oldest.wait()
                assert oldest.status is PutMessageStatus.PUT_OK
            window.append(master.submit(each))
        count += 64
    for request in window:
        await request.wait()
    return {"count": count, "rate": count / (time.perf_counter() - began)}


async def keys(base: Path) -> dict:
    """Append with the dispatch beside it, as 64 producers would."""
    messages = [
        Message(
            "Bench",
            BODY,
            properties={"UNIQ_KEY": f"7F00000100002A9F{number:016X}", "KEYS": f"order-{number}"},
            queue_id=number % 4,
        )
        for number in range(KEYED)
    ]
    async with hastore.open_master(master_config(base, role="ASYNC_MASTER")) as master:
        gc.collect()
        began = time.perf_counter()
        for first in range(0, KEYED, 64):
            for each in messages[first : first + 64]:
                master.submit(each)
            await trio.lowlevel.checkpoint()
        while master.status().dispatch_behind_bytes:
            await trio.sleep(0.001)
        return {"count": KEYED, "rate": KEYED / (time.perf_counter() - began)}


async def catch_up(base: Path, body_size: int) -> dict:
    """Write a log, then let a fresh slave in another process copy it."""
    config = master_config(base, role="ASYNC_MASTER")
    body = (BODY * (body_size // len(BODY) + 1))[:body_size]
    async with hastore.open_master(config) as master:
        count = 0
        while master.max_offset < CATCH_UP_SIZE:
            for _ in range(64):
                master.submit(Message("Bench", body))
                count += 1
            await trio.sleep(0)
        while master.status().dispatch_behind_bytes:
            await trio.sleep(0.01)
        os.sync()
        host, port = master.ha_address
        arguments = [__file__, "slave", str(base / "s"), host, str(port), str(master.max_offset)]
        done = await trio.run_process([sys.executable, *arguments], capture_stdout=True)
        seconds = json.loads(done.stdout)
        size_gb = master.max_offset / 1e9
        return {"count": count, "rate": size_gb / seconds}


async def copy(path: str, host: str, port: str, end: str) -> float:
    """Be that slave; return the seconds from the first byte to the last readable message."""
    config = SlaveConfig(store=StoreConfig(data_dir=path), master=(host, int(port)), listen=None)
    async with hastore.open_slave(config) as slave:
        while not slave.max_offset:
            await trio.sleep(0)
        began = trio.current_time()
        while slave.max_offset < int(end) or slave.status().dispatch_behind_bytes:
            await trio.sleep(0.002)
        return trio.current_time() - began


async def tcp(base: Path, seconds: float) -> dict:
    """Send from this process to a master process; ``cpu_us`` has all three processes."""
    from hastore.client.producer import Producer

    (base / "m").mkdir()
    with node_process("master", "--data", base / "m", "--ha-listen", "127.0.0.1:0") as master:
        info = await node_info(base / "m")
        host, port = info["ha_address"].rsplit(":", 1)
        with slave_process(base, (host, port), "ASYNC_FLUSH") as slave:
            host, port = info["address"].rsplit(":", 1)
            async with Producer.connect((host, int(port)), request_timeout_s=60.0) as producer:
                each = message()
                while not (await producer.send(each)).ok:
                    await trio.sleep(0.01)
                pids = {"client": os.getpid(), "master": master.pid, "slave": slave.pid}
                await pipelined(producer, each, 0.2)
                before = {part: cpu_s(pid) for part, pid in pids.items()}
                figures = await pipelined(producer, each, seconds)
                await trio.sleep(0.3)
                return with_cpu(figures, before, pids)


async def pipelined(producer, each: Message, seconds: float) -> dict:
    """Keep 256 messages in flight."""
    window: deque = deque()
    gc.collect()
    began = time.perf_counter()
    end = began + seconds
    count = 0
    while time.perf_counter() < end:
        if len(window) >= 256:
            assert (await window.popleft().wait()).ok
        window.append(await producer.submit(each))
        count += 1
    for pending in window:
        assert (await pending.wait()).ok
    return {"count": count, "rate": count / (time.perf_counter() - began)}


def message() -> Message:
    """Return a message of 1 KiB with the one property that every producer sets."""
    return Message("Bench", BODY, properties={"UNIQ_KEY": KEY})


def master_config(base: Path, *, role: str, flush: str = "ASYNC_FLUSH") -> MasterConfig:
    """Return a master's configuration, without a client port."""
    return MasterConfig(
        store=StoreConfig(data_dir=str(base / "m"), flush_disk_type=FlushDiskType(flush)),
        role=BrokerRole(role),
        listen=None,
        ha_listen=FREE,
        ha=HAConfig(slave_timeout_ms=30_000),
    )


@contextlib.contextmanager
def slave_process(base: Path, master: tuple, flush: str):
    """Run a slave while the block runs."""
    address = f"{master[0]}:{master[1]}"
    with node_process(
        "slave", "--master", address, "--data", base / "s", "--flush", flush
    ) as process:
        yield process


@contextlib.contextmanager
def node_process(*arguments: object):
    """Run a node while the block runs."""
    command = [COMMAND, *arguments, "--listen", "127.0.0.1:0", "--log-format", "json"]
    null = subprocess.DEVNULL
    with subprocess.Popen(list(map(str, command)), stdin=null, stdout=null, stderr=null) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


async def node_info(path: Path) -> dict:
    """Wait for the addresses of a node."""
    while True:
        with contextlib.suppress(OSError, ValueError):
            info = json.loads((path / "node.json").read_bytes())
            if info.get("address"):
                return info
        await trio.sleep(0.01)


def with_cpu(figures: dict, before: dict[str, float], pids: dict[str, int]) -> dict:
    """Add the CPU time a message, of each process and of all."""
    used = {part: cpu_s(pid) - before[part] for part, pid in pids.items()}
    count = figures["count"]
    figures |= {f"cpu_us_{part}": seconds / count * 1e6 for part, seconds in used.items()}
    return {**figures, "cpu_us": sum(used.values()) / count * 1e6}


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, as clock_getcpuclockid(3) does."""
    return time.clock_gettime(~pid << 3 | 2)


if __name__ == "__main__":
    if sys.argv[1] == "slave":
        print(json.dumps(trio.run(copy, *sys.argv[2:])))
    else:
        with tempfile.TemporaryDirectory(prefix="hastore-gain-") as scratch:
            print(json.dumps(trio.run(main, sys.argv[1], float(sys.argv[2]), Path(scratch))))
