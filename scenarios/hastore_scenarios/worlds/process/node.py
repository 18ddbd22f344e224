"""A node of the process world: its directory, its process and its link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from hastore.env.real import real_env
from hastore.quantities import format_address
from hastore.testing.free_port import FreePort
from hastore_scenarios.judge.log_image import log_end
from hastore_scenarios.story.world import LinkMode
from hastore_scenarios.worlds.node_config import to_toml, with_defaults
from hastore_scenarios.worlds.process.coordinator import ProcessCoordinator
from hastore_scenarios.worlds.process.node_process import NodeProcess, tail
from hastore_scenarios.worlds.staged_node import StagedNode

if TYPE_CHECKING:
    from pathlib import Path

    from hastore.env.interface import Disk
    from hastore.testing.group import ReplicaGroup
    from hastore_scenarios.worlds.process.faulty_node import NodeFaults
    from hastore_scenarios.worlds.process.proxy import Proxy


@attrs.define(eq=False, kw_only=True)
class ProcessNode(StagedNode):
    """One directory under the world's, and the process on it, if one runs.

    ``proxy`` is the link to ``master``; None for a master, and for a slave that is connected
    directly.  ``faults`` controls the faults of its disk, None if it cannot have any.
    """

    directory: Path
    process: NodeProcess | None = None
    proxy: Proxy | None = None
    proxy_scope: trio.CancelScope | None = None
    ha_port: int = 0  # a master that direct slaves know keeps its port
    held_ports: list[FreePort] = attrs.field(factory=list)  # keep ports between two starts
    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()  # the beginning of its command line
    faults: NodeFaults | None = None

    @property
    def is_running(self) -> bool:
        """Whether a process runs on the directory."""
        return self.process is not None and self.process.is_running

    @property
    def exit_code(self) -> int | None:
        """The exit code of its last process."""
        return None if self.process is None else self.process.process.returncode

    @property
    def output_path(self) -> Path:
        """The file with the output of all its processes."""
        return self.directory.with_name(self.directory.name + ".log")

    @property
    def link_mode(self) -> LinkMode:
        """The state of the link to its master."""
        return LinkMode.OPEN if self.proxy is None else self.proxy.mode

    def address(self) -> tuple[str, int] | None:
        """Return its client address; None while it does not run."""
        return self.process.address if self.process is not None and self.is_running else None

    def ha_address(self) -> tuple[str, int]:
        """Return its HA address; a classic one must run."""
        if self.group is not None:
            return self.host, self._held(1)
        assert self.process is not None
        assert self.process.ha_address is not None, f"{self.name} is a slave"
        return self.process.ha_address

    def observer_address(self) -> tuple[str, int]:
        """Return the address for observers of its group."""
        return self.host, self._held(2)

    def _held(self, number: int) -> int:
        """Return a port that it keeps between two starts.

        Of a group's node: 0 for clients, 1 for slaves, 2 for observers.
        """
        while len(self.held_ports) <= number:
            self.held_ports.append(FreePort())
        return self.held_ports[number].number

    @property
    def disk(self) -> Disk:
        """This machine's."""
        return real_env().disk

    @property
    def data_path(self) -> Path:
        """Its directory."""
        return self.directory

    def output(self) -> str:
        """Return the end of its processes' output."""
        return tail(self.output_path)

    # -- what is done to it

    async def boot(self) -> None:
        """Start a process."""
        if self.group is None and self.is_master and not self.ha_port and not self.prefix:
            self.ha_port = self._held(0)  # it has no host of its own
        self.process = await NodeProcess.start(
            self.name,
            self.arguments(),
            data_dir=self.directory,
            output_path=self.output_path,
            prefix=self.prefix,
            faults=self.faults,
        )
        if self.group is None and self.is_master:
            self.ha_port = self.ha_address()[1]

    async def end(self) -> None:
        """End its process, if it runs, and release its port."""
        if self.process is not None:
            await self.process.process.end()
        for port in self.held_ports:
            port.release()

    async def terminate(self) -> int:
        """Stop the process with SIGTERM; return its exit code."""
        assert self.process is not None
        return await self.process.stop()

    async def slay(self) -> int:
        """Kill the process with SIGKILL; return its exit code."""
        assert self.process is not None
        return await self.process.kill()

    async def freeze(self) -> None:
        """Freeze the process with SIGSTOP."""
        assert self.process is not None
        await self.process.pause()

    async def thaw(self) -> None:
        """Let the process run on with SIGCONT."""
        assert self.process is not None
        await self.process.resume()

    async def wait_gone(self) -> int:
        """Wait until the process has ended; return its exit code."""
        assert self.process is not None
        return await self.process.process.wait()

    async def log_end(self) -> int:
        """Return the end of the last intact record of its log."""
        disk = real_env().disk
        return await trio.to_thread.run_sync(lambda: log_end(disk, str(self.directory)))

    def arguments(self) -> list[str]:
        """Write its TOML file; return the command line after ``hastore``."""
        toml_path = self.directory.with_name(self.directory.name + ".toml")
        toml_path.write_text(to_toml(with_defaults(self.config)), encoding="utf-8")
        client_port = 0 if self.group is None else self._held(0)
        common = [
            "--data",
            str(self.directory),
            "--flush",
            self.flush.value,
            "--listen",
            f"{self.host}:{client_port}",
            "--log-format",
            "json",
            "-c",
            str(toml_path),
        ]
        if self.group is not None:
            return ["node", *common, *self._group_arguments(self.group)]
        if self.is_master:
            ha_listen = f"{self.host}:{self.ha_port}"
            return ["master", *common, "--broker-role", self.role.value, "--ha-listen", ha_listen]
        assert self.master is not None
        host, port = self.master.port_for_slaves() if self.proxy is None else self.proxy.address
        return ["slave", *common, "--master", f"{host}:{port}", "--from", self.slave_from.value]

    def _group_arguments(self, group: ReplicaGroup[Any]) -> list[str]:
        """Return what a node of a replica group is told at its start: not its role."""
        decides = ["--remote-roles"]
        if isinstance(self.coordinator, ProcessCoordinator):
            decides = ["--etcd", ",".join(self.coordinator.endpoints_for(self))]
        return [
            "--node-id",
            str(self.node_id),
            "--node-group",
            self.group_name,
            "--group-ids",
            ",".join(map(str, group.ids)),
            "--broker-role",
            group.role.value,
            "--ha-listen",
            format_address(self.ha_address()),
            "--observer-listen",
            format_address(self.observer_address()),
            *decides,
        ]
