"""How a link of the HA port begins with TLS: both ends prove who they are, and who may follow does.

::

    slave                               master
    ClientHello                    -->
                                   <--  its certificate, for the host that was connected to
    its certificate                -->  signed by [tls] ca, and a name of it is on the list
    report, or autoswitch handshake    its node id must be that of its certificate's name

A peer that fails is closed before its first report is read, so it neither gets nor acknowledges a
byte of the log.  Each connection asks for the contexts in force: reloaded certificates count from
the next link on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.config import ANY_NAME, split_allowed_name
from hastore.errors import TlsError
from hastore.tls.tls_calls import as_tls, tls_calls
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
    from hastore.wire.autoswitch_frames import Handshake

_NAMES_SHOWN_MAX: Final = 4
_SIZE_SHOWN_MAX: Final = 80


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that a certificate is for, as OpenSSL has them for a host (RFC 6125).

    Its DNS names and its addresses; the common name of its subject only if it has no DNS name.
    E-mail addresses and URIs are not names of nodes.  ``certificate`` is as ``ssl`` decodes it.
    """
    alternative = [(kind, str(value)) for kind, value in certificate.get("subjectAltName", ())]
    names = [value for kind, value in alternative if kind in {"DNS", "IP Address"}]
    if not any(kind == "DNS" for kind, _ in alternative):
        names += _common_names(certificate)
    return tuple(dict.fromkeys(names))


def _common_names(certificate: Mapping[str, Any]) -> list[str]:
    rows = (pair for attributes in certificate.get("subject", ()) for pair in attributes)
    return [str(value) for name, value in rows if name == "commonName"]


@final
@attrs.frozen
class AllowedNames:
    """``[ha] tls_allowed_names``: who may follow, and as which node; case does not matter."""

    _ids: Mapping[str, frozenset[int]]  # by name in lower case; no ids: as any node without a name

    @classmethod
    def of(cls, entries: Iterable[str]) -> AllowedNames:
        """Return it for the setting's entries."""
        ids: dict[str, set[int]] = {}
        for name, node_id in map(split_allowed_name, entries):
            ids.setdefault(name.casefold(), set()).update(() if node_id is None else (node_id,))
        return cls({name: frozenset(found) for name, found in ids.items()})

    def may_follow(self, names: Iterable[str]) -> bool:
        """Return whether a certificate with these names may follow."""
        return ANY_NAME in self._ids or any(name.casefold() in self._ids for name in names)

    def may_be(self, names: Iterable[str], node_id: int) -> bool:
        """Return whether a certificate that may follow may do so as this node."""
        own = frozenset[int]().union(*(self._ids.get(name.casefold(), ()) for name in names))
        if own:
            return node_id in own
        return not any(node_id in ids for ids in self._ids.values())


@final
@attrs.frozen(kw_only=True, eq=False)
class HATls:
    """How links begin, on either side."""

    env: Env
    calls: Env  # ``env`` with the socket calls of links with TLS
    server: Callable[[], ssl.SSLContext]  # wants a certificate
    client: Callable[[], ClientTls]
    allowed_names: AllowedNames  # whose certificates may follow, and as which nodes

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
            allowed_names=AllowedNames.of(config.tls_allowed_names),
        )

    async def accept(self, sock: trio.socket.SocketType, timeout_s: float) -> TlsSocket:
        """Return the link of a slave that may follow.

        Raises TlsError for any other peer, and OSError; ``sock`` is closed then.
        """
        link = await accept_tls(sock, self.server(), timeout_s, env=self.env, peer="the slave")
        names = _peer_names(link)
        if not self.allowed_names.may_follow(names):
            certificate = link.peer_certificate or {}
            link.close()
            hint = "add a name of that certificate to [ha] tls_allowed_names of the master"
            if self.allowed_names.may_follow(_common_names(certificate)):
                hint += "; its common name does not count beside its DNS names"
            raise TlsError(
                f"the slave's certificate is for {_shown(names)}: no such name may follow",
                fault=TlsFault.WRONG_NAME,
                hint=hint,
            )
        return link

    def check_id(self, sock: trio.socket.SocketType, handshake: Handshake) -> None:
        """Raise TlsError for a slave whose certificate belongs to another node than it claims."""
        names = _peer_names(as_tls(sock))
        if handshake.is_reader or self.allowed_names.may_be(names, handshake.node_id):
            return
        raise TlsError(
            f"the slave says that it is node {handshake.node_id}, and its certificate is for"
            f" {_shown(names)}: [ha] tls_allowed_names gives that id, or that name, to another",
            fault=TlsFault.WRONG_NAME,
            hint="use the certificate of that node there, or correct NAME=ID in [ha]"
            " tls_allowed_names of each node",
        )

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


def _peer_names(link: TlsSocket) -> tuple[str, ...]:
    certificate = link.peer_certificate
    assert certificate is not None, "the context wants one"
    return names_of(certificate)


def _shown(names: tuple[str, ...]) -> str:
    """Return a few of a certificate's names."""
    return ", ".join(name[:_SIZE_SHOWN_MAX] for name in names[:_NAMES_SHOWN_MAX]) or "nobody"
