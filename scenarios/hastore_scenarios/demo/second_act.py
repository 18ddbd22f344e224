"""The demo's second act: a replica group elects its next master, and a producer goes on.

::

    n1 master ══► n2 slave, n3 slave      etcd says who is master
    n1 killed,    n2 master ══► n3        puts are PUT_OK again
    n1 started    n2 master ══► n3, n1    it cuts off what it alone had

``hastore up`` runs it, as a user would.  It has a history of its own, because the logs are others
than the first act's, and a chart of its own in the report.  Without an etcd the act is left out.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import trio

from hastore.testing.etcd_binary import etcd_binary
from hastore_scenarios.demo.report import take_puts
from hastore_scenarios.demo.stage import WAIT_S, DemoFailed
from hastore_scenarios.demo.terminal import grouped
from hastore_scenarios.judge.history import EventKind, History
from hastore_scenarios.judge.result import Act
from hastore_scenarios.worlds.process.child_process import hastore_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hastore_scenarios.demo.stage import DemoStage

TITLE: Final = "Second act: a group that needs nobody"
_MASTER_NOW: Final = re.compile(r"master is now (\S+) at")
GROUP: Final = "group"  # the directory
UP: Final = "up.txt"
OUTPUT: Final = "failover.txt"
HISTORY: Final = "failover.jsonl"
COUNT: Final = 12_000
RATE: Final = 1_500  # eight seconds without a failover
_BEFORE: Final = 2_000  # messages, until the master is killed
_STOP_TIME_MAX_S: Final = 20.0
_LOOK_AGAIN_S: Final = 0.1


async def second_act(stage: DemoStage) -> list[Act]:
    """Start a group, kill its master in mid-stream, and look for each acknowledged message.

    Return the act for the report, unless there is none.
    """
    stage.step(TITLE)
    if etcd_binary() is None:
        stage.say(
            "There is no etcd here, neither on PATH nor from the extra `cluster`: this act is left"
            " out. Without one a person names the next master."
        )
        stage.note("did", "left out the second act: there is no etcd")
        return []
    stage.say(
        "Three nodes with one log, and an etcd that says who is master. A put needs all of them; if"
        " the master dies, the two that are left elect the next one."
    )
    async with _group(stage) as group:
        began_s, began_wall_s = trio.current_time(), time.time()
        history = History(
            now_s=lambda: trio.current_time() - began_s,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )
        first = f"n{group['master']}"
        history.event(EventKind.START_MASTER, first, f"{first}: is master")
        for node in group["nodes"]:
            if node["id"] != group["master"]:
                name = f"n{node['id']}"
                history.event(EventKind.START_SLAVE, name, f"{name}: follows", master=first)
        await _kill_its_master(stage, group, history)
        await _start_it_again(stage, group, history)
        history.event(EventKind.END, text="the story is over")
    take_puts(history, stage.directory / HISTORY, node=first, began_wall_s=began_wall_s)
    acknowledged = gone = 0
    for node in group["nodes"]:
        acknowledged, lost, _ = await stage.count_lost(HISTORY, f"{GROUP}/n{node['id']}")
        gone = max(gone, lost)
        stage.expect(
            lost == 0 and acknowledged > 0,
            f"n{node['id']} has each of the {grouped(acknowledged)} messages that were PUT_OK",
            "looked up one by one, by UNIQ_KEY",
        )
    return [Act(title=TITLE, history=history, acknowledged=acknowledged, gone=gone)]


@contextlib.asynccontextmanager
async def _group(stage: DemoStage) -> AsyncIterator[dict[str, Any]]:
    """Run ``hastore up`` while the block runs; yield what it says of itself."""
    path = stage.directory / UP
    up = stage.start_command("up", "--keep", GROUP, "-o", "json", output=UP)
    try:
        await _wait(lambda: _described(path) or up.returncode is not None, "the group is ready")
        described = _described(path)
        if described is None:
            raise DemoFailed(f"hastore up has ended: {path.read_text(errors='replace')[-500:]}")
        stage.note("did", "started hastore up: a group of three")
        group: dict[str, Any] = described
        shown = await stage.run("cluster", "status", "--etcd", group["etcd"])
        stage.expect(
            f"master node {group['master']}" in shown.output,
            f"n{group['master']} is master",
            "it renews its lease every second",
        )
        yield group
    finally:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_STOP_TIME_MAX_S):  # it ends its nodes, then its etcd
                up.send_signal(signal.SIGINT)
                await up.wait()
            await up.end()


def _described(path: Path) -> dict[str, Any] | None:
    """Return the object that ``hastore up`` has printed; None: not yet."""
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        if line.startswith("{") and line.endswith("\n"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


async def _kill_its_master(stage: DemoStage, group: dict[str, Any], story: History) -> None:
    """Kill the master under load, and wait until the load has ended."""
    first = next(node for node in group["nodes"] if node["id"] == group["master"])
    addresses = ",".join(node["address"] for node in group["nodes"])
    made_up = ("Demo", "-n", str(COUNT), "--size", "1KiB", "--rate", str(RATE))
    command = ("produce", *made_up, "--at-least-once", "--history", HISTORY, "--addr", addresses)
    producer = stage.start_command(*command, output=OUTPUT)
    try:
        history = stage.directory / HISTORY
        await _wait(
            lambda: history.exists() and history.read_bytes().count(b"\n") > 2 * _BEFORE,
            "the stream is flowing",
        )
        begun_s = story.now_s()
        stage.kill_process(first["pid"], f"n{first['id']}, the master")
        name = f"n{first['id']}"
        story.event(EventKind.KILL, name, f"{name}: killed (SIGKILL)", begun_s=begun_s)
        killed_s = trio.current_time()
        text = stage.directory / OUTPUT
        await _wait(lambda: "master is now" in text.read_text(), "the producer has a new master")
        took_s = trio.current_time() - killed_s
        new = _MASTER_NOW.findall(text.read_text())[-1]
        story.event(EventKind.START_MASTER, new, f"{new}: elected master")
        for other in {f"n{node['id']}" for node in group["nodes"]} - {name, new}:
            story.event(EventKind.START_SLAVE, other, f"{other}: follows {new}", master=new)
        with trio.fail_after(WAIT_S):
            shown = await stage.finish_command(producer, output=OUTPUT)
    finally:
        await producer.end()
    stage.expect(
        shown.counts == {"PUT_OK": COUNT} and shown.exit_code == 0,
        f"all {grouped(COUNT)} messages are PUT_OK, with a new master after {took_s:.1f} s",
        "the producer knows all nodes; what the old master left without an answer it sent again",
    )
    shown = await stage.run("cluster", "history", "--etcd", group["etcd"])
    stage.expect(
        len(shown.output.strip().splitlines()) == 3,
        "the history has two epochs",
        "each has one master",
    )


async def _start_it_again(stage: DemoStage, group: dict[str, Any], story: History) -> None:
    """Start the former master's node; wait until it is in the set."""
    first = next(node for node in group["nodes"] if node["id"] == group["master"])
    file = f"{GROUP}/n{first['id']}.toml"
    name = f"n{first['id']}"
    node = stage.start_command("node", "-c", file, output=f"again-{name}.txt")
    story.event(EventKind.START_SLAVE, name, f"{name}: started again, and follows")
    try:
        everybody = sorted(each["id"] for each in group["nodes"])
        status = ("cluster", "status", "--etcd", group["etcd"])
        with trio.move_on_after(WAIT_S) as in_time:
            await _until(stage, status, everybody)
            story.event(EventKind.HEALTHY, name, f"{name}: in the SyncStateSet again")
        await stage.run(*status)
        stage.expect(
            not in_time.cancelled_caught,
            f"n{first['id']} follows, and is in the SyncStateSet again",
            "it has cut off what it alone had, and copied the rest",
        )
    finally:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_STOP_TIME_MAX_S):
                node.send_signal(signal.SIGTERM)
                await node.wait()
            await node.end()


async def _until(stage: DemoStage, status: tuple[str, ...], ids: list[int]) -> None:
    """Look again until these nodes are the SyncStateSet."""
    while True:
        if await _set_of(stage, *status) == ids:
            return
        await trio.sleep(_LOOK_AGAIN_S)


async def _set_of(stage: DemoStage, *status: str) -> list[int]:
    done = await trio.run_process(
        hastore_command(*status, "-o", "json"),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        cwd=stage.directory,
    )
    found: list[int] = json.loads(done.stdout or b"{}").get("sync_state_set") or []
    return found


async def _wait(holds: Callable[[], object], what: str) -> None:
    """Look again until ``holds``.  Raises DemoFailed."""
    with trio.move_on_after(WAIT_S):
        while True:
            if holds():
                return
            await trio.sleep(_LOOK_AGAIN_S)
    raise DemoFailed(f"not within {WAIT_S:g} s: {what}")
