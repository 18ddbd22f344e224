"""A node for the remoting server that stores nothing: it counts puts and decides on request."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import attrs
import trio

from hastore.broker.clock.clock_readings import ClockReadings
from hastore.broker.group_directory import GroupDirectory
from hastore.broker.observe.node_status import NodeStatus
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.quotas import QuotaRefusals
from hastore.broker.request_target import RoleControl
from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.config import RemotingConfig, StoreConfig
from hastore.env.real import real_env
from hastore.status import AppendMessageStatus, BrokerRole, PutMessageStatus
from hastore.store.record.append_message_result import AppendMessageResult
from tests.support.nodes.configs import ANY_PORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hastore.broker.access.node_access import NodeAccess
    from hastore.concurrency.lease import Lease
    from hastore.message import Message
    from hastore.store.log.cold_read import ReadSteps
    from hastore.store.message_store import MessageStore
    from hastore.tls.tls_contexts import TlsContexts
    from hastore.wire.config_tables import DeletedTopic

NO_STORE = cast(
    "MessageStore",
    SimpleNamespace(
        consume_queues=(),
        config=StoreConfig(data_dir="unused"),
        commit_log=SimpleNamespace(max_offset=0),
        earliest_time_steps=lambda: _no_steps(-1),
    ),
)
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def _no_steps(result: int) -> ReadSteps[int]:
    """Return a read that is done without reading."""
    yield from ()
    return result


def _broker_name(target: InMemoryTarget) -> str:
    """Return the name in routes: the group's, in one."""
    return target.replica_group or "hastore-a"


@attrs.define(eq=False)
class InMemoryTarget:
    """Decides each put at once with ``answer``, or (``answer`` None) when ``release`` is called."""

    answer: PutMessageStatus | None = PutMessageStatus.PUT_OK
    reason: str | None = None
    role: BrokerRole = BrokerRole.SYNC_MASTER
    name: str = "hastore-a"
    replica_group: str | None = None
    node_id: int | None = None  # in the group
    epoch: int | None = None  # of the group
    broker_name: str = attrs.field(default=attrs.Factory(_broker_name, takes_self=True))
    cluster: str = "DefaultCluster"
    address: tuple[str, int] | None = ("127.0.0.1", 10911)
    messages: list[Message] = attrs.field(factory=list)
    batches: list[int] = attrs.field(factory=list)
    held: list[GroupCommitRequest] = attrs.field(factory=list)
    decisions: DecisionLog = attrs.field(factory=DecisionLog)
    keep: bool = True
    role_control: RoleControl | None = None
    directory: GroupDirectory | None = None
    message_store: MessageStore = NO_STORE
    peer_clocks: ClockReadings = attrs.field(factory=lambda: ClockReadings(real_env().wall_clock))
    quota_refusals: QuotaRefusals = attrs.field(factory=QuotaRefusals)
    dispatched_offset: int = 0
    _next_offset: int = 0

    @property
    def takes_puts(self) -> bool:
        """Whether it is a master."""
        return self.role is not BrokerRole.SLAVE

    @property
    def counts(self) -> dict[PutMessageStatus, int]:
        """The number of puts with each status."""
        return self.decisions.counts

    def submit(self, message: Message) -> GroupCommitRequest:
        """Take one message."""
        if self.keep:
            self.messages.append(message)
        return self._append(message, (self._next_offset,))

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Take a batch."""
        self.messages.extend(messages)
        self.batches.append(len(messages))
        begin = self._next_offset
        return self._append(messages[0], tuple(begin + 100 * n for n in range(len(messages))))

    def _append(self, first: Message, offsets: tuple[int, ...]) -> GroupCommitRequest:
        request = GroupCommitRequest(first.topic, first.queue_id, self.decisions)
        self._next_offset = offsets[-1] + 100
        request.append_result = AppendMessageResult(
            AppendMessageStatus.PUT_OK,
            offsets[0],
            self._next_offset,
            offsets[0] // 100,
            len(offsets),
            1_700_000_000_000,
            STORE_HOST,
            offsets if len(offsets) > 1 else None,
        )
        if self.answer is None:
            self.held.append(request)
        else:
            request.decide(self.answer, self.reason)
        return request

    def release(self, status: PutMessageStatus = PutMessageStatus.PUT_OK) -> None:
        """Decide all held puts."""
        held, self.held = self.held, []
        for request in held:
            request.decide(status, self.reason)

    async def delete_queues(self, deleted: Callable[[], Mapping[str, DeletedTopic]]) -> None:
        """Ignore it: there are no queues."""

    def status(self) -> NodeStatus:
        """Return a status like that of a node."""
        return NodeStatus(
            name=self.name,
            replica_group=self.replica_group,
            node_id=self.node_id,
            epoch=self.epoch,
            cluster=self.cluster,
            role=self.role.value,
            state="serving",
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            data_dir="/data",
            process_id=1,
            uptime_s=93784.0,
            mapped_file_size=1 << 30,
            mapped_files=1,
            flush_disk_type="ASYNC_FLUSH",
            min_offset=0,
            max_offset=self._next_offset,
            flushed_offset=0,
            disk_free_bytes=1,
            put_counts={status.value: count for status, count in self.counts.items()},
        )

    def found_damage(self, _physic_offset: int, _what: str) -> None:
        """Ignore it: there is no log."""

    def has_peer_at(self, _host: str) -> bool:
        """Whether a slave is connected from there: none is."""
        return False

    def delay_offsets(self) -> dict[int, int]:
        """Return the same offsets always."""
        return {1: 5}

    def explain(self, last: int) -> dict[str, Any]:
        """Refuse, as it explains no puts."""
        raise NotImplementedError


@contextlib.asynccontextmanager
async def serving(
    target: InMemoryTarget,
    config: RemotingConfig | None = None,
    *,
    lease: Lease | None = None,
    send_buffer_size: int | None = None,
    access: NodeAccess | None = None,
    tls: TlsContexts | None = None,
) -> AsyncIterator[tuple[RemotingServer, tuple[str, int]]]:
    """Serve ``target`` on a free loopback port during the block."""
    listener = await open_listener(ANY_PORT, "clients")
    if send_buffer_size is not None:
        listener.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, send_buffer_size)
    address = bound_address(listener)
    target.address = address
    config = config or RemotingConfig()
    server = RemotingServer(
        real_env(), config, target, [listener], lease=lease, access=access, tls=tls
    )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield server, address
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
