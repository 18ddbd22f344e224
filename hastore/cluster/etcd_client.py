"""A real etcd (3.4 or later) as a ``KeyValueStore``, through its JSON gateway.

::

    call ──▶ the endpoint that answered last ──▶ answer
                 │ no connection                    │ no (valid) answer
                 ▼                                  ▼
              the next one        read, grant, renew, revoke: the next one, while time is left
                                  commit: CoordinatorUnreachableError, never sent twice

``timeout_s`` is for a call as a whole.  What may be sent twice shares it among the endpoints that
are left; a transaction has all of it for its one answer.  Sent again is only

- anything, to the next endpoint, if no connection was made;
- anything, once, if etcd refused an expired token: it did nothing then, and one call gets a new
  one for all;
- reads, renewals and revocations, which change nothing the second time, and grants: a lease whose
  id nobody knows ends by itself.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.cluster import etcd_http
from hastore.cluster.etcd_encoding import (
    Answer,
    Body,
    TokenRefusedError,
    alarms_of,
    commit_body,
    count_body,
    has_no_users,
    lease_of,
    outcome_of,
    quota_in,
    range_of,
    renewed_ttl_of,
    snapshot_of,
    token_of,
)
from hastore.cluster.etcd_http import EtcdHttp, NotSentError
from hastore.cluster.etcd_watch import watch
from hastore.errors import (
    ConfigError,
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorTlsError,
    CoordinatorUnreachableError,
    LeaseGoneError,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from hastore.cluster.key_value_store import (
        Absent,
        Changes,
        Delete,
        Lease,
        Outcome,
        Put,
        ServerTime,
        Snapshot,
        Unchanged,
    )

LOGIN_PAUSE_MIN_S: Final = 0.5  # after a login that failed; twice as long after the next one
LOGIN_PAUSE_MAX_S: Final = 30.0  # if etcd refused it; one that was not answered may be soon
_LOGIN_PATH: Final = "/v3/auth/authenticate"
_RANGE_PATH: Final = "/v3/kv/range"
ENDPOINT_HINT: Final = "an endpoint is http://HOST:PORT or https://HOST:PORT"


@final
@attrs.frozen(kw_only=True)
class EtcdConfig:
    """Where etcd is, and as whom we come; ``context`` is needed for https only.

    ``timeout_s``: for a call, over all endpoints, and for a watch's signs of life.
    """

    endpoints: tuple[str, ...]
    timeout_s: float = 2.0
    context: ssl.SSLContext | None = None
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)


@final
@attrs.frozen(kw_only=True)
class EtcdHealth:
    """What one endpoint says of itself.

    ``leader_id``: None without a leader.  ``latency_s``: how long a linearizable read took.
    ``server_time_s``: its wall clock, in whole seconds since 1970 (UTC), None if it names none.
    ``size``: bytes of its database's file; at ``quota_size`` it refuses writes.  None if unknown.
    """

    endpoint: str
    version: str
    cluster_id: int
    member_id: int
    leader_id: int | None
    revision: int
    latency_s: float
    server_time_s: int | None
    alarms: frozenset[str] = frozenset()
    size: int | None = None
    quota_size: int | None = None


@final
@attrs.define(eq=False, kw_only=True)
class EtcdClient:
    """A ``KeyValueStore``; ``open`` makes one."""

    config: EtcdConfig
    _http: EtcdHttp
    _endpoints: tuple[str, ...]
    _first: int = attrs.field(default=0, init=False)  # the endpoint to ask first
    # "": etcd has no users
    _token: str | None = attrs.field(default=None, init=False, repr=False)
    _login: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # The last failure since there was a token, and trio's time before which none is asked for.
    _login_failure: CoordinatorError | None = attrs.field(default=None, init=False)
    _login_again_at: float = attrs.field(default=0.0, init=False)
    _login_pause_s: float = attrs.field(default=0.0, init=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, config: EtcdConfig, *, now: Callable[[], float] = trio.current_time
    ) -> AsyncGenerator[EtcdClient]:
        """Make connections as they are needed, while the block runs.

        ``now`` is the clock of ``ServerTime.heard_at_s``.  Raises ConfigError for endpoints that
        cannot be used.
        """
        endpoints = tuple(checked_endpoint(each) for each in config.endpoints)
        if not endpoints:
            raise ConfigError("etcd has no endpoint", hint=ENDPOINT_HINT)
        if any(each.startswith("https:") for each in endpoints) and config.context is None:
            raise ConfigError("etcd is asked by https, without a TLS context")
        async with EtcdHttp.open(config.context, now) as http:
            yield cls(config=config, http=http, endpoints=endpoints)

    def use(self, *, context: ssl.SSLContext | None, password: str | None) -> None:
        """Connect by this context, and log in by this password, from now on."""
        self.config = attrs.evolve(self.config, context=context, password=password)
        self._http.use(context)
        self._login_failure, self._login_again_at, self._login_pause_s = None, 0.0, 0.0

    # -- the store -------------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with ``prefix``; linearizable."""
        return snapshot_of(await self._ask(_RANGE_PATH, range_of(prefix)))

    async def commit(
        self, comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all writes if all comparisons hold, else none."""
        body = commit_body(comparisons, writes)
        return outcome_of(await self._ask("/v3/kv/txn", body, may_repeat=False))

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        assert ttl_s >= 1
        return lease_of(await self._ask("/v3/lease/grant", {"TTL": str(ttl_s)}))

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease; return its time to live, None if it has ended."""
        try:
            answer = await self._ask("/v3/lease/keepalive", {"ID": str(lease_id)})
        except LeaseGoneError:
            return None
        return renewed_ttl_of(answer)

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys; one that has ended is no error."""
        with contextlib.suppress(LeaseGoneError):
            await self._ask("/v3/lease/revoke", {"ID": str(lease_id)})

    async def alarms(self) -> frozenset[str]:
        """Return the alarms of all servers, as the first one that answers knows them."""
        return alarms_of(await self._ask("/v3/maintenance/status", {}))

    def clocks(self) -> Mapping[str, ServerTime]:
        """Return by endpoint what its clock said last."""
        return self._http.clocks

    @contextlib.asynccontextmanager
    async def changes(
        self, prefix: str, after_revision: int
    ) -> AsyncGenerator[AsyncIterator[Changes]]:
        """Yield what changes below ``prefix`` after a revision, as one endpoint reports it.

        If that is silent for ``timeout_s``, and then does not answer for as long, the watch is
        over, and the next one begins at another endpoint.
        """
        async with contextlib.aclosing(self._changes(prefix, after_revision)) as changes:
            yield changes

    async def _changes(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes]:
        while True:
            await self._authenticate(trio.current_time() + self.config.timeout_s)
            token, endpoint = self._token, self._endpoints[self._first]
            try:
                async with contextlib.aclosing(
                    watch(
                        self._http,
                        endpoint,
                        prefix,
                        after_revision,
                        headers=self._headers(),
                        read=partial(self._ask, _RANGE_PATH, endpoints=(endpoint,)),
                        timeout_s=self.config.timeout_s,
                    )
                ) as changes:
                    async for each in changes:
                        after_revision = each.revision
                        yield each
            except CoordinatorUnreachableError:
                self._avoid(endpoint)
                raise
            except CoordinatorRefusedError:
                # etcd calls a watch with an expired token "permission denied"; the read with
                # which a watch begins has renewed the token then.
                if self._token == token:
                    raise

    # -- for doctor ------------------------------------------------------------------------------

    async def health(self, prefix: str) -> list[EtcdHealth | CoordinatorError]:
        """Ask each endpoint by itself, all at once; its error is in its place.

        ``prefix`` is one that the user may read.
        """
        found: dict[str, EtcdHealth | CoordinatorError] = {}

        async def ask(endpoint: str) -> None:
            found[endpoint] = no_answer(endpoint, "/version", self.config.timeout_s)
            with trio.move_on_after(self.config.timeout_s):
                try:
                    found[endpoint] = await self._health_of(endpoint, prefix)
                except CoordinatorError as error:
                    found[endpoint] = error

        async with trio.open_nursery() as nursery:
            for endpoint in dict.fromkeys(self._endpoints):
                nursery.start_soon(ask, endpoint)
        return [found[endpoint] for endpoint in self._endpoints]

    async def _health_of(self, endpoint: str, prefix: str) -> EtcdHealth:
        version, server_time_s = await self._http.version(endpoint, self.config.timeout_s)
        status = await self._ask("/v3/maintenance/status", {}, endpoints=(endpoint,))
        began = trio.current_time()
        await self._ask(_RANGE_PATH, count_body(prefix), endpoints=(endpoint,))
        latency_s = trio.current_time() - began
        return EtcdHealth(
            endpoint=endpoint,
            version=version,
            cluster_id=status.cluster_id,
            member_id=status.inner("header").number("member_id"),
            leader_id=status.number("leader") or None,
            revision=status.revision,
            latency_s=latency_s,
            server_time_s=server_time_s,
            alarms=alarms_of(status),
            size=status.number("dbSize") or None,
            quota_size=status.number("dbSizeQuota") or await self._quota_of(endpoint),
        )

    async def _quota_of(self, endpoint: str) -> int | None:
        """Return a server's quota from its metrics, as 3.4 and 3.5 have it; None if it has none."""
        with contextlib.suppress(CoordinatorError):
            return quota_in(await self._http.text(endpoint, "/metrics", self.config.timeout_s))
        return None

    # -- calls -----------------------------------------------------------------------------------

    async def _ask(
        self,
        path: str,
        body: Body,
        *,
        may_repeat: bool = True,
        endpoints: tuple[str, ...] | None = None,  # None: all
    ) -> Answer:
        """Ask within ``timeout_s``; once more, with a new token, where etcd refuses the old one."""
        deadline = trio.current_time() + self.config.timeout_s
        await self._authenticate(deadline)
        token = self._token
        try:
            return await self._ask_in_turn(path, body, deadline, may_repeat, endpoints)
        except TokenRefusedError:
            if self.config.user is None:
                raise
            self._forget(token)
            await self._authenticate(deadline)
            return await self._ask_in_turn(path, body, deadline, may_repeat, endpoints)

    async def _ask_in_turn(
        self,
        path: str,
        body: Body,
        deadline: float,
        may_repeat: bool,  # noqa: FBT001 - private
        endpoints: tuple[str, ...] | None,
    ) -> Answer:
        """Ask one endpoint after the other, as far as that is safe."""
        is_pinned = endpoints is not None
        if endpoints is None:
            endpoints = self._endpoints[self._first :] + self._endpoints[: self._first]
        failures: list[CoordinatorUnreachableError] = []
        for turn, endpoint in enumerate(endpoints):
            now = trio.current_time()
            share_s = max(0.0, deadline - now) / (len(endpoints) - turn)
            until = now + share_s if may_repeat else deadline
            try:
                with trio.move_on_at(until):
                    size_max = etcd_http.ANSWER_SIZE_MAX if path == _RANGE_PATH else None
                    return await self._http.ask(
                        endpoint, path, body, self._headers(), share_s, size_max=size_max
                    )
                failures.append(no_answer(endpoint, path, until - now))
            except CoordinatorUnreachableError as error:
                failures.append(error)
            except trio.Cancelled:  # somebody had less patience than we
                if not is_pinned:  # a watch stops asking for signs of life once it has one
                    self._avoid(endpoint)
                raise
            self._avoid(endpoint)
            if not may_repeat and not isinstance(failures[-1], NotSentError):
                break
        raise _all(failures)

    async def _authenticate(self, deadline: float) -> None:
        """Get a token, if there is a user and no token yet.

        One call asks and the others wait for it: etcd hashes the password each time, which keeps a
        core busy for a tenth of a second.  After a failure nothing is asked for a while, and the
        failure is raised again.
        """
        if self.config.user is None or self._token is not None:
            return
        with trio.move_on_at(deadline) as waiting:
            await self._login.acquire()
        if waiting.cancelled_caught:
            raise no_answer(self._endpoints[self._first], _LOGIN_PATH, self.config.timeout_s)
        try:
            if self._token is None:
                await self._log_in(deadline)
        finally:
            self._login.release()

    async def _log_in(self, deadline: float) -> None:
        failure = self._login_failure
        if failure is not None and trio.current_time() < self._login_again_at:
            raise type(failure)(str(failure), hint=failure.hint)
        try:
            await self._ask_for_token(deadline)
        except CoordinatorError as error:
            is_refused = isinstance(error, CoordinatorRefusedError)
            pause_max_s = LOGIN_PAUSE_MAX_S if is_refused else LOGIN_PAUSE_MIN_S
            self._login_pause_s = min(max(LOGIN_PAUSE_MIN_S, 2 * self._login_pause_s), pause_max_s)
            self._login_again_at = trio.current_time() + self._login_pause_s
            self._login_failure = error
            raise
        self._login_failure, self._login_pause_s = None, 0.0

    async def _ask_for_token(self, deadline: float) -> None:
        body = {"name": self.config.user, "password": self.config.password or ""}
        try:
            answer = await self._ask_in_turn(_LOGIN_PATH, body, deadline, True, None)
            self._token = token_of(answer)
        except CoordinatorRefusedError as error:
            if not has_no_users(error):
                raise
            self._token = ""

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _forget(self, token: str | None) -> None:
        """Drop a token that was refused, unless another call has got a new one since."""
        if self._token == token:
            self._token = None

    def _avoid(self, endpoint: str) -> None:
        """Begin with the next endpoint from now on, if this one was the first."""
        if self._endpoints[self._first] == endpoint:
            self._first = (self._first + 1) % len(self._endpoints)


def no_answer(endpoint: str, path: str, within_s: float) -> CoordinatorUnreachableError:
    """Return the error for an endpoint that has not answered in time."""
    return CoordinatorUnreachableError(
        f"etcd at {endpoint}: no answer to {path} within {within_s:.3g} s",
        hint="does it have a majority, and is its disk quick enough? etcdctl endpoint status",
    )


def _all(failures: Sequence[CoordinatorUnreachableError]) -> CoordinatorUnreachableError:
    """Return one error for what became of one request."""
    if len(failures) == 1:
        return failures[0]
    is_tls = all(isinstance(each, CoordinatorTlsError) for each in failures)
    kind = CoordinatorTlsError if is_tls else CoordinatorUnreachableError
    return kind("; ".join(map(str, failures)), hint=failures[-1].hint)


def checked_endpoint(text: str) -> str:
    """Return an endpoint as it is used.  Raises ConfigError if it is none."""
    try:
        parts = urllib.parse.urlsplit(text)
        is_ok = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        is_ok = is_ok and not (parts.path.rstrip("/") or parts.query or parts.username)
    except ValueError:
        is_ok = False
    if not is_ok or not text.isascii() or not text.isprintable():
        raise ConfigError(f"{text!r} is no endpoint of etcd", hint=ENDPOINT_HINT)
    return text.rstrip("/")
