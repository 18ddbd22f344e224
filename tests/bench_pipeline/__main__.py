"""``make bench-pipeline``: how fast logs become tables, measured here, now, in one run.

    python -m tests.bench_pipeline [--dir DIR] [--size MIB] [--json build/bench-pipeline.json]

hastore's store writes two logs, with bodies of 1 KiB and of 100 B.  Each result is a ratio of two
things that are measured alternately, right after each other; the table shows medians.  Speeds are
bytes of the log per second.  A bound that does not hold is only reported: the exit code is 1 only
if something could not be measured.

    decode_table, decode_all   log to Arrow outside Spark : a loop that reads and checks CRCs
    spark                      find the few records with a flipped bit, local[2] : two bare cores
    rows                       the same : with a Python data source that yields tuples
    cores                      local[2] : local[1]

It takes about five minutes, during which nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs

from hastore.errors import ConfigError
from hastore_scenarios.worlds.process.child_process import child_environment
from tests.bench.__main__ import HEAD, line_of
from tests.bench_pipeline.decode_bench import bench_decode
from tests.bench_pipeline.spark_bench import bench_audit, sessions, warm_up
from tests.support.bench.bound import Row
from tests.support.bench.machine import this_machine

SCHEMA = "hastore.bench-pipeline/1"
JSON_FILE = "build/bench-pipeline.json"
BODIES = {"1 KiB": 1024, "100 B": 100}


def main() -> int:
    """Measure, print the table, and write the JSON file; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench-pipeline", description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", help="where the logs are written (default: a temporary one)")
    parser.add_argument("--size", type=int, default=1024, help="MiB of each log (1024)")
    parser.add_argument("--json", default=JSON_FILE, help=f"where the JSON goes ({JSON_FILE})")
    arguments = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    failed = ""
    with tempfile.TemporaryDirectory(prefix="hastore-bench-", dir=arguments.dir) as scratch:
        machine = this_machine(Path(scratch))
        print(machine)
        logs = write_logs(Path(scratch), arguments.size)
        print(HEAD, flush=True)
        for body, store in logs.items():
            rows += shown(bench_decode(store, body))
        try:
            with sessions() as both:
                warm_up(both, Path(scratch))
                for body, store in logs.items():
                    rows += shown(bench_audit(both, store, body))
        except ConfigError as error:
            failed = f"{error}: {error.hint}"
            print(f"nothing of Spark is measured: {failed}")
    took_s = time.monotonic() - began
    print(f"{len(rows)} bounds in {took_s:.0f} s; {sum(row.holds for row in rows)} hold")
    document = {
        "schema": SCHEMA,
        "machine": attrs.asdict(machine),
        "log_mib": arguments.size,
        "took_s": round(took_s, 1),
        "rows": [row.to_dict() for row in rows],
        "failed": failed,
    }
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"also in {path}")
    return 1 if failed else 0


def write_logs(directory: Path, size_mib: int) -> dict[str, Path]:
    """Write both logs at the same time; return their directories by body size."""
    logs = {body: directory / f"b{size}" for body, size in BODIES.items()}
    writers = []
    for body, path in logs.items():
        path.mkdir()
        values = [str(path), str(size_mib << 20), str(BODIES[body])]
        command = [sys.executable, "-m", "tests.bench_pipeline.log_files", *values]
        writers.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
        )
    for body, writer in zip(logs, writers, strict=True):
        count, _ = writer.communicate(timeout=600)
        assert writer.returncode == 0, f"the log with bodies of {body} could not be written"
        print(f"a log of {size_mib} MiB with bodies of {body}: {int(count):,} messages", flush=True)
    os.sync()  # or the kernel writes them during the measurement
    return logs


def shown(rows: list[Row]) -> list[Row]:
    """Print rows as soon as they are measured, and return them."""
    for row in rows:
        print(line_of(row), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
