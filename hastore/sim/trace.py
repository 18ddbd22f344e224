"""The events of a run in order, and their SHA-256: the same for the same seed."""

from __future__ import annotations

import hashlib
from typing import final

import attrs
import trio


@final
@attrs.frozen
class TraceEntry:
    """One event; an ``is_detail`` helps only to find a cause."""

    at: float
    who: str
    what: str
    is_detail: bool = False

    def __str__(self) -> str:
        return f"{self.at:12.6f}  {self.who:<9} {self.what}"


@final
@attrs.define(eq=False)
class Trace:
    """All entries; they are kept if ``keeps``, and always hashed."""

    keeps: bool = False
    entries: list[TraceEntry] = attrs.field(factory=list)
    count: int = 0
    _digest: hashlib._Hash = attrs.field(factory=hashlib.sha256)

    def add(self, who: str, what: str, *, is_detail: bool = False, at: float | None = None) -> None:
        """Add an entry; ``at`` is its time in seconds if the run has ended."""
        entry = TraceEntry(trio.current_time() if at is None else at, who, what, is_detail)
        self._digest.update(f"{entry}\n".encode())
        self.count += 1
        if self.keeps:
            self.entries.append(entry)

    @property
    def lines(self) -> list[str]:
        """Return the entries as text."""
        return [str(entry) for entry in self.entries]

    @property
    def hash(self) -> str:
        """Return the hex digest of all entries."""
        return self._digest.hexdigest()
