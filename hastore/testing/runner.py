"""The interface of a running node, implemented by tasks in a thread and by a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from hastore.testing.node_settings import NodeStart


class NodeDiedError(HastoreError):
    """A node ended by itself, or does not run although it should."""


class NodeRunner(Protocol):
    """One run of a node, from ``start`` to its end."""

    async def start(self, settings: NodeStart) -> None:
        """Start it and wait until it serves; raise the error that prevents that."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""

    @property
    def death(self) -> str | None:
        """Why it ended by itself; None if it did not."""

    async def stop(self) -> None:
        """Stop it cleanly; do nothing if it does not run.  Raises NodeDiedError."""

    async def kill(self) -> None:
        """Crash it: nothing is flushed, ``abort`` stays."""

    async def end(self) -> None:
        """End it in the quickest way; do nothing if it has ended."""

    async def pause(self) -> None:
        """Freeze it: connections stay open, requests get no answer."""

    async def resume(self) -> None:
        """Let it run on."""
