"""One connection to a node: many requests in flight, answers matched by ``opaque``.

::

    post -> out -> one send     recv -> FrameReader -> PendingRequest.answer, answer_ok (by opaque)

Three tasks live as long as the connection: one sends everything posted so far, one receives, one
watches the deadlines.  All requests have the same time-out, so the oldest has the first deadline.
A broken link is not replaced: all requests in flight fail with an unknown outcome, and later ones
are refused.

Invariant: every posted request is decided: answered, timed out, or failed with the link.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from hastore.access.signature import RequestSigner
from hastore.client.access import access_denied, is_denied
from hastore.client.pending_request import PendingRequest
from hastore.concurrency.tcp import bound_address, describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.config import MIB
from hastore.errors import ProtocolError, RequestFailedError, TlsError, UnreachableError
from hastore.tls.connecting import connect_client_port
from hastore.tls.tls_fault import TlsFault
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hastore.access.signature import AccessKey
    from hastore.tls.client_tls import ClientTls

CONNECT_TIMEOUT_S: Final = 5.0
# Above slaveTimeout (3 s) and syncFlushTimeout (5 s), so that their statuses can arrive.
REQUEST_TIMEOUT_S: Final = 10.0
OUT_SIZE_MAX: Final = 8 * MIB  # posted but not sent; ``has_room`` is false above it
FRAME_SIZE_MAX: Final = 16 * MIB

_RECEIVE_SIZE: Final = 64 * 1024
_GATHERED_SIZE_MAX: Final = 64 * 1024
_GATHER_S: Final = 0.001  # at most, if tasks work for long between their posts
_NO_ANSWER: Final = "check whether the node runs, and read its log"
_NEVER_AN_ANSWER: Final = f"{_NO_ANSWER}; a port that takes TLS only closes others (--tls-ca, tls=)"
_OPAQUE_MAX: Final = 0x7FFF_FFFF


class Asker(Protocol):
    """What asks a node, or one of several (``ReaderLink``)."""

    @property
    def address(self) -> tuple[str, int]:
        """The node."""

    @property
    def local_address(self) -> tuple[str, int]:
        """This end of the connection."""

    @property
    def broken_because(self) -> str | None:
        """Why no more requests are taken; None while they are."""

    async def ask(
        self,
        code: int,
        ext_fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        waits_for_room: bool = True,
    ) -> RemotingCommand:
        """Return the answer to a request, whatever its code."""

    async def invoke(
        self,
        code: int,
        ext_fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        waits_for_room: bool = True,
    ) -> RemotingCommand:
        """Return the successful answer to a request."""


@final
class RemotingClient:
    """A connected client, from ``open_remoting_client``."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        address: tuple[str, int],
        request_timeout_s: float,
        in_flight_max: int,
        access_key: AccessKey | None = None,
    ) -> None:
        self.address = address
        self.local_address = bound_address(sock)
        self.request_timeout_s = request_timeout_s
        self.in_flight_max = in_flight_max
        self._signer = RequestSigner(access_key)  # of what ``ask`` sends
        self.broken_because: str | None = None
        self._refusal: TlsError | None = None  # of this end's TLS, before anything was received
        # Called once, synchronously, when the link breaks; it must not block or raise.
        self.on_broken: Callable[[], None] | None = None
        self.late_responses = 0  # answers to requests that had timed out
        self._sock = sock
        self._reader = FrameReader(FRAME_SIZE_MAX)
        self._pending: dict[int, PendingRequest] = {}  # in the order of their deadlines
        self._newest: PendingRequest | None = None  # of those in ``_out``
        self.in_flight = 0  # the weight of the requests that wait for answers
        self._opaque = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._to_send = WaitNotifyObject()
        self._to_watch = WaitNotifyObject()
        self._received_at = -math.inf
        self._silence_s = math.inf  # how long one is that ``wait_for_silence`` waits for
        self._silent = WaitNotifyObject()
        # For how many requests each task waits, the first of them first.
        self._waiting_for_room: dict[WaitNotifyObject, int] = {}
        self._waiting_for_none = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Run until cancelled or disconnected; then fail all requests in flight."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_requests)
                    nursery.start_soon(self._receive_responses)
                    nursery.start_soon(self._watch_deadlines)
        finally:
            self.break_link("the connection was closed here")
            self._sock.close()

    # -- requests out ----------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another request is within the limits, and no task waits for that."""
        return (
            self.in_flight < self.in_flight_max
            and self._out_size < OUT_SIZE_MAX
            and not self._waiting_for_room
        )

    def next_opaque(self) -> int:
        """Return the ``opaque`` of the next request."""
        self._opaque = opaque = self._opaque % _OPAQUE_MAX + 1
        return opaque

    def post(self, pending: PendingRequest, head: bytes, body: bytes = b"") -> None:
        """Send a request soon, in one write with others; ``pending`` gets the answer.

        Raises UnreachableError if the link is broken; nothing was sent then.
        """
        if self.broken_because is not None:
            msg = f"not sent: the link to {describe(self.address)} is broken: {self.broken_because}"
            raise UnreachableError(msg, hint="connect again")
        pending.deadline = trio.current_time() + self.request_timeout_s
        self._pending[pending.opaque] = self._newest = pending
        self.in_flight += pending.weight
        out = self._out
        if not out:
            self._to_send.wakeup()
        if self._to_watch.sleeper is not None:
            self._to_watch.wakeup()
        out.append(head)
        if body:
            out.append(body)
        self._out_size += len(head) + len(body)

    def has_room_for(self, count: int) -> bool:
        """Whether ``count`` requests, at most ``in_flight_max``, are within the limits.

        False while another task waits for that.
        """
        return not self._waiting_for_room and self._fits(count)

    @property
    def out_room(self) -> int:
        """How many more bytes may wait to be sent; not positive if there is no room."""
        return OUT_SIZE_MAX - self._out_size

    async def wait_for_room(self, count: int = 1) -> None:
        """Wait until ``count`` requests are within the limits or the link is broken.

        Tasks are served in the order of their calls, so none starves beside others that need less.
        """
        if self._is_due(count) and not self._waiting_for_room:
            return
        wake = WaitNotifyObject()
        self._waiting_for_room[wake] = count
        try:
            await wake.wait_for_running()
            while not self._is_due(count):
                await wake.wait_for_running()
        finally:
            del self._waiting_for_room[wake]
            # Perhaps this task was cancelled, or will post less than it could.
            following, next_count = next(iter(self._waiting_for_room.items()), (wake, 0))
            if following.is_waiting and self._is_due(next_count):
                following.wakeup()

    def _is_due(self, count: int) -> bool:
        """Whether a task that waits for ``count`` requests may go on, if it is the first."""
        return self.broken_because is not None or self._fits(count)

    def _fits(self, count: int) -> bool:
        return self.in_flight + count <= self.in_flight_max and self._out_size < OUT_SIZE_MAX

    async def wait_for_none(self) -> None:
        """Wait until no request is in flight."""
        await trio.lowlevel.checkpoint()
        while self._pending:
            await self._waiting_for_none.park()

    async def invoke(
        self,
        code: int,
        ext_fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        waits_for_room: bool = True,
    ) -> RemotingCommand:
        """Return the successful answer to a request.

        Raises as ``ask``, and RequestFailedError if the node answers with an error.
        """
        response = await self.ask(
            code, ext_fields, body, serialize_type=serialize_type, waits_for_room=waits_for_room
        )
        if response.code != ResponseCode.SUCCESS:
            raise request_failed(self.address, code, response)
        return response

    async def ask(
        self,
        code: int,
        ext_fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        waits_for_room: bool = True,
    ) -> RemotingCommand:
        """Return the answer to a request, whatever its code.

        Raises UnreachableError if none comes, TlsError if the node has refused this end instead of
        answering anything: in TLS 1.3 its verdict on a certificate comes after the handshake.

        A heartbeat must not wait for room: a peer that reads nothing would never be noticed.
        """
        if self._signer.needs_nonce(code):
            status = RequestCode.GET_BROKER_HA_STATUS
            self._signer.use_nonce_of(await self.ask(status, waits_for_room=waits_for_room))
        if waits_for_room:
            await self.wait_for_room()
        request = RemotingCommand(
            code=code,
            opaque=self.next_opaque(),
            ext_fields=self._signer.signed(code, ext_fields or {}, body),
            body=body,
            serialize_type=serialize_type,
        )
        pending = PendingRequest(request.opaque)
        self.post(pending, encode_command(request))
        await pending.done()
        response = pending.response
        if response is None:
            raise self._not_answered(code, pending)
        return response

    def _not_answered(self, code: int, pending: PendingRequest) -> UnreachableError | TlsError:
        """Return a new error: several tasks may raise theirs."""
        refusal = self._refusal
        if refusal is not None:
            return TlsError(str(refusal), fault=refusal.fault, hint=refusal.hint)
        msg = f"{describe(self.address)} did not answer request {code}: {pending.failure}"
        return UnreachableError(msg, hint=_NO_ANSWER if self._has_received else _NEVER_AN_ANSWER)

    @property
    def _has_received(self) -> bool:
        return self._received_at > -math.inf

    async def _send_requests(self) -> None:
        try:
            while True:
                if not self._out:
                    await self._to_send.wait_for_running()
                    continue
                await self._gather()
                left = memoryview(b"".join(self._out))
                self._out.clear()
                self._newest = None
                while left:
                    sent = await self._sock.send(left)
                    left = left[sent:]
                    self._out_size -= sent
                self._signal_room()
        except OSError as error:
            self.break_link(f"sending failed: {error.strerror or error}")

    async def _gather(self) -> None:
        """Wait while more is posted, unless a task waits for the newest request already.

        A task that posts one request after the other would cost a write for each.
        """
        until = trio.current_time() + _GATHER_S
        size = 0
        while size < self._out_size < _GATHERED_SIZE_MAX:
            size = self._out_size
            for _ in range(2):  # tasks take their turns in any order: then each has had one
                assert self._newest is not None, "there is something to send"
                if self._newest.is_awaited or trio.current_time() >= until:
                    return
                await trio.lowlevel.cancel_shielded_checkpoint()

    # -- responses in ----------------------------------------------------------------------------

    async def _receive_responses(self) -> None:
        reader = self._reader
        try:
            while data := await self._sock.recv(_RECEIVE_SIZE):
                self._received_at = trio.current_time()
                reader.feed(data)
                while True:
                    for reply in reader.take_replies():
                        pending = self._answered(reply[0])
                        if pending is None:
                            continue
                        if pending.takes_ok:
                            pending.answer_ok(reply)
                        else:
                            pending.answer(reader.reply_at(reply[4]))
                    command = reader.next_command()
                    if command is None:
                        break
                    if not command.is_response:
                        continue  # a broker's notification, which no client here needs
                    pending = self._answered(command.opaque)
                    if pending is not None:
                        pending.answer(command)
                self._signal_room()
            self.break_link("the node closed it")
        except OSError as error:
            self._receiving_failed(error)
        except ProtocolError as error:
            self.break_link(f"the node broke the protocol: {error}")

    def _receiving_failed(self, error: OSError) -> None:
        # A killed node cuts its links off, and a record may be damaged on the way: no refusals.
        is_refusal = isinstance(error, TlsError) and error.fault != TlsFault.CUT
        if is_refusal and not self._has_received:
            assert isinstance(error, TlsError)
            text = f"{describe(self.address)}: {error}"
            self._refusal = TlsError(text, fault=error.fault, hint=error.hint or _NO_ANSWER)
        self.break_link(f"receiving failed: {error.strerror or error}")

    def _answered(self, opaque: int) -> PendingRequest | None:
        """Return the request with an answer, which is no longer in flight."""
        pending = self._pending.pop(opaque, None)
        if pending is None:
            self.late_responses += 1
        else:
            self.in_flight -= pending.weight
        return pending

    def _signal_room(self) -> None:
        if self._waiting_for_room and self._out_size < OUT_SIZE_MAX:
            free = self.in_flight_max - self.in_flight
            for wake, count in self._waiting_for_room.items():
                free -= count
                if free < 0:
                    break
                if wake.is_waiting:
                    wake.wakeup()
        if not self._pending and self._waiting_for_none:
            self._waiting_for_none.unpark_all()

    # -- deadlines and the end -------------------------------------------------------------------

    async def _watch_deadlines(self) -> None:
        while True:
            oldest = next(iter(self._pending.values()), None)
            if oldest is None:
                await self._to_watch.wait_for_running()
                continue
            since = max(oldest.deadline - self.request_timeout_s, self._received_at)
            silent_at = since + self._silence_s
            now = trio.current_time()
            if silent_at <= now:
                self._silent.wakeup()
                silent_at = now + self._silence_s  # the next time
            await trio.sleep_until(min(oldest.deadline, silent_at))
            now = trio.current_time()
            due = []
            for pending in self._pending.values():
                if pending.deadline > now:
                    break
                due.append(pending)
            for pending in due:
                self._answered(pending.opaque)
                pending.fail(f"no answer within {self.request_timeout_s:g} s")
            self._signal_room()

    async def wait_for_silence(self, seconds: float) -> None:
        """Wait until a request has waited for ``seconds``, and nothing was received meanwhile.

        Only one task may wait for it.
        """
        self._silence_s = seconds
        await self._silent.wait_for_running()

    def break_link(self, reason: str) -> None:
        """End the connection and fail all requests in flight; the first reason counts."""
        if self.broken_because is not None:
            return
        self.broken_because = reason
        self._scope.cancel()
        waiting = list(self._pending.values())
        self._pending.clear()
        self.in_flight = 0
        for pending in waiting:
            pending.fail(reason)
        for wake in self._waiting_for_room:
            wake.wakeup()
        self._waiting_for_none.unpark_all()
        if self.on_broken is not None:
            self.on_broken()


def request_failed(
    address: tuple[str, int], code: int, response: RemotingCommand
) -> RequestFailedError:
    """Return the error for a node's answer other than success."""
    if is_denied(response):
        return access_denied(response, describe(address))
    remark = response.remark or "no reason given"
    msg = f"{describe(address)} answered request {int(code)} with {response.code}: {remark}"
    return RequestFailedError(msg, code=response.code)


@contextlib.asynccontextmanager
async def open_remoting_client(
    address: tuple[str, int],
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    in_flight_max: int = 1_024,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[RemotingClient]:
    """Connect while the block runs; ``access_key`` signs the requests, ``tls`` encrypts.

    Raises UnreachableError if nobody answers, TlsError if the node takes no TLS or its certificate
    does not count; the block's own exception is raised unwrapped.
    """
    try:
        sock = await connect_client_port(address, connect_timeout_s, tls)
    except UnreachableError as error:
        error.hint = error.hint or (
            "start a node there (hastore master, or hastore slave if it was one)"
            ", or name another address"
        )
        raise
    client = RemotingClient(sock, address, request_timeout_s, in_flight_max, access_key)
    async with block_nursery() as nursery:
        nursery.start_soon(client.run)
        yield client


@contextlib.asynccontextmanager
async def block_nursery() -> AsyncIterator[trio.Nursery]:
    """Run tasks while the block runs, then cancel them; its exception is raised unwrapped."""
    error_of_block: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:  # noqa: BLE001 - raised outside
                error_of_block = error
            nursery.cancel_scope.cancel()
    finally:
        if error_of_block is not None:
            raise error_of_block
