"""Child processes: they end with their parent, and only with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process import node_process as node_process_module
from hastore_scenarios.worlds.process.child_process import ChildProcess
from hastore_scenarios.worlds.process.node_process import NodeProcess
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


def node_process(child: ChildProcess, tmp_path: Path) -> NodeProcess:
    """Return a node whose process is ``child``."""
    return NodeProcess(
        name="b",
        output_path=tmp_path / "out",
        process=child,
        address=("127.0.0.1", 0),
        ha_address=None,
    )


async def test_a_node_that_has_ended_cannot_be_frozen(tmp_path: Path) -> None:
    """Its /proc entry is gone; the story gets an error of the node, not of that file."""
    child = ChildProcess.start(SLEEP, tmp_path / "out")
    await child.end()
    node = node_process(child, tmp_path)
    with pytest.raises(NodeFailed, match="b has ended with -9: no use for SIGSTOP"):
        await node.pause()
    with pytest.raises(NodeFailed, match="b has ended with -9: no use for SIGCONT"):
        await node.resume()


async def test_a_node_that_does_not_freeze_in_time_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story gets an error that the runner reports with the others."""
    monkeypatch.setattr(node_process_module, "STOP_WITHIN_S", 0.0)
    monkeypatch.setattr(ChildProcess, "send_signal", lambda *_: None)
    child = ChildProcess.start(SLEEP, tmp_path / "out")
    try:
        with pytest.raises(NodeFailed, match="SIGSTOP had no effect on b within 0 s"):
            await node_process(child, tmp_path).pause()
    finally:
        await child.end()


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
