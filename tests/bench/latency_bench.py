"""One producer's put, compared with a bare trio ping-pong of the same sizes, between processes."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
from pathlib import Path

import trio

from hastore.status import PutMessageStatus
from hastore_scenarios.worlds.process.child_process import child_environment
from tests.bench.nodes import master_here, message, scratch, with_slave
from tests.support.bench.bound import Bound, Row

PAIRS = 7
ROUNDS = 3_000
PING_SIZE = 1_229  # about a record of 1 KiB and its frame's header
PONG_SIZE = 8  # a report

BOUND = Bound(
    key="latency",
    work="SYNC_MASTER put, 1 producer, p50",
    text="≤ 2 × bare trio ping-pong",
    limit=2.0,
)
SPIN_BOUND = Bound(
    key="latency-spin",
    work="the same, both nodes with spin_us = 100",
    text="≤ 1.4 × bare trio ping-pong",
    limit=1.4,
)


async def bench_latencies(directory: Path) -> list[Row]:
    """Measure p50 in microseconds, without and with spin."""
    return [
        await bench_latency(directory, BOUND, spin_us=0),
        await bench_latency(directory, SPIN_BOUND, spin_us=100),
    ]


async def bench_latency(directory: Path, bound: Bound, *, spin_us: int) -> Row:
    """Measure p50 in microseconds."""
    with scratch(directory, bound.key) as base:
        async with (
            master_here(base / "m", spin_us=spin_us) as master,
            with_slave(master, base / "s", spin_us=spin_us),
            ping_pong() as ping,
        ):
            each = message()

            async def put() -> None:
                result = await master.put(each)
                assert result.status is PutMessageStatus.PUT_OK, result.status

            await p50_us(put, 500)
            pairs = [(await p50_us(put), await p50_us(ping)) for _ in range(PAIRS)]
    return Row.of_pairs(bound, pairs, "µs", note="1.2 KiB one way, 8 bytes back")


async def p50_us(act, rounds: int = ROUNDS) -> float:
    """Return the median time of ``act`` in µs."""
    now = trio.current_time
    times = []
    for _ in range(rounds):
        began = now()
        await act()
        times.append(now() - began)
    return statistics.median(times) * 1e6


class ping_pong:  # noqa: N801 - used as a function
    """A bare ping to a process that answers; ``async with`` returns the ping function."""

    async def __aenter__(self):
        """Start the other process and connect."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.latency_bench", str(listener.getsockname()[1])],
            env=child_environment(),
        )
        accepted, _ = await trio.to_thread.run_sync(listener.accept)
        listener.close()
        self._sock = trio.socket.from_stdlib_socket(accepted)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytes(PING_SIZE)

        async def ping() -> None:
            await self._sock.send(data)
            await self._sock.recv(PONG_SIZE)

        return ping

    async def __aexit__(self, *_: object) -> None:
        """Close the connection; the other process then ends by itself."""
        self._sock.close()
        self._process.wait()


async def pong(port: int) -> None:
    """Answer each ping with eight bytes."""
    sock = trio.socket.socket()
    await sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        received = 0
        while count := len(await sock.recv(65_536)):
            received += count
            while received >= PING_SIZE:
                received -= PING_SIZE
                await sock.send(bytes(PONG_SIZE))


if __name__ == "__main__":
    trio.run(pong, int(sys.argv[1]))
