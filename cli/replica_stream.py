"""A replica's bytes from a master's HA port, for a repair: a slave's question, and no more.

::

    repair                            master
      │ report: offset                  │     8 bytes, as a slave that has everything before it
      │◄──────────────── frames ────────│     from there on
      │ close, once there is enough     │

The bytes of a commit log are the same on all replicas, so what comes can stand in the damaged
range.  The connection says of itself that it holds what is before the range, which was acknowledged
long ago; it reports nothing after that.
"""

from __future__ import annotations

from typing import Final, final

import trio

from cli.error_report import collapsed
from cli.quantities import format_address
from hastore.concurrency.tcp import connect
from hastore.errors import LogDamagedError, ProtocolError, UnreachableError
from hastore.wire.ha_frames import (
    HEADER,
    HEADER_SIZE,
    REPORT_FROM_EARLIEST,
    check_header,
    encode_report,
)

_SILENCE_S: Final = 3.0  # a master that has more sends it at once
_CONNECT_TIMEOUT_S: Final = 5.0
_KEPT_SIZE_MAX: Final = 64 * 1024 * 1024
_RECEIVE_SIZE: Final = 256 * 1024
# Small first reports have meanings of their own, and a log's first byte is never sent.
_REPORT_MIN: Final = 3


@final
class MasterSource:
    """A RepairSource that asks a master; what was asked a moment ago is kept."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.name = format_address(address)
        self._address = address
        self._kept: dict[tuple[int, int], bytes] = {}

    def read(self, physic_offset: int, size: int) -> bytes:
        """Give exactly these bytes.

        Raises LogDamagedError where the master has them not, UnreachableError, ProtocolError.
        """
        asked = (physic_offset, size)
        data = self._kept.get(asked)
        if data is None:
            with collapsed():
                data = trio.run(self._fetch, physic_offset, size)
            if size + sum(map(len, self._kept.values())) > _KEPT_SIZE_MAX:
                self._kept.clear()
            self._kept[asked] = data
        return data

    async def _fetch(self, physic_offset: int, size: int) -> bytes:
        report = physic_offset if physic_offset >= _REPORT_MIN else REPORT_FROM_EARLIEST
        sock = await connect(self._address, _CONNECT_TIMEOUT_S)
        try:
            await sock.send(encode_report(report))
            frames = _Frames(self.name, report)
            while frames.end < physic_offset + size:
                await self._receive(sock, frames)
        except OSError as error:
            raise UnreachableError(
                f"{self.name} broke the link: {error.strerror or error}",
                hint="see whether that is a master's HA port: hastore status",
            ) from error
        finally:
            sock.close()
        # A stock master sends byte 1 and on; a record's first byte is always 0.
        data = b"\0" * frames.begin + frames.data if frames.begin < _REPORT_MIN else frames.data
        begin = 0 if frames.begin < _REPORT_MIN else frames.begin
        return bytes(data[physic_offset - begin :][:size])

    async def _receive(self, sock: trio.socket.SocketType, frames: _Frames) -> None:
        received = b""
        with trio.move_on_after(_SILENCE_S):
            received = await sock.recv(_RECEIVE_SIZE)
        if not received:
            raise LogDamagedError(
                f"{self.name} sent nothing from offset {frames.end} on",
                path=self.name,
                physic_offset=frames.end,
                hint="give a master's HA port (hastore status shows it) whose log holds that"
                " offset, or use another replica",
            )
        frames.take(received)


@final
class _Frames:
    """What a master sends, put together: ``data`` are the log's bytes from ``begin`` on."""

    def __init__(self, name: str, report: int) -> None:
        self.begin = report
        self.data = bytearray()
        self._name = name
        self._buffer = bytearray()

    @property
    def end(self) -> int:
        """Where the next byte stands in the log."""
        return self.begin + len(self.data)

    def take(self, received: bytes) -> None:
        """Take bytes of the link; ProtocolError where frames do not follow on each other."""
        buffer = self._buffer
        buffer += received
        while len(buffer) >= HEADER_SIZE:
            offset, body_size = HEADER.unpack_from(buffer)
            check_header(offset, body_size)
            if len(buffer) < HEADER_SIZE + body_size:
                return
            if not self.data and offset == 0 and self.begin == REPORT_FROM_EARLIEST:
                self.begin = 0  # a hastore master knows what such a report asks for
            if body_size and offset != self.end:
                raise ProtocolError(
                    f"{self._name} sends from offset {offset}, not from {self.end}",
                    hint="its log begins later, or is not the same: use another replica",
                )
            self.data += buffer[HEADER_SIZE : HEADER_SIZE + body_size]
            del buffer[: HEADER_SIZE + body_size]
