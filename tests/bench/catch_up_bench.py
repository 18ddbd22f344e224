"""Catch-up of a fresh slave over loopback, against a bare sendfile → recv_into → copy loop.

Both copy the same log files, from one process to another, into fresh allocated files through maps.
Ours is a `hastore master` process and a slave process that measures the time from its first byte to
its last; the bare loop has no frames, no reports, no flush and no trio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.native.in_use import PURE_VARIABLE
from hastore.status import AppendMessageStatus
from hastore.store.commit_log import CommitLog
from hastore_scenarios.worlds.process.child_process import child_environment
from tests.bench.nodes import TOPIC, anonymous_mib, node_process, scratch
from tests.support.bench.bound import Bound, Row

PAIRS = 21  # many: if a hypervisor takes free memory back, fresh pages cost up to ten times more
FILE_SIZE = 256 * 1024 * 1024
LOG_SIZE = 768 * 1024 * 1024
BODY_SIZE = 16 * 1024

CATCH_UP = Bound(
    key="catch_up",
    work="catch-up of a fresh slave, two processes",
    text="≥ 70 % of a bare loop",
    limit=0.70,
    at_least=True,
)
MEMORY_LIMIT_MIB = 120
MEMORY = Bound(
    key="memory",
    work="anonymous memory of a master or slave",
    text=f"≤ {MEMORY_LIMIT_MIB} MiB",
    limit=1.0,
)


@attrs.frozen(kw_only=True)
class Copied:
    """What a receiving process reported; consumers can read all ``readable_s`` after the start."""

    size: int
    seconds: float
    readable_s: float
    rss_anon_mib: float
    cpu_s: float  # of the receiving process, until it is readable; 0 if it does not say

    @property
    def gb_per_s(self) -> float:
        """How fast the bytes were copied."""
        return self.size / self.seconds / 1e9

    @property
    def readable_gb_per_s(self) -> float:
        """How fast they became readable."""
        return self.size / self.readable_s / 1e9


async def bench_catch_up(directory: Path) -> list[Row]:
    """Measure GB a second, and the anonymous memory of both nodes after it."""
    pairs: list[tuple[float, float]] = []
    memory: list[float] = []
    with scratch(directory, "catch-up") as base:
        size = write_log(base / "master")
        async with node_process(
            "master", "master", "--broker-role", "ASYNC_MASTER", "--ha-listen", "127.0.0.1:0",
            path=base / "master",
        ) as master:  # fmt: skip
            assert master.ha_address is not None
            host, port = master.ha_address
            for index in range(PAIRS + 1):
                one: dict[str, Copied] = {}
                for kind in ("ours", "bare") if index % 2 else ("bare", "ours"):
                    os.sync()  # no write-back of the last run during this one
                    with scratch(base, kind) as path:
                        if kind == "ours":
                            one[kind] = run(
                                "tests.bench.slave_process", path, f"{host}:{port}", size
                            )
                        else:
                            logs = base / "master" / "commitlog"
                            one[kind] = run("tests.bench.bare_copy", path, logs, size)
                ours, bare = one["ours"], one["bare"]
                if index:  # the first warms the page cache
                    pairs.append((ours.gb_per_s, bare.gb_per_s))
                memory.append(max(ours.rss_anon_mib, anonymous_mib(master.process.pid)))
    note = f"a log of {size / 2**20:.0f} MiB in files of {FILE_SIZE / 2**20:.0f} MiB"
    best = " : ".join(f"{max(speeds):.1f}" for speeds in zip(*pairs, strict=True))
    return [
        Row.of_pairs(CATCH_UP, pairs, "GB/s", note=f"{note}; the best runs {best}"),
        Row.of_pairs(
            MEMORY,
            [(mib, MEMORY_LIMIT_MIB) for mib in memory],
            "MiB",
            note=f"the larger of both, after {note}",
        ),
    ]


def write_log(path: Path, size: int = LOG_SIZE, body_size: int = BODY_SIZE) -> int:
    """Write the log that is copied; return its end."""
    log = CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path), mapped_file_size=FILE_SIZE),
        store_host=("127.0.0.1", 10911),
        needs_queue_offsets=True,
    )
    queue = log.mapped_file_queue
    each = Message(TOPIC, bytes(range(256)) * (body_size // 256))
    while log.max_offset < size:
        if log.append_message(each).status is AppendMessageStatus.END_OF_FILE:
            wanted = queue.wanted_file_offset()
            queue.offer(queue.create_file(log.max_offset if wanted is None else wanted))
    targets = log.flush_targets()
    for mapped_file, _ in targets:
        mapped_file.disk_file.sync()
    log.mark_flushed(targets)
    end = log.max_offset
    log.close(clean=True)
    return end


def run(module: str, *arguments: object, is_pure: bool = False) -> Copied:
    """Run a receiving process and read the one JSON line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
        env={**child_environment(), **({PURE_VARIABLE: "1"} if is_pure else {})},
    )
    data = json.loads(done.stdout)
    return Copied(
        size=data["bytes"],
        seconds=data["seconds"],
        readable_s=data.get("readable_s", data["seconds"]),
        rss_anon_mib=data["rss_anon_mib"],
        cpu_s=data.get("cpu_s", 0.0),
    )
