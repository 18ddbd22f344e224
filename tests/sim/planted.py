"""Bugs that systems like this one have had, planted into the real code: each must be found.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

import contextlib

import trio

from hastore.concurrency.group_commit_request import OffsetOrderedQueue
from hastore.errors import FlushFailedError
from hastore.flush.log_flusher import LogFlusher
from hastore.ha import ha_client
from hastore.ha.group_transfer_service import GroupTransferService
from hastore.ha.ha_client import HAClient
from hastore.ha.slave_ack_table import SlaveAckTable
from hastore.ha.slave_appender import SlaveAppender
from hastore.ha.slave_cursor import SlaveCursor
from hastore.ha.slave_progress import SlaveProgress
from hastore.sim.disk import SimFile


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
)
