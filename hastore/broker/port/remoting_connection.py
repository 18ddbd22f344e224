"""One client's connection: all requests that one recv returned are taken in one pass.

::

    recv -> FrameReader -> submit / process -> (on_done) -> decided -> out -> one send

There is no task, event or wait per message: the reading task submits, and the one writing task
sends the replies to all requests that have been decided since its last turn.  The writing task
itself makes answers that are large or have to wait (``reply.Later``) when their turn
comes; replies do not wait for one that has no room yet.

Invariants: frames never interleave; at most ``in_flight_max`` requests wait for a decision, at most
one large answer is in memory, and a peer that does not take its replies is not read (replies, and
requests that wait for their turn, count by their size).  The undecided requests of a connection
that has ended are decided, and not answered.  A header must be complete within
``header_timeout_ms``, a request or an answer within ``idle_timeout_ms``.  An answer that cannot be
encoded ends its own connection, never the task that has caused it.  Where there are access
keys, a connection above the port's limits carries out nothing before an admin's key is proven.
With TLS the handshake comes before the first request, and what reads and sends afterwards does not
know of it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.access.signature import ReceivedSignatures
from hastore.broker.access.access_guard import denial
from hastore.broker.access.audit import audited
from hastore.broker.port.output_total import HeldOutput, OutputTotal
from hastore.broker.port.port_tls import HANDSHAKE, tls_on_a_plain_port
from hastore.broker.puts.send_message_processor import SEND_CODES
from hastore.broker.reply import Later, ZeroCopyReply, silently
from hastore.concurrency.group_commit_request import LEASE_OVER
from hastore.concurrency.peers import peer_key
from hastore.concurrency.port_limits import PROOF_S
from hastore.concurrency.tcp import bound_address
from hastore.concurrency.turns import HEADER_S, RECEIVE_S, SKIP_S
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import (
    AccessDeniedError,
    DiskError,
    FrameTooLargeError,
    LimitReachedError,
    ProtocolError,
    QueueNotThereError,
    RequestFailedError,
    RoleChangedError,
)
from hastore.status import PutMessageStatus
from hastore.tls.tls_socket import accept_tls
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.liberal_json import TURN_SIZE
from hastore.wire.remoting_codes import FLAG_RESPONSE, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import PUT_STATUS_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.access.permissions import Account
    from hastore.broker.access.access_guard import AccessGuard
    from hastore.broker.port.buffered_total import BufferedTotal
    from hastore.broker.port.port_tls import PortTls
    from hastore.broker.port.request_processors import RequestProcessors
    from hastore.broker.puts.send_message_processor import SendMessageProcessor
    from hastore.broker.reply import Answer, FileRange
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.lease import Lease
    from hastore.config import RemotingConfig
    from hastore.env.interface import SendFile, SendWhile
    from hastore.message import Message
    from hastore.wire.usual_frames import ReplyTo

RECEIVE_SIZE: Final = 64 * 1024
_REQUEST_COST: Final = 2048  # bytes that a waiting request takes beside its own
_REQUESTS_WITHOUT_A_BREAK: Final = 64  # some 3 ms, then it is the turn of others
_DECIDED_MAX: Final = 64  # requests whose replies are not made yet
_NEVER: Final = float("inf")
SEND_FILE_SIZE: Final = 256 * 1024  # sent before the idle deadline is moved again


@final
@attrs.define(eq=False)
class RemotingConnection:
    """A connected client; ``run`` serves it until it ends, and returns why."""

    sock: trio.socket.SocketType
    peer: tuple[str, int]
    config: RemotingConfig
    sends: SendMessageProcessor
    processors: RequestProcessors
    buffered_total: BufferedTotal
    output_total: OutputTotal
    send_file: SendFile
    send_while: SendWhile
    # Of a master: once it is over no PUT_OK leaves.
    lease: Lease | None = None
    guard: AccessGuard | None = None  # None: everybody may do everything
    tls: PortTls | None = None  # None: all connections are plain
    # The limit of its port that it is above: its first request must come within PROOF_S, with
    # access keys signed by an admin's.
    above: LimitReachedError | None = attrs.field(default=None, kw_only=True)
    # The key of its last request with a right signature.
    proven_key: str | None = attrs.field(default=None, init=False)
    is_admin: bool = attrs.field(default=False, init=False)  # whether that is an administrator's
    # hastore's own signatures on it; None until the client was given a nonce.
    signatures: ReceivedSignatures | None = attrs.field(default=None, init=False)
    in_flight: int = attrs.field(default=0, init=False)  # undecided puts, answers not yet made
    requests: int = attrs.field(default=0, init=False)  # commands read, also refused ones
    keyless: int = attrs.field(default=0, init=False)  # of those: without a key that is needed
    # Of those in flight, the requests that later ones must not overtake.
    in_order_waiting: int = attrs.field(default=0, init=False)
    _reader: FrameReader = attrs.field(init=False)
    buffered_size: int = attrs.field(default=0, init=False)  # bytes of an incomplete request
    _header_deadline: float = attrs.field(default=_NEVER, init=False)
    _idle_deadline: float = attrs.field(default=_NEVER, init=False)
    _proof_deadline: float = attrs.field(default=_NEVER, init=False)
    _out: list[bytes | Later] = attrs.field(factory=list, init=False)
    # Whether replies in ``_out`` may say PUT_OK, and were made while the lease lasted.
    _is_fenced: bool = attrs.field(default=False, init=False)
    # Requests that are decided, and whose replies are not made yet.
    _decided: list[GroupCommitRequest] = attrs.field(factory=list, init=False)
    # The bytes of replies that are not taken, and of requests whose turn has not come.
    _held: HeldOutput = attrs.field(init=False)
    _to_send: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _room: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _read_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _reading: bool = attrs.field(default=True, init=False)
    _failure: Exception | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the reader and the account of the output."""
        self._reader = FrameReader(self.config.frame_size_max, self.processors.sizes)
        self._held = HeldOutput(self.output_total)

    async def run(self) -> Exception | None:
        """Serve until the peer leaves, breaks the protocol, falls silent, or ``stop_reading``.

        Return None for a connection that ended normally, else the error that ended it.
        """
        try:
            if self.above is not None:
                self._proof_deadline = trio.current_time() + PROOF_S
            self._progressed()
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_replies, nursery)
                    with self._read_scope:
                        if self.tls is None or await self._begin(self.tls):
                            await self._read_requests()
                    self._reading = False
                    self._to_send.wakeup()
            if self._scope.cancelled_caught and self._failure is None:
                return self._timeout_error()
            return self._failure
        finally:
            self._close()
            self.processors.client_gone(self)
            self.sock.close()

    @property
    def local_address(self) -> tuple[str, int]:
        """The address that the client has connected to."""
        return bound_address(self.sock)

    def give_nonce(self) -> str | None:
        """Return the nonce for hastore's own signatures on it; None without access keys."""
        if self.guard is None:
            return None
        if self.signatures is None:
            self.signatures = ReceivedSignatures.begin(self.processors.env.randomness)
        return self.signatures.nonce

    @property
    def is_reserved(self) -> bool:
        """Whether it is above the limits of its port."""
        return self.above is not None

    @property
    def is_identified(self) -> bool:
        """Whether it has sent a request, with access keys one that was signed by a right one."""
        return self.requests > 0 if self.guard is None else self.proven_key is not None

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._held.is_closed

    @property
    def stalled_since(self) -> float | None:
        """Since when the peer has not taken enough (HeldOutput); None without output."""
        return self._held.stalled_since

    @property
    def idle_since(self) -> float | None:
        """Since when nothing is under way in either direction (trio's time); None: something is."""
        if self.in_flight or self.buffered_size or self._held.size or self.is_closed:
            return None
        return self._idle_deadline - self.config.idle_timeout_ms / 1000

    @property
    def owner(self) -> str:
        """For whose quotas its requests count: its access key's, else its address's."""
        key = self.proven_key
        return f"address {peer_key(self.peer[0])}" if key is None else f"access key {key}"

    @property
    def owner_of_offsets(self) -> str | None:
        """For whose quotas its commits count; None for an administrator's."""
        return None if self.is_admin else self.owner

    def stop_reading(self) -> None:
        """Take no more requests; ``run`` returns when those in flight are answered."""
        self._read_scope.cancel()

    def evict(self, reason: str, *, limit: str) -> None:
        """End at once, to make room for others."""
        self._close()
        self._fail(LimitReachedError(reason, limit=limit))

    def close_stalled(self) -> None:
        """End at once: clients leave too many answers, and this one takes none."""
        size = self._held.size
        reason = f"reads no answers, and too many are unread; {size} bytes of them are its own"
        self.evict(reason, limit="output_size_total_max")

    # -- the beginning ---------------------------------------------------------------------------

    async def _begin(self, tls: PortTls) -> bool:
        """Find out by its first byte whether the peer speaks TLS, and shake hands if it does.

        Return whether requests may come.  The byte is looked at, not taken.
        """
        try:
            first = await self.sock.recv(1, trio.socket.MSG_PEEK)
            if first and tls.is_tls(first):
                timeout_s = self.config.header_timeout_ms / 1000
                calls = tls.calls
                self.sock = await accept_tls(
                    self.sock,
                    tls.contexts.server,
                    timeout_s,
                    env=tls.env,
                    receive_size_max=RECEIVE_SIZE,
                )
                self.send_file, self.send_while = calls.send_file, calls.send_while
        except (OSError, ProtocolError) as error:
            self._fail(error)
            return False
        self._progressed()
        return bool(first)

    # -- requests in -----------------------------------------------------------------------------

    async def _read_requests(self) -> None:
        reader = self._reader
        recv, data = self.sock.recv, b""
        try:
            while data := await recv(RECEIVE_SIZE):
                reader.feed(data)
                before = self.requests
                await self._take_all()
                self._account(reader.buffered_size)
                if reader.is_skipping:
                    await self.processors.skipping.rest(len(data) * SKIP_S)
                self._watch_header()
                if self.requests != before:
                    self._end_proof()
                    self._progressed()
        except FrameTooLargeError as error:
            is_handshake = self.requests == 0 and data[:1] == HANDSHAKE
            self._fail(tls_on_a_plain_port() if is_handshake else error)
        except (OSError, ProtocolError) as error:
            self._fail(error)

    async def _take_all(self) -> None:
        """Take all complete requests that are there."""
        reader = self._reader
        next_break = self.requests + _REQUESTS_WITHOUT_A_BREAK
        while True:
            # A signature covers what the usual frames are not read for.
            sends = (
                reader.take_sends(next_break - self.requests, self.peer)
                if self.guard is None
                else None
            )
            if sends:
                self._end_header()
                await self._take_sends(sends)
            else:
                command = reader.next_command()
                if command is None:
                    return
                self._end_header()
                is_put = await self._take(command)
                if self._read_scope.cancel_called:
                    reader.clear()
                    return
                self._end_proof()  # before it waits for others
                if not is_put and reader.frame_size > TURN_SIZE:
                    await self._rest(reader)
                await self._wait_for_room_to_read()
            if self.requests == next_break:
                next_break += _REQUESTS_WITHOUT_A_BREAK
                await trio.lowlevel.checkpoint()

    async def _rest(self, reader: FrameReader) -> None:
        """Pause after a large request that is not a put, for what receiving it has cost."""
        if reader.header_size > TURN_SIZE:
            await self.processors.reading.rest(reader.header_size * HEADER_S)
        else:
            await self.processors.skipping.rest(reader.frame_size * RECEIVE_S)

    def _watch_header(self) -> None:
        """Set the deadline for the rest of a header, or remove it."""
        if self._reader.is_in_header:
            if self._header_deadline == _NEVER:
                self._header_deadline = trio.current_time() + self.config.header_timeout_ms / 1000
                self._set_deadline()
        else:
            self._end_header()

    def _end_proof(self) -> None:
        """Remove the deadline of a connection above the limits, once it is proven."""
        if self._proof_deadline != _NEVER and self.is_identified:
            self._proof_deadline = _NEVER
            self._set_deadline()

    def _end_header(self) -> None:
        if self._header_deadline != _NEVER:
            self._header_deadline = _NEVER
            self._set_deadline()

    def _has_room(self) -> bool:
        config = self.config
        return self.in_flight < config.in_flight_max and self._held.size < config.output_size_max

    async def _wait_for_room_to_read(self) -> None:
        while not self._has_room():
            await self._room.wait_for_running()

    def close_largest(self, total: int) -> None:
        """End at once: incomplete requests have too many bytes, this one the most."""
        size = self.buffered_size
        reason = (
            f"clients have sent {total} bytes of incomplete requests, its address the most,"
            f" this connection {size}"
        )
        self.evict(reason, limit="buffered_size_max")

    def _account(self, buffered_size: int) -> None:
        grown = buffered_size - self.buffered_size
        if grown and not self.is_closed:
            self.buffered_size = buffered_size
            self.buffered_total.count(grown)

    async def _take(self, command: RemotingCommand) -> bool:
        """Carry out a request, or have it answered later; return whether it is a put."""
        self.requests += 1
        if command.is_response:
            self.processors.client_requests.answered(self, command)
            return False
        if command.size_fault is not None:
            self._answer_now(command, _too_large(command, command.size_fault))
            return False
        account = None
        if self.guard is not None:
            account = await self._admitted(self.guard, command)
            if account is None:
                return False
        if command.code in SEND_CODES:
            return self._submit(command)
        response = self.processors.process(command, self)
        if isinstance(response, Later) and self.guard is not None and account is not None:
            response = self.guard.checked(response, command, account, self.peer)
        response = audited(response, command, self.peer, account)
        if isinstance(response, RemotingCommand):
            self._answer_now(command, response)
            return False
        later = silently(response) if command.is_one_way else response
        self.answer_later(self._counted(later, self._reader.frame_size))
        return False

    def _submit(self, command: RemotingCommand) -> bool:
        try:
            request = self.sends.submit(command, self)
        except (ProtocolError, RequestFailedError) as error:
            if not command.is_one_way:
                self._reply(_refusal(error, command.opaque, command.serialize_type))
            return False
        self._submitted(request)
        return True

    def _answer_now(self, command: RemotingCommand, response: RemotingCommand) -> None:
        if not command.is_one_way:
            self._reply(encode_command(response))

    async def _admitted(self, guard: AccessGuard, command: RemotingCommand) -> Account | None:
        """Return whose request it is; None for one that is refused, which is answered."""
        must_prove = self.is_reserved and self.proven_key is None
        try:
            account = await guard.admit(
                command, self.peer, turns=self.processors.reading, connection=self
            )
        except AccessDeniedError as error:
            answer, delay_s = denial(command, error), error.delay_s
        else:
            if not must_prove or account.is_admin:
                self.proven_key, self.is_admin = account.key.name, account.is_admin
                return account
            busy = f"{self.above}; one more needs an admin's access key"
            answer, delay_s = command.response(ResponseCode.SYSTEM_BUSY, remark=busy), None
        if delay_s is not None or must_prove:
            self._end_after(delay_s or 0.0, None if command.is_one_way else answer)
        elif not command.is_one_way:
            self._reply(encode_command(answer))
        return None

    def _end_after(self, delay_s: float, answer: RemotingCommand | None) -> None:
        """Take no more requests; give the last answer after a while, and end."""

        async def make() -> Answer | None:
            await trio.sleep(delay_s)
            return answer

        self.answer_later(Later(make, is_large=False))
        self.stop_reading()

    async def _take_sends(self, sends: list[tuple[Message, ReplyTo]]) -> None:
        submit = self.sends.submit_message
        held, config = self._held, self.config
        in_flight_max, output_size_max = config.in_flight_max, config.output_size_max
        for message, reply_to in sends:
            if held.is_closed:
                return
            self.requests += 1
            try:
                request = submit(message, reply_to, self)
            except RequestFailedError as error:
                if reply_to is not None:
                    self._reply(_refusal(error, reply_to[0], reply_to[1]))
            else:
                if request.status is None:
                    self.in_flight += 1
                    request.on_done = self._on_put_done
                else:
                    self._submitted(request)
            if self.in_flight >= in_flight_max or held.size >= output_size_max:
                await self._wait_for_room_to_read()

    def _submitted(self, request: GroupCommitRequest) -> None:
        if request.status is None:
            self.in_flight += 1
            request.on_done = self._on_put_done
        elif request.tag is not None:
            self._reply(self._reply_maker()(request))

    # -- replies out -----------------------------------------------------------------------------

    def _on_put_done(self, request: GroupCommitRequest) -> None:
        """Have a request that was in flight answered; called when it is decided."""
        self.in_flight -= 1
        if self.is_closed:
            return
        decided = self._decided
        decided.append(request)
        if len(decided) == 1:
            self._to_send.wakeup()
        if len(decided) == _DECIDED_MAX or self._room.is_waiting:
            self._answer_decided()

    def _answer_decided(self) -> None:
        """Make the replies to all requests that were decided since the last call."""
        decided, self._decided = self._decided, []
        reply_frame = self._reply_maker()
        try:
            replies = [reply_frame(request) for request in decided if request.tag is not None]
        except ProtocolError as error:  # not the business of the task that decides puts
            self._fail(error)
            return
        if replies:
            self._out += replies
            self._held.count(sum(map(len, replies)))
        self._signal_room()

    def _reply_maker(self) -> Callable[[GroupCommitRequest], bytes]:
        """Return what makes replies to puts; they are PUT_OK only while the lease lasts."""
        if self.lease is None:
            return self.sends.reply_frame
        if self.lease.is_over():
            return self.sends.late_reply_frame
        self._is_fenced = True
        return self.sends.reply_frame

    def _reply(self, reply: bytes) -> None:
        if not self._out:
            self._to_send.wakeup()
        self._out.append(reply)
        self._held.count(len(reply))

    def notify(self, command: RemotingCommand) -> bool:
        """Send a command that answers nothing, unless the peer does not read; return whether."""
        if self.is_closed or self._held.size >= self.config.output_size_max:
            return False
        try:
            self._reply(encode_command(command))
        except ProtocolError as error:
            self._fail(error)
            return False
        return True

    def answer_later(self, later: Later) -> None:
        """Have the writing task make an answer in its turn; until then it is in flight."""
        if self.is_closed:
            return
        self.in_flight += 1
        self.in_order_waiting += later.is_in_order
        if not self._out:
            self._to_send.wakeup()
        self._out.append(later)

    def _counted(self, later: Later, size: int) -> Later:
        """Count the request that ``later`` keeps in memory, until the answer is made."""
        size += _REQUEST_COST
        self._held.count(size)

        async def counted() -> Answer | None:
            try:
                return await later.make()
            finally:
                self._held.count(-size)

        return attrs.evolve(later, make=counted)

    async def _write_replies(self, nursery: trio.Nursery) -> None:
        try:
            while self._reading or self.in_flight or self._decided or self._out:
                if self._decided:
                    self._answer_decided()
                if not self._out:
                    await self._to_send.wait_for_running()
                    continue
                turn, self._out = deque(self._out), []
                is_fenced, self._is_fenced = self._is_fenced, False
                gathered: list[bytes] = []
                while turn:
                    reply = turn.popleft()
                    if isinstance(reply, bytes):
                        gathered.append(reply)
                        continue
                    if gathered:
                        await self._send_replies(gathered, is_fenced=is_fenced)
                        gathered = []
                    size = self.config.pull_size_max
                    if reply.is_large and not self._held.reserve_now(size):
                        turn = await self._wait_for_room(turn, size, nursery, is_fenced=is_fenced)
                    await self._answer(reply)
                if gathered:
                    await self._send_replies(gathered, is_fenced=is_fenced)
        except (OSError, DiskError, ProtocolError, RoleChangedError) as error:
            # A disk fails in the middle of a frame; an answer does not fit its header.
            self._fail(error)

    async def _wait_for_room(
        self, turn: deque[bytes | Later], size: int, nursery: trio.Nursery, *, is_fenced: bool
    ) -> deque[bytes | Later]:
        """Wait for room for a large answer, sending replies; return the answers that are left."""

        async def reserve() -> None:
            await self._held.reserve(size)
            self._to_send.wakeup()

        nursery.start_soon(reserve)
        while not self._held.reserved:
            self._answer_decided()
            turn.extend(self._out)
            self._out = []
            is_fenced, self._is_fenced = is_fenced or self._is_fenced, False
            replies = [reply for reply in turn if isinstance(reply, bytes)]
            if replies:
                turn = deque(later for later in turn if not isinstance(later, bytes))
                await self._send_replies(replies, is_fenced=is_fenced)
                is_fenced = False
            else:
                await self._to_send.wait_for_running()
        return turn

    async def _answer(self, later: Later) -> None:
        """Make one answer and send it."""
        try:
            try:
                answer = await later.make()
            finally:
                self.in_flight -= 1
                self.in_order_waiting -= later.is_in_order
            if answer is None:
                self._signal_room()
            elif isinstance(answer, ZeroCopyReply):
                self._held.release()
                await self._send_files(answer)
            else:
                data = answer if isinstance(answer, bytes) else encode_command(answer)
                self._held.release(left=len(data))
                self._held.count(len(data))
                await self._send_all(data)
        finally:
            self._held.release()

    async def _send_files(self, answer: ZeroCopyReply) -> None:
        self._held.count(len(answer.head))
        with contextlib.ExitStack() as stack:  # expiry does not close files that are being sent
            for part in answer.ranges:
                stack.enter_context(part.mapped_file.held())
            await self._send_all(answer.head, trio.socket.MSG_MORE)
            for part in answer.ranges:
                await self._send_range(part)

    async def _send_replies(self, replies: list[bytes], *, is_fenced: bool) -> None:
        """Send replies; ``is_fenced``: the connection ends if the lease does before all have left.

        Of a reply that has left in part the rest would complete a PUT_OK.
        """
        await self._send_all(b"".join(replies), lease=self.lease if is_fenced else None)

    async def _send_all(self, data: bytes, flags: int = 0, lease: Lease | None = None) -> None:
        left = memoryview(data)
        self._held.begin(len(data))
        try:
            while left:
                if lease is None:
                    sent = await self.sock.send(left, flags)
                else:
                    fenced = await self.send_while(self.sock, left, lease.lasts)
                    if fenced is None:
                        raise RoleChangedError(LEASE_OVER)
                    sent = fenced
                left = left[sent:]
                self._held.taken(sent)
                self._progressed()
                self._signal_room()
        finally:
            self._held.rest()

    async def _send_range(self, part: FileRange) -> None:
        position, end = part.position, part.position + part.size
        while position < end:
            size = min(end - position, SEND_FILE_SIZE)
            await self.send_file(self.sock, part.mapped_file.disk_file, position, size)
            position += size
            self._progressed()

    def _signal_room(self) -> None:
        if self._room.is_waiting and self._has_room():
            self._room.wakeup()

    # -- the end ---------------------------------------------------------------------------------

    def _close(self) -> None:
        """Drop the incomplete request and the unsent replies."""
        self._account(0)
        self._reader.clear()
        self._held.close()
        self._out.clear()
        self._decided.clear()

    def _progressed(self) -> None:
        self._idle_deadline = trio.current_time() + self.config.idle_timeout_ms / 1000
        self._set_deadline()

    def _set_deadline(self) -> None:
        self._scope.deadline = min(self._idle_deadline, self._header_deadline, self._proof_deadline)

    def _timeout_error(self) -> LimitReachedError:
        """Return the error for the deadline that has passed."""
        above = self.above
        if above is not None and self._proof_deadline < min(
            self._header_deadline, self._idle_deadline
        ):
            msg = f"{above}; this one has not sent what one more needs within {PROOF_S:.0f} s"
            return LimitReachedError(msg, limit=above.limit)
        if self._header_deadline < self._idle_deadline:
            ms = self.config.header_timeout_ms
            msg = f"no complete request header within {ms} ms"
            return LimitReachedError(msg, limit="header_timeout_ms")
        ms = self.config.idle_timeout_ms
        msg = f"no complete request, and no reply read, for {ms} ms"
        return LimitReachedError(msg, limit="idle_timeout_ms")

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            # The frames of a traceback would keep requests and answers of many megabytes in memory
            # until the garbage collector finds the reference cycle.
            self._failure = error.with_traceback(None)
        self._scope.cancel()


def _too_large(request: RemotingCommand, fault: str) -> RemotingCommand:
    """Return the answer to a request whose body was skipped for its size."""
    is_send = request.code in SEND_CODES
    code = ResponseCode.MESSAGE_ILLEGAL if is_send else ResponseCode.SYSTEM_ERROR
    return request.response(code, remark=fault)


def _refusal(error: ProtocolError | RequestFailedError, opaque: int, serialize_type: int) -> bytes:
    """Return the reply to a request that was not submitted."""
    # MESSAGE_ILLEGAL for malformed requests too: certainly nothing was stored.
    code = getattr(error, "code", ResponseCode.MESSAGE_ILLEGAL)
    fields = {}
    if isinstance(error, QueueNotThereError):  # of code 1 alone a client does not know
        fields[PUT_STATUS_FIELD] = PutMessageStatus.MESSAGE_ILLEGAL.value
    return encode_command(
        RemotingCommand(
            code=code,
            opaque=opaque,
            flag=FLAG_RESPONSE,
            ext_fields=fields,
            remark=str(error),
            serialize_type=SerializeType(serialize_type),
        )
    )
