"""``make bench``: the bounds table of the architecture, measured here, now, in one run.

    python -m tests.bench [--dir DIR] [--json build/bench.json] [--only KEY …]

Each bound is a ratio of two things measured right after each other, in several pairs; the table
shows both medians and the median ratio.  A JSON file gets the same, with the machine's name and
every pair.  It is a report: the exit code is 0 whether the bounds hold or not, and 1 only if
something could not be measured.

    append       CommitLog.append_message in a loop : pack + zlib.crc32 + copy into a map
    submit       master.submit, 64 unanswered, a slave process acknowledging : that append rate
    await        64 tasks of await master.put(), the same : that append rate
    latency      p50 of one task's await master.put() : a bare trio ping-pong of the same sizes
    dispatch     appends with the dispatch beside them : without; also with keys, and the lag
    sync_flush   fdatasync calls : messages, 64 tasks, SYNC_FLUSH (a counting disk around the real)
    catch_up     a slave process copying 768 MiB from a master process : sendfile → recv_into → map
    memory       RssAnon of that master and slave : 120 MiB
    recovery     MessageStore.open after a crash, 3 files of 1 GiB : reading and checking one file

Takes about two minutes; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from tests.bench.append_bench import bench_append
from tests.bench.catch_up_bench import bench_catch_up
from tests.bench.dispatch_bench import bench_dispatch
from tests.bench.latency_bench import bench_latency
from tests.bench.put_bench import bench_puts, bench_sync_flush
from tests.bench.recovery_bench import bench_recovery
from tests.support.bench.bound import Row
from tests.support.bench.machine import this_machine

SCHEMA = "hastore.bench/1"
JSON_FILE = "build/bench.json"

Bench = Callable[[Path], list[Row]]
BENCHES: dict[str, Bench] = {
    "append": lambda directory: [bench_append(directory)],
    "submit await": lambda directory: trio.run(bench_puts, directory),
    "latency": lambda directory: [trio.run(bench_latency, directory)],
    "dispatch dispatch_keys dispatch_lag": lambda directory: trio.run(bench_dispatch, directory),
    "sync_flush": lambda directory: [trio.run(bench_sync_flush, directory)],
    "catch_up memory": lambda directory: trio.run(bench_catch_up, directory),
    "recovery": lambda directory: [bench_recovery(directory)],
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", help="where the logs are written (default: a temporary one)")
    parser.add_argument("--json", default=JSON_FILE, help=f"where the JSON goes ({JSON_FILE})")
    parser.add_argument("--only", nargs="*", default=[], help="the keys of some bounds")
    arguments = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hastore-bench-", dir=arguments.dir) as scratch:
        machine = this_machine(Path(scratch))
        print(machine)
        print(HEAD)
        for keys, bench in BENCHES.items():
            if arguments.only and not set(keys.split()) & set(arguments.only):
                continue
            try:
                measured = bench(Path(scratch))
            except Exception:  # noqa: BLE001 - the other bounds are still worth measuring
                traceback.print_exc()
                failed.append(keys)
                continue
            rows += measured
            for row in measured:
                print(line_of(row), flush=True)
    took_s = time.monotonic() - began
    print(f"{len(rows)} bounds in {took_s:.0f} s; {sum(row.holds for row in rows)} hold")
    document = {
        "schema": SCHEMA,
        "machine": attrs.asdict(machine),
        "took_s": round(took_s, 1),
        "rows": [row.to_dict() for row in rows],
        "failed": failed,
    }
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"also in {path}")
    return 1 if failed else 0


HEAD = (
    f"{'bound':<72} {'measured':>12} {'reference':>12} {'unit':<16} {'ratio':>7}  {'':<12} spread"
)


def line_of(row: Row) -> str:
    """Return one row of the table."""
    verdict = "holds" if row.holds else ("within 2×" if row.within_twice else "MISSED")
    label = f"{row.bound.work}: {row.bound.text}"
    spread = f"{min(row.ratios):.2f}…{max(row.ratios):.2f}"
    number = "{:12,.1f}" if row.ours < 1_000 else "{:12,.0f}"
    lines = [f"{part:<72}" for part in ([label] if len(label) <= 72 else label.rsplit(": ", 1))]
    lines[0] += (
        f" {number.format(row.ours)} {number.format(row.reference)} {row.unit:<16}"
        f" {row.ratio:7.3f}  {verdict:<12} {spread}"
    )
    if row.note:
        lines.append(f"    {row.note}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
