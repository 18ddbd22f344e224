"""TLS on the HA port against plain links: the same puts, and the same catch-up, in turn.

A pair is measured right after the other, in changing order.  A catch-up is bounded by the slave,
which decrypts, checks and appends in one thread: its CPU time and the master's are beside it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from pathlib import Path

from tests.bench.catch_up_bench import Copied, run, write_log
from tests.bench.nodes import cpu_s, master_here, node_process, scratch, tls_flags, with_slave
from tests.bench.put_bench import submit_rate
from tests.support.bench.bound import Bound, Row
from tests.support.certificates import Certificates, make_certificates

PAIRS = 7
SUBMITTED = 30_000
CATCH_UP_PAIRS = 9
LOG_SIZE = 512 * 1024 * 1024
KINDS = ("plain", "tls")

PUTS = Bound(
    key="tls",
    work="SYNC_MASTER put over TLS, 64 in flight, slave in another process",
    text="≥ 70 % of plain links",
    limit=0.70,
    at_least=True,
)
CATCH_UP = Bound(
    key="tls_catch_up",
    work="catch-up of a fresh slave over TLS, two processes",
    text="≥ 40 % of plain links",
    limit=0.40,
    at_least=True,
)


async def bench_tls(directory: Path) -> list[Row]:
    """Measure both kinds of links in turn."""
    with scratch(directory, "certificates") as path:
        tls = make_certificates(path, "bench")
        return [await _puts(directory, tls), await _catch_up(directory, tls)]


def _in_turn(index: int) -> tuple[str, ...]:
    return KINDS if index % 2 else KINDS[::-1]


async def _puts(directory: Path, certificates: Certificates) -> Row:
    pairs = []
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for index in range(PAIRS):
        rates: dict[str, float] = {}
        for kind in _in_turn(index):
            tls = certificates if kind == "tls" else None
            with scratch(directory, kind) as base:
                async with (
                    master_here(base / "m", tls=tls) as master,
                    with_slave(master, base / "s", tls=tls) as slave,
                ):
                    await submit_rate(master, 5_000)
                    before_s = time.process_time() + cpu_s(slave.process.pid)
                    rates[kind] = await submit_rate(master, SUBMITTED)
                    took_s = time.process_time() + cpu_s(slave.process.pid) - before_s
                    spent[kind].append(took_s / SUBMITTED * 1e6)
        pairs.append((rates["tls"], rates["plain"]))
    note = f"producer in the master's process; CPU of both nodes {_medians(spent)} µs a message"
    return Row.of_pairs(PUTS, pairs, "messages/s", note=note)


def _medians(spent: dict[str, list[float]]) -> str:
    """Return what TLS costs, and what plain links do."""
    return " : ".join(f"{statistics.median(spent[kind]):.2f}" for kind in KINDS[::-1])


async def _catch_up(directory: Path, certificates: Certificates) -> Row:
    pairs: list[tuple[float, float]] = []
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with scratch(directory, "tls-catch-up") as base:
        size = write_log(base / "log", LOG_SIZE)
        files = [str(certificates.cert), str(certificates.key), str(certificates.ca)]
        for index in range(CATCH_UP_PAIRS + 1):
            one: dict[str, Copied] = {}
            for kind in _in_turn(index):
                has_tls = kind == "tls"
                flags = ["--broker-role", "ASYNC_MASTER", "--ha-listen", "127.0.0.1:0"]
                if has_tls:
                    flags += [*tls_flags(certificates), "--ha-tls-allowed-names", "*"]
                # One at a time: both serve the same log.
                async with contextlib.AsyncExitStack() as stack:
                    master = await stack.enter_async_context(
                        node_process(kind, "master", *flags, path=base / "log")
                    )
                    assert master.ha_address is not None
                    host, port = master.ha_address
                    os.sync()  # no write-back of the last run during this one
                    before_s = cpu_s(master.process.pid)
                    with scratch(base, "slave") as path:
                        one[kind] = run(
                            "tests.bench.slave_process",
                            path,
                            f"{host}:{port}",
                            size,
                            "-",
                            *(files if has_tls else []),
                        )
                    took_s = cpu_s(master.process.pid) - before_s + one[kind].cpu_s
                    spent[kind].append(took_s / size * 1e9)
            if index:  # the first warms the page cache
                pairs.append((one["tls"].gb_per_s, one["plain"].gb_per_s))
    note = f"a log of {size / 2**20:.0f} MiB; CPU of both nodes {_medians(spent)} s/GB"
    return Row.of_pairs(CATCH_UP, pairs, "GB/s", note=note)
