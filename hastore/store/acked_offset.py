"""Up to where a process has acknowledged a log, in memory that outlives the process.

::

    acks ──▶ AckedOffset ──store──▶ 64 bytes of the machine's memory (tmpfs)
                                          │
    kill -9, restart in the same boot ────┴──▶ does the log still have all of it?

A killed process leaves its log in the page cache, as a rule.  Only a number that was kept elsewhere
proves it: files may have been restored, rolled back by their file system, or cut by an opening.

Layout, native byte order; the bytes mean nothing after a reboot::

    0        8                 24              32
    ├─ magic ┼─ digest of boot ┼─ acked offset ┼─ zeros ─ … ─ 64

Invariant: the number is stored before the acknowledgement leaves, and it never falls, except by
``lower`` before a cut.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Self, final

import attrs

if TYPE_CHECKING:
    from hastore.env.interface import Env, KeptMemory

_SIZE: Final = 64
_MAGIC: Final = b"hastore1"
_HEAD_SIZE: Final = 24
_NUMBER: Final = 3  # of the 8-byte words: the acked offset


@final
@attrs.define(eq=False)
class AckedOffset:
    """The number of one directory, held while its store is open; offsets are exclusive."""

    _memory: KeptMemory
    _head: bytes  # magic and digest of this boot
    _words: memoryview
    _offset: int = 0

    @classmethod
    def hold(cls, env: Env, directory_uuid: str) -> Self | None:
        """Hold the number of a directory; None if this machine keeps none.

        Raises StoreLockedError while another process holds it: it runs on a copy of the directory.
        """
        if env.boot_id is None:
            return None
        memory = env.machine_memory.hold(directory_uuid, _SIZE)
        if memory is None:
            return None
        head = _MAGIC + hashlib.sha256(env.boot_id.encode()).digest()[: _HEAD_SIZE - len(_MAGIC)]
        held = cls(memory, head, memoryview(memory.buffer).cast("Q"))
        held._offset = held.kept() or 0
        return held

    def kept(self) -> int | None:
        """Return the number; None if no process of this boot has stored one."""
        if bytes(self._memory.buffer[:_HEAD_SIZE]) != self._head:
            return None
        return self._words[_NUMBER]

    def begin(self, offset: int) -> None:
        """Store a number, whatever was there."""
        self._offset = self._words[_NUMBER] = offset
        self._memory.buffer[:_HEAD_SIZE] = self._head  # last: before it, the number counts nothing

    def raise_to(self, offset: int) -> None:
        """Store ``offset`` if it is higher; to be called before it is acknowledged."""
        if offset > self._offset:
            self._offset = self._words[_NUMBER] = offset

    def lower(self, offset: int) -> None:
        """Store ``offset`` if it is lower: the log is about to be cut there."""
        if offset < self._offset:
            self._offset = self._words[_NUMBER] = offset

    def close(self, *, remove: bool = False) -> None:
        """Release it for the next process; ``remove`` the number, too, after a clean stop."""
        self._words.release()
        if remove:
            self._memory.remove()
        self._memory.close()
