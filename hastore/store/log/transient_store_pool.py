"""Write buffers: memory that appends go to before they are committed to a file.

::

    append ──► WriteBuffer ──commit (pwrite)──► page cache ──flush (fdatasync)──► disk
               lost with the process            lost with the machine             kept

A buffer is as large as a file of the log.  It is borrowed when a file is made, and given back once
that file is full and committed; so two are in use while the disk keeps up, and buffers are only
made when needed.  If all are in use, appends go through the file's map, as without a pool.  Buffers
are locked in memory if the kernel allows it: a swapped-out page would make an append wait for the
disk after all.

Invariant: a buffer belongs to one file or is free.  A free one holds old bytes, so only the bytes
that were written for its file are ever committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.trace import logger

if TYPE_CHECKING:
    import mmap

    from hastore.env.interface import Memory

_log = logger("store")


@final
@attrs.frozen(eq=False)
class WriteBuffer:
    """The memory of one file, position by position; ``view`` is all of it."""

    memory: mmap.mmap  # noqa: TID251 - its type; the map itself is the environment's
    view: memoryview


@final
@attrs.define(eq=False)
class TransientStorePool:
    """At most ``size`` buffers of ``buffer_size`` bytes."""

    memory: Memory
    buffer_size: int
    size: int
    lock_refusal: str | None = attrs.field(default=None, init=False)
    _buffers: list[WriteBuffer] = attrs.field(factory=list, init=False)
    _free: list[WriteBuffer] = attrs.field(factory=list, init=False)
    _unlocked: list[WriteBuffer] = attrs.field(factory=list, init=False)
    _was_empty: bool = attrs.field(default=False, init=False)

    @property
    def available(self) -> int:
        """Number of buffers that can still be borrowed."""
        return len(self._free) + self.size - len(self._buffers)

    def borrow(self) -> WriteBuffer | None:
        """Return a free or new buffer; None if all are in use or there is no memory."""
        if self._free:
            return self._free.pop()
        if len(self._buffers) < self.size:
            try:
                memory = self.memory.anonymous(self.buffer_size)
            except OSError as error:
                self._warn(f"no memory for one: {error}")
                return None
            buffer = WriteBuffer(memory, memoryview(memory))
            self._buffers.append(buffer)
            self._unlocked.append(buffer)
            return buffer
        self._warn(f"all {self.size} are in use: commits are slower than appends")
        return None

    def give_back(self, buffer: WriteBuffer) -> None:
        """Take back a buffer that its file no longer needs."""
        assert buffer in self._buffers
        assert buffer not in self._free, "a buffer is given back once"
        self._free.append(buffer)
        self._was_empty = False

    def lock(self) -> None:
        """Lock the new buffers; blocks.  A refusal is final and logged once."""
        while self._unlocked and self.lock_refusal is None:
            refusal = self.memory.lock(self._unlocked.pop().memory)
            if refusal is not None:
                self.lock_refusal = refusal
                _log.warning(
                    "write_buffers_not_locked",
                    reason=refusal,
                    effect="an append may wait for swapped memory",
                )

    def close(self) -> None:
        """Free all memory, committed or not; idempotent."""
        buffers, self._buffers = self._buffers, []
        self._free, self._unlocked = [], []
        self.size = 0
        for buffer in buffers:
            buffer.view.release()
            buffer.memory.close()

    def _warn(self, reason: str) -> None:
        if not self._was_empty:
            self._was_empty = True
            _log.warning("no_write_buffer", reason=reason, effect="this file is written directly")
