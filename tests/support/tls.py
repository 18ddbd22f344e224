"""A CA of the tests' own, contexts of ``ssl`` from it, and connections between two tasks."""

from __future__ import annotations

import atexit
import itertools
import shutil
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.config import TlsConfig
from hastore.tls.tls_socket import accept_tls, connect_tls
from tests.support.certificates import (
    DAY,
    LOOPBACK,
    Authority,
    Certificates,
    Key,
    make_authority,
)

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.tls.tls_socket import TlsSocket

TIMEOUT_S: Final = 600.0  # for handshakes that succeed, on any machine


def _own_authority() -> Authority:
    """Return a CA whose files are removed at the end of the process."""
    directory = Path(tempfile.mkdtemp(prefix="hastore-tls-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return make_authority(directory, "tests")


@attrs.define(eq=False)
class OwnCa:
    """A CA, which every context from here trusts."""

    authority: Authority = attrs.field(factory=_own_authority)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    def cert(
        self,
        *hosts: str,
        name: str | None = None,
        expired: bool = False,
        key: Key | None = None,
    ) -> Certificates:
        """Return a certificate for ``hosts``, by default this machine's loopback and its name.

        ``name`` is its common name; by default each has another one, and a key of its own.
        """
        valid = (-2 * DAY, -DAY) if expired else (-DAY, DAY)
        number = next(self._numbers)
        directory = self.authority.directory / str(number)
        directory.mkdir()
        authority = attrs.evolve(self.authority, directory=directory)
        return authority.issue(name or f"node-{number}", hosts=hosts or None, valid=valid, key=key)

    def config(self, cert: Certificates) -> TlsConfig:
        """Return the configuration of a node that trusts this CA."""
        return TlsConfig(
            cert_file=str(cert.cert), key_file=str(cert.key), ca_file=str(self.authority.ca)
        )

    def server(self, cert: Certificates | None = None, *, asks: bool = True) -> ssl.SSLContext:
        """Return a server's context; ``asks``: the client must have a certificate, too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return self._finish(context, cert or self.cert())

    def client(self, cert: Certificates | None = None, *, has_cert: bool = True) -> ssl.SSLContext:
        """Return a client's context; ``cert`` may be another CA's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._finish(context, (cert or self.cert()) if has_cert else None)

    def _finish(self, context: ssl.SSLContext, cert: Certificates | None) -> ssl.SSLContext:
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        if cert is not None:
            context.load_cert_chain(cert.cert, cert.key)
        context.load_verify_locations(self.authority.ca)
        return context


async def shaken_hands(
    ends: tuple[trio.socket.SocketType, trio.socket.SocketType],
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    env: Env | None = None,
    *,
    name: str = LOOPBACK[0],
) -> tuple[TlsSocket, TlsSocket]:
    """Return the server's and the client's end of a connection, after the handshake."""
    accepted = []

    async def accept() -> None:
        accepted.append(await accept_tls(ends[0], server, TIMEOUT_S, env=env))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        connected = await connect_tls(ends[1], client, name, TIMEOUT_S, env=env)
    return accepted[0], connected
