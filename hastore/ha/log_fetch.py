"""Fetches ranges of a live master's log over the classic HA protocol, to mend another log with.

::

    this process                         master's HA port
    report: where it begins        -->
                                   <--   frames from there on, until there is enough
    the same report, every 5 s     -->   (a master closes what it has not heard of for 20 s)

It says that it has the log up to where the range begins, and never more: what it fetches is on no
disk yet, so nothing that it says may count as an acknowledgement of it.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.concurrency.tcp import connect, describe, tune
from hastore.errors import ProtocolError, UnreachableError
from hastore.store.log_repair_source import CONTEXT_SIZE, FetchedSource
from hastore.wire.ha_frames import (
    HEADER,
    HEADER_SIZE,
    REPORT_FROM_EARLIEST,
    REPORT_FROM_LAST_FILE,
    check_header,
    encode_report,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.store.log_repair_plan import RepairPlan

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_MAX_S: Final = 20.0  # a master sends a heartbeat every 5 s
_REPORT_INTERVAL_S: Final = 5.0
_RECEIVE_SIZE: Final = 1024 * 1024


async def fetch_source(
    address: tuple[str, int],
    plan: RepairPlan,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> FetchedSource:
    """Fetch every damaged range of a plan, with what stands beside it; all in memory.

    ``plan`` is one that was made without a source.  Raises UnreachableError and ProtocolError.
    """
    pieces: dict[int, bytes] = {}
    for part in plan.parts:
        start = max(part.start - CONTEXT_SIZE, plan.min_offset)
        pieces[start] = await fetch_range(
            address, start, part.stop, part.stop + CONTEXT_SIZE, on_progress=on_progress
        )
    return FetchedSource(name=describe(address), pieces=pieces)


async def fetch_range(
    address: tuple[str, int],
    start: int,
    least_stop: int,
    stop: int,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> bytes:
    """Fetch ``[start, stop)``, or less where the master's log ends, but not before ``least_stop``.

    ``on_progress`` is told the bytes of each read.  Raises UnreachableError where nobody answers or
    the master closes (its log does not reach there, or has no place for another slave), and
    ProtocolError where it is no master.
    """
    sock = await connect(address, CONNECT_TIMEOUT_S)
    with sock:
        tune(sock)
        stream = _Frames(sock, address, start)
        data = bytearray()
        wanted, least = stop - start, least_stop - start
        while len(data) < wanted:
            piece = await stream.next_piece()
            if not piece and len(data) >= least:
                break  # a heartbeat: there is no more now
            data += piece
            if on_progress is not None:
                on_progress(len(piece))
    return bytes(data[:wanted])


@final
class _Frames:
    """The frames of one connection, in order."""

    def __init__(self, sock: trio.socket.SocketType, address: tuple[str, int], start: int) -> None:
        self._sock = sock
        self._name = describe(address)
        self._next_offset = start
        # The smallest offsets mean something else in a first report.  Asked for its earliest byte a
        # hastore master begins at 0, a RocketMQ master at 1; byte 0 of a log is always 0.
        self._is_near_zero = start <= REPORT_FROM_LAST_FILE
        self._first_report = REPORT_FROM_EARLIEST if self._is_near_zero else start
        self._report_at = -math.inf
        self._buffer = bytearray()

    async def next_piece(self) -> bytes:
        """Give the body of the next frame; empty for a heartbeat."""
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
                data = b""
                with contextlib.suppress(OSError):
                    data = await self._sock.recv(_RECEIVE_SIZE)
                if not data:
                    raise self._gone("closed the connection")
                self._buffer += data
                heard_at = trio.current_time()
            if trio.current_time() - heard_at > SILENCE_MAX_S:
                raise self._gone("is silent")

    def _gone(self, why: str) -> UnreachableError:
        msg = f"{self._name} {why} before it sent offset {self._next_offset}"
        return UnreachableError(
            msg, hint="is that a master's HA port, and does its log reach there?"
        )
