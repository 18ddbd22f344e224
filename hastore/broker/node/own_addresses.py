"""What names lead to on this machine: the addresses at which other machines reach this node.

``check_addresses`` knows a configuration's text only.  Debian's installer writes
``127.0.1.1 node1`` into ``/etc/hosts`` of node1, so there ``node1`` is a loopback address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import trio

from hastore.concurrency.tcp import describe, ip_addresses_of
from hastore.errors import ConfigError, UnreachableError
from hastore.quantities import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.node.master import Ports
    from hastore.config import GroupNodeConfig

LOOKUP_TIMEOUT_S: Final = 2.0


async def check_bound(config: GroupNodeConfig, ports: Ports) -> None:
    """Raise ConfigError if a port is on loopback by its name, and the coordinator elsewhere."""
    endpoints = config.coordinator.endpoints
    for asked, bound, name, flag in (
        (config.ha_listen, ports.ha_address, "ha", "--ha-listen"),
        (config.listen, ports.client_address, "client", "--listen"),
    ):
        if asked is None or bound is None or not is_loopback(bound[0]) or is_loopback(asked[0]):
            continue
        elsewhere = await _elsewhere(endpoints)
        if elsewhere is not None:
            raise ConfigError(
                f"[listen] {name} ({flag}) is {describe(asked)}, and {asked[0]} is {bound[0]} here,"
                f" which only this machine reaches; the coordinator {elsewhere} is on another one",
                hint=f"{flag} with an IP address of this machine, or correct its /etc/hosts",
            )


async def advertised_ip(config: GroupNodeConfig) -> str | None:
    """Return the IP address of the advertised host; None if none is advertised.

    Raises UnreachableError if it has none here that other machines can use, or if the name servers
    do not say so within ``LOOKUP_TIMEOUT_S``.
    """
    host = config.coordinator.advertised_host
    if host is None:
        return None
    found = await _ip_addresses_of(host)
    usable = [ip for ip in found if is_loopback(host) or not is_loopback(ip)]
    if not usable and await _elsewhere(config.coordinator.endpoints) is not None:
        raise UnreachableError(f"{host} is {found[0]} here, which only this machine reaches")
    return (usable or found)[0]


async def _elsewhere(endpoints: Sequence[str]) -> str | None:
    """Return an endpoint on another machine, or of which that is not known; None without one."""
    for endpoint in endpoints:
        try:
            found = await _ip_addresses_of(urlsplit(endpoint).hostname or "")
        except UnreachableError:
            return endpoint
        if not all(map(is_loopback, found)):
            return endpoint
    return None


async def _ip_addresses_of(host: str) -> list[str]:
    with trio.move_on_after(LOOKUP_TIMEOUT_S):
        return await ip_addresses_of(host)
    raise UnreachableError(f"no answer from the name servers about {host}")
