"""What the nodes of every world have in common: what they were started as, and what befell them.

A world's own kind of node adds how it is started, ended and frozen: a process, or a simulated host.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import attrs

from hastore.status import BrokerRole, FlushDiskType, SlaveStart
from hastore_scenarios.story.world import LinkMode
from hastore_scenarios.worlds.node_config import default_of, with_defaults

if TYPE_CHECKING:
    from typing import Self

    from hastore_scenarios.worlds.put_stream import PutStream


@attrs.define(eq=False, kw_only=True)
class StagedNode(abc.ABC):
    """One log, and what runs on it, if anything does.

    ``disturbances`` counts what was done to it; ``healthy_at`` is that count when it was last seen
    healthy.
    """

    name: str
    role: BrokerRole
    flush: FlushDiskType
    config: dict[str, object]
    slave_from: SlaveStart = SlaveStart.EARLIEST
    master: Self | None = None
    stream: PutStream | None = None
    is_paused: bool = False
    disturbances: int = 0
    healthy_at: int | None = None
    disk_fault: str | None = None  # what its disk suffers from at the moment

    # -- what it is

    @property
    @abc.abstractmethod
    def is_running(self) -> bool:
        """Whether something runs on the log."""

    @property
    @abc.abstractmethod
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or before it ever did."""

    @property
    def is_master(self) -> bool:
        """Whether it was last started as a master."""
        return self.role is not BrokerRole.SLAVE

    @property
    def link_mode(self) -> LinkMode:
        """What the network does between it and its master."""
        return LinkMode.OPEN

    @abc.abstractmethod
    def address(self) -> tuple[str, int] | None:
        """Where it answers clients; None while it does not run."""

    @abc.abstractmethod
    def ha_address(self) -> tuple[str, int]:
        """Where it takes slaves; it must run."""

    @abc.abstractmethod
    def output(self) -> str:
        """Return the end of what it has logged."""

    # -- what is done to it

    @abc.abstractmethod
    async def boot(self) -> None:
        """Start it and wait until it listens; NodeFailed where it never does."""

    @abc.abstractmethod
    async def terminate(self) -> int:
        """End it as an operator does and give its exit code; NodeFailed where that takes long."""

    @abc.abstractmethod
    async def slay(self) -> int:
        """End it as a crash does; it is gone when this returns."""

    @abc.abstractmethod
    async def freeze(self) -> None:
        """Let it run no instruction more."""

    @abc.abstractmethod
    async def thaw(self) -> None:
        """Let it run on."""

    @abc.abstractmethod
    async def wait_gone(self) -> int:
        """Wait until it has ended by itself, and give its exit code."""

    @abc.abstractmethod
    async def log_end(self) -> int:
        """Return the end of the last good record of its log; it does not run."""

    def disturbed(self) -> None:
        """Note that something was done to it."""
        self.disturbances += 1

    def facts(self) -> dict[str, object]:
        """Return what the checker must know of this start."""
        config = with_defaults(self.config)
        facts: dict[str, object] = {"flush": self.flush.value, "role": self.role.value}
        for name in ("sync_flush_timeout_ms", "slave_timeout_ms", "ha_slave_fallbehind_max"):
            facts[name] = config.get(name, default_of(name))
        if self.master is not None:
            facts["master"] = self.master.name
            facts["flows"] = self.link_mode is LinkMode.OPEN
        return facts
