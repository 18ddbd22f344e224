"""Metrics and health over HTTP/1.1, for scrapers and load balancers.

::

    GET /metrics                                   Prometheus' text format
    GET /live  /ready  /master  /slave[?lag=SIZE]  200 or 503, and JSON that says why

It listens before the store is opened, so that a node that checks a long log is live and not ready.
It takes GET and HEAD without bodies, and few connections.  A request must be complete within
``REQUEST_TIMEOUT_S`` and ``REQUEST_SIZE_MAX``, and before it, over HTTPS, the TLS handshake within
the same time; idle connections are closed.  Above the limits of all connections, or of one address,
one of them is evicted for the newcomer, so that silent peers cannot keep a load balancer out.
Nothing here can change a node.

``h11`` implements the protocol, ``prometheus_client`` the format; a node without a metrics port
imports neither.
"""

from __future__ import annotations

import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, final
from urllib.parse import parse_qsl

import attrs
import trio

from hastore.broker.observe.health import health
from hastore.concurrency.peers import PeerCount, PeerLog
from hastore.concurrency.port_limits import Activity, Occupant, PortLimits
from hastore.concurrency.service import as_itself
from hastore.concurrency.tcp import accept, bound_address, describe, open_listener, send_all, tune
from hastore.errors import TlsError
from hastore.tls.tls_fault import TlsFault
from hastore.tls.tls_socket import accept_tls
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import h11

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.tls.tls_contexts import TlsContexts

LIMITS: Final = PortLimits(connections_max=32, per_address_max=16)
REQUEST_SIZE_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_S: Final = 10.0  # from a request's first byte to its last, and for its answer
IDLE_TIMEOUT_S: Final = 75.0
LINGER_S: Final = 1.0
_RECEIVE_SIZE: Final = 4096
_QUERY_FIELDS_MAX: Final = 8
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PATHS: Final = ("/metrics", "/live", "/ready", "/master", "/slave?lag=16MiB")

_log = logger("metrics")


class _Node(Protocol):
    """The node whose status is served."""

    def status(self) -> NodeStatus:
        """Return a snapshot of the node."""


@attrs.frozen
class Answer:
    """An HTTP status code, the content and its type."""

    code: int
    content: bytes
    content_type: str = "application/json"


@final
@attrs.define(eq=False)
class MetricsServer:
    """Serves a node's metrics and health at ``address``; None: at no address."""

    address: tuple[str, int] | None
    tls: TlsContexts | None = None  # None: plain HTTP
    node: _Node | None = attrs.field(default=None, init=False)
    _connections: dict[_HttpConnection, None] = attrs.field(factory=dict, init=False)
    _peers: PeerCount = attrs.field(factory=PeerCount, init=False)
    _refusal_log: PeerLog = attrs.field(
        factory=lambda: PeerLog(_log, "metrics_refused"), init=False
    )
    _has_failed: bool = attrs.field(default=False, init=False)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def serve(self, node: _Node | None) -> None:
        """Serve the status of ``node`` from now on; None: its store is closed."""
        self.node = node

    def answer(self, target: str) -> Answer:
        """Return the answer to a GET of ``/path?query``."""
        path, _, query_text = target.partition("?")
        if self.node is None:
            is_live = path == "/live"
            why = "it is opening its store" if is_live else "not yet: it is opening its store"
            return _json(200 if is_live else 503, {"ok": is_live, "why": why})
        status = self.node.status()
        if path == "/metrics":
            from hastore.broker.observe.metrics_text import metrics_text  # noqa: PLC0415

            return Answer(200, metrics_text(status), _METRICS_TYPE)
        try:
            fields = parse_qsl(query_text, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
            query = dict(fields)
            if path == "/slave" and len(query) < len(fields):
                msg = "/slave has a parameter twice: write lag=16MiB once"
                raise ValueError(msg)
            found = health(path, query, status)
        except ValueError as error:
            return _json(400, {"ok": False, "why": str(error)})
        if found is None:
            return _json(404, {"ok": False, "why": "there is no such page", "pages": _PATHS})
        body = {"ok": found.ok, "why": found.why, "name": status.name, "role": status.role}
        return _json(200 if found.ok else 503, body | found.facts)

    def log_failure(self) -> None:
        """Log the first bug of a page, with its traceback."""
        if not self._has_failed:
            self._has_failed = True
            _log.exception("metrics_failed", next="please report it; the node goes on")

    async def run(self, listener: trio.socket.SocketType) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                sock, peer = await accept(listener)
                self._make_room(peer)
                tune(sock)
                connection = _HttpConnection(self, sock, peer)
                self._connections[connection] = None
                self._peers.add(peer)
                nursery.start_soon(self._serve, connection)

    def _make_room(self, peer: tuple[str, int]) -> None:
        """Evict one connection if there are too many, in all or of the peer's address."""
        count, of_address = len(self._connections), self._peers.of(peer)
        crowd = LIMITS.crowd(peer[0], count=count, of_address=of_address)
        if crowd is None:
            return
        evicted = crowd.evict(
            Occupant(each, each.peer[0], each.activity, each.since) for each in self._connections
        )
        assert evicted is not None, "every connection of the port may be evicted"
        evicted.scope.cancel()
        self._left(evicted)
        whose = "connections" if crowd.key is None else "connections of its address"
        reason = f"evicted: {crowd.count} {whose}"
        self._refusal_log.log_line(evicted.peer, kind="connections", reason=reason)

    def _left(self, connection: _HttpConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._peers.remove(connection.peer)

    async def _serve(self, connection: _HttpConnection) -> None:
        try:
            with connection.scope:
                await connection.begin(self.tls)
                with connection.sock:
                    await connection.run()
        except TlsError as error:
            if error.fault != TlsFault.CUT:
                reason = str(error)
                self._refusal_log.log_line(connection.peer, kind=error.fault, reason=reason)
        except OSError as error:
            peer = describe(connection.peer)
            _log.debug("metrics_link_broken", peer=peer, reason=str(error))
        except Exception:  # noqa: BLE001 - any error ends this connection only
            self.log_failure()
        finally:
            connection.sock.close()
            self._left(connection)


@final
class _HttpConnection:
    """One connection: request after request, until either side closes it."""

    def __init__(
        self, server: MetricsServer, sock: trio.socket.SocketType, peer: tuple[str, int]
    ) -> None:
        import h11  # noqa: PLC0415 - nodes without metrics start without it

        self.sock = sock
        self.peer = peer
        self.scope = trio.CancelScope()
        self.activity = Activity.UNIDENTIFIED
        self.since = trio.current_time()  # when ``activity`` began
        self._server = server
        self._kinds = h11
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_SIZE_MAX)

    async def begin(self, tls: TlsContexts | None) -> None:
        """Shake hands, if the port is served over HTTPS.  Raises TlsError and OSError."""
        if tls is not None:
            self.sock = await accept_tls(self.sock, tls.server, REQUEST_TIMEOUT_S)

    async def run(self) -> None:
        """Serve; return when the connection is to be closed."""
        connection, kinds = self._connection, self._kinds
        while True:
            try:
                request = await self._next_request()
            except kinds.RemoteProtocolError as error:
                if connection.our_state in {kinds.IDLE, kinds.SEND_RESPONSE}:
                    why = {"ok": False, "why": f"not a valid request: {error}"}
                    await self._send_and_close(_json(error.error_status_hint, why))
                return
            if request is None:
                return
            self._turn(Activity.BUSY)
            if request.method not in {b"GET", b"HEAD"}:
                why = {"ok": False, "why": "only GET and HEAD are answered here"}
                await self._send_and_close(_json(405, why))
                return
            try:
                answer = self._server.answer(request.target.decode("ascii", "replace"))
            except Exception:  # noqa: BLE001 - a failed page must not end the node
                self._server.log_failure()
                why = {"ok": False, "why": "this page failed; the node's log says how"}
                await self._send_and_close(_json(500, why))
                return
            await self._send(answer, is_head=request.method == b"HEAD")
            if connection.states != {kinds.CLIENT: kinds.DONE, kinds.SERVER: kinds.DONE}:
                return
            connection.start_next_cycle()
            self._turn(Activity.IDLE)

    def _turn(self, activity: Activity) -> None:
        self.activity = activity
        self.since = trio.current_time()

    async def _next_request(self) -> h11.Request | None:
        """Return the next request; None if the peer left or was too slow."""
        connection, kinds = self._connection, self._kinds
        request: h11.Request | None = None
        has_begun = bool(connection.trailing_data[0])
        is_idle = self.activity is not Activity.UNIDENTIFIED and not has_begun
        with trio.move_on_after(IDLE_TIMEOUT_S if is_idle else REQUEST_TIMEOUT_S) as scope:
            while True:
                event = connection.next_event()
                if event is kinds.NEED_DATA:
                    data = await self.sock.recv(_RECEIVE_SIZE)
                    if data and is_idle:
                        is_idle = False
                        scope.deadline = trio.current_time() + REQUEST_TIMEOUT_S
                    connection.receive_data(data)
                elif isinstance(event, kinds.Request):
                    request = event
                    if _has_body(request):
                        raise kinds.RemoteProtocolError("it has a body", error_status_hint=413)
                elif isinstance(event, kinds.EndOfMessage):
                    return request
                else:
                    return None
        return None

    async def _send(self, answer: Answer, *, is_head: bool = False, close: bool = False) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.content))),
            ("Cache-Control", "no-store"),
        ]
        if close:
            headers.append(("Connection", "close"))
        if answer.code == 405:  # noqa: PLR2004 - Method Not Allowed names those that are
            headers.append(("Allow", "GET, HEAD"))
        connection, kinds = self._connection, self._kinds
        reason = HTTPStatus(answer.code).phrase.encode()
        response = kinds.Response(status_code=answer.code, headers=headers, reason=reason)
        data = connection.send(response) or b""
        if not is_head:
            data += connection.send(kinds.Data(data=answer.content)) or b""
        data += connection.send(kinds.EndOfMessage()) or b""
        with trio.move_on_after(REQUEST_TIMEOUT_S) as scope:
            await send_all(self.sock, data)
        if scope.cancelled_caught:
            raise OSError("the peer did not take the answer in time")

    async def _send_and_close(self, answer: Answer) -> None:
        """Send the last answer; read what the peer still sends, so that no reset destroys it."""
        await self._send(answer, close=True)
        self.sock.shutdown(trio.socket.SHUT_WR)
        with trio.move_on_after(LINGER_S):
            while await self.sock.recv(_RECEIVE_SIZE):
                pass


def _has_body(request: h11.Request) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in request.headers
    )


def _json(code: int, body: dict[str, Any]) -> Answer:
    return Answer(code, json.dumps(body).encode() + b"\n")


@contextlib.asynccontextmanager
async def open_metrics(
    address: tuple[str, int] | None, tls: TlsContexts | None = None
) -> AsyncIterator[MetricsServer]:
    """Serve within the block, if there is an address; ``tls``: over HTTPS.  Raises ListenError."""
    if address is None:
        yield MetricsServer(None)
        return
    # Takes 25 ms, which no put and no scrape should wait for later.
    import hastore.broker.observe.metrics_text  # noqa: F401, PLC0415

    listener = await open_listener(address, "metrics and health (the metrics port)")
    try:
        bound = bound_address(listener)
        server = MetricsServer(bound, tls)
        scheme = "http" if tls is None else "https"
        _log.info("metrics_serving", address=describe(bound), scheme=scheme)
        with as_itself():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run, listener)
                yield server
                nursery.cancel_scope.cancel()
    finally:
        listener.close()
