"""A node of the process world: its directory, what it was started as, its process, its link."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.config import HAConfig, StoreConfig
from hastore.status import BrokerRole, FlushDiskType, SlaveStart
from scenarios.node_config import to_toml, with_defaults
from scenarios.node_process import NodeProcess, tail
from scenarios.world import LinkMode

if TYPE_CHECKING:
    from pathlib import Path

    import trio

    from scenarios.proxy import Proxy
    from scenarios.put_stream import PutStream


@final
@attrs.define(eq=False, kw_only=True)
class ProcessNode:
    """One directory under the world's, and the process on it, if one runs.

    ``proxy`` is the link to ``master``; None for a master, and for a slave that is connected
    directly.  ``disturbances`` counts what was done to it; ``healthy_at`` is that count when it was
    last seen healthy.
    """

    name: str
    directory: Path
    role: BrokerRole
    flush: FlushDiskType
    config: dict[str, object]
    slave_from: SlaveStart = SlaveStart.EARLIEST
    master: ProcessNode | None = None
    process: NodeProcess | None = None
    proxy: Proxy | None = None
    proxy_scope: trio.CancelScope | None = None
    stream: PutStream | None = None
    is_paused: bool = False
    disturbances: int = 0
    healthy_at: int | None = None
    ha_port: int = 0  # a master that direct slaves know keeps its port

    @property
    def is_running(self) -> bool:
        """Whether a process runs on the directory."""
        return self.process is not None and self.process.is_running

    @property
    def is_master(self) -> bool:
        """Whether it was last started as a master."""
        return self.role is not BrokerRole.SLAVE

    @property
    def output_path(self) -> Path:
        """What its processes have logged, one after the other."""
        return self.directory.with_name(self.directory.name + ".log")

    def address(self) -> tuple[str, int] | None:
        """Where it answers clients; None while it does not run."""
        return self.process.address if self.process is not None and self.is_running else None

    def ha_address(self) -> tuple[str, int]:
        """Where it takes slaves; it must run."""
        assert self.process is not None
        assert self.process.ha_address is not None, f"{self.name} is a slave"
        return self.process.ha_address

    def output(self) -> str:
        """Give the end of what its processes have logged."""
        return tail(self.output_path)

    def disturbed(self) -> None:
        """Note that something was done to it."""
        self.disturbances += 1

    def arguments(self) -> list[str]:
        """Give the command line behind ``hastore``, its TOML file written."""
        toml_path = self.directory.with_name(self.directory.name + ".toml")
        toml_path.write_text(to_toml(with_defaults(self.config), role=self.role), encoding="utf-8")
        common = [
            "--data",
            str(self.directory),
            "--flush",
            self.flush.value,
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "-c",
            str(toml_path),
        ]
        if self.is_master:
            ha_listen = f"127.0.0.1:{self.ha_port}"
            return ["master", *common, "--broker-role", self.role.value, "--ha-listen", ha_listen]
        assert self.master is not None
        host, port = self.master.ha_address() if self.proxy is None else self.proxy.address
        return ["slave", *common, "--master", f"{host}:{port}", "--from", self.slave_from.value]

    def facts(self) -> dict[str, object]:
        """Give what the checker must know of this start."""
        config = with_defaults(self.config)
        facts: dict[str, object] = {"flush": self.flush.value, "role": self.role.value}
        for kind in (StoreConfig, HAConfig):
            for name in ("slave_timeout_ms", "ha_slave_fallbehind_max", "sync_flush_timeout_ms"):
                field = getattr(attrs.fields(kind), name, None)
                if field is not None:
                    facts[name] = config.get(name, field.default)
        if self.master is not None:
            facts["master"] = self.master.name
            facts["flows"] = self.proxy is None or self.proxy.mode is LinkMode.OPEN
        return facts
