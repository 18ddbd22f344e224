"""A process in a network namespace, and the link between it and its master.

A story that refuses connections or splits the stream is skipped: a router can do neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore_scenarios.story.world import LinkMode, ScenarioSkipped
from hastore_scenarios.worlds.netns.network import AddressPair
from hastore_scenarios.worlds.process.node import ProcessNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore_scenarios.worlds.netns.network import NetnsNetwork


@final
@attrs.define(eq=False, kw_only=True)
class NetnsNode(ProcessNode):
    """A process in a namespace; its slaves find it at the same port after a restart."""

    number: int
    link: NetnsLink | None = None

    @property
    def link_mode(self) -> LinkMode:
        """The state of the link to its master."""
        return LinkMode.OPEN if self.link is None else self.link.mode


@final
@attrs.define(eq=False)
class NetnsLink:
    """The ways between a slave's host and its master's, through the router."""

    network: NetnsNetwork
    number: int  # the slave's
    slave: str
    master: str
    on_change: Callable[[LinkMode, str], None]
    mode: LinkMode = LinkMode.OPEN
    is_slow: bool = False

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Drop packets.  Raises ScenarioSkipped for REFUSE."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        if mode is LinkMode.REFUSE:
            raise ScenarioSkipped("a router refuses no connections")
        self._set(mode, "")

    def reset(self) -> None:
        """Kill the slave's connections in its kernel."""
        self.network.reset(self.number, self.master)
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate at which the slave receives."""
        self.network.shape(self.number, bytes_per_s)
        self.is_slow = True
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Raise ScenarioSkipped: only TCP decides how the stream is cut into packets."""
        raise ScenarioSkipped(f"a router does not cut streams into pieces of {chunk_size} bytes")

    def heal(self) -> None:
        """Let everything pass again."""
        if self.is_slow:
            self.network.shape(self.number, None)
            self.is_slow = False
        self._set(LinkMode.OPEN, "")

    @property
    def is_untouched(self) -> bool:
        """Whether everything passes at full speed."""
        return self.mode is LinkMode.OPEN and not self.is_slow

    def _set(self, mode: LinkMode, detail: str) -> None:
        self.mode = mode
        to_slave, to_master = (
            AddressPair(self.master, self.slave),
            AddressPair(self.slave, self.master),
        )
        dropped = {
            LinkMode.CUT: (to_slave, to_master),
            LinkMode.CUT_TO_SLAVE: (to_slave,),
            LinkMode.CUT_TO_MASTER: (to_master,),
        }.get(mode, ())
        for way in (to_slave, to_master):
            (self.network.drop if way in dropped else self.network.pass_again)(way)
        self.on_change(mode, detail)
