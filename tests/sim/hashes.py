"""Trace hashes of seeds, as another process computes them."""

import os
import subprocess
import sys


def hashes_elsewhere(seeds):
    """Return the trace hashes of seeds in another process with another hash seed."""
    code = (
        "from hastore.sim.simulation import simulate\n"
        f"for seed in {list(seeds)}: print(simulate(seed).trace_hash)"
    )
    env = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout.split()
