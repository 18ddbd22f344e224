"""The events of a run in order, and their SHA-256: the same for the same seed."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEFT_OUT: Final = ("event", "level", "part", "timestamp")  # of what nodes log


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
    _digest: hashlib._Hash = attrs.field(factory=hashlib.sha256)

    def add(self, who: str, what: str, *, is_detail: bool = False, at: float | None = None) -> None:
        """Add an entry; ``at`` is its time in seconds if the run has ended."""
        entry = TraceEntry(trio.current_time() if at is None else at, who, what, is_detail)
        self._digest.update(f"{entry}\n".encode())
        if self.keeps:
            self.entries.append(entry)

    @property
    def hash(self) -> str:
        """Return the hex digest of all entries."""
        return self._digest.hexdigest()


@contextlib.contextmanager
def node_log(take: Callable[[int, str], None]) -> Iterator[None]:
    """Call ``take(level, text)`` for each event that nodes log, from INFO on, during the block.

    Nodes log through the stdlib logger ``hastore`` (``hastore.trace``), which is diverted: without
    real time and without output.
    """
    logger: Any = logging.getLogger("hastore")

    def is_enabled_for(level: int) -> bool:
        return level >= logging.INFO

    def log(level: int, event: Any, *_args: object, **_kwargs: object) -> None:
        take(level, _text(event))

    own = {
        "disabled": False,
        "isEnabledFor": is_enabled_for,
        "getEffectiveLevel": lambda: logging.INFO,  # structlog asks this
        "_log": log,
    }
    before = {name: value for name, value in vars(logger).items() if name in own}
    vars(logger).update(own)  # an object's own attributes win over its class's
    try:
        yield
    finally:
        for name in own:
            del vars(logger)[name]
        vars(logger).update(before)


def _text(event: Any) -> str:
    if not isinstance(event, dict):
        return str(event)
    pairs = " ".join(f"{key}={event[key]}" for key in sorted(event) if key not in _LEFT_OUT)
    return f"{event.get('event')} {pairs}".rstrip()
