"""Up to where a process has acknowledged a log, in memory that outlives the process.

::

    acks ──▶ AckedOffset ──store──▶ 64 bytes of the machine's memory (tmpfs)
                                          │
    kill -9, restart in the same boot ────┴──▶ does the log still have all of it?

A killed process leaves its log in the page cache, as a rule.  Only a number that was kept elsewhere
proves it: files may have been restored, rolled back by their file system, or cut by an opening.

Layout, native byte order; the bytes mean nothing after a reboot::

    0        8                            24              32
    ├─ magic ┼─ digest of boot and token ─┼─ acked offset ┼─ zeros ─ … ─ 64

The token is that of the start that acknowledges (``cluster/registration``).  A number that an
earlier start has left, because a later one had another memory, proves nothing.  A start stores its
number once its claim has been accepted, or else at its first acknowledgement: one that is refused
leaves that of the directory's owner as it is.

Invariant: the number is stored before the acknowledgement leaves, and it never falls, except by
``lower`` before a cut, and by ``begin`` after what an opening has found is durable.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Self, final

import attrs

if TYPE_CHECKING:
    from hastore.env.interface import Env, KeptMemory
    from hastore.store.node_identity import NodeIdentity

_SIZE: Final = 64
_MAGIC: Final = b"hastore2"
_HEAD_SIZE: Final = 24
_NUMBER: Final = 3  # of the 8-byte words: the acked offset


@final
@attrs.define(eq=False)
class AckedOffset:
    """The number of one directory, held while its store is open; offsets are exclusive."""

    _memory: KeptMemory
    _boot_id: str
    _identity: NodeIdentity
    _words: memoryview
    _offset: int = -1  # what ``raise_to`` compares with
    _prepared: int | None = None  # to be stored with the claim, or before the first acknowledgement

    @classmethod
    def hold(cls, env: Env, identity: NodeIdentity) -> Self | None:
        """Hold the number of a directory; None if this machine keeps none.

        Raises StoreLockedError while another process holds it: it runs on a copy of the directory.
        """
        if env.boot_id is None:
            return None
        memory = env.machine_memory.hold(identity.current.uuid, _SIZE)
        if memory is None:
            return None
        held = cls(memory, env.boot_id, identity, memoryview(memory.buffer).cast("Q"))
        held._offset = held.kept() or 0
        identity.on_matched, identity.on_claimed = held._matched, held._claimed
        return held

    def _head(self, token: str | None) -> bytes:
        """Return magic and digest for a start of this boot."""
        digest = hashlib.sha256(f"{self._boot_id}/{token or ''}".encode()).digest()
        return _MAGIC + digest[: _HEAD_SIZE - len(_MAGIC)]

    def kept(self) -> int | None:
        """Return the number; None if no start of this boot, that the directory knows, stored it."""
        current = self._identity.current
        tokens = {current.token, current.former_token or current.token}
        if bytes(self._memory.buffer[:_HEAD_SIZE]) not in map(self._head, tokens):
            return None
        return self._words[_NUMBER]

    def prepare(self, offset: int) -> None:
        """Let this start store a number with its claim, or at its first acknowledgement."""
        self._prepared, self._offset = offset, -1

    def begin(self, offset: int) -> None:
        """Store a number, whatever was there."""
        self._prepared, self._identity.has_acked_offset = None, True
        self._offset = self._words[_NUMBER] = offset
        # Last: before it, the number counts nothing.
        self._memory.buffer[:_HEAD_SIZE] = self._head(self._identity.current.token)

    def _matched(self, token: str) -> None:
        """Let a number be the one of the start whose token the coordinator has.

        That start asked for its claim, and was killed before the answer: the number is still of the
        start before, which the directory forgets now.
        """
        if self.kept() is not None:
            self._memory.buffer[:_HEAD_SIZE] = self._head(token)

    def _claimed(self) -> None:
        self.begin(self._offset if self._prepared is None else self._prepared)

    def raise_to(self, offset: int) -> None:
        """Store ``offset`` if it is higher; to be called before it is acknowledged."""
        if offset > self._offset:
            if self._prepared is not None:
                self._identity.runs()
                offset = max(offset, self._prepared)
                self.begin(self._prepared)
            self._offset = self._words[_NUMBER] = offset

    def lower(self, offset: int) -> None:
        """Store ``offset`` if it is lower: the log is about to be cut there."""
        if self._prepared is not None:
            self._prepared = min(self._prepared, offset)
        elif offset < self._offset:
            self._offset = self._words[_NUMBER] = offset

    def close(self) -> None:
        """Release it for the next process."""
        self._identity.on_matched = self._identity.on_claimed = None
        self._words.release()
        self._memory.close()
