"""The clocks of the coordinator's servers, as readings that a node's clock is compared with.  Pure.

Each answer over HTTP has the server's wall time in its head (``Date``), in whole seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.broker.clock.clock_verdict import ClockReading
from hastore.concurrency.peers import one_spelling
from hastore.quantities import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.cluster.key_value_store import ServerTime

# A date is the beginning of a second, and the answer was under way.
_ERROR_MS: Final = 1_000.0


def server_clocks(clocks: Mapping[str, ServerTime]) -> tuple[ClockReading, ...]:
    """Return the readings of a ``KeyValueStore`` that was opened with the boot clock.

    A machine is known by its address on the connection: an endpoint's text may be a name.
    """
    readings = []
    for server, said in clocks.items():
        host, boot_ms = one_spelling(said.host), said.heard_at_s * 1000
        reading = ClockReading(
            who=f"etcd at {server}",
            host=host,
            offset_ms=said.time_s * 1000 + _ERROR_MS / 2 - boot_ms,
            error_ms=_ERROR_MS,
            boot_ms=boot_ms,
            is_own_machine=host == one_spelling(said.own_host) or is_loopback(host),
        )
        readings.append(reading)
    return tuple(readings)
