"""What changed since another version, and what of it is algorithm, extension and interpreter.

    python -m tests.bench.gain --base BASE/.venv/bin/python [--interpreter OTHER/bin/python]
                               [--rounds 5] [--only CASE …] [--json build/gain.json]

Four Pythons run ``driver.py`` in turn, each with the hastore that it imports:

    base           that of --base: another version, in a venv of its own
    pure           this one, without the extension
    extension      this one
    interpreter    this one, in a venv of another Python: only with --interpreter

So pure : base is the algorithm, extension : pure the extension, interpreter : extension the
interpreter.  Ratios are medians of paired rounds.  A report: no goal that is missed fails it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hastore.native.in_use import PURE_VARIABLE
from tests.support.bench.machine import this_machine

SCHEMA = "hastore.gain/1"
JSON_FILE = "build/gain.json"
DRIVER = Path(__file__).with_name("driver.py")
BASE, PURE, EXTENSION, INTERPRETER = "base", "pure", "extension", "interpreter"
SECONDS = 1.0
TIMEOUT_S = 120.0


@attrs.frozen
class Case:
    """A case of the driver; a goal is a ratio to the base, of the extension and of pure Python."""

    key: str
    title: str
    figure: str
    unit: str
    goal: float
    pure_goal: float

    @property
    def is_lower_better(self) -> bool:
        """Whether a goal is at most that ratio: times are, rates are not."""
        return self.figure != "rate"


CASES = (
    Case("tasks-1", "1 task, p50", "p50_us", "µs", 0.75, 0.9),
    Case("spin-1", "1 task, p50, with spin_us = 100 now", "p50_us", "µs", 0.45, 0.45),
    Case("tasks-16", "16 tasks", "rate", "msg/s", 1.45, 1.2),
    Case("tasks-64", "64 tasks", "rate", "msg/s", 1.65, 1.15),
    Case("tasks-64", "64 tasks, p99", "p99_us", "µs", 1.0, 1.0),
    Case("submit-64", "64 in flight through submit", "rate", "msg/s", 1.8, 1.15),
    Case("submit-1024", "1,024 in flight through submit", "rate", "msg/s", 1.35, 1.1),
    Case("keys", "append with dispatch, two keys", "rate", "msg/s", 2.5, 1.3),
    Case("disk-16", "SYNC_FLUSH, async slave, 16 tasks", "rate", "msg/s", 1.5, 1.3),
    Case("disk-64", "SYNC_FLUSH, async slave, 64 tasks", "rate", "msg/s", 1.4, 1.2),
    Case("both-16", "SYNC_FLUSH, both synced, 16 tasks", "rate", "msg/s", 1.6, 1.4),
    Case("both-64", "SYNC_FLUSH, both synced, 64 tasks", "rate", "msg/s", 1.4, 1.2),
    Case("catch-up-1024", "catch-up until readable, 1 KiB", "rate", "GB/s", 2.5, 1.3),
    Case("catch-up-16384", "catch-up until readable, 16 KiB", "rate", "GB/s", 1.0, 1.0),
    Case("tcp", "over TCP, CPU of client, master and slave", "cpu_us", "µs/message", 0.5, 0.75),
)


def main(argv: list[str] | None = None, cases: Sequence[Case] = CASES) -> int:
    """Measure and print."""
    keys = list(dict.fromkeys(case.key for case in cases))
    parser = argparse.ArgumentParser(prog="gain", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", required=True, help="the python of another version's venv")
    parser.add_argument("--interpreter", help="a python of a venv with this version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one measurement")
    parser.add_argument("--only", nargs="*", default=keys, choices=keys, metavar="CASE")
    parser.add_argument("--json", default=JSON_FILE, help=f"where the JSON goes ({JSON_FILE})")
    arguments = parser.parse_args(argv)
    # Absolute, because they run in another directory; not resolved, which would leave the venv.
    pythons = {BASE: str(Path(arguments.base).absolute())}
    pythons |= {PURE: sys.executable, EXTENSION: sys.executable}
    if arguments.interpreter:
        pythons[INTERPRETER] = str(Path(arguments.interpreter).absolute())
    for python in pythons.values():
        for file in (Path(python), Path(python).with_name("hastore")):
            if not file.is_file():
                parser.error(f"no file {file}: name the python of a venv with hastore in it")
    machine = this_machine(Path())
    print(machine)
    versions = {variant: version_of(python, variant) for variant, python in pythons.items()}
    for variant, version in versions.items():
        print(f"{variant:<12} {version}")
    measured, failed = [], []
    for key in arguments.only:
        try:
            rounds = measure(key, pythons, arguments.rounds, arguments.seconds)
        except (subprocess.SubprocessError, ValueError) as error:
            print(f"{key}: {error}", flush=True)
            failed.append(key)
            continue
        for case in cases:
            if case.key == key:
                measured.append(result_of(case, rounds))
                print(line_of(measured[-1]), flush=True)
    document = {
        "schema": SCHEMA,
        "machine": attrs.asdict(machine),
        "variants": versions,
        "cases": measured,
        "failed": failed,
    }
    path = Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"also in {path}")
    return 1 if failed else 0


def measure(
    key: str, pythons: Mapping[str, str], rounds: int, seconds: float
) -> dict[str, list[dict[str, float]]]:
    """Run a case in all Pythons in turn; return the figures of each round."""
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in pythons}
    for number in range(rounds):
        order = list(pythons)
        for variant in reversed(order) if number % 2 else order:
            os.sync()  # no write-back of the last one during this one
            done = run(pythons[variant], variant, str(DRIVER), key, str(seconds))
            found[variant].append(json.loads(done))
    return found


def run(python: str, variant: str, *arguments: str) -> str:
    """Run a Python from nowhere near this repository; return what it prints."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("HASTORE_")
    }
    if variant == PURE:
        environment[PURE_VARIABLE] = "1"
    return subprocess.run(
        [python, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        env=environment,
        cwd=Path(python).parent,
    ).stdout


def version_of(python: str, variant: str) -> str:
    """Return a line about a Python and its hastore."""
    command = Path(python).with_name("hastore")  # a script of that Python
    lines = run(python, variant, str(command), "version").splitlines()
    wanted = ("hastore", "python", "extension")
    return ", ".join(" ".join(line.split()) for line in lines if line.startswith(wanted))


def result_of(case: Case, rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Return the JSON form of a measured case."""
    values = {variant: [each[case.figure] for each in found] for variant, found in rounds.items()}
    ratios = {}
    for variant, found in values.items():
        paired = [ours / base for ours, base in zip(found, values[BASE], strict=True)]
        ratios[variant] = {
            "median": round(statistics.median(paired), 3),
            "min": round(min(paired), 3),
            "max": round(max(paired), 3),
        }
    return {
        **attrs.asdict(case),
        "is_lower_better": case.is_lower_better,
        "values": {
            variant: float(f"{statistics.median(found):.5g}") for variant, found in values.items()
        },
        "ratios": ratios,
        "holds": {
            EXTENSION: reaches(case, ratios[EXTENSION]["median"], case.goal),
            PURE: reaches(case, ratios[PURE]["median"], case.pure_goal),
        },
    }


def reaches(case: Case, ratio: float, goal: float) -> bool:
    """Whether a ratio reaches a goal."""
    return ratio <= goal if case.is_lower_better else ratio >= goal


def line_of(result: Mapping[str, Any]) -> str:
    """Return one row of the table."""
    line = f"{result['title']:<44} {result['values'][BASE]:>10,.6g} {result['unit']:<11}"
    for variant, ratio in result["ratios"].items():
        if variant != BASE:
            spread = f"{ratio['min']:.2f}…{ratio['max']:.2f}"
            missed = "" if result["holds"].get(variant, True) else " missed"
            line += f"  {variant} × {ratio['median']:.2f} ({spread}){missed}"
    return line


if __name__ == "__main__":
    sys.exit(main())
