"""The benchmarks are valid: the references do the same work, and the counters count."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest

from hastore.env.real import real_env
from hastore.status import BrokerRole, FlushDiskType
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from tests.bench import bare_copy
from tests.bench.append_bench import FILE_NAME, append_us, bare_us
from tests.bench.nodes import BODY, anonymous_mib, master_here
from tests.bench.put_bench import await_rate, log_syncs, submit_rate
from tests.support.bench.bound import Bound, Row
from tests.support.bench.machine import this_machine
from tests.support.env.scripted_disk import ScriptedDisk

LOWER = Bound(key="l", work="w", text="t", limit=2.0)
HIGHER = Bound(key="h", work="w", text="t", limit=0.5, at_least=True)


@pytest.mark.parametrize(
    ("bound", "pairs", "ratio", "holds", "within_twice"),
    [
        (LOWER, [(2, 1), (9, 1), (4, 2)], 2.0, True, True),
        (LOWER, [(3, 1)], 3.0, False, True),
        (LOWER, [(5, 1)], 5.0, False, False),
        (HIGHER, [(1, 2)], 0.5, True, True),
        (HIGHER, [(1, 4)], 0.25, False, True),
        (HIGHER, [(1, 5)], 0.2, False, False),
    ],
)
def test_a_bound_is_checked_against_the_median_of_its_pairs(
    bound: Bound, pairs: list, ratio: float, holds: bool, within_twice: bool
) -> None:
    """A limit may be the most or the least; a miss may be within a factor of two."""
    row = Row.of_pairs(bound, pairs, "unit")
    assert (row.ratio, row.holds, row.within_twice) == (ratio, holds, within_twice)
    json.dumps(row.to_dict())


def test_the_bare_loop_writes_the_same_records_as_the_store(tmp_path: Path) -> None:
    """`log verify` finds both logs intact, with the same number of messages and the same size."""
    for name in ("ours", "bare"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    append_us(tmp_path / "ours", 99)
    bare_us(tmp_path / "bare" / "commitlog" / FILE_NAME, 100)
    disk = real_env().disk
    ours, bare = (
        verify_log(disk, find_log(disk, str(tmp_path / name))) for name in ("ours", "bare")
    )
    assert ours.is_whole, ours.findings
    assert bare.is_whole, bare.findings
    assert ours.messages == bare.messages == 100
    assert ours.max_offset == bare.max_offset
    assert ours.uncovered_messages == bare.uncovered_messages == 0


def test_the_bare_copy_copies_the_log(tmp_path: Path) -> None:
    """The reference's bytes are those of the log, beyond a file's end, too."""
    log_dir, target = tmp_path / "log", tmp_path / "target"
    log_dir.mkdir()
    target.mkdir()
    for index in range(2):
        (log_dir / f"{index:020d}").write_bytes(bytes([index + 1]) * 100_000)
    copy = bare_copy.receive(target, log_dir, 150_000)
    assert copy["bytes"] == 150_000
    copied = b"".join(path.read_bytes() for path in sorted(target.iterdir()))
    assert copied == bytes([1]) * 100_000 + bytes([2]) * 50_000 + bytes(50_000)


async def test_a_producer_alone_costs_a_sync_for_each_put(tmp_path: Path) -> None:
    """The disk under the benchmark counts each of them."""
    disk = ScriptedDisk(real_env().disk)
    env = attrs.evolve(real_env(), disk=disk)
    async with master_here(
        tmp_path, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.SYNC_FLUSH, env=env
    ) as master:
        before = log_syncs(disk)
        for _ in range(5):
            assert await submit_rate(master, 1) > 0
        assert log_syncs(disk) - before == 5
        assert await await_rate(master, 64) > 0
        assert master.max_offset > 69 * len(BODY)


def test_the_machine_is_described(tmp_path: Path) -> None:
    """The line above the table has, among others, CPU, cores, file system and Python."""
    machine = this_machine(tmp_path)
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.file_system in str(machine)
    assert f"{machine.python_round_ns} ns a round of a fixed loop" in str(machine)
    assert anonymous_mib(os.getpid()) > 1
