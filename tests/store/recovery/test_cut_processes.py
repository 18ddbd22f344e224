"""The cut of a store on the real disk, by processes that are killed with SIGKILL."""

import json
import subprocess
import sys

import pytest

from tests.support.repository import REPO_ROOT
from tests.support.store.cutting import closed_store


def run(tmp_path, times):
    """Kill it before each change of the disk, and at so many random instants; return the counts."""
    store = closed_store(3)
    for path, inode in store.disk.inodes.items():
        file = tmp_path / "store" / path.removeprefix("/d/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(inode.seen())
    offset = store.cut_points[20]
    module = "tests.support.store.killed_cuts"
    done = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path), str(offset), "7", str(times)],
        cwd=REPO_ROOT,
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout)


@pytest.mark.soak
def test_cut_killed_at_any_step_and_instant_ends_at_the_same_bytes(tmp_path):
    """Before each change of the disk, and at some random instants.

    ``make test`` kills some steps of it (tests/integration/test_killed_cuts.py), and all of them
    on a simulated disk (test_cut_crashes.py).
    """
    found = run(tmp_path, 400)
    assert found["wrong"] == []
    assert found["changes"] > 25
    assert found["killed"] >= found["changes"]
    assert found["finished"] > 15
