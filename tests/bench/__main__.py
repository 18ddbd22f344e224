"""``make bench``: the bounds of the architecture, and the axes around them, measured here and now.

    python -m tests.bench [--only NAME …] [--dir DIR] [--json build/bench.json]

Without ``--only`` it measures everything.  A NAME is that of a bound, of an axis, or ``bounds``,
which is all bounds.

A bound is a ratio of two things measured right after each other, in several pairs; the table
shows both medians and the median ratio.

    append       CommitLog.append_message in a loop : pack + zlib.crc32 + copy into a map
    submit       master.submit, 64 unanswered, a slave process acknowledging : that append rate
    await        64 tasks of await master.put(), the same : that append rate
    latency      p50 of one task's await master.put() : a bare trio ping-pong of the same sizes,
                 without spin and with
    dispatch     appends with the dispatch beside them : without; also with keys, and the lag
    sync_flush   fdatasync calls : messages, 64 tasks, SYNC_FLUSH (a counting disk around the real)
    catch_up     a slave process copying 768 MiB from a master process : sendfile → recv_into → map
    autoswitch_* puts and catch-up of a replica group of two : those of a classic pair
    tls*         puts and catch-up of a pair with mutual TLS : those of a plain pair
    memory       RssAnon of that master and slave : 120 MiB
    recovery     MessageStore.open after a crash, 3 files of 1 GiB : reading and checking one file

An axis (``tests.bench.axes``) changes one thing about one load; at each point the extension, pure
Python and a bare loop of the same system calls are measured in turn.

    producers    1 to 256 tasks in the master's process
    tcp          1 to 256 tasks in a client's process
    flush        SYNC_FLUSH, on the master and on both
    readable     catch-up of a fresh slave, until consumers can read all of it
    slaves       1 to 20
    queues       1 to 10,000
    bodies       100 B to 4 MiB
    keys         0 to 2 a message, appends with the dispatch beside them
    idle         CPU and anonymous memory of nodes that nobody uses

After the axes comes how the cost grows over slaves, queues and bodies.  A JSON file gets all of it,
with the machine's name and every pair.  It is a report: the exit code is 0 whether the bounds hold
or not, and 1 if something could not be measured, which is named; the rest is measured all the same.

Nothing else should run meanwhile.
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
from tests.bench.autoswitch_bench import bench_autoswitch
from tests.bench.axes.axis import Axis, Measure
from tests.bench.axes.growth import growth
from tests.bench.axes.idle_axis import idle_axis
from tests.bench.axes.keys_axis import keys_axis
from tests.bench.axes.measured import Point, Scale, head_of, lines_of
from tests.bench.axes.put_axes import put_axes
from tests.bench.axes.readable_axis import readable_axis
from tests.bench.catch_up_bench import bench_catch_up
from tests.bench.dispatch_bench import bench_dispatch
from tests.bench.latency_bench import bench_latencies
from tests.bench.nodes import scratch
from tests.bench.put_bench import bench_puts, bench_sync_flush
from tests.bench.recovery_bench import bench_recovery
from tests.bench.tls_bench import bench_tls
from tests.support.bench.bound import Row
from tests.support.bench.machine import this_machine

SCHEMA = "hastore.bench/1"
JSON_FILE = "build/bench.json"

Bench = Callable[[Path], list[Row]]
BENCHES: dict[str, Bench] = {
    "append": lambda directory: [bench_append(directory)],
    "submit await": lambda directory: trio.run(bench_puts, directory),
    "latency": lambda directory: trio.run(bench_latencies, directory),
    "dispatch dispatch_keys dispatch_lag": lambda directory: trio.run(bench_dispatch, directory),
    "sync_flush": lambda directory: [trio.run(bench_sync_flush, directory)],
    "autoswitch_submit autoswitch_await autoswitch_catch_up autoswitch_catch_up_cpu": (
        lambda directory: trio.run(bench_autoswitch, directory)
    ),
    "tls tls_catch_up": lambda directory: trio.run(bench_tls, directory),
    "catch_up memory": lambda directory: trio.run(bench_catch_up, directory),
    "recovery": lambda directory: [bench_recovery(directory)],
}


ALL_BOUNDS = "bounds"


def axes() -> list[Axis]:
    """Return all axes, in the order in which they are measured."""
    return [*put_axes(), readable_axis(), keys_axis(), idle_axis()]


def names() -> list[str]:
    """Return what ``--only`` takes."""
    bounds = " ".join(BENCHES).split()
    return list(dict.fromkeys([ALL_BOUNDS, *bounds, *(axis.key for axis in axes())]))


def main(argv: list[str] | None = None, scale: Scale = Scale()) -> int:  # noqa: B008 - frozen
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", help="where the logs are written (default: a temporary one)")
    parser.add_argument("--json", default=JSON_FILE, help=f"where the JSON goes ({JSON_FILE})")
    parser.add_argument("--only", nargs="*", default=[], help="bounds and axes, or: bounds")
    arguments = parser.parse_args(argv)
    only = {name for text in arguments.only for name in text.replace(",", " ").split()}
    if unknown := only.difference(names()):
        parser.error(f"no such name: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hastore-bench-", dir=arguments.dir) as place:
        machine = this_machine(Path(place))
        print(machine)
        report = Report(only or set(names()), Path(place), scale)
        report.measure_bounds()
        report.measure_axes()
        report.print_growth()
    took_s = time.monotonic() - began
    print(f"measured in {took_s:.0f} s")
    document = {
        "schema": SCHEMA,
        "machine": attrs.asdict(machine),
        "took_s": round(took_s, 1),
        **report.to_dict(),
    }
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"also in {path}")
    for name in report.failed:
        print(f"could not be measured: {name}")
    return 1 if report.failed else 0


@attrs.define(eq=False)
class Report:
    """What was measured so far; each part is printed as soon as it is there."""

    only: set[str]
    directory: Path
    scale: Scale
    rows: list[Row] = attrs.field(factory=list, init=False)
    points: dict[str, list[Point]] = attrs.field(factory=dict, init=False)
    failed: list[str] = attrs.field(factory=list, init=False)

    def measure_bounds(self) -> None:
        """Measure the bounds that were asked for."""
        wanted = {
            keys: bench
            for keys, bench in BENCHES.items()
            if self.only & {ALL_BOUNDS, *keys.split()}
        }
        if wanted:
            print(HEAD)
        for keys, bench in wanted.items():
            try:
                measured = bench(self.directory)
            except Exception:  # noqa: BLE001 - the others are still worth measuring
                traceback.print_exc()
                self.failed.append(keys)
                continue
            self.rows += measured
            for row in measured:
                print(line_of(row), flush=True)
        if self.rows:
            print(f"{len(self.rows)} bounds; {sum(row.holds for row in self.rows)} hold")

    def measure_axes(self) -> None:
        """Measure the axes that were asked for."""
        for axis in axes():
            if axis.key in self.only:
                print(f"\n{axis.key}: {axis.title}\n{head_of(axis.figures)}")
                for label, measure in list(axis.parts.items())[: self.scale.points_max]:
                    self._measure_part(axis, label, measure)

    def _measure_part(self, axis: Axis, label: str, measure: Measure) -> None:
        points = self.points.setdefault(axis.key, [])
        try:
            with scratch(self.directory, axis.key) as path:
                measured = trio.run(measure, path, self.scale)
        except Exception:  # noqa: BLE001 - as above
            traceback.print_exc()
            self.failed.append(f"{axis.key}: {label}")
            return
        for point in measured:
            points.append(point)
            print("\n".join(lines_of(point, axis.figures)), flush=True)

    def print_growth(self) -> None:
        """Print how the cost grows, if an axis that grows was measured."""
        if steps := growth(self.points):
            print("\ngrowth")
        for step in steps:
            print(step)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "axes": [
                {
                    "key": axis.key,
                    "title": axis.title,
                    "figures": list(axis.figures),
                    "points": [point.to_dict() for point in self.points[axis.key]],
                }
                for axis in axes()
                if axis.key in self.points
            ],
            "growth": [step.to_dict() for step in growth(self.points)],
            "failed": self.failed,
        }


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
