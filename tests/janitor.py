"""Remove what a test run leaves behind: processes, mounts, network namespaces, cgroups.

::

    pytest (or xdist's controller) ── a pipe that it holds open ──> python -m tests.janitor
       └── workers, nodes, JVMs …: RUN_VARIABLE=PID-START in the environment of each

The janitor waits for the end of the pipe, which closes when pytest exits or dies. Then it kills the
processes of each finished run (its own, and runs that were killed together with their janitor) and
removes everything named after a process that is gone. A run does the same when it starts.

This module is also a pytest plugin: it starts the janitor and makes SIGTERM act like Ctrl-C.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.repository import REPO_ROOT

RUN_VARIABLE = "TEST_RUN_OF_HASTORE"
_CGROUPS = Path("/sys/fs/cgroup/memory")
_ROUNDS_MAX = 200
_PAUSE_S = 0.05
_PR_SET_PDEATHSIG = 1
_JANITOR = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the janitor, and let signals end the run."""
    # A shell starts background jobs with SIGINT ignored, and children inherit that, but Ctrl-C must
    # reach the processes that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    # Fixtures are torn down, and the failures so far are listed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "MAKELEVEL" in os.environ:  # if make is killed, the run ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    clean()
    config.stash[_JANITOR] = _start()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Put temporary files below pytest's own, which it removes after three runs."""
    scratch = session.config._tmp_path_factory.getbasetemp() / "scratch"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait for the janitor, so that nothing is left when this process ends."""
    janitor = config.stash.get(_JANITOR, None)
    if janitor is not None:
        janitor.communicate()


def _start() -> subprocess.Popen[bytes]:
    """Mark this process's children as those of its run, and start a janitor for it."""
    environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    run = os.environ[RUN_VARIABLE] = f"{os.getpid()}-{_start_of(os.getpid())}"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.janitor", run],
        stdin=subprocess.PIPE,  # no other child inherits it: file descriptors are closed on exec
        stdout=subprocess.DEVNULL,
        cwd=REPO_ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for the tests
    )


def clean(over: str = "") -> list[str]:
    """End the processes of finished runs, remove what they left, and return its descriptions.

    ``over`` is a run to count as finished although its pytest still waits for the janitor.
    """
    pid = int(over.partition("-")[0]) if over else None
    return _kill_processes(over) + _remove_the_rest(pid)


def _kill_processes(over: str) -> list[str]:
    """Kill until none is left: a killed process may just have started another one."""
    found: dict[int, str] = {}
    for _ in range(_ROUNDS_MAX):
        left = dict(_orphans(over))
        found |= left
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return [f"process {pid}: {command}" for pid, command in found.items()]


def _orphans(over: str) -> list[tuple[int, str]]:
    """Return the processes of finished runs, with their command lines."""
    mark = f"{RUN_VARIABLE}=".encode()
    orphans = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environment = (directory / "environ").read_bytes().split(b"\0")
            marks = [each for each in environment if each.startswith(mark)]
            if not marks:
                continue
            run = marks[0].removeprefix(mark).decode()
            pid, _, start = run.partition("-")
            if run == over or _start_of(int(pid)) != start:
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                orphans.append((int(directory.name), command.strip()))
        except (OSError, ValueError):
            continue  # it has ended, or belongs to another user
    return orphans


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(") ")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _remove_the_rest(over: int | None) -> list[str]:
    """Remove mounts, namespaces and cgroups that are named after a process that is gone."""
    from hastore_scenarios.story.world import ScenarioFailed
    from hastore_scenarios.worlds.netns.network import is_gone
    from hastore_scenarios.worlds.netns.network import remove_leftovers as remove_namespaces
    from tests.support.worlds.loop_disk import remove_leftovers as remove_mounts

    found = [f"mount {path}" for path in remove_mounts(over)]
    with contextlib.suppress(ScenarioFailed):  # a machine without `ip` has none
        found += [f"network namespace {name}" for name in remove_namespaces(over)]
    for path in _CGROUPS.glob("hastore-[0-9]*"):
        pid = path.name.split("-")[1]
        if pid == str(over) or is_gone(pid):
            with contextlib.suppress(OSError):
                path.rmdir()
                found.append(f"cgroup {path}")
    return found


def main() -> None:
    """Wait for the end of standard input, then clean."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for left in clean(sys.argv[1]):
        print(f"left by a test run, and removed: {left}", file=sys.stderr)


if __name__ == "__main__":
    main()
