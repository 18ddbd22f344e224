"""A master: its parts, built and started in order, stopped in the reverse order.

::

    producers -> RemotingServer -> PutMessage -> CommitLog -> HAService -> slaves
                                                   |-> FlushManager -> disk

Start: bind the ports, open the store, run the services.  Clean stop: refuse new messages, flush,
answer the puts that wait, close.  A failed fdatasync is fail-stop, and so is a file that is no
longer at its name: the services end at once, puts that wait are answered UNKNOWN_ERROR, nothing
more is acknowledged, ``abort`` stays, and ``run_master`` raises.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

import attrs
import trio

from hastore.broker.access.node_access import open_access
from hastore.broker.delay.schedule_message_service import ScheduleMessageService
from hastore.broker.expiry.expiry import make_expiry
from hastore.broker.group_directory import MASTER_ID
from hastore.broker.naming.name_server_registration import register
from hastore.broker.node.dispatching import make_dispatching
from hastore.broker.node.master_status import master_status
from hastore.broker.node.master_store import open_master_store
from hastore.broker.node.name_watch import lost_at_stop, watch_names, watched_names
from hastore.broker.node.node import (
    ANSWER_TIMEOUT_S,
    STOP_TIMEOUT_S,
    RunningNode,
    unverified_log,
)
from hastore.broker.observe.explanation import explain
from hastore.broker.observe.metrics_server import open_metrics
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.puts.append_sampler import AppendSampler
from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.broker.puts.pending_puts import PendingPuts
from hastore.broker.puts.put_message import PutMessage
from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.peers import one_spelling
from hastore.concurrency.service import as_itself, is_only_cancelled
from hastore.concurrency.store_health import StoreHealth
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.env.recording_disk import recording
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.flush_manager import FlushManager
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.ha_service import HAService
from hastore.ha.ha_tls import HATls
from hastore.ha.set_proposal import NoCoordinator
from hastore.ha.set_rules import SetRules
from hastore.ha.sync_state_set import SyncStateSet
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore.store.node_identity import ConfirmMark
from hastore.tls.tls_contexts import watching_tls
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.node.master_store import MasterStore, Promotion, Term
    from hastore.broker.observe.metrics_server import MetricsServer
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.config import MasterConfig
    from hastore.env.interface import Env
    from hastore.ha.set_proposal import Coordinator
    from hastore.message import Message, PutMessageResult
    from hastore.store.commit_log import CommitLog
    from hastore.store.node_identity import NodeIdentity
    from hastore.tls.tls_contexts import TlsContexts

_log = logger("broker")


@final
@attrs.define(eq=False, repr=False, kw_only=True)
class Master(RunningNode):
    """A running master, made by ``hastore.open_master`` or ``run_master``."""

    config: MasterConfig
    ha_service: HAService
    put_message: PutMessage
    ha_address: tuple[str, int]
    observer_address: tuple[str, int] | None  # None: it has no such port
    identity: NodeIdentity | None = None  # None: it is in no replica group
    schedule_message_service: ScheduleMessageService = attrs.field(init=False)
    _state: str = attrs.field(default="serving", init=False)
    _stepped_down_because: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the services that need only the other parts."""
        env, store, puts = self.env, self.message_store, self.put_message
        reput = self.reput_message_service
        clock = self.watch_clock()
        store.commit_log.correct_time = clock.store_time_ms
        self.expiry = make_expiry(
            env,
            store,
            reput,
            clock=clock,
            health=self.store_health,
            keep_reserve=self.keep_reserve,
            ha_service=self.ha_service,
            on_disk_full=puts.set_disk_full,
            flush_queues=self.dispatching.flush_service.flush,
        )
        self.schedule_message_service = ScheduleMessageService(
            env,
            store,
            store.config,
            puts.submit,
            lambda: reput.behind,
            reput.confirm_offset,
            stores_confirmed_only=isinstance(self.ha_service, GroupHAService),
            health=self.store_health,
        )
        reput.subscribe(self.schedule_message_service.on_dispatched)

    @property
    def epoch(self) -> int | None:
        """The epoch of a replica group that it is the master of; None: it is in no group."""
        service = self.ha_service
        if isinstance(service, GroupHAService):
            return service.sync_state_set.entry.epoch
        return None

    @property
    def role(self) -> BrokerRole:
        """SYNC_MASTER or ASYNC_MASTER."""
        return self.config.role

    @property
    def takes_puts(self) -> bool:
        """Whether it serves: it is not stopping, and has neither failed nor given up its role.

        Nor does it hand its role over just now.
        """
        return self._state == "serving" and not self.put_message.is_held

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
        loan = self.ha_service.loan  # as wait_for, without a call
        if loan is None or not await loan.use(request):
            await request.wait()
        result = request.result
        assert result is not None
        return result

    async def wait_for(self, request: GroupCommitRequest) -> None:
        """Wait until a put of this master is decided; quicker than ``request.wait`` for a lone put.

        Cancelling the wait leaves the message in the log and its outcome unknown.
        """
        loan = self.ha_service.loan
        if loan is None or not await loan.use(request):
            await request.wait()

    async def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append a batch (``submit_batch``) and wait for its one status."""
        request = self.put_message.submit_batch(messages)
        await self.wait_for(request)
        result = request.result
        assert result is not None
        return result

    def status(self) -> NodeStatus:
        """Return a snapshot of this master and its slaves."""
        status = master_status(
            self,
            self.ha_service,
            self.put_message,
            role=self.role,
            ha_address=self.ha_address,
            observer_address=self.observer_address,
            state=self._state,
        )
        if self.identity is None:
            return status
        return attrs.evolve(
            status,
            seen_epoch=self.identity.current.seen_epoch,
            unverified=unverified_log(self.identity),
        )

    def delay_offsets(self) -> dict[int, int]:
        """Return the delay offsets that slaves may copy."""
        return self.schedule_message_service.confirmed_offsets()

    def has_peer_at(self, host: str) -> bool:
        """Whether a slave is connected from a machine."""
        host = one_spelling(host)
        connections = self.ha_service.connections.values()
        return any(one_spelling(each.address[0]) == host for each in connections)

    def explain(self, last: int) -> dict[str, Any]:
        """Explain the last puts that were not PUT_OK."""
        return explain(
            self.status(),
            self.put_message.decisions,
            last,
            slave_timeout_ms=self.config.ha.slave_timeout_ms,
        )

    @property
    def has_stepped_down(self) -> bool:
        """Whether it has given up its role."""
        return self._stepped_down_because is not None

    def step_down(self, reason: str) -> None:
        """Cease to be master: refuse puts, and answer those that wait; ``stop`` follows.

        None of them is PUT_OK any more: the node's role, and with it the right to decide, is gone.
        """
        if self._stepped_down_because is not None:
            return
        self._stepped_down_because = reason
        self._state = "stopping"
        self.put_message.stop(reason)
        self._answer(reason, failed=False)  # first: the set that is left may confirm more
        self.ha_service.disconnect_all(reason)

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
        reason = self._stepped_down_because or "the master is stopping"
        self._state = "stopping"
        self.put_message.stop(reason)
        self.ha_service.hand_over()

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

    In a replica group its start begins a new epoch.  ``on_built`` gets the master before any of its
    services runs; it must not block or raise.  Raises HastoreError if it cannot start or must not
    continue.
    """
    env = recording(env)
    access = await open_access(config.access, env)
    async with (
        watching_tls(
            config.tls, env, is_used=config.has_tls, data_dir=config.store.data_dir
        ) as tls,
        open_metrics(config.metrics_listen, tls if config.metrics_tls else None) as metrics,
        open_ports(config) as ports,
    ):
        with watched_names(env, config.store.data_dir) as watched:
            await serve_master(
                config,
                watched,
                metrics,
                ports,
                access=access,
                tls=tls,
                on_built=on_built,
                announce=task_status.started,
            )


def _address_of(sock: trio.socket.SocketType | None) -> tuple[str, int] | None:
    return None if sock is None else bound_address(sock)


@final
@attrs.frozen(kw_only=True)
class Ports:
    """The listening sockets of a node, without that of its metrics, and their addresses as bound.

    The addresses stay when the sockets are closed: who still asks then is about to stop.
    """

    ha: trio.socket.SocketType
    client: trio.socket.SocketType | None
    observer: trio.socket.SocketType | None
    ha_address: tuple[str, int] = attrs.field(init=False)
    client_address: tuple[str, int] | None = attrs.field(init=False)
    observer_address: tuple[str, int] | None = attrs.field(init=False)

    @ha_address.default
    def _ha_address(self) -> tuple[str, int]:
        return bound_address(self.ha)

    @client_address.default
    def _client_address(self) -> tuple[str, int] | None:
        return _address_of(self.client)

    @observer_address.default
    def _observer_address(self) -> tuple[str, int] | None:
        return _address_of(self.observer)


@contextlib.asynccontextmanager
async def open_ports(config: MasterConfig) -> AsyncIterator[Ports]:
    """Listen while the block runs."""
    with contextlib.ExitStack() as listeners:
        ha = await open_listener(config.ha_listen, "slaves (the HA port)")
        listeners.callback(ha.close)
        client = None
        if config.listen is not None:
            client = await open_listener(config.listen, "clients")
            listeners.callback(client.close)
        observer = None
        if config.observer_listen is not None:
            observer = await open_listener(config.observer_listen, "observers")
            listeners.callback(observer.close)
        yield Ports(ha=ha, client=client, observer=observer)


async def serve_master(
    config: MasterConfig,
    env: Env,
    metrics: MetricsServer,
    ports: Ports,
    *,
    access: NodeAccess | None = None,
    tls: TlsContexts | None = None,
    identity: NodeIdentity | None = None,
    promotion: Promotion | None = None,
    coordinator: Callable[[Term], Coordinator] | None = None,
    advertised_ip: str | None = None,
    store_health: StoreHealth | None = None,
    on_built: Callable[[Master], None] = lambda _master: None,
    announce: Callable[[Master], None],
) -> None:
    """Open the store and serve until a stop is requested, or cancelled; then close the store.

    ``env`` is of ``watched_names``.  ``announce`` gets the master once it serves; ``identity`` is
    that of an earlier opening by this process.  Records and ids of messages have ``advertised_ip``
    with the client port; None: the address that it listens on.  Raises HastoreError if it cannot
    start or must not continue.
    """
    opened: MasterStore | None = None
    flush_manager: FlushManager | None = None
    clean = False
    try:
        host, port = ports.client_address or ports.ha_address
        store_host = advertised_ip or host, port
        opened = await env.offload.run(
            lambda: open_master_store(env, config, store_host, identity, promotion)
        )
        await _make_first_file(env, opened.message_store.commit_log)
        master = _build(
            config,
            env,
            opened,
            ports,
            metrics_address=metrics.address,
            store_health=store_health or StoreHealth(env.wall_clock.boot_s),
            access=access,
            tls=tls,
            coordinator=(
                None if coordinator is None or opened.term is None else coordinator(opened.term)
            ),
        )
        flush_manager = master.flush_manager
        metrics.serve(master)
        on_built(master)
        with as_itself():
            await _serve(master, ports, announce)
        clean = True
    except BaseException as error:
        clean = is_only_cancelled(error)
        raise
    finally:
        if flush_manager is not None:
            flush_manager.close()
        if opened is not None:
            commit_log = opened.message_store.commit_log
            clean = clean and commit_log.flushed_offset == commit_log.max_offset
            lost = lost_at_stop(env) if clean else None
            opened.message_store.close(clean=clean and lost is None)
            if lost is not None:
                raise lost


async def _make_first_file(env: Env, commit_log: CommitLog) -> None:
    """Create an empty log's first file, so that a disk without room for it fails the start."""
    queue = commit_log.mapped_file_queue
    if queue.files or queue.wanted_file_offset() is None:
        return
    file_from_offset = commit_log.max_offset
    queue.offer(await env.offload.run(lambda: queue.create_file(file_from_offset)))


def _make_ha_service(
    config: MasterConfig,
    env: Env,
    opened: MasterStore,
    decisions: DecisionLog,
    *,
    on_acknowledged: Callable[[], None],
    coordinator: Coordinator | None,
    tls: TlsContexts | None,
) -> HAService:
    """Return the service of a classic master, or of a replica group's."""
    ha_tls = HATls.of(tls, config.ha, env)
    commit_log, term = opened.message_store.commit_log, opened.term
    gathers = config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    if term is None:
        return HAService(
            env,
            commit_log,
            config.ha,
            opened.refused_slaves,
            decisions,
            on_acknowledged,
            gathers=gathers,
            tls=ha_tls,
        )
    return GroupHAService(
        env,
        commit_log,
        config.ha,
        opened.refused_slaves,
        decisions,
        on_acknowledged,
        gathers=gathers,
        tls=ha_tls,
        sync_state_set=_make_sync_state_set(config, commit_log, term, coordinator),
        epochs=term.epochs,
        state_file=term.state_file,
        coordinator=coordinator or NoCoordinator(),
        mark_confirmed=lambda offset: _mark_confirmed(term, offset),
        acked=opened.acked,
    )


def _mark_confirmed(term: Term, offset: int) -> None:
    """Raise the confirm mark of a master's own directory; blocks."""
    identity = term.identity
    identity.raise_confirm_mark(
        ConfirmMark(epoch=term.entry.epoch, offset=offset, master_uuid=identity.current.uuid)
    )


def _make_sync_state_set(
    config: MasterConfig, commit_log: CommitLog, term: Term, coordinator: Coordinator | None
) -> SyncStateSet:
    assert config.node_id is not None
    configured = None if config.group_ids is None else frozenset(config.group_ids)
    least = config.ha.min_in_sync_replicas
    return SyncStateSet(
        rules=SetRules(
            min_in_sync_replicas=1 if least is None else least,
            follows_ids=least is None and coordinator is not None,
            has_coordinator=coordinator is not None,
            configured_ids=configured,
            sync_state_timeout_s=config.ha.sync_state_timeout_ms / 1000,
        ),
        own_id=config.node_id,
        entry=term.entry,
        began=trio.current_time(),
        accepted=term.members,
        min_offset=commit_log.min_offset,
        confirm_offset=term.confirm_offset,
        in_sync_replicas=config.ha.in_sync_replicas,
        group_ids=term.group_ids or configured or frozenset(),
    )


def _build(
    config: MasterConfig,
    env: Env,
    opened: MasterStore,
    ports: Ports,
    *,
    metrics_address: tuple[str, int] | None,
    store_health: StoreHealth,
    access: NodeAccess | None,
    tls: TlsContexts | None,
    coordinator: Coordinator | None,
) -> Master:
    message_store = opened.message_store
    commit_log = message_store.commit_log
    store_health.torn_tables.update(message_store.torn_tables)
    is_sync_master = config.role is BrokerRole.SYNC_MASTER
    is_of_group = opened.term is not None
    dispatch = DispatchWake()
    decisions = DecisionLog(
        describe=lambda _status, _offset: ha_service.standing(),
        lease=None if coordinator is None else coordinator.lease,
    )
    ha_service = _make_ha_service(
        config,
        env,
        opened,
        decisions,
        on_acknowledged=dispatch.notify_confirmed,
        coordinator=coordinator,
        tls=tls,
    )
    confirms = ha_service if is_sync_master or is_of_group else None
    dispatching = make_dispatching(
        env,
        message_store,
        ConfirmOffset(commit_log, config.store, confirms),
        dispatch,
        health=store_health,
    )

    def committed() -> None:
        ha_service.notify_appended()
        dispatch.notify_confirmed()

    def flushed(_offset: int) -> None:
        ha_service.notify_flushed()
        dispatch.notify_confirmed()

    flush_manager = FlushManager(
        env,
        commit_log,
        config.store,
        dispatching.checkpoint_flusher,
        on_flushed=flushed,
        on_committed=committed,
        on_failed=lambda error: master.fail(error),  # noqa: PLW0108 - made below
    )
    allocate_service = AllocateMappedFileService(
        env, commit_log.mapped_file_queue, config.store, store_health
    )
    put_message = PutMessage(
        commit_log,
        flush_manager,
        ha_service,
        config.store,
        is_sync_master,
        PendingPuts(config.store, allocate_service),
        AppendSampler(ha_service.end_history),
        decisions,
        dispatch.start.wakeup,
    )
    if is_sync_master and isinstance(ha_service, GroupHAService):
        ha_service.subscribe(put_message.set_not_in_sync)
    master = Master(
        config=config,
        env=env,
        message_store=message_store,
        flush_manager=flush_manager,
        allocate_service=allocate_service,
        ha_service=ha_service,
        put_message=put_message,
        dispatching=dispatching,
        store_health=store_health,
        ha_address=ports.ha_address,
        observer_address=ports.observer_address,
        identity=None if opened.term is None else opened.term.identity,
        address=ports.client_address,
        metrics_address=metrics_address,
        access=access,
        tls=tls,
    )
    return master


async def _serve(master: Master, ports: Ports, announce: Callable[[Master], None]) -> None:
    """Run the services until a stop is requested or they are cancelled; answer waiting puts."""
    server = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_names, master.env, master.fail)
            nursery.start_soon(master.flush_manager.run)
            nursery.start_soon(master.allocate_service.run)
            nursery.start_soon(master.put_message.run)
            nursery.start_soon(master.dispatching.run)
            nursery.start_soon(master.expiry.run)
            nursery.start_soon(master.schedule_message_service.run)
            nursery.start_soon(_confirm_alone, master)
            nursery.start_soon(master.ha_service.run, ports.ha)
            if ports.observer is not None:
                assert isinstance(master.ha_service, GroupHAService), "the configuration says so"
                nursery.start_soon(master.ha_service.observers.run, ports.observer)
            if ports.client is not None:
                server = RemotingServer(
                    master.env,
                    master.config.remoting,
                    master,
                    [ports.client],
                    data_dir=master.config.store.data_dir,
                    lease=master.put_message.decisions.lease,
                    access=master.access,
                    tls=master.tls,
                    health=master.store_health,
                )
                master.reput_message_service.subscribe(
                    server.on_dispatched, server.is_dispatch_awaited
                )
                master.allocate_service.sheds_by(server.shed_idle)
                await nursery.start(server.run)
                register(nursery, master, server.data.topics, MASTER_ID, master.ha_address)
                if master.directory is not None:
                    master.directory.serves(server.data.topics)
            _log.info(
                "master_serving",
                ha_address=describe(master.ha_address),
                address=describe(master.address),
                max_offset=master.max_offset,
            )
            announce(master)
            await master.stop_requested()
            await master.finish()
            if server is not None:  # the answers are sent before connections close
                server.shut_down(ANSWER_TIMEOUT_S)
                await server.ended()
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
