"""The bytes of incomplete requests of all clients, and which client is closed if they are too many.

The largest connection of the peer that has sent the most is closed, so no client is closed for what
others send, whether they send one large request or many small ones.

Invariant: ``size`` is at most ``size_max`` after each ``count``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

from hastore.concurrency.peers import peer_key

if TYPE_CHECKING:
    from collections.abc import Iterable


_peer_key: Final = lru_cache(maxsize=4096)(peer_key)  # some microseconds for IPv6


class Sender(Protocol):
    """A connection, perhaps with an incomplete request."""

    peer: tuple[str, int]

    @property
    def buffered_size(self) -> int:
        """Bytes of its incomplete request."""

    def close_largest(self, total: int) -> None:
        """Close it, and take its bytes out of the sum before returning."""


@final
@attrs.define(eq=False)
class BufferedTotal:
    """The sum over all ``senders``, and its limit."""

    size_max: int
    senders: Iterable[Sender]
    size: int = attrs.field(default=0, init=False)

    def count(self, size: int) -> None:
        """Add bytes to the sum, or (negative) remove them."""
        self.size += size
        while self.size > self.size_max:
            peers: dict[str, list[Sender]] = {}
            for sender in reversed(list(self.senders)):  # of equals, the newest
                if sender.buffered_size:
                    peers.setdefault(_peer_key(sender.peer[0]), []).append(sender)
            most = max(peers.values(), key=lambda senders: sum(map(_size, senders)))
            max(most, key=_size).close_largest(self.size)


def _size(sender: Sender) -> int:
    return sender.buffered_size
