"""Run the JVM of a Spark session, and its child processes, in a process session of their own.

pyspark can start a JVM itself, but Ctrl-C does not end it: a terminal sends SIGINT to the whole
foreground process group, and pyspark then removes the directory in which the JVM is to write its
port, so the JVM waits forever for a driver that cannot find it.  Here the JVM and its Python
workers have no terminal, and this process decides when they end.

The JVM ends when its stdin is closed (``PythonGatewayServer``), so it does not outlive this process
even if that is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from pyspark.find_spark_home import _find_spark_home

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Process = subprocess.Popen[bytes]

# The JVM answers by writing a file whose path is in this variable; nothing announces it, so poll.
_ANSWER: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_POLL_INTERVAL_S: Final = 0.05
_END_TIMEOUT_S: Final = 30.0
_JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"  # of the driver's JVM
_LENGTHS: Final = struct.Struct("!ii")  # of the answer: the port, then the secret's size in bytes


@final
class JavaProcess:
    """One JVM, started once and ended once."""

    def __init__(self, *, interrupt_signal: signal.Signals = signal.SIGKILL) -> None:
        # SIGTERM runs the JVM's shutdown hooks, which release a cluster's executors.
        self._interrupt_signal = interrupt_signal
        self._process: Process | None = None
        self.is_interrupted = False

    def start(self, settings: Mapping[str, str], scratch: str) -> tuple[int, str]:
        """Start a JVM with ``spark-submit``, and return the port of its gateway and the secret.

        ``scratch`` is for its temporary files, which a killed JVM does not remove.  Raises
        HastoreError if the JVM ends before it has answered.
        """
        command = [str(Path(_find_spark_home(), "bin", "spark-submit"))]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with tempfile.TemporaryDirectory(prefix="hastore-java-", dir=scratch) as folder:
            answer = Path(folder, "gateway")
            self._process = subprocess.Popen(  # noqa: S603 - pyspark's own script
                command,
                stdin=subprocess.PIPE,
                env=_environment(scratch) | {_ANSWER: str(answer)},
                start_new_session=True,
            )
            if self.is_interrupted:  # while it was starting
                self.interrupt()
            return self._wait_for(answer)

    def _wait_for(self, answer: Path) -> tuple[int, str]:
        assert self._process is not None
        while not answer.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_POLL_INTERVAL_S)
                raise HastoreError(
                    f"Java ended before Spark was up, with exit code {code}",
                    hint="see its output above; check --conf and Java's options",
                )
        data = answer.read_bytes()
        port, size = _LENGTHS.unpack_from(data)
        return port, data[_LENGTHS.size : _LENGTHS.size + size].decode()

    @property
    def is_gone(self) -> bool:
        """Whether the JVM was interrupted or has ended, so that calls to it fail."""
        has_ended = self._process is not None and self._process.poll() is not None
        return self.is_interrupted or has_ended

    def interrupt(self) -> None:
        """End all processes now; every pending call to Java fails.  Signal handlers may call it.

        A second call sends SIGKILL, which skips the JVM's shutdown hooks.
        """
        number = signal.SIGKILL if self.is_interrupted else self._interrupt_signal
        self.is_interrupted = True
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def end(self) -> None:
        """Let the JVM end, and wait until all processes that it started are gone."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
        process.kill()
        process.wait()
        # Python workers end by themselves after the JVM; these are late or stuck.
        while left := list(_members(process.pid)):
            for number in left:
                _kill(number)


def _environment(scratch: str) -> dict[str, str]:
    """Return the JVM's environment; the user's own Java options come last, and win."""
    options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData {os.environ.get(_JAVA_OPTIONS, "")}'
    return {**os.environ, "SPARK_CONNECT_MODE": "0", _JAVA_OPTIONS: options}


def _kill(number: int) -> None:
    """Kill a process that is not a child, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(number)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
        finally:
            os.close(process)


def _members(session: int) -> Iterator[int]:
    """Yield the running processes of a process session, on systems with ``/proc``."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc_pid_stat(5): pid (name) state ppid pgrp session …
            state, _, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state not in {"Z", "X"}:
                yield int(folder.name)
