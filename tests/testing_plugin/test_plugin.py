"""The plugin in a separate pytest run: found, without warnings, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hastore.testing.import_path import import_path
from tests.patience import PROCESS_WITHIN_S
from tests.support.commands.running import is_alive
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

SUITE = """
import os, signal

def test_a_master(hastore_master):
    assert hastore_master.put("t", b"x").ok
    assert [m.body for m in hastore_master.consume("t")] == [b"x"]

def test_a_cluster(hastore_cluster):
    assert hastore_cluster(slaves=1).master.put("t", b"x").ok

def test_processes_and_a_failure(hastore_processes):
    cluster = hastore_processes(slaves=1)
    for node in cluster.nodes:
        with open("pids", "a") as file:
            print(node.status().process_id, file=file, flush=True)
    cluster.slaves[0].pause()
    END
"""
# As in another project's suite: warnings are errors, and our other plugins are absent.
OPTIONS = ["-q", "-W", "error"]
OPTIONS += [f"-pno:{name}" for name in ("cacheprovider", "trio", "cov", "hypothesispytest")]


def start(place: Path, end: str, *options: str) -> subprocess.Popen[str]:
    """Run pytest on a suite whose last test ends with ``end``."""
    (place / "test_suite.py").write_text(SUITE.replace("END", end))
    (place / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": import_path(str(REPO_ROOT))}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *OPTIONS, "--basetemp", str(place / "t"), *options],
        cwd=place,
        env={name: value for name, value in environment.items() if "PYTEST" not in name},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pids_of(place: Path) -> list[int]:
    """Return the process ids of the nodes that the last test started."""
    return [int(line) for line in (place / "pids").read_text().split()]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="alone"),
        pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.soak),
    ],
)
def test_a_failing_test_leaves_no_node_behind(tmp_path, options):
    """Two tests pass without a warning, one fails, and its frozen processes are gone."""
    done = start(tmp_path, "assert False, 'on purpose'", *options)
    out, _ = done.communicate(timeout=PROCESS_WITHIN_S)
    assert done.returncode == 1, out
    assert "1 failed, 2 passed" in out
    assert "on purpose" in out
    assert "warning" not in out.lower()
    assert not any(is_alive(pid) for pid in pids_of(tmp_path))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 2, id="ctrl-c"),
        pytest.param(signal.SIGKILL, -9, id="kill", marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_run_leaves_no_node_behind(tmp_path, number, code):
    """Pytest gets Ctrl-C in the middle of a test, or is killed."""
    end = f"os.kill(os.getpid(), {int(number)}); cluster.master.put('t', b'')"
    done = start(tmp_path, end, "-k", "processes")
    out, _ = done.communicate(timeout=PROCESS_WITHIN_S)
    assert done.returncode == code, out
    wait_until(lambda: not any(is_alive(pid) for pid in pids_of(tmp_path)))  # not at once


def test_loading_the_plugin_does_not_import_hastore():
    """A run that uses no fixture does not import trio or attrs either."""
    code = (
        "import sys, pytest_hastore.plugin;"
        "found = [m for m in sys.modules if m.split('.')[0] in ('hastore', 'trio', 'attrs')];"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
