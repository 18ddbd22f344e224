"""The base of the nodes of every world: settings, link and disturbances.

The node of a world, a process or a simulated host, adds how it is started, ended and frozen.
A node of a replica group is told its role once it runs (`GroupMember`); each time it is told, the
world records it.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.status import BrokerRole, FlushDiskType, SlaveStart
from hastore.testing.group_member import GroupMember
from hastore.testing.runner import NodeDiedError
from hastore_scenarios.story.world import LinkMode
from hastore_scenarios.worlds.node_config import default_of, with_defaults

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from hastore.testing.group import ReplicaGroup
    from hastore_scenarios.worlds.coordinator import StagedCoordinator
    from hastore_scenarios.worlds.put_stream import PutStream

STOP_WITHIN_S: Final = 60.0  # for a very busy machine; usually a stop takes less than 0.3 s


@attrs.define(eq=False, kw_only=True)
class StagedNode(GroupMember):
    """One log, and the node that runs on it, if one does.

    ``disturbances`` counts the actions that disturbed it; ``healthy_at`` is that count when it was
    last seen healthy.
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
    disk_fault: str | None = None  # the lasting fault of its disk
    group: ReplicaGroup[Any] | None = None  # None: a classic node
    group_name: str = ""
    node_id: int = 0  # its place in the group, from 1 on
    coordinator: StagedCoordinator | None = None  # that decides on its role; None: the story does
    cut_from: set[str] = attrs.field(factory=set)  # the nodes of its group that it cannot reach
    # Whom it was told to follow since its start, and in which epoch; None: nothing yet.
    told: tuple[Self | None, int] | None = None
    # The world's: called before a change of its role, it returns what to call after it.
    on_role: Callable[[Any], Callable[..., None]] = lambda _node: _ignore

    # -- state

    @property
    @abc.abstractmethod
    def is_running(self) -> bool:
        """Whether a node runs on the log."""

    @property
    @abc.abstractmethod
    def exit_code(self) -> int | None:
        """The last exit code; None while it runs, or before its first start."""

    @property
    def is_master(self) -> bool:
        """Whether it was last started as a master."""
        return self.role is not BrokerRole.SLAVE

    @property
    def link_mode(self) -> LinkMode:
        """The state of the link to its master."""
        return LinkMode.OPEN

    @abc.abstractmethod
    def address(self) -> tuple[str, int] | None:
        """Return its client address; None while it does not run."""

    @abc.abstractmethod
    def ha_address(self) -> tuple[str, int]:
        """Return its HA address; it must run."""

    @abc.abstractmethod
    def observer_address(self) -> tuple[str, int]:
        """Return the address for classic slaves of a node of a group."""

    def port_for_slaves(self) -> tuple[str, int]:
        """Return where classic slaves connect to it; they observe a group."""
        return self.ha_address() if self.group is None else self.observer_address()

    @abc.abstractmethod
    def output(self) -> str:
        """Return the end of its output."""

    # -- control

    @abc.abstractmethod
    async def boot(self) -> None:
        """Start it and wait until it listens.  Raises NodeFailed if it does not."""

    @abc.abstractmethod
    async def terminate(self) -> int:
        """Stop it as an operator does; return its exit code.  Raises NodeFailed if too slow."""

    @abc.abstractmethod
    async def slay(self) -> int:
        """Kill it; return its exit code once it is gone."""

    @abc.abstractmethod
    async def freeze(self) -> None:
        """Freeze it; it has stopped when this returns."""

    @abc.abstractmethod
    async def thaw(self) -> None:
        """Let it run on."""

    @abc.abstractmethod
    async def wait_gone(self) -> int:
        """Wait until it has ended by itself; return its exit code."""

    @abc.abstractmethod
    async def log_end(self) -> int:
        """Return the end of the last intact record of its log; it must not run."""

    # -- as a member of its group

    @property
    def is_reachable(self) -> bool:
        """Whether it runs and is not frozen."""
        return self.is_running and not self.is_paused

    async def started(self) -> None:
        """Start it."""
        await self.boot()

    def clients_at(self) -> tuple[str, int]:
        """Return its client address.  Raises NodeDiedError if it does not run."""
        address = self.address()
        if address is None:
            raise NodeDiedError(f"{self.name} does not run (exit {self.exit_code})")
        return address

    def slaves_at(self) -> tuple[str, int]:
        """Return its HA address."""
        return self.ha_address()

    async def lead(self, epoch: int, members: frozenset[int]) -> None:
        """Become the master of an epoch, with this SyncStateSet; return once it serves."""
        record = self.on_role(self)
        await super().lead(epoch, members)
        status = await self.asked()
        self.told = None
        record(epoch=epoch, epoch_start=status.epoch_start_offset, members=members)

    async def trail(self, master: Self | None, epoch: int) -> None:
        """Follow the master of an epoch (None: nobody) now, if it runs, and after each start."""
        record = self.on_role(self)
        await super().trail(master, epoch)
        if self.is_reachable and self.told != (master, epoch):
            self.told = master, epoch
            record(epoch=epoch)

    # -- what the checker must know

    def disturbed(self) -> None:
        """Record that something was done to it."""
        self.disturbances += 1

    def facts(self) -> dict[str, object]:
        """Return what the checker must know about this start."""
        config = with_defaults(self.config)
        facts: dict[str, object] = {"flush": self.flush.value, "role": self.role.value}
        for name in ("sync_flush_timeout_ms", "slave_timeout_ms", "ha_slave_fallbehind_max"):
            facts[name] = config.get(name, default_of(name))
        if self.master is not None:
            facts["master"] = self.master.name
            is_cut = self.master.name in self.cut_from
            facts["flows"] = self.link_mode is LinkMode.OPEN and not is_cut
            facts["observes"] = self.group is None and self.master.group is not None
        return facts


def _ignore(**_details: object) -> None:
    """Record nothing."""
