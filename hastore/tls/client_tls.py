"""What a client of a node needs to connect by TLS: whom it trusts, and its own certificate.

::

    tls = ClientTls.of_files(ca="ca.pem")
    async with Producer.connect(("n1", 10911), tls=tls) as producer:
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.tls.contexts import TlsFiles, TlsRules, client_context
from hastore.tls.tls_peers import TlsPeers

if TYPE_CHECKING:
    import ssl

    from hastore.env.interface import Env


@final
@attrs.frozen(kw_only=True)
class ClientTls:
    """How to connect; ``server_name`` None: a certificate must be for the host connected to."""

    context: ssl.SSLContext
    server_name: str | None = None
    # Whether a node that takes no TLS, and is not one of ``peers``, is asked in plain bytes.
    or_plain: bool = False
    peers: TlsPeers = attrs.field(factory=TlsPeers)

    @staticmethod
    def of_files(
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        key_password: str | None = None,
        crl: str | None = None,
        rules: TlsRules | None = None,
        server_name: str | None = None,
        env: Env | None = None,
    ) -> ClientTls:
        """Return it for PEM files; ``ca`` None: the system's certificates are trusted.  Blocks.

        ``cert`` and ``key`` are for nodes that ask for client certificates; ``key_password`` is a
        file, too.  ``crl``: lists of withdrawn certificates, of each CA.  Raises ConfigError.
        """
        from hastore.env.real import real_env  # noqa: PLC0415 - unless the caller has one

        world = env or real_env()
        files = TlsFiles(cert=cert, key=key, key_password=key_password, ca=ca, crl=crl)
        context = client_context(files, world.disk, world.wall_clock.now_s(), rules=rules)
        return ClientTls(context=context, server_name=server_name)

    def name_of(self, host: str) -> str:
        """Return the name that the certificate of a node at ``host`` must have."""
        return self.server_name or host.partition("%")[0]
