"""The slave's double read buffer: received into, parsed in place, reallocated when full.

::

      0        dispatch_position     write_position        size
      +--------+---------------------+---------------------+
      | parsed | not parsed yet      | free                |   buffer
      +--------+---------------------+---------------------+
      |                     backup, same size              |
      +----------------------------------------------------+

When the buffer is full, the unparsed bytes are copied to the front of the backup and the two swap
places (RocketMQ's ``HAClient.reallocateByteBuffer``).  When everything is parsed, both positions go
back to 0 instead, which copies nothing and keeps the same memory warm.

Invariant: 0 <= dispatch_position <= write_position <= size.
"""

from __future__ import annotations

from typing import final


@final
class DoubleReadBuffer:
    """Two buffers of ``size`` bytes; ``view`` is the one in use."""

    __slots__ = ("_backup", "dispatch_position", "size", "view", "write_position")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self._backup: memoryview | None = None  # allocated when first needed
        self.write_position = 0
        self.dispatch_position = 0

    @property
    def unparsed(self) -> int:
        """Bytes that were received and not yet consumed."""
        return self.write_position - self.dispatch_position

    def free(self) -> memoryview:
        """Return the space to receive into; never empty."""
        if self.dispatch_position == self.write_position:
            self.dispatch_position = self.write_position = 0
        elif self.write_position == self.size:
            self._reallocate()
        return self.view[self.write_position :]

    def received(self, count: int) -> None:
        """Record that ``count`` bytes were received into ``free()``."""
        assert 0 <= count <= self.size - self.write_position
        self.write_position += count

    def consume(self, count: int) -> None:
        """Record that ``count`` bytes were parsed."""
        assert 0 <= count <= self.write_position - self.dispatch_position
        self.dispatch_position += count

    def clear(self) -> None:
        """Empty the buffer, for a new connection."""
        self.write_position = self.dispatch_position = 0

    def _reallocate(self) -> None:
        remaining = self.size - self.dispatch_position
        assert remaining < self.size, "a frame larger than the buffer must be refused by its header"
        backup = self._backup if self._backup is not None else memoryview(bytearray(self.size))
        backup[:remaining] = self.view[self.dispatch_position :]
        self.view, self._backup = backup, self.view
        self.write_position = remaining
        self.dispatch_position = 0
