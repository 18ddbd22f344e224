"""The README's three terminals: the commands run, and their output is as shown."""

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
from tests.support.repository import blocks

WITHIN_S = 120
FREE = "127.0.0.1:0"


def commands(language: str) -> list[str]:
    """Return the commands in the README's blocks of a language."""
    lines = [line for block in blocks("README.md", language) for line in block.splitlines()]
    return [line for line in lines if line.startswith(("hastore ", "$ "))]


def one_command(beginning: str) -> list[str]:
    """Return the words of the only such command, after `hastore`; not of BROKER or a group."""
    (found,) = [
        line
        for line in commands("sh")
        if line.startswith(f"hastore {beginning} ")
        and "BROKER" not in line
        and "--node-group" not in line
    ]
    return shlex.split(found)[1:]


def sample() -> list[tuple[str, list[str]]]:
    """Return the commands of the third terminal, each with the lines below it."""
    (block,) = blocks("README.md", "console")
    shown: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            shown.append((line.removeprefix("$ "), []))
        else:
            shown[-1][1].append(line)
    return shown


def shape(lines: list[str]) -> list[str]:
    """Replace what differs from run to run: numbers, ids, times."""
    text = re.sub(r"\bid [0-9A-F]{32}\b", "id ID", "\n".join(lines))
    return re.sub(r"\d+(?:\.\d+)?(?: (?:µs|ms|s|min)\b)?", "0", text).splitlines()


def test_only_numbers_ids_and_times_are_not_compared() -> None:
    """A changed status or topic, or a missing column, would be noticed."""
    line = "SEND_OK  orders/3 @ 0  id 7F00000100002A9F0000000000000000  2.4 ms"
    assert shape([line]) == ["SEND_OK  orders/0 @ 0  id ID  0"]


@pytest.mark.timeout(WITHIN_S + 60)
async def test_the_three_terminals_do_what_the_readme_shows(tmp_path: Path) -> None:
    """Master and slave run on free ports; the output of the third terminal is compared."""
    nodes: list[NodeProcess] = []

    async def start(words: list[str], *more: str) -> NodeProcess:
        directory = words[words.index("--data") + 1]
        node = await NodeProcess.start(
            directory,
            [*words, *more],
            data_dir=tmp_path / directory,
            output_path=tmp_path / f"{directory}.log",
            cwd=tmp_path,
        )
        nodes.append(node)
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
        for node in nodes:
            await node.process.end()


def third_terminal() -> dict[str, str]:
    """Return an environment with this version of `hastore`, D1 as its node, and no colours."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**child_environment(), "PATH": path, "HASTORE_ADDR": "D1", "NO_COLOR": "1"}
