"""How a node runs: what a test's node asks of a thread's tasks and of a process alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from hastore.testing.node_settings import NodeStart


class NodeDiedError(HastoreError):
    """A node ended by itself, or does not run though it should."""


class NodeRunner(Protocol):
    """One run of one node, from ``start`` to its end."""

    async def start(self, settings: NodeStart) -> None:
        """Start it and wait until it serves; raises what kept it from that."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""

    @property
    def death(self) -> str | None:
        """Why it ended though nobody ended it; None where that is not so."""

    async def stop(self) -> None:
        """Stop it cleanly; nothing happens where it does not run."""

    async def kill(self) -> None:
        """End it as a crash does: nothing is flushed, ``abort`` stays."""

    async def end(self) -> None:
        """End it in the quickest way that leaves nothing behind; nothing where it has ended."""

    async def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""

    async def resume(self) -> None:
        """Let it run on."""
