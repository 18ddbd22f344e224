"""Where the CPU time of a put goes, on the master and on the slave, by py-spy.

    python -m tests.bench.profile_puts --spy PATH [--base BASE/.venv/bin/python] [--seconds 8]

64 tasks put 1 KiB to a SYNC_MASTER with one slave (``gain/driver.py profile``).  py-spy samples
both processes; each sample counts for the innermost frame of hastore, trio or the tasks, with
whatever that calls in C and in the kernel.  Shares times CPU time give µs a message.  With
``--base`` another version is profiled, too.  Writes build/profile.json.

py-spy is no dependency: install it somewhere and name it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.bench.gain.__main__ import DRIVER

SCHEMA = "hastore.profile/1"
JSON_FILE = "build/profile.json"
RATE_HZ = 500
LEAD_S = 1.0  # the load goes on this long before and after
NODES = ("master", "slave")

# The first whose pattern occurs in a frame's file name; the order of the table, too.
PARTS = {
    "the tasks that put": r"gain/driver\.py",
    "put: validate, wait, decide": r"hastore/broker/|group_commit|hastore/message\.py",
    "dispatch: read, consume queues, index": (
        r"hastore/dispatch/|hastore/store/(queue/|index/|consume_queue|index_)"
    ),
    "append: encode, checksum, copy": r"hastore/(store|native)/",
    "replication: send, receive, acknowledge": r"hastore/(ha|wire)/",
    "flush": r"hastore/flush/",
    "wake-ups, files, the rest of hastore": r"hastore/",
    "trio: scheduling and polling": r"\b(trio/_core|outcome)/",
}
OTHER = "the rest"
TOTAL = "all"
_FRAME = re.compile(r"\(([^()]*?)(?::\d+)?\)$")


def part_of(stack: str) -> str:
    """Return the part that a stack counts for: that of its innermost known frame."""
    for frame in reversed(stack.split(";")):
        found = _FRAME.search(frame)
        if found is None:
            continue
        for part, pattern in PARTS.items():
            if re.search(pattern, found[1]):
                return part
    return OTHER


def shares(raw: str) -> dict[str, float]:
    """Return each part's share of py-spy's raw output: a stack and a count on each line."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[part_of(stack)] += int(count)
    total = counts.total()
    return {part: count / total for part, count in counts.items()}


def main() -> int:
    """Profile and write."""
    parser = argparse.ArgumentParser(prog="profile_puts", description=__doc__.partition("\n")[0])
    parser.add_argument("--spy", default="py-spy", help="the py-spy to run")
    parser.add_argument("--base", help="the python of another version's venv")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--json", default=JSON_FILE)
    arguments = parser.parse_args()
    pythons = {"before": arguments.base} if arguments.base else {}
    cells: dict[str, dict[str, float]] = {}
    for version, python in {**pythons, "now": sys.executable}.items():
        for node, found in profile(arguments.spy, python, arguments.seconds).items():
            cells[f"{node} {version}"] = found
    columns = sorted(cells)  # both of the master, then both of the slave
    rows = [
        {"part": part, "cpu_us": {column: cells[column].get(part, 0.0) for column in columns}}
        for part in (*PARTS, OTHER, TOTAL)
    ]
    for row in rows:
        print(f"{row['part']:<42}", *(f"{row['cpu_us'][column]:12.2f}" for column in columns))
    document = {"schema": SCHEMA, "columns": columns, "rows": rows}
    Path(arguments.json).parent.mkdir(parents=True, exist_ok=True)
    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def profile(spy: str, python: str, seconds: int) -> dict[str, dict[str, float]]:
    """Return CPU µs a message of each part, by node."""
    command = [python, str(DRIVER), "profile", str(seconds + 2 * LEAD_S)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch) as driver,
    ):
        assert driver.stdout is not None
        pids = json.loads(driver.stdout.readline())
        spies = {
            node: subprocess.Popen(
                [spy, "record", "--pid", str(pids[node]), "--duration", str(seconds),
                 "--rate", str(RATE_HZ), "--format", "raw", "--output", f"{scratch}/{node}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for node in NODES
        }  # fmt: skip
        for process in spies.values():
            process.wait()
        figures = json.loads(driver.stdout.readline())
        found = {}
        for node in NODES:
            cpu_us = figures[f"cpu_us_{node}"]
            parts = shares((Path(scratch) / node).read_text())
            found[node] = {part: share * cpu_us for part, share in parts.items()}
            found[node][TOTAL] = cpu_us
        return found


if __name__ == "__main__":
    sys.exit(main())
