"""How a link of the HA port begins with TLS: both ends prove who they are, and who may follow does.

::

    slave                               master
    ClientHello                    -->
                                   <--  its certificate, for the host that was connected to
    its certificate                -->  signed by [tls] ca, and a name of it is on the list
    report, or autoswitch handshake

A peer that fails is closed before its first report is read, so it neither gets nor acknowledges a
byte of the log.  Each connection asks for the contexts in force: reloaded certificates count from
the next link on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import TlsError
from hastore.tls.tls_calls import tls_calls
from hastore.tls.tls_fault import TlsFault
from hastore.tls.tls_socket import TlsSocket, accept_tls, connect_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    import trio

    from hastore.config import HAConfig
    from hastore.env.interface import Env
    from hastore.tls.client_tls import ClientTls
    from hastore.tls.tls_contexts import TlsContexts

ANY_NAME: Final = "*"  # on the list: every certificate that the CA has signed
_NAMES_SHOWN_MAX: Final = 4
_SIZE_SHOWN_MAX: Final = 80


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a certificate's names: the alternative ones, and the common name of its subject.

    ``certificate`` is as ``ssl`` decodes it.
    """
    names = [str(value) for _kind, value in certificate.get("subjectAltName", ())]
    for attributes in certificate.get("subject", ()):
        names += [str(value) for name, value in attributes if name == "commonName"]
    return tuple(dict.fromkeys(names))


def may_follow(names: Iterable[str], allowed_names: Iterable[str]) -> bool:
    """Return whether one of the names is on the list; upper and lower case are alike."""
    allowed = {name.casefold() for name in allowed_names}
    return ANY_NAME in allowed or any(name.casefold() in allowed for name in names)


@final
@attrs.frozen(kw_only=True, eq=False)
class HATls:
    """How links begin, on either side."""

    env: Env
    calls: Env  # ``env`` with the socket calls of links with TLS
    server: Callable[[], ssl.SSLContext]  # wants a certificate
    client: Callable[[], ClientTls]
    allowed_names: tuple[str, ...]  # whose certificates may follow

    @classmethod
    def of(cls, contexts: TlsContexts | None, config: HAConfig, env: Env) -> HATls | None:
        """Return it for a node; None: its links are plain."""
        if not config.tls:
            return None
        assert contexts is not None, "the configuration says so"

        def mutual() -> ssl.SSLContext:
            context = contexts.current.mutual
            assert context is not None, "the configuration says that there is a CA"
            return context

        return cls(
            env=env,
            calls=tls_calls(env),
            server=mutual,
            client=lambda: contexts.current.client,
            allowed_names=config.tls_allowed_names,
        )

    async def accept(self, sock: trio.socket.SocketType, timeout_s: float) -> TlsSocket:
        """Return the link of a slave that may follow.

        Raises TlsError for any other peer, and OSError; ``sock`` is closed then.
        """
        link = await accept_tls(sock, self.server(), timeout_s, env=self.env, peer="the slave")
        certificate = link.peer_certificate
        assert certificate is not None, "the context wants one"
        names = names_of(certificate)
        if not may_follow(names, self.allowed_names):
            link.close()
            shown = ", ".join(name[:_SIZE_SHOWN_MAX] for name in names[:_NAMES_SHOWN_MAX])
            raise TlsError(
                f"the slave's certificate is for {shown or 'nobody'}: no such name may follow",
                fault=TlsFault.WRONG_NAME,
                hint="add a name of that certificate to [ha] tls_allowed_names of the master",
            )
        return link

    async def connect(
        self, sock: trio.socket.SocketType, address: tuple[str, int], timeout_s: float
    ) -> TlsSocket:
        """Return the link to the master at ``address``, which has proven its name.

        Raises TlsError and OSError; ``sock`` is closed then.
        """
        tls = self.client()
        name = tls.name_of(address[0])
        return await connect_tls(
            sock, tls.context, name, timeout_s, env=self.env, peer="the master"
        )
