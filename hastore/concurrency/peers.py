"""Peers by address: how many connections each has, and what was said of it in the log.

A peer is its host, for a peer that comes again has another port each time; of IPv6 it is the /64,
all of which one peer may have.

Invariants: an address without a connection is not in ``PeerCount``; ``RefusalLog`` keeps HOSTS_MAX
peers and writes LINES_MAX lines in INTERVAL_S, however many are refused.
"""

from __future__ import annotations

import ipaddress
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
    """Give what counts as one peer: an IPv4 address, or the /64 of an IPv6 address."""
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
        """Give how many there are."""
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
    untold: int = 0


@final
@attrs.define(eq=False)
class RefusalLog:
    """Warnings about peers: once for each kind and peer in INTERVAL_S, with what was left out."""

    log: structlog.stdlib.BoundLogger
    event: str
    peer_name: str = "peer"
    _told: dict[tuple[str, str], _Told] = attrs.field(factory=dict, init=False)
    _began: float = attrs.field(default=-INTERVAL_S, init=False)
    _lines: int = attrs.field(default=0, init=False)
    _unsaid: int = attrs.field(default=0, init=False)  # of other peers, beyond LINES_MAX

    def note(self, kind: str, peer: tuple[str, int], reason: str) -> None:
        """Write a line, or count what is not written: ``more`` of this peer, ``others``."""
        now = trio.current_time()
        key = kind, peer_key(peer[0])
        told = self._told.get(key)
        if told is not None and now - told.time < INTERVAL_S:
            told.untold += 1
            return
        if now - self._began >= INTERVAL_S:
            self._began, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return
        self._lines += 1
        pairs = {self.peer_name: describe(peer), "kind": kind, "reason": reason}
        counts = {"more": 0 if told is None else told.untold, "others": self._unsaid}
        self.log.warning(self.event, **pairs, **{name: n for name, n in counts.items() if n})
        self._unsaid = 0
        self._told.pop(key, None)
        self._told[key] = _Told(now)
        if len(self._told) > HOSTS_MAX:
            del self._told[next(iter(self._told))]
