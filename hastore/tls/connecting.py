"""Connecting to the client port of a node, by TLS or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from hastore.concurrency.tcp import connect, describe, tune
from hastore.errors import TlsError
from hastore.tls.tls_fault import TlsFault, cut_short
from hastore.tls.tls_socket import connect_tls

if TYPE_CHECKING:
    from hastore.tls.client_tls import ClientTls

# How a port that takes plain bytes only answers a handshake.
_NO_TLS_THERE: Final = frozenset({TlsFault.CUT, TlsFault.PLAIN_TEXT})
_HINT: Final = "does that port take TLS? [tls] mode of its node says so; or is it another port?"


async def connect_client_port(
    address: tuple[str, int], timeout_s: float, tls: ClientTls | None
) -> trio.socket.SocketType:
    """Connect within ``timeout_s``, and shake hands if ``tls`` is given.

    With ``or_plain`` a peer without TLS is connected to in plain bytes, unless it has completed a
    handshake before.  Raises UnreachableError, and TlsError with the address for a peer without
    TLS, or whose certificate does not count.
    """
    began = trio.current_time()
    sock = await connect(address, timeout_s)
    tune(sock)
    if tls is None:
        return sock
    left_s = max(began + timeout_s - trio.current_time(), 0)
    try:
        encrypted = await connect_tls(sock, tls.context, tls.name_of(address[0]), left_s)
    except TlsError as error:
        if not tls.or_plain or error.fault not in _NO_TLS_THERE:
            raise _at(address, error) from error
        tls.peers.check_plain(address, error)
    except OSError as error:  # a reset
        if not tls.or_plain:
            raise _at(address, cut_short()) from error
        tls.peers.check_plain(address, cut_short())
    else:
        try:
            await tls.peers.completed(address)
        except BaseException:  # cancelled
            encrypted.close()
            raise
        return encrypted
    return await connect_client_port(address, timeout_s, None)


def _at(address: tuple[str, int], error: TlsError) -> TlsError:
    text = f"{describe(address)}: {error}"
    return TlsError(text, fault=error.fault, hint=error.hint or _HINT)
