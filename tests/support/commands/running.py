"""`hastore …` as a person runs it: real processes, awaited by their output and never by a sleep."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hastore.testing.import_path import import_path
from tests.patience import PROCESS_WITHIN_S
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

WITHIN_S = PROCESS_WITHIN_S
ANY_PORT = "127.0.0.1:0"


def environment(**extra: str) -> dict[str, str]:
    """Return this environment without the settings and colours that would affect a test."""
    hidden = ("HASTORE_", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**kept, "PYTHONPATH": import_path(str(REPO_ROOT)), **extra}


def command(*arguments: object, module: str = "hastore_cli") -> list[str]:
    """Return the command line of `hastore ARGUMENTS` in this interpreter."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def hastore(
    *arguments: object, stdin: bytes = b"", cwd: Path | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return stdout and stderr as text."""
    done = subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        env=environment(**extra),
        cwd=cwd,
        timeout=WITHIN_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


class Node:
    """A node's process, with the content of its node.json once it is ready."""

    def __init__(self, process: subprocess.Popen[bytes], data: Path, log: Path) -> None:
        self.process = process
        self.data = data
        self.log = log
        self.info: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Its client port."""
        return str(self.info["address"])

    @property
    def ha_address(self) -> str:
        """Its HA port."""
        return str(self.info["ha_address"])

    def wait_ready(self) -> None:
        """Wait until node.json is the one of this process."""
        wait_until(self._is_ready, lambda: "not ready in time: " + self.log.read_text())

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.info = json.loads((self.data / "node.json").read_bytes())
        except (OSError, ValueError):
            self.info = {}
        return self.info.get("pid") == self.process.pid

    def wait_for_text(self, text: str) -> str:
        """Wait until the node has written ``text``; return all its output."""
        wait_until(lambda: text in self.log.read_text(), self.log.read_text)
        return self.log.read_text()

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(WITHIN_S)


@contextmanager
def node(
    kind: str,
    data: Path,
    *arguments: object,
    file_size: str | None = "4MiB",
    has_terminal: bool = True,
    module: str = "hastore_cli",
    **extra: str,
) -> Iterator[Node]:
    """Run a master, slave or node on free ports during the block.

    ``module`` is what is run, with the arguments of ``hastore``.  ``has_terminal`` false: without
    the terminal that the tests may run on.
    """
    given = ["--listen", ANY_PORT]
    if kind != "slave":
        given += ["--ha-listen", ANY_PORT]
    if file_size is not None:
        given += ["--mapped-file-size", file_size]
    log = data.with_name(data.name + ".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command(kind, "--data", data, *given, *arguments, module=module),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment(**extra),
            cwd=data.parent,
            start_new_session=not has_terminal,
        )
    running = Node(process, data, log)
    try:
        running.wait_ready()
        yield running
    finally:
        process.kill()
        process.wait()


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def is_one_line_with_a_next_step(stderr: str) -> bool:
    """Return whether an error has its required form: `error: …`, `  next  …`, no traceback."""
    lines = stderr.splitlines()
    return (
        len(lines) == 2
        and lines[0].startswith("error: ")
        and lines[1].startswith("  next  ")
        and "Traceback" not in stderr
    )
