"""A socket like trio's whose bytes are encrypted on the way.

::

    send:  data ── SSLObject.write ──► _outgoing ──► _unsent ──► the socket below
    recv:  data ◄── SSLObject.read ── _incoming ◄── the socket below

OpenSSL works on two buffers in memory and never sees the socket, so this also works over the
simulator's.  One call encrypts up to ``PIECE_SIZE`` bytes, which are several records of 16 KiB: the
cost is in AES, not in calls.

A send counts bytes once their ciphertext has left.  What a short or cancelled send has taken, but
not counted, must come first in the next one, as OpenSSL asks of SSL_write: its ciphertext is kept
and sent first, and is not made again.  So no record is lost, torn or doubled by a cancellation.

Invariants: at most ``PIECE_SIZE`` bytes are encrypted and unsent, beside a few records of TLS's
own; before the handshake has ended, at most ``HANDSHAKE_SIZE_MAX`` bytes of the peer's were read;
there is no file descriptor to be had, so no byte can leave unencrypted by mistake.  One task at a
time sends, one receives.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any, Final, Self, final

import trio

from hastore.env.sending import real_send_now
from hastore.errors import TlsError
from hastore.tls.revocation import keep
from hastore.tls.tls_fault import PEER, TlsFault, as_tls_error, cut_short, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.env.interface import Env, SendNow, SendWhile

HANDSHAKE_SIZE_MAX: Final = 128 * 1024  # bytes that a peer may send until the handshake's end
PIECE_SIZE: Final = 128 * 1024
# Bytes of ciphertext in one receive.  An end that gets little has a buffer of the least size; each
# receive that fills it doubles it.
RECEIVE_SIZE_MIN: Final = 16 * 1024
RECEIVE_SIZE_MAX: Final = 256 * 1024
_TURN_SIZE_MAX: Final = 1024 * 1024  # bytes received in one call: half a millisecond of AES
_RECEIVE_SIZE: Final = 64 * 1024  # by trio's call, which allocates it each time
# TLS's own answers (KeyUpdate, alerts) that wait for the next send: a peer must not pile them up.
_ANSWERS_SIZE_MAX: Final = 4096
_HANDSHAKE_RECEIVE_SIZE: Final = 16 * 1024
_LAST_WORDS_S: Final = 1.0  # for a peer to read why it is refused
_JOINED_SIZE_MAX: Final = 32 * 1024  # up to here a copy is cheaper than another record
_CORKED_SIZE_MAX: Final = 4096
_RECORD_SIZE_MAX: Final = 16 * 1024
_HANDSHAKE_RECORD: Final = 0x16
_ALERT_RECORD: Final = 0x15
_ENCODING_DER: Final = 2  # of ``_ssl``


async def accept_tls(
    sock: trio.socket.SocketType,
    context: ssl.SSLContext,
    timeout_s: float,
    *,
    env: Env | None = None,
    peer: str = PEER,
    receive_size_max: int = RECEIVE_SIZE_MAX,
) -> TlsSocket:
    """Shake hands with the client of an accepted socket, which is closed if that fails.

    With ``env`` its raw socket calls are used, as by ``tls_calls``, and up to ``receive_size_max``
    bytes of ciphertext are received at once; without it trio's.  ``context``
    should have ``num_tickets`` 0: a client that never reads leaves tickets in its socket, and its
    close is a reset then, which may overtake what it has sent.  ``peer`` is what errors call the
    client.  Raises TlsError, and OSError if the link breaks.
    """
    tls = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(*tls, server_side=True)
    accepted = TlsSocket(
        sock, (wrapped, *tls), None, env, peer=peer, receive_size_max=receive_size_max
    )
    await accepted.begin(timeout_s)
    keep(context, accepted)
    return accepted


async def connect_tls(
    sock: trio.socket.SocketType,
    context: ssl.SSLContext,
    server_name: str,
    timeout_s: float,
    *,
    env: Env | None = None,
    peer: str = PEER,
) -> TlsSocket:
    """Shake hands with the server of a connected socket, which is closed if that fails.

    ``server_name`` is a host name or an IP address, which its certificate must have unless
    ``context`` does not check that.  With TLS 1.3 a server's refusal of our certificate arrives
    later: ``recv`` raises it.  Raises as ``accept_tls`` does.
    """
    tls = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        wrapped = context.wrap_bio(*tls, server_hostname=server_name)
    except ValueError as error:  # also of names that IDNA does not know
        sock.close()
        msg = f"{server_name!r} is no name that a certificate can have"
        raise TlsError(msg, fault=TlsFault.WRONG_NAME) from error
    connected = TlsSocket(
        sock, (wrapped, *tls), server_name, env, peer=peer, receive_size_max=RECEIVE_SIZE_MAX
    )
    await connected.begin(timeout_s)
    keep(context, connected)
    return connected


@final
class TlsSocket(trio.socket.SocketType):
    """An encrypted connection, from ``accept_tls`` or ``connect_tls``."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        tls: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO],
        server_name: str | None,
        env: Env | None,
        *,
        peer: str,
        receive_size_max: int,
    ) -> None:
        self._sock = sock
        self._ssl, self._incoming, self._outgoing = tls
        self._server_name = server_name
        self._env = env
        self.peer = peer  # what errors call the other side
        self._receive_size_max = receive_size_max  # >= RECEIVE_SIZE_MIN
        # One attempt to send without a wait; None where only trio's calls are known.
        self._try_send: SendNow | None = None
        if env is not None:
            self._try_send = env.send_now
        elif sock.fileno() >= 0:
            self._try_send = real_send_now
        self._unsent: bytes | memoryview = b""  # ciphertext
        self._uncounted = b""  # encrypted, but not counted as sent
        self._is_sending = False
        self._is_cut = False  # what is unsent must not leave any more
        self._failure: TlsError | None = None  # found behind bytes that were good
        self._is_over = False  # TLS's end has been received
        self._is_full = False  # the last receive has filled its buffer
        self._room = memoryview(b"" if env is None else bytearray(RECEIVE_SIZE_MIN))

    # -- beginning -------------------------------------------------------------------------------

    async def begin(self, timeout_s: float) -> None:
        """Shake hands in time, or close the socket."""
        try:
            with trio.move_on_after(timeout_s) as scope:
                await self._shake_hands()
            if scope.cancelled_caught:
                msg = f"no whole TLS handshake within {timeout_s:g} s"
                raise TlsError(msg, fault=TlsFault.TIMEOUT)
        except BaseException:
            self._sock.close()
            raise

    async def _shake_hands(self) -> None:
        size = 0
        while True:
            is_done = False
            try:
                self._ssl.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                await self._say_why()
                raise self._tls_error(error) from error
            await self._send_unsent()
            if is_done:
                return
            data = await self._sock.recv(_HANDSHAKE_RECEIVE_SIZE)
            if not data:
                msg = f"{self.peer} closed the connection in the TLS handshake"
                raise TlsError(msg, fault=TlsFault.CUT)
            if not size and data[0] not in {_HANDSHAKE_RECORD, _ALERT_RECORD}:
                raise plain_text(self.peer)
            size += len(data)
            if size > HANDSHAKE_SIZE_MAX:
                msg = f"a TLS handshake of more than {HANDSHAKE_SIZE_MAX} bytes"
                raise TlsError(msg, fault=TlsFault.SIZE)
            self._incoming.write(data)

    def _tls_error(self, error: ssl.SSLError) -> TlsError:
        return as_tls_error(error, server_name=self._server_name, peer=self.peer)

    async def _say_why(self) -> None:
        """Send OpenSSL's alert, and wait a moment until it was read: a reset would overtake it."""
        with trio.move_on_after(_LAST_WORDS_S), contextlib.suppress(OSError):
            await self._send_unsent()
            self._sock.shutdown(trio.socket.SHUT_WR)
            while await self._sock.recv(_HANDSHAKE_RECEIVE_SIZE):
                pass

    # -- who is there ----------------------------------------------------------------------------

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """What the peer's certificate says, as ``ssl`` decodes it; None: no checked one."""
        return self._ssl.getpeercert() or None

    def peer_chain(self) -> list[bytes]:
        """Return the peer's certificate, and those that sign it up to the CA's (DER); may be empty.

        As ``ssl.SSLObject.get_verified_chain`` of Python 3.13.
        """
        if not self._ssl.getpeercert():
            return []
        chain = self._ssl._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # noqa: SLF001
        return [certificate.public_bytes(_ENCODING_DER) for certificate in chain]

    @property
    def tls_version(self) -> str | None:
        """``TLSv1.3`` or ``TLSv1.2``."""
        return self._ssl.version()

    def getsockname(self) -> Any:
        """Return this end's address."""
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        """Return the peer's address."""
        return self._sock.getpeername()

    def setsockopt(self, *args: Any, **kwargs: Any) -> None:
        """Set an option of the socket below."""
        self._sock.setsockopt(*args, **kwargs)

    def getsockopt(self, *args: Any, **kwargs: Any) -> Any:
        """Return an option of the socket below."""
        return self._sock.getsockopt(*args, **kwargs)

    def fileno(self) -> int:
        """Return -1: what writes to the descriptor would not be encrypted."""
        return -1

    # -- sending ---------------------------------------------------------------------------------

    async def send(self, data: Any, flags: int = 0) -> int:
        """Send some of ``data``, at least a byte of it, and return how many bytes have left.

        After a cancelled call the next one must begin with the bytes that it did not count (see the
        module); otherwise the stream is torn, and this raises TlsError.  With MSG_MORE a few bytes
        are kept back, to leave with those that follow.
        """
        with self._only_sender():
            if self._uncounted:
                await self._send_unsent()
                counted = self._take_uncounted(data)
                if counted:
                    return counted
            taken = self._encrypt((data,))  # behind the few bytes that MSG_MORE has kept
            if flags & trio.socket.MSG_MORE and len(self._unsent) < _CORKED_SIZE_MAX:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return taken
            await self._send_taken(data, taken, self._send_unsent)
            return taken

    async def send_while(
        self, data: memoryview, may_leave: Callable[[], bool], send_while: SendWhile
    ) -> int | None:
        """Send while ``may_leave``, by the call of the socket below; None: the connection must end.

        A record that has left in part is never completed then, so the peer cannot read it; nor
        after a call that was cancelled or failed: it must not leave later, unasked.
        """
        with self._only_sender():

            async def leave() -> bool:
                return await self._send_unsent_while(may_leave, send_while)

            try:
                if not await leave():
                    return None
                counted = self._take_uncounted(data)
                if counted:
                    return counted
                taken = self._encrypt((data,))
                return taken if await self._send_taken(data, taken, leave) else None
            except BaseException:
                self._is_cut = True
                raise

    def send_now(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Send without a wait as far as the socket below takes it; return how many bytes have left.

        Returns 0 if nothing was taken, also for a broken connection: the next ``send`` raises then.
        """
        size = sum(map(len, buffers))
        if self._is_sending or self._failure is not None or size < 2:  # noqa: PLR2004 - one is uncounted
            return 0
        if self._unsent:
            self._send_unsent_now()
        if self._unsent or self._uncounted:
            return 0
        if size <= _JOINED_SIZE_MAX:
            buffers = (b"".join(buffers),)
        counted = 0
        while counted < size and not self._unsent:
            try:
                counted += self._encrypt(buffers, counted)
            except TlsError:
                break
            self._send_unsent_now()
        if self._unsent:
            counted -= 1
            self._uncounted = _byte_at(buffers, counted)
        return counted

    async def sendmsg(self, buffers: Any, *_args: Any) -> int:
        """Send parts as one."""
        return await self.send(b"".join(bytes(part) for part in buffers))

    def _encrypt(self, buffers: Sequence[bytes | memoryview], position: int = 0) -> int:
        """Encrypt up to ``PIECE_SIZE`` bytes from ``position`` on; return how many.

        No view of ``buffers`` outlives the call: they may be of a map.  Raises TlsError.
        """
        taken = 0
        try:
            for buffer in buffers:
                begin, position = position, max(position - len(buffer), 0)
                if not begin and len(buffer) <= PIECE_SIZE - taken:  # whole: no view is needed
                    taken += self._ssl.write(buffer) if len(buffer) else 0
                    continue
                with (
                    memoryview(buffer) as whole,
                    whole[begin : begin + PIECE_SIZE - taken] as piece,
                ):
                    taken += self._ssl.write(piece) if len(piece) else 0
        except ssl.SSLError as error:
            raise self._tls_error(error) from error
        self._collect()
        return taken

    def _collect(self) -> None:
        """Take what OpenSSL has encrypted."""
        if self._outgoing.pending:
            made = self._outgoing.read()
            self._unsent = bytes(self._unsent) + made if self._unsent else made

    async def _send_taken(self, data: Any, taken: int, leave: Callable[[], Any]) -> Any:
        """Send the ciphertext of the first ``taken`` bytes of ``data``, which count only then."""
        try:
            return await leave()
        except BaseException:
            with memoryview(data) as whole, whole.cast("B") as view:
                self._uncounted = bytes(view[:taken])
            raise

    def _take_uncounted(self, data: Any) -> int:
        """Count what an earlier call has encrypted of ``data``; its ciphertext has left."""
        uncounted = self._uncounted
        if not uncounted:
            return 0
        with memoryview(data) as whole, whole.cast("B") as view:
            counted = min(len(uncounted), len(view))
            is_same = view[:counted] == uncounted[:counted]
        if not is_same:
            self._is_cut = True
            raise cut_short()
        self._uncounted = uncounted[counted:]
        return counted

    async def _send_unsent(self) -> None:
        """Send the ciphertext that is there; always a checkpoint."""
        self._collect()
        if not self._unsent:
            await trio.lowlevel.checkpoint()
            return
        await trio.lowlevel.checkpoint_if_cancelled()
        self._send_unsent_now()
        if not self._unsent:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while self._unsent:
            self._has_left(await self._sock.send(self._unsent))

    async def _send_unsent_while(
        self, may_leave: Callable[[], bool], send_while: SendWhile
    ) -> bool:
        """Send it while ``may_leave``; return False once that says no: then nothing leaves."""
        self._collect()
        if not self._unsent:
            await trio.lowlevel.checkpoint()
        while self._unsent:
            sent = await send_while(self._sock, memoryview(self._unsent), may_leave)
            if sent is None:
                break
            self._has_left(sent)
        if self._unsent or not may_leave():
            self._is_cut = True
        return not self._is_cut

    def _send_unsent_now(self) -> None:
        """Send the ciphertext that is there as far as it leaves without a wait."""
        if self._try_send is not None and not self._is_cut:
            self._has_left(self._try_send(self._sock, (self._unsent,)))

    def _has_left(self, size: int) -> None:
        unsent = self._unsent
        self._unsent = b"" if size == len(unsent) else memoryview(unsent)[size:]

    @contextlib.contextmanager
    def _only_sender(self) -> Any:
        if self._is_sending:
            msg = "another task is sending on this connection"
            raise trio.BusyResourceError(msg)
        if self._is_cut:
            raise cut_short()
        self._is_sending = True
        try:
            yield
        finally:
            self._is_sending = False

    # -- receiving -------------------------------------------------------------------------------

    async def recv(self, size: int, _flags: int = 0) -> bytes:
        """Receive some of what has arrived; b"" at TLS's end.  Raises as ``recv_into`` does."""
        parts: list[bytes] = []

        def read(left: int) -> int:
            parts.append(self._ssl.read(min(left, _RECORD_SIZE_MAX)))
            return len(parts[-1])

        await self._wait()
        while self._read_records(size, read) is None:
            await self._receive()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def recv_into(self, buffer: Any, nbytes: int = 0, _flags: int = 0) -> int:
        """Receive into a buffer; return 0 at TLS's end.

        Raises TlsError for records that are not the peer's, for its refusal of our certificate, and
        for an end that is not TLS's: a part of the stream may be missing.
        """
        size = min(nbytes or len(buffer), len(buffer))

        def read(left: int) -> Any:  # a number, whatever typeshed says
            if left == size:  # most often that is all: no view is needed
                return self._ssl.read(size, buffer)
            with memoryview(buffer) as whole, whole[size - left : size] as room:
                return self._ssl.read(left, room)

        await self._wait()
        while (count := self._read_records(size, read)) is None:
            await self._receive()
        limit = min(size, _TURN_SIZE_MAX)
        while 0 < count < limit and self._receive_more():
            try:
                count += self._read_records(size - count, read) or 0
            except TlsError:
                break  # kept for the next call
        return count

    async def _wait(self) -> None:
        """Wait until there may be something to read; always a checkpoint."""
        is_known = self._is_over or self._failure is not None
        if is_known or self._incoming.pending or self._ssl.pending():
            await trio.lowlevel.checkpoint()
        else:
            await self._receive()

    async def _receive(self) -> None:
        """Receive ciphertext; the wait may be cancelled, and nothing is lost then."""
        if self._env is None:
            data: bytes | memoryview = await self._sock.recv(_RECEIVE_SIZE)
        else:
            room = self._room
            count = await self._env.receive(self._sock, room)
            data = room[:count]
            self._is_full = count == len(room)
            if count == len(room) < self._receive_size_max:
                self._room = memoryview(bytearray(min(2 * count, self._receive_size_max)))
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _receive_more(self) -> bool:
        """Receive what came beyond the last receive, without a wait; return whether there was any.

        A plain socket fills its caller's buffer: each call costs a slave a report.
        """
        if self._env is None or not self._is_full:
            return False
        room = self._room
        count = None
        with contextlib.suppress(OSError):  # the next receive raises it
            count = self._env.poll(self._sock, room, 0.0)
        self._is_full = count == len(room)
        if not count:
            return False
        self._incoming.write(room[:count])
        return True

    def _read_records(self, size: int, read: Callable[[int], int]) -> int | None:
        """Decrypt up to ``size`` bytes by ``read``, which is told how many are left.

        Return how many, 0 at TLS's end, None if nothing is there.  One call of OpenSSL's returns
        one record at most.
        """
        if self._failure is not None:
            raise self._failure
        left, is_more_needed = size, False
        try:
            while left:
                count = read(left)
                left -= count
                if not count:
                    self._is_over = True
                    break
                if not (self._incoming.pending or self._ssl.pending()):
                    break
        except ssl.SSLWantReadError:
            is_more_needed = True
        except ssl.SSLZeroReturnError:
            self._is_over = True
        except ssl.SSLError as error:
            self._failure = self._tls_error(error)
            if left == size:
                raise self._failure from error
        if self._outgoing.pending > _ANSWERS_SIZE_MAX:
            msg = f"{self.peer} makes TLS answer with more than {_ANSWERS_SIZE_MAX} bytes"
            self._failure = TlsError(msg, fault=TlsFault.SIZE)
            if left == size:
                raise self._failure
        return None if is_more_needed and left == size else size - left

    # -- the end ---------------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """Whether it was closed, or has failed: nothing leaves any more."""
        return self._is_cut or self._failure is not None

    def end(self, error: TlsError) -> None:
        """End it from outside: nothing leaves or is read any more; ``recv`` raises ``error``."""
        self._failure = error
        self._is_cut = True
        with contextlib.suppress(OSError):  # wakes who waits for it
            self._sock.shutdown(trio.socket.SHUT_RDWR)

    def shutdown(self, how: int) -> None:
        """End the sending half with TLS's end, and with the socket's; or both halves."""
        if how != trio.socket.SHUT_RD:
            self._say_end()
        self._sock.shutdown(how)

    def _say_end(self) -> None:
        """Send close_notify, and nothing else, as far as it leaves without a wait.

        What a send has left behind may have to stay: the peer finds the stream cut.
        """
        if self._is_cut or self._is_sending or self._unsent or self._uncounted:
            return
        with contextlib.suppress(ssl.SSLError):  # it wants the peer's, or the stream is broken
            self._ssl.unwrap()
        self._collect()
        if self._unsent:
            self._send_unsent_now()

    def __enter__(self) -> Self:
        """Close it at the end of the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close, with TLS's end if no bytes are unsent and it leaves without a wait; idempotent."""
        self._say_end()
        self._is_cut = True
        self._sock.close()


def _byte_at(buffers: Sequence[bytes | memoryview], position: int) -> bytes:
    for buffer in buffers:
        if position < len(buffer):
            return bytes(buffer[position : position + 1])
        position -= len(buffer)
    msg = "beyond the buffers"
    raise AssertionError(msg)
