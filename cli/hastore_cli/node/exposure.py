"""Which ports of a node other machines may reach, and what they may do there unproven.

A node says it at its start, by its configuration; ``hastore doctor`` by its status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.config import MasterConfig
from hastore.quantities import format_address, is_loopback, parse_address
from hastore.status import ClientCertificates, TlsMode

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.config import SlaveConfig

NEXT_STEP: Final = "keep them in a network whose machines you trust: docs/security.md"
BIND_NAMES: Final = "bind each to its node's id, such as n2=2: [ha] tls_allowed_names of each node"

_Address = tuple[str, int]


@final
@attrs.frozen
class Exposure:
    """Ports, and what other machines may do there."""

    ports: str  # HOST:PORT and HOST:PORT
    reason: str


@final
@attrs.frozen(kw_only=True)
class Listening:
    """Where a node listens (None: not there), and by what its ports know who asks."""

    client: _Address | None
    ha: _Address | None
    observer: _Address | None
    has_access_keys: bool
    tls_mode: TlsMode
    client_certificates: ClientCertificates
    has_ha_tls: bool

    @classmethod
    def by_config(cls, config: MasterConfig | SlaveConfig) -> Listening:
        """Return what a configuration says."""
        master = config if isinstance(config, MasterConfig) else None
        return cls(
            client=config.listen,
            ha=None if master is None else master.ha_listen,
            observer=None if master is None else master.observer_listen,
            has_access_keys=config.access.file is not None,
            tls_mode=config.tls.mode,
            client_certificates=config.tls.client_certificates,
            has_ha_tls=config.ha.tls,
        )

    @classmethod
    def by_status(cls, status: NodeStatus) -> Listening:
        """Return what a node says of itself."""
        tls = status.tls
        return cls(
            client=_parsed(status.address),
            ha=_parsed(status.ha_address),
            observer=_parsed(status.observer_address),
            has_access_keys=status.access is not None,
            tls_mode=TlsMode.DISABLED if tls is None else TlsMode(tls.mode),
            client_certificates=ClientCertificates(
                ClientCertificates.NONE if tls is None else tls.client_certificates
            ),
            has_ha_tls=tls is not None and tls.is_on_ha_port,
        )

    def exposure(self) -> Exposure | None:
        """Return what other machines may do; None: nothing unproven."""
        found = [
            (port, reason)
            for port, reason in (
                (self.client, self._at_client_port()),
                (self.ha, "on the HA port they may read the whole log, and acknowledge"),
                (self.observer, "as observers they may read the whole log"),
            )
            if port is not None
            and reason is not None
            and not is_loopback(port[0])
            and not (self.has_ha_tls and port is not self.client)
        ]
        if not found:
            return None
        ports = " and ".join(format_address(port) for port, _ in found)
        return Exposure(ports, "; ".join(reason for _, reason in found))

    def _at_client_port(self) -> str | None:
        """Return what others may do at the client port; None: they prove who they are."""
        is_encrypted = self.tls_mode is TlsMode.ENFORCING
        if self.has_access_keys:
            signed = "without TLS a signed request can be read, recorded and sent again"
            return None if is_encrypted else signed
        if is_encrypted and self.client_certificates is ClientCertificates.REQUIRED:
            return None
        return "without access keys ([access] file) they may read and write every topic"


def names_without_ids(names: tuple[str, ...]) -> str | None:
    """Return what names of ``[ha] tls_allowed_names`` without a node id mean; None without any."""
    if not names:
        return None
    return f"a node with a certificate for {', '.join(names)} may claim another node's id"


def _parsed(address: str | None) -> _Address | None:
    """Return an address of a status; None if it has none, or what it has is not one."""
    if address is None:
        return None
    try:
        return parse_address(address)
    except ValueError:
        return None
