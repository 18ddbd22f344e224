"""Bugs that similar systems have had, planted into the real code: the simulator must find each.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import attrs
import pytest
import trio

from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.broker.puts.pending_puts import PendingPuts
from hastore.client import pull_client
from hastore.client.send_result import PendingSend, SendResult
from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.group_commit_request import GroupCommitRequest, OffsetOrderedQueue
from hastore.concurrency.tcp import connect
from hastore.config import HAConfig
from hastore.env.failed_writes import FailedWrites
from hastore.env.interface import DiskFile
from hastore.errors import (
    ConfigError,
    DiskFullError,
    FlushFailedError,
    UnknownOutcomeError,
    UnreachableError,
)
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.log_flusher import LogFlusher
from hastore.ha import ha_client, slave_progress
from hastore.ha.group_transfer_service import GroupTransferService, SlaveAckTable
from hastore.ha.ha_client import HAClient
from hastore.ha.ha_connection import HAConnection, ReadSocketService
from hastore.ha.ha_link import HALink
from hastore.ha.link_step import LinkEvent
from hastore.ha.slave_appender import SlaveAppender
from hastore.ha.slave_cursor import SlaveCursor
from hastore.ha.slave_progress import LogBounds, StreamStart
from hastore.sim.cluster import SimCluster, SimNode
from hastore.sim.disk import SimDisk, SimFile
from hastore.status import FlushDiskType, PutMessageStatus
from hastore.store.commit_log import CommitLog
from hastore.store.log.mapped_file import MappedFile
from hastore.store.log.mapped_file_queue import MappedFileQueue
from hastore.store.recovery import log_opener
from hastore.store.recovery.rules import StartFacts
from hastore.store.recovery.tail_scan import FileWalk
from hastore.store.recovery.trim import write_again
from hastore.wire.ha_frames import HEADER_SIZE
from hastore.wire.pull_message import PullReply, read_pull_reply

Plant = Callable[[pytest.MonkeyPatch], None]


def slave_acks_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A SYNC_FLUSH slave reports received bytes before they are flushed."""
    never = property(lambda _self: False, lambda _self, _value: None)
    patch.setattr(HAClient, "_reports_flushed", never)


def departed_slave_counts(patch: pytest.MonkeyPatch) -> None:
    """The ack of a disconnected slave still counts."""
    patch.setattr(SlaveAckTable, "remove", lambda _self, _connection_id: None)


def disconnect_forgets_all_slaves(patch: pytest.MonkeyPatch) -> None:
    """When a slave disconnects, the others do not count until their next reports."""

    def remove(self: SlaveAckTable, connection_id: int) -> None:
        self._acks.pop(connection_id, None)
        self.nearest = None

    patch.setattr(SlaveAckTable, "remove", remove)


def refuses_at_each_roll(patch: pytest.MonkeyPatch) -> None:
    """A put that does not fit in the file is refused instead of waiting for the next file."""

    def refuse(
        self: PendingPuts, request: GroupCommitRequest, _messages: object, _since: object = None
    ) -> None:
        request.decide(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, "planted")
        self.allocate_service._wake.wakeup()

    patch.setattr(PendingPuts, "add", refuse)


def reports_rarely(patch: pytest.MonkeyPatch) -> None:
    """A slave that has just reported leaves newer bytes to its next heartbeat."""
    queue_report = HALink.queue_report

    def queue_later(self: HALink, offset: int) -> None:
        if self.reported_offset is None or trio.current_time() >= self.last_write_time + 2.5:
            queue_report(self, offset)

    patch.setattr(HALink, "queue_report", queue_later)


def needs_more_than_the_record(patch: pytest.MonkeyPatch) -> None:
    """A put waits until a slave has more than its record."""
    patch.setattr(
        GroupTransferService,
        "notify_transfer_some",
        lambda self, _: self._queue.release(self.ack_table.push2_slave_max_offset - 1),
    )


def forgets_later_deadlines(patch: pytest.MonkeyPatch) -> None:
    """Of all waiting puts only the first is answered at its deadline."""

    def first_only(self: OffsetOrderedQueue, now: float, reason: str) -> None:
        if self.waiting and self.waiting[0][1] <= now:
            self.waiting.popleft()[2].complete(self.part, self.timeout_status, reason)
            later = [(offset, float("inf"), request) for offset, _, request in self.waiting]
            self.waiting = deque(later)

    patch.setattr(OffsetOrderedQueue, "expire", first_only)


def keeps_old_socket(patch: pytest.MonkeyPatch) -> None:
    """A slave that reconnects leaves its earlier socket open."""

    async def connect_and_keep(
        address: tuple[str, int], timeout_s: float
    ) -> trio.socket.SocketType:
        sock = await connect(address, timeout_s)
        patch.setattr(sock, "close", lambda: None)
        return sock

    patch.setattr(ha_client, "connect", connect_and_keep)


def resumes_at_wrong_offset(patch: pytest.MonkeyPatch) -> None:
    """The bytes of an incomplete frame count as received after a reconnect."""
    first_report = SlaveCursor.first_report
    follow = HAClient._follow
    left: dict[SlaveCursor, int] = {}

    async def follow_and_remember(self: HAClient) -> None:
        left[self._cursor] = self.buffer.write_position - self.buffer.dispatch_position
        await follow(self)

    def report_more(self: SlaveCursor, position: int) -> int:
        return first_report(self, position) + (left[self] if position > 0 else 0)

    patch.setattr(HAClient, "_follow", follow_and_remember)
    patch.setattr(SlaveCursor, "first_report", report_more)


def reports_before_append(patch: pytest.MonkeyPatch) -> None:
    """A slave reports a frame before it appends it."""
    append = SlaveAppender.append
    clients: dict[SlaveAppender, HAClient] = {}
    make = HAClient.__init__

    def remember(self: HAClient, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        clients[self._appender] = self

    async def report_and_append(self: SlaveAppender, physic_offset: int, body: memoryview) -> None:
        client = clients[self]
        end = physic_offset + len(body)
        client.link.queue_report(end)
        await client.link.send_reports()
        await trio.sleep(0.02)
        await append(self, physic_offset, body)

    patch.setattr(HAClient, "__init__", remember)
    patch.setattr(SlaveAppender, "append", report_and_append)
    patch.setattr(SlaveAppender, "append_frames", lambda _self, _buffer: None)


def ignores_eio(patch: pytest.MonkeyPatch) -> None:
    """A failed fsync counts as a success."""
    sync = SimFile.sync

    def sync_and_ignore(self: SimFile) -> None:
        with contextlib.suppress(FlushFailedError):
            sync(self)

    patch.setattr(SimFile, "sync", sync_and_ignore)


def retries_fsync(patch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the flush is repeated, and its success is believed."""
    sync = LogFlusher._sync

    async def sync_again(self: LogFlusher, targets: list[tuple[MappedFile, int]]) -> None:
        on_failed, self.on_failed = self.on_failed, None
        try:
            await sync(self, targets)
        except FlushFailedError:
            self.failure = None
            await sync(self, targets)
        finally:
            self.on_failed = on_failed

    patch.setattr(LogFlusher, "_sync", sync_again)


def claims_what_came_during_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Bytes written while an fsync runs count as flushed."""
    mark_flushed = CommitLog.mark_flushed

    def mark_too_much(self: CommitLog, targets: list[tuple[MappedFile, int]]) -> None:
        mark_flushed(self, [(file, file.committed_position) for file, _ in targets])

    patch.setattr(CommitLog, "mark_flushed", mark_too_much)


def accepts_slave_ahead(patch: pytest.MonkeyPatch) -> None:
    """A first report beyond the master's own end counts as an acknowledgement."""
    first = slave_progress.classic_start

    def accept(config: HAConfig, offset: int, log: LogBounds) -> StreamStart:
        return StreamStart(offset) if offset > log.max_offset else first(config, offset, log)

    patch.setattr(slave_progress, "classic_start", accept)


def trusts_the_cache_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """After a failed fsync and a restart the page cache is trusted to be on disk."""
    patch.setattr(log_opener, "write_again", lambda _file, _start, _stop, **_: None)


def writes_again_over_what_it_did_not_forget(patch: pytest.MonkeyPatch) -> None:
    """After a failed fsync a start writes the tail again, but keeps the old pages in the cache."""

    @attrs.define
    class Unforgetting:
        disk_file: DiskFile

        def __getattr__(self, name: str) -> Any:
            return getattr(self.disk_file, name)

        def forget(self, position: int = 0, size: int = 0) -> None:
            pass

    def write_only(disk_file: DiskFile, start: int, stop: int, **more: Any) -> None:
        write_again(cast("DiskFile", Unforgetting(disk_file)), start, stop, **more)

    patch.setattr(log_opener, "write_again", write_only)


def one_recv_is_a_report(patch: pytest.MonkeyPatch) -> None:
    """A master assumes that each recv begins and ends at a report's boundary."""

    async def run(self: ReadSocketService) -> None:
        while data := await self.sock.recv(4096):
            self.last_read_time = trio.current_time()
            self._handle_reports(data.ljust(-(-len(data) // 8) * 8, b"\0"))

    patch.setattr(ReadSocketService, "run", run)


def one_recv_is_a_header(patch: pytest.MonkeyPatch) -> None:
    """A slave drops an incomplete header, as if the next recv began with a header."""
    append_and_report, dispatch = HAClient._append_and_report, HAClient._dispatch

    def forget(self: HAClient) -> None:
        left = self.buffer.write_position - self.buffer.dispatch_position
        if left < HEADER_SIZE:
            self.buffer.consume(left)

    def append_and_forget(self: HAClient, now: float) -> float | None:
        took_s = append_and_report(self, now)
        forget(self)
        return took_s

    async def dispatch_and_forget(self: HAClient) -> None:
        await dispatch(self)
        forget(self)

    patch.setattr(HAClient, "_append_and_report", append_and_forget)
    patch.setattr(HAClient, "_dispatch", dispatch_and_forget)


def recovers_without_crc(patch: pytest.MonkeyPatch) -> None:
    """A start accepts a record whose length and offset are right, without its checksums."""
    walk = FileWalk.walk
    patch.setattr(
        FileWalk, "walk", lambda self, *args, **_check_crc: walk(self, *args, check_crc=False)
    )


def never_compares(patch: pytest.MonkeyPatch) -> None:
    """A slave does not compare its log with what its master sends again."""

    def reset(self: SlaveAppender) -> None:
        self.position = self.commit_log.max_offset

    patch.setattr(SlaveAppender, "reset", reset)


def serves_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """Consumers get messages that no slave has acknowledged."""
    patch.setattr(ConfirmOffset, "__call__", lambda self: self.commit_log.readable_offset)


def keeps_silent_slaves(patch: pytest.MonkeyPatch) -> None:
    """A master waits for a silent slave for ever."""

    async def wait(_self: HAConnection) -> None:
        await trio.sleep_forever()

    patch.setattr(HAConnection, "_housekeeping", wait)


def keeps_a_silent_master(patch: pytest.MonkeyPatch) -> None:
    """A slave waits for a silent master for ever, and repeats its reports."""
    wait = HAClient._keep_alive

    async def wait_on(self: HAClient) -> None:
        while True:
            try:
                await wait(self)
            except ha_client.LinkEndedError:
                self.link.last_read_time = trio.current_time()

    patch.setattr(HAClient, "_keep_alive", wait_on)


def trims_damage(patch: pytest.MonkeyPatch) -> None:
    """A damaged record below the durable checkpoint is trimmed with everything after it."""
    patch.setattr(StartFacts, "why_damage_at", lambda *_: "")
    patch.setattr(StartFacts, "is_damage_before", lambda *_: False)


def broken_link_ends_slave(patch: pytest.MonkeyPatch) -> None:
    """A slave treats a broken link as a failed disk."""

    def end(self: HAClient, error: Exception) -> NoReturn:
        raise FlushFailedError(str(error), path=self.commit_log.path)

    patch.setattr(HAClient, "_record_broken", end)


def ends_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A node without room for its next file ends instead of refusing puts."""
    make = AllocateMappedFileService._make

    async def make_or_end(self: AllocateMappedFileService, file_from_offset: int) -> None:
        await make(self, file_from_offset)
        if isinstance(self.last_error, DiskFullError):
            raise self.last_error

    patch.setattr(AllocateMappedFileService, "_make", make_or_end)


def broken_link_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """A slave whose link has ended does not reconnect, and asks for an operator."""
    run = HAClient.run

    def end(_self: HAClient, error: Exception) -> NoReturn:
        raise ConfigError(str(error))

    async def run_and_give_up(self: HAClient) -> None:
        try:
            await run(self)
        except ConfigError as error:
            self._cursor.on(LinkEvent.FILE_SIZE_DIFFERS)
            await self._give_up(error)

    patch.setattr(HAClient, "_record_broken", end)
    patch.setattr(HAClient, "run", run_and_give_up)


def loses_what_was_flushed(patch: pytest.MonkeyPatch) -> None:
    """An ASYNC_FLUSH master loses its whole log in a power cut, not only its last moments."""
    end = SimNode._end

    def end_empty(self: SimNode, disk: SimDisk, what: str, *, silently: bool) -> None:
        assert isinstance(self.cluster, SimCluster)
        is_sync = self.cluster.config.master_flush is FlushDiskType.SYNC_FLUSH
        if what == "power cut" and self.is_master and not is_sync:
            disk = SimDisk(self.wall_clock.now_ms)
        end(self, disk, what, silently=silently)

    patch.setattr(SimNode, "_end", end_empty)


def confirms_nothing(patch: pytest.MonkeyPatch) -> None:
    """A master serves no messages."""
    patch.setattr(ConfirmOffset, "__call__", lambda _self: 0)


def skips_a_message(patch: pytest.MonkeyPatch) -> None:
    """A consumer that gets messages skips the next one."""

    def read_and_skip(fields: Mapping[str, Any]) -> PullReply:
        reply = read_pull_reply(fields)
        return attrs.evolve(reply, next_begin_offset=reply.next_begin_offset + 1)

    patch.setattr(pull_client, "read_pull_reply", read_and_skip)


def expires_all_at_once(patch: pytest.MonkeyPatch) -> None:
    """At the first deadline all waiting puts are answered, whatever their deadlines are."""
    expire = OffsetOrderedQueue.expire

    def expire_all(self: OffsetOrderedQueue, now: float, reason: str) -> int:
        is_due = self.waiting and self.waiting[0][1] <= now
        return expire(self, float("inf") if is_due else now, reason)

    patch.setattr(OffsetOrderedQueue, "expire", expire_all)


def calls_the_unknown_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A client whose link breaks before the answer reports that nothing was sent."""
    make = PendingSend.result

    def result(self: PendingSend) -> SendResult:
        try:
            return make(self)
        except UnknownOutcomeError as error:
            raise UnreachableError(str(error)) from error

    patch.setattr(PendingSend, "result", result)


# Each bug with the rules that describe it; any other rule would find it only by chance.
def forgets_what_was_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A table that could not be written is logged once, and its node is healthy."""
    patch.setattr(FailedWrites, "failed", lambda *_, **__: None)


def forgets_puts_that_failed(patch: pytest.MonkeyPatch) -> None:
    """A master whose puts fail says that they are taken."""
    patch.setattr(DecisionLog, "_record_own", lambda *_: None)
    patch.setattr(MappedFileQueue, "is_full", property(lambda _: False))


PLANTED: dict[Plant, set[str]] = {
    slave_acks_before_fsync: {"ack"},
    departed_slave_counts: {"timeout", "ack", "confirm", "offsets"},
    disconnect_forgets_all_slaves: {"unavailable"},
    refuses_at_each_roll: {"next file"},
    reports_rarely: {"timeout"},
    needs_more_than_the_record: {"timeout"},
    forgets_later_deadlines: {"answer"},
    keeps_old_socket: {"links"},
    resumes_at_wrong_offset: {"refusal", "ack"},
    reports_before_append: {"ack"},
    ignores_eio: {"ack", "flushed"},
    retries_fsync: {"ack", "flushed"},
    claims_what_came_during_the_sync: {"flushed", "ack"},
    accepts_slave_ahead: {"offsets", "ack", "timeout"},
    trusts_the_cache_at_a_start: {"flushed", "ack"},
    writes_again_over_what_it_did_not_forget: {"flushed", "ack"},
    one_recv_is_a_report: {"refusal", "ack", "offsets"},
    one_recv_is_a_header: {"frame", "refusal"},
    recovers_without_crc: {"unseen damage"},
    never_compares: {"prefix", "equal", "damage"},
    serves_unconfirmed: {"confirm", "confirmed reads"},
    keeps_silent_slaves: {"silence"},
    keeps_a_silent_master: {"silence"},
    trims_damage: {"trimmed damage"},
    broken_link_ends_slave: {"ended"},
    ends_on_a_full_disk: {"ended"},
    expires_all_at_once: {"timeout"},
    calls_the_unknown_a_failure: {"false failure"},
    confirms_nothing: {"unserved"},
    skips_a_message: {"queue order"},
    broken_link_is_given_up: {"refusal"},
    loses_what_was_flushed: {"loss", "served twice", "served and lost"},
    forgets_what_was_not_stored: {"health"},
    forgets_puts_that_failed: {"health"},
}
