"""The link between a slave and its master in the simulator, each direction for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.sim.network import Way
from hastore_scenarios.story.world import LinkMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.sim.network import Network


@final
@attrs.define(eq=False)
class SimLink:
    """The ways between a slave's host and its master's."""

    network: Network
    slave: str
    master: str
    on_change: Callable[[LinkMode, str], None]
    mode: LinkMode = LinkMode.OPEN
    is_untouched: bool = True

    @property
    def _to_slave(self) -> Way:
        return Way(self.master, self.slave)

    @property
    def _to_master(self) -> Way:
        return Way(self.slave, self.master)

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt the link as ``mode`` says."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        self._set(mode, "")

    def reset(self) -> None:
        """Reset all connections."""
        self.network.reset_between(self.slave, self.master)
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate of the master's bytes."""
        self.network.bytes_per_s[self._to_slave] = bytes_per_s
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Deliver bytes in pieces of at most ``chunk_size``."""
        for way in (self._to_slave, self._to_master):
            self.network.piece_max[way] = chunk_size
        self._set(self.mode, f"pieces of {chunk_size} bytes")

    def heal(self) -> None:
        """Let everything pass again."""
        for way in (self._to_slave, self._to_master):
            self.network.piece_max.pop(way, None)
            self.network.bytes_per_s.pop(way, None)
        self._set(LinkMode.OPEN, "")
        self.is_untouched = True

    def _set(self, mode: LinkMode, detail: str) -> None:
        self.mode = mode
        self.is_untouched = False
        closed = {
            LinkMode.CUT: (self._to_slave, self._to_master),
            LinkMode.CUT_TO_SLAVE: (self._to_slave,),
            LinkMode.CUT_TO_MASTER: (self._to_master,),
        }.get(mode, ())
        for way in (self._to_slave, self._to_master):
            (self.network.cut if way in closed else self.network.repair)(*way)
        if mode is LinkMode.REFUSE:
            self.network.refused[self._to_master] = None
            self.network.reset_between(self.slave, self.master)
        else:
            self.network.refused.pop(self._to_master, None)
        self.on_change(mode, detail)
