"""How a slave's reports leave: at once where the socket takes them, in order in any case."""

import pytest
import trio

from hastore.ha.copy_progress import FrameSizes
from hastore.ha.ha_link import HALink
from hastore.wire.ha_frames import REPORT, REPORT_DIVERGED, REPORT_SIZE


class Socket:
    """Takes at most ``room`` bytes at once; ``send`` takes three bytes a call."""

    def __init__(self, room):
        self.room = room
        self.sent = bytearray()

    def send_now(self, _sock, buffers):
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        self.sent += data
        return len(data)

    async def send(self, data, _flags=0):
        await trio.lowlevel.checkpoint()
        self.sent += data[:3]
        return len(data[:3])

    @property
    def reports(self):
        return [offset for (offset,) in REPORT.iter_unpack(self.sent)]


def link_over(sock):
    return HALink(sock, FrameSizes(32_768, 1 << 20), None, 0.0, sock.send_now)


@pytest.mark.parametrize("room", range(3 * REPORT_SIZE + 1))
async def test_reports_leave_whole_and_in_order(room):
    """However much of them the socket takes at once."""
    sock = Socket(room)
    link = link_over(sock)
    for offset in (100, 200, 300):
        link.queue_report(offset)
        link.send_at_once(1.0)
    assert link.has_reports() == (room < 3 * REPORT_SIZE)
    await link.send_reports()
    assert not link.has_reports()
    assert sock.reports == [100, 200, 300]


async def test_a_report_that_leaves_at_once_needs_no_turn():
    """It counts as sent when its bytes arrived."""
    sock = Socket(100)
    link = link_over(sock)
    link.queue_report(100)
    link.send_at_once(7.0)
    assert (sock.reports, link.last_write_time, link.reported_offset) == ([100], 7.0, 100)


@pytest.mark.parametrize("begun", [False, True])
async def test_the_last_report_follows_whole_ones_only(begun):
    """Behind a part of a report the master would read other numbers."""
    sock = Socket(0 if begun else 100)
    link = link_over(sock)
    link.queue_report(100)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.send_reports)
            await trio.lowlevel.checkpoint()
            scope.cancel()
    await link.report_diverged()
    if begun:
        assert REPORT.pack(100).startswith(sock.sent)
        assert len(sock.sent) < REPORT_SIZE
    else:
        assert sock.reports == [100, REPORT_DIVERGED]


async def test_the_last_report_does_not_follow_a_part_that_left_at_once():
    """The rest of it waits for another send, which does not come."""
    sock = Socket(2)
    link = link_over(sock)
    link.queue_report(100)
    link.send_at_once(1.0)
    await link.report_diverged()
    assert len(sock.sent) == 2


async def test_reports_overtake_none_that_is_being_sent():
    """Another task's report waits for the one that is stuck."""
    sock = Socket(2)
    link = link_over(sock)
    link.queue_report(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.send_reports)
        await trio.lowlevel.checkpoint()
        sock.room = 100
        link.queue_report(200)
        link.send_at_once(1.0)
        await link.send_reports()
    assert sock.reports == [100, 200]
