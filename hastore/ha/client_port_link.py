"""One connection of a slave to its master's client port: one request after the other.

::

    identify    the four requests of ``client_port``, in one send  -->  what the port is
    ask         a request  -->  its answer, matched by ``opaque``

``identify`` comes first: its answers have the nonce for hastore's own signatures.

Invariant: a request is sent only after the answer to the one before it, so a late answer never
passes for another's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.access.signature import RequestSigner
from hastore.concurrency.tcp import describe, send_all
from hastore.config import MIB
from hastore.errors import UnreachableError
from hastore.ha.client_port import ASK_TIMEOUT_S, QUESTIONS, questions, read_answers
from hastore.tls.connecting import connect_client_port
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hastore.access.signature import AccessKey
    from hastore.ha.client_port import ClientPort
    from hastore.tls.client_tls import ClientTls

ANSWER_SIZE_MAX: Final = 16 * MIB  # RocketMQ's largest frame
_RECEIVE_SIZE: Final = 64 * 1024
_FIRST_OPAQUE: Final = 100_000  # above the questions', which are request codes


@final
@attrs.define(eq=False)
class ClientPortLink:
    """A connection, from ``open_client_port_link``."""

    address: tuple[str, int]
    sock: trio.socket.SocketType
    signer: RequestSigner
    _reader: FrameReader = attrs.field(factory=lambda: FrameReader(ANSWER_SIZE_MAX), init=False)
    _opaque: int = attrs.field(default=_FIRST_OPAQUE, init=False)

    async def identify(self) -> ClientPort | None:
        """Return what the port is; None if it does not answer in time.

        Raises OSError, and ProtocolError if it does not speak remoting.
        """
        answers: dict[int, RemotingCommand] = {}
        with trio.move_on_after(ASK_TIMEOUT_S), contextlib.suppress(UnreachableError):
            await send_all(self.sock, questions(self.signer.key))
            while len(answers) < len(QUESTIONS):
                command = await self._next()
                if command.is_response and command.opaque in QUESTIONS:
                    answers[command.opaque] = command
        self.signer.use_nonce_of(answers.get(RequestCode.GET_BROKER_HA_STATUS))
        return read_answers(answers)

    async def ask(
        self, code: int, ext_fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer to a request, whatever its code.

        Raises UnreachableError if none comes within ``ASK_TIMEOUT_S``, OSError, ProtocolError; the
        connection is of no use then.
        """
        self._opaque += 1
        fields = self.signer.signed(code, ext_fields or {}, body)
        request = RemotingCommand(code=code, opaque=self._opaque, ext_fields=fields, body=body)
        with trio.move_on_after(ASK_TIMEOUT_S):
            await send_all(self.sock, encode_command(request))
            while True:
                command = await self._next()
                if command.is_response and command.opaque == self._opaque:
                    return command
        msg = f"{describe(self.address)} did not answer request {int(code)} in {ASK_TIMEOUT_S:g} s"
        raise UnreachableError(msg)

    async def until_closed(self) -> None:
        """Read, and ignore what comes, until the peer closes; then raise UnreachableError.

        Raises OSError, and ProtocolError if it does not speak remoting.  May be cancelled.
        """
        while True:
            await self._next()

    async def _next(self) -> RemotingCommand:
        while (command := self._reader.next_command()) is None:
            data = await self.sock.recv(_RECEIVE_SIZE)
            if not data:
                msg = f"{describe(self.address)} closed the connection"
                raise UnreachableError(msg)
            self._reader.feed(data)
        return command


@contextlib.asynccontextmanager
async def open_client_port_link(
    address: tuple[str, int],
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[ClientPortLink]:
    """Connect while the block runs.  Raises UnreachableError, TlsError."""
    with await connect_client_port(address, ASK_TIMEOUT_S, tls) as sock:
        yield ClientPortLink(address, sock, RequestSigner(access_key))
