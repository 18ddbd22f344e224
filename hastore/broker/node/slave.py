"""A slave: a store, the HAClient that fills it, and a client port.

Consumers read from it; puts are answered SERVICE_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs
import trio

from hastore.broker.access.node_access import open_access
from hastore.broker.expiry.expiry import make_expiry
from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.groups.slave_synchronize import RevivalNeededError, SlaveSynchronize
from hastore.broker.naming.name_server_registration import register, slave_id
from hastore.broker.node.dispatching import make_dispatching
from hastore.broker.node.log_comparison import LogComparison
from hastore.broker.node.name_watch import lost_at_stop, watch_names, watched_names
from hastore.broker.node.node import ANSWER_TIMEOUT_S, RunningNode
from hastore.broker.node.slave_status import slave_status
from hastore.broker.node.slave_store import cut_slave_store, open_slave_store, revive_topics
from hastore.broker.observe.metrics_server import MetricsServer, open_metrics
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.concurrency.recent_least import RecentLeast
from hastore.concurrency.service import as_itself, is_only_cancelled
from hastore.concurrency.store_health import StoreHealth
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.config import NO_MASTER
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.env.recording_disk import recording
from hastore.errors import (
    CutRefusedError,
    DiskError,
    DiskFullError,
    RequestFailedError,
    WrongPortError,
)
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.flush_manager import FlushManager
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.client_port import with_contexts
from hastore.ha.ha_client import HAClient
from hastore.ha.ha_tls import HATls
from hastore.ha.mark_keeper import MarkKeeper
from hastore.ha.slave_appender import CutNeededError
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.recovery.log_cut import Cuts
from hastore.tls.tls_contexts import watching_tls
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.node.dispatching import Dispatching
    from hastore.broker.node.slave_store import SlaveStore
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.ha.client_port import AskClientPort
    from hastore.message import Message
    from hastore.store.message_store import MessageStore
    from hastore.store.node_identity import NodeIdentity
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.recovery.log_cut import LogCut
    from hastore.tls.tls_contexts import TlsContexts

_log = logger("broker")


@attrs.frozen(kw_only=True)
class SlaveParts:
    """What a slave makes again whenever it opens its store."""

    message_store: MessageStore
    flush_manager: FlushManager
    allocate_service: AllocateMappedFileService
    ha_client: HAClient
    dispatching: Dispatching


@final
@attrs.define(eq=False, repr=False, kw_only=True)
class Slave(RunningNode):
    """A running slave, made by ``hastore.open_slave`` or ``run_slave``."""

    config: SlaveConfig
    ha_client: HAClient
    cuts: Cuts = attrs.field(factory=Cuts)
    ha_address: tuple[str, int] | None = None  # where it would serve slaves; None: nowhere
    slave_synchronize: SlaveSynchronize | None = attrs.field(default=None, init=False)
    log_comparison: LogComparison | None = attrs.field(default=None, init=False)
    # The least age of the records dispatched lately, in seconds.
    record_ages: RecentLeast = attrs.field(factory=RecentLeast, init=False)

    def __attrs_post_init__(self) -> None:
        """Connect the parts."""
        self._wire()

    def take(self, parts: SlaveParts) -> None:
        """Go on with the store as it was opened after a cut."""
        self.message_store = parts.message_store
        self.flush_manager = parts.flush_manager
        self.allocate_service = parts.allocate_service
        self.ha_client = parts.ha_client
        self.dispatching = parts.dispatching
        self.slave_synchronize = None  # until its tables are loaded again
        self._wire()

    def _wire(self) -> None:
        self.forget_cut_damage()
        self.reput_message_service.subscribe(self._record_age)
        self.expiry = make_expiry(
            self.env,
            self.message_store,
            self.reput_message_service,
            clock=self.watch_clock(),
            health=self.store_health,
            keep_reserve=self.keep_reserve,
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
    def last_cut(self) -> LogCut | None:
        """The newest cut of the log that is kept in ``trimmed/``; None: none."""
        return self.cuts.last

    @property
    def flushed_offset(self) -> int:
        """The end of what has been forced to disk (exclusive)."""
        return self.commit_log.flushed_offset

    @property
    def epoch(self) -> int | None:
        """None: it is master of none."""
        return None

    @property
    def takes_puts(self) -> bool:
        """False: its master does."""
        return False

    def submit(self, message: Message) -> GroupCommitRequest:
        """Refuse: only a master takes messages."""
        return self._refused(message.topic, message.queue_id)

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Refuse as ``submit`` does, also a batch without messages."""
        return self.submit(messages[0]) if messages else self._refused("", 0)

    def _refused(self, topic: str, queue_id: int) -> GroupCommitRequest:
        request = GroupCommitRequest(topic, queue_id)
        reason = f"this node is a slave of {describe(self.config.master)}; send to its master"
        if self.config.master == NO_MASTER:
            reason = "this node has no role in its replica group yet; send to the group's master"
        request.decide(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        return request

    def status(self) -> NodeStatus:
        """Return a snapshot of this slave."""
        copying, comparison = self.slave_synchronize, self.log_comparison
        status = slave_status(self, self.ha_client, self.record_ages, self.cuts)
        unverified = status.unverified
        if unverified is not None and comparison is not None:
            unverified = attrs.evolve(
                unverified,
                compared_to=comparison.identity.compared_to if comparison.reason is None else None,
                waits_because=comparison.reason,
            )
        return attrs.evolve(
            status,
            unverified=unverified,
            ha_address=None if self.ha_address is None else describe(self.ha_address),
            table_copies=None if copying is None else copying.status(),
        )

    def delay_offsets(self) -> dict[int, int]:
        """Return the copies of the master's delay offsets."""
        return {} if self.slave_synchronize is None else self.slave_synchronize.delay_offsets

    def has_peer_at(self, host: str) -> bool:  # noqa: ARG002 - a master's signature
        """Return False: what asks a slave does not replicate from it."""
        return False

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
    copies_tables: bool | None = None,
    task_status: trio.TaskStatus[Slave] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a slave until cancelled; ``nursery.start`` returns it once it serves.

    It serves while its master is away, and tries to connect again.  If its epochs demand a cut of
    its log, it closes its clients' connections, cuts, and serves again on the same ports: the
    ``Slave`` stays the same.  ``ask_client_port`` asks for the master's file size, and whether
    ``master`` is an HA port; None: do not ask.  ``copies_tables``: see ``SlaveRun``.  Raises
    HastoreError if it cannot start, WrongPortError, and FlushFailedError when the disk fails.
    """
    env = recording(env)
    access = await open_access(config.access, env)
    async with (
        watching_tls(
            config.tls, env, is_used=config.has_tls, data_dir=config.store.data_dir
        ) as tls,
        open_metrics(config.metrics_listen, tls if config.metrics_tls else None) as metrics,
    ):
        listener: trio.socket.SocketType | None = None
        try:
            if config.listen is not None:
                listener = await open_listener(config.listen, "clients")
            announce = task_status.started
            with watched_names(env, config.store.data_dir) as watched:
                await SlaveRun(
                    config,
                    watched,
                    metrics,
                    with_contexts(ask_client_port, tls),
                    listener,
                    announce,
                    copies_tables=copies_tables,
                    access=access,
                    tls=tls,
                ).run()
        finally:
            if listener is not None:
                listener.close()


@final
@attrs.define(eq=False)
class SlaveRun:
    """The run of a slave: its store is opened once, and again after each cut of its log.

    ``env`` is of ``watched_names``.
    ``announce`` gets the slave once it serves for the first time.  ``identity`` is that of an
    earlier opening by this process; None: this is a start of the node.  ``copies_tables``: whether
    topics, groups and offsets are copied from the port below the master's HA port, if
    ``config.master_client`` names no other; None: if ``ask_client_port`` is given.
    """

    config: SlaveConfig
    env: Env
    metrics: MetricsServer
    ask_client_port: AskClientPort | None
    listener: trio.socket.SocketType | None
    announce: Callable[[Slave], None]
    identity: NodeIdentity | None = None
    on_identity: Callable[[NodeIdentity | None], None] = lambda _identity: None
    on_built: Callable[[Slave], None] = lambda _slave: None  # called before it serves
    copies_tables: bool | None = None
    access: NodeAccess | None = None
    tls: TlsContexts | None = None
    store_health: StoreHealth = attrs.field()
    slave: Slave | None = None
    cuts: Cuts = attrs.field(factory=Cuts)
    is_announced: bool = False

    @store_health.default
    def _store_health(self) -> StoreHealth:
        return StoreHealth(self.env.wall_clock.boot_s)

    async def run(self) -> None:
        """Serve until the slave is asked to stop, or cancelled."""
        while (needed := await self.serve()) is not None:
            if isinstance(needed, RevivalNeededError):
                await self.revive(needed)
            else:
                await self.cut(needed)

    async def serve(self) -> CutNeededError | RevivalNeededError | None:
        """Open the store and serve until the slave stops, or return the change that it needs.

        The store is closed then.
        """
        address = None if self.listener is None else bound_address(self.listener)
        store_host = address or self.config.master
        opened = await self.env.offload.run(
            lambda: open_slave_store(self.env, self.config, store_host, self.identity)
        )
        message_store, self.identity = opened.message_store, opened.identity
        self.on_identity(opened.identity)
        if self.cuts.last is None:
            self.cuts.last = opened.newest_cut
        if message_store.completed_cut is not None:
            self.cuts.made(message_store.completed_cut)
        parts: SlaveParts | None = None
        needed: CutNeededError | RevivalNeededError | None = None
        clean = False
        try:
            self.store_health.torn_tables.update(message_store.torn_tables)
            parts = self._build(opened)
            if self.slave is None:
                self.slave = _make_slave(
                    self.config,
                    self.env,
                    parts,
                    address,
                    self.metrics.address,
                    cuts=self.cuts,
                    store_health=self.store_health,
                    access=self.access,
                    tls=self.tls,
                )
                self.on_built(self.slave)
            else:
                self.slave.take(parts)
            self.metrics.serve(self.slave)
            with as_itself():
                copies = self.copies_tables
                if copies is None:
                    copies = self.ask_client_port is not None
                await _serve(self.slave, self.listener, self._announce, copies_tables=copies)
            clean = True
        except (CutNeededError, RevivalNeededError) as error:
            clean, needed = True, error
        except BaseException as error:
            clean = is_only_cancelled(error) or isinstance(error, WrongPortError)
            raise
        finally:
            if parts is not None:
                parts.flush_manager.close()
            _keep_mark(opened)
            commit_log = message_store.commit_log
            clean = clean and commit_log.flushed_offset == commit_log.max_offset
            lost = lost_at_stop(self.env) if clean else None
            message_store.close(clean=clean and lost is None)
            if lost is not None:
                raise lost
        return needed

    def _announce(self) -> None:
        """Say once that the slave serves."""
        if not self.is_announced:
            assert self.slave is not None
            self.is_announced = True
            self.announce(self.slave)

    def _build(self, opened: SlaveStore) -> SlaveParts:
        message_store, framing = opened.message_store, opened.framing
        commit_log = message_store.commit_log
        dispatch = DispatchWake()
        received_offset = None
        if isinstance(framing, AutoswitchFraming):
            received_offset = lambda: framing.confirm_offset  # noqa: E731 - one expression
        dispatching = make_dispatching(
            self.env,
            message_store,
            ConfirmOffset(commit_log, self.config.store, received_offset=received_offset),
            dispatch,
            health=self.store_health,
            on_bad_record=lambda offset, what: ha_client.damaged(offset, what),  # noqa: PLW0108 - made below
        )
        reput = dispatching.reput_message_service

        def flushed(_offset: int) -> None:
            ha_client.notify_flushed()
            dispatch.notify_confirmed()

        flush_manager = FlushManager(
            self.env,
            commit_log,
            self.config.store,
            dispatching.checkpoint_flusher,
            store_timestamp_ms=lambda: reput.dispatched_timestamp_ms,
            on_flushed=flushed,
        )
        allocate_service = AllocateMappedFileService(
            self.env, commit_log.mapped_file_queue, self.config.store, self.store_health
        )
        ha_client = HAClient(
            self.env,
            self.config,
            commit_log,
            flush_manager,
            allocate_service,
            dispatch.notify_confirmed,
            lambda: reput.last_message_offset,
            self.ask_client_port,
            framing,
            self.cuts.refused,
            HATls.of(self.tls, self.config.ha, self.env),
        )
        return SlaveParts(
            message_store=message_store,
            flush_manager=flush_manager,
            allocate_service=allocate_service,
            ha_client=ha_client,
            dispatching=dispatching,
        )

    async def cut(self, needed: CutNeededError) -> None:
        """Cut the closed log as its epochs demand; a refusal is shown by the next opening.

        Raises HastoreError if the disk fails, or if another process has the directory now.
        """
        assert self.identity is not None, "only a node of a replica group compares epochs"
        self.metrics.serve(None)
        identity, master = self.identity, describe(self.config.master)
        reason = (
            f"the log of master {master} agrees with this one up to {needed.physic_offset} only"
        )
        try:
            cut = await self.env.offload.run(
                lambda: cut_slave_store(self.env, self.config, identity, needed, reason)
            )
        except (CutRefusedError, DiskFullError) as error:
            self.cuts.refused = error
        else:
            if cut is not None:
                self.cuts.made(cut)

    async def revive(self, needed: RevivalNeededError) -> None:
        """Build the consume queues of the closed store with the topics that its master still has.

        Killed before the end, the topics are deleted as before, and the next copy of the master's
        tables begins it again.  Raises HastoreError as ``rebuild`` does.
        """
        self.metrics.serve(None)
        _log.warning("topics_revived", topic=needed.topic, reason=str(needed))
        await self.env.offload.run(
            lambda: revive_topics(self.env, self.config, needed.deleted, needed.dispatched_offset)
        )


def _keep_mark(opened: SlaveStore) -> None:
    """Write the confirm mark as a slave's store closes; an older one is still true."""
    framing = opened.framing
    if isinstance(framing, AutoswitchFraming):
        try:
            framing.keep_mark()
        except DiskError as error:
            _log.warning("confirm_mark_not_written", reason=str(error), next=error.hint)


def _make_slave(
    config: SlaveConfig,
    env: Env,
    parts: SlaveParts,
    address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
    *,
    cuts: Cuts,
    store_health: StoreHealth,
    access: NodeAccess | None,
    tls: TlsContexts | None,
) -> Slave:
    return Slave(
        config=config,
        env=env,
        message_store=parts.message_store,
        flush_manager=parts.flush_manager,
        allocate_service=parts.allocate_service,
        ha_client=parts.ha_client,
        dispatching=parts.dispatching,
        cuts=cuts,
        store_health=store_health,
        address=address,
        metrics_address=metrics_address,
        access=access,
        tls=tls,
    )


async def _serve(
    slave: Slave,
    listener: trio.socket.SocketType | None,
    announce: Callable[[], None],
    *,
    copies_tables: bool,
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_names, slave.env)
            nursery.start_soon(slave.flush_manager.run)
            nursery.start_soon(slave.allocate_service.run)
            nursery.start_soon(slave.ha_client.run)
            nursery.start_soon(slave.dispatching.run)
            nursery.start_soon(slave.expiry.run)
            keeper = _make_mark_keeper(slave)
            if keeper is not None:
                nursery.start_soon(keeper.run)
            synchronize = _make_synchronize(slave, copies_tables=copies_tables)
            if listener is not None or synchronize.address is not None:
                slave.reput_message_service.subscribe(synchronize.data.adopt)
                await nursery.start(synchronize.data.serve, slave.message_store.consume_queues)
                nursery.start_soon(synchronize.run)
            slave.slave_synchronize = synchronize
            slave.ha_client.before_link = synchronize.before_link
            slave.log_comparison = comparison = _make_comparison(slave, synchronize)
            if comparison is not None:
                nursery.start_soon(comparison.run)
            server = None
            if listener is not None:
                server = RemotingServer(
                    slave.env,
                    slave.config.remoting,
                    slave,
                    [listener],
                    data=synchronize.data,
                    access=slave.access,
                    tls=slave.tls,
                )
                slave.reput_message_service.subscribe(
                    server.on_dispatched, server.is_dispatch_awaited
                )
                slave.allocate_service.sheds_by(server.shed_idle)
                await nursery.start(server.run)
                broker_id = slave_id(slave.config.node_id)
                register(nursery, slave, synchronize.data.topics, broker_id, slave.ha_address)
            master = slave.config.master
            _log.info(
                "slave_serving",
                master="nobody" if master == NO_MASTER else describe(master),
                at=slave.max_offset,
            )
            announce()
            await slave.stop_requested()
            if server is not None:  # the answers are sent before connections close
                server.shut_down(ANSWER_TIMEOUT_S)
                await server.ended()
            nursery.cancel_scope.cancel()
    except BaseException as error:
        if is_only_cancelled(error) or _needs_change(error):
            failure = await slave.last_flush()
            if failure is not None:
                raise failure from None
        elif isinstance(error, BaseExceptionGroup):
            failures = error.split((CutNeededError, RevivalNeededError))[1]
            if failures is not None:  # a disk that fails at that moment counts, not the change
                raise failures from None
        raise
    failure = await slave.last_flush()
    if failure is not None:
        raise failure


def _make_mark_keeper(slave: Slave) -> MarkKeeper | None:
    framing = slave.ha_client.framing
    if not isinstance(framing, AutoswitchFraming):
        return None
    return MarkKeeper(
        offload=slave.env.offload,
        kept=lambda: framing.kept_offset,
        flushed=lambda: slave.flushed_offset,
        write=framing.mark_kept,
        wake=framing.kept_rises,
    )


def _make_synchronize(slave: Slave, *, copies_tables: bool) -> SlaveSynchronize:
    config = slave.config
    return SlaveSynchronize(
        env=slave.env,
        config=config,
        message_store=slave.message_store,
        data=BrokerData.make(slave.env, config.remoting, config.store.data_dir, slave.store_health),
        live_link=lambda: slave.ha_client.live_link,
        confirm_offset=slave.reput_message_service.confirm_offset,
        clocks=slave.peer_clocks,
        dispatched_offset=lambda: slave.reput_message_service.reput_offset,
        delete_queues=slave.delete_queues,
        tls=slave.tls,
        uses_default_port=copies_tables,
    )


def _make_comparison(slave: Slave, synchronize: SlaveSynchronize) -> LogComparison | None:
    """Return what compares an unverified log with its master's; None if all of it counts."""
    framing = slave.ha_client.framing
    if not isinstance(framing, AutoswitchFraming) or framing.identity.current.unverified is None:
        return None

    async def flush() -> None:
        await slave.flush_manager.flush_all()
        await slave.dispatching.finish()

    return LogComparison(
        env=slave.env,
        config=slave.config,
        message_store=slave.message_store,
        framing=framing,
        reput=slave.reput_message_service,
        live_link=lambda: slave.ha_client.live_link,
        address=synchronize.address,
        flush=flush,
        tls=slave.tls,
    )


def _needs_change(error: BaseException) -> bool:
    """Return whether ``error`` is nothing but a change of the closed store that is needed."""
    if isinstance(error, BaseExceptionGroup):
        return all(_needs_change(inner) for inner in error.exceptions)
    return isinstance(error, (CutNeededError, RevivalNeededError))
