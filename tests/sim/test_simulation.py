"""Seeds hold, and replay: in another process, under another hash seed."""

import os
import subprocess
import sys
import threading
import time

import pytest

from hastore.sim.faults import KINDS
from hastore.sim.guards import LeakError, leak_guards
from hastore.sim.simulation import simulate

SEEDS = 200
CHUNK = 10  # so that the seeds are spread over the workers


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_hold(first):
    """Every promise, at every acknowledgement and after each step; then all catch up."""
    for seed in range(first, first + CHUNK):
        result = simulate(seed)
        assert result.ok, f"seed {seed}: {result.violation}\nreplay: hastore sim replay {seed}"
        assert result.virtual_s > 20


def test_a_seed_is_the_same_run_in_another_process():
    """Whatever PYTHONHASHSEED is."""
    seeds = (0, 2, 3, 5)
    assert hashes_elsewhere(seeds) == [simulate(seed).trace_hash for seed in seeds]


def hashes_elsewhere(seeds):
    """The trace hashes of seeds in another process under another hash seed."""
    code = (
        "from hastore.sim.simulation import simulate\n"
        f"for seed in {list(seeds)}: print(simulate(seed).trace_hash)"
    )
    env = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout.split()


def test_a_fault_that_is_left_out_leaves_the_others_when_they_were():
    """Each has its own time and its own choices, so a plan can be shrunk."""
    whole = simulate(1)
    left_out = whole.fired[0]
    rest = simulate(1, left_out={left_out})
    assert rest.plan == whole.plan
    assert left_out not in rest.fired
    assert len(rest.fired) > len(whole.fired) / 2


def test_each_kind_of_fault_has_effects():
    """An fsync, a read or room for a file counts only where a node was told that it failed."""
    missing = set(KINDS)
    for seed in range(60):
        result = simulate(seed)
        missing -= {result.plan.faults[number].kind for number in result.fired}
        if not missing:
            return
    pytest.fail(f"none in {seed + 1} seeds: {missing}")


def test_the_trace_has_faults_boots_and_what_nodes_log():
    """With their virtual times, and nothing of the real world."""
    result = simulate(3, keeps_trace=True)
    text = "\n".join(result.lines)
    for part in ("master    boot 1", "fault 0: ", "producer  put 0, ", "logs ha_slave_connected"):
        assert part in text
    assert [entry.at for entry in result.entries] == sorted(entry.at for entry in result.entries)


def test_what_asks_the_real_world_is_caught():
    """Time, randomness and threads; afterwards they are as they were."""
    with leak_guards():
        for call in (time.time, lambda: os.urandom(1), threading.Thread(target=print).start):
            with pytest.raises(LeakError):
                call()
    assert time.time() > 0
