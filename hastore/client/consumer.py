"""The consumer: messages of a node's topics, pulled over one connection at a time.

::

    async with Consumer.connect(("127.0.0.1", 10911)) as consumer:
        async for message in consumer.messages("orders", group="billing"):   # all queues, endless
            ...

        result = await consumer.pull("orders", queue_id=0, queue_offset=17)   # one pull

    async with Consumer.connect(("n1", 10911), ("n2", 10911)) as consumer:
        ...                                                    # whichever of them answers

With several addresses the consumer reads from the master, or from a slave while there is none, and
after a failover goes on where it was (``reader_link``).  If the routes name other groups with the
same topic, its streams read these, too (``reader_groups``).

With a group, the offsets of handled messages are committed every few seconds and at the end of the
block (unless it raises), and ``ConsumeFrom.stored()`` continues there.  The node lists the consumer
as a member of its groups (``hastore group describe``).  Queues are not divided among a group's
members: each consumer reads all the queues it asks for.

Invariant: a group's message is committed only after it was handled, so it is delivered at least
once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.client.consume_from import ConsumeFrom
from hastore.client.group_membership import GroupMembership
from hastore.client.master_link import FAILOVER_TIMEOUT_S
from hastore.client.master_search import addresses_in
from hastore.client.message_stream import MessageStream, StreamSettings
from hastore.client.pull_client import NO_GROUP, PullResult, pull
from hastore.client.reader_groups import ReaderGroups
from hastore.client.reader_link import ReaderLink, open_reader_link
from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    Asker,
    block_nursery,
    open_remoting_client,
)
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.wire.pull_message import PullRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hastore.access.signature import AccessKey
    from hastore.client.master_link import Failover
    from hastore.client.master_search import Address
    from hastore.env.interface import Env
    from hastore.tls.client_tls import ClientTls

COUNT_MAX: Final = 32  # of one pull (RocketMQ's pullBatchSize)
SUSPEND_TIMEOUT_S: Final = 15.0  # longest hold of a pull that finds nothing
COMMIT_INTERVAL_S: Final = 5.0


@final
class Consumer:
    """A connected consumer, returned by ``Consumer.connect``."""

    def __init__(self, client: Asker, nursery: trio.Nursery, suspend_s: float, env: Env) -> None:
        self._client = client
        self._membership = GroupMembership(client, env)
        self._nursery = nursery
        self._suspend_timeout_ms = round(suspend_s * 1000)
        self._streams: list[MessageStream] = []
        self._groups: ReaderGroups | None = None  # None: it stays with one node

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        address: Address | Sequence[Address],
        *more: Address,
        env: Env | None = None,
        suspend_timeout_s: float = SUSPEND_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        failover_timeout_s: float = FAILOVER_TIMEOUT_S,
        on_failover: Callable[[Failover], None] | None = None,
        access_key: AccessKey | None = None,
        tls: ClientTls | None = None,
    ) -> AsyncIterator[Consumer]:
        """Connect to a master or a slave while the block runs.

        The node may hold a pull for ``suspend_timeout_s``; the consumer waits ``request_timeout_s``
        longer for the answer.  Raises UnreachableError, TlsError.

        With several addresses, or a sequence of them, requests fail with UnreachableError only if
        none of the nodes answers for ``failover_timeout_s``.  ``on_failover`` is called, and must
        not block or raise, once the consumer goes on at another node.  ``access_key`` signs all
        requests; ``tls`` encrypts all connections.
        """
        timeout_s = suspend_timeout_s + request_timeout_s
        async with contextlib.AsyncExitStack() as stack:
            client: Asker
            addresses = addresses_in(address, more)
            if isinstance(addresses, tuple):
                client = await stack.enter_async_context(
                    open_remoting_client(
                        addresses,
                        connect_timeout_s=connect_timeout_s,
                        request_timeout_s=timeout_s,
                        access_key=access_key,
                        tls=tls,
                    )
                )
            else:
                client = await stack.enter_async_context(
                    open_reader_link(
                        addresses,
                        connect_timeout_s=connect_timeout_s,
                        request_timeout_s=timeout_s,
                        failover_timeout_s=failover_timeout_s,
                        on_failover=on_failover,
                        access_key=access_key,
                        tls=tls,
                    )
                )
            nursery = await stack.enter_async_context(block_nursery())
            outside = env or real_env()
            consumer = cls(client, nursery, suspend_timeout_s, outside)
            if isinstance(client, ReaderLink):
                client.on_reconnect = consumer._membership.rejoin
                consumer._groups = ReaderGroups(client, outside, nursery)
            nursery.start_soon(consumer._membership.run)
            yield consumer
            await consumer._finish(request_timeout_s)

    # -- streams ---------------------------------------------------------------------------------

    def messages(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: ConsumeFrom | None = None,
        tags: str = "*",
        queue_ids: Sequence[int] | None = None,
        until_end: bool = False,
        count_max: int = COUNT_MAX,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        raw_bodies: bool = False,
    ) -> MessageStream:
        """Return a stream over a topic's queues (all of them, or ``queue_ids``).

        With several groups: over the queues of each; ``queue_ids`` are of the first group only.

        ``start`` None: the group's committed offset, or the beginning without a group.  ``tags``:
        ``*`` or ``A || B``.  ``until_end``: the stream ends where the queues end now; otherwise it
        waits for more.  Compressed bodies are decoded, unless ``raw_bodies``; a message whose body
        cannot be decoded says why (``body_fault``).  The stream raises the errors; this raises
        ConfigError only.
        """
        start = start or (ConsumeFrom.beginning() if group is None else ConsumeFrom.stored())
        if start.needs_group and group is None:
            msg = "only a group has stored offsets, and there is none here"
            raise ConfigError(msg, hint="name a group, or another start")
        settings = StreamSettings(
            topic=topic,
            group=group,
            start=start,
            tags=tags,
            queue_ids=queue_ids,
            until_end=until_end,
            count_max=count_max,
            suspend_timeout_ms=self._suspend_timeout_ms,
            commit_interval_s=commit_interval_s,
            raw_bodies=raw_bodies,
        )
        stream = MessageStream(self._client, settings, self._membership, self._groups)
        self._streams.append(stream)
        self._nursery.start_soon(stream.run)
        return stream

    async def _finish(self, timeout_s: float) -> None:
        """End the streams; commit all messages that the caller took."""
        for stream in self._streams:
            stream.close()
            stream.handled()
            with trio.move_on_after(timeout_s):
                await stream.commit()
        with trio.move_on_after(timeout_s):
            await self._membership.leave()
            for reader in () if self._groups is None else self._groups.readers.values():
                if reader.membership is not None:
                    await reader.membership.leave()

    # -- single pulls ----------------------------------------------------------------------------

    async def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        group: str | None = None,
        tags: str = "*",
        count_max: int = COUNT_MAX,
        suspend_timeout_s: float = 0.0,
        raw_bodies: bool = False,
    ) -> PullResult:
        """Pull messages of one queue once; ``raw_bodies`` as for ``messages``.

        ``suspend_timeout_s`` (at most that of ``connect``) is how long the node waits for a message
        if there is none.  Raises as ``pull_client.pull`` does.
        """
        suspend_ms = min(round(suspend_timeout_s * 1000), self._suspend_timeout_ms)
        request = PullRequest(
            group=group or NO_GROUP,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            suspend_timeout_ms=suspend_ms,
            subscription=tags,
        )
        return await pull(self._client, request, raw_bodies=raw_bodies)
