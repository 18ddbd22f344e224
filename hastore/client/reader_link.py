"""A consumer's link to a replica group: the master, or a slave while there is none.

::

    ask ─► RemotingClient of one node ─► answer
             │ the link breaks, or a request has no answer
             └─► MasterSearch ─► the master, else a slave ─► the same request again

It has what consumers use of a ``RemotingClient``.  All their requests may be asked again: pulls and
questions change nothing, and a commit says where a group is, not how far it moves.

All nodes of a group have the same messages at the same queue offsets, so a consumer goes on where
it was.  Only a node that lags does not have them yet: when it says, soon after a change of nodes,
that a queue does not hold an offset, it is asked again (a slave for ``failover_timeout_s``, a new
master for ``SETTLE_S``) before that is believed.  So nothing is skipped, and little is read twice.

While it reads from a slave, it looks for a master every ``LOOK_S``, since only a master keeps what
a group commits.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.client.master_link import FAILOVER_TIMEOUT_S, Failover
from hastore.client.master_search import BACK_OFF_S, MasterSearch
from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    block_nursery,
    open_remoting_client,
    request_failed,
)
from hastore.concurrency.tcp import describe
from hastore.errors import AccessDeniedError, HastoreError, TlsError, UnreachableError
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode, SerializeType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hastore.access.signature import AccessKey
    from hastore.client.master_search import Address, NodeAnswer
    from hastore.client.remoting_client import RemotingClient
    from hastore.tls.client_tls import ClientTls
    from hastore.wire.remoting_command import RemotingCommand

LOOK_S: Final = 1.0
SETTLE_S: Final = 2.0
_AGAIN_S: Final = 0.1

_log = logger("client")


@final
@attrs.frozen(kw_only=True)
class ReaderSettings:
    """How a consumer follows its group."""

    failover_timeout_s: float
    connect_timeout_s: float
    request_timeout_s: float
    on_failover: Callable[[Failover], None] | None = None
    access_key: AccessKey | None = None
    tls: ClientTls | None = None


@final
class ReaderLink:
    """A link to one of several nodes; ``run`` keeps it up."""

    def __init__(self, search: MasterSearch, settings: ReaderSettings) -> None:
        self.broken_because: str | None = None
        self.on_reconnect: Callable[[], Awaitable[None]] | None = None
        self._search = search
        self.settings = settings
        self._node: NodeAnswer | None = None
        self._client: RemotingClient | None = None  # None: a node is searched for
        self._first: RemotingClient | None = None
        self._is_up = trio.Event()
        self._left = trio.Event()
        self._left_because = ""
        self._left_at = 0.0
        self._patient_until = 0.0  # an offset that a queue does not hold is not believed before

    @property
    def address(self) -> Address:
        """The node that answers, or answered last."""
        assert self._node is not None, "run announces it once a node answers"
        return self._node.address

    @property
    def group_name(self) -> str | None:
        """The replica group of that node; None: it is in none, or does not say it."""
        return None if self._node is None else self._node.group

    @property
    def local_address(self) -> Address:
        """This end of the first connection."""
        assert self._first is not None, "run announces it once a node answers"
        return self._first.local_address

    # -- the connection --------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep a link up until cancelled, or until no node answers.

        Raises UnreachableError if none does at the start, AccessDeniedError if all of them deny
        access; later ``broken_because`` says so.
        """
        timeout_s = self.settings.connect_timeout_s
        try:
            while True:
                found = await self._search.find(timeout_s)
                try:
                    await self._follow(found, task_status)
                except (UnreachableError, TlsError):
                    if self._first is None:
                        raise
                    await trio.sleep(BACK_OFF_S[0])  # it answered a moment ago: search again
                timeout_s = self.settings.failover_timeout_s
        except (UnreachableError, AccessDeniedError, TlsError) as error:
            if self._first is None:
                raise
            _log.error("node_not_found", reason=str(error), next=error.hint)
            self._end(str(error))
        finally:
            self._end("the connection was closed here")

    async def _follow(self, found: NodeAnswer, task_status: trio.TaskStatus[None]) -> None:
        settings = self.settings
        async with open_remoting_client(
            found.address,
            connect_timeout_s=settings.connect_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            access_key=settings.access_key,
            tls=settings.tls,
        ) as client:
            is_first = self._first is None
            self._up(client, found)
            if is_first:
                self._first = client
                task_status.started()
            async with trio.open_nursery() as nursery:
                if not is_first and self.on_reconnect is not None:
                    nursery.start_soon(self._reconnected, self.on_reconnect)
                if found.is_master is False:
                    nursery.start_soon(self._look_for_master, client)
                await self._left.wait()
                nursery.cancel_scope.cancel()

    async def _reconnected(self, act: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(HastoreError):  # the requests that read will show it
            await act()

    def _up(self, client: RemotingClient, found: NodeAnswer) -> None:
        settings = self.settings
        self._node, self._client, self._left = found, client, trio.Event()
        client.on_broken = lambda: self._leave(client, client.broken_because or "")
        self._is_up.set()
        if self._first is None:
            return
        patience_s = SETTLE_S if found.is_master else settings.failover_timeout_s
        now = trio.current_time()
        self._patient_until = now + patience_s
        failover = Failover(
            name=found.name,
            address=found.address,
            epoch=found.epoch,
            is_master=found.is_master is not False,
            sent_again=0,
            reason=self._left_because,
            seconds=now - self._left_at,
        )
        _log.info("node_followed", node=found.title, reason=failover.reason)
        if settings.on_failover is not None:
            settings.on_failover(failover)

    async def _look_for_master(self, client: RemotingClient) -> None:
        while True:
            await trio.sleep(LOOK_S)
            found = await self._search.find_now()
            if found is not None and found.is_master:
                self._leave(client, f"a slave, and {found.title} is master")

    def _leave(self, client: RemotingClient, reason: str) -> None:
        if client is self._client:
            self._client = None
            self._left_because = f"{describe(client.address)}: {reason}"
            self._left_at = trio.current_time()
            self._is_up = trio.Event()
            self._left.set()

    def _end(self, reason: str) -> None:
        if self.broken_because is None:
            self.broken_because = reason
            self._client = None
            self._is_up.set()

    # -- requests --------------------------------------------------------------------------------

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

        Raises UnreachableError if none comes, RequestFailedError if a node answers with an error.
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
        """Return the answer to a request, of whichever node has one; whatever its code.

        Raises UnreachableError, or TlsError, if none has within ``failover_timeout_s`` of the first
        failure.
        """
        failed_at: float | None = None
        while True:
            client = await self._connected()
            try:
                response = await client.ask(
                    code,
                    ext_fields,
                    body,
                    serialize_type=serialize_type,
                    waits_for_room=waits_for_room,
                )
            except (UnreachableError, TlsError) as error:
                self._leave(client, str(error))
                now = trio.current_time()
                failed_at = now if failed_at is None else failed_at
                if now > failed_at + self.settings.failover_timeout_s:
                    raise
                continue
            is_moved = response.code == ResponseCode.PULL_OFFSET_MOVED
            if not is_moved or trio.current_time() >= self._patient_until:
                return response
            await trio.sleep(_AGAIN_S)

    async def _connected(self) -> RemotingClient:
        while self._client is None:
            if self.broken_because is not None:
                raise UnreachableError(f"not asked: {self.broken_because}", hint="connect again")
            await self._is_up.wait()
        return self._client


@contextlib.asynccontextmanager
async def open_reader_link(
    addresses: list[Address],
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    failover_timeout_s: float = FAILOVER_TIMEOUT_S,
    on_failover: Callable[[Failover], None] | None = None,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[ReaderLink]:
    """Keep a link to one of the nodes while the block runs.

    Raises UnreachableError if none answers within ``connect_timeout_s``, AccessDeniedError if all
    deny access.
    """
    settings = ReaderSettings(
        failover_timeout_s=failover_timeout_s,
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        on_failover=on_failover,
        access_key=access_key,
        tls=tls,
    )
    search = MasterSearch(addresses, takes_slaves=True, access_key=access_key, tls=tls)
    link = ReaderLink(search, settings)
    async with block_nursery() as nursery:
        await nursery.start(link.run)
        yield link
