"""Requests to one endpoint of etcd, with httpx: the only module that knows it.

httpx because it runs on trio, keeps connections open, verifies TLS, and its errors say whether a
request can have left.  Proxies of the environment are not used, redirects not followed, and
nothing is decompressed.  A connection that idles is probed by the kernel (TCP keepalive), so that
a server that lost its power ends a watch, although nothing is sent there.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import socket
import ssl
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.cluster.etcd_encoding import NOT_ETCD_HINT, Answer
from hastore.errors import ConfigError, CoordinatorTlsError, CoordinatorUnreachableError
from hastore.install_source import install_command

try:
    import httpx
except ModuleNotFoundError as error:
    raise ConfigError(
        f"etcd needs the package {error.name}, which is not installed",
        hint=install_command("cluster"),
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping

    from hastore.cluster.etcd_encoding import Body

ANSWER_SIZE_MAX: Final = 16 * 2**20  # bytes of an answer, or of a line of a watch
_CERTIFICATE_HINT: Final = "does etcd want a client certificate, of its own CA?"
# httpx counts a time-out twice, for TCP and for TLS.  It must end before the caller's does: a TLS
# handshake that is cancelled leaves its socket to the garbage collector (httpcore 1.0.9).
_CONNECT_SHARE: Final = 0.45
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

    _client: httpx.AsyncClient

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, context: ssl.SSLContext | None) -> AsyncGenerator[EtcdHttp]:
        """Make connections as they are needed, while the block runs; None: only http."""
        transport = httpx.AsyncHTTPTransport(
            verify=False if context is None else context,
            trust_env=False,
            socket_options=_SOCKET_OPTIONS,
        )
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            yield cls(client)

    async def ask(
        self, endpoint: str, path: str, body: Body, headers: Mapping[str, str], connect_s: float
    ) -> Answer:
        """POST a body and return the answer; the caller limits how long that takes.

        Raises NotSentError if no connection is made within ``connect_s``.
        """
        async with self._send(endpoint, path, body, headers, connect_s) as response:
            data = await _read_whole(endpoint, response)
        return Answer.of(f"etcd at {endpoint}", response.status_code, data)

    @contextlib.asynccontextmanager
    async def stream(
        self, endpoint: str, path: str, body: Body, headers: Mapping[str, str], *, connect_s: float
    ) -> AsyncGenerator[AsyncGenerator[Answer]]:
        """POST a body and yield the lines of the answer until the server ends it."""
        async with self._send(endpoint, path, body, headers, connect_s) as response:
            lines = _lines(endpoint, response)
            async with contextlib.aclosing(lines):
                yield lines

    async def version(self, endpoint: str, connect_s: float) -> tuple[str, int | None]:
        """Return etcd's version, and the time of its wall clock in seconds since 1970 (UTC)."""
        async with self._send(endpoint, "/version", None, {}, connect_s) as response:
            data = await _read_whole(endpoint, response)
        answer = Answer.of(f"etcd at {endpoint}", response.status_code, data)
        return answer.text("etcdserver"), _time_of(response.headers.get("Date", ""))

    async def text(self, endpoint: str, path: str, connect_s: float) -> bytes:
        """GET a page, whatever its status."""
        async with self._send(endpoint, path, None, {}, connect_s) as response:
            return await _read_whole(endpoint, response)

    @contextlib.asynccontextmanager
    async def _send(
        self,
        endpoint: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str],
        connect_s: float,
    ) -> AsyncGenerator[httpx.Response]:
        with errors_of(endpoint):
            request = _request(endpoint + path, body, headers, connect_s * _CONNECT_SHARE)
            response = await self._client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


@final
class _Content(httpx.AsyncByteStream):
    """The bytes of a request.

    httpx's own is a generator, which httpcore leaves suspended where sending fails; trio warns.
    """

    def __init__(self, data: bytes) -> None:
        self._parts = [data] if data else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop()


def _request(
    url: str, body: Body | None, headers: Mapping[str, str], connect_s: float
) -> httpx.Request:
    data = b"" if body is None else json.dumps(body).encode()
    own = {
        "Host": httpx.URL(url).netloc.decode(),
        "Accept-Encoding": "identity",
        "Content-Length": str(len(data)),
        "Content-Type": "application/json",
        "User-Agent": "hastore",
    }
    return httpx.Request(
        "GET" if body is None else "POST",
        url,
        headers={**own, **headers},
        stream=_Content(data),
        extensions={"timeout": httpx.Timeout(None, connect=connect_s).as_dict()},
    )


async def _read_whole(endpoint: str, response: httpx.Response) -> bytes:
    data = bytearray()
    async with _parts(endpoint, response) as parts:
        async for part in parts:
            data += part
            if len(data) > ANSWER_SIZE_MAX:
                raise _too_large(endpoint)
    return bytes(data)


async def _lines(endpoint: str, response: httpx.Response) -> AsyncGenerator[Answer]:
    """Yield each line of a stream as soon as it is complete, and what remains at its end."""
    where = f"etcd at {endpoint}"
    waiting = bytearray()
    async with _parts(endpoint, response) as parts:
        async for part in parts:
            *lines, rest = part.split(b"\n")
            for line in lines:
                waiting += line
                if waiting:
                    yield Answer.of(where, response.status_code, bytes(waiting))
                waiting.clear()
            waiting += rest
            if len(waiting) > ANSWER_SIZE_MAX:
                raise _too_large(endpoint)
    if waiting:
        yield Answer.of(where, response.status_code, bytes(waiting))


@contextlib.asynccontextmanager
async def _parts(endpoint: str, response: httpx.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Yield the parts of an answer as they arrive; close it at the end."""
    parts = response.aiter_raw()
    with errors_of(endpoint):
        try:
            yield parts
        finally:
            await response.aclose()
            # httpx has a generator in a generator, several deep, and closes only the outermost;
            # trio warns of the others.  The next read, of a closed connection, ends all of them.
            with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
                async for _ in parts:
                    pass


def _too_large(endpoint: str) -> CoordinatorUnreachableError:
    return CoordinatorUnreachableError(
        f"etcd at {endpoint}: an answer of more than {ANSWER_SIZE_MAX >> 20} MiB",
        hint=NOT_ETCD_HINT,
    )


@contextlib.contextmanager
def errors_of(endpoint: str) -> Iterator[None]:
    """Map httpx's errors to ours."""
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        is_sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        tls = _tls_error_in(error)
        if tls is not None:
            reason = getattr(tls, "verify_message", "") or tls.reason or str(tls)
            kind = CoordinatorTlsError if is_sent else NotSentTlsError
            raise kind(
                f"TLS with etcd at {endpoint} failed: {reason}", hint=_tls_hint(tls)
            ) from error
        if is_sent:
            # A server that refuses our certificate may say so only by a reset.
            raise CoordinatorUnreachableError(
                f"etcd at {endpoint}: the connection broke before the answer:"
                f" {str(error) or type(error).__name__}",
                hint=_CERTIFICATE_HINT if endpoint.startswith("https:") else NOT_ETCD_HINT,
            ) from error
        timeout = isinstance(error, httpx.ConnectTimeout)
        reason = "it does not answer" if timeout else str(error)
        raise NotSentError(
            f"etcd at {endpoint}: no connection: {reason}",
            hint="is it running, and is this the right address?",
        ) from error


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


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return what verifies etcd and shows it our certificate; None: the system's CAs, no one.

    Raises ConfigError for files that cannot be used.
    """
    path = ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            path = cert
            context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{path}: cannot be used for TLS with etcd: {reason}",
            hint="it must be PEM; the key must be the certificate's, without a password",
        ) from error
    return context


def _no_password() -> str:
    """Keep OpenSSL from asking at the terminal."""
    raise ValueError("the key has a password")
