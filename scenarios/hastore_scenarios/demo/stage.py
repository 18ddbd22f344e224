"""The demo's stage: shows and runs commands, and keeps a timeline and a history.

Commands run on a pseudo-terminal as wide as the page, so they print as for people.  There is colour
on a terminal only (and never with NO_COLOR).  Paths are relative to the demo's directory, in which
all commands could be repeated.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import textwrap
import time
from typing import TYPE_CHECKING, Final, final

import attrs
import trio
from rich.text import Text

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.errors import HastoreError
from hastore_scenarios.demo.report import take_puts
from hastore_scenarios.demo.terminal import run_on_terminal
from hastore_scenarios.judge.history import EventKind, History, Outcome, load_history
from hastore_scenarios.judge.log_image import first_difference, read_records
from hastore_scenarios.worlds.process.child_process import (
    ChildProcess,
    child_environment,
    hastore_command,
)
from hastore_scenarios.worlds.process.node_process import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

INDENT: Final = "   "
OUTPUT_INDENT: Final = INDENT + "  "
WAIT_S: Final = 120.0  # a limit for a busy machine
_ASK_AGAIN_S: Final = (0.01, 0.2)
# `PUT_OK  2,000  100.0 %`, or one line a message: `PUT_OK  Demo/2 @ 17  id …`
_COUNT: Final = re.compile(r"^([A-Z_]+) +([\d,\xa0 ]+?) +[\d.]+ %$", re.MULTILINE)
_LISTED: Final = re.compile(r"^([A-Z_]+)  \S+/\d+", re.MULTILINE)
_MANY_LINES: Final = 12
_GOES_ON: Final = " \\"  # ends a line of a command that goes on in the next


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


@attrs.frozen
class Shown:
    """A command's output and exit code."""

    output: str
    exit_code: int

    @property
    def counts(self) -> dict[str, int]:
        """The number of messages by status in the output of `hastore produce`."""
        counts = {
            label: int(re.sub(r"\D", "", number)) for label, number in _COUNT.findall(self.output)
        }
        for label in _LISTED.findall(self.output):
            counts[label] = counts.get(label, 0) + 1
        return counts


@final
@attrs.define(eq=False)
class DemoStage:
    """One run of the demo in ``directory``."""

    directory: Path
    console: Console
    nodes: dict[str, NodeProcess] = attrs.field(factory=dict, init=False)
    failures: list[str] = attrs.field(factory=list, init=False)
    history: History = attrs.field(init=False)
    _timeline: list[tuple[float, str, str]] = attrs.field(factory=list, init=False)
    _step: int = attrs.field(default=0, init=False)
    _produced: int = attrs.field(default=0, init=False)  # runs of `hastore produce`
    _began_s: float = attrs.field(factory=trio.current_time, init=False)
    _began_wall_s: float = attrs.field(factory=time.time, init=False)

    @history.default
    def _new_history(self) -> History:
        return History(
            now_s=lambda: trio.current_time() - self._began_s,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )

    # -- texts

    def step(self, title: str) -> None:
        """Begin a step of the story."""
        self._step += 1
        self.console.print()
        self.console.print(Text(f"{self._step}. {title}", style="bold"))

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._print(Text(text))

    def fact(self, name: str, text: str) -> None:
        """Print one of the last lines: its name and a text."""
        # A path is never wrapped, so that it can be copied.
        width = self.console.width - len("  report  ")
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            shown = Text(f"  {'' if number else name:<6}  {line}")
            self.console.print(shown, soft_wrap=True)

    def note(self, kind: str, text: str) -> None:
        """Add a line to the timeline."""
        self._timeline.append((trio.current_time() - self._began_s, kind, text))

    def expect(self, truth: object, text: str, why: str) -> None:
        """Print an expectation and its reason; if ``truth`` is false, the demo fails."""
        mark, style = ("✓", "green") if truth else ("✗ NOT AS EXPECTED:", "bold red")
        self._print(Text.assemble((f"{mark} ", style), text, (f" — {why}", "dim")))
        self.note("seen" if truth else "WRONG", text)
        prefix = "as expected: " if truth else "NOT AS EXPECTED: "
        self.history.event(EventKind.EXPECT, text=prefix + text)
        if not truth:
            self.failures.append(text)

    def print_timeline(self) -> None:
        """Print the timeline."""
        styles = {"did": "cyan", "seen": "green", "WRONG": "bold red"}
        for time_s, kind, text in self._timeline:
            line = Text.assemble(
                (f"{time_s:6.1f} s  ", "dim"), (f"{kind:<5} ", styles.get(kind, "")), text
            )
            self._print(line)

    # -- actions

    async def start(self, name: str, *arguments: str) -> NodeProcess:
        """Start ``hastore ARGUMENTS``, a node on directory ``name``, in the background."""
        self._show_command(arguments, background=True)
        node = await NodeProcess.start(
            name,
            [*arguments, "--log-format", "json"],
            data_dir=self.directory / name,
            output_path=self.directory / f"{name}.log",
            cwd=self.directory,
        )
        self.nodes[name] = node
        self.note("did", f"started hastore {arguments[0]} on {name}")
        return node

    async def run(self, *arguments: str, note: str | None = None) -> Shown:
        """Run ``hastore ARGUMENTS`` to its end, show its output, and return it."""
        self._show_command(arguments)
        if note is not None:
            self.note("did", note)
        code, text = await run_on_terminal(
            hastore_command(*arguments),
            child_environment(),
            cwd=self.directory,
            width=self.console.width - len(OUTPUT_INDENT),
        )
        shown = Shown(Text.from_ansi(text).plain, code)
        self._show_output(text, code)
        return shown

    async def produce(self, node: str, *arguments: str, note: str | None = None) -> Shown:
        """Run ``hastore produce ARGUMENTS`` against a node, and add its puts to the history."""
        self._produced += 1
        file = f"puts-{self._produced}.jsonl"
        shown = await self.run("produce", *arguments, "--history", file, "--addr", node, note=note)
        self.take_puts(node, file)
        return shown

    def take_puts(self, node: str, file: str) -> None:
        """Add the puts of a producer's history file, if it sent any."""
        path = self.directory / file
        if path.exists():
            take_puts(self.history, path, node=node, began_wall_s=self._began_wall_s)

    def start_command(self, *arguments: str, output: str) -> ChildProcess:
        """Start ``hastore ARGUMENTS`` in the background, with its output in a file."""
        self._show_command(arguments, background=True)
        return ChildProcess.start(
            hastore_command(*arguments), self.directory / output, cwd=self.directory
        )

    async def finish_command(self, process: ChildProcess, *, output: str) -> Shown:
        """Wait for a command of ``start_command``, show its output, and return it."""
        code = await process.wait()
        text = (self.directory / output).read_text(errors="replace")
        self._show_output(text, code)
        return Shown(text, code)

    async def kill(self, name: str) -> None:
        """Kill a node with SIGKILL."""
        self._show_shell(f"kill -9 {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"killed {name} with SIGKILL")
        begun_s = self.history.now_s()
        await self.nodes.pop(name).kill()
        self.history.event(EventKind.KILL, name, f"{name}: killed (SIGKILL)", begun_s=begun_s)

    def kill_process(self, pid: int, what: str) -> None:
        """Kill a process that is not of this stage's nodes with SIGKILL."""
        self._show_shell(f"kill -9 {pid}    # {what}")
        self.note("did", f"killed {what} with SIGKILL")
        os.kill(pid, signal.SIGKILL)

    async def freeze(self, name: str) -> None:
        """Freeze a node with SIGSTOP."""
        self._show_shell(f"kill -STOP {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"froze {name} with SIGSTOP")
        begun_s = self.history.now_s()
        await self.nodes[name].pause()
        self.history.event(EventKind.PAUSE, name, f"{name}: frozen (SIGSTOP)", begun_s=begun_s)

    async def unfreeze(self, name: str) -> None:
        """Let a node run on with SIGCONT."""
        self._show_shell(f"kill -CONT {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"let {name} run on with SIGCONT")
        begun_s = self.history.now_s()
        await self.nodes[name].resume()
        self.history.event(EventKind.RESUME, name, f"{name}: runs on (SIGCONT)", begun_s=begun_s)

    async def stop(self, name: str) -> None:
        """Stop a node with SIGTERM."""
        self._show_shell(f"kill {self.nodes[name].process.pid}    # {name}, a clean stop")
        self.note("did", f"stopped {name} with SIGTERM")
        begun_s = self.history.now_s()
        await self.nodes.pop(name).stop()
        self.history.event(EventKind.STOP, name, f"{name}: stopped (SIGTERM)", begun_s=begun_s)

    async def status(self, name: str) -> NodeStatus:
        """Return a node's status without showing it.  Raises DemoFailed."""
        try:
            async with AdminClient.connect(self.nodes[name].address) as admin:
                return NodeStatus.from_dict((await admin.ha_status())["hastore"])
        except HastoreError as error:
            raise DemoFailed(f"{name} does not answer: {error}") from error

    async def wait_until(
        self, name: str, what: str, holds: Callable[[NodeStatus], bool], within_s: float = WAIT_S
    ) -> NodeStatus:
        """Ask for a node's status until ``holds``; return it.  Raises DemoFailed."""
        pause_s = _ASK_AGAIN_S[0]
        with trio.move_on_after(within_s):
            while True:
                status = await self.status(name)
                if holds(status):
                    return status
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
        raise DemoFailed(f"{name}: not within {within_s:g} s: {what}")

    async def wait_in_step(self, master: str, slave: str) -> NodeStatus:
        """Wait until a master's only slave has acknowledged everything."""

        def in_step(status: NodeStatus) -> bool:
            return any(row.state == "streaming" and row.lag_bytes == 0 for row in status.slaves)

        status = await self.wait_until(master, f"{slave} is in step", in_step)
        self.history.event(EventKind.HEALTHY, slave, f"{slave}: in step with {master}")
        return status

    async def count_lost(self, history: str, name: str) -> tuple[int, int, int]:
        """Return the acknowledged messages of a history, those missing in a log, and its end."""
        disk = real_env().disk

        def count() -> tuple[int, int, int]:
            with (self.directory / history).open(encoding="utf-8") as lines:
                puts = load_history(lines).operations
            acknowledged = {put.key: put.body_crc for put in puts if put.outcome is Outcome.OK}
            held, end = set(), 0
            for one in read_records(disk, str(self.directory / name)):
                end = one.next_offset
                if one.key is not None and acknowledged.get(one.key) == one.body_crc:
                    held.add(one.key)
            return len(acknowledged), len(acknowledged) - len(held), end

        return await trio.to_thread.run_sync(count)

    async def first_difference(self, left: str, right: str) -> int | None:
        """Return the first offset at which two directories differ."""
        paths = (str(self.directory / left), str(self.directory / right))
        return await trio.to_thread.run_sync(lambda: first_difference(real_env().disk, *paths))

    # -- inside

    def _show_command(self, arguments: tuple[str, ...], *, background: bool = False) -> None:
        words = ["hastore", *map(shlex.quote, arguments)]
        if background:
            words[-1] += " &"
        room = self.console.width - len(INDENT) - len("$ ") - len(_GOES_ON)
        self._show_shell(*command_lines(words, room))

    def _show_shell(self, text: str, *more: str) -> None:
        # Never wrapped within a word, so that commands can be copied.
        lines = [f"{line}{_GOES_ON}" for line in (text, *more)[:-1]]
        prompt = "$ "
        for line in [*lines, (text, *more)[-1]]:
            shown = Text.assemble((INDENT + prompt, "dim"), (line, "bold cyan"))
            self.console.print(shown, soft_wrap=True)
            prompt = "    "

    def _show_output(self, text: str, exit_code: int) -> None:
        lines = text.rstrip().splitlines()
        if len(lines) > _MANY_LINES + 1:  # a single line takes no more room than its replacement
            left_out = len(lines) - _MANY_LINES
            lines = [*lines[: _MANY_LINES - 2], f"… {left_out} more lines …", *lines[-2:]]
        if exit_code:
            lines.append(f"(exit {exit_code})")
        for line in lines:
            self._print(Text.from_ansi(line), OUTPUT_INDENT)

    def _print(self, text: Text, indent: str = INDENT) -> None:
        """Print a line, wrapped with a hanging indent."""
        hang = " " * (len(text.plain) - len(text.plain.lstrip()))
        more = "  " if indent == OUTPUT_INDENT else ""
        width = self.console.width - len(indent)
        if len(text.plain) <= width:
            self.console.print(Text(indent) + text)
            return
        lines = text[len(hang) :].wrap(self.console, width - len(hang) - len(more))
        for number, line in enumerate(lines):
            line.rstrip()
            self.console.print(Text(indent + hang + (more if number else "")) + line)


def command_lines(words: list[str], room: int) -> list[str]:
    """Break a command between its options into lines of at most ``room`` characters."""
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and word[0] != "-":
            parts[-1] += f" {word}"  # an option and its value
        else:
            parts.append(word)
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) <= room - (2 if len(lines) > 1 else 0):
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines
