"""A process that never outlives this one, and that trio can wait for.

It has its own process group, its outputs go to a file, and the kernel kills it when its parent dies
(PR_SET_PDEATHSIG).  For the kernel, the parent is the *thread* that forked, so the main thread
itself starts a child: ``trio.lowlevel.open_process`` forks in a worker thread, which ends after ten
idle seconds and would end every child with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.testing.import_path import import_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


@final
@attrs.define(eq=False)
class ChildProcess:
    """A started process; its owner calls ``end`` in all cases."""

    popen: subprocess.Popen[bytes]
    _pidfd: int | None

    @classmethod
    def start(
        cls, command: Sequence[str], output_path: Path, *, cwd: Path | None = None
    ) -> ChildProcess:
        """Start ``command`` in ``cwd``; both its outputs are appended to a file."""
        assert threading.current_thread() is threading.main_thread(), "see this module's docstring"
        with output_path.open("ab") as output:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one prctl, and no lock is taken
            )
        return cls(popen, os.pidfd_open(popen.pid))

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.popen.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        self.popen.send_signal(number)

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code."""
        while (code := self.popen.poll()) is None:
            assert self._pidfd is not None
            await trio.lowlevel.wait_readable(self._pidfd)
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            trio.lowlevel.notify_closing(pidfd)
            os.close(pidfd)
        return code

    async def end(self) -> None:
        """Kill it and its group, and wait for it, even if this task is cancelled."""
        with trio.CancelScope(shield=True):
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            await self.wait()


def hastore_command(*arguments: str) -> list[str]:
    """Return the command line of ``hastore ARGUMENTS`` in this interpreter."""
    return [sys.executable, "-m", "hastore_cli", *arguments]


def child_environment() -> dict[str, str]:
    """Return this process's environment without the settings of nodes (``HASTORE_…``)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HASTORE_")}
    return {**kept, "PYTHONPATH": import_path(kept.get("PYTHONPATH"))}


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (runs between fork and exec)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
