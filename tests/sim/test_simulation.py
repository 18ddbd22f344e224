"""Seeds hold, and replay: in another process, under another hash seed."""

import os
import subprocess
import sys
import threading
import time

import pytest

from hastore.sim.guards import LeakError, leak_guards
from hastore.sim.simulation import simulate

SEEDS = range(12)  # some are of thousands of puts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_holds(seed):
    """Every promise, at every acknowledgement and after each step; then all catch up."""
    result = simulate(seed)
    assert result.ok, f"seed {seed}: {result.violation}\nreplay: hastore sim replay {seed}"
    assert result.virtual_s > 20


def test_a_seed_is_the_same_run_in_another_process():
    """Whatever PYTHONHASHSEED is."""
    seeds = (0, 3, 5)
    code = (
        "from hastore.sim.simulation import simulate\n"
        f"for seed in {seeds}: print(simulate(seed).trace_hash)"
    )
    env = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.split() == [simulate(seed).trace_hash for seed in seeds]


def test_what_asks_the_real_world_is_caught():
    """Time, randomness and threads; afterwards they are as they were."""
    with leak_guards():
        for call in (time.time, lambda: os.urandom(1), threading.Thread(target=print).start):
            with pytest.raises(LeakError):
                call()
    assert time.time() > 0
