"""A reserved port: a node that restarts listens on it again.

The kernel assigns the port (0 is asked for) to a socket that is bound and never listens.  Both that
socket and the node's set SO_REUSEADDR, so the node may bind the same port, but the kernel assigns
it to no other socket.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self, final

from hastore.testing.node_settings import HOST

if TYPE_CHECKING:
    from types import TracebackType


@final
class FreePort:
    """A reserved port of the loopback interface, until ``release`` or the end of a ``with``."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, 0))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        """Return the port."""
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        """Release it."""
        self.release()

    def release(self) -> None:
        """Release the port; idempotent."""
        self._socket.close()
