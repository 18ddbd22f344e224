"""However a run ends, none of its processes, mounts or namespaces remain."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.janitor import RUN_VARIABLE
from tests.patience import PROCESS_WITHIN_S
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

# A test that leaves a process in a separate session, a mount and a network namespace.
_TEST = """
import os, pathlib, subprocess, sys, tempfile, time

def test_that_is_interrupted():
    here = pathlib.Path(__file__).parent
    sleep = [sys.executable, "-c", "import signal, time; "
        "[signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(flush=True); time.sleep(3600)"]
    child = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    place = here / f"loop-disk-of-{os.getpid()}"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=False)
    name = f"hastore-{os.getpid()}-r"
    named = subprocess.run(["ip", "netns", "add", name], check=False)
    text = f"{child.pid} {int(not mounted.returncode)} {int(not named.returncode)} {name}"
    (here / "half").write_text(text + " " + tempfile.gettempdir())
    (here / "half").rename(here / "ready")
    if BLOCKS:
        time.sleep(3600)
"""


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def _start(directory: Path, *options: str, blocks: bool) -> subprocess.Popen[bytes]:
    """Run pytest with the janitor in a separate process."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_one.py").write_text(f"BLOCKS = {blocks}\n" + _TEST)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", RUN_VARIABLE))}
    environ.pop("MAKELEVEL", None)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.janitor", "-p", "no:cacheprovider"),
            *("--basetemp", str(directory / "base"), *options),
        ],
        cwd=directory,
        env={**environ, "PYTHONPATH": f"{directory}{os.pathsep}{REPO_ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _expect_nothing_left(directory: Path, run: subprocess.Popen[bytes]) -> str:
    """Wait until the run has ended and its leftovers are gone; return its output."""
    output = run.communicate(timeout=PROCESS_WITHIN_S)[0].decode()
    pid, is_mounted, is_named, name, scratch = (directory / "ready").read_text().split()
    wait_until(lambda: not _is_alive(int(pid)))
    if is_mounted == "1":
        wait_until(lambda: str(directory) not in Path("/proc/self/mounts").read_text())
    if is_named == "1":
        wait_until(lambda: not Path("/var/run/netns", name).exists())
    assert Path(scratch).is_relative_to(directory)
    return output


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "workers"])
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL],
)
def test_an_interrupted_run_leaves_nothing(tmp_path, number, options):
    """Its processes, mounts and namespaces are removed."""
    run = _start(tmp_path, *options, blocks=True)
    wait_until(lambda: (tmp_path / "ready").exists() or run.poll() is not None)
    run.send_signal(number)
    output = _expect_nothing_left(tmp_path, run)
    expected = -signal.SIGKILL if number == signal.SIGKILL else pytest.ExitCode.INTERRUPTED
    assert run.returncode == expected, output


def test_leftovers_of_a_test_are_removed_and_reported(tmp_path):
    """The run ends by itself and prints what its tests have left."""
    run = _start(tmp_path, blocks=False)
    output = _expect_nothing_left(tmp_path, run)
    pid = (tmp_path / "ready").read_text().split()[0]
    assert f"left by a test run, and removed: process {pid}: " in output
    assert run.returncode == 0


def test_the_next_run_cleans_up_after_a_killed_janitor(tmp_path):
    """The run and its janitor are killed with SIGKILL, so only a later run can clean up."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    run = _start(first, blocks=True)
    wait_until(lambda: (first / "ready").exists() or run.poll() is not None)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    for pid in map(int, children):
        if b"tests.janitor" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    run.kill()
    run.wait()
    left = int((first / "ready").read_text().split()[0])
    assert _is_alive(left)
    _expect_nothing_left(second, _start(second, blocks=False))
    _expect_nothing_left(first, run)
    shutil.rmtree(second)
