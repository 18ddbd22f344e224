"""The clocks of the coordinator's servers, as readings that a node's clock is compared with.  Pure.

Each answer over HTTP has the server's wall time in its head (``Date``), in whole seconds.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import TYPE_CHECKING, Final

from hastore.broker.clock.clock_verdict import ClockReading
from hastore.concurrency.peers import one_spelling

if TYPE_CHECKING:
    from collections.abc import Mapping

# A date is the beginning of a second, and the answer was under way.
_ERROR_MS: Final = 1_000.0
_LOCAL: Final = "localhost"


def server_clocks(
    clocks: Mapping[str, tuple[int, float]], now: float, boot_s: float
) -> tuple[ClockReading, ...]:
    """Return the readings of a ``KeyValueStore``'s ``clocks``, at trio's time ``now``."""
    readings = []
    for server, (time_s, heard_at) in clocks.items():
        host = _host_of(server)
        boot_ms = (boot_s - (now - heard_at)) * 1000
        reading = ClockReading(
            who=f"etcd at {server}",
            host=host,
            offset_ms=time_s * 1000 + _ERROR_MS / 2 - boot_ms,
            error_ms=_ERROR_MS,
            boot_ms=boot_ms,
            is_own_machine=_is_loopback(host),
        )
        readings.append(reading)
    return tuple(readings)


def _host_of(server: str) -> str:
    return one_spelling(urllib.parse.urlsplit(server).hostname or server)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == _LOCAL
