"""Compares a CRC audit in Spark with perfect cores, one core, and a plain Python data source.

One bit of each file is flipped first, so an audit that does not read or check everything finds too
little.

Two sessions, local[1] and local[2], run all the time, each in its own process.  They work in turn,
so that a slow moment of the machine affects both.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from hastore.pipeline.spark.java_home import find_java_home
from hastore_scenarios.worlds.process.child_process import child_environment
from tests.bench_pipeline.bare_loop import audit_s
from tests.bench_pipeline.log_files import damage, write_log
from tests.support.bench.bound import Bound, Row

ROUNDS = 5
TRIES = 4  # in a row; the fastest counts, because other guests share the machine
SMALL_QUERIES = 100  # the JVM needs many runs to compile everything; a small log suffices
SMALL_LOG_SIZE = 1 << 20
WARM_UPS = 3  # with the log itself
ROW_ROUNDS = 2
ROW_FILES = 1  # the plain source is slow, so it reads only these


@attrs.define(eq=False)
class Session:
    """A process with a Spark session."""

    process: subprocess.Popen[str]

    def run(self, work: str, log: Path, **options: object) -> dict[str, Any]:
        """Send one request, and return the answer."""
        assert self.process.stdin is not None
        document = {"work": work, "log": str(log), **options}
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Read one line of JSON."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the session ended with {self.process.wait(30)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def sessions() -> Iterator[dict[str, Session]]:
    """Start both sessions, and end them with the block."""
    find_java_home()
    started = {
        master: Session(
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench_pipeline.spark_child", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=child_environment(),
            )
        )
        for master in ("local[1]", "local[2]")
    }
    try:
        for session in started.values():
            assert session.answer() == {"ready": True}
        yield started
    finally:
        for session in started.values():
            assert session.process.stdin is not None
            session.process.stdin.close()  # the session ends with its input
        for session in started.values():
            session.process.wait(60)


def warm_up(both: dict[str, Session], scratch: Path) -> None:
    """Run each query in both sessions until the JVM has compiled its code.

    The sessions run side by side, so that the machine is equally busy for both.
    """
    store = scratch / "small"
    store.mkdir()
    write_log(store, SMALL_LOG_SIZE, 1024, file_size=SMALL_LOG_SIZE)

    def run(session: Session) -> None:
        for _ in range(SMALL_QUERIES):
            assert session.run("audit", store)["found"] == damaged
            session.run("count", store)

    damaged = damage(store)
    with ThreadPoolExecutor() as pool:
        list(pool.map(run, both.values()))


def bench_audit(both: dict[str, Session], store: Path, body: str) -> list[Row]:
    """Measure one log, and return its rows of the table."""
    size = sum(file.stat().st_size for file in (store / "commitlog").iterdir())
    damaged = damage(store)
    for _ in range(WARM_UPS):
        for session in both.values():
            assert session.run("audit", store)["found"] == damaged
    rates: dict[str, list[float]] = {"local[1]": [], "local[2]": [], "core": []}
    shares: list[tuple[float, float, float]] = []
    scalings: list[float] = []
    for index in range(ROUNDS):
        scalings.append(both_cores(store))
        for key in list(rates) if index % 2 else reversed(list(rates)):
            if key == "core":
                took_s, decode_s = min(_core_s(store, damaged) for _ in range(TRIES))
            else:
                tries = [both[key].run("audit", store) for _ in range(TRIES)]
                assert all(document["found"] == damaged for document in tries)
                document = min(tries, key=lambda document: document["seconds"])
                took_s = document["seconds"]
                if key == "local[2]":
                    cpu_s = document["python_s"], document["jvm_s"]
            rates[key].append(size / took_s / 1e6)
        shares.append((decode_s, max(cpu_s[0] - decode_s, 0.0), cpu_s[1]))
    plain, narrow = _plain_rates(both["local[2]"], store, rates["local[2]"])
    name = f"CRC audit in Spark, {body}"
    bounds = [
        Bound(key=f"{key}_{body}", work=f"{name}: {work}", text=text, limit=limit, at_least=True)
        for key, work, text, limit in (
            ("spark", "local[2]", "≥ 45 % of two perfect cores", 0.45),
            ("rows", "Arrow", "≥ 5 × a plain Python source", 5.0),
            ("cores", "local[2]", "≥ 1.6 × local[1]", 1.6),
        )
    ]
    perfect = [(two, 2 * core) for two, core in zip(rates["local[2]"], rates["core"], strict=True)]
    cores = list(zip(rates["local[2]"], rates["local[1]"], strict=True))
    narrow_note = (
        "the plain source gives all columns: Spark does not tell which it needs; with one column"
        f" it is {statistics.median(narrow):.1f} × slower than Arrow"
    )
    return [
        Row.of_pairs(bounds[0], perfect, "MB/s", note=_share_note(shares)),
        Row.of_pairs(bounds[1], plain, "MB/s", note=narrow_note),
        Row.of_pairs(
            bounds[2], cores, "MB/s", note=_scaling_note(scalings) + _count_note(both, store, size)
        ),
    ]


def _core_s(store: Path, damaged: list[int]) -> tuple[float, float]:
    """Audit in this process; return seconds and CPU seconds."""
    took_s, cpu_s, found = audit_s(store)
    assert found == damaged
    return took_s, cpu_s


def both_cores(store: Path) -> float:
    """Return how many times the work of one bare process two concurrent ones do."""
    (one,) = _audits(store, 1)
    return 2 * one / max(_audits(store, 2))


def _audits(store: Path, count: int) -> list[float]:
    """Return the seconds of ``count`` bare audits side by side, each in its own process."""
    command = [sys.executable, "-m", "tests.bench_pipeline.bare_loop", str(store)]
    started = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for _ in range(count)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    took_s = []
    for process in started:
        assert process.stdout is not None
        with process:  # waits, and closes the pipes
            took_s.append(float(process.stdout.read()))
    return took_s


def _scaling_note(scalings: list[float]) -> str:
    """Describe how much a second core adds on this machine."""
    low, high = min(scalings), max(scalings)
    return (
        f"two bare processes at once do {statistics.median(scalings):.2f} × the work of one"
        f" ({low:.2f}…{high:.2f}); "
    )


def _count_note(both: dict[str, Session], store: Path, size: int) -> str:
    """Describe the cost of an audit that counts all rows, so that each goes to the JVM."""
    for _ in range(WARM_UPS):
        for session in both.values():
            session.run("count", store)
    pairs = []
    for index in range(ROUNDS):
        took = {
            key: both[key].run("count", store)["seconds"]
            for key in (both if index % 2 else reversed(both))
        }
        pairs.append((size / took["local[2]"] / 1e6, took["local[1]"] / took["local[2]"]))
    rate, ratio = (statistics.median(values) for values in zip(*pairs, strict=True))
    return f"with a row of each message in the JVM {rate:,.0f} MB/s, {ratio:.2f} × local[1]"


def _plain_rates(
    session: Session, store: Path, fast: list[float]
) -> tuple[list[tuple[float, float]], list[float]]:
    """Measure the plain source; return speeds after Arrow's, and the factors with one column."""
    files = sorted((store / "commitlog").iterdir())[:ROW_FILES]
    size = sum(file.stat().st_size for file in files)
    pairs, narrow = [], []
    for index in range(ROW_ROUNDS):
        took = {
            work: session.run(work, store, files=len(files))["seconds"]
            for work in ("rows", "narrow rows")
        }
        pairs.append((fast[index], size / took["rows"] / 1e6))
        narrow.append(fast[index] * 1e6 * took["narrow rows"] / size)
    return pairs, narrow


def _share_note(shares: list[tuple[float, float, float]]) -> str:
    """Describe where the CPU time went."""
    sums = [statistics.median(values) for values in zip(*shares, strict=True)]
    whole = sum(sums)
    decode, transfer, jvm = (100 * value / whole for value in sums)
    return (
        f"per CPU second {decode / 100:.2f} of a core's; of {whole:.1f} s of CPU: decode"
        f" {decode:.0f} %, hand-over to the JVM {transfer:.0f} %, JVM {jvm:.0f} %"
    )
