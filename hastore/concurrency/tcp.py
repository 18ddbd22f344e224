"""Raw non-blocking sockets through ``trio.socket``: listening, connecting, tuning, naming.

Only ``trio.socket`` is used, so that a simulator's socket factory sees every socket.
"""

from __future__ import annotations

import errno
import os

import trio

from hastore.errors import ListenError, UnreachableError

_ACCEPT_BACKLOG = 128
_USER_TIMEOUT_MS = (
    20_000  # unacknowledged data for this long is a dead peer; the kernel waits 15 min
)
_PASSING = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPERM, errno.EPROTO})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_PAUSE_S = 0.1


def describe(address: tuple[str, int] | None) -> str:
    """Write ``host:port`` (``[host]:port`` for IPv6)."""
    if address is None:
        return "-"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _resolve(address: tuple[str, int]) -> tuple[int, tuple[str, int]]:
    found = await trio.socket.getaddrinfo(
        address[0], address[1], type=trio.socket.SOCK_STREAM, proto=trio.socket.IPPROTO_TCP
    )
    family, _, _, _, resolved = found[0]
    return family, (str(resolved[0]), int(resolved[1]))


async def open_listener(address: tuple[str, int], purpose: str) -> trio.socket.SocketType:
    """Listen on ``address`` (port 0: any free one); ``purpose`` names the port in an error."""
    sock = None
    try:
        family, resolved = await _resolve(address)
        sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        await sock.bind(resolved)
        sock.listen(_ACCEPT_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        msg = f"cannot listen on {describe(address)} for {purpose}: {reason}"
        hint = None
        if error.errno == errno.EADDRINUSE:
            hint = f"give another port for {purpose}, or stop what listens there"
        raise ListenError(msg, hint=hint) from error
    return sock


async def accept(
    listener: trio.socket.SocketType,
) -> tuple[trio.socket.SocketType, tuple[str, int]]:
    """Accept the next peer; a passing fault never ends the service."""
    while True:
        try:
            sock, peer = await listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                await trio.sleep(_EXHAUSTED_PAUSE_S)
                continue
            if error.errno in _PASSING:
                continue
            raise
        return sock, (str(peer[0]), int(peer[1]))


async def connect(address: tuple[str, int], timeout_s: float) -> trio.socket.SocketType:
    """Connect within ``timeout_s``; UnreachableError names the address and the reason."""
    sock = None
    try:
        with trio.fail_after(timeout_s):
            family, resolved = await _resolve(address)
            sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
            await sock.connect(resolved)
    except (OSError, trio.TooSlowError) as error:
        if sock is not None:
            sock.close()
        reason = "no answer" if isinstance(error, trio.TooSlowError) else str(error)
        if isinstance(error, OSError) and error.errno and error.errno > 0:
            reason = os.strerror(error.errno)
        msg = f"cannot connect to {describe(address)}: {reason}"
        raise UnreachableError(msg) from error
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    return sock


def tune(sock: trio.socket.SocketType) -> None:
    """No Nagle (frames leave at once), and a dead peer is an error within seconds."""
    try:
        sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    except OSError:  # the peer is gone already; the first read says so
        return


def bound_address(sock: trio.socket.SocketType) -> tuple[str, int]:
    """Give the address that a listener really has."""
    name = sock.getsockname()
    return str(name[0]), int(name[1])
