"""One connection to a node for a command's requests: many at a time, answers in order."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import trio

from hastore.client.admin import AdminClient
from hastore.client.group_membership import GroupMembership
from hastore.client.pull_client import NO_GROUP, PullResult, pull
from hastore.client.reader_groups import ReaderGroups
from hastore.client.reader_link import ReaderLink, open_reader_link
from hastore.client.remoting_client import (
    REQUEST_TIMEOUT_S,
    Asker,
    block_nursery,
    open_remoting_client,
)
from hastore.client.route import read_topic_config
from hastore.env.real import real_env
from hastore.errors import AccessDeniedError, RequestFailedError
from hastore.quantities import format_address
from hastore.wire.pull_message import PullRequest
from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import client_tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from hastore.client.master_link import Failover
    from hastore.wire.config_tables import TopicConfig

_A = TypeVar("_A")
_T = TypeVar("_T")
ASKED_AT_A_TIME: Final = 64


@attrs.frozen
class NodeClient:
    """A connected node: administration, membership in a group, and pulls."""

    client: Asker
    admin: AdminClient
    membership: GroupMembership
    group_name: str | None = None  # the replica group; None: it is the addresses', or in none

    @property
    def address(self) -> str:
        """``HOST:PORT``, for texts."""
        return format_address(self.client.address)

    async def topic(self, name: str) -> TopicConfig:
        """Return a topic's configuration.  Raises RequestFailedError if the node has none.

        All topics are an admin's to list; other keys learn the queues from the topic's route.
        """
        try:
            config = (await self.admin.topics()).get(name)
        except AccessDeniedError:
            return read_topic_config(await self.admin.route(name), name)
        if config is None:
            raise RequestFailedError(
                f"topic {name} does not exist on {self.address}",
                code=ResponseCode.TOPIC_NOT_EXIST,
                hint=f"list the topics: hastore topic list --addr {self.address};"
                f" the first message creates one: hastore produce {name}",
            )
        return config

    async def queue_range(self, topic: str, queue_id: int) -> range:
        """Return the offsets of the messages that a queue holds."""
        low = await self.admin.min_offset(topic, queue_id)
        return range(low, await self.admin.max_offset(topic, queue_id))

    async def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        group: str | None = None,
        tags: str = "*",
        count_max: int = 256,
        suspend_s: float = 0,
    ) -> PullResult:
        """Pull messages of a queue once; the node may hold the request for ``suspend_s``.

        Bodies are as stored: the command decodes each when it prints it.
        """
        request = PullRequest(
            group=group or NO_GROUP,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            suspend_timeout_ms=round(suspend_s * 1000),
            subscription=tags,
        )
        return await pull(self.client, request, raw_bodies=True)


@contextlib.asynccontextmanager
async def connect_node(
    address: tuple[str, int], *, suspend_s: float = 0
) -> AsyncIterator[NodeClient]:
    """Connect for the block.  Raises UnreachableError if the node does not answer."""
    timeout_s = REQUEST_TIMEOUT_S + suspend_s
    async with open_remoting_client(
        address, request_timeout_s=timeout_s, access_key=access_key(), tls=client_tls()
    ) as client:
        yield NodeClient(client, AdminClient(client), GroupMembership(client, real_env()))


@contextlib.asynccontextmanager
async def connect_group(
    addresses: list[tuple[str, int]],
    *,
    suspend_s: float = 0,
    failover_timeout_s: float,
    on_failover: Callable[[Failover], None],
) -> AsyncIterator[NodeClient]:
    """Read from the master of these nodes, or a slave, for the block.

    Raises UnreachableError if none answers, AccessDeniedError if all deny access.
    """
    async with open_reader_link(
        addresses,
        request_timeout_s=REQUEST_TIMEOUT_S + suspend_s,
        failover_timeout_s=failover_timeout_s,
        on_failover=on_failover,
        access_key=access_key(),
        tls=client_tls(),
    ) as link:
        membership = GroupMembership(link, real_env())
        link.on_reconnect = membership.rejoin
        yield NodeClient(link, AdminClient(link), membership)


@final
@attrs.define(eq=False)
class OtherGroups:
    """The groups of a cluster besides the one of the addresses; None: there are none."""

    groups: ReaderGroups | None = None
    _nodes: dict[str, NodeClient] = attrs.field(factory=dict, init=False)

    async def with_topic(self, topic: str) -> list[NodeClient]:
        """Return what reads from each that has a topic and can be reached.

        The same as before for a group that was there before, and whose link is intact.  Raises
        UnreachableError if the group of the addresses cannot be asked.
        """
        if self.groups is None:
            return []
        nodes = {}
        for name, reader in (await self.groups.others(topic)).items():
            node = self._nodes.get(name)
            if node is None or node.client is not reader.client:
                assert reader.membership is not None, "each link to a group has one"
                admin = AdminClient(reader.client)
                node = NodeClient(reader.client, admin, reader.membership, name)
            nodes[name] = node
        self._nodes = nodes
        return list(nodes.values())

    @property
    def unreachable(self) -> dict[str, str]:
        """Why groups with the topic could not be reached the last time, by name."""
        return {} if self.groups is None else self.groups.unreachable


@contextlib.asynccontextmanager
async def with_other_groups(node: NodeClient) -> AsyncIterator[OtherGroups]:
    """Keep links to the other groups of a cluster while the block runs, as they are asked for."""
    async with block_nursery() as nursery:
        link = node.client
        if isinstance(link, ReaderLink):
            yield OtherGroups(ReaderGroups(link, real_env(), nursery))
        else:
            yield OtherGroups()


async def gather(ask: Callable[[_A], Awaitable[_T]], about: Sequence[_A]) -> list[_T]:
    """Return the answers about all of ``about``, in order; asks ``ASKED_AT_A_TIME`` at a time."""
    answers: dict[int, _T] = {}
    limiter = trio.CapacityLimiter(ASKED_AT_A_TIME)

    async def ask_about(at: int) -> None:
        async with limiter:
            answers[at] = await ask(about[at])

    async with trio.open_nursery() as nursery:
        for at in range(len(about)):
            nursery.start_soon(ask_about, at)
    return [answers[at] for at in range(len(about))]
