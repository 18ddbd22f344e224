"""Peers by address: their connections, and rate-limited log lines about them.

A peer is a host, because its port changes with every connection; for IPv6 it is the /64, which one
peer may own as a whole.

Invariants: a peer without a connection is not in ``PeerCount``; ``PeerLog`` remembers HOSTS_MAX
peers and writes LINES_MAX lines per INTERVAL_S, however many peers connect.
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

INTERVAL_S: Final = 60.0
LINES_MAX: Final = 60  # per INTERVAL_S, of all peers
HOSTS_MAX: Final = 1_024
_PREFIX_SIZE: Final = 64


def one_spelling(address: str) -> str:
    """Return the normalized address: IPv4 through an IPv6 socket is the same host."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)


def peer_at(host: str, offset: int) -> str:
    """Return ``10.0.0.7@4096`` or ``[2001:db8::7]@4096``, as ``--trust`` takes it."""
    return f"[{host}]@{offset}" if ":" in host else f"{host}@{offset}"


def peer_key(host: str) -> str:
    """Return the key of a host's peer: an IPv4 address, or the /64 of an IPv6 address."""
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
        """Return the number of connections of ``peer``'s host."""
        return self._counts.get(peer_key(peer[0]), 0)

    def add(self, peer: tuple[str, int]) -> None:
        """Count a connection."""
        key = peer_key(peer[0])
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, peer: tuple[str, int]) -> None:
        """Stop counting a connection."""
        key = peer_key(peer[0])
        count = self._counts.pop(key) - 1
        if count:
            self._counts[key] = count


@attrs.define
class _Logged:
    time: float  # when the peer's interval began
    lines: int = 0  # written since then
    skipped: int = 0


@final
@attrs.define(eq=False)
class PeerLog:
    """Log lines about peers: ``lines_max`` per kind, peer and INTERVAL_S."""

    log: structlog.stdlib.BoundLogger
    event: str
    peer_name: str = "peer"
    lines_max: int = 1
    level: int = logging.WARNING
    _logged: dict[tuple[str | None, str], _Logged] = attrs.field(factory=dict, init=False)
    _began: float = attrs.field(default=-INTERVAL_S, init=False)  # the interval of LINES_MAX
    _lines: int = attrs.field(default=0, init=False)
    _skipped: int = attrs.field(default=0, init=False)  # beyond LINES_MAX

    def log_line(self, peer: tuple[str, int], *, kind: str | None = None, **pairs: object) -> None:
        """Write a line, or count it: the next one has ``more`` of this peer, ``others`` of all."""
        now = trio.current_time()
        key = kind, peer_key(peer[0])
        logged = self._logged.get(key)
        if logged is None or now - logged.time >= INTERVAL_S:
            skipped = 0 if logged is None else logged.skipped
            self._logged.pop(key, None)
            logged = self._logged[key] = _Logged(now, skipped=skipped)
            if len(self._logged) > HOSTS_MAX:
                del self._logged[next(iter(self._logged))]
        if now - self._began >= INTERVAL_S:
            self._began, self._lines = now, 0
        if logged.lines >= self.lines_max:
            logged.skipped += 1
            return
        if self._lines >= LINES_MAX:
            self._skipped += 1
            return
        logged.lines += 1
        self._lines += 1
        named = {self.peer_name: describe(peer), "kind": kind, **pairs}
        counts = {"more": logged.skipped, "others": self._skipped}
        logged.skipped = self._skipped = 0
        line = {name: value for name, value in named.items() if value is not None}
        line |= {name: count for name, count in counts.items() if count}
        self.log.log(self.level, self.event, **line)
