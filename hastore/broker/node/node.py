"""The common part of a master and a slave: a store, its flush, its dispatch, the stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.broker.clock.clock_readings import ClockReadings
from hastore.broker.clock.clock_watch import ClockWatch
from hastore.broker.node.reload import reload_files
from hastore.broker.observe.node_status import (
    DiskRow,
    FailedWriteRow,
    LogDamage,
    NodeStatus,
    UnverifiedLog,
)
from hastore.broker.quotas import QuotaRefusals
from hastore.concurrency.tcp import describe
from hastore.errors import DiskError, HastoreError
from hastore.quantities import format_size
from hastore.status import HAProtocol
from hastore.store.disk_usage import disk_usages
from hastore.store.reserve_file import ReserveFile
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.clock.clock_verdict import ClockReading
    from hastore.broker.expiry.expiry import Expiry
    from hastore.broker.group_directory import GroupDirectory
    from hastore.broker.node.dispatching import Dispatching
    from hastore.broker.node.reload import Reloaded
    from hastore.broker.request_target import RoleControl
    from hastore.concurrency.store_health import StoreHealth
    from hastore.config import MasterConfig, SlaveConfig
    from hastore.dispatch.reput_message_service import ReputMessageService
    from hastore.env.interface import Disk, Env
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
    from hastore.flush.flush_manager import FlushManager
    from hastore.status import BrokerRole
    from hastore.store.commit_log import CommitLog
    from hastore.store.message_store import MessageStore
    from hastore.store.node_identity import NodeIdentity
    from hastore.tls.tls_contexts import TlsContexts
    from hastore.wire.config_tables import DeletedTopic

ANSWER_TIMEOUT_S: Final = 1.0  # for answers that clients have not read
_HOUR_MS: Final = 3_600_000
STOP_TIMEOUT_S: Final = 3.0  # for the last flush; a stop takes at most 5 s in all

_log = logger("broker")


@attrs.define(eq=False, repr=False, kw_only=True)
class RunningNode:
    """A running node."""

    config: MasterConfig | SlaveConfig
    env: Env
    message_store: MessageStore
    flush_manager: FlushManager
    allocate_service: AllocateMappedFileService
    dispatching: Dispatching
    store_health: StoreHealth  # the same in each role of a process
    address: tuple[str, int] | None
    metrics_address: tuple[str, int] | None
    role_control: RoleControl | None = None  # what may change its role
    directory: GroupDirectory | None = None  # what it knows of its group
    access: NodeAccess | None = None  # the permissions in force; None: everybody may do everything
    tls: TlsContexts | None = None  # the certificates in force; None: it has none
    expiry: Expiry = attrs.field(init=False)
    clock: ClockWatch = attrs.field(init=False)  # of the store as it is open now
    peer_clocks: ClockReadings = attrs.field(init=False)  # read on the client port
    quota_refusals: QuotaRefusals = attrs.field(factory=QuotaRefusals, init=False)
    _started: float = attrs.field(factory=trio.current_time, init=False)
    _stop_requested: trio.Event = attrs.field(factory=trio.Event, init=False)

    @peer_clocks.default
    def _peer_clocks(self) -> ClockReadings:
        return ClockReadings(self.env.wall_clock)

    def watch_clock(self) -> ClockWatch:
        """Return a new watch of the clock, for a store that was just opened."""
        store, reput, log = self.config.store, self.reput_message_service, self.commit_log
        self.clock = ClockWatch(
            env=self.env,
            data_dir=store.data_dir,
            keep_ms=store.file_reserved_time_h * _HOUR_MS,
            others=self.other_clocks,
            store_timestamp_ms=lambda: max(log.store_timestamp_ms, reput.dispatched_timestamp_ms),
            max_offset=lambda: log.max_offset,
            on_correction=log.expect_correction,
        )
        log.on_file_end = self.clock.check
        return self.clock

    def other_clocks(self) -> tuple[ClockReading, ...]:
        """Return what the clocks of peers and of the coordinator said last."""
        control = self.role_control
        coordinator = () if control is None else control.coordinator_clocks()
        return (*self.peer_clocks(), *coordinator)

    @property
    def commit_log(self) -> CommitLog:
        """The log."""
        return self.message_store.commit_log

    @property
    def reput_message_service(self) -> ReputMessageService:
        """The dispatch; it calls its subscribers with the queues that grew."""
        return self.dispatching.reput_message_service

    @property
    def dispatched_offset(self) -> int:
        """How far the log is dispatched: consumers may see what lies below."""
        return self.reput_message_service.committed_offset

    @property
    def name(self) -> str:
        """The node's name."""
        return self.config.name

    @property
    def broker_name(self) -> str:
        """The broker's name in routes: its replica group's, else its own."""
        return self.config.replica_group or self.config.name

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.config.cluster

    @property
    def max_offset(self) -> int:
        """The end of the log (exclusive)."""
        return self.commit_log.max_offset

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return trio.current_time() - self._started

    def common_status(self, role: BrokerRole, state: str) -> NodeStatus:
        """Return a snapshot of the parts that a master and a slave have in common."""
        env, store, control = self.env, self.config.store, self.role_control
        log, reput = self.commit_log, self.reput_message_service
        next_file_error = self.allocate_service.last_error
        metrics_address, disks = self.metrics_address, _disk_rows(env.disk, store.data_dir)
        return NodeStatus(
            name=self.name,
            cluster=self.cluster,
            role=role.value,
            state=state,
            address=None if self.address is None else describe(self.address),
            ha_address=None,
            data_dir=store.data_dir,
            process_id=env.process_id,
            uptime_s=self.uptime_s,
            mapped_file_size=log.file_size,
            mapped_files=len(log.mapped_file_queue.files),
            flush_disk_type=store.flush_disk_type.value,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            flushed_offset=log.flushed_offset,
            disk_free_bytes=disks[0].free_bytes if disks else None,
            dispatch_behind_bytes=reput.behind,
            dispatch_fault=reput.fault,
            cannot_store_because=self.store_health.reason,
            confirm_offset=reput.confirm_offset(),
            wall_time_ms=env.wall_clock.now_ms(),
            start_id=env.start_id,
            metrics_address=None if metrics_address is None else describe(metrics_address),
            disk_used_ratio=disks[0].used_ratio if disks else None,
            disk_full_ratio=store.disk_space_warning_level_ratio / 100,
            disks=disks,
            failed_writes=_failed_write_rows(env, store.data_dir),
            next_file_fault=None if next_file_error is None else str(next_file_error),
            log_is_full=log.mapped_file_queue.is_full,
            ha_protocol=self.config.ha.protocol.value,
            node_id=self.config.node_id,
            replica_group=self.config.replica_group,
            coordinator=None if control is None else control.coordinator_status(),
            access=None if self.access is None else self.access.status(),
            tls=None if self.tls is None else self.tls.status(self.config.ha),
            quota_refusals=dict(self.quota_refusals.counts),
            clock=self.clock.status(),
            log_damage=self._log_damage(),
            torn_tables=dict(self.store_health.torn_tables),
        )

    def _log_damage(self) -> LogDamage | None:
        """Return the damage that was found, unless its file has expired."""
        bad, log = self.store_health.bad_record, self.commit_log
        if bad is None or not log.min_offset <= bad[0] < log.max_offset:
            return None
        return LogDamage(physic_offset=bad[0], reason=bad[1])

    def forget_cut_damage(self) -> None:
        """Forget damage that was cut off the log, before other records take its place."""
        bad = self.store_health.bad_record
        if bad is not None and bad[0] >= self.commit_log.max_offset:
            self.store_health.bad_record = None

    def found_damage(self, physic_offset: int, what: str) -> None:
        """Show that a record of the log is damaged, while it is there or until a restart."""
        data_dir = self.config.store.data_dir
        if self.store_health.bad_record != (physic_offset, what):
            self.store_health.bad_record = physic_offset, what
            _log.error(
                "log_damaged",
                physic_offset=physic_offset,
                reason=what,
                next=f"hastore log verify {data_dir}",
            )

    async def delete_queues(self, deleted: Callable[[], Mapping[str, DeletedTopic]]) -> None:
        """Remove the queues of deleted topics.

        ``deleted`` returns all deletions that count, and are durable, in the step that puts them in
        force; or raises.  Raises DiskError.
        """
        queues = self.message_store.consume_queues
        async with self.dispatching.flush_service.paused():
            moved = queues.delete_topics(deleted())
        await self.env.offload.run(lambda: queues.remove_trees(moved))

    def keep_reserve(self) -> int:
        """Allocate what a node of a replica group lacks of its reserve; blocks.  Return its size.

        A classic node has none, and its size is 0.
        """
        if self.config.ha.protocol is not HAProtocol.AUTOSWITCH:
            return 0
        store, failed_writes = self.config.store, self.env.failed_writes
        reserve = ReserveFile(self.env.disk, store.data_dir)
        size = reserve.keep(store.reserve_size)
        if size:
            failed_writes.succeeded(reserve.path)
        else:
            reason = f"no space for {format_size(store.reserve_size)} or a part of it"
            failed_writes.failed(reserve.path, reason)
        return size

    async def reload(self) -> Reloaded:
        """Read permissions and certificate again; links stay."""
        return await reload_files(self.access, self.tls)

    def stop(self) -> None:
        """Request a clean stop: refuse new messages, flush, answer waiting puts, then end."""
        self._stop_requested.set()

    async def stop_requested(self) -> None:
        """Wait until ``stop`` is called."""
        await self._stop_requested.wait()

    async def last_flush(self) -> HastoreError | None:
        """Flush what is left, cancelled or not; return the error that makes the stop unclean."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
            try:
                await self.flush_manager.flush_all()  # then it is confirmed
                await self.dispatching.finish()
                await self.flush_manager.flush_all()  # the checkpoint
            except HastoreError as error:
                _log.error("last_flush_failed", reason=str(error), next=error.hint)
                return error
        return None


def unverified_log(identity: NodeIdentity) -> UnverifiedLog | None:
    """Return the part of a node's log that is not verified, for its status."""
    found = identity.current.unverified
    if found is None:
        return None
    return UnverifiedLog(begin=found.begin, end=found.end, why=found.why)


def _failed_write_rows(env: Env, data_dir: str) -> tuple[FailedWriteRow, ...]:
    """Return what could not be stored in a directory, the longest first."""
    now_ms, below = env.wall_clock.now_ms(), f"{data_dir.rstrip('/')}/"
    return tuple(
        FailedWriteRow(
            path=failed.path.removeprefix(below),
            reason=failed.reason,
            hint=failed.hint,
            is_removal=failed.is_removal,
            since_s=max(now_ms - failed.first_ms, 0) / 1000,
        )
        for failed in env.failed_writes.now
    )


def _disk_rows(disk: Disk, data_dir: str) -> tuple[DiskRow, ...]:
    """Return the file systems of a store, the fullest first; none if they cannot be read."""
    try:
        usages = disk_usages(disk, data_dir)
    except DiskError:
        return ()
    return tuple(
        DiskRow(
            directories=usage.directories,
            used_ratio=usage.space.used_ratio,
            free_bytes=usage.space.free_bytes,
            free_inodes=usage.space.free_inodes,
        )
        for usage in usages
    )
