"""A real etcd (3.4 or later), through its JSON gateway.

::

    KeyValueStore call ──▶ POST /v3/… with a JSON body ──▶ one of the endpoints
                      ◀── answer, or CoordinatorUnreachableError within ``timeout_s``

The gateway writes keys and values in base64, 64-bit numbers as strings, and leaves out false, zero
and empty values.  A call goes to the endpoint that answered last, and to the others only while no
connection was made: once a request may have arrived, it is not sent again.

httpx is the client: it runs on trio, keeps connections, and knows TLS.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs
import httpx
import trio

from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    Delete,
    KeyValue,
    Lease,
    Outcome,
    Put,
    Snapshot,
    Unchanged,
)
from hastore.errors import (
    CompactedError,
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorTlsError,
    CoordinatorUnreachableError,
    LeaseGoneError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

_LEASE_NOT_FOUND: Final = 5  # gRPC's NOT_FOUND
_UNAUTHENTICATED: Final = 16
# Codes after which the request may have been done, or may still be.
_UNKNOWN_CODES: Final = frozenset({1, 2, 4, 13, 14})  # cancelled, unknown, deadline, internal, away
_LINE_SIZE_MAX: Final = 16 * 2**20


@final
@attrs.frozen(kw_only=True)
class EtcdConfig:
    """Where etcd is, and how to come in."""

    endpoints: tuple[str, ...]
    timeout_s: float = 2.0  # for one call, over all endpoints
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def range_end(prefix: str) -> str:
    """Return the key after all that begin with ``prefix``, which ends with an ASCII character."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


# -- answers, read liberally -----------------------------------------------------------------------


@final
@attrs.frozen
class _Answer:
    """An answer's JSON object; each method raises CoordinatorUnreachableError for what is wrong.

    What cannot be read says nothing about what was done.
    """

    where: str
    fields: dict[str, Any]

    @classmethod
    def read(cls, where: str, data: bytes) -> Self:
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CoordinatorUnreachableError(f"{where} is not etcd: {error}") from error
        if not isinstance(fields, dict):
            raise CoordinatorUnreachableError(f"{where} is not etcd: it answered {fields!r:.80}")
        return cls(where, fields)

    def number(self, name: str) -> int:
        value = self.fields.get(name, 0)
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise self._wrong(name, value) from error

    def data(self, name: str) -> bytes:
        value = self.fields.get(name, "")
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError) as error:
            raise self._wrong(name, value) from error

    def text(self, name: str) -> str:
        try:
            return self.data(name).decode()
        except UnicodeDecodeError as error:
            raise self._wrong(name, self.fields.get(name)) from error

    def inner(self, name: str) -> _Answer:
        value = self.fields.get(name) or {}
        if not isinstance(value, dict):
            raise self._wrong(name, value)
        return _Answer(self.where, value)

    def rows(self, name: str) -> list[_Answer]:
        value = self.fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name, value)
        return [_Answer(self.where, each) for each in value]

    def _wrong(self, name: str, value: object) -> CoordinatorUnreachableError:
        return CoordinatorUnreachableError(f"{self.where} is not etcd: {name} is {value!r:.80}")

    @property
    def header(self) -> tuple[int, int]:
        """The cluster's id, and the revision."""
        header = self.inner("header")
        return header.number("cluster_id"), header.number("revision")


def _key_value(row: _Answer) -> KeyValue:
    return KeyValue(
        key=row.text("key"),
        value=row.data("value"),
        create_revision=row.number("create_revision"),
        mod_revision=row.number("mod_revision"),
        lease=row.number("lease") or None,
    )


def _comparison(one: Absent | Unchanged) -> dict[str, Any]:
    if isinstance(one, Absent):
        return {"key": _b64(one.key), "target": "CREATE", "create_revision": "0"}
    return {"key": _b64(one.key), "target": "MOD", "mod_revision": str(one.mod_revision)}


def _write(one: Put | Delete) -> dict[str, Any]:
    if isinstance(one, Delete):
        return {"request_delete_range": {"key": _b64(one.key)}}
    put: dict[str, Any] = {"key": _b64(one.key), "value": _b64(one.value)}
    if one.lease is not None:
        put["lease"] = str(one.lease)
    return {"request_put": put}


def changes_of(answer: _Answer) -> Changes | None:
    """Return what a line of a watch says; None if it is only a sign of life."""
    events = answer.rows("events")
    if not events:
        return None
    puts: dict[str, KeyValue] = {}
    deletes: dict[str, None] = {}
    for event in events:
        item = event.inner("kv")
        if event.fields.get("type", "PUT") == "DELETE":
            key = item.text("key")
            puts.pop(key, None)
            deletes[key] = None
        else:
            found = _key_value(item)
            deletes.pop(found.key, None)
            puts[found.key] = found
    return Changes(answer.header[1], tuple(puts.values()), tuple(deletes))


# -- the client ------------------------------------------------------------------------------------


@final
@attrs.define(eq=False)
class EtcdClient:
    """A ``KeyValueStore``; ``open`` makes one."""

    config: EtcdConfig
    _http: httpx.AsyncClient
    _endpoints: list[str] = attrs.field(init=False)  # the one that answered last comes first
    _token: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with the first endpoint."""
        self._endpoints = [each.rstrip("/") for each in self.config.endpoints]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, config: EtcdConfig) -> AsyncGenerator[EtcdClient]:
        """Open connections as they are needed, while the block runs."""
        verify: Any = True
        if any(each.startswith("https:") for each in config.endpoints):
            verify = _tls_context(config)
        # Each call has a timeout of its own, over all that it does.
        async with httpx.AsyncClient(verify=verify, trust_env=False, timeout=None) as http:  # noqa: S113
            yield cls(config, http)

    # -- the store -------------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with ``prefix``; linearizable."""
        body = {"key": _b64(prefix), "range_end": _b64(range_end(prefix))}
        answer = await self._ask("kv/range", body)
        items = [_key_value(row) for row in answer.rows("kvs")]
        return Snapshot(*answer.header, {item.key: item for item in items})

    async def commit(
        self, comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all writes if all comparisons hold, else none."""
        body = {
            "compare": [_comparison(one) for one in comparisons],
            "success": [_write(one) for one in writes],
        }
        answer = await self._ask("kv/txn", body)
        return Outcome(bool(answer.fields.get("succeeded", False)), *answer.header)

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        answer = await self._ask("lease/grant", {"TTL": str(ttl_s)})
        lease_id, granted_s = answer.number("ID"), answer.number("TTL")
        if not lease_id or granted_s <= 0:
            raise CoordinatorUnreachableError(f"{answer.where} granted no lease")
        return Lease(lease_id, float(granted_s))

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease; return its time to live, None if it has ended."""
        answer = (await self._ask("lease/keepalive", {"ID": str(lease_id)})).inner("result")
        return float(answer.number("TTL")) or None

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys."""
        with contextlib.suppress(LeaseGoneError):
            await self._ask("lease/revoke", {"ID": str(lease_id)})

    @contextlib.asynccontextmanager
    async def changes(
        self, prefix: str, after_revision: int
    ) -> AsyncGenerator[AsyncIterator[Changes]]:
        """Yield what changes below ``prefix`` after a revision."""
        async with contextlib.aclosing(self._changes(prefix, after_revision)) as stream:
            yield stream

    async def _changes(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes]:
        wish = {
            "key": _b64(prefix),
            "range_end": _b64(range_end(prefix)),
            "start_revision": str(after_revision + 1),
        }
        endpoint = self._endpoints[0]
        where = f"{endpoint}/v3/watch"
        try:
            request = self._http.build_request(
                "POST", where, json={"create_request": wish}, headers=self._headers()
            )
            with trio.fail_after(self.config.timeout_s):
                response = await self._http.send(request, stream=True)
            try:
                async for line in _lines(response):
                    answer = _Answer.read(where, line)
                    if response.status_code != httpx.codes.OK or "error" in answer.fields:
                        raise self._refusal(answer, response.status_code)
                    result = answer.inner("result")
                    if result.number("compact_revision") or result.fields.get("canceled"):
                        raise CompactedError(
                            f"{endpoint} has not the changes after revision {after_revision}",
                            after_revision=after_revision,
                        )
                    found = changes_of(result)
                    if found is not None:
                        yield found
            finally:
                await response.aclose()
        except (httpx.HTTPError, trio.TooSlowError, OSError) as error:
            self._endpoints.append(self._endpoints.pop(0))
            raise self._unreachable(endpoint, "watch", error) from error
        raise CoordinatorUnreachableError(f"{endpoint} has ended the watch")

    # -- calls -----------------------------------------------------------------------------------

    async def _ask(self, path: str, body: dict[str, Any]) -> _Answer:
        """Ask one endpoint; renew the token once if it has run out."""
        try:
            with trio.fail_after(self.config.timeout_s):
                await self._authenticate()
                try:
                    return await self._post(path, body)
                except _TokenError:
                    self._token = None
                    await self._authenticate()
                    return await self._post(path, body)
        except trio.TooSlowError as error:
            self._endpoints.append(self._endpoints.pop(0))
            raise CoordinatorUnreachableError(
                f"etcd has not answered {path} within {self.config.timeout_s:g} s:"
                f" {', '.join(self.config.endpoints)}",
                hint="is it running, and is this the right address? hastore doctor asks it",
            ) from error
        except _TokenError as error:
            raise CoordinatorRefusedError(str(error)) from error

    async def _authenticate(self) -> None:
        if self.config.user is None or self._token is not None:
            return
        body = {"name": self.config.user, "password": self.config.password or ""}
        answer = await self._post("auth/authenticate", body)
        token = answer.fields.get("token")
        if not isinstance(token, str):
            raise CoordinatorUnreachableError(f"{answer.where} gave no token")
        self._token = token

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    async def _post(self, path: str, body: dict[str, Any]) -> _Answer:
        failure: CoordinatorError | None = None
        for _ in range(len(self._endpoints)):
            endpoint = self._endpoints[0]
            where = f"{endpoint}/v3/{path}"
            try:
                response = await self._http.post(where, json=body, headers=self._headers())
            except httpx.ConnectError as error:  # nothing was sent: another one may be asked
                self._endpoints.append(self._endpoints.pop(0))
                failure = self._unreachable(endpoint, path, error)
                continue
            except (httpx.HTTPError, OSError) as error:
                self._endpoints.append(self._endpoints.pop(0))
                raise self._unreachable(endpoint, path, error) from error
            answer = _Answer.read(where, response.content.partition(b"\n")[0])
            if response.status_code != httpx.codes.OK or "error" in answer.fields:
                raise self._refusal(answer, response.status_code)
            return answer
        assert failure is not None, "there is an endpoint"
        raise failure

    def _unreachable(self, endpoint: str, path: str, error: Exception) -> CoordinatorError:
        reason = str(error) or type(error).__name__
        cause = error.__cause__ or error.__context__
        if "CERTIFICATE" in reason.upper() or "SSL" in reason.upper():
            return CoordinatorTlsError(
                f"TLS with etcd at {endpoint} failed: {reason}",
                hint="does its certificate come from [cluster] ca, and is it for this name?",
            )
        detail = f" ({cause})" if cause is not None and str(cause) not in reason else ""
        return CoordinatorUnreachableError(
            f"no etcd answers at {endpoint} ({path}): {reason}{detail}",
            hint="is it running, and is this the right address? hastore doctor asks it",
        )

    def _refusal(self, answer: _Answer, status: int) -> CoordinatorError:
        error = answer.fields.get("error")
        inner = error if isinstance(error, dict) else answer.fields
        code, text = inner.get("code", inner.get("grpc_code")), inner.get("message") or str(error)
        msg = f"{answer.where}: {text}"
        if code == _LEASE_NOT_FOUND and "lease" in text:
            return LeaseGoneError(msg)
        if "invalid auth token" in text or (code == _UNAUTHENTICATED and self._token is not None):
            return _TokenError(msg)
        if "compacted" in text:
            return CompactedError(msg, after_revision=0)
        if code in _UNKNOWN_CODES or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            return CoordinatorUnreachableError(msg)
        return CoordinatorRefusedError(msg, hint="see [cluster] user and password_file")


class _TokenError(CoordinatorRefusedError):
    """The token has run out."""


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream."""
    waiting = bytearray()
    async for data in response.aiter_bytes():
        waiting += data
        if len(waiting) > _LINE_SIZE_MAX:
            raise CoordinatorUnreachableError("etcd: a line of a watch does not end")
        *lines, rest = waiting.split(b"\n")
        waiting = bytearray(rest)
        for line in lines:
            if line:
                yield bytes(line)
    if waiting:
        yield bytes(waiting)


def _tls_context(config: EtcdConfig) -> Any:
    import ssl  # noqa: PLC0415 - only with https

    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.cert is not None:
            context.load_cert_chain(config.cert, config.key)
    except (OSError, ssl.SSLError) as error:
        raise CoordinatorTlsError(
            f"the certificates for etcd cannot be read: {error}",
            hint="see [cluster] ca, cert and key",
        ) from error
    return context
