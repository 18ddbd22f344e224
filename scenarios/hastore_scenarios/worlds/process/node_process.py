"""One node as a process, ``python -m hastore_cli master …``, with its output in a file.

A node writes its addresses into ``DIR/node.json``.  A killed node leaves that file, so it counts
only if the process id in it is the right one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.testing.process_runner import process_state
from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process.child_process import ChildProcess, hastore_command
from hastore_scenarios.worlds.staged_node import STOP_WITHIN_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hastore_scenarios.worlds.process.faulty_node import NodeFaults

START_WITHIN_S: Final = 120.0  # for a very busy machine; usually a start takes 0.3 s
OUTPUT_SHOWN_MAX: Final = 4_000

# Seconds before a file or /proc is read again: the first, doubled each time up to the second.
_ASK_AGAIN_S: Final = (0.002, 0.05)


@final
@attrs.define(eq=False, kw_only=True)
class NodeProcess:
    """A running node."""

    name: str
    output_path: Path
    process: ChildProcess
    address: tuple[str, int]
    ha_address: tuple[str, int] | None

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        *,
        data_dir: Path,
        output_path: Path,
        prefix: Sequence[str] = (),
        faults: NodeFaults | None = None,
        cwd: Path | None = None,
    ) -> NodeProcess:
        """Start ``hastore ARGUMENTS`` and wait until it listens.  Raises NodeFailed if it does not.

        ``prefix`` is a command that runs another one in its place; ``faults`` those of its disk;
        ``cwd`` its working directory, None for this process's.
        """
        before = output_path.stat().st_size if output_path.exists() else 0
        own = hastore_command(*arguments) if faults is None else faults.command(arguments)
        process = ChildProcess.start([*prefix, *own], output_path, cwd=cwd)
        try:
            with trio.fail_after(START_WITHIN_S):
                info = await _read_node_json(process, data_dir / "node.json")
        except trio.TooSlowError:
            await process.end()
            raise NodeFailed(
                f"{name} did not listen within {START_WITHIN_S:g} s",
                output=tail(output_path, before),
            ) from None
        except BaseException:
            await process.end()
            raise
        if info is None:
            raise NodeFailed(
                f"{name} ended with {process.returncode} before it listened",
                output=tail(output_path, before),
            )
        return cls(
            name=name,
            output_path=output_path,
            process=process,
            address=_address(info["address"]),
            ha_address=None if info.get("ha_address") is None else _address(info["ha_address"]),
        )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.returncode is None

    async def stop(self) -> int:
        """Stop it with SIGTERM; return its exit code.  Raises NodeFailed after STOP_WITHIN_S."""
        self.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_WITHIN_S):
            return await self.process.wait()
        output = tail(self.output_path)
        await self.kill()
        raise NodeFailed(
            f"{self.name} did not stop within {STOP_WITHIN_S:g} s of SIGTERM", output=output
        )

    async def kill(self) -> int:
        """Kill it with SIGKILL, frozen or not; return its exit code once it is gone."""
        self.process.send_signal(signal.SIGKILL)
        return await self.process.wait()

    async def pause(self) -> None:
        """Freeze it with SIGSTOP; it has stopped when this returns.

        Raises NodeFailed if it has ended, or goes on for STOP_WITHIN_S.
        """
        await self._signal(signal.SIGSTOP, is_stopped=True)

    async def resume(self) -> None:
        """Let it run on with SIGCONT.  Raises NodeFailed as ``pause`` does."""
        await self._signal(signal.SIGCONT, is_stopped=False)

    async def _signal(self, number: signal.Signals, *, is_stopped: bool) -> None:
        self.process.send_signal(number)
        pause_s = _ASK_AGAIN_S[0]
        with trio.move_on_after(STOP_WITHIN_S):
            while self.is_running:
                if (process_state(self.process.pid) == "T") is is_stopped:
                    return
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
        if self.is_running:
            why = f"{number.name} had no effect on {self.name} within {STOP_WITHIN_S:g} s"
        else:
            why = f"{self.name} has ended with {self.process.returncode}: no use for {number.name}"
        raise NodeFailed(why, output=tail(self.output_path))


def tail(path: Path, start: int = 0) -> str:
    """Return the end of a node's output, at most from byte ``start`` on."""
    with contextlib.suppress(OSError), path.open("rb") as output:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(start, size - OUTPUT_SHOWN_MAX))
        return output.read().decode(errors="replace")
    return ""


async def _read_node_json(process: ChildProcess, path: Path) -> dict[str, Any] | None:
    """Wait for a node's ``node.json``; None if the process ended without one."""
    pause_s = _ASK_AGAIN_S[0]
    while process.returncode is None:
        with contextlib.suppress(OSError, ValueError):
            info: dict[str, Any] = json.loads(path.read_bytes())
            if info["pid"] == process.pid and info.get("address"):
                return info
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
    return None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
