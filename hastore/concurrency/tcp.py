"""Sockets: listening, accepting, connecting, tuning, naming.

Only ``trio.socket`` is used, so that the simulator's socket factory makes every socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import trio

from hastore.errors import ListenError, UnreachableError
from hastore.quantities import format_address

_ACCEPT_BACKLOG = 128
# accept(2): network errors of one peer, after which accept is to be tried again.
_PASSING = frozenset(
    {
        errno.ECONNABORTED, errno.ECONNRESET, errno.EINTR, errno.EPERM, errno.EPROTO,
        errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH,
        errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT,
    }
)  # fmt: skip
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_PAUSE_S = 0.1
_NEXT_ADDRESS_S = 0.25  # of a name with several, after which the next one is tried, too


def describe(address: tuple[str, int] | None) -> str:
    """Return ``host:port``, ``[host]:port`` for IPv6, or ``-`` for None."""
    return "-" if address is None else format_address(address)


def unmapped(address: tuple[str, int]) -> tuple[str, int]:
    """Return an IPv4 address that a port of both families shows as ``::ffff:…`` in its own form."""
    host, port = address
    return host.removeprefix("::ffff:") if "." in host else host, port


async def _resolve(address: tuple[str, int]) -> list[tuple[int, Any]]:
    """Return every (family, socket address) of a host name, in the system's order."""
    found = await trio.socket.getaddrinfo(
        address[0], address[1], type=trio.socket.SOCK_STREAM, proto=trio.socket.IPPROTO_TCP
    )
    return [(family, resolved) for family, _, _, _, resolved in found]


async def ip_addresses_of(host: str) -> list[str]:
    """Return a host's IP addresses, at least one.  Raises UnreachableError for a name without."""
    try:
        found = await _resolve((host, 0))
        return [str(resolved[0]) for _, resolved in found]
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"{host} has no address: {_reason(error)}") from error


async def open_listener(address: tuple[str, int], purpose: str) -> trio.socket.SocketType:
    """Listen on ``address`` (port 0: any free port); a ListenError names ``purpose``."""
    sock = None
    try:
        family, resolved = (await _resolve(address))[0]
        sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        await sock.bind(resolved)
        sock.listen(_ACCEPT_BACKLOG)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if not isinstance(error, (OSError, UnicodeError)):
            raise
        msg = f"cannot listen on {describe(address)} for {purpose}: {_reason(error)}"
        is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = (
            f"choose another port for {purpose}, or stop what listens there" if is_in_use else None
        )
        raise ListenError(msg, purpose=purpose, is_in_use=is_in_use, hint=hint) from error
    return sock


async def accept(
    listener: trio.socket.SocketType,
) -> tuple[trio.socket.SocketType, tuple[str, int]]:
    """Accept the next peer; retry after transient errors."""
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

    Raises UnreachableError with the address and the last reason.
    """
    reason = "no answer"
    with trio.move_on_after(timeout_s):
        try:
            candidates = await _resolve(address)
            if len(candidates) == 1:
                return await _connect_to(*candidates[0])
            return await _connect_to_first(candidates)
        except (OSError, UnicodeError) as error:
            reason = _reason(error)
    msg = f"cannot connect to {describe(address)}: {reason}"
    raise UnreachableError(msg)


async def _connect_to(family: int, resolved: Any) -> trio.socket.SocketType:
    """Connect to one address.  Raises OSError."""
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect(resolved)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_to_first(candidates: list[tuple[int, Any]]) -> trio.socket.SocketType:
    """Connect to the first address that answers.  Raises the last OSError.

    The next one is tried once one has failed, or is silent for ``_NEXT_ADDRESS_S``: a machine that
    is off, or a family that is not routed, must not use up the time of the others (RFC 8305).
    """
    connected: list[trio.socket.SocketType] = []
    failure = OSError("the name has no address")

    async def attempt(family: int, resolved: Any, ended: trio.Event) -> None:
        nonlocal failure
        try:
            connected.append(await _connect_to(family, resolved))
            nursery.cancel_scope.cancel()
        except OSError as error:
            failure = error
        ended.set()

    try:
        async with trio.open_nursery() as nursery:
            for family, resolved in candidates:
                ended = trio.Event()
                nursery.start_soon(attempt, family, resolved, ended)
                with trio.move_on_after(_NEXT_ADDRESS_S):
                    await ended.wait()
    except BaseException:
        for sock in connected:
            sock.close()
        raise
    if not connected:
        raise failure
    first, *others = connected
    for sock in others:
        sock.close()
    return first


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "not a host name"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # of a host name: "Name or service not known"


def tune(sock: trio.socket.SocketType) -> None:
    """Disable Nagle's algorithm, so that frames leave at once.

    A dead peer is detected by its silence (heartbeats both ways), not by TCP_USER_TIMEOUT, which
    would also drop a live one that reads slowly.
    """
    with contextlib.suppress(OSError):  # the peer has closed; the first read raises
        sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)


async def send_all(sock: trio.socket.SocketType, data: bytes, flags: int = 0) -> None:
    """Send every byte.  Raises OSError."""
    while data:
        data = data[await sock.send(data, flags) :]


def peer_address(sock: trio.socket.SocketType) -> tuple[str, int]:
    """Return the address of a connection's other end.  Raises OSError if the peer has gone."""
    name = sock.getpeername()
    return str(name[0]), int(name[1])


def bound_address(sock: trio.socket.SocketType) -> tuple[str, int]:
    """Return a socket's own address."""
    name = sock.getsockname()
    return str(name[0]), int(name[1])
