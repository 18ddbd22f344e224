"""Fetches ranges of a running master's log from its HA port, to repair another log.

::

    this process                         master's HA port
    a handshake, as a learner      -->                            of a replica group only
                                   <--   where its log ends, its epochs
    report: the range's start      -->
                                   <--   frames from there on, until the range is complete; in the
                                         classic protocol two heartbeats in a row: the log ends
    the same report, every 5 s     -->   (a master closes a link that is silent for 20 s)

It never reports more than the range's start, so that no fetched byte counts as acknowledged; and a
learner never counts.  Its node id is drawn for each connection, from the highest ids: the node
that is repaired, or compared, may be connected under its own.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.tcp import connect, describe, send_all, tune
from hastore.errors import LogDamagedError, ProtocolError, TlsError, UnreachableError
from hastore.ha.link_epochs import check_is_not_deposed
from hastore.tls.tls_socket import connect_tls
from hastore.wire import autoswitch_frames
from hastore.wire.autoswitch_frames import (
    READER_ID_MAX,
    READER_IDS,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
)
from hastore.wire.ha_frames import (
    FIRST_OFFSET_MIN,
    HEADER,
    HEADER_SIZE,
    REPORT_FROM_EARLIEST,
    check_header,
    encode_report,
)

if TYPE_CHECKING:
    from hastore.env.interface import Randomness
    from hastore.epoch_history import EpochHistory
    from hastore.tls.client_tls import ClientTls

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_MAX_S: Final = 20.0  # a master sends a heartbeat every 5 s
_REPORT_INTERVAL_S: Final = 5.0
_HEARTBEATS_AT_END: Final = 2  # in a row
_RECEIVE_SIZE: Final = 1024 * 1024


@final
@attrs.frozen(kw_only=True)
class GroupLogReader:
    """Who reads the log of a replica group's master: a log of that group, with these epochs."""

    epochs: EpochHistory
    seen_epoch: int
    randomness: Randomness

    def handshake(self) -> Handshake:
        """Return a learner's handshake."""
        drawn = int(self.randomness.random() * READER_IDS)
        return Handshake(node_id=READER_ID_MAX - drawn, is_learner=True)

    def check(self, answer: HandshakeAnswer, stop: int, name: str) -> None:
        """Check that both logs have the same bytes up to ``stop``, by their epochs.

        Raises LogDamagedError if they do not, or if the master's log ends before, and
        DeposedMasterError.
        """
        check_is_not_deposed(answer, self.seen_epoch)
        if answer.max_offset < stop:
            raise _ends_before(name, stop, answer.max_offset)
        common = self.epochs.consistent_point(stop, answer.epochs, answer.max_offset)
        if common is None or common.offset < stop:
            agreed = 0 if common is None else common.offset
            raise LogDamagedError(
                f"the log of {name} is another one from {agreed} on: its epochs are"
                f" {answer.epochs}, and those of this log {self.epochs}",
                path=name,
                physic_offset=agreed,
                hint="name the HA port of the master of this node's group; start the node as its"
                " slave, and it cuts off what it alone has",
            )


async def fetch_range(
    address: tuple[str, int],
    physic_offset: int,
    size: int,
    tls: ClientTls | None = None,
    *,
    reader: GroupLogReader | None = None,
) -> bytes:
    """Return exactly these bytes of the master's log; ``tls``: over a link with TLS.

    ``reader``: the master is that of its replica group, and speaks autoswitch.  Raises
    LogDamagedError if the log ends before the range does, or is another one by its epochs,
    UnreachableError if the master does not answer or closes the link (it has no place for another
    slave, or its log begins after ``physic_offset``), ProtocolError if it is no master or speaks
    the other protocol, DeposedMasterError, and TlsError.
    """
    sock = await connect(address, CONNECT_TIMEOUT_S)
    tune(sock)
    if tls is not None:
        name = tls.name_of(address[0])
        sock = await connect_tls(sock, tls.context, name, CONNECT_TIMEOUT_S, peer="the master")
    with sock:
        frames = _Frames(sock, address, physic_offset, is_autoswitch=reader is not None)
        if reader is not None:
            answer = await frames.greet(reader.handshake())
            reader.check(answer, physic_offset + size, describe(address))
        data = bytearray()
        heartbeats = 0
        while len(data) < size:
            piece = await frames.next_piece()
            # One may precede the answer to the first report.
            heartbeats = 0 if piece else heartbeats + 1
            if reader is None and heartbeats == _HEARTBEATS_AT_END:
                stop, end = physic_offset + size, physic_offset + len(data)
                raise _ends_before(describe(address), stop, end)
            data += piece
    return bytes(data[:size])


def _ends_before(name: str, stop: int, end: int) -> LogDamagedError:
    return LogDamagedError(
        f"the log of {name} ends before offset {stop}",
        path=name,
        physic_offset=end,
        hint="use a replica that has these offsets",
    )


@final
class _Frames:
    """The frames of one connection, in order."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        address: tuple[str, int],
        start: int,
        *,
        is_autoswitch: bool,
    ) -> None:
        self._sock = sock
        self._name = describe(address)
        self._next_offset = start
        self._is_autoswitch = is_autoswitch
        self._header_size = autoswitch_frames.FRAME_HEADER_SIZE if is_autoswitch else HEADER_SIZE
        # The smallest offsets are requests in a first report.  Asked for its earliest byte, a
        # hastore master begins at 0, a RocketMQ master at 1; byte 0 of a log is always 0.
        self._is_near_zero = start < FIRST_OFFSET_MIN and not is_autoswitch
        first = REPORT_FROM_EARLIEST if self._is_near_zero else start
        encode = autoswitch_frames.encode_report if is_autoswitch else encode_report
        self._report = encode(first)
        self._report_at = math.inf if is_autoswitch else -math.inf
        self._buffer = bytearray()

    async def greet(self, handshake: Handshake) -> HandshakeAnswer:
        """Send a handshake, and return its answer; reports follow it."""
        with contextlib.suppress(OSError):  # the next recv says so
            await send_all(self._sock, handshake.encode())
        while True:
            with memoryview(self._buffer) as view:
                found = HandshakeAnswer.decode(view)
            if found is not None:
                answer, size = found
                del self._buffer[:size]
                self._report_at = -math.inf
                return answer
            await self._receive(len(self._buffer) + 1)

    def _header(self) -> tuple[int, int]:
        """Return offset and body size of the frame at the buffer's front.  Raises ProtocolError."""
        if self._is_autoswitch:
            with memoryview(self._buffer) as view:
                frame = FrameHeader.decode(view)
            return frame.physic_offset or 0, frame.body_size
        physic_offset, body_size = HEADER.unpack_from(self._buffer)
        check_header(physic_offset, body_size)
        return physic_offset, body_size

    async def next_piece(self) -> bytes:
        """Return the next frame's body; empty for a heartbeat."""
        await self._receive(self._header_size)
        physic_offset, body_size = self._header()
        begins_early = self._is_near_zero and physic_offset <= REPORT_FROM_EARLIEST
        # A group's heartbeat before the first frame may name another offset.
        is_checked = body_size > 0 or not self._is_autoswitch
        if is_checked and physic_offset != self._next_offset and not begins_early:
            msg = f"{self._name} sends from {physic_offset}, asked for {self._next_offset}"
            raise ProtocolError(
                msg, hint="its log does not hold these offsets; another replica may"
            )
        header_size = self._header_size
        await self._receive(header_size + body_size)
        body = bytes(self._buffer[header_size : header_size + body_size])
        del self._buffer[: header_size + body_size]
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
                    await send_all(self._sock, self._report)
            with trio.move_on_at(min(self._report_at, heard_at + SILENCE_MAX_S)):
                data = await self._recv()
                if not data:
                    raise self._gone("closed the connection")
                self._buffer += data
                heard_at = trio.current_time()
            if trio.current_time() - heard_at >= SILENCE_MAX_S:
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
