"""Trace hashes of seeds, as another process computes them."""

import os
import subprocess
import sys


def hashes_elsewhere(seeds, *, groups=False, with_etcd=False, in_process=False):
    """Return the trace hashes of seeds in another process with another hash seed."""
    imported = "group.group_simulation import simulate_group as" if groups else "simulation import"
    how = ", with_etcd=True" * with_etcd + ", in_process=True" * in_process
    code = (
        f"from hastore.sim.{imported} simulate\n"
        f"for seed in {list(seeds)}: print(simulate(seed{how}).trace_hash)"
    )
    env = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout.split()
