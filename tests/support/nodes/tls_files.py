"""The certificates of a test, and what nodes and clients make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.config import MasterConfig, StoreConfig, TlsConfig
from hastore.env.real import real_env
from hastore.status import BrokerRole, ClientCertificates, TlsMode
from hastore.tls.client_tls import ClientTls
from tests.support.certificates import DAY, make_authority
from tests.support.env.fake_env import FakeClock
from tests.support.nodes.configs import ANY_PORT

if TYPE_CHECKING:
    from pathlib import Path

    from hastore.env.interface import Env
    from tests.support.certificates import Authority, Certificates

DAY_MS: Final = 86_400_000
TRANSPORTS: Final = ("plain", "TLS", "mutual TLS")


@attrs.frozen
class TlsFiles:
    """A CA, and the certificate of a node, from ``make_tls_files``."""

    directory: Path
    authority: Authority
    node: Certificates

    def config(
        self,
        mode: TlsMode = TlsMode.ENFORCING,
        client_certificates: ClientCertificates = ClientCertificates.NONE,
        node: Certificates | None = None,
    ) -> TlsConfig:
        """Return a node's configuration."""
        node = node or self.node
        return TlsConfig(
            mode=mode,
            cert_file=str(node.cert),
            key_file=str(node.key),
            ca_file=str(self.authority.ca),
            client_certificates=client_certificates,
        )

    def client(
        self,
        own: Certificates | None = None,
        *,
        server_name: str | None = None,
        env: Env | None = None,
    ) -> ClientTls:
        """Return a client that trusts the CA, with a certificate or without."""
        return ClientTls.of_files(
            ca=str(self.authority.ca),
            cert=None if own is None else str(own.cert),
            key=None if own is None else str(own.key),
            server_name=server_name,
            env=env,
        )

    def of_transport(self, transport: str) -> TlsConfig:
        """Return the configuration of a node that is reached in this way, and in no other."""
        if transport == "plain":
            return TlsConfig()
        is_mutual = transport == "mutual TLS"
        kind = ClientCertificates.REQUIRED if is_mutual else ClientCertificates.NONE
        return self.config(TlsMode.ENFORCING, kind)

    def client_of_transport(self, transport: str) -> ClientTls | None:
        """Return how a client reaches such a node."""
        if transport == "plain":
            return None
        return self.mutual() if transport == "mutual TLS" else self.client()

    def mutual(self) -> ClientTls:
        """Return a client with a certificate of the CA."""
        return self.client(self.authority.issue("client"))


def make_tls_files(directory: Path) -> TlsFiles:
    """Write the certificates, which nobody warns of yet."""
    authority = make_authority(directory, "test", valid=(-9 * DAY, 99 * DAY))
    return TlsFiles(directory, authority, authority.issue("node", valid=(-DAY, 90 * DAY)))


def env_days_ago(days: float) -> Env:
    """Return the real world, but for its wall clock: certificates that have expired are valid."""
    env = real_env()
    return attrs.evolve(env, wall_clock=FakeClock(env.wall_clock.now_ms() - round(days * DAY_MS)))


def master_with_tls(directory: Path, tls: TlsConfig) -> MasterConfig:
    """Return the configuration of a master without slaves."""
    return MasterConfig(
        store=StoreConfig(data_dir=str(directory), mapped_file_size=1 << 24),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        role=BrokerRole.ASYNC_MASTER,
        tls=tls,
    )
