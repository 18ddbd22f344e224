"""Child processes: they end with their parent, and only with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hastore_scenarios.worlds.process.child_process import ChildProcess
from tests.support.commands.running import is_alive
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


async def test_a_child_is_waited_for_and_ended(tmp_path: Path) -> None:
    """end() kills a running child, and wait() returns its exit code as often as it is called."""
    child = ChildProcess.start(SLEEP, tmp_path / "out")
    assert child.returncode is None
    with trio.move_on_after(0.05) as waited:
        await child.wait()
    assert waited.cancelled_caught
    await child.end()
    assert await child.wait() == child.returncode == -9
    await child.end()


async def test_a_childs_output_is_kept(tmp_path: Path) -> None:
    """Its stdout and stderr are appended to one file."""
    for word in ("one", "two"):
        code = f"import sys; print('{word}'); print('err', file=sys.stderr)"
        child = ChildProcess.start([sys.executable, "-c", code], tmp_path / "out")
        assert await child.wait() == 0
    assert sorted((tmp_path / "out").read_text().split()) == ["err", "err", "one", "two"]


async def test_a_child_is_started_by_the_main_thread_only(tmp_path: Path) -> None:
    """The kernel ends a child with the thread that forked it, so a worker thread will not do."""
    with pytest.raises(AssertionError, match="docstring"):
        await trio.to_thread.run_sync(lambda: ChildProcess.start(SLEEP, tmp_path / "out"))


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed with SIGKILL and cannot end its child itself."""
    code = (
        "import sys, time, pathlib\n"
        "from hastore_scenarios.worlds.process.child_process import ChildProcess\n"
        f"child = ChildProcess.start({SLEEP!r}, pathlib.Path({str(tmp_path / 'out')!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPO_ROOT
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))
