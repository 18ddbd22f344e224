"""The README's three terminals: its commands are run, and what stands below them is what comes."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import trio

from hastore_scenarios.demo.terminal import run_on_terminal
from hastore_scenarios.worlds.process.child_process import child_environment
from hastore_scenarios.worlds.process.node_process import NodeProcess
from tests.tidy.test_docs import blocks

WITHIN_S = 120
FREE = "127.0.0.1:0"


def commands(language: str) -> list[str]:
    """Return the lines of the README that begin with `hastore` in blocks of a language."""
    lines = [line for block in blocks("README.md", language) for line in block.splitlines()]
    return [line for line in lines if line.startswith(("hastore ", "$ "))]


def one_command(beginning: str) -> list[str]:
    """Return the words behind `hastore` of the only command that begins so and names no BROKER."""
    (found,) = [
        line
        for line in commands("sh")
        if line.startswith(f"hastore {beginning} ") and "BROKER" not in line
    ]
    return shlex.split(found)[1:]


def sample() -> list[tuple[str, list[str]]]:
    """Return the commands of the third terminal, each with the lines that stand below it."""
    (block,) = blocks("README.md", "console")
    told: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            told.append((line.removeprefix("$ "), []))
        else:
            told[-1][1].append(line)
    return told


def shape(lines: list[str]) -> list[str]:
    """Take away what differs from run to run: numbers, ids, times."""
    text = re.sub(r"\bid [0-9A-F]{32}\b", "id ID", "\n".join(lines))
    return re.sub(r"\d+(?:\.\d+)?(?: (?:µs|ms|s|min)\b)?", "0", text).splitlines()


def test_what_differs_from_run_to_run_is_all_that_is_not_compared() -> None:
    """A status, a topic, a size's unit or a column that is not there would be seen."""
    line = "SEND_OK  orders/3 @ 0  id 7F00000100002A9F0000000000000000  2.4 ms"
    assert shape([line]) == ["SEND_OK  orders/0 @ 0  id ID  0"]


@pytest.mark.timeout(WITHIN_S + 60)
async def test_the_three_terminals_do_what_the_readme_shows(tmp_path: Path) -> None:
    """Master, slave, and then each command of the third with its output; on ports of their own."""
    ends: list[NodeProcess] = []

    async def start(words: list[str], *more: str) -> NodeProcess:
        directory = words[words.index("--data") + 1]
        node = await NodeProcess.start(
            directory,
            [*words, *more],
            data_dir=tmp_path / directory,
            output_path=tmp_path / f"{directory}.log",
            cwd=tmp_path,
        )
        ends.append(node)
        return node

    try:
        with trio.fail_after(WITHIN_S):
            master = await start(one_command("master"), "--listen", FREE, "--ha-listen", FREE)
            assert master.ha_address is not None
            slave = one_command("slave")
            at = slave.index("--master") + 1
            assert slave[at] == "127.0.0.1:10912"
            slave[at] = f"127.0.0.1:{master.ha_address[1]}"
            await start(slave)
            waited = await run_on_terminal(
                ["hastore", "wait", "D1", "--replicas", "1", "--timeout", "100s"],
                third_terminal(),
                cwd=tmp_path,
                width=100,
            )
            assert waited[0] == 0, waited[1]
            for command, expected in sample():
                code, text = await run_on_terminal(
                    ["bash", "-c", command], third_terminal(), cwd=tmp_path, width=100
                )
                assert code == 0, text
                assert shape(text.splitlines()) == shape(expected), command
    finally:
        for node in ends:
            await node.process.end()


def third_terminal() -> dict[str, str]:
    """Return an environment in which `hastore` is this one and asks D1, without colour."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**child_environment(), "PATH": path, "HASTORE_ADDR": "D1", "NO_COLOR": "1"}
