"""A free port that stays ours while nobody listens on it: a node restarts where its peers look.

The kernel gives the port (0 is asked for) to a socket that is bound and never listens.  As both
that socket and the node's set SO_REUSEADDR, the node may bind the same port, and nobody is given
it by chance meanwhile.
"""

from __future__ import annotations

import socket
from typing import final

from hastore.testing.node_settings import HOST


@final
class FreePort:
    """A reserved port of the loopback; ``release`` it in the end."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, 0))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give it back; idempotent."""
        self._socket.close()
