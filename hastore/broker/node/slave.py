"""A slave: a store, the HAClient that fills it, and a client port.

Consumers read from it; puts are answered SERVICE_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs
import trio

from hastore.broker.expiry.expiry import make_expiry
from hastore.broker.node.dispatching import make_dispatching
from hastore.broker.node.node import RunningNode
from hastore.broker.node.slave_status import slave_status
from hastore.broker.observe.metrics_server import MetricsServer, open_metrics
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.concurrency.recent_least import RecentLeast
from hastore.concurrency.service import as_itself, is_only_cancelled
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import RequestFailedError, WrongPortError
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.flush_manager import FlushManager
from hastore.ha.ha_client import HAClient
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.message_store import MessageStore
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.ha.client_port import AskClientPort
    from hastore.message import Message
    from hastore.store.queue.consume_queue import ConsumeQueue

_log = logger("broker")


@final
@attrs.define(eq=False, kw_only=True)
class Slave(RunningNode):
    """A running slave, made by ``hastore.open_slave`` or ``run_slave``."""

    config: SlaveConfig
    ha_client: HAClient
    # The least age of the records dispatched lately, in seconds.
    record_ages: RecentLeast = attrs.field(factory=RecentLeast, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the expiry, which needs only the other parts."""
        self.reput_message_service.subscribe(self._record_age)
        self.expiry = make_expiry(
            self.env,
            self.message_store,
            self.reput_message_service,
            flush_queues=self.dispatching.flush_service.flush,
        )

    def _record_age(self, _queues: Sequence[ConsumeQueue]) -> None:
        newest_ms = self.reput_message_service.dispatched_timestamp_ms
        age_s = (self.env.wall_clock.now_ms() - newest_ms) / 1000
        self.record_ages.record(age_s, trio.current_time())

    @property
    def role(self) -> BrokerRole:
        """Always SLAVE."""
        return BrokerRole.SLAVE

    @property
    def flushed_offset(self) -> int:
        """The end of what has been forced to disk (exclusive)."""
        return self.commit_log.flushed_offset

    def submit(self, message: Message) -> GroupCommitRequest:
        """Refuse: only a master takes messages."""
        return self._refused(message.topic, message.queue_id)

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Refuse as ``submit`` does, also a batch without messages."""
        return self.submit(messages[0]) if messages else self._refused("", 0)

    def _refused(self, topic: str, queue_id: int) -> GroupCommitRequest:
        request = GroupCommitRequest(topic, queue_id)
        reason = f"this node is a slave of {describe(self.config.master)}; send to its master"
        request.decide(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        return request

    def status(self) -> NodeStatus:
        """Return a snapshot of this slave."""
        return slave_status(self, self.ha_client, self.record_ages)

    def explain(self, last: int) -> dict[str, Any]:  # noqa: ARG002 - a master's signature
        """Raise RequestFailedError: a slave decides no puts."""
        raise RequestFailedError(
            f"{self.name} is a slave: its master decides about puts",
            code=ResponseCode.SERVICE_NOT_AVAILABLE,
            hint=f"ask the client port of the node whose HA port is {describe(self.config.master)}",
        )


async def run_slave(
    config: SlaveConfig,
    env: Env,
    *,
    ask_client_port: AskClientPort | None = None,
    task_status: trio.TaskStatus[Slave] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a slave until cancelled; ``nursery.start`` returns it once it serves.

    It serves while its master is away, and tries to connect again.  ``ask_client_port`` asks for
    the master's file size, and whether ``master`` is an HA port; None: do not ask.  Raises
    HastoreError if it cannot start, WrongPortError, and FlushFailedError when the disk fails.
    """
    async with open_metrics(config.metrics_listen) as metrics:
        await _run(config, env, metrics, ask_client_port, task_status)


async def _run(
    config: SlaveConfig,
    env: Env,
    metrics: MetricsServer,
    ask_client_port: AskClientPort | None,
    task_status: trio.TaskStatus[Slave],
) -> None:
    listener: trio.socket.SocketType | None = None
    message_store: MessageStore | None = None
    flush_manager: FlushManager | None = None
    clean = False
    try:
        if config.listen is not None:
            listener = await open_listener(config.listen, "clients")
        store_host = config.master if listener is None else bound_address(listener)
        message_store = await env.offload.run(
            lambda: MessageStore.open(
                env, config.store, store_host=store_host, needs_queue_offsets=False
            )
        )
        slave = _build(
            config,
            env,
            message_store,
            ask_client_port,
            address=None if listener is None else bound_address(listener),
            metrics_address=metrics.address,
        )
        flush_manager = slave.flush_manager
        metrics.serve(slave)
        with as_itself():
            await _serve(slave, listener, task_status)
        clean = True
    except BaseException as error:
        clean = is_only_cancelled(error) or isinstance(error, WrongPortError)
        raise
    finally:
        if listener is not None:
            listener.close()
        if flush_manager is not None:
            flush_manager.close()
        if message_store is not None:
            commit_log = message_store.commit_log
            clean = clean and commit_log.flushed_offset == commit_log.max_offset
            message_store.close(clean=clean)


def _build(
    config: SlaveConfig,
    env: Env,
    message_store: MessageStore,
    ask_client_port: AskClientPort | None,
    *,
    address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
) -> Slave:
    commit_log = message_store.commit_log
    dispatch = WaitNotifyObject()
    dispatching = make_dispatching(
        env,
        message_store,
        ConfirmOffset(commit_log, config.store),
        dispatch,
        on_bad_record=lambda offset, what: ha_client.damaged(offset, what),  # noqa: PLW0108 - made below
    )
    reput = dispatching.reput_message_service

    def flushed(_offset: int) -> None:
        ha_client.notify_flushed()
        dispatch.wakeup()

    flush_manager = FlushManager(
        env,
        commit_log,
        config.store,
        dispatching.checkpoint_flusher,
        store_timestamp_ms=lambda: reput.dispatched_timestamp_ms,
        on_flushed=flushed,
    )
    allocate_service = AllocateMappedFileService(env, commit_log.mapped_file_queue, config.store)
    ha_client = HAClient(
        env,
        config,
        commit_log,
        flush_manager,
        allocate_service,
        dispatch.wakeup,
        lambda: reput.last_message_offset,
        ask_client_port,
    )
    return Slave(
        config=config,
        env=env,
        message_store=message_store,
        flush_manager=flush_manager,
        allocate_service=allocate_service,
        ha_client=ha_client,
        dispatching=dispatching,
        address=address,
        metrics_address=metrics_address,
    )


async def _serve(
    slave: Slave,
    listener: trio.socket.SocketType | None,
    task_status: trio.TaskStatus[Slave],
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.flush_manager.run)
            nursery.start_soon(slave.allocate_service.run)
            nursery.start_soon(slave.ha_client.run)
            nursery.start_soon(slave.dispatching.run)
            nursery.start_soon(slave.expiry.run)
            if listener is not None:
                server = RemotingServer(
                    slave.env,
                    slave.config.remoting,
                    slave,
                    [listener],
                    data_dir=slave.config.store.data_dir,
                )
                slave.reput_message_service.subscribe(server.on_dispatched, server.has_held_pulls)
                await nursery.start(server.run)
            _log.info("slave_serving", master=describe(slave.config.master), at=slave.max_offset)
            task_status.started(slave)
            await slave.stop_requested()
            nursery.cancel_scope.cancel()
    except BaseException as error:
        if is_only_cancelled(error):
            failure = await slave.last_flush()
            if failure is not None:
                raise failure from None
        raise
    failure = await slave.last_flush()
    if failure is not None:
        raise failure
