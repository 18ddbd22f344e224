"""Requests to one endpoint of etcd over HTTP/1.1: the only module that knows it.

::

    idle connection of the endpoint, or a new one ──▶ request ──▶ answer, whole or line by line
             ▲                                                             │
             └──────────────── if both sides are done with it ◀────────────┘ else it is closed

``h11`` has the protocol and does no I/O; the errors here say whether a request can have left.
Proxies of the environment are not used, redirects not followed, and nothing is decompressed.  A
connection that idles is probed by the kernel (TCP keepalive), so that a server that lost its power
ends a watch, although nothing is sent there.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import select
import socket
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Final, final

import attrs
import h11
import trio

from hastore.cluster.etcd_encoding import NOT_ETCD_HINT, Answer
from hastore.cluster.key_value_store import ServerTime
from hastore.concurrency.tcp import bound_address, connect, peer_address
from hastore.errors import (
    CoordinatorTlsError,
    CoordinatorUnreachableError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping

    from hastore.cluster.etcd_encoding import Body

ANSWER_SIZE_MAX: Final = 16 * 2**20  # bytes of a range of keys, or of a line of a watch
SHORT_ANSWER_SIZE_MAX: Final = 2**20  # bytes of any other answer
_RECEIVE_SIZE: Final = 64 * 1024
_IDLE_MAX_S: Final = 5.0  # after which a connection is not used again: its server may be gone
# Of the time for an answer: a connection that cannot be made is named before the caller gives up,
# who could only say that no answer came, and that the request may have been sent.
_CONNECT_SHARE: Final = 0.9
_PORTS: Final = {"http": 80, "https": 443}
_CERTIFICATE_HINT: Final = "does etcd want a client certificate, of its own CA?"
_KEEPALIVE_S: Final = 3  # seconds of silence before the first probe, and between two
_KEEPALIVE_PROBES: Final = 3
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
)


class NotSentError(CoordinatorUnreachableError):
    """No connection could be made, so nothing was sent: another endpoint may be asked."""


class NotSentTlsError(NotSentError, CoordinatorTlsError):
    """No connection could be made because of TLS."""


@final
@attrs.define(eq=False)
class EtcdHttp:
    """The connections to all endpoints; each call names one, as ``http://host:port``."""

    _context: ssl.SSLContext | None  # of new connections
    _now: Callable[[], float]  # the clock of ``ServerTime.heard_at_s``
    _idle: dict[str, list[_Connection]] = attrs.field(factory=dict, init=False)  # by endpoint
    # By endpoint: the clock in the head of its last answer.
    clocks: dict[str, ServerTime] = attrs.field(factory=dict, init=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, context: ssl.SSLContext | None, now: Callable[[], float] = trio.current_time
    ) -> AsyncGenerator[EtcdHttp]:
        """Make connections as they are needed, while the block runs; None: only http."""
        http = cls(context, now)
        try:
            yield http
        finally:
            http._close_idle()

    def use(self, context: ssl.SSLContext | None) -> None:
        """Make new connections with this context; those that wait for a request are closed."""
        self._context = context
        self._close_idle()

    def _close_idle(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def ask(
        self,
        endpoint: str,
        path: str,
        body: Body,
        headers: Mapping[str, str],
        within_s: float,
        *,
        size_max: int | None = None,
    ) -> Answer:
        """POST a body and return the answer; the caller waits for ``within_s`` at most.

        ``size_max``: bytes of the answer, by default SHORT_ANSWER_SIZE_MAX.  Raises NotSentError, a
        moment before the time is over, if no connection is made.
        """
        async with self._send(endpoint, path, body, headers, within_s) as exchange:
            data = await exchange.read_whole(size_max)
        return Answer.of(exchange.where, exchange.response.status_code, data)

    @contextlib.asynccontextmanager
    async def stream(
        self, endpoint: str, path: str, body: Body, headers: Mapping[str, str], *, within_s: float
    ) -> AsyncGenerator[AsyncGenerator[Answer]]:
        """POST a body and yield the lines of the answer until the server ends it."""
        async with (
            self._send(endpoint, path, body, headers, within_s) as exchange,
            contextlib.aclosing(exchange.lines()) as lines,
        ):
            yield lines

    async def version(self, endpoint: str, within_s: float) -> tuple[str, int | None]:
        """Return etcd's version, and the time of its wall clock in seconds since 1970 (UTC)."""
        async with self._send(endpoint, "/version", None, {}, within_s) as exchange:
            data = await exchange.read_whole()
        answer = Answer.of(exchange.where, exchange.response.status_code, data)
        return answer.text("etcdserver"), _time_of(exchange.header(b"date"))

    async def text(self, endpoint: str, path: str, within_s: float) -> bytes:
        """GET a page, whatever its status."""
        async with self._send(endpoint, path, None, {}, within_s) as exchange:
            return await exchange.read_whole()

    @contextlib.asynccontextmanager
    async def _send(
        self,
        endpoint: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str],
        within_s: float,
    ) -> AsyncGenerator[_Exchange]:
        """Send a request and yield its answer, of which only the head has been read."""
        connection = self._take_idle(endpoint)
        context = self._context  # another one may be in use once the connection is made
        if connection is None:
            connection = await _connect(endpoint, context, _CONNECT_SHARE * within_s)
        try:
            with _errors_of(endpoint):
                response = await connection.send(*_request(endpoint, path, body, headers))
            exchange = _Exchange(endpoint, connection, response)
            self._note_clock(endpoint, exchange)
            yield exchange
        finally:
            if connection.ends_request() and context is self._context:
                self._idle.setdefault(endpoint, []).append(connection)
            else:
                connection.close()

    def _note_clock(self, endpoint: str, exchange: _Exchange) -> None:
        time_s = _time_of(exchange.header(b"date"))
        if time_s is None:
            return
        sock = exchange.connection.sock
        with contextlib.suppress(OSError):  # the server has closed it already
            self.clocks[endpoint] = ServerTime(
                time_s=time_s,
                heard_at_s=self._now(),
                host=peer_address(sock)[0],
                own_host=bound_address(sock)[0],
            )

    def _take_idle(self, endpoint: str) -> _Connection | None:
        """Return the connection that was used last; close those that cannot be used again."""
        idle = self._idle.pop(endpoint, [])
        fresh = [connection for connection in idle if connection.is_fresh()]
        for connection in idle:
            if connection not in fresh:
                connection.close()
        self._idle[endpoint] = fresh
        return fresh.pop() if fresh else None


@final
@attrs.define(eq=False)
class _Connection:
    """A connection to one endpoint, for one request at a time."""

    sock: trio.socket.SocketType
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT), init=False)
    idle_since: float = attrs.field(default=0.0, init=False)  # trio's time

    async def send(self, request: h11.Request, data: bytes) -> h11.Response:
        """Send a request with its body; return the head of the answer.

        Raises OSError, trio.BrokenResourceError and h11.ProtocolError.
        """
        events = (request, h11.Data(data=data), h11.EndOfMessage())
        await self.stream.send_all(b"".join(self.http.send(event) or b"" for event in events))
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise _unexpected(event)

    async def next_part(self) -> bytes | None:
        """Return bytes of the answer as they arrive, None at its end.  Raises as ``send`` does."""
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise _unexpected(event)
        return None

    async def _next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = bytes(await self.stream.receive_some(_RECEIVE_SIZE))
            if not data and self.http.their_state is h11.SEND_RESPONSE:
                raise trio.BrokenResourceError("the server has closed it")
            self.http.receive_data(data)
        return event

    def ends_request(self) -> bool:
        """Prepare for the next request; return False if there cannot be one."""
        if self.http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return False
        unasked, _ = self.http.trailing_data
        if unasked:  # such as a proxy's 408: it would answer the next request
            return False
        self.http.start_next_cycle()
        self.idle_since = trio.current_time()
        return True

    def is_fresh(self) -> bool:
        """Return whether the server has neither closed it nor sent anything since it idles."""
        if trio.current_time() > self.idle_since + _IDLE_MAX_S:
            return False
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close it at once: without TLS's farewell, which nobody waits for."""
        self.sock.close()


def _unexpected(event: object) -> h11.RemoteProtocolError:
    return h11.RemoteProtocolError(f"{type(event).__name__} in place of an answer")


async def _connect(endpoint: str, context: ssl.SSLContext | None, within_s: float) -> _Connection:
    """Connect, and shake hands where it is TLS.  Raises NotSentError."""
    parts = urllib.parse.urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    until = trio.current_time() + within_s
    try:
        sock = await connect((host, port), within_s)
    except UnreachableError as error:
        raise _not_sent(endpoint, str(error)) from error
    try:
        for option in _SOCKET_OPTIONS:
            sock.setsockopt(*option)
        stream = trio.SocketStream(sock)
        if parts.scheme == "http":
            return _Connection(sock, stream)
        assert context is not None, "an endpoint is https"
        tls = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
        with trio.move_on_at(until):
            await tls.do_handshake()
            return _Connection(sock, tls)
        raise _not_sent(endpoint, "it does not answer")
    except (OSError, trio.BrokenResourceError) as error:
        sock.close()
        found = _tls_error_in(error)
        if found is not None:
            raise _tls_failed(NotSentTlsError, endpoint, found) from error
        raise _not_sent(endpoint, _reason(error)) from error
    except BaseException:
        sock.close()
        raise


def _request(
    endpoint: str, path: str, body: Body | None, headers: Mapping[str, str]
) -> tuple[h11.Request, bytes]:
    """Return a request, and the bytes of its body; None: a GET."""
    data = b"" if body is None else json.dumps(body).encode()
    own = {
        "Host": urllib.parse.urlsplit(endpoint).netloc,
        "Accept-Encoding": "identity",
        "Content-Length": str(len(data)),
        "Content-Type": "application/json",
        "User-Agent": "hastore",
    }
    method = "GET" if body is None else "POST"
    return h11.Request(method=method, target=path, headers=[*(own | dict(headers)).items()]), data


@final
@attrs.frozen(eq=False)
class _Exchange:
    """A request that was sent, and the answer to it."""

    endpoint: str
    connection: _Connection
    response: h11.Response

    @property
    def where(self) -> str:
        """Who answers, for messages."""
        return f"etcd at {self.endpoint}"

    def header(self, name: bytes) -> str:
        """Return a header by its name in lower case, empty if it is not there."""
        found = (value for key, value in self.response.headers if key == name)
        return next(found, b"").decode("latin-1")

    async def read_whole(self, size_max: int | None = None) -> bytes:
        """Return the body.  Raises CoordinatorUnreachableError."""
        size_max = SHORT_ANSWER_SIZE_MAX if size_max is None else size_max
        data = bytearray()
        async for part in self._parts():
            data += part
            if len(data) > size_max:
                raise self._too_large(size_max)
        return bytes(data)

    async def lines(self) -> AsyncGenerator[Answer]:
        """Yield each line of a stream as soon as it is complete, and what remains at its end."""
        status, waiting = self.response.status_code, bytearray()
        async for part in self._parts():
            *lines, rest = part.split(b"\n")
            for line in lines:
                waiting += line
                if waiting:
                    yield Answer.of(self.where, status, bytes(waiting))
                waiting.clear()
            waiting += rest
            if len(waiting) > ANSWER_SIZE_MAX:
                raise self._too_large(ANSWER_SIZE_MAX)
        if waiting:
            yield Answer.of(self.where, status, bytes(waiting))

    def _parts(self) -> _Parts:
        return _Parts(self.endpoint, self.connection)

    def _too_large(self, size_max: int) -> CoordinatorUnreachableError:
        return CoordinatorUnreachableError(
            f"{self.where}: an answer of more than {size_max >> 20} MiB", hint=NOT_ETCD_HINT
        )


@final
@attrs.frozen(eq=False)
class _Parts:
    """The parts of an answer, as they arrive; no generator, so nothing is left suspended."""

    endpoint: str
    connection: _Connection

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with _errors_of(self.endpoint):
            part = await self.connection.next_part()
        if part is None:
            raise StopAsyncIteration
        return part


# -- errors --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _errors_of(endpoint: str) -> Iterator[None]:
    """Map what breaks after a connection was made: the request may have been carried out."""
    try:
        yield
    except (OSError, trio.BrokenResourceError, h11.ProtocolError) as error:
        tls = _tls_error_in(error)
        if tls is not None:
            raise _tls_failed(CoordinatorTlsError, endpoint, tls) from error
        # A server that refuses our certificate may say so only by a reset.
        raise CoordinatorUnreachableError(
            f"etcd at {endpoint}: the connection broke before the answer: {_reason(error)}",
            hint=_CERTIFICATE_HINT if endpoint.startswith("https:") else NOT_ETCD_HINT,
        ) from error


def _not_sent(endpoint: str, reason: str) -> NotSentError:
    return NotSentError(
        f"etcd at {endpoint}: no connection: {reason}",
        hint="is it running, and is this the right address?",
    )


def _tls_failed(
    kind: type[CoordinatorTlsError], endpoint: str, error: ssl.SSLError
) -> CoordinatorTlsError:
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    return kind(f"TLS with etcd at {endpoint} failed: {reason}", hint=_tls_hint(error))


def _reason(error: BaseException) -> str:
    """Return the system's reason where trio has wrapped it."""
    cause = error.__cause__
    shown = cause if isinstance(error, trio.BrokenResourceError) and cause is not None else error
    return str(shown) or type(shown).__name__


def _tls_error_in(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS library's error behind another one; an ordinary end is none."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _tls_hint(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "is its certificate signed by the configured CA, and for this host name?"
    if "ALERT" in str(error).upper():
        return _CERTIFICATE_HINT
    return "does etcd speak https at this address?"


def _time_of(date: str) -> int | None:
    """Return the seconds of an HTTP date, None if it is none."""
    try:
        return int(email.utils.parsedate_to_datetime(date).timestamp())
    except (ValueError, OverflowError, TypeError):
        return None
