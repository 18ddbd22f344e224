"""Fetches ranges of a running master's log over the classic HA protocol, to repair another log.

::

    this process                         master's HA port
    report: the range's start      -->
                                   <--   frames from there on, until the range is complete, or two
                                         heartbeats in a row: the log ends
    the same report, every 5 s     -->   (a master closes a link that is silent for 20 s)

It never reports more than the range's start, so that no fetched byte counts as acknowledged.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.concurrency.tcp import connect, describe, tune
from hastore.errors import LogDamagedError, ProtocolError, TlsError, UnreachableError
from hastore.tls.tls_socket import connect_tls
from hastore.wire.ha_frames import (
    FIRST_OFFSET_MIN,
    HEADER,
    HEADER_SIZE,
    REPORT_FROM_EARLIEST,
    check_header,
    encode_report,
)

if TYPE_CHECKING:
    from hastore.tls.client_tls import ClientTls

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_MAX_S: Final = 20.0  # a master sends a heartbeat every 5 s
_REPORT_INTERVAL_S: Final = 5.0
_HEARTBEATS_AT_END: Final = 2  # in a row
_RECEIVE_SIZE: Final = 1024 * 1024


async def fetch_range(
    address: tuple[str, int], physic_offset: int, size: int, tls: ClientTls | None = None
) -> bytes:
    """Return exactly these bytes of the master's log; ``tls``: over a link with TLS.

    Raises LogDamagedError if the log ends before the range does, UnreachableError if the master
    does not answer or closes the link (it has no place for another slave, or its log begins after
    ``physic_offset``), ProtocolError if it is no master, and TlsError.
    """
    sock = await connect(address, CONNECT_TIMEOUT_S)
    tune(sock)
    if tls is not None:
        name = tls.name_of(address[0])
        sock = await connect_tls(sock, tls.context, name, CONNECT_TIMEOUT_S, peer="the master")
    with sock:
        frames = _Frames(sock, address, physic_offset)
        data = bytearray()
        heartbeats = 0
        while len(data) < size:
            piece = await frames.next_piece()
            # One may precede the answer to the first report.
            heartbeats = 0 if piece else heartbeats + 1
            if heartbeats == _HEARTBEATS_AT_END:
                raise LogDamagedError(
                    f"the log of {describe(address)} ends before offset {physic_offset + size}",
                    path=describe(address),
                    physic_offset=physic_offset + len(data),
                    hint="use a replica that has these offsets",
                )
            data += piece
    return bytes(data[:size])


@final
class _Frames:
    """The frames of one connection, in order."""

    def __init__(self, sock: trio.socket.SocketType, address: tuple[str, int], start: int) -> None:
        self._sock = sock
        self._name = describe(address)
        self._next_offset = start
        # The smallest offsets are requests in a first report.  Asked for its earliest byte, a
        # hastore master begins at 0, a RocketMQ master at 1; byte 0 of a log is always 0.
        self._is_near_zero = start < FIRST_OFFSET_MIN
        self._first_report = REPORT_FROM_EARLIEST if self._is_near_zero else start
        self._report_at = -math.inf
        self._buffer = bytearray()

    async def next_piece(self) -> bytes:
        """Return the next frame's body; empty for a heartbeat."""
        await self._receive(HEADER_SIZE)
        physic_offset, body_size = HEADER.unpack_from(self._buffer)
        check_header(physic_offset, body_size)
        begins_early = self._is_near_zero and physic_offset <= REPORT_FROM_EARLIEST
        if physic_offset != self._next_offset and not begins_early:
            msg = f"{self._name} sends from {physic_offset}, asked for {self._next_offset}"
            raise ProtocolError(
                msg, hint="its log does not hold these offsets; another replica may"
            )
        await self._receive(HEADER_SIZE + body_size)
        body = bytes(self._buffer[HEADER_SIZE : HEADER_SIZE + body_size])
        del self._buffer[: HEADER_SIZE + body_size]
        if begins_early and body:
            body = (bytes(physic_offset) + body)[self._next_offset :]
            self._is_near_zero = False
        self._next_offset += len(body)
        return body

    async def _receive(self, size: int) -> None:
        heard_at = trio.current_time()
        while len(self._buffer) < size:
            if trio.current_time() >= self._report_at:
                self._report_at = trio.current_time() + _REPORT_INTERVAL_S
                with contextlib.suppress(OSError):  # the next recv says so
                    await self._sock.send(encode_report(self._first_report))
            with trio.move_on_at(self._report_at):
                data = await self._recv()
                if not data:
                    raise self._gone("closed the connection")
                self._buffer += data
                heard_at = trio.current_time()
            if trio.current_time() - heard_at > SILENCE_MAX_S:
                raise self._gone("is silent")

    async def _recv(self) -> bytes:
        """Return b"" at the end, however it comes.  Raises the TlsError that is no such end."""
        try:
            return await self._sock.recv(_RECEIVE_SIZE)
        except TlsError as error:
            if error.is_final:  # with TLS 1.3 a refusal of our certificate comes only here
                raise
        except OSError:
            pass
        return b""

    def _gone(self, why: str) -> UnreachableError:
        msg = f"{self._name} {why} before it sent offset {self._next_offset}"
        return UnreachableError(
            msg, hint="is that a master's HA port, and does its log reach there?"
        )
