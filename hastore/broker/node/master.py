"""A master: its parts, built and started in order, stopped in the reverse order.

::

    producers -> RemotingServer -> PutMessage -> CommitLog -> HAService -> slaves
                                                   |-> FlushManager -> disk

Start: bind the ports, open the store, run the services.  Clean stop: refuse new messages, flush,
answer the puts that wait, close.  A failed fdatasync is fail-stop: the services end at once, puts
that wait are answered UNKNOWN_ERROR, nothing more is acknowledged, ``abort`` stays, and
``run_master`` raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs
import trio

from hastore.broker.delay.schedule_message_service import ScheduleMessageService
from hastore.broker.expiry.expiry import make_expiry
from hastore.broker.node.dispatching import make_dispatching
from hastore.broker.node.master_status import master_status
from hastore.broker.node.node import STOP_TIMEOUT_S, RunningNode
from hastore.broker.observe.explanation import explain
from hastore.broker.observe.metrics_server import MetricsServer, open_metrics
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.puts.append_sampler import AppendSampler
from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.broker.puts.pending_puts import PendingPuts
from hastore.broker.puts.put_message import PutMessage
from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.service import as_itself, is_only_cancelled
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.flush_manager import FlushManager
from hastore.ha.ha_service import HAService
from hastore.ha.refused_slaves import RefusedSlavesFile
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore.store.message_store import MessageStore
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.config import MasterConfig
    from hastore.env.interface import Env
    from hastore.message import Message, PutMessageResult
    from hastore.store.commit_log import CommitLog

ANSWER_TIMEOUT_S = 1.0

_log = logger("broker")


@final
@attrs.define(eq=False, kw_only=True)
class Master(RunningNode):
    """A running master, made by ``hastore.open_master`` or ``run_master``."""

    config: MasterConfig
    ha_service: HAService
    put_message: PutMessage
    ha_address: tuple[str, int]
    schedule_message_service: ScheduleMessageService = attrs.field(init=False)
    _state: str = attrs.field(default="serving", init=False)

    def __attrs_post_init__(self) -> None:
        """Make the services that need only the other parts."""
        env, store, puts = self.env, self.message_store, self.put_message
        reput = self.reput_message_service
        self.expiry = make_expiry(
            env,
            store,
            reput,
            ha_service=self.ha_service,
            on_disk_full=puts.set_disk_full,
            flush_queues=self.dispatching.flush_service.flush,
        )
        self.schedule_message_service = ScheduleMessageService(
            env, store, store.config, puts.submit, lambda: reput.behind
        )
        reput.subscribe(self.schedule_message_service.on_dispatched)

    @property
    def role(self) -> BrokerRole:
        """SYNC_MASTER or ASYNC_MASTER."""
        return self.config.role

    def submit(self, message: Message) -> GroupCommitRequest:
        """Append ``message`` now, without waiting.

        The request's ``status`` is None until flush and slaves are done with it; ``await
        request.wait()`` waits until then.  To limit the puts in flight, wait for the oldest.
        """
        return self.put_message.submit(message)

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Append messages of one topic and queue as consecutive records, all or none."""
        return self.put_message.submit_batch(messages)

    async def put(self, message: Message) -> PutMessageResult:
        """Append ``message`` and wait for its status.

        Cancelling the wait leaves the message in the log and its outcome unknown.
        """
        request = self.put_message.submit(message)
        await request.wait()
        result = request.result
        assert result is not None
        return result

    async def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append a batch (``submit_batch``) and wait for its one status."""
        request = self.put_message.submit_batch(messages)
        await request.wait()
        result = request.result
        assert result is not None
        return result

    def status(self) -> NodeStatus:
        """Return a snapshot of this master and its slaves."""
        return master_status(
            self,
            self.ha_service,
            self.put_message,
            role=self.role,
            ha_address=self.ha_address,
            state=self._state,
        )

    def explain(self, last: int) -> dict[str, Any]:
        """Explain the last puts that were not PUT_OK."""
        return explain(
            self.status(),
            self.put_message.decisions,
            last,
            slave_timeout_ms=self.config.ha.slave_timeout_ms,
        )

    def fail(self, error: BaseException) -> None:
        """Stop at once: refuse and acknowledge nothing more, decide all puts UNKNOWN_ERROR."""
        reason = f"this master has stopped: {error}"
        self._state = "failed"
        self.put_message.stop(reason)
        self._answer(reason, failed=True)
        self.ha_service.disconnect_all(reason)

    async def finish(self) -> None:
        """Refuse new messages, flush, and answer the puts that wait.

        If the disk hangs, they are answered after STOP_TIMEOUT_S.  Raises the error of the last
        flush.
        """
        reason = "the master is stopping"
        self._state = "stopping"
        self.put_message.stop(reason)

        async def answer_in_time() -> None:
            await trio.sleep(STOP_TIMEOUT_S)
            self._answer(reason, failed=False)

        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer_in_time)
                error = await self.last_flush()
                nursery.cancel_scope.cancel()
        if error is not None:
            self.fail(error)
            raise error
        self._answer(reason, failed=False)

    def _answer(self, reason: str, *, failed: bool) -> None:
        unknown = PutMessageStatus.UNKNOWN_ERROR
        slave = unknown if failed else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        disk = unknown if failed else PutMessageStatus.FLUSH_DISK_TIMEOUT
        self.flush_manager.fail_all(disk, reason)
        self.ha_service.group_transfer_service.fail_all(slave, reason)


async def run_master(
    config: MasterConfig,
    env: Env,
    *,
    on_built: Callable[[Master], None] = lambda _master: None,
    task_status: trio.TaskStatus[Master] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a master until cancelled; ``nursery.start`` returns it once it serves.

    ``on_built`` gets it before any of its services runs; it must not block or raise.  Raises
    HastoreError if it cannot start or must not continue.
    """
    async with open_metrics(config.metrics_listen) as metrics:
        await _run(config, env, metrics, on_built, task_status)


async def _run(
    config: MasterConfig,
    env: Env,
    metrics: MetricsServer,
    on_built: Callable[[Master], None],
    task_status: trio.TaskStatus[Master],
) -> None:
    listeners: list[trio.socket.SocketType] = []
    message_store: MessageStore | None = None
    flush_manager: FlushManager | None = None
    clean = False
    try:
        ha_listener = await open_listener(config.ha_listen, "slaves (the HA port)")
        listeners.append(ha_listener)
        client_listener = None
        if config.listen is not None:
            client_listener = await open_listener(config.listen, "clients")
            listeners.append(client_listener)
        store_host = bound_address(client_listener or ha_listener)
        opened = await env.offload.run(lambda: _open(config, env, store_host))
        message_store, refused_slaves = opened
        await _make_first_file(env, message_store.commit_log)
        master = _build(
            config,
            env,
            message_store,
            refused_slaves,
            ha_address=bound_address(ha_listener),
            address=None if client_listener is None else bound_address(client_listener),
            metrics_address=metrics.address,
        )
        flush_manager = master.flush_manager
        metrics.serve(master)
        on_built(master)
        with as_itself():
            await _serve(master, ha_listener, client_listener, task_status)
        clean = True
    except BaseException as error:
        clean = is_only_cancelled(error)
        raise
    finally:
        for listener in listeners:
            listener.close()
        if flush_manager is not None:
            flush_manager.close()
        if message_store is not None:
            commit_log = message_store.commit_log
            clean = clean and commit_log.flushed_offset == commit_log.max_offset
            message_store.close(clean=clean)


def _open(
    config: MasterConfig, env: Env, store_host: tuple[str, int]
) -> tuple[MessageStore, RefusedSlavesFile]:
    """Open the store and the table of refused slaves; blocks."""
    message_store = MessageStore.open(
        env, config.store, store_host=store_host, needs_queue_offsets=True
    )
    return message_store, RefusedSlavesFile.load(env, config.store.data_dir)


async def _make_first_file(env: Env, commit_log: CommitLog) -> None:
    """Create an empty log's first file, so that a disk without room for it fails the start."""
    queue = commit_log.mapped_file_queue
    if queue.files or queue.wanted_file_offset() is None:
        return
    file_from_offset = commit_log.max_offset
    queue.offer(await env.offload.run(lambda: queue.create_file(file_from_offset)))


def _build(
    config: MasterConfig,
    env: Env,
    message_store: MessageStore,
    refused_slaves: RefusedSlavesFile,
    *,
    ha_address: tuple[str, int],
    address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
) -> Master:
    commit_log = message_store.commit_log
    is_sync_master = config.role is BrokerRole.SYNC_MASTER
    dispatch = WaitNotifyObject()
    decisions = DecisionLog(describe=lambda _status, _offset: ha_service.standing())
    ha_service = HAService(
        env,
        commit_log,
        config.ha,
        refused_slaves,
        decisions,
        on_acknowledged=dispatch.wakeup,
        gathers=config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
    )
    dispatching = make_dispatching(
        env,
        message_store,
        ConfirmOffset(commit_log, config.store, ha_service if is_sync_master else None),
        dispatch,
    )

    def committed() -> None:
        ha_service.notify_appended()
        dispatch.wakeup()

    flush_manager = FlushManager(
        env,
        commit_log,
        config.store,
        dispatching.checkpoint_flusher,
        on_flushed=lambda _offset: dispatch.wakeup(),
        on_committed=committed,
        on_failed=lambda error: master.fail(error),  # noqa: PLW0108 - made below
    )
    allocate_service = AllocateMappedFileService(env, commit_log.mapped_file_queue, config.store)
    put_message = PutMessage(
        commit_log,
        flush_manager,
        ha_service,
        config.store,
        is_sync_master,
        PendingPuts(config.store, allocate_service),
        AppendSampler(ha_service.end_history),
        decisions,
        dispatch.wakeup,
    )
    master = Master(
        config=config,
        env=env,
        message_store=message_store,
        flush_manager=flush_manager,
        allocate_service=allocate_service,
        ha_service=ha_service,
        put_message=put_message,
        dispatching=dispatching,
        ha_address=ha_address,
        address=address,
        metrics_address=metrics_address,
    )
    return master


async def _serve(
    master: Master,
    ha_listener: trio.socket.SocketType,
    client_listener: trio.socket.SocketType | None,
    task_status: trio.TaskStatus[Master],
) -> None:
    """Run the services until a stop is requested or they are cancelled; answer waiting puts."""
    server = None
    server_ended = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(master.flush_manager.run)
            nursery.start_soon(master.allocate_service.run)
            nursery.start_soon(master.put_message.run)
            nursery.start_soon(master.dispatching.run)
            nursery.start_soon(master.expiry.run)
            nursery.start_soon(master.schedule_message_service.run)
            nursery.start_soon(_confirm_alone, master)
            nursery.start_soon(master.ha_service.run, ha_listener)
            if client_listener is not None:
                server = RemotingServer(
                    master.env,
                    master.config.remoting,
                    master,
                    [client_listener],
                    data_dir=master.config.store.data_dir,
                )
                master.reput_message_service.subscribe(server.on_dispatched, server.has_held_pulls)
                await nursery.start(_run_server, server, server_ended)
            _log.info(
                "master_serving",
                ha_address=describe(master.ha_address),
                address=describe(master.address),
                max_offset=master.max_offset,
            )
            task_status.started(master)
            await master.stop_requested()
            await master.finish()
            if server is not None:  # the answers are sent before connections close
                server.shut_down(ANSWER_TIMEOUT_S)
                await server_ended.wait()
            nursery.cancel_scope.cancel()
    except BaseException as error:
        if is_only_cancelled(error):
            await master.finish()
        else:
            master.fail(error)
        raise


async def _confirm_alone(master: Master) -> None:
    """Wake the dispatch once a master without slaves may confirm alone."""
    await trio.sleep(master.config.ha.slave_timeout_ms / 1000)
    master.reput_message_service.wakeup()


async def _run_server(
    server: RemotingServer,
    ended: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    try:
        await server.run(task_status=task_status)
    finally:
        ended.set()
