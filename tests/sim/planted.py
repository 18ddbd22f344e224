"""Bugs that systems like this one have had, planted into the real code: each must be found.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

import contextlib

import trio

from hastore.broker.confirm_offset import ConfirmOffset
from hastore.concurrency.group_commit_request import OffsetOrderedQueue
from hastore.errors import FlushFailedError
from hastore.flush.log_flusher import LogFlusher
from hastore.ha import ha_client, slave_appender
from hastore.ha.group_transfer_service import GroupTransferService
from hastore.ha.ha_client import HAClient
from hastore.ha.ha_connection import HAConnection
from hastore.ha.read_socket_service import ReadSocketService
from hastore.ha.slave_ack_table import SlaveAckTable
from hastore.ha.slave_appender import SlaveAppender
from hastore.ha.slave_cursor import SlaveCursor
from hastore.ha.slave_progress import SlaveProgress
from hastore.sim.disk import SimFile
from hastore.store import recovery_open
from hastore.store.recovery import Known
from hastore.store.tail_scan import FileWalk
from hastore.wire.ha_frames import HEADER_SIZE


def slave_acks_before_fsync(patch):
    """A SYNC_FLUSH slave reports what it has received."""
    patch.setattr(HAClient, "_reports_flushed", property(lambda _self: False))


def departed_slave_counts(patch):
    """The ack of a slave that has left counts as a connected one's."""
    patch.setattr(SlaveAckTable, "remove", lambda _self, _connection_id: None)


def wakes_at_more(patch):
    """A put waits until a slave has more than it asked for."""
    patch.setattr(
        GroupTransferService,
        "notify_transfer_some",
        lambda self: self._queue.release(self.ack_table.push2_slave_max_offset - 1),
    )


def forgets_later_deadlines(patch):
    """Of all that wait only the first is answered at its deadline."""

    def first_only(self, now, reason):
        if self.waiting and self.waiting[0][1] <= now:
            self.waiting.popleft()[2].complete(self.part, self.timeout_status, reason)
            later = [(offset, float("inf"), request) for offset, _, request in self.waiting]
            self.waiting = type(self.waiting)(later)

    patch.setattr(OffsetOrderedQueue, "expire", first_only)


def keeps_old_socket(patch):
    """A slave that reconnects leaves its earlier socket open."""
    connect = ha_client.connect

    async def connect_and_keep(address, timeout_s):
        sock = await connect(address, timeout_s)
        sock.close = lambda: None
        return sock

    patch.setattr(ha_client, "connect", connect_and_keep)


def resumes_at_wrong_offset(patch):
    """After a frame that was cut off, the rest of it is taken for received."""
    first_report = SlaveCursor.first_report
    patch.setattr(
        SlaveCursor, "first_report", lambda self, position: first_report(self, position) + 12
    )


def reports_before_append(patch):
    """A slave says that it has a frame, then writes it."""
    append = SlaveAppender.append
    clients = {}
    make = HAClient.__init__

    def remember(self, *args, **kwargs):
        make(self, *args, **kwargs)
        clients[self._appender] = self

    async def report_and_append(self, physic_offset, body):
        client = clients[self]
        end = physic_offset + len(body)
        client._queue_report(end)
        await client._send_reports()
        await trio.sleep(0.02)
        await append(self, physic_offset, body)

    patch.setattr(HAClient, "__init__", remember)
    patch.setattr(SlaveAppender, "append", report_and_append)


def ignores_eio(patch):
    """A failed fsync counts as one that went well."""
    sync = SimFile.sync

    def sync_and_ignore(self):
        with contextlib.suppress(FlushFailedError):
            sync(self)

    patch.setattr(SimFile, "sync", sync_and_ignore)


def retries_fsync(patch):
    """After a failed fsync the cache is trusted: the next fsync says that all is well."""
    flush = LogFlusher._flush

    async def flush_again(self, least_pages):
        on_failed, self.on_failed = self.on_failed, None
        try:
            await flush(self, least_pages)
        except FlushFailedError:
            self.failure = None
            await flush(self, least_pages)
        finally:
            self.on_failed = on_failed

    patch.setattr(LogFlusher, "_flush", flush_again)


def accepts_slave_ahead(patch):
    """A first report beyond the master's own end counts as an acknowledgement."""
    first = SlaveProgress._first_transfer_offset

    def accept(self, offset, log):
        return offset if offset > log.max_offset else first(self, offset, log)

    patch.setattr(SlaveProgress, "_first_transfer_offset", accept)


def trusts_the_cache_at_a_start(patch):
    """After a failed fsync and a restart what the page cache shows is taken to be on the disk."""
    patch.setattr(recovery_open, "write_again", lambda _file, _start, _stop: None)


def one_recv_is_a_report(patch):
    """What one recv of a master gives begins with a report, and ends with one."""

    async def run(self):
        connection = self.connection
        while data := await connection.sock.recv(4096):
            connection.last_read_time = trio.current_time()
            self._handle_reports(data.ljust(-(-len(data) // 8) * 8, b"\0"))

    patch.setattr(ReadSocketService, "run", run)


def one_recv_is_a_header(patch):
    """What a slave has received of a header is thrown away, as if the next recv began with one."""
    dispatch = HAClient._dispatch

    async def dispatch_and_forget(self):
        await dispatch(self)
        left = self.buffer.write_position - self.buffer.dispatch_position
        if left < HEADER_SIZE:
            self.buffer.consume(left)

    patch.setattr(HAClient, "_dispatch", dispatch_and_forget)


def recovers_without_crc(patch):
    """A start takes a record for sound whose length and offset are right."""
    walk = FileWalk.walk
    patch.setattr(
        FileWalk, "walk", lambda self, *args, **_check_crc: walk(self, *args, check_crc=False)
    )


def never_compares(patch):
    """A master sends what it may lose again, and a slave that has it goes on all the same."""
    patch.setattr(slave_appender, "OVERLAP_SIZE", 0)


def serves_unconfirmed(patch):
    """Consumers are served what no slave has acknowledged."""
    patch.setattr(ConfirmOffset, "__call__", lambda self: self.commit_log.readable_offset)


def keeps_silent_slaves(patch):
    """A master that hears nothing of a slave waits for ever."""

    async def wait(self):
        await trio.sleep_forever()

    patch.setattr(HAConnection, "_housekeeping", wait)


def trims_damage(patch):
    """A bad record below the durable checkpoint is cut off with all behind it."""
    patch.setattr(Known, "why_damage_at", lambda *_: "")
    patch.setattr(Known, "is_damage_before", lambda *_: False)


PLANTED = (
    slave_acks_before_fsync,
    departed_slave_counts,
    wakes_at_more,
    forgets_later_deadlines,
    keeps_old_socket,
    resumes_at_wrong_offset,
    reports_before_append,
    ignores_eio,
    retries_fsync,
    accepts_slave_ahead,
    trusts_the_cache_at_a_start,
    one_recv_is_a_report,
    one_recv_is_a_header,
    recovers_without_crc,
    never_compares,
    serves_unconfirmed,
    keeps_silent_slaves,
    trims_damage,
)
