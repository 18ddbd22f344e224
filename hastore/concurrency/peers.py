"""Peers by address: how many connections each has, and what was said of it in the log.

A peer is its host, for a peer that comes again has another port each time; of IPv6 it is the /64,
all of which one peer may have.

Invariants: an address without a connection is not in ``PeerCount``; ``PeerLog`` keeps HOSTS_MAX
peers and writes LINES_MAX lines in INTERVAL_S, however many are refused.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.tcp import describe

if TYPE_CHECKING:
    import structlog

INTERVAL_S: Final = 60.0  # one line for each kind and peer in so long
LINES_MAX: Final = 60
HOSTS_MAX: Final = 1_024
_PREFIX_SIZE: Final = 64


def peer_key(host: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _PREFIX_SIZE), strict=False))


@final
@attrs.define(eq=False)
class PeerCount:
    """Connections by peer."""

    _counts: dict[str, int] = attrs.field(factory=dict, init=False)

    def of(self, peer: tuple[str, int]) -> int:
        """Return how many there are."""
        return self._counts.get(peer_key(peer[0]), 0)

    def add(self, peer: tuple[str, int]) -> None:
        """Count one more."""
        key = peer_key(peer[0])
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, peer: tuple[str, int]) -> None:
        """Count one less."""
        key = peer_key(peer[0])
        count = self._counts.pop(key) - 1
        if count:
            self._counts[key] = count


@attrs.define
class _Told:
    time: float
    lines: int = 0
    untold: int = 0


@final
@attrs.define(eq=False)
class PeerLog:
    """Lines about peers: ``lines_max`` a kind and peer in INTERVAL_S, with what was left out."""

    log: structlog.stdlib.BoundLogger
    event: str
    peer_name: str = "peer"
    lines_max: int = 1
    level: int = logging.WARNING
    _told: dict[tuple[str | None, str], _Told] = attrs.field(factory=dict, init=False)
    _began: float = attrs.field(default=-INTERVAL_S, init=False)
    _lines: int = attrs.field(default=0, init=False)
    _unsaid: int = attrs.field(default=0, init=False)  # beyond LINES_MAX

    def note(self, peer: tuple[str, int], *, kind: str | None = None, **pairs: object) -> None:
        """Write a line, or count what is not written: ``more`` of this peer, ``others``."""
        now = trio.current_time()
        key = kind, peer_key(peer[0])
        told = self._told.get(key)
        if told is None or now - told.time >= INTERVAL_S:
            untold = 0 if told is None else told.untold
            self._told.pop(key, None)
            told = self._told[key] = _Told(now, untold=untold)
            if len(self._told) > HOSTS_MAX:
                del self._told[next(iter(self._told))]
        if now - self._began >= INTERVAL_S:
            self._began, self._lines = now, 0
        if told.lines >= self.lines_max:
            told.untold += 1
            return
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return
        told.lines += 1
        self._lines += 1
        named = {self.peer_name: describe(peer), "kind": kind, **pairs}
        counts = {"more": told.untold, "others": self._unsaid}
        told.untold = self._unsaid = 0
        said = {name: value for name, value in named.items() if value is not None}
        said |= {name: count for name, count in counts.items() if count}
        self.log.log(self.level, self.event, **said)
