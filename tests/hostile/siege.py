"""What hostile peers cost a node and its other clients, measured.

::

    python -m tests.hostile.siege [NAME ...] [--seconds S] [--scale F]

A master and its slave run in processes of their own, the besiegers in another one.  A producer
sends 1 KiB messages one by one, in rounds that alternate between no siege and a siege; one run
compares both latencies and rates, and shows the master's anonymous memory, the longest step of its
event loop (processor time) and how often its slave has connected.  Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import attrs
import trio

from hastore.client.producer import Producer
from hastore.message import Message
from tests.hostile import timed_node
from tests.hostile.besiegers import SIEGES, parsed
from tests.support.certificates import make_certificates
from tests.support.commands.running import environment, node
from tests.support.repository import REPO_ROOT

ROUNDS = 3
SAMPLES_MIN = 20  # of each latency: a machine may be busy
BODY = bytes(1024)
SLAVE = ("--log-format", "json", "--master")


@attrs.frozen(kw_only=True)
class Siege:
    """What one kind of peer cost in one run; latencies in ms, memory in KiB."""

    name: str
    peers: int
    rss_before: int
    rss_peak: int
    p50_before: float
    p50_under: float
    p99_before: float
    p99_under: float
    connect_under: float  # a new client's connect and first answer, the slowest of 20
    puts_ratio: float  # messages a second under siege, as a multiple of those before
    step_before: float  # of the event loop, the longest
    step_under: float
    links: int  # of the slave, in all: 1 is its first
    log_lines: int

    @property
    def p99_ratio(self) -> float:
        """Latency under siege, as a multiple of the latency before."""
        return self.p99_under / self.p99_before

    @property
    def rss_grown(self) -> int:
        """Growth of the anonymous memory, KiB."""
        return self.rss_peak - self.rss_before

    def row(self) -> str:
        """Return a row of the table."""
        return (
            f"| {self.name} | {self.peers} | {self.rss_before / 1024:.1f} | "
            f"{self.rss_peak / 1024:.1f} | {self.p50_before:.2f} | {self.p50_under:.2f} | "
            f"{self.p99_before:.2f} | {self.p99_under:.2f} | {self.p99_ratio:.2f} | "
            f"{self.connect_under:.0f} | {self.puts_ratio:.2f} | {self.step_before:.1f} | "
            f"{self.step_under:.1f} | {self.links} | {self.log_lines} |"
        )


HEAD = (
    "| siege | peers | RssAnon before, MiB | at most | p50 before, ms | under siege |"
    " p99 before, ms | under siege | ratio | new client, ms | rate of puts |"
    " longest step before, ms | under siege | HA links | log lines |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def rss_anon(pid: int) -> int:
    """Return the anonymous memory of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError(pid)


class Besiegers:
    """The other process, which holds a siege until it is ended."""

    def __init__(self, name: str, addresses: list[str], peers: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.besiegers", name, *addresses, str(peers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=REPO_ROOT,
        )

    def wait_ready(self) -> None:
        """Wait until all besiegers are connected."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the besiegers have failed"

    def end(self) -> None:
        """End the siege, and wait for the process."""
        self._process.communicate()


async def latencies(producer: Producer, seconds: float) -> list[float]:
    """Send one message after the other; return how long each took, in ms.

    It takes longer than ``seconds`` where that is too little for percentiles.
    """
    taken: list[float] = []
    end = trio.current_time() + seconds
    while (begun := trio.current_time()) < end or len(taken) < SAMPLES_MIN:
        result = await producer.send(Message("Good", BODY))
        assert result.status.stored
        taken.append((trio.current_time() - begun) * 1000)
    return taken


async def connects(address: tuple[str, int]) -> float:
    """Connect and get an answer, 20 times; return the slowest, in ms."""
    slowest = 0.0
    for _ in range(20):
        begun = trio.current_time()
        async with Producer.connect(address):
            slowest = max(slowest, (trio.current_time() - begun) * 1000)
    return slowest


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


async def prepare(producer: Producer) -> None:
    """Store something for consumers to pull: 8 MB in pieces that alternate between two topics."""
    for _ in range(1_000):
        await producer.submit(Message("Large", bytes(8_000)), queue_id=0)
        await producer.submit(Message("Small", b"x"), queue_id=0)
    await producer.drain()


def longest_step(path: Path, windows: list[tuple[float, float]]) -> float:
    """Return the longest step that ended in one of some times (``timed_node``), in ms."""
    longest = 0.0
    for line in path.read_text().splitlines():
        at, took_ms, _task = line.split(maxsplit=2)
        if any(begin <= float(at) <= end for begin, end in windows):
            longest = max(longest, float(took_ms))
    return longest


async def besiege(
    name: str, running, peers: int, *, slave, steps: Path, seconds: float, rounds: int
):
    """Measure one siege of a running node, which has a slave."""
    address = parsed(running.address)
    pid = running.process.pid
    async with Producer.connect(address) as producer:
        await prepare(producer)
        await latencies(producer, 0.5)
        before, under = [], []
        rss_before = peak = rss_anon(pid)
        connect_under = 0.0
        calm, sieges = [], []  # windows of time
        for _ in range(rounds):
            begun = time.monotonic()
            before += await latencies(producer, seconds)
            calm.append((begun, time.monotonic()))
            besiegers = Besiegers(name, [running.address, running.ha_address], peers)
            await trio.to_thread.run_sync(besiegers.wait_ready)
            begun = time.monotonic()
            try:
                async with trio.open_nursery() as nursery:

                    async def watch() -> None:
                        nonlocal peak
                        while True:
                            peak = max(peak, rss_anon(pid))
                            await trio.sleep(0.05)

                    nursery.start_soon(watch)
                    under += await latencies(producer, seconds)
                    connect_under = max(connect_under, await connects(address))
                    sieges.append((begun, time.monotonic()))
                    nursery.cancel_scope.cancel()
            finally:
                await trio.to_thread.run_sync(besiegers.end)
    log = running.log.read_text()
    lines = sum("refused" in line for line in log.splitlines())
    return Siege(
        name=name,
        peers=peers,
        rss_before=rss_before,
        rss_peak=peak,
        p50_before=statistics.median(before),
        p50_under=statistics.median(under),
        p99_before=p99(before),
        p99_under=p99(under),
        connect_under=connect_under,
        puts_ratio=statistics.mean(before) / statistics.mean(under),
        step_before=longest_step(steps, calm),
        step_under=longest_step(steps, sieges),
        links=slave.log.read_text().count("ha_connected"),
        log_lines=lines,
    )


def measure(
    name: str, directory: Path, *, scale: float = 1.0, seconds: float = 4.0, rounds: int = ROUNDS
) -> Siege:
    """Start a node and measure one siege of it, with a share of its peers."""
    siege = SIEGES[name]
    peers = max(round(siege.peers * scale), 1)
    settings = {f"HASTORE_{name}": value for name, value in siege.settings.items()}
    if siege.has_tls:
        made = make_certificates(directory / "tls", "node")
        files = {"CERT": str(made.cert), "KEY": str(made.key), "MODE": "permissive"}
        settings |= {f"HASTORE_TLS_{name}": value for name, value in files.items()}
    data = directory / name.replace(" ", "-")
    arguments = ("--broker-role", "ASYNC_MASTER", "--log-format", "json")
    steps = directory / "steps"
    settings |= {timed_node.FILE: str(steps)}
    master = node(
        "master", data, *arguments, file_size="64MiB", module=timed_node.__name__, **settings
    )
    with master as running:
        started = node("slave", directory / "slave", *SLAVE, running.ha_address, file_size=None)
        with started as slave:
            slave.wait_for_text("ha_in_step")
            run = partial(besiege, slave=slave, steps=steps, seconds=seconds, rounds=rounds)
            return trio.run(run, name, running, peers)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.hostile.siege")
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(SIEGES))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the peers")
    given = parser.parse_args()
    print(HEAD, flush=True)
    for name in given.names:
        with tempfile.TemporaryDirectory() as directory, contextlib.suppress(KeyboardInterrupt):
            path = Path(directory)
            print(measure(name, path, scale=given.scale, seconds=given.seconds).row(), flush=True)


if __name__ == "__main__":
    main()
