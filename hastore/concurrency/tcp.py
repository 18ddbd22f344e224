"""Raw non-blocking sockets through ``trio.socket``: listening, connecting, tuning, naming.

Only ``trio.socket`` is used, so that a simulator's socket factory sees every socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import trio

from hastore.errors import ListenError, UnreachableError

_ACCEPT_BACKLOG = 128
# accept(2): errors of the network that belong to one peer and are to be tried again.
_PASSING = frozenset(
    {
        errno.ECONNABORTED, errno.ECONNRESET, errno.EINTR, errno.EPERM, errno.EPROTO,
        errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH,
        errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT,
    }
)  # fmt: skip
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_PAUSE_S = 0.1


def describe(address: tuple[str, int] | None) -> str:
    """Write ``host:port`` (``[host]:port`` for IPv6)."""
    if address is None:
        return "-"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _resolve(address: tuple[str, int]) -> list[tuple[int, Any]]:
    """Return every (family, socket address) that a host name stands for, in the system's order."""
    found = await trio.socket.getaddrinfo(
        address[0], address[1], type=trio.socket.SOCK_STREAM, proto=trio.socket.IPPROTO_TCP
    )
    return [(family, resolved) for family, _, _, _, resolved in found]


async def open_listener(address: tuple[str, int], purpose: str) -> trio.socket.SocketType:
    """Listen on ``address`` (port 0: any free one); ``purpose`` names the port in an error."""
    sock = None
    try:
        family, resolved = (await _resolve(address))[0]
        sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        await sock.bind(resolved)
        sock.listen(_ACCEPT_BACKLOG)
    except (OSError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        msg = f"cannot listen on {describe(address)} for {purpose}: {_reason(error)}"
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = f"give another port for {purpose}, or stop what listens there" if is_in_use else None
        raise ListenError(msg, purpose=purpose, is_in_use=is_in_use, hint=hint) from error
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
    """Connect within ``timeout_s`` to the first of the host's addresses that answers.

    UnreachableError names the address and the last reason.
    """
    reason = "it stands for no address"
    with trio.move_on_after(timeout_s) as scope:
        try:
            candidates = await _resolve(address)
        except (OSError, UnicodeError) as error:
            candidates = []
            reason = _reason(error)
        for family, resolved in candidates:
            sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
            try:
                await sock.connect(resolved)
            except OSError as error:
                sock.close()
                reason = _reason(error)
            except BaseException:
                sock.close()
                raise
            else:
                return sock
    if scope.cancelled_caught:
        reason = "no answer"
    msg = f"cannot connect to {describe(address)}: {reason}"
    raise UnreachableError(msg)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "that is no host name"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # of a host name: "Name or service not known"


def tune(sock: trio.socket.SocketType) -> None:
    """No Nagle: frames leave at once.

    A dead peer is noticed by its silence (heartbeats both ways), not by TCP_USER_TIMEOUT, which
    would also drop a live one that reads slowly.
    """
    with contextlib.suppress(OSError):  # the peer is gone already; the first read says so
        sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)


def bound_address(sock: trio.socket.SocketType) -> tuple[str, int]:
    """Return the address that a listener really has."""
    name = sock.getsockname()
    return str(name[0]), int(name[1])
