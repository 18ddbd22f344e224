"""A node as a process of its own, started by the loop's thread, which it cannot outlive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.testing.import_path import import_path
from hastore.testing.node_main import READY
from hastore.testing.runner import NodeDiedError

if TYPE_CHECKING:
    from hastore.testing.node_settings import NodeStart

# Limits for a very busy machine: usually a start takes 0.3 s, a stop less.
START_WITHIN_S: Final = 120.0
STOP_WITHIN_S: Final = 60.0
_SHOWN_MAX: Final = 4_000
_ASK_AGAIN_S: Final = 0.002


@final
@attrs.define(eq=False)
class ProcessRunner:
    """A `NodeRunner` whose log is the file ``output``."""

    output: Path
    _popen: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    _is_wanted: bool = attrs.field(default=True, init=False)  # until the test ends it

    async def start(self, settings: NodeStart) -> None:
        """Start it and wait until it serves.  Raises ConfigError, NodeDiedError."""
        settings.node_config()  # raises ConfigError here, not in another process
        config = json.dumps(settings.to_dict())
        command = [
            sys.executable,
            "-m",
            "hastore.testing.node_main",
            config,
            str(os.getpid()),
        ]
        with self.output.open("ab") as output:
            # Not trio's open_process: it forks in a thread that ends, and the child with it.
            self._popen = subprocess.Popen(  # noqa: ASYNC220, S603 - a millisecond; a list
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the tests
            )
        assert self._popen.stdout is not None
        try:
            with trio.fail_after(START_WITHIN_S), self._popen.stdout as pipe:
                async with trio.lowlevel.FdStream(os.dup(pipe.fileno())) as stream:
                    answer = await stream.receive_some(len(READY))
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await self.kill()
            if isinstance(error, trio.TooSlowError):
                msg = f"it did not start within {START_WITHIN_S:g} s: {self._tail()}"
                raise NodeDiedError(msg) from None
            raise
        if answer != READY:
            self._is_wanted = False  # the caller gets the error
            await self._wait()
            raise NodeDiedError(f"it did not start (exit {self._popen.returncode}): {self._tail()}")

    @property
    def process_id(self) -> int | None:
        """The process id; None before the start."""
        return None if self._popen is None else self._popen.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def death(self) -> str | None:
        """Its exit code and last output if it ended by itself, else None."""
        if not self._is_wanted or self._popen is None or self.is_running:
            return None
        return f"exit {self._popen.returncode}: {self._tail()}"

    async def stop(self) -> None:
        """Stop it with SIGTERM.  Raises NodeDiedError if it does not end cleanly in time."""
        if self._popen is None or not self.is_running:
            return
        self._is_wanted = False
        self._popen.send_signal(signal.SIGCONT)  # if it is frozen
        self._popen.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_WITHIN_S):
            await self._wait()
            if self._popen.returncode != 0:
                msg = f"it did not stop cleanly (exit {self._popen.returncode}): {self._tail()}"
                raise NodeDiedError(msg)
            return
        await self.kill()
        raise NodeDiedError(f"it did not stop within {STOP_WITHIN_S:g} s: {self._tail()}")

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._is_wanted = False
        if self._popen is not None:
            self._popen.kill()
            await self._wait()

    async def end(self) -> None:
        """Kill it."""
        await self.kill()

    async def pause(self) -> None:
        """Freeze it with SIGSTOP; it has stopped when this returns.

        Raises NodeDiedError if it does not run, or goes on for STOP_WITHIN_S.
        """
        await self._signalled(signal.SIGSTOP, is_stopped=True)

    async def resume(self) -> None:
        """Let it run on with SIGCONT.  Raises NodeDiedError as ``pause`` does."""
        await self._signalled(signal.SIGCONT, is_stopped=False)

    async def _signalled(self, number: signal.Signals, *, is_stopped: bool) -> None:
        assert self._popen is not None, "it was never started"
        self._popen.send_signal(number)
        for _ in range(round(STOP_WITHIN_S / _ASK_AGAIN_S)):
            if not self.is_running:
                raise NodeDiedError("it does not run")
            if (process_state(self._popen.pid) == "T") is is_stopped:
                return
            await trio.sleep(_ASK_AGAIN_S)
        raise NodeDiedError(f"{number.name} had no effect within {STOP_WITHIN_S:g} s")

    async def _wait(self) -> None:
        assert self._popen is not None
        if self._popen.poll() is None:
            pidfd = os.pidfd_open(self._popen.pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                trio.lowlevel.notify_closing(pidfd)
                os.close(pidfd)
            self._popen.wait()

    def _tail(self) -> str:
        """Return the end of its output."""
        text = self.output.read_text(encoding="utf-8", errors="replace")
        return text[-_SHOWN_MAX:].strip() or "it has logged nothing"


def process_state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat, which follows the name's last parenthesis.

    The process must be an unreaped child of this one, or its directory may be gone.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()[0]


def _environment() -> dict[str, str]:
    """Return this process's environment with a PYTHONPATH to the same hastore."""
    return {**os.environ, "PYTHONPATH": import_path(os.environ.get("PYTHONPATH"))}
