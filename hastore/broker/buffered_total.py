"""What all clients together have sent of requests that are not whole yet, and who goes beyond it.

It is the largest that goes: a client whose request is small is never closed for others' large ones.

Invariant: ``size`` is at most ``size_max`` after each ``count``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sender(Protocol):
    """A connection with a request that is not whole yet."""

    @property
    def buffered_size(self) -> int:
        """Bytes of it."""

    def close_largest(self, total: int) -> None:
        """Close it; it is taken out of the sum within."""


@final
@attrs.define(eq=False)
class BufferedTotal:
    """The sum, and its limit."""

    size_max: int
    senders: Iterable[Sender]
    size: int = attrs.field(default=0, init=False)

    def count(self, size: int) -> None:
        """Count bytes that are kept more, or (negative) less."""
        self.size += size
        while self.size > self.size_max:
            # Of equals the newest.
            largest = max(reversed(list(self.senders)), key=lambda sender: sender.buffered_size)
            assert largest.buffered_size, "the sum is somebody's"
            largest.close_largest(self.size)
