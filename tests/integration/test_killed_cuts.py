"""A slave's process is killed while it cuts its log: it ends at the same bytes.

``tests/store/recovery`` kills the cut of a closed store at each operation; here a real slave finds
by its epochs that it must cut, and connects again after the kill.
"""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.cutting_slave import CuttingSlave, contents, cutting_slave

# The steps of a cut (``hastore.store.recovery.cut``), by the files that they change, in order.
STEPS = [
    "reserve",  # freed for the cut, and allocated again
    "trimmed",
    "description",
    "cut.json",
    "checkpoint",
    "commitlog",
    "consumequeue",
    "index",
    "epochFileCheckpoint",
    "cut.json",
    "reserve",
]
# The kills of `make test`: before there is a cut to finish, and where most of it is left to do.
# tests/store/recovery kills the cut of a closed store before each change, in every run.
FEW = [STEPS.index(step) for step in ("trimmed", "cut.json", "commitlog")]


@pytest.fixture(scope="module")
def slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuttingSlave]:
    """Return the slave, which all tests of a worker share."""
    with cutting_slave(tmp_path_factory.mktemp("cut")) as slave:
        yield slave


def step_of(change: str, directory: Path) -> str:
    """Return the step that a change belongs to."""
    name = change.partition(" ")[2].removeprefix(f"{directory}/")
    return "description" if name.startswith("trimmed/cut-") else name.partition("/")[0]


def uninterrupted(slave: CuttingSlave) -> tuple[dict[str, bytes], list[str], float]:
    """Cut without a kill; return the contents, the step of each change, and how long it took."""
    changes = slave.directory.with_name("changes")
    changes.unlink(missing_ok=True)
    slave.fresh()
    lasted_s = slave.follow(changes=str(changes))
    wanted = contents(slave.directory)
    slave.check(wanted)
    steps = [step_of(change, slave.directory) for change in changes.read_text().splitlines()]
    return wanted, steps, lasted_s


@pytest.mark.parametrize(
    "killed_after",
    [
        pytest.param(FEW, id="some steps"),
        pytest.param(range(len(STEPS)), id="each step", marks=pytest.mark.soak),
    ],
)
def test_a_cut_killed_after_a_step_ends_at_the_same_bytes(
    slave: CuttingSlave, killed_after: Sequence[int]
) -> None:
    """SIGKILL after the last change of a step; the next start goes on, connects and copies."""
    wanted, steps, _ = uninterrupted(slave)
    assert [step for step, _ in itertools.groupby(steps)] == STEPS
    ends = list(itertools.accumulate(len(list(group)) for _, group in itertools.groupby(steps)))
    for step in killed_after:
        slave.fresh()
        assert slave.die(dies_at=ends[step]) == signal.SIGKILL
        slave.follow()
        slave.check(wanted)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_cut_killed_at_any_instant_ends_at_the_same_bytes(slave: CuttingSlave) -> None:
    """200 random instants from the cut's begin on; every third time the next start, too."""
    wanted, _, lasted_s = uninterrupted(slave)
    rng = random.Random(3)
    unfinished = 0
    for _ in range(200):
        slave.fresh()
        assert slave.die(after_s=max(rng.random() * 1.5 * lasted_s, 1e-6)) == signal.SIGALRM
        unfinished += (slave.directory / "cut.json").exists()
        if rng.random() < 1 / 3:
            assert slave.die(after_start_s=rng.uniform(0.2, 1.2)) == signal.SIGALRM
        slave.follow()
        slave.check(wanted)
    assert unfinished
