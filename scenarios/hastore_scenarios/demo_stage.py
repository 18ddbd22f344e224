"""The demo's stage: runs commands where people can see them, and keeps a timeline.

Colour on a terminal only (and never with NO_COLOR); plain lines otherwise.  Paths are shown as seen
from the demo's directory, in which all commands could be repeated.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, final

import attrs
import trio
from rich.text import Text

from hastore.broker.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.errors import HastoreError
from hastore_scenarios.child_process import ChildProcess, child_environment, hastore_command
from hastore_scenarios.history import Outcome, load_history
from hastore_scenarios.log_image import first_difference, read_records
from hastore_scenarios.node_process import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

WIDTH_MAX: Final = 100
INDENT: Final = "   "
_ASK_AGAIN_S: Final = (0.01, 0.2)
# `SEND_OK  2,000  100.0 %`, or one line a message: `SEND_OK  Demo/2 @ 17  id …`
_COUNT: Final = re.compile(r"^([A-Z_]+) +([\d,\xa0 ]+?) +[\d.]+ %$", re.MULTILINE)
_LISTED: Final = re.compile(r"^([A-Z_]+)  \S+/\d+", re.MULTILINE)
_OWN_NAME: Final = re.compile(r"D\d|[\w.-]+\.(?:txt|jsonl)")
_MANY_LINES: Final = 12


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


@attrs.frozen
class Shown:
    """What a command printed, and how it ended."""

    output: str
    exit_code: int

    @property
    def counts(self) -> dict[str, int]:
        """How many messages `hastore produce` says had which status."""
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
    _timeline: list[tuple[float, str, str]] = attrs.field(factory=list, init=False)
    _step: int = attrs.field(default=0, init=False)
    _began_s: float = attrs.field(factory=trio.current_time, init=False)

    # -- what is said

    def step(self, title: str) -> None:
        """Begin a step of the story."""
        self._step += 1
        self.console.print()
        self.console.print(Text(f"{self._step}. {title}", style="bold"))

    def say(self, text: str) -> None:
        """Say something in a paragraph of its own."""
        self._print(Text(text))

    def note(self, kind: str, text: str) -> None:
        """Put a line into the timeline."""
        self._timeline.append((trio.current_time() - self._began_s, kind, text))

    def expect(self, truth: object, text: str, why: str) -> None:
        """Say what was seen, and why that is right; a false one fails the demo."""
        mark, style = ("✓", "green") if truth else ("✗ NOT SO:", "bold red")
        self._print(Text.assemble((f"{mark} ", style), text, (f" — {why}", "dim")))
        self.note("seen" if truth else "WRONG", text)
        if not truth:
            self.failures.append(text)

    def print_timeline(self) -> None:
        """Print all that was done and seen, in order."""
        styles = {"did": "cyan", "seen": "green", "WRONG": "bold red"}
        for time_s, kind, text in self._timeline:
            line = Text.assemble(
                (f"{time_s:6.1f} s  ", "dim"), (f"{kind:<5} ", styles.get(kind, "")), text
            )
            self._print(line)

    # -- what is done

    async def start(self, name: str, *arguments: str) -> NodeProcess:
        """Start ``hastore ARGUMENTS`` in the background; its directory is ``name``."""
        self._show_command(arguments, background=True)
        node = await NodeProcess.start(
            name,
            [*_absolute(self.directory, arguments), "--log-format", "json"],
            data_dir=self.directory / name,
            output_path=self.directory / f"{name}.log",
        )
        self.nodes[name] = node
        self.note("did", f"started hastore {arguments[0]} on {name}")
        return node

    async def run(self, *arguments: str, note: str | None = None) -> Shown:
        """Run ``hastore ARGUMENTS`` to its end and show what it prints."""
        self._show_command(arguments)
        if note is not None:
            self.note("did", note)
        process = await trio.run_process(
            hastore_command(*_absolute(self.directory, arguments)),
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env=child_environment(),
        )
        shown = Shown(process.stdout.decode(errors="replace"), process.returncode)
        self._show_output(shown)
        return shown

    def start_command(self, *arguments: str, output: str) -> ChildProcess:
        """Start ``hastore ARGUMENTS`` and leave it running; what it prints goes to a file."""
        self._show_command(arguments, background=True)
        return ChildProcess.start(
            hastore_command(*_absolute(self.directory, arguments)), self.directory / output
        )

    async def finish_command(self, process: ChildProcess, *, output: str) -> Shown:
        """Wait for such a command and show what it printed."""
        code = await process.wait()
        shown = Shown((self.directory / output).read_text(errors="replace"), code)
        self._show_output(shown)
        return shown

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        self._show_shell(f"kill -9 {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"killed {name} with SIGKILL")
        await self.nodes.pop(name).kill()

    async def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self._show_shell(f"kill -STOP {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"froze {name} with SIGSTOP")
        await self.nodes[name].pause()

    async def unfreeze(self, name: str) -> None:
        """SIGCONT."""
        self._show_shell(f"kill -CONT {self.nodes[name].process.pid}    # {name}")
        self.note("did", f"let {name} run on with SIGCONT")
        await self.nodes[name].resume()

    async def stop(self, name: str) -> None:
        """SIGTERM."""
        self._show_shell(f"kill {self.nodes[name].process.pid}    # {name}, a clean stop")
        self.note("did", f"stopped {name} with SIGTERM")
        await self.nodes.pop(name).stop()

    async def status(self, name: str) -> NodeStatus:
        """Ask a node what `hastore status` would show, without showing it."""
        try:
            async with AdminClient.connect(self.nodes[name].address) as admin:
                return NodeStatus.from_dict((await admin.ha_status())["hastore"])
        except HastoreError as error:
            raise DemoFailed(f"{name} does not answer: {error}") from error

    async def wait_until(
        self, name: str, what: str, holds: Callable[[NodeStatus], bool], within_s: float = 15.0
    ) -> NodeStatus:
        """Ask for a status until it is as wanted."""
        pause_s = _ASK_AGAIN_S[0]
        with trio.move_on_after(within_s):
            while True:
                status = await self.status(name)
                if holds(status):
                    return status
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
        raise DemoFailed(f"{name}: not within {within_s:g} s: {what}")

    async def wait_in_step(self, master: str) -> NodeStatus:
        """Wait until a master has a slave that has acknowledged everything."""

        def in_step(status: NodeStatus) -> bool:
            return any(row.state == "streaming" and row.lag_bytes == 0 for row in status.slaves)

        return await self.wait_until(master, "a slave is in step", in_step)

    async def count_lost(self, history: str, name: str) -> tuple[int, int, int]:
        """Count the acknowledged messages of a history, and those that a directory has not.

        Gives its end, too.
        """
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
        """Give the first offset at which two directories differ."""
        paths = (str(self.directory / left), str(self.directory / right))
        return await trio.to_thread.run_sync(lambda: first_difference(real_env().disk, *paths))

    # -- inside

    def _show_command(self, arguments: tuple[str, ...], *, background: bool = False) -> None:
        text = " ".join(["hastore", *(_quoted(argument) for argument in arguments)])
        self._show_shell(text + (" &" if background else ""))

    def _show_shell(self, text: str) -> None:
        # Never wrapped: a command is there to be copied.
        line = Text.assemble((f"{INDENT}$ ", "dim"), (text, "bold cyan"))
        self.console.print(line, soft_wrap=True)

    def _show_output(self, shown: Shown) -> None:
        text = shown.output.replace(f"{self.directory}/", "")
        lines = text.rstrip().splitlines()
        if len(lines) > _MANY_LINES:
            left_out = len(lines) - _MANY_LINES
            lines = [*lines[: _MANY_LINES - 2], f"… {left_out} more lines …", *lines[-2:]]
        if shown.exit_code:
            lines.append(f"(exit {shown.exit_code})")
        for line in lines:
            self.console.print(Text(f"{INDENT}  {line}"), soft_wrap=True)

    def _print(self, text: Text) -> None:
        for line in text.wrap(self.console, self.console.width - len(INDENT)):
            line.rstrip()
            self.console.print(Text(INDENT) + line)


def _absolute(directory: Path, arguments: tuple[str, ...]) -> list[str]:
    """Turn names of the demo's directory (D1, history.txt, last.jsonl) into paths."""
    return [
        str(directory / argument)
        if re.fullmatch(r"D\d|[\w.-]+\.(?:txt|jsonl)", argument)
        else argument
        for argument in arguments
    ]


def _quoted(argument: str) -> str:
    return f"'{argument}'" if " " in argument else argument
